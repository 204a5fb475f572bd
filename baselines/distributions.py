"""Distributions of actions. They sample from given noise, so that processes can share one stream of random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Categoricals", "Distribution", "Gaussian"]

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass
class Gaussian:
    """Independent Gaussians.

    Args:
        mean: (..., A).
        log_std: (A,).
    """

    mean: Tensor
    log_std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """(..., A) from standard normal ``noise`` of that shape."""
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        """The most likely action (..., A)."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """(...) log-density of actions (..., A)."""
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - 0.5 * _LOG_2PI).sum(dim=-1)

    def entropy(self) -> Tensor:
        """(...) in nats."""
        entropy = (self.log_std + 0.5 * (1.0 + _LOG_2PI)).sum()
        return entropy.expand(self.mean.shape[:-1])


@dataclass
class Categoricals:
    """Independent categorical components.

    Args:
        logits: (..., sum of sizes).
        sizes: number of values of each of the A components.
    """

    logits: Tensor
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        self._log_probs = [part.log_softmax(dim=-1) for part in self.logits.split(list(self.sizes), dim=-1)]

    def sample(self, noise: Tensor) -> Tensor:
        """(..., A) int64 from ``noise`` (..., A), uniform in [0, 1)."""
        chosen = []
        for part, u in zip(self._log_probs, noise.unbind(-1), strict=True):
            # Without the last cumulative sum: rounding may leave it below a number near 1.
            passed = u[..., None] >= part.exp().cumsum(dim=-1)[..., :-1]
            chosen.append(passed.sum(dim=-1))
        return torch.stack(chosen, dim=-1)

    def mode(self) -> Tensor:
        """The most likely action (..., A) int64."""
        return torch.stack([part.argmax(dim=-1) for part in self._log_probs], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(...) log-probability of actions (..., A) int64."""
        return torch.stack(
            [
                part.gather(-1, a[..., None]).squeeze(-1)
                for part, a in zip(self._log_probs, action.unbind(-1), strict=True)
            ]
        ).sum(dim=0)

    def entropy(self) -> Tensor:
        """(...) in nats."""
        return -torch.stack([(part.exp() * part).sum(dim=-1) for part in self._log_probs]).sum(dim=0)


Distribution = Gaussian | Categoricals
