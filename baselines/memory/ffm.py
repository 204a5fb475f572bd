"""Fast and Forgetful Memory (Morad et al., 2023, arXiv 2310.04128)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import Memory, State, check_whole, reset_rows
from .scan import linear_scan

__all__ = ["FFM"]

FORGOTTEN = 0.01
"""Share of the slowest trace that is left after ``max_period`` steps, at the start of training."""


class FFM(Memory):
    """Traces of a gated input that decay and turn: S_t = G S_{t-1} + u_t, with G_jk = exp(-|a_j| + i w_k).

    u = l1(x) sigmoid(l2(x)) goes to all frequencies. With z the state through a linear layer, the output is
    LN(z) g + l3(x) (1 - g), where g = sigmoid(l4(x)). The paper computes sequences by powers of G in float64; here it is a
    scan, in float32.
    The state is "real" and "imaginary", (N, memory_size, context_size) each.

    Args:
        input_size, hidden_size: see `Memory`.
        memory_size: number of decays a.
        context_size: number of frequencies w.
        max_period: the longest period and decay that training starts from, in steps.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        memory_size: int = 32,
        context_size: int = 4,
        max_period: int = 1024,
    ) -> None:
        sizes = {"memory_size": memory_size, "context_size": context_size, "max_period": max_period}
        super().__init__(input_size, hidden_size, **sizes)
        check_whole(self, **sizes)
        self.shape = memory_size, context_size
        self.read_in = nn.Linear(input_size, 2 * memory_size)
        self.read_out = nn.Linear(2 * memory_size * context_size, hidden_size)
        self.skip = nn.Linear(input_size, 2 * hidden_size)
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.decay = nn.Parameter(torch.linspace(1.0, -math.log(FORGOTTEN) / max_period, memory_size))
        self.frequency = nn.Parameter(2 * math.pi / torch.linspace(1, max_period, context_size))

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return {name: torch.zeros((n, *self.shape), device=self.device) for name in ("real", "imaginary")}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        state = reset_rows(state, starts)
        traces = self._factors() * torch.complex(state["real"], state["imaginary"]) + self._inputs(x)
        return self._outputs(x, traces), {"real": traces.real, "imaginary": traces.imag}

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        factors = self._factors().masked_fill(starts[..., None, None], 0)  # (T, N, M, C)
        inputs = self._inputs(x).to(factors.dtype).expand_as(factors)
        traces = linear_scan(factors, inputs, torch.complex(state["real"], state["imaginary"]))
        return self._outputs(x, traces), {"real": traces[-1].real, "imaginary": traces[-1].imag}

    def _factors(self) -> Tensor:
        """G (M, C)."""
        # A decay of exactly 0 would keep everything for ever, and grow without bound.
        size = (-self.decay.abs().clamp_min(1e-6)).exp()
        return torch.polar(size[:, None].expand(self.shape), self.frequency.expand(self.shape))

    def _inputs(self, x: Tensor) -> Tensor:
        """u (…, M, 1)."""
        value, gate = self.read_in(x).chunk(2, dim=-1)
        gated: Tensor = (value * gate.sigmoid()).unsqueeze(-1)
        return gated

    def _outputs(self, x: Tensor, traces: Tensor) -> Tensor:
        """y (…, H) from traces (…, M, C)."""
        z = self.norm(self.read_out(torch.cat([traces.real, traces.imag], dim=-1).flatten(-2)))
        value, gate = self.skip(x).chunk(2, dim=-1)
        mixed: Tensor = torch.lerp(value, z, gate.sigmoid())
        return mixed
