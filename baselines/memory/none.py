"""No memory: what an agent reaches by what it sees now."""

from __future__ import annotations

import math

from torch import Tensor

from ..encoder import mlp
from .base import Memory, State, check_whole

__all__ = ["NoMemory"]


class NoMemory(Memory):
    """A tanh MLP of the present input. Its state is empty.

    Args:
        input_size, hidden_size: see `Memory`.
        layers: number of layers, each ``hidden_size`` wide.
    """

    def __init__(self, input_size: int, hidden_size: int = 128, layers: int = 2) -> None:
        super().__init__(input_size, hidden_size, layers=layers)
        check_whole(self, layers=layers)
        self.mlp = mlp(input_size, [hidden_size] * (layers - 1), hidden_size, output_gain=math.sqrt(2.0))

    def initial_state(self, n: int) -> State:
        """Nothing."""
        return {}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        return self.mlp(x).tanh(), {}

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        return self.mlp(x).tanh(), {}
