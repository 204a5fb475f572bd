"""The residual MLP of Continual NavBench: one linear layer and a block of two, with LayerNorm and GELU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mikasa_lifelong.stream import Signature

from .heads import Head, make_head
from .model import Model, TensorBatch

__all__ = ["ResidualMLP", "Trunk", "TrunkModel", "VectorModel", "build", "flatten", "linear"]

Trunk = Callable[[str, Tensor], Tensor]

INIT_SCALE = 0.1
"""Weights start with the variance ``INIT_SCALE / inputs``, biases at 0."""


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer with the initial weights that `INIT_SCALE` tells."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    bound = math.sqrt(3 * INIT_SCALE / inputs)
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _drop(x: Tensor, share: float, noise: torch.Generator | None) -> Tensor:
    """Dropout by a generator of its own, so that a resumed run draws the same."""
    if noise is None or share == 0:
        return x
    keep = torch.empty_like(x).bernoulli_(1 - share, generator=noise)
    return x * keep / (1 - share)


class ResidualMLP(nn.Module):
    """Three hidden layers of one size; the second and third form a residual block.

    Args:
        inputs: numbers per example.
        outputs: likewise.
        hidden: size of each hidden layer.
        dropout: share of hidden units that are dropped in training.
    """

    DEPTH = 3

    def __init__(self, inputs: int, outputs: int, hidden: int, dropout: float) -> None:
        super().__init__()
        sizes = [inputs, *[hidden] * self.DEPTH]
        self.layers = nn.ModuleList(linear(*pair) for pair in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(self.DEPTH))
        self.head = linear(hidden, outputs)
        self.hidden, self.outputs, self.dropout = hidden, outputs, dropout

    def activations(
        self, x: Tensor, noise: torch.Generator | None = None, lateral: Sequence[Tensor | None] = (None,) * 4
    ) -> list[Tensor]:
        """The three hidden layers (B, hidden) and the outputs (B, outputs).

        Args:
            x: (B, inputs).
            noise: for dropout, which is off without it.
            lateral: what is added to each of the four before its activation, None for nothing.
        """
        found: list[Tensor] = []
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            before = norm(layer(found[-1] if found else x))
            if (addition := lateral[i]) is not None:
                before = before + addition
            after = _drop(functional.gelu(before), self.dropout, noise)
            found.append(found[0] + after if i == self.DEPTH - 1 else after)
        outputs = self.head(found[-1])
        if (addition := lateral[self.DEPTH]) is not None:
            outputs = outputs + addition
        return [*found, outputs]

    def forward(self, x: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """Outputs (B, outputs)."""
        return self.activations(x, noise)[-1]


def flatten(batch: TensorBatch, names: Sequence[str]) -> Tensor:
    """The inputs ``names`` of a batch side by side, (B, numbers)."""
    return torch.cat([batch[name].flatten(1) for name in names], dim=1)


class TrunkModel(Model):
    """A model made of residual MLPs, its trunks, which are attributes. Progressive networks add columns to each trunk."""

    trunks: tuple[str, ...]
    """Names of the attributes."""

    def compute(self, batch: TensorBatch, run: Trunk) -> Tensor:
        """Outputs (B, O), where ``run(name, x)`` is what the trunk ``name`` makes of inputs ``x`` (B, inputs)."""
        raise NotImplementedError

    def forward(self, batch: TensorBatch, noise: torch.Generator | None = None) -> Tensor:
        """See `Model.forward`."""
        return self.compute(batch, lambda name, x: getattr(self, name)(x, noise))


class VectorModel(TrunkModel):
    """A residual MLP that reads all inputs as one vector.

    Args:
        signature: what it reads and writes.
        hidden: size of its hidden layers.
        dropout: see `ResidualMLP`.
    """

    trunks = ("trunk",)

    def __init__(self, signature: Signature, hidden: int, dropout: float) -> None:
        super().__init__()
        self.names = tuple(signature.inputs)
        self.action: Head = make_head(signature)
        inputs = sum(math.prod(shape) for shape in signature.inputs.values())
        self.trunk = ResidualMLP(inputs, self.action.size, hidden, dropout)

    def compute(self, batch: TensorBatch, run: Trunk) -> Tensor:
        """See `TrunkModel.compute`."""
        return run("trunk", flatten(batch, self.names))

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.log_prob`."""
        return self.action.log_prob(outputs, batch)

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.error`."""
        return self.action.error(outputs, batch)

    def mode(self, outputs: Tensor) -> Tensor:
        """See `Model.mode`."""
        return self.action.mode(outputs)


def build(signature: Signature, hidden: int, dropout: float) -> VectorModel:
    """The entry point of the network ``residual-mlp``."""
    return VectorModel(signature, hidden, dropout)
