"""How fast the environments of mikasa_base are: one alone, several in Gymnasium's vector environments, and batched.

    python benchmarks/base_speed.py --markdown docs/results/base_speed.md

For each ID, every round measures a single environment of ``gym.make``; ``--sync`` of them in a SyncVectorEnv;
``--async-envs`` in an AsyncVectorEnv of spawned processes; and ``--batch`` in the environment's own batched form, if it has
one. All take random actions, sampled beforehand, and are reset when their episodes end. Env-steps/s are those of the best
round; "batched / single" is the median over the rounds of the ratio within a round.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import tyro
from tables import in_markdown, plain, write_csv, write_text

from mikasa_base.factory import missing_dependency
from mikasa_base.registry import ENV_IDS, VARIANTS

AHEAD = 64
"""So many actions are drawn before the clock starts, and used again and again."""
HEADER = ("ID", "single", "sync", "async", "batched", "batched / single", "note")


@dataclass
class Args:
    """Measures env-steps/s of the environments of mikasa_base, in four forms."""

    env_ids: tuple[str, ...] = ENV_IDS
    """Which environments; by default all."""
    sync: int = 8
    """Environments in the SyncVectorEnv; 0 leaves it out."""
    async_envs: int = 2
    """Environments, and processes, in the AsyncVectorEnv; 0 leaves it out."""
    batch: int = 1024
    """Environments in the batched form; 0 leaves it out."""
    rounds: int = 3
    """Measurements of each form."""
    seconds: float = 0.3
    """Shortest duration of a measurement, s."""
    csv: Path | None = None
    """Also write the table to this CSV file; an existing file is replaced."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        unknown = [env_id for env_id in self.env_ids if env_id not in VARIANTS]
        if unknown:
            raise ValueError(f"--env-ids {' '.join(unknown)}: no such ID; `mikasa list --suite base` shows all")
        if self.rounds < 1:
            raise ValueError(f"--rounds {self.rounds}: use at least 1")
        if not self.seconds > 0:
            raise ValueError(f"--seconds {self.seconds}: use more than 0")
        for name, value in (("sync", self.sync), ("async-envs", self.async_envs), ("batch", self.batch)):
            if value < 0:
                raise ValueError(f"--{name} {value}: use at least 0")


def stepper_of_one(env_id: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that steps a single environment, and one that closes it."""
    env = gym.make(env_id)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(AHEAD)])

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()

    return step, env.close


def stepper_of_many(
    env_id: str, num_envs: int, mode: str, **kwargs: Any
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that steps a vector environment, and one that closes it."""
    envs = gym.make_vec(env_id, num_envs, vectorization_mode=mode, **kwargs)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(AHEAD)])

    def step() -> None:
        envs.step(next(actions))

    return step, envs.close


def rate(step: Callable[[], None], num_envs: int, seconds: float) -> float:
    """Env-steps/s over at least ``seconds``."""
    done, start = 0, time.perf_counter()
    while True:
        step()
        done += num_envs
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return done / elapsed


def measure(env_id: str, args: Args) -> list[str]:
    """The row of an ID."""
    spawn = {"vector_kwargs": {"context": "spawn"}}
    forms: dict[str, tuple[int, tuple[Callable[[], None], Callable[[], None]]]] = {
        "single": (1, stepper_of_one(env_id))
    }
    if args.sync:
        forms["sync"] = (args.sync, stepper_of_many(env_id, args.sync, "sync"))
    if args.async_envs:
        forms["async"] = (args.async_envs, stepper_of_many(env_id, args.async_envs, "async", **spawn))
    if args.batch and VARIANTS[env_id].row.vector_entry_point:
        forms["batched"] = (args.batch, stepper_of_many(env_id, args.batch, "vector_entry_point"))
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(args.rounds):
        for name, (num_envs, (step, _)) in forms.items():
            rates[name].append(rate(step, num_envs, args.seconds))
    for _, (_, close) in forms.values():
        close()
    cells = [f"{max(rates[name]):.0f}" if name in rates else "-" for name in ("single", "sync", "async", "batched")]
    ratios = [batched / single for batched, single in zip(rates.get("batched", []), rates["single"], strict=False)]
    return [env_id, *cells, f"{statistics.median(ratios):.0f}" if ratios else "-", ""]


def circumstances(args: Args) -> str:
    """What this was measured with."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("gymnasium", "numpy"))
    return (
        f"Env-steps/s; sync: {args.sync} environments, async: {args.async_envs}, batched: {args.batch}; {count} cores, "
        f"Python {platform.python_version()}, {versions}; best of {args.rounds} rounds of {args.seconds:g} s."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    warnings.filterwarnings("ignore")
    rows: list[list[str]] = [list(HEADER)]
    for env_id in args.env_ids:
        row = VARIANTS[env_id].row
        missing = missing_dependency(row)
        if missing is None:
            rows.append(measure(env_id, args))
        else:
            rows.append([env_id, *["-"] * 5, f"needs {missing}: pip install 'mikasa-suite[{row.extra}]'"])
        print("  ".join(rows[-1]), file=sys.stderr)
    print(circumstances(args) + "\n\n" + plain(rows))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        write_text(args.markdown, f"{circumstances(args)}\n\n{in_markdown(rows)}\n")


if __name__ == "__main__":
    main()
