"""The step of PPO (Schulman et al., 2017, arXiv 1707.06347) that algorithms with and without memory share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .arguments import CommonArgs
from .team import Team

__all__ = ["Recorded", "ppo_step", "summarize_losses"]


@dataclass
class Recorded:
    """What a rollout recorded and what came of it; all of one shape."""

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
    args: CommonArgs,
    team: Team,
) -> Tensor | None:
    """One step of gradient descent on the clipped objective of a minibatch.

    Args:
        policy: the module that learns.
        log_prob, entropy, value: what it says now, with gradients; empty where this process has no part in the minibatch.
        recorded: in the shape of these.
        count: transitions of the minibatch, those of all processes.

    Returns:
        policy loss, value loss, entropy, approximate KL divergence and share of clipped ratios (5,); None where the
        policy has moved too far already, and nothing was done.
    """
    log_ratio = log_prob - recorded.log_probs
    ratio = log_ratio.exp()
    with torch.no_grad():
        approx_kl = team.sum((ratio - 1.0 - log_ratio).sum()) / count  # Schulman's low-variance estimate
    if args.target_kl > 0.0 and approx_kl > args.target_kl:
        return None
    advantages = team.standardize(recorded.advantages) if args.normalize_advantages else recorded.advantages
    bounded = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
    policy_loss = -torch.minimum(ratio * advantages, bounded * advantages).sum() / count
    value_loss = 0.5 * (value - recorded.returns).square().sum() / count
    mean_entropy = entropy.sum() / count
    loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * mean_entropy
    optimizer.zero_grad()
    if loss.requires_grad:
        loss.backward()
    team.sum_gradients(policy.parameters())
    nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
    optimizer.step()
    clipped = ((ratio - 1.0).abs() > args.clip_range).sum() / count
    sums = team.sum(torch.stack([policy_loss, value_loss, mean_entropy, clipped]).detach())
    return torch.stack([sums[0], sums[1], sums[2], approx_kl, sums[3]])


def summarize_losses(metrics: list[Tensor], values: Tensor, returns: Tensor) -> dict[str, float]:
    """Means of what `ppo_step` gave in an update, for the log. Raises FloatingPointError where any is not finite."""
    # The ratio of the first minibatch is 1, so at least one has been counted.
    if not torch.stack(metrics).isfinite().all():
        raise FloatingPointError("infinite or NaN losses in an update; lower --learning-rate, or look at the rewards")
    names = ("loss/policy", "loss/value", "loss/entropy", "loss/approx_kl", "loss/clip_fraction")
    row = dict(zip(names, torch.stack(metrics).mean(dim=0).tolist(), strict=True))
    row["loss/explained_variance"] = float(1.0 - (returns - values).var() / returns.var().clamp_min(1e-12))
    row["loss/gradient_steps"] = float(len(metrics))
    return row
