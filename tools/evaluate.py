"""``mikasa eval``: plays checkpoints on a fixed set of episodes and writes the results to a file.

    mikasa eval --checkpoint runs/A/checkpoint.pt --episodes 100
    mikasa eval --checkpoint runs/{A,B,C}/checkpoint.pt --protocol paper
    mikasa eval --policy remote:127.0.0.1:8000 --env-id RememberColor3-v0

Episode k of an evaluation has the seed ``FIRST_SEED + k``, for every task and algorithm and whatever the number of
environments; only ManiSkill's own tasks draw a whole batch from the seed of its first environment. Training does not use
these seeds, and neither do the evaluations by which training chooses best.pt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from mikasa_robo.baselines.option_words import ArgumentError, replace_env_kwargs
from mikasa_robo.data.seeds import EVALUATION_SEEDS
from mikasa_robo.deprecation import deprecated_names
from mikasa_robo.env_ids import EnvIdError
from mikasa_robo.terminal import print_error, printable

from .env_ids import OptionError
from .extras import require_modules
from .leaderboard import sign
from .output import require_new_file
from .progress import say
from .runs import CHANGED, EVALUATION_FORMAT, METRICS, MOST_LIKELY, SAMPLED, agent_name, settings_that_differ

if TYPE_CHECKING:  # torch is loaded once the options are parsed
    from mikasa_robo.baselines.arguments import CommonArgs
    from mikasa_robo.baselines.evaluation import Evaluation

    from .checkpoint import Checkpoint

__all__ = ["EPISODES", "FIRST_SEED", "PAPER_EPISODES", "PAPER_RUNS", "Args", "evaluate_checkpoints", "main"]

log = logging.getLogger(__name__)

FIRST_SEED = EVALUATION_SEEDS.start
EPISODES = 100
"""Episodes that are played by default."""
TIMEOUT = 60.0  # s
"""How long a server may take to answer by default."""
PAPER_RUNS, PAPER_EPISODES = 3, 16
"""MIKASA paper (arXiv 2502.10550, appendix on baselines): three training runs, each evaluated on 16 seeds."""
SHARED_ARGS = ("obs", "control_mode", "reward_mode", "sim_backend", "env_kwargs")
"""Arguments of training that decide what is played. Checkpoints that are averaged must agree in them."""


@dataclass
class Args:
    """Evaluate one checkpoint, or several of one task and algorithm that were trained with different seeds."""

    checkpoint: tuple[Path, ...] = ()
    """Policies that `mikasa train` saved: checkpoint.pt or best.pt of a run, or the folder of a run, which stands for its
    checkpoint.pt, or else its best.pt."""
    policy: str | None = None
    """remote:HOST:PORT, instead of --checkpoint: a policy that a server there holds, such as that of `mikasa serve`."""
    timeout: float | None = None
    """With --policy: seconds to wait for the server's answer at each step, 60 by default."""
    env_id: str | None = None
    """The task that the checkpoints were trained on. Only needed with --policy, and for a task of your own, as module:ID:
    a module is imported only where you name it."""
    obs: str | None = None
    """With --policy: observations of a robot task, such as objects+joints; by default state. A checkpoint has its own."""
    control_mode: str | None = None
    """Likewise: controller of the robot; by default pd_joint_delta_pos."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] | None = None
    """Likewise: the reward that the return sums; by default normalized_dense."""
    env_kwargs: tuple[str, ...] | None = None
    """Arguments of the environment, as NAME=VALUE. With --checkpoint they replace those of training, so that the policy
    plays another task than it learnt, for example with delay_steps=200."""
    algorithm: str | None = None
    """Only needed for an algorithm of your own, as module:NAME: a module is imported only where you name it."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""
    episodes: int | None = None
    """Episodes of each checkpoint, 100 by default; episode k has the seed 2000000 + k."""
    protocol: Literal["fixed", "paper"] = "fixed"
    """paper: three checkpoints, 16 episodes each, mean and standard error over the three."""
    sample_actions: bool = False
    """Sample the actions, as in training, instead of taking the most likely ones. For policies of PPO and SAC. Episode k has
    the same noise each time."""
    num_envs: int = 50
    """Episodes that run at a time. The number does not change the episodes, except those of ManiSkill's own tasks, and that
    one at a time is simulated on the CPU, also where a GPU simulates more."""
    sim_backend: str | None = None
    """Physics backend of robot tasks, such as physx_cpu; by default as in training."""
    num_workers: int | None = None
    """Tasks of this package: simulate the environments on the CPU in this many processes, at most --num-envs; by default
    in this process. Results are the same."""
    out: Path | None = None
    """The JSON file, a new one; by default eval-<env-id>-<algorithm>.json in the current folder. With --env-kwargs and
    --sample-actions the name also has -changed and -sampled."""


def check_sizes(args: Args) -> None:
    """Raises OptionError where a number of environments, processes or episodes cannot be used."""
    from mikasa_robo.baselines.arguments import MOST_WORKERS_PER_CORE

    if args.num_envs < 1:
        raise OptionError(f"--num-envs {args.num_envs} must be at least 1")
    if args.num_workers is not None and not 1 <= args.num_workers <= args.num_envs:
        raise OptionError(f"--num-workers {args.num_workers} must be from 1 to --num-envs {args.num_envs}")
    if args.num_workers is not None and args.num_workers > MOST_WORKERS_PER_CORE * (os.cpu_count() or 1):
        raise OptionError(
            f"--num-workers {args.num_workers} are too many for this machine; use as many as it has cores"
        )
    if args.episodes is not None and args.episodes < 1:
        raise OptionError(f"--episodes {args.episodes} must be at least 1")


def check(args: Args) -> list[Checkpoint]:
    """Read the checkpoints, and check that they can be evaluated together.

    Raises:
        OptionError: an option cannot be used, or the result would be written over a file.
        CheckpointError, FileNotFoundError: see `read_checkpoint`.
    """
    from .checkpoint import import_foreign, read_checkpoint, require_sampling, resolve_checkpoint_env_id

    check_sizes(args)
    if not args.checkpoint:
        raise OptionError("--checkpoint names no file; name at least one, or a server with --policy")
    for option in ("obs", "control_mode", "reward_mode"):
        if getattr(args, option) is not None:
            raise OptionError(f"--{option.replace('_', '-')} is for --policy; a checkpoint has its own: leave it out")
    if args.timeout is not None:
        raise OptionError(f"--timeout {args.timeout} is for --policy; no server is asked here: leave it out")
    if args.protocol == "paper":
        if args.episodes not in (None, PAPER_EPISODES):
            raise OptionError(f"--episodes {args.episodes}: --protocol paper plays {PAPER_EPISODES}; leave it out")
        if len(args.checkpoint) != PAPER_RUNS:
            count = len(args.checkpoint)
            raise OptionError(f"--checkpoint names {count}: --protocol paper takes {PAPER_RUNS}, of different seeds")
    for word in args.env_kwargs or ():
        if word.partition("=")[0] in ("obs_mode", "control_mode", "reward_mode"):
            raise OptionError(f"--env-kwargs {word}: a checkpoint has its own; leave it out")
    _played_env_kwargs((), args)
    import_foreign(args.algorithm, args.network, args.memory)
    checkpoints = [read_checkpoint(path, args.memory) for path in args.checkpoint]
    first = checkpoints[0]
    for other in checkpoints[1:]:
        _require_same(first, other)
    by_seed: dict[int, Checkpoint] = {}
    for checkpoint in checkpoints:
        twin = by_seed.setdefault(checkpoint.args.seed, checkpoint)
        if twin is not checkpoint:
            raise OptionError(
                f"--checkpoint {twin.path} {checkpoint.path}: both were trained with the seed {checkpoint.args.seed}, and "
                "an average needs different seeds; leave one out"
            )
    if args.sample_actions:
        require_sampling(first)
    resolve_checkpoint_env_id(first, args.env_id)
    require_robot_task(first.env_id, args.sim_backend)
    require_new_file(output_path(args, first))
    return checkpoints


def _played_env_kwargs(trained: Sequence[str], args: Args) -> tuple[str, ...]:
    """Those of training, with the user's in their place. Raises OptionError where one cannot be used."""
    try:
        return replace_env_kwargs(trained, args.env_kwargs or ())
    except ArgumentError as error:
        raise OptionError(str(error)) from error


def require_robot_task(env_id: str, sim_backend: str | None) -> None:
    """Raises OptionError where a physics backend is asked for and the environment has no physics."""
    from mikasa_robo.baselines.environments import is_robot_task

    if sim_backend is not None and not is_robot_task(env_id):
        raise OptionError(f"--sim-backend {sim_backend} is for robot tasks, and {env_id} is none; leave it out")


def _require_same(first: Checkpoint, other: Checkpoint) -> None:
    """Raises OptionError where two checkpoints are of different tasks, algorithms or settings."""
    pairs = [(name, getattr(first, name), getattr(other, name)) for name in ("env_id", "algorithm")]
    agents = ("network", "memory", "memory_kwargs", "variant")
    pairs += [
        (name, getattr(first.args, name, None), getattr(other.args, name, None)) for name in (*SHARED_ARGS, *agents)
    ]
    # What else `mikasa report` tells apart: the arguments of training, what a run began with, episodes of an expert.
    names = [agent_name(each.algorithm, each.args.to_dict()) for each in (first, other)]
    pairs.append(("name", names[0], names[1]))
    for name, a, b in pairs:
        if a != b:
            raise OptionError(
                f"--checkpoint {first.path} has {name} {a}, and {other.path} has {b}; evaluate them one by one"
            )


def output_path(args: Args, first: Checkpoint) -> Path:
    """Where the result goes."""
    changes = ("-changed" if args.env_kwargs else "") + ("-sampled" if args.sample_actions else "")
    return args.out or default_output(first.env_id, first.algorithm + changes)


def default_output(env_id: str, algorithm: str, command: str = "eval") -> Path:
    """The default name of the file; an ID with a namespace is to name no folder."""
    return Path(f"{command}-{env_id.replace('/', '-')}-{algorithm}.json")


def figures(result: Evaluation, metric: str) -> list[float]:
    """One number for each episode."""
    columns: Mapping[str, Sequence[float]] = {
        "success_once": result.success_once,
        "success_at_end": result.success_at_end,
        "return": result.returns,
        "length": result.lengths,
    }
    return [float(x) for x in columns[metric]]


def summarize(results: Sequence[Evaluation]) -> dict[str, Any]:
    """Mean, standard error and 95 % interval of each metric, over training runs or over the episodes of a single run."""
    from mikasa_robo.statistics import wilson_interval

    from .intervals import bootstrap_interval, standard_error

    reports_success = all(result.tells_success for result in results)
    summary: dict[str, Any] = {"over": "training runs" if len(results) > 1 else "episodes"}
    for metric in METRICS:
        if metric.startswith("success") and not reports_success:
            continue
        columns = [figures(result, metric) for result in results]
        values = [sum(column) / len(column) for column in columns] if len(columns) > 1 else columns[0]
        kind, low, high = "bootstrap", None, None
        if metric.startswith("success") and (len(columns) == 1 or len(set(values)) == 1):
            # A bootstrap of a hundred successes, or of runs that are equal, would give an interval without width. Runs play
            # the same episodes, so those of several runs are not independent: the interval is that of one run.
            kind, (low, high) = "Wilson", wilson_interval(round(sum(columns[0])), len(columns[0]))
        elif len(set(values)) == 1:
            kind = "none"  # all are equal
        elif (estimate := bootstrap_interval(values)) is not None:
            low, high = estimate.low, estimate.high
        summary[metric] = {
            "mean": sum(values) / len(values),
            "standard_error": standard_error(values),
            "low": low,
            "high": high,
            "interval": kind,
        }
    return summary


def evaluate_checkpoints(
    args: Args,
    command: Sequence[str] = (),
    make_factory: Callable[[CommonArgs], Callable[[int, str | None], Any]] | None = None,
) -> dict[str, Any]:
    """Evaluate, write the JSON file and return its content.

    Args:
        args: what to evaluate.
        command: the command line, to record.
        make_factory: from the arguments of training to what makes the environments; by default that of training.

    Raises:
        OptionError, CheckpointError, FileNotFoundError: see `check`; nothing has been written.
        NaNPolicyError: the network of a policy gives NaN; nothing has been written.
        ModuleNotFoundError: rliable is not installed.
    """
    return _evaluate_checkpoints(args, command, make_factory)[0]


def _evaluate_checkpoints(
    args: Args,
    command: Sequence[str] = (),
    make_factory: Callable[[CommonArgs], Callable[[int, str | None], Any]] | None = None,
) -> tuple[dict[str, Any], Path]:
    """`evaluate_checkpoints`, with the path of the file."""
    import gymnasium as gym

    from mikasa_robo.baselines.command import env_factory
    from mikasa_robo.baselines.evaluation import evaluate, torch_threads
    from mikasa_robo.baselines.loggers import provenance

    from .checkpoint import make_policy, why_unfit

    made_by = provenance(command)  # of the code that is loaded: files may change until the end of the evaluation
    require_modules("report", "rliable")
    checkpoints = check(args)
    first = checkpoints[0]
    if differ := settings_that_differ([checkpoint.args.to_dict() for checkpoint in checkpoints]):
        print(f"the checkpoints differ in {', '.join(differ)}; they are averaged all the same", file=sys.stderr)
    episodes = args.episodes or (PAPER_EPISODES if args.protocol == "paper" else EPISODES)
    trained = dataclasses.replace(first.args, env_id=first.env_id, num_workers=args.num_workers)
    trained.env_kwargs = _played_env_kwargs(trained.env_kwargs, args)
    if args.sim_backend is not None:
        trained.sim_backend = args.sim_backend
    say(f"making {min(args.num_envs, episodes)} environments of {first.env_id}")
    with contextlib.ExitStack() as stack:
        try:
            env: Any = (make_factory or env_factory)(trained)(min(args.num_envs, episodes), None)
        except (EnvIdError, MemoryError, RuntimeError, ValueError, gym.error.Error) as error:
            raise OptionError(f"{first.path}: cannot make {first.env_id}: {error}") from error
        stack.callback(env.close)
        # The simulator has threads of its own; torch's would only compete with them for the cores.
        stack.enter_context(torch_threads(1))
        device = env.unwrapped.device
        trained.sim_backend = simulator_used(trained.sim_backend, env)
        networks = [checkpoint.load_network(device) for checkpoint in checkpoints]
        for checkpoint, network in zip(checkpoints, networks, strict=True):
            if problem := why_unfit(network, env):
                raise OptionError(f"{checkpoint.path} does not fit {first.env_id} {problem}")
        results = []
        for checkpoint, network in zip(checkpoints, networks, strict=True):
            say(f"{checkpoint.path}: playing {episodes} episodes")
            policy = make_policy(checkpoint, network, sampled=args.sample_actions)
            result = evaluate(policy, env, episodes=episodes, first_seed=FIRST_SEED, device=device)
            log.info("%s, %s", checkpoint.path, result.describe())
            results.append(result)
    entries = [(_entry(checkpoint, result), result) for checkpoint, result in zip(checkpoints, results, strict=True)]
    num_envs = min(args.num_envs, episodes)
    return write_evaluation(output_path(args, first), args, made_by, trained, first.algorithm, num_envs, entries)


def simulator_used(asked: str, env: Any) -> str:
    """The physics backend of ``env``: what was asked for, or what "auto" stood for here with so many environments."""
    from mikasa_robo.baselines.env_wrappers import GymnasiumVectorEnv

    if asked != "auto" or isinstance(env.unwrapped, GymnasiumVectorEnv):
        return asked
    return "physx_cuda" if env.unwrapped.device.type == "cuda" else "physx_cpu"


def write_evaluation(
    path: Path,
    args: Args,
    made_by: Mapping[str, Any],
    trained: CommonArgs,
    algorithm: str,
    num_envs: int,
    runs: Sequence[tuple[dict[str, Any], Evaluation]],
) -> tuple[dict[str, Any], Path]:
    """Write the JSON file of an evaluation, a new one, and return its content and its path; see `write_new`.

    Prints the summary where no file can be written.

    Args:
        path: the file.
        args: the options.
        made_by: `loggers.provenance` at the start of the evaluation.
        trained: the arguments that the environments were made with.
        algorithm: the name of what was evaluated.
        num_envs: environments that played at a time.
        runs: what to say about each policy, and its episodes.
    """
    results = [result for _, result in runs]
    columns = [
        {name: column for name, column in dataclasses.asdict(result).items() if isinstance(column, list)}
        for result in results
    ]
    episodes = len(results[0].returns)
    content = sign(
        {
            "format": EVALUATION_FORMAT,
            "protocol": args.protocol,
            "env_id": trained.env_id,
            "algorithm": algorithm,
            "seeds": {"first": FIRST_SEED, "episodes": episodes, "rule": "episode k has the seed first + k"},
            "num_envs": num_envs,
            # A server chooses for itself.
            **({} if args.policy is not None else {"actions": SAMPLED if args.sample_actions else MOST_LIKELY}),
            "settings": {name: getattr(trained, name) for name in SHARED_ARGS},
            **({CHANGED: args.env_kwargs} if args.policy is None and args.env_kwargs else {}),
            "summary": summarize(results),
            "runs": [{**entry, "episodes": column} for (entry, _), column in zip(runs, columns, strict=True)],
            **made_by,
        }
    )
    try:
        return content, write_new(path, {path.suffix: (json.dumps(content, indent=2) + "\n").encode()})
    except OptionError:
        print(describe(content))  # at least these figures
        raise


def write_new(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write the results of a long computation to new files, and return the path of the first.

    Its name was free when the computation began. If it was taken since, the files get a number in their names. If its folder
    cannot be written to any more, for example because the disk is full, they go to the folder for temporary files. The user
    is told, so that no result is lost.

    Args:
        path: the first file.
        contents: what the files hold, by their endings; beside that they have the same name.

    Raises:
        OptionError: they cannot be written there, either.
    """
    try:
        return _write_new(path, contents)
    except OSError as error:
        spare = Path(tempfile.gettempdir()) / path.name
        try:
            written = _write_new(spare, contents)
        except OSError as second:
            raise OptionError(
                f"--out {path} cannot be written ({error.strerror or error}), and neither can {spare} "
                f"({second.strerror or second}); the result is lost"
            ) from error
        print(f"{path} cannot be written ({error.strerror or error}); the result is in {written}", file=sys.stderr)
        return written


def _write_new(path: Path, contents: Mapping[str, bytes]) -> Path:
    from mikasa_robo.baselines.files import write_atomically

    for number in itertools.count(1):
        first = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        files = {first.with_suffix(suffix): data for suffix, data in contents.items()}
        if any(map(os.path.lexists, files)):
            continue
        written = []
        try:
            for file, data in files.items():
                write_atomically(file, data, overwrite=False)
                written.append(file)
        except FileExistsError:  # another process was faster
            for file in written:
                file.unlink()
            continue
        if number > 1:
            print(f"{path} was made by something else in the meantime; the result is in {first}", file=sys.stderr)
        return first
    raise AssertionError("there is always another number")


def _entry(checkpoint: Checkpoint, result: Evaluation) -> dict[str, Any]:
    return {
        "checkpoint": str(checkpoint.path),
        "sha256": checkpoint.sha256,
        "seed": checkpoint.args.seed,
        "training_steps": checkpoint.step,
        "args": checkpoint.args.to_dict(),
        "summary": result.summary(),
    }


def describe(content: Mapping[str, Any]) -> str:
    """The summary as lines of text."""
    summary = content["summary"]
    lines = [
        f"{content['env_id']} {content['algorithm']}, {len(content['runs'])} x {content['seeds']['episodes']} episodes"
        + (f", with {' '.join(content[CHANGED])} unlike in training" if content.get(CHANGED) else "")
        + (", sampled actions" if content.get("actions") == SAMPLED else "")
    ]
    for metric in METRICS:
        if metric not in summary:
            continue
        found = summary[metric]
        scale, unit = (100.0, " %") if metric.startswith("success") else (1.0, "")
        shown = {key: f"{value * scale:.2f}" for key, value in found.items() if _is_number(value)}
        spread = f" ± {shown['standard_error']}{unit}" if "standard_error" in shown else ""
        if "low" in shown:
            interval = f"{shown['low']} to {shown['high']}{unit}"
            over = "the episodes of a run" if found["interval"] == "Wilson" else summary["over"]
            spread += f" (95 % {found['interval']} interval over {over}: {interval})"
        lines.append(f"{metric.replace('_', ' ')}: {shown['mean']}{unit}{spread}")
    return "\n".join(map(printable, lines))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = tyro.cli(Args, args=argv, prog="mikasa eval")

    say("loading the checkpoints" if args.policy is None else "loading torch and the simulator")
    from mikasa_robo.baselines.checkpoints import CheckpointError
    from mikasa_robo.baselines.loggers import configure_logging
    from mikasa_robo.baselines.networks import NaNPolicyError
    from mikasa_robo.remote.client import RemotePolicyError

    configure_logging()
    refusals = (OptionError, CheckpointError, NaNPolicyError, RemotePolicyError, FileNotFoundError, ModuleNotFoundError)
    command = ["mikasa", "eval", *argv]
    try:
        if args.policy is not None:
            from .evaluate_remote import evaluate_remote

            content, out = evaluate_remote(args, command)
        else:
            content, out = _evaluate_checkpoints(args, command)
    except refusals as error:
        print_error(error)
        return 2
    print(describe(content))
    print(f"written: {out}")
    return 0


__getattr__ = deprecated_names(
    __name__,
    {
        "Subject": "mikasa_robo.tools.checkpoint:Checkpoint",
        "read_subject": "mikasa_robo.tools.checkpoint:read_checkpoint",
    },
)


if __name__ == "__main__":
    sys.exit(main())
