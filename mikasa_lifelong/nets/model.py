"""What learners know of a network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mikasa_lifelong.stream import Batch

__all__ = ["Model", "ModelPolicy", "TensorBatch", "Weights", "to_tensors"]

TensorBatch = Mapping[str, Tensor]
Weights = Mapping[str, Tensor]
"""Parameters by their names in the model."""


def to_tensors(batch: Batch) -> dict[str, Tensor]:
    """A batch as tensors that share its memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}


class Model(nn.Module):
    """A network with its head. All of its state is parameters: learners mix, anchor and store these, and nothing else."""

    levels: tuple[str, ...] = ("",)
    """Prefixes of the names of its parameters, one for each part that is trained by a loss of its own."""

    def forward(self, batch: TensorBatch, noise: torch.Generator | None = None) -> Tensor:
        """Outputs (B, O) before any normalisation; ``noise`` is for dropout, which is off without it."""
        raise NotImplementedError

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """Log-probability (B,) of the batch's targets."""
        raise NotImplementedError

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """Error (B,) of the action, at least 0; see `mikasa_lifelong.nets.heads.Head`."""
        raise NotImplementedError

    def level_errors(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """The error of each of `levels`, (levels, B)."""
        return self.error(outputs, batch)[None]

    def mode(self, outputs: Tensor) -> Tensor:
        """The most probable actions (B, …)."""
        raise NotImplementedError

    def numbers(self) -> int:
        """How many parameters it has."""
        return sum(parameter.numel() for parameter in self.parameters())


class ModelPolicy:
    """The policy of a model without memory, a `mikasa_lifelong.stream.Policy`.

    Args:
        model: the network.
        weights: parameters to use instead of the model's own, as they are now.
    """

    def __init__(self, model: Model, weights: Weights | None = None) -> None:
        self._model = self._played = model
        if weights is not None:
            # A copy: it takes as long as the model itself, so that the times of learners can be compared.
            self._played = copy.deepcopy(model)
            with torch.no_grad():
                for name, parameter in self._played.named_parameters():
                    if name in weights:
                        parameter.copy_(weights[name])

    def on_episode_start(self) -> None:
        """There is nothing to forget."""

    @torch.no_grad()
    def outputs(self, obs: Batch) -> Tensor:
        """The network's outputs (N, O)."""
        if self._played.training != self._model.training:
            self._played.train(self._model.training)
        outputs: Tensor = self._played(to_tensors(obs))
        return outputs

    def act(self, obs: Batch) -> NDArray[Any]:
        """The most probable actions (N, …)."""
        return self._model.mode(self.outputs(obs)).numpy()
