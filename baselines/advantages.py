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

    Row ``t`` describes the transition from observation ``t`` to the next one. Where an episode ended in it, row ``t + 1``
    belongs to the next episode, and nothing may leak from there.

    Args:
        rewards: (S, N) reward of step t.
        values: (S, N) V(observation t).
        last_value: (N,) V(observation S), with which the rollout ended.
        final_values: (S, N) V(last observation of the episode that was truncated at step t); read only where truncated.
        terminated: (S, N) bool, the episode ended by itself: the bootstrap is 0.
        truncated: (S, N) bool, the time limit ended the episode: the bootstrap is ``final_values``. Where both flags are
            set, the episode counts as terminated.
        gamma: discount in [0, 1].
        gae_lambda: trace decay in [0, 1].

    Returns:
        advantages (S, N) and returns (S, N) = advantages + values.

    Raises:
        ValueError: the shapes differ.
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
    # where(), not a product: zero times a NaN in an unread final value would be NaN.
    bootstrap = torch.where(terminated, torch.zeros_like(bootstrap), bootstrap)
    deltas = rewards + gamma * bootstrap - values

    advantages = torch.empty_like(rewards)
    trace = torch.zeros_like(last_value)
    for t in reversed(range(rewards.shape[0])):
        trace = deltas[t] + gamma * gae_lambda * torch.where(done[t], torch.zeros_like(trace), trace)
        advantages[t] = trace
    return advantages, advantages + values
