"""Prefix scans: linear recurrences h_t = a_t h_{t-1} + b_t over all steps at once, with a depth of O(log T).

Blelloch, 1990: neighbours are combined, the scan of the half as many pairs is found the same way, and the rest is filled in.
Products of coefficients are only ever multiplied, never divided by, so that nothing is lost where they become tiny, as they
do over a thousand steps, or 0, as they are where an episode begins.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["LOG_ZERO", "linear_scan", "log_scan"]

Pair = tuple[Tensor, Tensor]

LOG_ZERO = -1e4
"""Stands for the logarithm of 0: its exponential is 0 in float32, and unlike -inf it gives no NaN in a gradient."""


def linear_scan(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    """The states h_t = a_t h_{t-1} + b_t.

    Args:
        a, b: (T, …) float or complex, of shapes that broadcast.
        initial: (…) the state h_{-1} before the first step.

    Returns:
        h (T, …).
    """
    products, sums = _scan(a.expand_as(b), b, lambda p, q: (p[0] * q[0], torch.addcmul(q[1], p[1], q[0])))
    return torch.addcmul(sums, products, initial.expand_as(b[0]))


def log_scan(log_a: Tensor, log_b: Tensor, initial: Tensor) -> Tensor:
    """`linear_scan` of coefficients and inputs above 0 that are given by their logarithms; `LOG_ZERO` stands for 0.

    Args:
        log_a, log_b: (T, …).
        initial: (…) the state before the first step, itself and not its logarithm.
    """
    log_products, log_sums = _scan(log_a, log_b, lambda p, q: (p[0] + q[0], torch.logaddexp(p[1] + q[0], q[1])))
    return torch.addcmul(log_sums.exp(), log_products.exp(), initial.expand_as(log_b[0]))


def _scan(a: Tensor, b: Tensor, combine: Callable[[Pair, Pair], Pair]) -> Pair:
    """All prefixes of (a_t, b_t) under an associative ``combine(earlier, later)``."""
    steps = len(a)
    if steps == 1:
        return a, b
    half = steps // 2
    odd = _scan(*combine((a[0 : 2 * half : 2], b[0 : 2 * half : 2]), (a[1::2], b[1::2])), combine)
    count = (steps - 1) // 2  # of the even steps from 2 on
    even = combine((odd[0][:count], odd[1][:count]), (a[2::2], b[2::2])) if count else (a[:0], b[:0])
    return _interleave(a[:1], even[0], odd[0]), _interleave(b[:1], even[1], odd[1])


def _interleave(first: Tensor, even: Tensor, odd: Tensor) -> Tensor:
    """Steps 0, 2, 4, … from ``first`` and ``even``, steps 1, 3, … from ``odd``."""
    evens = torch.cat([first, even])
    pairs = torch.stack([evens[: len(odd)], odd], dim=1).flatten(0, 1)
    return pairs if len(evens) == len(odd) else torch.cat([pairs, evens[-1:]])
