"""The actor and the critic of PPO-MLP, with the normaliser of their observations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ActorCritic", "ObservationNormalizer"]

_LOG_2PI = math.log(2.0 * math.pi)


class ObservationNormalizer(nn.Module):
    """Shifts and scales observations by a running mean and standard deviation, which are part of ``state_dict``.

    ``update`` is called between policy updates only, so that the log-probabilities stored in a rollout are those the
    update recomputes.

    Args:
        obs_dim: size D of an observation.
        clip: normalised values are clamped to [-clip, clip].
        min_std: lower bound of the divisor, in the unit of the observation. Without it a component that is all but
            constant would have its numerical noise blown up to the size of a signal.
    """

    mean: Tensor  # (D,)
    var: Tensor  # (D,)
    count: Tensor  # ()

    def __init__(self, obs_dim: int, clip: float = 10.0, min_std: float = 1e-3) -> None:
        super().__init__()
        self.clip = clip
        self.min_std = min_std
        # float64: over millions of samples a float32 running mean stops moving.
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(obs_dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Takes a batch of raw observations (..., D) into the statistics."""
        batch = obs.reshape(-1, obs.shape[-1]).to(torch.float64)
        n = batch.shape[0]
        total = self.count + n
        batch_mean = batch.mean(dim=0)
        batch_var = batch.var(dim=0, unbiased=False)
        delta = batch_mean - self.mean
        # Chan et al.: the parallel form of Welford's update.
        squares = self.var * self.count + batch_var * n + delta.square() * self.count * n / total
        self.mean.add_(delta * n / total)
        self.var.copy_(squares / total)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """(..., D) raw to (..., D) normalised, in the dtype of ``obs``."""
        std = self.var.sqrt().clamp_min(self.min_std)
        normalised = (obs - self.mean.to(obs.dtype)) / std.to(obs.dtype)
        return normalised.clamp(-self.clip, self.clip)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(inputs: int, hidden: Sequence[int], outputs: int, output_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width, math.sqrt(2.0)), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, output_gain))


class ActorCritic(nn.Module):
    """A diagonal Gaussian policy with state-independent spread, and a value function; two separate tanh MLPs.

    Args:
        obs_dim: size D of an observation.
        action_dim: size A of an action, each component in [-1, 1].
        hidden_sizes: widths of the hidden layers, the same in both networks.
        normalize_obs: whether observations pass through a running normaliser.
        init_log_std: the logarithm of the initial standard deviation of every action component.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.action_dim = action_dim
        self.hidden_sizes = tuple(hidden_sizes)
        self.normalizer = ObservationNormalizer(obs_dim) if normalize_obs else None
        # A small last layer starts the policy near zero motion: with delta control the arm then stays where it is.
        self.actor = _mlp(obs_dim, self.hidden_sizes, action_dim, output_gain=0.01)
        self.critic = _mlp(obs_dim, self.hidden_sizes, 1, output_gain=1.0)
        self.log_std = nn.Parameter(torch.full((action_dim,), init_log_std))

    def normalize(self, obs: Tensor) -> Tensor:
        """(..., D) raw to (..., D) as the networks take it."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def update_normalizer(self, obs: Tensor) -> None:
        """Takes raw observations (..., D) into the running statistics, if there are any."""
        if self.normalizer is not None:
            self.normalizer.update(obs)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """The deterministic action (B, A) in [-1, 1], the mean of the policy, for raw observations (B, D)."""
        return self.actor(self.normalize(obs)).clamp(-1.0, 1.0)

    @torch.no_grad()
    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A sampled action (B, A), not clamped, and its log-probability (B,), for raw observations (B, D)."""
        mean = self.actor(self.normalize(obs))
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        action = mean + self.log_std.exp() * noise
        return action, self._log_prob(mean, action)

    def value(self, obs: Tensor) -> Tensor:
        """V (B,) of raw observations (B, D)."""
        return self.critic(self.normalize(obs)).squeeze(-1)

    def evaluate(self, normalized_obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability (B,), entropy () and value (B,) with gradients.

        Takes observations (B, D) that are already normalised: an update visits each of them many times.
        """
        log_prob = self._log_prob(self.actor(normalized_obs), action)
        entropy = (self.log_std + 0.5 * (1.0 + _LOG_2PI)).sum()
        return log_prob, entropy, self.critic(normalized_obs).squeeze(-1)

    def _log_prob(self, mean: Tensor, action: Tensor) -> Tensor:
        z = (action - mean) * (-self.log_std).exp()
        return (-0.5 * z.square() - self.log_std - 0.5 * _LOG_2PI).sum(dim=-1)
