"""The arguments of a run. This module loads no torch, so ``--help`` stays quick."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .catalog import TASKS, StreamRow, find_stream
from .errors import LifelongError, find
from .learners.registry import LEARNERS, OPTIONS, LearnerRow, find_learner
from .nets import NETWORKS

__all__ = ["MOST_SEED", "RunArgs"]

SMOKE_STEPS = 20
MOST_SEED = 10**15
"""`mikasa report` takes a larger seed of a run for a made-up one."""


@dataclass
class RunArgs:
    """Learn a stream of tasks and measure every task after each."""

    stream: str = ""
    """The stream; `mikasa lifelong list` shows all."""
    learner: str = "sequential"
    """The learner; `mikasa lifelong list` shows all."""
    seed: int = 1
    """Seed of the run: initial weights, batches and all else that chance decides."""
    run_dir: Path | None = None
    """Folder of the run, new or empty; by default runs/STREAM__LEARNER__SEED."""
    resume: Path | None = None
    """Folder of a run to go on with; it takes the same course as if it had never stopped."""
    protocol: Literal["smoke", "cpu", "paper"] = "cpu"
    """Where --steps comes from: 20 to try things, what suits a CPU, or the paper's number where the stream has one."""
    data: Path | None = None
    """Folder with the files of MNIST, for the streams of digits, or of CIFAR-100, for split-cifar100."""
    network: str | None = None
    """The network; by default the stream's."""
    steps: int | None = None
    """Gradient steps per task; by default by --protocol."""
    batch_size: int | None = None
    """Items per gradient step; by default the stream's."""
    learning_rate: float | None = None
    """Where the cosine schedule of each task begins; by default the stream's."""
    hidden_size: int | None = None
    """Size of the network's hidden layers; by default the stream's."""
    dropout: float | None = None
    """Share of hidden units dropped in training; by default the stream's."""
    max_grad_norm: float = 100.0
    """Gradients are clipped to this norm."""
    checkpoints: int = 5
    """Number of evaluations of the current task during its stage, besides the one before its first step."""
    episodes: int | None = None
    """Episodes, or test items, of an evaluation; by default all that the task has."""
    select: Literal["last", "best"] = "last"
    """Which checkpoint of a stage is consolidated and kept. The best is the one with the highest score in the evaluations
    that are reported, so its score looks better than it is."""
    checkpoint_every: int = 200
    """Write a file to resume from after so many gradient steps or pieces of a consolidation, and after each stage."""
    torch_threads: int = 1
    """Threads of torch."""
    timed_forwards: int = 1000
    """Forwards of the measurement of inference time."""
    strength: float | None = None
    """Weight of the penalty of l2, ewc, ewc-online and hispo. This option and the next ones are by default those of the
    learner, which `mikasa lifelong list` shows."""
    fisher: Literal["example", "minibatch"] | None = None
    """ewc, ewc-online: squared gradients of single examples or of whole batches."""
    fisher_samples: int | None = None
    """ewc, ewc-online: examples that the Fisher information is estimated from, at most."""
    fisher_update: Literal["mean", "sum"] | None = None
    """ewc-online: mean is a running mean, and the penalty has the factor 1/2. sum is a sum without this factor, as in
    LIBERO's release."""
    gamma: float | None = None
    """ewc-online: how much of the old Fisher information stays."""
    capacity: int | None = None
    """er: items stored of each task."""
    capacity_total: int | None = None
    """er: items stored of all tasks together, in place of --capacity; 0 for no such limit."""
    threshold: float | None = None
    """hispo: an anchor is kept where it lowers the error by more than this share."""
    draws: int | None = None
    """hispo: mixtures of anchors that are tried at the end of a task."""

    @property
    def stream_row(self) -> StreamRow:
        """Raises LifelongError if there is no such stream."""
        if not self.stream:
            raise LifelongError("--stream is missing; `mikasa lifelong list` shows all streams")
        return find_stream(self.stream, "--stream")

    @property
    def learner_row(self) -> LearnerRow:
        """Raises LifelongError if there is no such learner."""
        return find_learner(self.learner, "--learner")

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.resume or self.run_dir or Path("runs", f"{self.stream}__{self.learner}__{self.seed}")

    def learner_options(self) -> dict[str, Any]:
        """The options that the learner takes; complete after `completed`."""
        return {name: getattr(self, name) for name in self.learner_row.options}

    def completed(self) -> RunArgs:
        """These arguments with every default filled in.

        Raises:
            LifelongError: a name is unknown, or a value cannot be used.
        """
        stream, learner = self.stream_row, self.learner_row
        values: dict[str, Any] = {}
        if self.steps is None:
            values["steps"] = self._protocol_steps(stream)
        for name in ("network", "batch_size", "learning_rate", "hidden_size", "dropout"):
            if getattr(self, name) is None:
                values[name] = getattr(stream, name)
        for name in OPTIONS:
            if name in learner.options:
                if getattr(self, name) is None:
                    values[name] = learner.options[name]
            elif getattr(self, name) is not None:
                takers = ", ".join(row.name for row in LEARNERS.values() if name in row.options)
                raise LifelongError(
                    f"{_option(name)} {getattr(self, name)} is not an option of {learner.name} but of {takers}; leave it out"
                )
        usual = learner.options.get("capacity")
        if self.capacity_total and self.capacity not in (None, usual):
            raise LifelongError(
                f"--capacity {self.capacity} and --capacity-total {self.capacity_total} exclude each other; leave one out"
            )
        reads = stream.needs_data or all(TASKS[name].world == "digits" for name in stream.tasks)
        if self.data is not None and not reads:
            raise LifelongError(f"--data {self.data}: {stream.name} takes no data from files; leave it out")
        if stream.needs_data and self.data is None:
            raise LifelongError(f"--data is missing: {stream.name} reads files; name the folder that holds them")
        if self.data is not None:
            values["data"] = self.data.resolve()  # a resumed run and `play` may begin in another folder
        args = dataclasses.replace(self, **values)
        args._check()
        return args

    def _protocol_steps(self, stream: StreamRow) -> int:
        if self.protocol == "smoke":
            return SMOKE_STEPS
        if self.protocol == "cpu":
            return stream.steps
        if stream.paper_steps is None:
            raise LifelongError(
                f"--protocol paper: {stream.name} is in no paper with this network; use cpu, or --steps"
            )
        return stream.paper_steps

    def _check(self) -> None:
        network = find("network", str(self.network), NETWORKS, "--network")
        world = TASKS[self.stream_row.tasks[0]].world
        if network.world not in (None, world):
            able = ", ".join(row.name for row in NETWORKS.values() if row.world in (None, world))
            raise LifelongError(
                f"--network {network.name} is for tasks of {network.world}; {self.stream} is of {world}: use {able}"
            )
        if self.learner_row.columns and not network.columns:
            able = ", ".join(row.name for row in NETWORKS.values() if row.columns)
            raise LifelongError(
                f"{self.learner} needs a network with columns ({able}); {self.stream} uses {network.name}"
            )
        positive = ("learning_rate", "max_grad_norm")
        for name in (*_LEAST, *positive):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise LifelongError(f"{_option(name)} {value} must be a finite number")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise LifelongError(f"{_option(name)} {value} must be at least {least}")
        for name in positive:
            if getattr(self, name) <= 0:
                raise LifelongError(f"{_option(name)} {getattr(self, name)} must be above 0")
        most_threads = max(64, 4 * (os.cpu_count() or 1))
        most_of = {"dropout": 0.99, "gamma": 1.0, "threshold": 1.0, "torch_threads": most_threads, "seed": MOST_SEED}
        for name, most in most_of.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise LifelongError(f"{_option(name)} {value} must be at most {most}")
        tasks = len(self.stream_row.tasks)
        if self.capacity_total and self.capacity_total < tasks:
            raise LifelongError(
                f"--capacity-total {self.capacity_total} leaves nothing for some of the {tasks} tasks of {self.stream}; use "
                f"at least {tasks}, or 0 for no such limit"
            )
        assert self.steps is not None
        if self.checkpoints > self.steps:
            raise LifelongError(
                f"--checkpoints {self.checkpoints} is more than --steps {self.steps}; use at most one after each step"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without where the run is written."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["run_dir"] = values["resume"] = None
        values["data"] = None if self.data is None else str(self.data)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunArgs:
        """What `to_dict` gave. Raises LifelongError where an entry is not known."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise LifelongError(f"the run was started with {', '.join(unknown)}, which this version does not know")
        data = values.get("data")
        return cls(**{**values, "data": None if data is None else Path(data)})


_LEAST = {
    "seed": 0,
    "steps": 1,
    "batch_size": 1,
    "hidden_size": 1,
    "dropout": 0,
    "checkpoints": 1,
    "episodes": 1,
    "checkpoint_every": 1,
    "torch_threads": 1,
    "timed_forwards": 1,
    "strength": 0,
    "fisher_samples": 1,
    "gamma": 0,
    "capacity": 0,
    "capacity_total": 0,
    "threshold": 0,
    "draws": 1,
}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
