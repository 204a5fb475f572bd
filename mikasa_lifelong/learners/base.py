"""The learner's protocol, what a learner is given, and its random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from mikasa_lifelong.nets.model import Model
from mikasa_lifelong.stream import Dataset, Policy

__all__ = ["Chance", "Learner", "Setup", "Sizes"]

_PURPOSES = ("weights", "batches", "dropout", "replay", "items", "fisher", "scores", "simplex", "lateral")


@dataclass(frozen=True)
class Chance:
    """Random numbers of a run that depend on nothing but its seed, what they are for, and counters such as the step.

    So no draw changes another, and a run that is resumed needs no state of a generator.
    """

    seed: int

    def numpy(self, purpose: str, *counters: int) -> np.random.Generator:
        """A new generator, for a ``purpose`` such as ``"batches"``."""
        return np.random.default_rng([self.seed, _PURPOSES.index(purpose), *counters])

    def number(self, purpose: str, *counters: int) -> int:
        """A seed in [0, 2^63)."""
        return int(self.numpy(purpose, *counters).integers(2**63))

    def torch(self, purpose: str, *counters: int) -> torch.Generator:
        """As `numpy`, for tensors on the CPU."""
        return torch.Generator().manual_seed(self.number(purpose, *counters))


@dataclass(frozen=True)
class Setup:
    """What a learner is given."""

    chance: Chance
    make_model: Callable[[], Model]
    """Builds a network; its weights come from torch's global generator."""
    data: Callable[[int], Dataset]
    """The data of the task in place k, counted from 0: of the current task and of those before it."""
    steps: int
    """Gradient steps per task."""
    batch_size: int
    learning_rate: float
    """Where the cosine schedule of each task begins; it ends at 0."""
    max_grad_norm: float
    options: Mapping[str, Any] = field(default_factory=dict)
    """The learner's own options, complete."""

    def fresh_model(self, k: int) -> Model:
        """A network with the initial weights that every learner of this seed has for the task in place ``k``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.chance.number("weights", k))
            return self.make_model()


@dataclass(frozen=True)
class Sizes:
    """How many numbers a learner holds."""

    inference: int
    """To play all tasks so far."""
    training: int
    """To be able to go on learning: what `inference` counts, and anchors, stored items and the like besides."""


class Learner(Protocol):
    """An agent that learns task after task. ``k`` is the place of a task in the stream, counted from 0.

    A stage is ``begin``, as many calls of ``step`` as the run has steps per task, and calls of ``end`` until it returns
    True. ``state`` may be asked for between any two of these calls. A learner that is built with the same `Setup` and
    given that state goes on to the bit.
    """

    def begin(self, k: int, data: Dataset) -> None:
        """The task in place ``k`` begins."""

    def step(self) -> dict[str, float]:
        """One gradient step; returns figures for the log, ``loss`` among them where there was one."""

    def end(self) -> bool:
        """One piece of the consolidation after the last step; returns whether it is complete."""

    def policy(self, k: int) -> Policy:
        """What plays the task in place ``k`` now. Until the task has begun that is a guess, such as the newest network."""

    def sizes(self) -> Sizes:
        """How many numbers are held now."""

    def state(self) -> dict[str, Any]:
        """A copy of everything that changes, as tensors and plain values."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Become what `state` was asked of."""
