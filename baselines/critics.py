"""Parts of critics: the scale of what they predict, and which parameters of a network are the critic's alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .distributed import DistContext

__all__ = [
    "CRITIC_STATE",
    "ValueScale",
    "is_critic_parameter",
    "last_layer",
    "output_gain",
    "rescale_values",
    "value_unit",
]

CRITIC_STATE = "state of the critic"
"""Key of what the critic alone sees, in observations during training; see ``--critic-obs``."""


def is_critic_parameter(name: str) -> bool:
    """Whether a parameter of this name belongs to the critic alone."""
    return name.startswith(("critic.", "critic_encoder."))


def last_layer(network: nn.Module) -> nn.Linear:
    """The layer whose output is that of an MLP, such as the value of a critic."""
    layer = list(network.modules())[-1]
    assert isinstance(layer, nn.Linear)
    return layer


def output_gain(scaled: bool) -> float:
    """Gain of the initial weights of a critic's last layer; ``scaled``: whether its values have a `ValueScale`.

    A new critic predicts values near 0. Random values of about 1 (gain 1) would be far larger than the first returns of most
    dense rewards, and the first targets would come from them. With a `ValueScale`, weights of exactly 0 tell its first
    update that the critic is new.
    """
    return 0.0 if scaled else 0.01


class ValueScale(nn.Module):
    """Running mean and standard deviation of the targets of a critic, which predicts values in that unit.

    When the statistics change, the last layer of the critic is changed so that all values stay the same (PopArt, van Hasselt
    et al., 2016, arXiv 1602.07714). The statistics are exponential averages over updates.

    A new critic begins with the value 0 (`output_gain`), and after the first update with the mean of the targets.

    Args:
        decay: weight of earlier updates against the present one.
        min_std: lower bound of the standard deviation, in the unit of the rewards.
    """

    moments: Tensor
    """(2,) float64 averages of a target and of its square, not corrected for their start at 0."""
    weight: Tensor
    """() float64 sum of the weights of all updates so far."""

    def __init__(self, decay: float = 0.9, min_std: float = 1e-3) -> None:
        super().__init__()
        self.decay, self.min_std = decay, min_std
        self.register_buffer("moments", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Both () float32; 0 and 1 before the first update."""
        mean, square = (self.moments / self.weight.clamp_min(1e-12)).unbind()
        std = (square - mean.square()).clamp_min(self.min_std**2).sqrt()
        return mean.float(), torch.where(self.weight > 0, std, torch.ones_like(std)).float()

    def forward(self, prediction: Tensor) -> Tensor:
        """Values (...) of what the critic returned (...)."""
        mean, std = self.mean_and_std()
        return prediction * std + mean

    @torch.no_grad()
    def update(self, targets: Tensor, layer: nn.Linear, dist: DistContext) -> Tensor:
        """Add the targets (...) of one update, those of all processes, and change ``layer`` so that values stay the same.

        Returns:
            () how much all values rose: the mean of the targets where the critic is new, else 0.
        """
        before, scale = self.mean_and_std()
        new = not bool(self.weight > 0) and not bool(layer.weight.any())
        values = targets.double()
        sums = dist.sum(torch.stack([values.sum(), values.square().sum(), torch.ones_like(values).sum()]))
        self.moments.lerp_(sums[:2] / sums[2], 1.0 - self.decay)
        self.weight.lerp_(torch.ones_like(self.weight), 1.0 - self.decay)
        mean, std = self.mean_and_std()
        if new:
            return mean  # the critic's output is 0, which from now on stands for the mean
        layer.weight.mul_(scale / std)
        layer.bias.mul_(scale / std).add_((before - mean) / std)
        return torch.zeros_like(mean)


def value_unit(network: Any) -> Tensor | float:
    """The standard deviation that errors of the critic are divided by; 1 without ``--normalize-returns``."""
    scale: ValueScale | None = getattr(network, "value_scale", None)
    return 1.0 if scale is None else scale.mean_and_std()[1]


def rescale_values(network: Any, targets: Tensor, dist: DistContext) -> Tensor | float:
    """Take in the targets (...) of an update, where the network scales its values.

    Returns:
        How much all values rose, see `ValueScale.update`.
    """
    scale: ValueScale | None = getattr(network, "value_scale", None)
    return 0.0 if scale is None else scale.update(targets, last_layer(network.critic), dist)
