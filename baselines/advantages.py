"""Generalised advantage estimation (Schulman et al., 2016, arXiv 1506.02438) for batches with automatic resets."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["compute_gae"]


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    last_value: Tensor,
    final_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a rollout of S steps in N environments.

    Row ``t`` describes the transition from observation ``t`` to the one that followed it. Where an episode ended there,
    row ``t + 1`` already belongs to the next episode, so nothing may leak across that edge.

    Args:
        rewards: (S, N) reward of step t.
        values: (S, N) V(observation t).
        last_value: (N,) V(observation S), the one the rollout stopped at.
        final_values: (S, N) V(last observation of the episode that was cut at step t); read only where truncated.
        terminated: (S, N) bool, the episode came to a true end: nothing follows, the bootstrap is 0.
        truncated: (S, N) bool, the clock cut the episode: it would have gone on, the bootstrap is ``final_values``.
            Where both are set, the end was a true one.
        gamma: discount in [0, 1].
        gae_lambda: trace decay in [0, 1].

    Returns:
        advantages (S, N) and returns (S, N) = advantages + values.
    """
    if not rewards.shape == values.shape == final_values.shape == terminated.shape == truncated.shape:
        shapes = {
            "rewards": rewards,
            "values": values,
            "final_values": final_values,
            "terminated": terminated,
            "truncated": truncated,
        }
        raise ValueError(
            "compute_gae: all (S, N) inputs need one shape, got "
            + ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        )
    done = terminated | truncated
    following = torch.cat([values[1:], last_value.unsqueeze(0)])  # (S, N)
    bootstrap = torch.where(truncated, final_values, following)
    # where(), not a product: a NaN in an unread final value must not survive multiplication by zero.
    bootstrap = torch.where(terminated, torch.zeros_like(bootstrap), bootstrap)
    deltas = rewards + gamma * bootstrap - values

    advantages = torch.empty_like(rewards)
    trace = torch.zeros_like(last_value)
    for t in reversed(range(rewards.shape[0])):
        trace = deltas[t] + gamma * gae_lambda * torch.where(done[t], torch.zeros_like(trace), trace)
        advantages[t] = trace
    return advantages, advantages + values
