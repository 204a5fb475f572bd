"""Terms of dense rewards: free functions over (N, …) tensors with values in [0, 1], and how they are put together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SUCCESS_FACTOR = 2.0
"""Success pays so many times what all other terms can pay together."""
BESIDE, ABOVE = 0.05, 0.08
"""A hand that is farther than `BESIDE` from its target as seen from above may travel `ABOVE` it, m: over its neighbours."""


def reach(position: Tensor, target: Tensor, sharpness: float = 5.0) -> Tensor:
    """1 where ``position`` (N, 3) is at ``target`` (N, 3), towards 0 with distance (m): 1 - tanh(sharpness · d)."""
    return 1 - torch.tanh(sharpness * torch.linalg.norm(position - target, dim=-1))


def closeness(distance: Tensor, sharpness: float = 5.0) -> Tensor:
    """1 at distance 0, towards 0 with distance (N,): 1 - tanh(sharpness · d)."""
    return 1 - torch.tanh(sharpness * distance)


def reach_from_above(way: Tensor, sharpness: float = 5.0) -> Tensor:
    """`closeness` along ``way`` (N, 3), m, from the TCP to a target among others that must not be touched.

    How much lower the TCP is than it should be counts as distance too. Farther than `BESIDE` from the target in x and y
    it should be `ABOVE` it; from there the height falls linearly to none at half of `BESIDE`. The straight way, which
    `reach` pays for, leads through what stands between.
    """
    beside = torch.linalg.norm(way[:, :2], dim=-1)
    height = ABOVE * (2 * beside / BESIDE - 1).clamp(0, 1)
    return closeness(torch.linalg.norm(way, dim=-1) + (height + way[:, 2]).clamp(min=0), sharpness)


def still(joint_speed: Tensor, sharpness: float = 2.0) -> Tensor:
    """1 for an arm at rest, towards 0 with the largest joint speed (N,), rad/s."""
    return 1 - torch.tanh(sharpness * joint_speed)


def weigh(
    terms: Mapping[str, Tensor], scales: Mapping[str, float], success: Tensor, fail: Tensor, responding: Tensor
) -> dict[str, Tensor]:
    """The weighted terms of a dense reward; the reward is their sum.

    Before the response phase only ``still`` pays. A success pays `SUCCESS_FACTOR` times the sum of all scales and
    nothing else; after a failure nothing pays.

    Args:
        terms: (N,) each, in [0, 1].
        scales: the weight of each term. Raises ValueError where the names differ.
        success, fail, responding: (N,) bool.

    Returns:
        (N,) float32 each: the terms and ``success``.
    """
    if set(terms) != set(scales):
        raise ValueError(f"reward terms {sorted(terms)} and reward_scales {sorted(scales)} must have the same names")
    weighted = {}
    for name, scale in scales.items():
        pays = ~success & ~fail
        if name != "still":
            pays = pays & responding
        weighted[name] = scale * terms[name].to(torch.float32) * pays
    weighted["success"] = maximum(scales) * success.to(torch.float32)
    return weighted


def maximum(scales: Mapping[str, float]) -> float:
    """The largest dense reward of a step, paid exactly at success."""
    return SUCCESS_FACTOR * sum(scales.values())


def total(weighted: Mapping[str, Tensor]) -> Tensor:
    """Sum of weighted terms, (N,)."""
    return torch.stack(list(weighted.values())).sum(dim=0)
