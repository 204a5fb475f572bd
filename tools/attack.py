"""``mikasa attack``: learn to cheat. How often does a policy without memory succeed, if learning may find out how?

    mikasa attack --env-id RememberColor3-v0 ShellGamePush-v0 --out runs/attack

An attacker sees the present observation and a clock and has no recurrent state. What it knows of a cue that is over must
be in the scene, or in its own posture. `ppo` learns from the task's reward, which is not part of its observation; `dagger`
learns from the labels of a scripted teacher. Each result is a row of a CSV file. The same command continues where it was
stopped.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

import mikasa_robo
import mikasa_suite
from mikasa_robo.baselines.arguments import ArgumentError, read_env_kwargs
from mikasa_robo.catalog import CATALOG
from mikasa_robo.data.seeds import EVALUATION_SEEDS
from mikasa_robo.terminal import print_error

from .attack_table import UNKNOWN, Attack, Row, markdown, read_reference, read_rows, verdict, write_row
from .env_ids import OptionError, resolve_env_id
from .output import require_folder

if TYPE_CHECKING:  # torch is loaded once the options are known to be good
    from mikasa_robo.baselines.arguments import CommonArgs

__all__ = ["FIRST_SEED", "Args", "main", "plan", "run_training", "training_args"]

FIRST_SEED = EVALUATION_SEEDS.start
"""Episode k of the final evaluation has the seed FIRST_SEED + k, as in `mikasa train` and `mikasa eval`."""
WARM_START = 0.3
"""In this share of the steps of dagger the teacher itself acts."""
IMITATION = {"batch_episodes": 16, "warm_start_updates": 600, "updates_per_rollout": 150}
"""Options of `mikasa train dagger`: half an episode batch is enough for a student that has no sequences to learn from."""
MOST = 10**12
REFERENCE = Path("docs/results/memory_need.csv")


@dataclass
class Args:
    """Train policies without memory to cheat, and compare their success with chance. Results that exist are kept."""

    env_id: tuple[str, ...]
    """The tasks to attack, as in `mikasa list`, or all; module:ID for a task of your own with an expert."""
    attacker: tuple[Literal["ppo", "dagger"], ...] = ("ppo", "dagger")
    """ppo learns from the reward. dagger acts itself and learns its teacher's action in each state that it visits."""
    teacher: tuple[str, ...] = ("expert", "posture")
    """Teachers of dagger, policies of `mikasa expert`; each gives one attacker. expert knows the cue, so a student without
    memory can only average what it does; posture writes the cue into its body, which a student can learn too."""
    arm: Literal["held", "free"] = "held"
    """held keeps the arm still until the response phase, so that no posture holds the cue. Tasks in which the arm is
    never held are always attacked with a free arm."""
    obs: str = "objects+joints+time"
    """What attackers see: parts of an observation joined with '+'. state and oracle tell them the cue."""
    env_kwargs: tuple[str, ...] = ()
    """Other arguments of the tasks as NAME=VALUE, such as delay_steps=20."""
    ppo_steps: int = 50_000
    """Environment steps of training for ppo, rounded up to whole rollouts of --num-envs x 64."""
    dagger_steps: int = 20_000
    """Environment steps of training for dagger, rounded up likewise."""
    seeds: tuple[int, ...] = (1,)
    """Seeds of training, a run each. Training episodes follow from them."""
    episodes: int = 300
    """Episodes of the final evaluation; episode k has the seed 2000000 + k."""
    num_envs: int = 64
    """Environments that are trained in together."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
    """The reward that ppo learns from."""
    sim_backend: str = "auto"
    """Physics backend. auto chooses the GPU if CUDA and PhysX's library for GPUs are available, else the batched CPU
    simulator, and keeps the results of either."""
    out: Path = Path("runs/attack")
    """Folder for the files of each training run, and for attack.csv and attack.md."""
    csv: Path | None = None
    """The CSV file of the results, if not attack.csv in --out; an existing one is continued."""
    markdown: Path | None = None
    """The Markdown file of the table, if not attack.md in --out; an existing one is replaced."""
    reference: Path | None = None
    """Where tasks without a finite chance get their bound from: the CSV of benchmarks/memory_need.py. By default
    docs/results/memory_need.csv, if it is there."""
    dry_run: bool = False
    """Show the training runs and the results that exist, and train nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code: 1 if a training run failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = tyro.cli(Args, args=words, prog="mikasa attack")
    try:
        env_ids = _check(args)
        csv_path = args.csv or args.out / "attack.csv"
        markdown_path = args.markdown or args.out / "attack.md"
        _require_other_files(csv_path, markdown_path, args.reference)
        references = _references(args)
        rows = read_rows(csv_path)
        _check_rows(args, rows, csv_path)
        attacks = list(plan(args, env_ids))
        for attack in attacks:
            _check_training(attack, args)
        simulator = _simulator(args)
        _check_kept(args, [rows[attack] for attack in attacks if attack in rows], simulator, csv_path)
        require_folder(args.out, "--out", max((_name(attack) for attack in attacks), key=len))
        require_folder(csv_path.parent, "--csv", csv_path.name)
        require_folder(markdown_path.parent, "--markdown", markdown_path.name)
    except OptionError as error:
        print_error(error)
        return 2
    runs = {*rows, *attacks}
    if args.dry_run:
        for attack in attacks:
            told = _result(rows[attack], runs, references) if attack in rows else "not trained yet"
            print(f"{_describe(attack)}: {told}")
        return 0
    for path in (csv_path, markdown_path):
        path.parent.mkdir(parents=True, exist_ok=True)

    failed: list[str] = []
    try:
        for number, attack in enumerate(attacks, 1):
            head = f"[{number} of {len(attacks)}] {_describe(attack)}"
            if attack in rows:
                print(
                    f"{head}: {_result(rows[attack], runs, references)}, kept (commit {rows[attack].commit})",
                    flush=True,
                )
                continue
            print(f"{head} ...", flush=True)
            try:
                row = _measure(attack, args, simulator, ["mikasa", "attack", *words])
            except (ArgumentError, FloatingPointError, FileExistsError) as error:
                failed.append(f"{_describe(attack)}: {error}")
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            with mikasa_suite.finish_first():
                rows = write_row(csv_path, row)
                _write_table(markdown_path, rows, references)
            print(f"{head}: {_result(row, runs, references)}, {row.seconds:.0f} s", flush=True)
    except KeyboardInterrupt as error:
        code = mikasa_suite.exit_code(error)
        mikasa_suite.tell(code, f"{csv_path} keeps what is finished; the same command continues")
        return code
    if rows:
        _write_table(markdown_path, rows, references)
        print(f"\n{markdown_path.read_text(encoding='utf-8')}")
    return 1 if failed else 0


# ---------------------------------------------------------------------- options
def _check(args: Args) -> list[str]:
    """Check what does not depend on other files, and return the bare IDs. Raises OptionError."""
    for name, low, high in (
        ("ppo_steps", 1, MOST),
        ("dagger_steps", 1, MOST),
        ("episodes", 1, 10**9),
        ("num_envs", 1, 65_536),
    ):
        if not low <= getattr(args, name) <= high:
            raise OptionError(f"--{name.replace('_', '-')} {getattr(args, name)} must be from {low} to {high}")
    for name in ("env_id", "attacker", "teacher", "seeds"):
        values = getattr(args, name)
        if not values:
            raise OptionError(f"--{name.replace('_', '-')} names nothing; give at least one")
        if len(set(values)) < len(values):
            raise OptionError(f"--{name.replace('_', '-')} {' '.join(map(str, values))} names something twice")
    _check_teachers(args.teacher)
    try:
        kwargs = read_env_kwargs(args.env_kwargs)
    except ArgumentError as error:
        raise OptionError(str(error)) from error
    if "arm" in kwargs:
        raise OptionError(f"--env-kwargs arm={kwargs['arm']}: use --arm")

    from mikasa_robo.core.observations import parse_modes
    from mikasa_robo.experts.registry import has_skill

    try:
        parts = parse_modes(args.obs).parts
    except ValueError as error:
        raise OptionError(f"--obs {args.obs}: {error}") from error
    if not parts:
        raise OptionError(
            f"--obs {args.obs} is a mode of ManiSkill, which shows hidden objects; use objects+joints+time"
        )
    if "all" in args.env_id:
        if len(args.env_id) > 1:
            raise OptionError("--env-id all names all tasks; leave the others out")
        return [env_id for env_id in mikasa_robo.TASKS if has_skill(env_id)]
    env_ids = [resolve_env_id(env_id) for env_id in args.env_id]
    for env_id in env_ids:
        if not has_skill(env_id):
            raise OptionError(
                f"--env-id {env_id} has no expert; use a task of `mikasa list`, or give the row of your own a skill"
            )
    return env_ids


def _require_other_files(csv: Path, markdown: Path, reference: Path | None) -> None:
    """Raises OptionError if two of the options name one file, as the table would overwrite the results."""
    named: dict[Path, str] = {}
    for option, path in (("--csv", csv), ("--markdown", markdown), ("--reference", reference)):
        if path is None:
            continue
        if (other := named.setdefault(path.resolve(), option)) != option:
            raise OptionError(f"{option} {path} is the same file as {other}; name another one")


def _check_teachers(teachers: Sequence[str]) -> None:
    from mikasa_robo.experts.makers import POLICY_NAMES

    for teacher in teachers:
        if teacher not in POLICY_NAMES:
            raise OptionError(f"--teacher {teacher} is not known; use some of {', '.join(POLICY_NAMES)}")


def _references(args: Args) -> dict[str, tuple[int, int]]:
    if args.reference is not None:
        return read_reference(args.reference)
    return read_reference(REFERENCE) if REFERENCE.is_file() else {}


def _check_rows(args: Args, rows: Mapping[Attack, Row], path: Path) -> None:
    """Rows of the same table must be comparable. Raises OptionError."""
    for row in rows.values():
        if row.episodes != args.episodes:
            raise OptionError(
                f"--episodes {args.episodes}: {path} has results of {row.episodes} episodes; use as many, or another --csv"
            )
        if row.reward_mode not in ("-", args.reward_mode):
            raise OptionError(
                f"--reward-mode {args.reward_mode}: {path} has results with {row.reward_mode}; use that, or another --csv"
            )
        if row.env_id not in CATALOG:
            raise OptionError(f"--csv {path} has {row.env_id}, which is not registered; name its module in --env-id")


def _simulator(args: Args) -> str:
    """The simulator that ``--sim-backend`` stands for on this machine. Raises OptionError where there is none."""
    from mikasa_robo.sim.backend import BATCHED, CUDA_NAMES, choose_sim_backend, is_batched_cpu

    try:
        chosen = choose_sim_backend(args.sim_backend, args.num_envs)
    except (ValueError, RuntimeError) as error:
        raise OptionError(f"--sim-backend {args.sim_backend}: {error}") from error
    if is_batched_cpu(chosen, args.num_envs):
        return BATCHED
    return "physx_cuda" if chosen.split(":")[0] in CUDA_NAMES else "physx_cpu"


def _check_kept(args: Args, kept: Sequence[Row], simulator: str, path: Path) -> None:
    """A result takes the place of a training run only if it was trained as that would be. Raises OptionError."""
    for row in kept:
        there = f"{path} has the result of {_describe(row)}"
        if row.num_envs != args.num_envs:
            raise OptionError(
                f"--num-envs {args.num_envs}: {there}, trained in {row.num_envs} environments; use as many, or another --csv"
            )
        if args.sim_backend == "auto" or row.sim_backend == simulator:
            continue
        if row.sim_backend == UNKNOWN:
            raise OptionError(
                f"--sim-backend {args.sim_backend}: {there}, and does not say with which simulator; leave the option out, "
                "or use another --csv"
            )
        raise OptionError(
            f"--sim-backend {args.sim_backend}: {there}, trained with {row.sim_backend}; use that, or another --csv"
        )


def plan(args: Args, env_ids: Sequence[str]) -> Iterator[Attack]:
    """The training runs, ID by ID: the first results are complete lines of the table."""
    kwargs = " ".join(args.env_kwargs)
    for env_id in env_ids:
        arm = args.arm if CATALOG[env_id].can_hold_arm else "free"
        for attacker in args.attacker:
            steps = args.ppo_steps if attacker == "ppo" else args.dagger_steps
            for teacher in ("",) if attacker == "ppo" else args.teacher:
                name = f"dagger-{teacher}" if teacher else attacker
                for seed in args.seeds:
                    yield Attack(env_id, name, arm, args.obs, kwargs, steps, seed)


def _name(attack: Attack) -> str:
    """The folder of a training run."""
    kwargs = f"__{attack.env_kwargs.replace(' ', ',')}" if attack.env_kwargs else ""
    return f"{attack.env_id}__{attack.attacker}__{attack.arm}__{attack.obs}{kwargs}__{attack.steps}__{attack.seed}"


def _describe(attack: Attack) -> str:
    kwargs = f" {attack.env_kwargs}" if attack.env_kwargs else ""
    return f"{attack.env_id} {attack.attacker}, arm {attack.arm}{kwargs}, {attack.steps:,} steps, seed {attack.seed}"


# ---------------------------------------------------------------------- training
def training_args(attack: Attack, args: Args, run_dir: Path | None = None) -> CommonArgs:
    """The arguments of a training run, as `mikasa train` would have them."""
    from mikasa_robo.baselines.presets import choose_preset
    from mikasa_robo.baselines.registry import get_algorithm

    algorithm, _, teacher = attack.attacker.partition("-")
    algorithm = "ppo-mlp" if algorithm == "ppo" else algorithm
    args_type = get_algorithm(algorithm).load_args_type()
    known = {field.name for field in dataclasses.fields(args_type)}
    preset = choose_preset("auto", attack.env_id, attack.obs, algorithm)
    values: dict[str, Any] = {name: value for name, value in preset.items() if name in known}
    values |= {
        "env_id": attack.env_id,
        "seed": attack.seed,
        "total_timesteps": attack.steps,
        "num_envs": args.num_envs,
        "obs": attack.obs,
        "env_kwargs": (*args.env_kwargs, *(("arm=held",) if attack.arm == "held" else ())),
        "sim_backend": args.sim_backend,
        "run_dir": run_dir,
        "eval_every": 0,
        "eval_episodes": args.episodes,
        "final_eval_seed": FIRST_SEED,
        "checkpoint_every": 0,
        "video": False,
        "torch_threads": len(os.sched_getaffinity(0)),
    }
    if teacher:
        warm_start = int(WARM_START * attack.steps)
        values |= {"teacher": teacher, "memory": "none", "warm_start_steps": warm_start, **IMITATION}
    else:
        values["reward_mode"] = args.reward_mode
    made: CommonArgs = args_type(**values)
    return made


def _check_training(attack: Attack, args: Args) -> None:
    """Raises OptionError where a training run cannot use its arguments."""
    try:
        training_args(attack, args).check()
    except ArgumentError as error:
        option = "--ppo-steps" if attack.attacker == "ppo" else "--dagger-steps"
        raise OptionError(str(error).replace("--total-timesteps", option)) from error


def run_training(args: CommonArgs, command: Sequence[str]) -> dict[str, Any]:
    """Train, and return the content of ``final_eval.json``."""
    from mikasa_robo.baselines import training
    from mikasa_robo.baselines.command import env_factory
    from mikasa_robo.baselines.loggers import configure_logging

    configure_logging()
    return training.train(args, env_factory(args), command)


def _measure(attack: Attack, args: Args, simulator: str, command: Sequence[str]) -> Row:
    """Train and evaluate an attacker."""
    from mikasa_robo.baselines.loggers import short_revision

    result = run_training(training_args(attack, args, _new_folder(args.out, _name(attack))), command)
    final = result["final"]
    episodes = int(final["episodes"])
    return Row(
        **dataclasses.asdict(attack),
        trained=int(result["training_steps"]),
        num_envs=args.num_envs,
        sim_backend=simulator,
        reward_mode=args.reward_mode if attack.attacker == "ppo" else "-",
        episodes=episodes,
        successes=round(final["success_once"] * episodes),
        failures=round(final["fail_once"] * episodes),
        first_seed=int(final["first_seed"]),
        version=mikasa_robo.__version__,
        commit=short_revision(result.get("git")),
        seconds=float(result["wall_time_s"]),
    )


def _new_folder(out: Path, name: str) -> Path:
    """A folder that no run has used: that of a run that was stopped stays as it is."""
    folder, number = out / name, 1
    while folder.is_dir() and any(folder.iterdir()):
        number += 1
        folder = out / f"{name}__attempt-{number}"
    return folder


def _result(row: Row, runs: Collection[Attack], references: Mapping[str, tuple[int, int]]) -> str:
    """What one run shows, by the level that it has in the table: ``runs`` are all that are done or planned."""
    reference = None if row.env_kwargs else references.get(row.env_id)
    found = verdict([row], reference, of=sum(run.case == row.case for run in runs))
    return f"success {row.successes / row.episodes:.1%} of {row.episodes} episodes, {found}"


def _write_table(path: Path, rows: Mapping[Attack, Row], references: Mapping[str, tuple[int, int]]) -> None:
    from mikasa_robo.baselines.files import write_atomically

    write_atomically(path, markdown(rows.values(), references).encode())


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
