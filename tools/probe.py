"""``mikasa probe``: looks into the memory of a policy, and writes a JSON file and a figure.

    mikasa probe --checkpoint runs/A/checkpoint.pt

docs/probe.md explains what it does and how to read the result. Episode k has the seed of `mikasa eval`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from mikasa_robo.terminal import print_error

from .env_ids import OptionError
from .evaluate import FIRST_SEED, default_output, write_new
from .extras import require_modules
from .output import require_new_files
from .progress import Progress, say

if TYPE_CHECKING:  # torch is loaded once the options are parsed
    from mikasa_robo.rollouts import Act

    from .checkpoint import Checkpoint
    from .probe_play import Batch, Before, Episodes, RecurrentPolicy

__all__ = ["PROBE_FORMAT", "Args", "Subject", "main", "probe", "probe_checkpoint"]

PROBE_FORMAT = "mikasa/probe/1"
"""The "format" entry of the JSON file."""
POINTS = 12
"""So many times of intervention by default, spread over the longest episode."""
LEAST_EPISODES = 10
MOST_ENVS = 500
NO_STATE = (
    "the policy keeps no recurrent state from step to step, so there is nothing to exchange, reset, freeze or read out"
)


@dataclass
class Args:
    """Look into the memory of a trained policy: swap, reset and freeze its recurrent state, and read the cue from it."""

    checkpoint: Path
    """A policy that `mikasa train` saved: checkpoint.pt or best.pt of a run, or the folder of a run."""
    env_id: str | None = None
    """The task that it was trained on. Only needed for a task of your own, as module:ID: a module is imported only where
    you name it."""
    algorithm: str | None = None
    """Only needed for an algorithm of your own, as module:NAME: a module is imported only where you name it."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""
    episodes: int = 100
    """Episodes of each experiment; episode k has the seed 2000000 + k."""
    num_envs: int = 50
    """Episodes that run at a time. States are exchanged among them."""
    at: int | None = None
    """The t at which states are exchanged; by default the middle of the delay. Without a delay: the first step of the
    response, or, where the scene shows the cue until the robot acts (Rotate, TakeItBack), the step at which half of the
    undisturbed episodes no longer show it."""
    every: int | None = None
    """Reset, freeze and read out at every so many steps, and at the ends of the phases; by default at about 12 points."""
    arm: Literal["free", "held"] | None = None
    """held keeps the arm still until the response phase; by default as the policy was trained. Both are compared in any
    case."""
    sim_backend: str | None = None
    """Physics backend, such as physx_cpu; by default as in training."""
    out: Path | None = None
    """The JSON file, a new one; by default probe-<env-id>-<algorithm>.json in the current folder. The figure has the same
    name with the ending .png."""

    def check(self) -> None:
        """Raises OptionError for an option that cannot be used, whatever the checkpoint."""
        if self.episodes < LEAST_EPISODES:
            raise OptionError(f"--episodes {self.episodes} must be at least {LEAST_EPISODES}")
        if not 2 <= self.num_envs <= MOST_ENVS:
            raise OptionError(
                f"--num-envs {self.num_envs} must be from 2 to {MOST_ENVS}: states are exchanged among them"
            )
        for name, value in (("--at", self.at), ("--every", self.every)):
            if value is not None and value < 1:
                raise OptionError(f"{name} {value} must be at least 1")
        if self.out is not None and self.out.suffix != ".json":
            raise OptionError(f"--out {self.out} names the JSON file; give it the ending .json (the figure gets .png)")


@dataclass
class Subject:
    """A policy and its environments.

    Args:
        name: for the title of the figure.
        env: a batch of the task in which the policy is probed.
        policy: a network, or anything that has the same methods (`probe_play.RecurrentPolicy`), with its device that of
            ``env``; None for a policy without a state.
        act: for a policy without a state: what begins new episodes and returns how it acts.
        make_arm_env: makes the task with ``arm="free"`` or ``arm="held"``; the caller of `probe` closes nothing but ``env``.
        remake: makes the policy for another environment, where it depends on it; by default ``policy`` serves both.
    """

    name: str
    env: Any
    policy: RecurrentPolicy | None
    act: Callable[[], Act] | None = None
    make_arm_env: Callable[[str], Any] | None = None
    remake: Callable[[Any], RecurrentPolicy] | None = None


def probe(
    subject: Subject, *, episodes: int, at: int | None = None, every: int | None = None, first_seed: int = FIRST_SEED
) -> dict[str, Any]:
    """Run all experiments with a policy, and return what was found, as the JSON file holds it.

    Args:
        subject: the policy and its environments.
        episodes: number of episodes of each experiment.
        at, every: as in `Args`.
        first_seed: seed of the first episode.

    Raises:
        OptionError: ``at`` or ``every`` is beyond the episode.
        NaNPolicyError: the network of the policy gives NaN.
        StateSizeError: the size of the policy's state changes within an episode.
    """
    from mikasa_robo.baselines.evaluation import torch_threads

    from .probe_play import batches, freeze_at, play_all, rate, reset_at
    from .probe_readout import read_out

    task: Any = subject.env.unwrapped
    horizon = task.horizon
    for name, value in (("--at", at), ("--every", every)):
        if value is not None and value >= horizon:
            raise OptionError(
                f"{name} {value} is not within an episode: it has {horizon} steps; use 1 to {horizon - 1}"
            )
    plan = batches(subject.env, episodes, first_seed)
    policy = subject.policy
    times = _times(task, every)
    with torch_threads(1), Progress(len(plan) * (3 + 2 * len(times)), "probing") as progress:
        if policy is None:
            assert subject.act is not None
            played = play_all(subject.env, subject.act, plan)
            found: dict[str, Any] = {name: {"skipped": NO_STATE} for name in ("swap", "interventions", "readout")}
        else:
            played, recorder, gone = _play_undisturbed(subject.env, policy, plan, times)
            progress.to(len(plan))
            found = {"swap": _swap(subject, policy, plan, at, gone)}
            progress.to(2 * len(plan))
            longest = int(played.lengths.max())
            curves: dict[str, list[dict[str, Any]]] = {"reset": [], "freeze": []}
            done = 2 * len(plan)
            for t in (t for t in times if t < longest):
                makers = {"reset": partial(reset_at, policy, t), "freeze": partial(freeze_at, t)}
                for name, make in makers.items():
                    result = play_all(subject.env, partial(_intervened, policy, make), plan)
                    curves[name].append({"t": t, **rate(int(result.success.sum()), episodes)})
                    done += len(plan)
                    progress.to(done)
            running = [{"t": t, "share": float((played.lengths > t).double().mean())} for t in range(longest + 1)]
            found["interventions"] = {**curves, "running": running}
            found["readout"] = {"parts": read_out(recorder, times, task)}
        found["arms"] = _compare_arms(subject, played, episodes, first_seed)
    return {
        "policy": subject.name,
        "seeds": {"first": first_seed, "episodes": episodes, "rule": "episode k has the seed first + k"},
        "num_envs": int(task.num_envs),
        "arm": _arm(task),
        "phases": {name: getattr(task.timeline, name) for name in ("cue", "delay", "response")},
        "undisturbed": {
            **rate(int(played.success.sum()), episodes),
            "mean_length_of_success": _mean(played.lengths[played.success].tolist()),
        },
        **found,
    }


def _intervened(policy: RecurrentPolicy, make_before: Callable[[], Before]) -> Act:
    """A policy at the start of a batch of episodes, with an intervention that belongs to this batch alone."""
    from .probe_play import Player

    return Player(policy, make_before())


def _arm(task: Any) -> str | None:
    """How the arm is, None where the task has no phase in which it could be held."""
    return task.arm if task.timeline.response_start else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _times(task: Any, every: int | None) -> list[int]:
    """The t of interventions and read-outs."""
    timeline, horizon = task.timeline, task.horizon
    every = every or -(-horizon // POINTS)
    ends = [t for t in (timeline.cue, timeline.response_start) if t < horizon]
    return sorted({*range(0, horizon, every), *ends})


def _play_undisturbed(env: Any, policy: RecurrentPolicy, plan: Sequence[Batch], times: Sequence[int]) -> Any:
    """Play all episodes.

    Returns:
        what became of them; a `Recorder` of the states; for each episode the first t at which the scene no longer showed
        its cue, None where it always did, and an empty list where that does not depend on the robot.
    """
    import torch

    from mikasa_robo.rollouts import EpisodeTotals

    from .probe_cues import find_cue_rule
    from .probe_play import Episodes, Player, play
    from .probe_readout import Recorder

    task: Any = env.unwrapped
    recorder = Recorder(task, times)
    success, lengths = [], []
    gone_at: list[int | None] = []
    for batch in plan:
        totals = EpisodeTotals()
        gone = torch.full((len(batch.seeds),), -1)
        for step in play(env, Player(policy, after=recorder), batch):
            totals.add(step)
            recorder.running(batch, step.still_running)
            rule = find_cue_rule(task)
            if rule is not None and rule.is_on_view(task):
                now = rule.gone(task.task_state).cpu() & (gone < 0) & step.running.cpu()
                gone[now] = step.t
        success.append(totals.success_once[: batch.keep].cpu())
        lengths.append(totals.lengths[: batch.keep].cpu())
        if rule is not None and rule.is_on_view(task):
            gone_at += [t if t >= 0 else None for t in gone[: batch.keep].tolist()]
    return Episodes(torch.cat(success), torch.cat(lengths)), recorder, gone_at


def _swap(
    subject: Subject, policy: RecurrentPolicy, plan: Sequence[Batch], at: int | None, gone: Sequence[int | None]
) -> dict[str, Any]:
    """The causal swap, or why there is none."""
    from .probe_cues import find_cue_rule
    from .probe_play import rate
    from .probe_swap import ACTED, ALIKE, MEMORY, NEITHER, OVER, SIGHT, swap

    task: Any = subject.env.unwrapped
    rule = find_cue_rule(task)
    if not task.timeline.response_start:
        return {"skipped": "the task has no response phase, before which the states of two episodes could be exchanged"}
    if rule is None:
        state = type(task.task_state).__name__
        return {
            "skipped": f"nothing says what the cue in a {state} is; register a rule, see `probe_cues.register_cue_rule`"
        }
    when, why = (at, "--at") if at is not None else _swap_time(task, rule.is_on_view(task), gone)
    if when is None:
        return {"skipped": why}
    result = swap(subject.env, policy, plan, rule, when)
    n = len(result.followed)
    return {
        "at": when,
        "at_rule": why,
        "followed_memory": rate(result.count(MEMORY), n),
        "followed_sight": rate(result.count(SIGHT), n),
        "neither": rate(result.count(NEITHER), n),
        "skipped_episodes": {
            name: sum(reason == key for reason in result.skipped.values())
            for name, key in (("over", OVER), ("judged_already", ACTED), ("equal_cue", ALIKE))
        },
        "episodes": [
            {"episode": k, "state_of": result.partner[k], "followed": result.followed[k]}
            for k in sorted(result.followed)
        ],
    }


def _swap_time(task: Any, stays_on_view: bool, gone: Sequence[int | None]) -> tuple[int | None, str]:
    """When to exchange states by default, and by which rule; or None and why there is no such time."""
    timeline = task.timeline
    if not stays_on_view:
        rule = "the middle of the delay" if timeline.delay else "the first step of the response"
        return timeline.cue + timeline.delay // 2, rule
    steps = sorted(t for t in gone if t is not None)
    if 2 * len(steps) < len(gone):
        return None, "in most undisturbed episodes the scene shows the cue to the end; choose a step with --at"
    return steps[(len(gone) - 1) // 2], "half of the undisturbed episodes no longer show the cue"


def _compare_arms(subject: Subject, played: Episodes, episodes: int, first_seed: int) -> dict[str, Any]:
    """Success with a free arm and with a held one, on the same episodes."""
    from .probe_play import Player, batches, play_all, rate

    arm = _arm(subject.env.unwrapped)
    if arm is None or subject.make_arm_env is None:
        return {"skipped": "the task has no response phase, before which the arm is held"}
    results = {arm: played}
    other = "free" if arm == "held" else "held"
    with contextlib.closing(subject.make_arm_env(other)) as env:
        policy = subject.policy if subject.remake is None else subject.remake(env)
        make_act = subject.act if policy is None else lambda: Player(policy)
        assert make_act is not None
        results[other] = play_all(env, make_act, batches(env, episodes, first_seed))
    free, held = results["free"].success, results["held"].success
    return {
        "free": rate(int(free.sum()), episodes),
        "held": rate(int(held.sum()), episodes),
        "survives": rate(int((free & held).sum()), int(free.sum())),
        "probed": arm,
    }


def check(args: Args) -> Checkpoint:
    """Check the options, read the checkpoint, and check that it can be probed and the result be written.

    Raises:
        OptionError, CheckpointError, FileNotFoundError, ModuleNotFoundError: it cannot; nothing was written.
    """
    from mikasa_robo.catalog import CATALOG

    from .checkpoint import import_foreign, read_checkpoint, resolve_checkpoint_env_id

    args.check()
    require_modules("report", "matplotlib")
    import_foreign(args.algorithm, args.network, args.memory)
    checkpoint = read_checkpoint(args.checkpoint, args.memory)
    env_id = resolve_checkpoint_env_id(checkpoint, args.env_id)
    if env_id not in CATALOG:
        raise OptionError(
            f"--checkpoint {checkpoint.path} was trained on {env_id}, which is not one of the tasks of `mikasa list`: only "
            "these say what has to be remembered; name a checkpoint of one of them"
        )
    out = output_path(args, checkpoint)
    if out.parent.is_dir():
        require_new_files(out.parent, [out, out.with_suffix(".png")])
    else:
        raise OptionError(f"--out {out}: there is no folder {out.parent}; make it, or name another file")
    return checkpoint


def output_path(args: Args, checkpoint: Checkpoint) -> Path:
    """Where the JSON file goes; the figure goes beside it."""
    return args.out or default_output(checkpoint.env_id, checkpoint.algorithm, "probe")


def probe_checkpoint(args: Args, command: Sequence[str] = ()) -> dict[str, Any]:
    """Probe a checkpoint, write the JSON file and the figure, and return the content of the file.

    Args:
        args: what to probe.
        command: the command line, to record.

    Raises:
        OptionError, CheckpointError, FileNotFoundError, ModuleNotFoundError: see `check`; nothing was written.
        NaNPolicyError: the network of the policy gives NaN; nothing was written.
    """
    return _probe_checkpoint(args, command)[0]


def _probe_checkpoint(args: Args, command: Sequence[str] = ()) -> tuple[dict[str, Any], Path]:
    """`probe_checkpoint`, with the path of the JSON file."""
    from mikasa_robo.baselines.loggers import provenance
    from mikasa_robo.baselines.networks import NaNPolicyError
    from mikasa_robo.core.env import MemoryEnv

    from .checkpoint import make_policy, why_unfit
    from .playing import CheckpointPlayer, make_player_env
    from .probe_figure import draw
    from .probe_play import StateSizeError, has_state, policy_act

    made_by = provenance(command)  # of the code that is loaded: files may change until the end of the probe
    player = CheckpointPlayer(check(args).path)
    checkpoint = player.checkpoint  # what is played: a training may have replaced the file after it was checked
    settings = player.settings
    if args.sim_backend is not None:
        settings = dataclasses.replace(settings, sim_backend=args.sim_backend)
    n = min(args.num_envs, args.episodes)

    def make_env(**arm: str) -> Any:
        return make_player_env(checkpoint.env_id, n, settings, None, **arm)

    say(f"making {n} environments of {checkpoint.env_id}")
    with contextlib.closing(make_env(**({} if args.arm is None else {"arm": args.arm}))) as env:
        if not isinstance(env.unwrapped, MemoryEnv):
            raise OptionError(
                f"--checkpoint {checkpoint.path}: {checkpoint.env_id} is no MemoryEnv; nothing tells its cue"
            )
        network = player.network.to(env.unwrapped.device)
        if problem := why_unfit(network, env):
            raise OptionError(f"{checkpoint.path} does not fit {checkpoint.env_id} {problem}")
        try:
            recurrent = has_state(network, env.reset(seed=FIRST_SEED)[0])
            subject = Subject(
                checkpoint.algorithm,
                env,
                network if recurrent else None,
                lambda: policy_act(make_policy(checkpoint, network), network.device),
                lambda arm: make_env(arm=arm),
            )
            found = probe(subject, episodes=args.episodes, at=args.at, every=args.every)
        except NaNPolicyError as error:
            raise NaNPolicyError(f"--checkpoint {checkpoint.path}", error.step) from error
        except StateSizeError as error:
            raise OptionError(f"--checkpoint {checkpoint.path} cannot be probed: {error}") from error
    content = {
        "format": PROBE_FORMAT,
        "env_id": checkpoint.env_id,
        "algorithm": checkpoint.algorithm,
        "checkpoint": str(checkpoint.path),
        "sha256": checkpoint.sha256,
        "training_steps": checkpoint.step,
        "args": checkpoint.args.to_dict(),
        "settings": {**dataclasses.asdict(settings), "env_kwargs": dict(settings.env_kwargs)},
        **found,
        **made_by,
    }
    text = json.dumps(content, indent=2) + "\n"
    return content, write_new(output_path(args, checkpoint), {".json": text.encode(), ".png": draw(content)})


def describe(content: Mapping[str, Any]) -> str:
    """The result as lines of text."""

    def shown(found: Mapping[str, Any]) -> str:
        if found["rate"] is None:
            return "no episodes"
        low, high = 100 * found["low"], 100 * found["high"]
        return f"{100 * found['rate']:.0f} % of {found['episodes']} (95 % interval {low:.0f} to {high:.0f} %)"

    lines = [f"{content['env_id']} {content['policy']}, undisturbed: {shown(content['undisturbed'])}"]
    swap, interventions, readout, arms = (content[name] for name in ("swap", "interventions", "readout", "arms"))
    if "skipped" in swap:
        lines.append(f"swap: left out, {swap['skipped']}")
    else:
        lines.append(f"swap at t = {swap['at']} ({swap['at_rule']}):")
        lines.append(f"  follows the memory: {shown(swap['followed_memory'])}")
        lines.append(f"  follows the cue that it saw: {shown(swap['followed_sight'])}")
        lines.append(f"  neither: {shown(swap['neither'])}")
    for name in ("reset", "freeze"):
        if "skipped" in interventions:
            lines.append(f"{name}: left out, {interventions['skipped']}")
        elif interventions[name]:
            worst = min(interventions[name], key=lambda row: row["rate"])
            lines.append(f"{name}: worst at t = {worst['t']}, {shown(worst)}")
    for part in readout.get("parts", ()):
        if part["best"] is None:
            lines.append(f"read-out of {part['cue']}: too few episodes, or the same in all of them")
            continue
        if part["changes"]:
            when = "changes in the episode"
        else:
            when = "not written" if part["written_at"] is None else f"written at t = {part['written_at']}"
        lines.append(
            f"read-out of {part['cue']}: {when}, {part['score']} at best {part['best']:.2f}, last {part['last']:.2f}"
        )
    if "skipped" in readout:
        lines.append(f"read-out: left out, {readout['skipped']}")
    if "skipped" in arms:
        lines.append(f"arm: left out, {arms['skipped']}")
    else:
        lines += [f"arm free: {shown(arms['free'])}", f"arm held: {shown(arms['held'])}"]
        lines.append(f"held, of those that succeed free: {shown(arms['survives'])}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = tyro.cli(Args, args=argv, prog="mikasa probe")
    try:
        args.check()
    except OptionError as error:
        print_error(error)
        return 2

    say("loading the simulator")
    from mikasa_robo.baselines.checkpoints import CheckpointError
    from mikasa_robo.baselines.loggers import configure_logging
    from mikasa_robo.baselines.networks import NaNPolicyError

    configure_logging()
    try:
        content, out = _probe_checkpoint(args, ["mikasa", "probe", *argv])
    except (OptionError, CheckpointError, NaNPolicyError, FileNotFoundError, ModuleNotFoundError) as error:
        print_error(error)
        return 2
    print(describe(content))
    print(f"written: {out}, {out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
