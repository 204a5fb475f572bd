"""Stable Hadamard Memory (Le et al., 2024, arXiv 2410.10132)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Memory, State, check_whole, episode_ages, reset_rows

__all__ = ["SHM"]

LONGEST_ORDER = 1024
"""Steps of an episode after which the order of the rows of θ repeats."""


class SHM(Memory):
    """A matrix that each step calibrates and writes to: M_t = C_t ∘ M_{t-1} + η(x) v(x) k(x)ᵀ, read as M_t q(x).

    C_t = 1 + tanh(θ_t v_c(x)ᵀ), with θ_t one of ``thetas`` learnt rows, drawn at random in each step, so that products of
    calibrations have an expectation of about 1. Here they are drawn once, for each step of an episode, and kept: the order
    is the same in all episodes, and an update computes what the rollout did. Keys and queries are not below 0 and sum to 1.
    The state is "matrix" (N, memory_size, memory_size) and "age" (N,), the steps since the episode began.

    Args:
        input_size, hidden_size: see `Memory`.
        memory_size: rows and columns of the matrix.
        thetas: number of rows to draw from.
    """

    order: Tensor

    def __init__(self, input_size: int, hidden_size: int = 128, memory_size: int = 24, thetas: int = 128) -> None:
        super().__init__(input_size, hidden_size, memory_size=memory_size, thetas=thetas)
        check_whole(self, memory_size=memory_size, thetas=thetas)
        self.memory_size = memory_size
        self.norm = nn.LayerNorm(input_size)
        self.project = nn.Linear(input_size, 4 * memory_size + 1, bias=False)  # key, query, value, v_c and η
        self.skip = nn.Linear(input_size, memory_size)
        self.output = nn.Linear(memory_size, hidden_size)
        self.theta = nn.Parameter(torch.empty(thetas, memory_size))
        nn.init.xavier_uniform_(self.theta)
        self.register_buffer("order", torch.randint(thetas, (LONGEST_ORDER,)))

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        size, device = self.memory_size, self.device
        return {
            "matrix": torch.zeros((n, size, size), device=device),
            "age": torch.zeros(n, dtype=torch.int64, device=device),
        }

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        y, state = self.forward_sequence(x.unsqueeze(0), state, starts.unsqueeze(0))
        return y.squeeze(0), state

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        normed = self.norm(x)
        projected = self.project(normed)
        key, query, value, calibration = projected[..., :-1].chunk(4, dim=-1)
        key, query = _shares(key), _shares(query)
        written = value * projected[..., -1:].sigmoid()
        ages = episode_ages(state["age"], starts)  # (T, N)
        theta = self.theta[self.order[ages % LONGEST_ORDER]]  # (T, N, S)
        matrix = state["matrix"]
        reads = []
        # One step after another: a scan would hold all products of calibrations, which can overflow where the matrix itself
        # is small, and several matrices for each step.
        # Unbound before, because the gradient of each index alone would be a tensor of all steps.
        rows = (part.unbind() for part in (theta, calibration, written, key, query, starts))
        for theta_t, calibration_t, written_t, key_t, query_t, starts_t in zip(*rows, strict=True):
            matrix = reset_rows({"matrix": matrix}, starts_t)["matrix"]
            calibrate = 1 + (theta_t.unsqueeze(-1) * calibration_t.unsqueeze(-2)).tanh()
            matrix = torch.addcmul(written_t.unsqueeze(-1) * key_t.unsqueeze(-2), calibrate, matrix)
            reads.append((matrix @ query_t.unsqueeze(-1)).squeeze(-1))
        y = self.output(torch.stack(reads) + self.skip(normed))
        return y, {"matrix": matrix, "age": ages[-1] + 1}


def _shares(x: Tensor) -> Tensor:
    """Numbers not below 0 that sum to 1, over the last axis."""
    positive = x.relu()
    return positive / (positive.sum(dim=-1, keepdim=True) + 1e-5)
