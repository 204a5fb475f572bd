"""The Linear Recurrent Unit of Orvieto et al., 2023, arXiv 2303.06349: a diagonal state-space model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Memory, State, check_whole, reset_rows
from .scan import linear_scan

__all__ = ["LRU"]


class LRU(Memory):
    """Blocks of normalisation, LRU, GELU and a gated linear unit, with a residual around each.

    An LRU computes h_t = f h_{t-1} + g B x_t in complex numbers and reads out Re(C h_t) + D x_t, with factors
    f = exp(-exp(nu) + i exp(theta)) and g = sqrt(1 - |f|²) at the start; nu, theta and g are learnt, and |f| stays below 1.
    The state is "real" and "imaginary", (N, layers, hidden_size) each.

    Args:
        input_size, hidden_size: see `Memory`.
        layers: number of blocks.
        min_radius, max_radius: bounds of |f| at the start, from 0 to 1: units forget within about 1 / (1 - |f|) steps.
        max_phase: bound of the argument of f at the start, in radians a step.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        layers: int = 2,
        min_radius: float = 0.9,
        max_radius: float = 0.999,
        max_phase: float = math.pi / 10,
    ) -> None:
        bounds = {"min_radius": min_radius, "max_radius": max_radius, "max_phase": max_phase}
        super().__init__(input_size, hidden_size, layers=layers, **bounds)
        check_whole(self, layers=layers)
        if not (0 <= min_radius < max_radius < 1 and 0 < max_phase <= 2 * math.pi):
            raise ValueError(
                f"LRU: {bounds} cannot be used; use 0 <= min_radius < max_radius < 1, max_phase up to 6.28"
            )
        self.embed = nn.Linear(input_size, hidden_size)
        self.blocks = nn.ModuleList(_Block(hidden_size, min_radius, max_radius, max_phase) for _ in range(layers))
        self.final = nn.LayerNorm(hidden_size)

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        shape = n, len(self.blocks), self.hidden_size
        return {name: torch.zeros(shape, device=self.device) for name in ("real", "imaginary")}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        y, state = self.forward_sequence(x.unsqueeze(0), reset_rows(state, starts), starts.unsqueeze(0))
        return y.squeeze(0), state

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        before = torch.complex(state["real"], state["imaginary"])
        x = self.embed(x)
        after = []
        for i, block in enumerate(self.blocks):
            x, hidden = block(x, before[:, i], starts)
            after.append(hidden)
        hidden = torch.stack(after, dim=1)
        return self.final(x), {"real": hidden.real, "imaginary": hidden.imag}


class _Block(nn.Module):
    def __init__(self, size: int, min_radius: float, max_radius: float, max_phase: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        radius = (torch.rand(size) * (max_radius**2 - min_radius**2) + min_radius**2).sqrt()
        self.log_nu = nn.Parameter((-radius.log()).log())
        self.log_theta = nn.Parameter((max_phase * torch.rand(size).clamp_min(1e-4)).log())
        self.log_gamma = nn.Parameter((1 - radius.square()).sqrt().log())
        self.read_in = nn.Linear(size, 2 * size, bias=False)
        self.read_out = nn.Linear(2 * size, size, bias=False)
        nn.init.normal_(self.read_in.weight, std=1 / math.sqrt(2 * size))
        nn.init.normal_(self.read_out.weight, std=1 / math.sqrt(size))
        self.direct = nn.Parameter(torch.randn(size))
        self.glu = nn.Linear(size, 2 * size)

    def forward(self, x: Tensor, before: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """x (T, N, H) and the state before it (N, H) to the output (T, N, H) and the last state."""
        inputs = self.norm(x)
        factors = torch.polar((-self.log_nu.exp()).exp(), self.log_theta.exp())
        real, imaginary = (self.read_in(inputs) * self.log_gamma.exp().repeat(2)).chunk(2, dim=-1)
        kept = factors.masked_fill(starts.unsqueeze(-1), 0)  # (T, N, H)
        hidden = linear_scan(kept, torch.complex(real, imaginary), before)
        read = self.read_out(torch.cat([hidden.real, -hidden.imag], dim=-1)) + self.direct * inputs
        return x + functional.glu(self.glu(functional.gelu(read))), hidden[-1]
