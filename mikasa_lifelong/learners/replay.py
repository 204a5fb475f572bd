"""Learners that see earlier data again: experience replay, and replay of everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mikasa_lifelong.nets.model import TensorBatch, to_tensors
from mikasa_lifelong.stream import Dataset, UnionDataset

from .base import Setup, Sizes
from .sequential import Sequential, copy_tensors

__all__ = ["ExperienceReplay", "FullReplay"]


class ExperienceReplay(Sequential):
    """``er``: stores ``capacity`` items of each task; a batch is B new items and B stored ones.

    With ``capacity_total`` all tasks together may store that many, each the same share.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.stored: list[Tensor] = []  # for each earlier task the rows (M,) of its data, int64
        self._pool: Dataset | None = None  # the stored items themselves

    def _share(self, tasks: int) -> int:
        total = self.setup.options["capacity_total"]
        return int(total // tasks if total else self.setup.options["capacity"])

    def _find_pool(self) -> None:
        parts = [self.setup.data(k).take(rows.numpy()) for k, rows in enumerate(self.stored) if len(rows)]
        self._pool = UnionDataset(parts) if parts else None

    def prepare(self) -> None:
        """Gather the stored items."""
        self._find_pool()

    def draw(self) -> TensorBatch:
        """New items, then as many stored ones."""
        new = super().draw()
        if self._pool is None:
            return new
        rng = self.setup.chance.numpy("replay", self.k, self.t)
        old = to_tensors(self._pool.draw(rng.integers(len(self._pool), size=self.setup.batch_size), rng))
        return {name: torch.cat([new[name], old[name]]) for name in new}

    def consolidate(self, piece: int) -> bool:
        """Store items of this task, and give up some of the others' where all share one capacity."""
        share = self._share(self.k + 1)
        order = self.setup.chance.numpy("items", self.k).permutation(len(self.data))
        self.stored = [rows[:share] for rows in [*self.stored, torch.from_numpy(order)]]
        return True

    def sizes(self) -> Sizes:
        """The network, and the stored items for training."""
        numbers = self.model.numbers()
        stores = (self.setup.data(k).take(rows.numpy()) for k, rows in enumerate(self.stored) if len(rows))
        items = sum(len(store) * store.numbers_per_item for store in stores)
        return Sizes(numbers, numbers + items)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {**super().state(), "stored": copy_tensors(self.stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.stored = copy_tensors(state["stored"])
        # Those of the current task are stored at the end of its stage, and not drawn before the next.
        self._find_pool()


class FullReplay(Sequential):
    """``rpl``: keeps all data, and draws batches from all of it alike."""

    _seen: UnionDataset

    def _gather(self) -> None:
        self._seen = UnionDataset([*(self.setup.data(k) for k in range(self.k)), self.data])

    def prepare(self) -> None:
        """Add the data of this task."""
        self._gather()

    def draw(self) -> TensorBatch:
        """Items of all tasks so far."""
        rng = self.setup.chance.numpy("batches", self.k, self.t)
        rows = rng.integers(len(self._seen), size=self.setup.batch_size, dtype=np.int64)
        return to_tensors(self._seen.draw(rows, rng))

    def sizes(self) -> Sizes:
        """The network, and all data so far for training."""
        numbers = self.model.numbers()
        seen = (self.setup.data(k) for k in range(self.k + 1))
        return Sizes(numbers, numbers + sum(len(data) * data.numbers_per_item for data in seen))

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        if self.k >= 0:
            self._gather()
