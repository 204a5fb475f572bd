"""Memories of somebody else's that do what those of the package do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from toy_memories import Good

from mikasa_robo.baselines.memory import State


class Dropping(Good):
    """Its outputs have dropout, and their statistics are counted."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.last = nn.Sequential(nn.BatchNorm1d(self.hidden_size), nn.Dropout(0.5))

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        y, state = super().step(x, state, starts)
        return self.last(y), state


class Random(Good):
    """Adds torch's own random numbers in train mode, as dropout does."""

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        y, state = super().step(x, state, starts)
        return y + 0.1 * torch.randn_like(y) if self.training else y, state


class Growing(Good):
    """Its state is empty at first, and keeps all that it has seen."""

    def initial_state(self, n: int) -> State:
        return {"h": torch.zeros(n, 0, self.hidden_size, device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        past = state["h"]
        last = past[:, -1] if past.shape[1] else x.new_zeros(len(x), self.hidden_size)
        y, _ = super().step(x, {"h": last}, starts)
        return y, {"h": torch.cat([past, y[:, None]], dim=1)}


class NaN(Good):
    """Gives NaN from step ``broken_at`` of an episode on; never if that is negative."""

    broken_at = -1

    def initial_state(self, n: int) -> State:
        return {**super().initial_state(n), "age": torch.zeros(n, dtype=torch.int64, device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        age = state["age"].masked_fill(starts, 0)
        y, after = super().step(x, {"h": state["h"]}, starts)
        if self.broken_at >= 0:
            y = y.masked_fill((age >= self.broken_at)[:, None], torch.nan)
        return y, {**after, "age": age + 1}
