"""Progressive neural networks (Rusu et al. 2016, arXiv 1606.04671), for residual MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mikasa_lifelong.nets.mlp import ResidualMLP, TrunkModel, linear
from mikasa_lifelong.nets.model import ModelPolicy, TensorBatch, to_tensors
from mikasa_lifelong.stream import Batch, Policy

from .base import Setup, Sizes
from .sequential import Sequential

__all__ = ["Progressive"]

SCALE = 0.1
"""Standard deviation of the initial factors on other columns' units."""


class Lateral(nn.Module):
    """What earlier columns add to one layer: U gelu(V (a * [h of each earlier column])), without biases.

    Args:
        columns: how many earlier columns there are.
        hidden: size of their hidden layers.
        outputs: size of the layer.
    """

    def __init__(self, columns: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(SCALE * torch.randn(columns * hidden))
        self.V = linear(columns * hidden, hidden, bias=False)
        self.U = linear(hidden, outputs, bias=False)

    def forward(self, others: list[Tensor]) -> Tensor:
        """The addition (B, outputs), from the layer below of each earlier column, (B, hidden) each."""
        added: Tensor = self.U(functional.gelu(self.V(self.factors * torch.cat(others, dim=1))))
        return added


class Progressive(Sequential):
    """``pnn``: a fresh network for each task, which also reads the hidden layers of all earlier ones. Those never change."""

    model: TrunkModel

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.columns = nn.ModuleList()  # of TrunkModel
        # For each column a ModuleList of its Lateral, those of one trunk after another; empty for the first.
        self.laterals = nn.ModuleList()
        self._add_column()

    def _add_column(self) -> None:
        k = len(self.columns)
        for parameter in [*self.columns.parameters(), *self.laterals.parameters()]:
            parameter.requires_grad_(False)
        column = self.setup.fresh_model(k)
        assert isinstance(column, TrunkModel)
        adapters: list[Lateral] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.setup.chance.number("lateral", k))
            for name in column.trunks if k else ():
                trunk = getattr(column, name)
                sizes = [*[trunk.hidden] * (ResidualMLP.DEPTH - 1), trunk.outputs]
                adapters += [Lateral(k, trunk.hidden, size) for size in sizes]
        self.laterals.append(nn.ModuleList(adapters))
        self.columns.append(column)

    def prepare(self) -> None:
        """Add a column; the first is there already."""
        if self.k > 0:
            self._add_column()

    def _adapters(self, column: int, trunk: str) -> Any:
        """The `Lateral` of one trunk of a column."""
        place, adapters = self.model.trunks.index(trunk), self.laterals[column]
        assert isinstance(adapters, nn.ModuleList)
        return adapters[place * ResidualMLP.DEPTH : (place + 1) * ResidualMLP.DEPTH]

    def trained_parameters(self) -> list[list[nn.Parameter]]:
        """The newest column and what it reads of the others."""
        newest = len(self.columns) - 1
        return [
            [*getattr(self.columns[-1], name).parameters(), *self._adapters(newest, name).parameters()]
            for name in self.model.trunks
        ]

    def outputs(self, batch: TensorBatch, column: int, noise: torch.Generator | None = None) -> Tensor:
        """Outputs (B, O) of ``column``; dropout is in this column only."""
        return self.model.compute(batch, lambda name, x: self._run(name, x, column, noise))

    def _run(self, trunk: str, x: Tensor, column: int, noise: torch.Generator | None) -> Tensor:
        layers: list[list[Tensor]] = []  # of each column so far
        for j in range(column + 1):
            lateral: list[Tensor | None] = [None] * (ResidualMLP.DEPTH + 1)
            for i, adapter in enumerate(self._adapters(j, trunk)):
                lateral[i + 1] = adapter([earlier[i] for earlier in layers])
            own_noise = noise if j == column else None
            layers.append(getattr(self.columns[j], trunk).activations(x, own_noise, lateral))
        return layers[-1][-1]

    def loss(self, batch: TensorBatch, noise: torch.Generator) -> Tensor:
        """That of the newest column."""
        return -self.model.log_prob(self.outputs(batch, len(self.columns) - 1, noise), batch).mean()

    def policy(self, k: int) -> Policy:
        """The column of that task, or the newest where there is none."""
        return _ColumnPolicy(self, min(k, len(self.columns) - 1))

    def sizes(self) -> Sizes:
        """All columns."""
        numbers = sum(p.numel() for p in [*self.columns.parameters(), *self.laterals.parameters()])
        return Sizes(numbers, numbers)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        modules = {"columns": self.columns.state_dict(), "laterals": self.laterals.state_dict()}
        copied = {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in modules.items()}
        return {**super().state(), **copied, "count": len(self.columns)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        self.columns, self.laterals = nn.ModuleList(), nn.ModuleList()
        for _ in range(state["count"]):
            self._add_column()
        self.columns.load_state_dict(state["columns"])
        self.laterals.load_state_dict(state["laterals"])
        super().load(state)


class _ColumnPolicy(ModelPolicy):
    """Plays with one column."""

    def __init__(self, learner: Progressive, column: int) -> None:
        super().__init__(learner.model)
        self._learner, self._column = learner, column

    @torch.no_grad()
    def outputs(self, obs: Batch) -> Tensor:
        """Outputs (N, O) of the column."""
        return self._learner.outputs(to_tensors(obs), self._column)
