"""``mikasa eval``: plays checkpoints in episodes that are the same for everybody, and writes down what came out.

    mikasa eval --checkpoint runs/A/checkpoint.pt --episodes 100
    mikasa eval --checkpoint runs/{A,B,C}/checkpoint.pt --protocol paper

Episode k of an evaluation has the seed ``FIRST_SEED + k``, whatever the task, the algorithm and the number of
environments. Training never uses these seeds, and neither do the evaluations by which training chooses best.pt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import torch
import tyro
from torch import Tensor

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs
from mikasa_robo.baselines.checkpoints import (
    PPO_LSTM,
    PPO_MLP,
    CheckpointError,
    load_checkpoint,
    load_policy,
    load_recurrent_policy,
)
from mikasa_robo.baselines.environments import check_env_id
from mikasa_robo.baselines.evaluation import Evaluation, evaluate, torch_threads, wilson_interval
from mikasa_robo.baselines.loggers import configure_logging, provenance
from mikasa_robo.baselines.training import env_factory

from .intervals import bootstrap_interval, require_modules, standard_error
from .report import EVALUATION_FORMAT, METRICS

__all__ = ["EPISODES", "FIRST_SEED", "PAPER_EPISODES", "PAPER_RUNS", "Args", "evaluate_checkpoints", "main"]

log = logging.getLogger(__name__)

FIRST_SEED = 2_000_000
EPISODES = 100
"""How many are played by default."""
PAPER_RUNS, PAPER_EPISODES = 3, 16
"""MIKASA paper (arXiv 2502.10550, appendix on baselines): three training runs, each evaluated on 16 seeds."""
SAME = ("obs", "control_mode", "reward_mode", "sim_backend", "env_kwargs")
"""Arguments of training that say what is played; checkpoints that are averaged have to agree in them."""


@dataclass
class Args:
    """Evaluate one checkpoint, or several of one task and algorithm that were trained with different seeds."""

    checkpoint: tuple[Path, ...]
    """Policies that `mikasa train` saved: checkpoint.pt or best.pt of a run."""
    episodes: int | None = None
    """Episodes of each checkpoint, 100 by default; episode k has the seed 2000000 + k."""
    protocol: Literal["fixed", "paper"] = "fixed"
    """paper: three checkpoints, 16 episodes each, mean and standard error over the three."""
    num_envs: int = 50
    """Episodes at a time; which episodes they are does not depend on it."""
    out: Path | None = None
    """The JSON file, a new one; by default eval-<env-id>-<algorithm>.json here."""


@dataclass(frozen=True)
class Subject:
    """A checkpoint."""

    path: Path
    sha256: str
    algorithm: str
    env_id: str
    step: int
    args: CommonArgs


def read_subject(path: Path) -> Subject:
    """What a checkpoint says of itself.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is none of a known algorithm.
    """
    problems = []
    for kind, trainer in ((PPO_MLP, ppo_mlp), (PPO_LSTM, ppo_lstm)):
        try:
            payload = load_checkpoint(path, kind)
        except CheckpointError as error:
            problems.append(error)
            continue
        args = trainer.Args.parse_plain(payload["args"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Subject(path, digest, args.algorithm, payload["env_id"], payload["step"], args)
    raise problems[0]


def load_player(subject: Subject, device: torch.device) -> tuple[Callable[[Any], Tensor], Callable[[], None]]:
    """What acts, and what is to be called before each round of episodes."""
    if subject.algorithm == ppo_mlp.Args.algorithm:
        return load_policy(subject.path, device).act, lambda: None
    player = ppo_lstm.Player(load_recurrent_policy(subject.path, device))
    return player.act, player.begin


def check(args: Args) -> list[Subject]:
    """The checkpoints, once it is clear that they can be evaluated together.

    Raises:
        ArgumentError: an argument cannot be used.
        CheckpointError, FileNotFoundError: see `read_subject`.
        FileExistsError: the result would be written over a file.
    """
    if args.num_envs < 1:
        raise ArgumentError(f"--num-envs {args.num_envs} cannot be used; use at least 1")
    if args.episodes is not None and args.episodes < 1:
        raise ArgumentError(f"--episodes {args.episodes} cannot be used; use at least 1")
    if not args.checkpoint:
        raise ArgumentError("--checkpoint names no file; name at least one")
    if args.protocol == "paper":
        if args.episodes not in (None, PAPER_EPISODES):
            raise ArgumentError(f"--episodes {args.episodes}: --protocol paper plays {PAPER_EPISODES}; leave it out")
        if len(args.checkpoint) != PAPER_RUNS:
            count = len(args.checkpoint)
            raise ArgumentError(f"--checkpoint names {count}: --protocol paper takes {PAPER_RUNS}, of as many seeds")
    subjects = [read_subject(path) for path in args.checkpoint]
    first = subjects[0]
    for other in subjects[1:]:
        for name in ("env_id", "algorithm"):
            a, b = getattr(first, name), getattr(other, name)
            if a != b:
                raise ArgumentError(f"{first.path} is of {a} and {other.path} of {b}; evaluate them one by one")
        for name in SAME:
            a, b = getattr(first.args, name), getattr(other.args, name)
            if a != b:
                raise ArgumentError(f"{first.path} has {name} {a} and {other.path} {b}; evaluate them one by one")
    for i, subject in enumerate(subjects):
        if subject.args.seed in (seen := [s.args.seed for s in subjects[:i]]):
            twin = subjects[seen.index(subject.args.seed)]
            raise ArgumentError(
                f"{twin.path} and {subject.path} were both trained with the seed {subject.args.seed}, and an average "
                "is over different ones; leave one out"
            )
    check_env_id(first.env_id)
    out = output_path(args, first)
    if out.exists():
        raise FileExistsError(f"--out {out} exists; name another file, or move that one away")
    if not out.parent.is_dir():
        raise ArgumentError(f"--out {out}: there is no folder {out.parent}; make it, or name another file")
    return subjects


def output_path(args: Args, first: Subject) -> Path:
    """Where the result goes."""
    return args.out or Path(f"eval-{first.env_id}-{first.algorithm}.json")


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
    """Mean, standard error and 95 % interval of each metric: over training runs, or over the episodes of a single one."""
    told = all(result.tells_success for result in results)
    summary: dict[str, Any] = {"over": "training runs" if len(results) > 1 else "episodes"}
    for metric in METRICS:
        if metric.startswith("success") and not told:
            continue
        columns = [figures(result, metric) for result in results]
        values = [sum(column) / len(column) for column in columns] if len(columns) > 1 else columns[0]
        kind, low, high = "bootstrap", None, None
        if len(columns) == 1 and metric.startswith("success"):
            # A bootstrap of a hundred successes would claim that there is no doubt.
            kind, (low, high) = "Wilson", wilson_interval(round(sum(values)), len(values))
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
    make_factory: Callable[[CommonArgs], Callable[[int, str | None], Any]] = env_factory,
) -> dict[str, Any]:
    """Evaluates and writes the JSON file; returns what it holds.

    Args:
        args: what to evaluate.
        command: the command line, to record.
        make_factory: from the arguments of training to what makes the environments.

    Raises:
        ArgumentError, CheckpointError, FileNotFoundError, FileExistsError: see `check`; nothing has been written.
        ModuleNotFoundError: rliable is not installed.
    """
    require_modules("report", "rliable")
    subjects = check(args)
    first = subjects[0]
    episodes = args.episodes or (PAPER_EPISODES if args.protocol == "paper" else EPISODES)
    with contextlib.ExitStack() as stack:
        try:
            env: Any = make_factory(first.args)(min(args.num_envs, episodes), None)
        except (RuntimeError, ValueError, gym.error.Error) as error:
            raise ArgumentError(f"{first.path}: cannot make {first.env_id}: {error}") from error
        stack.callback(env.close)
        # The simulator has threads of its own; torch's would only take the cores away from them.
        stack.enter_context(torch_threads(1))
        device = env.unwrapped.device
        results = []
        for subject in subjects:
            act, begin = load_player(subject, device)
            result = evaluate(act, env, episodes=episodes, first_seed=FIRST_SEED, device=device, begin=begin)
            log.info("%s, %s", subject.path, result.describe())
            results.append(result)
    content = {
        "format": EVALUATION_FORMAT,
        "protocol": args.protocol,
        "env_id": first.env_id,
        "algorithm": first.algorithm,
        "seeds": {"first": FIRST_SEED, "episodes": episodes, "rule": "episode k has the seed first + k"},
        "num_envs": min(args.num_envs, episodes),
        "settings": {name: getattr(first.args, name) for name in SAME},
        "summary": summarize(results),
        "runs": [_entry(subject, result) for subject, result in zip(subjects, results, strict=True)],
        **provenance(command),
    }
    with output_path(args, first).open("x") as file:
        file.write(json.dumps(content, indent=2) + "\n")
    return content


def _entry(subject: Subject, result: Evaluation) -> dict[str, Any]:
    return {
        "checkpoint": str(subject.path),
        "sha256": subject.sha256,
        "seed": subject.args.seed,
        "training_steps": subject.step,
        "args": subject.args.plain(),
        "summary": result.summary(),
        "episodes": {name: column for name, column in dataclasses.asdict(result).items() if isinstance(column, list)},
    }


def describe(content: Mapping[str, Any]) -> str:
    """The summary as lines of text."""
    summary = content["summary"]
    lines = [
        f"{content['env_id']} {content['algorithm']}, {len(content['runs'])} x {content['seeds']['episodes']} episodes"
    ]
    for metric in METRICS:
        if metric not in summary:
            continue
        found = summary[metric]
        scale, unit = (100.0, " %") if metric.startswith("success") else (1.0, "")
        shown = {key: f"{value * scale:.2f}" for key, value in found.items() if isinstance(value, float)}
        spread = f" ± {shown['standard_error']}{unit}" if "standard_error" in shown else ""
        if "low" in shown:
            interval = f"{shown['low']} to {shown['high']}{unit}"
            spread += f" (95 % {found['interval']} interval over {summary['over']}: {interval})"
        lines.append(f"{metric.replace('_', ' ')}: {shown['mean']}{unit}{spread}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = tyro.cli(Args, args=argv, prog="mikasa eval")
    configure_logging()
    try:
        content = evaluate_checkpoints(args, ["mikasa", "eval", *argv])
    except (ArgumentError, CheckpointError, FileNotFoundError, FileExistsError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    print(describe(content))
    print(f"written: {args.out or output_path(args, read_subject(args.checkpoint[0]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
