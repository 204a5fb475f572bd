"""The networks of SAC: a squashed Gaussian policy and an ensemble of critics that see the action."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .arguments import ArgumentError
from .critics import last_layer
from .distributions import SquashedGaussian
from .encoder import mlp
from .networks import FeedForwardPolicyNetwork
from .sac_arguments import LOG_STD_RANGE, SACArgs
from .spaces import ActionLayout, Obs, ObservationLayout

__all__ = ["Ensemble", "SACNetwork"]

MIN_LOG_STD, MAX_LOG_STD = LOG_STD_RANGE


class _EnsembleLinear(nn.Module):
    """A linear layer for each of E members: (E, B, I) to (E, B, O)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class _EnsembleLayerNorm(nn.Module):
    """Layer normalisation with weights for each of E members: (E, B, I) to the same shape."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class Ensemble(nn.Module):
    """E ReLU MLPs of the same input, computed together.

    Args:
        members: E.
        inputs: I, size of the input.
        hidden_sizes: widths of the hidden layers.
        layer_norm: whether each hidden layer is normalised before its ReLU.
    """

    def __init__(self, members: int, inputs: int, hidden_sizes: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.members = members
        layers: list[nn.Module] = []
        for width in hidden_sizes:
            layers.append(_EnsembleLinear(members, inputs, width))
            if layer_norm:
                layers.append(_EnsembleLayerNorm(members, width))
            layers.append(nn.ReLU())
            inputs = width
        self.layers = nn.Sequential(*layers, _EnsembleLinear(members, inputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(E, B) for inputs (B, I)."""
        found: Tensor = self.layers(x.expand(self.members, *x.shape)).squeeze(-1)
        return found


class SACNetwork(FeedForwardPolicyNetwork):
    """A policy and critics Q(s, a) of the same normalised observation, with target critics that follow them.

    Args:
        obs_dim, action_dim, normalize_obs: as `networks.PolicyNetwork`; observations without images, continuous actions.
        hidden_sizes: widths of the hidden layers of the actor and of each critic.
        init_log_std: logarithm of the initial standard deviation of an action before squashing.
        num_critics: E.
        critic_layer_norm: whether the hidden layers of the critics are normalised.

    Raises:
        ValueError: observations or actions are of another kind.
    """

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        hidden_sizes: Sequence[int] = (256, 256),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
        num_critics: int = 4,
        critic_layer_norm: bool = True,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        if self.layout.images:
            raise ValueError("SAC does not learn from images; use observations of numbers, such as --obs state")
        if self.action.sizes:
            raise ValueError("SAC needs continuous actions; use ppo-mlp, which takes discrete ones")
        self.hidden_sizes = tuple(hidden_sizes)
        self.num_critics, self.critic_layer_norm = num_critics, critic_layer_norm
        # A small last layer: the policy starts near zero motion, with the same noise everywhere.
        self.actor = mlp(self.features, self.hidden_sizes, 2 * self.action.dim, output_gain=0.01)
        self.critic = Ensemble(num_critics, self.features + self.action.dim, self.hidden_sizes, critic_layer_norm)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        with torch.no_grad():
            last_layer(self.actor).bias[self.action.dim :] = init_log_std

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> SACNetwork:
        """From ``--hidden-sizes``, ``--num-critics`` and so on."""
        cls.refuse_algorithm(args)
        if args.network_kwargs:
            raise ArgumentError(
                f"--network-kwargs {' '.join(args.network_kwargs)}: this network takes --hidden-sizes, --num-critics and "
                "--critic-layer-norm instead"
            )
        sizes = args.hidden_sizes, args.normalize_obs, args.init_log_std
        return cls(observation, action, *sizes, args.num_critics, args.critic_layer_norm)

    @classmethod
    def refuse_algorithm(cls, args: Any) -> None:
        """See `PolicyNetwork.refuse_algorithm`."""
        if not isinstance(args, SACArgs):
            raise ArgumentError(f"--network {args.network_name} is the network of `mikasa train sac`; leave it out")

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return {
            **super().to_dict(),
            "hidden_sizes": list(self.hidden_sizes),
            "num_critics": self.num_critics,
            "critic_layer_norm": self.critic_layer_norm,
        }

    def distribution_of(self, x: Tensor) -> SquashedGaussian:
        """The distribution of actions (..., A) for features x (..., F)."""
        mean, log_std = self.actor(x).chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(MIN_LOG_STD, MAX_LOG_STD))

    def q_values(self, normalized_obs: Obs, action: Tensor) -> Tensor:
        """Q (E, B) by each critic of actions (B, A) in [-1, 1], for normalised observations (B, …)."""
        found: Tensor = self.critic(torch.cat([self.encode(normalized_obs), action], dim=-1))
        return found

    @torch.no_grad()
    def target_q_values(self, normalized_obs: Obs, action: Tensor) -> Tensor:
        """As `q_values`, by the target critics, without gradients."""
        found: Tensor = self.target_critic(torch.cat([self.encode(normalized_obs), action], dim=-1))
        return found

    def value(self, normalized_obs: Obs) -> Tensor:
        """V (B,) of normalised observations (B, …): the critics' mean value of the most likely action."""
        return self.q_values(normalized_obs, self.action_distribution(normalized_obs).mode()).mean(dim=0)

    @torch.no_grad()
    def move_targets(self, share: float) -> None:
        """Move the weights of the target critics by ``share`` of the way to the critics."""
        for target, weight in zip(self.target_critic.parameters(), self.critic.parameters(), strict=True):
            target.lerp_(weight, share)
