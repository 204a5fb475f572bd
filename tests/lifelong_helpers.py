"""What the tests of `mikasa_lifelong` share: tiny runs, in this process or in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import STREAMS, TASKS, find_stream, register
from mikasa_lifelong.learners.registry import LEARNERS
from mikasa_lifelong.loop import Loop, make_setup
from mikasa_lifelong.stream import TaskStream

TINY: dict[str, Any] = {
    "stream": "tiny-digits",
    "steps": 3,
    "batch_size": 8,
    "hidden_size": 6,
    "dropout": 0.2,
    "checkpoints": 2,
    "episodes": 20,
    "timed_forwards": 5,
    "checkpoint_every": 2,
}
SMALL_OPTIONS = {"capacity": 10, "fisher_samples": 70, "draws": 70}
"""As small as it can be with consolidations of several pieces."""


def register_tiny_stream() -> None:
    """Add the stream of the tests: three pairs of digits."""
    if TINY["stream"] not in STREAMS:
        row = find_stream("split-digits")
        register(streams=[dataclasses.replace(row, name=TINY["stream"], tasks=row.tasks[:3])])


NAV: dict[str, Any] = {"stream": "tiny-nav", "network": "hgcbc"}
"""Changes of `TINY` for three tasks in two mazes."""


def register_tiny_mazes() -> None:
    """Add a stream of tasks with three demonstrations each."""
    if NAV["stream"] not in STREAMS:
        tasks = [
            dataclasses.replace(TASKS[name], name=f"tiny-{name}", kwargs={**TASKS[name].kwargs, "demonstrations": 3})
            for name in ("SimpleTownBase", "SimpleTownOXO")
        ]
        names = (tasks[0].name, tasks[1].name, tasks[0].name)
        register(tasks, [dataclasses.replace(find_stream("ST1"), name=NAV["stream"], tasks=names)])


def tiny_args(learner: str, **changes: Any) -> RunArgs:
    """Complete arguments of a run of a fraction of a second."""
    register_tiny_stream()
    own = {name: value for name, value in SMALL_OPTIONS.items() if name in LEARNERS[learner].options}
    return RunArgs(learner=learner, **{**TINY, **own, **changes}).completed()


class Played:
    """A learner after some stages, in memory, and what it answered after each stage.

    Args:
        learner: its name.
        stages: how many tasks it learns.
        **changes: other arguments than `TINY`.
    """

    def __init__(self, learner: str, stages: int = 3, **changes: Any) -> None:
        args = tiny_args(learner, **changes)
        self.stream = TaskStream(find_stream(args.stream))
        self.setup = make_setup(args, self.stream)
        self.learner: Any = args.learner_row.load()(self.setup)
        self.outputs: list[list[torch.Tensor]] = []  # after each stage, of the policy of each task learnt so far
        self.states: list[dict[str, Any]] = []
        self.losses: list[float] = []
        rng = np.random.default_rng(0)
        self.inputs = {
            name: rng.random((16, *shape), dtype=np.float32) for name, shape in self.stream.signature.inputs.items()
        }
        for k in range(stages):
            self.stage(k)

    def stage(self, k: int) -> None:
        """Learn the task in place ``k``."""
        self.learner.begin(k, self.setup.data(k))
        for _ in range(self.setup.steps):
            self.losses.append(self.learner.step().get("loss", 0.0))
        while not self.learner.end():
            pass
        self.outputs.append([self.learner.policy(j).outputs(self.inputs) for j in range(k + 1)])
        self.states.append(self.learner.state())


def same(one: Any, other: Any) -> bool:
    """Whether nested states are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def play_loop(run_dir: Path, learner: str, **changes: Any) -> Loop:
    """A whole run in this process, without its result."""
    args = dataclasses.replace(tiny_args(learner, **changes), run_dir=run_dir)
    run_dir.mkdir()
    loop = Loop(args, TaskStream(find_stream(args.stream)), run_dir)
    loop.go()
    return loop
