"""The LSTM of Hochreiter and Schmidhuber, 1997."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import State
from .recurrent import Recurrent, initialize_gates

__all__ = ["LSTM"]


class LSTM(Recurrent):
    """One layer of torch's LSTM. Its state is "hidden" and "cell", (N, hidden_size) each.

    Args:
        input_size, hidden_size: see `Memory`.
    """

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.lstm = nn.LSTM(input_size, hidden_size)
        initialize_gates(self.lstm, 4)
        with torch.no_grad():
            # The forget gate starts open, so that gradients reach back to a cue (Jozefowicz et al. 2015).
            dict(self.lstm.named_parameters())["bias_ih_l0"][hidden_size : 2 * hidden_size] = 1.0

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return {name: torch.zeros((n, self.hidden_size), device=self.device) for name in ("hidden", "cell")}

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Recurrent.run`."""
        y, (hidden, cell) = self.lstm(x, (state["hidden"].unsqueeze(0), state["cell"].unsqueeze(0)))
        return y, {"hidden": hidden.squeeze(0), "cell": cell.squeeze(0)}
