"""Deprecated: the gradient step of earlier versions. Use the functions of `ppo`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import DistContext
from .ppo import PPOArgs, approximate_kl, clipped_loss, gradient_step, mean_figures

__all__ = ["Recorded", "ppo_step", "summarize_losses"]

warnings.warn(f"{__name__} is deprecated; use {__package__}.ppo", DeprecationWarning, stacklevel=2)


@dataclass
class Recorded:
    """What a rollout recorded; all of one shape."""

    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def __getitem__(self, index: Any) -> Recorded:
        return Recorded(self.log_probs[index], self.advantages[index], self.returns[index])


def ppo_step(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    recorded: Recorded,
    count: int,
    args: PPOArgs,
    team: DistContext,
) -> Tensor | None:
    """One gradient step on a minibatch of ``count`` transitions.

    Returns:
        policy loss, value loss, entropy, approximate KL divergence and fraction of clipped ratios (5,); None where the
        policy has already moved too far, and nothing was done.
    """
    log_ratio = log_prob - recorded.log_probs
    kl = approximate_kl(log_ratio, count, team)
    if args.target_kl > 0.0 and kl > args.target_kl:
        return None
    policy_loss, clipped = clipped_loss(log_ratio, recorded.advantages, count, args, team)
    value_loss = 0.5 * (value - recorded.returns).square().sum() / count
    mean_entropy = entropy.sum() / count
    loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * mean_entropy
    gradient_step(policy, optimizer, loss, args, team)
    sums = team.sum(torch.stack([policy_loss, value_loss, mean_entropy, clipped]).detach())
    return torch.stack([*sums[:3], kl, sums[3]])


def summarize_losses(metrics: list[Tensor], values: Tensor, returns: Tensor) -> dict[str, float]:
    """Means of what `ppo_step` returned in an update. Raises FloatingPointError where one is not finite."""
    return mean_figures(torch.stack(metrics), values, returns)
