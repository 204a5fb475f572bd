"""How fast the mazes of mikasa_lifelong are, and how fast their demonstrators.

    python benchmarks/lifelong_speed.py --markdown docs/results/lifelong/nav_speed.md

For each maze: env-steps/s of a batch without depth (``obs="state"``), with depth and with colour images (``obs="full"``),
and successful demonstrations a minute, planning included. Actions are random and drawn beforehand; episodes that end begin
anew. Rates are per second of CPU time of this process, which has one thread, so other programs disturb them less; they are
those of the best round.
"""

from __future__ import annotations

import itertools
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import tyro
from tables import publish

import mikasa_lifelong  # noqa: F401  registers the mazes
from mikasa_lifelong.nav import MAZES
from mikasa_lifelong.nav.demonstrator import demonstrate

AHEAD = 16
"""So many actions are drawn before the clock starts, and used again and again."""
GOALS = {"state": 300_000, "depth": 50_000}
"""Env-steps/s of 1024 environments that are wanted."""
HEADER = ("maze", "without depth", "with depth", "with images", "demonstrations / min", "note")


@dataclass
class Args:
    """Measures env-steps/s of the mazes, and demonstrations a minute."""

    mazes: tuple[str, ...] = ("SimpleTownBase", "SimpleTownXOX", "AmazeVilleHXOX", "AmazeVilleLXOX")
    """Which mazes."""
    num_envs: int = 1024
    """Environments in a batch."""
    image_envs: int = 64
    """Likewise with colour images; 0 leaves them out."""
    demonstrations: int = 100
    """Demonstrations of each maze; 0 leaves them out."""
    rounds: int = 3
    """Measurements of each kind; demonstrations are measured once."""
    seconds: float = 1.0
    """Shortest duration of a measurement, s of CPU time."""
    csv: Path | None = None
    """Also write the table to this CSV file; an existing file is replaced."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        unknown = [name for name in self.mazes if name not in MAZES]
        if unknown:
            raise ValueError(f"--mazes {' '.join(unknown)}: no such maze; use some of {', '.join(MAZES)}")
        for name, value, least in (
            ("num-envs", self.num_envs, 1),
            ("image-envs", self.image_envs, 0),
            ("demonstrations", self.demonstrations, 0),
            ("rounds", self.rounds, 1),
        ):
            if value < least:
                raise ValueError(f"--{name} {value}: use at least {least}")
        if not self.seconds > 0:
            raise ValueError(f"--seconds {self.seconds}: use more than 0")


def rate(maze: str, obs: str, num_envs: int, rounds: int, seconds: float) -> float:
    """Env-steps per second of CPU time, in the best round."""
    envs = gym.make_vec(f"{maze}-v0", num_envs, obs=obs)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(AHEAD)])
    for _ in range(AHEAD):
        envs.step(next(actions))
    best = 0.0
    for _ in range(rounds):
        steps, start = 0, time.process_time()
        while (elapsed := time.process_time() - start) < seconds:
            envs.step(next(actions))
            steps += num_envs
        best = max(best, steps / elapsed)
    return best


def measure(maze: str, args: Args) -> list[str]:
    """The row of a maze."""
    rates = {obs: rate(maze, obs, args.num_envs, args.rounds, args.seconds) for obs in GOALS}
    images = f"{rate(maze, 'full', args.image_envs, args.rounds, args.seconds):.0f}" if args.image_envs else "-"
    demonstrations = "-"
    if args.demonstrations:
        start = time.process_time()
        shown = demonstrate(maze, args.demonstrations, seed=0)
        demonstrations = f"{60 * shown.successes.sum() / (time.process_time() - start):.0f}"
    slow = [f"{obs} below {goal}" for obs, goal in GOALS.items() if rates[obs] < goal]
    return [maze, *(f"{value:.0f}" for value in rates.values()), images, demonstrations, ", ".join(slow)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    rows: list[list[str]] = [list(HEADER)]
    for maze in args.mazes:
        rows.append(measure(maze, args))
        print("  ".join(rows[-1]), file=sys.stderr)
    told = (
        f"Env-steps/s of CPU time on one core, {args.num_envs} environments, with images {args.image_envs}; wanted: "
        f"{GOALS['state']} without depth and {GOALS['depth']} with it. {platform.processor() or platform.machine()}, Python "
        f"{platform.python_version()}, gymnasium {gym.__version__}, numpy {np.__version__}; best of {args.rounds} rounds of "
        f"{args.seconds:g} s."
    )
    publish(told, rows, args.csv, args.markdown)


if __name__ == "__main__":
    main()
