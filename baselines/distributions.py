"""Distributions of actions. They sample from given noise, so that processes can share one stream of random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["Categoricals", "Distribution", "Gaussian", "SquashedGaussian", "StateNoise"]

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass
class Gaussian:
    """Independent Gaussians.

    Args:
        mean: (..., A).
        log_std: (A,), or (..., A) where it depends on the state.
    """

    mean: Tensor
    log_std: Tensor

    def given(self, carried: Tensor, correlation: float) -> Gaussian:
        """The distribution of the next action, given the noise of the action before; see `exploration.NoiseSource`.

        Args:
            carried: (..., A) that noise, in standard deviations.
            correlation: of the noise of one step and the next, in [0, 1).
        """
        mean = self.mean + correlation * self.log_std.exp() * carried
        return Gaussian(mean, self.log_std + 0.5 * math.log(1.0 - correlation**2))

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
        entropy = (self.log_std + 0.5 * (1.0 + _LOG_2PI)).sum(dim=-1)
        return entropy.expand(self.mean.shape[:-1])


class StateNoise(Gaussian):
    """The actions of generalised state-dependent exploration, for one state at a time; see `exploration`.

    The noise of component j is the sum over i of E_ij exp(log_stds_ij) z_i / sqrt(H), where z are the features of the actor
    and E is standard normal. So for a given state and a random E the action is Gaussian, and its probability is exact.

    Args:
        mean: (..., A).
        features: z (..., H).
        log_stds: (H, A).
    """

    def __init__(self, mean: Tensor, features: Tensor, log_stds: Tensor) -> None:
        self.features, self.log_stds = features / math.sqrt(features.shape[-1]), log_stds
        variance = self.features.square() @ (2.0 * log_stds).exp()
        super().__init__(mean, 0.5 * (variance + 1e-6).log())

    def sample(self, noise: Tensor) -> Tensor:
        """(..., A) from standard normal ``noise`` E (..., H, A)."""
        return self.mean + (self.features.unsqueeze(-2) @ (self.log_stds.exp() * noise)).squeeze(-2)


@dataclass
class SquashedGaussian:
    """The hyperbolic tangents of independent Gaussians: actions in (-1, 1), as in SAC (Haarnoja et al., 2018, arXiv
    1812.05905).

    Args:
        mean: (..., A) before squashing.
        log_std: (..., A) before squashing.
    """

    mean: Tensor
    log_std: Tensor

    def sample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (..., A) from standard normal ``noise`` of that shape, and their log-density (...), with gradients."""
        before = self.mean + self.log_std.exp() * noise
        return before.tanh(), self._log_prob(before)

    def sample(self, noise: Tensor) -> Tensor:
        """(..., A) from standard normal ``noise`` of that shape."""
        return self.sample_with_log_prob(noise)[0]

    def mode(self) -> Tensor:
        """The action (..., A) of the mean before squashing."""
        return self.mean.tanh()

    def log_prob(self, action: Tensor) -> Tensor:
        """(...) log-density of actions (..., A); at the bounds that of an action just within them."""
        return self._log_prob(action.clamp(-1.0 + 1e-6, 1.0 - 1e-6).atanh())

    def entropy(self) -> Tensor:
        """Raises NotImplementedError: it has no closed form. Average -`log_prob` over samples."""
        raise NotImplementedError(
            "the entropy of a squashed Gaussian has no closed form; average -log_prob over samples"
        )

    def _log_prob(self, before: Tensor) -> Tensor:
        # The logarithm of the tangent's slope, 1 - tanh(u)^2, written so that it does not vanish for large u.
        slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
        return Gaussian(self.mean, self.log_std).log_prob(before) - slope.sum(dim=-1)


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


Distribution = Gaussian | SquashedGaussian | Categoricals
