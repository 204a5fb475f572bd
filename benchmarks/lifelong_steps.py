"""How fast the learners of mikasa_lifelong train, and what a step of each costs beside one of `sequential`.

    python benchmarks/lifelong_steps.py --markdown docs/results/lifelong/step_speed.md

Each learner is in its second task, so anchors, stored items and columns of the first are there. They take turns, a few steps
each, so that other programs on the machine slow all of them alike. Times are CPU time of this process, which has one thread.
The cost of a learner is the median over the rounds of its time divided by that of `sequential` in the same round.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import tyro
from tables import publish

from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import find_stream
from mikasa_lifelong.learners.base import Learner
from mikasa_lifelong.learners.registry import LEARNERS
from mikasa_lifelong.loop import make_setup
from mikasa_lifelong.stream import TaskStream

BASE = "sequential"
ANCHORED = ("l2", "ewc", "ewc-online")
MOST = 1.05
"""The cost of an anchored learner, at most, beside `BASE`."""
WARM_UP = 20
MANY = 10**6
"""Steps per task that the learners are told, more than they will make."""
HEADER = ("stream", "hidden size", "learner", "steps/s", "cost", "note")


@dataclass
class Args:
    """Measures training steps/s of learners."""

    streams: tuple[str, ...] = ("split-digits",)
    """Which streams."""
    hidden_sizes: tuple[int, ...] = (64, 256)
    """Sizes of the network's hidden layers. 64 is that of the digits, 256 that of Continual NavBench."""
    learners: tuple[str, ...] = tuple(name for name in LEARNERS if name not in ("ft1", "frz", "joint"))
    """Which learners besides `sequential`; frz trains in the first task only."""
    rounds: int = 200
    """How often the learners take turns."""
    steps: int = 5
    """Steps of a turn."""
    csv: Path | None = None
    """Also write the table to this CSV file; an existing file is replaced."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work; LifelongError where a name is unknown."""
        for name, value in (("rounds", self.rounds), ("steps", self.steps)):
            if value < 1:
                raise ValueError(f"--{name} {value}: use at least 1")
        for stream in self.streams:
            for learner in self.learners:
                RunArgs(stream=stream, learner=learner).completed()


def in_second_task(stream: str, learner: str, hidden_size: int) -> Learner:
    """A learner that has learnt its first task a little, and has begun its second."""
    args = RunArgs(stream=stream, learner=learner, hidden_size=hidden_size, steps=MANY).completed()
    setup = make_setup(args, TaskStream(find_stream(stream)))
    made: Any = args.learner_row.load()(setup)
    made.begin(0, setup.data(0))
    for _ in range(WARM_UP):
        made.step()
    while not made.end():
        pass
    made.begin(1, setup.data(1))
    for _ in range(WARM_UP):
        made.step()
    learner_in_second: Learner = made
    return learner_in_second


def measure(stream: str, hidden_size: int, args: Args) -> list[list[str]]:
    """The rows of a stream and size."""
    names = list(dict.fromkeys((BASE, *args.learners)))
    made = {name: in_second_task(stream, name, hidden_size) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name, learner in made.items():
            start = time.process_time()
            for _ in range(args.steps):
                learner.step()
            seconds[name].append((time.process_time() - start) / args.steps)
    rows = []
    for name in names:
        cost = statistics.median(own / base for own, base in zip(seconds[name], seconds[BASE], strict=True))
        note = f"more than {MOST:g}" if name in ANCHORED and cost > MOST else ""
        rate = f"{1 / statistics.median(seconds[name]):.0f}"
        rows.append([stream, str(hidden_size), name, rate, f"{cost:.3f}", note])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    torch.set_num_threads(1)
    rows: list[list[str]] = [list(HEADER)]
    for stream in args.streams:
        for size in args.hidden_sizes:
            rows += measure(stream, size, args)
            print(f"{stream}, {size}: done", file=sys.stderr)
    told = (
        f"Training steps/s of CPU time on one core with one thread, in the second task of a stream, and the cost of a step "
        f"beside one of {BASE}; anchored learners ({', '.join(ANCHORED)}) are to cost at most {MOST:g}. "
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}; "
        f"medians of {args.rounds} rounds of {args.steps} steps, in which the learners take turns."
    )
    publish(told, rows, args.csv, args.markdown)


if __name__ == "__main__":
    main()
