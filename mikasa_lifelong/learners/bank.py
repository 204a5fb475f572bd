"""Learners that keep networks: fresh ones, copies, or the first one for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mikasa_lifelong.nets.model import ModelPolicy
from mikasa_lifelong.stream import Policy

from .base import Setup, Sizes
from .sequential import Sequential, copy_tensors

__all__ = ["FinetuneAll", "FreshAll", "FreshLast", "Frozen"]


class FreshLast(Sequential):
    """``sc1``: fresh weights for each task, and only the last network is kept."""

    def prepare(self) -> None:
        """Start from the initial weights of this task."""
        self.model.load_state_dict(self.setup.fresh_model(self.k).state_dict())


class FinetuneAll(Sequential):
    """``ftn``: goes on from a copy of the last network, and keeps every network for its own task."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.kept: list[dict[str, Tensor]] = []  # weights after each task

    def consolidate(self, piece: int) -> bool:
        """Keep the weights of this task."""
        self.kept.append(copy_tensors(self.model.state_dict()))
        return True

    def policy(self, k: int) -> Policy:
        """The network of that task, or the newest where there is none."""
        return ModelPolicy(self.model, self.kept[k] if k < len(self.kept) else None)

    def sizes(self) -> Sizes:
        """All networks."""
        numbers = max(1, len(self.kept)) * self.model.numbers()
        return Sizes(numbers, numbers)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {**super().state(), "kept": copy_tensors(self.kept)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.kept = copy_tensors(state["kept"])


class FreshAll(FinetuneAll):
    """``scn``: fresh weights for each task, and every network is kept for its own task."""

    def prepare(self) -> None:
        """Start from the initial weights of this task."""
        self.model.load_state_dict(self.setup.fresh_model(self.k).state_dict())


class Frozen(Sequential):
    """``frz``: trains on the first task only."""

    def step(self) -> dict[str, float]:
        """See `Learner.step`; nothing happens after the first task."""
        if self.k == 0:
            return super().step()
        self.t += 1
        return {}
