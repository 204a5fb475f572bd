"""The GRU of Cho et al., 2014, arXiv 1406.1078."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import State
from .recurrent import Recurrent, initialize_gates

__all__ = ["GRU"]


class GRU(Recurrent):
    """One layer of torch's GRU. Its state is "hidden", (N, hidden_size).

    Args:
        input_size, hidden_size: see `Memory`.
    """

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.gru = nn.GRU(input_size, hidden_size)
        initialize_gates(self.gru, 3)
        with torch.no_grad():
            # The update gate starts near keeping the state, for the reason that the LSTM's forget gate starts open.
            dict(self.gru.named_parameters())["bias_ih_l0"][hidden_size : 2 * hidden_size] = 1.0

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return {"hidden": torch.zeros((n, self.hidden_size), device=self.device)}

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Recurrent.run`."""
        y, hidden = self.gru(x, state["hidden"].unsqueeze(0))
        return y, {"hidden": hidden.squeeze(0)}
