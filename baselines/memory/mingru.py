"""The minGRU of Feng et al., 2024, arXiv 2410.01201: a GRU whose gates do not see the state, for a parallel scan."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Memory, State, check_whole, reset_rows
from .scan import LOG_ZERO, log_scan

__all__ = ["MinGRU"]


class MinGRU(Memory):
    """Layers of minGRU, with normalisation before and a residual around each.

    A layer computes h_t = (1 - z_t) h_{t-1} + z_t g(c_t) with z_t = sigmoid(W_z x_t) and c_t = W_h x_t. g is x + 0.5 from 0
    on and sigmoid(x) below, so that h is above 0 and a sequence can be computed by a scan of logarithms (appendix B of the
    paper). The state is "hidden", (N, layers, hidden_size).

    Args:
        input_size, hidden_size: see `Memory`.
        layers: number of layers. A gate of the first sees the present input only, those of others see what the layer before
            remembers.
        max_delay: the gates start such that units forget after times from 1 to about this many steps.
    """

    def __init__(self, input_size: int, hidden_size: int = 128, layers: int = 2, max_delay: int = 256) -> None:
        super().__init__(input_size, hidden_size, layers=layers, max_delay=max_delay)
        check_whole(self, layers=layers, max_delay=max_delay)
        self.embed = nn.Linear(input_size, hidden_size)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(hidden_size, 2 * hidden_size) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(layers))
        self.final = nn.LayerNorm(hidden_size)
        with torch.no_grad():
            # Time constants 1 / z spread over the delays, as Tallec and Ollivier (2018, arXiv 1804.11188) start gates.
            delays = torch.logspace(0, math.log10(1 + max_delay), hidden_size)
            for gate in self.gates:
                gate.bias[:hidden_size] = -delays.log()  # type: ignore[operator]

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return {"hidden": torch.zeros((n, len(self.gates), self.hidden_size), device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        before = reset_rows(state, starts)["hidden"]
        x = self.embed(x)
        after = []
        for i, (norm, gate, output) in enumerate(zip(self.norms, self.gates, self.outputs, strict=True)):
            z, content = gate(norm(x)).chunk(2, dim=-1)
            after.append(torch.lerp(before[:, i], _log_g(content).exp(), z.sigmoid()))
            x = x + output(after[-1])
        return self.final(x), {"hidden": torch.stack(after, dim=1)}

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        forgets = starts.unsqueeze(-1)
        x = self.embed(x)
        after = []
        for i, (norm, gate, output) in enumerate(zip(self.norms, self.gates, self.outputs, strict=True)):
            z, content = gate(norm(x)).chunk(2, dim=-1)
            log_keep = (-functional.softplus(z)).masked_fill(forgets, LOG_ZERO)  # log(1 - sigmoid(z))
            log_input = _log_g(content) - functional.softplus(-z)
            hidden = log_scan(log_keep, log_input, state["hidden"][:, i])
            after.append(hidden[-1])
            x = x + output(hidden)
        return self.final(x), {"hidden": torch.stack(after, dim=1)}


def _log_g(x: Tensor) -> Tensor:
    """The logarithm of g."""
    # The two arguments are kept in their halves, because `where` multiplies a gradient of the other half by 0.
    return torch.where(x >= 0, (x.clamp_min(0) + 0.5).log(), -functional.softplus(-x.clamp_max(0)))
