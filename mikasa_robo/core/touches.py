"""Which touches count and which are mistakes: pure functions of (N, K) tensors for N environments and K objects."""

from __future__ import annotations

import torch
from torch import Tensor

HOLD_STEPS = 2
"""A touch counts once it has been held for 0.1 s: 2 control steps in a row at 20 Hz."""


def hold_touches(held: Tensor, touching: Tensor, active: Tensor, sums: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Counts for how long each object has been touched, and finds the touches that count from now on.

    A touch counts once it has been held for `HOLD_STEPS`. It then ends after 2 control steps in a row without contact. A
    single step without contact does not end it, because a hand that leaves an object slides along it.

    A shorter touch is a tap. Taps of objects in ``sums`` add up: such a touch counts after `HOLD_STEPS` of contact in total.

    Args:
        held: (N, K) int64, control steps held so far; -1 in the first step without contact after a touch that counted.
        touching: (N, K) bool, contact in this step.
        active: (N,) bool, whether touches count in this step, that is in the response phase.
        sums: (N, K) bool, objects whose taps add up; None: no object's.

    Returns:
        ``held`` after this step, at most `HOLD_STEPS`, and (N, K) bool: touches that reached `HOLD_STEPS` in this step.
        Each touch is reported once. An object is reported again after it has been released and touched anew.
    """
    touching = touching & active[:, None]
    before = held
    more = torch.where(before < 0, torch.full_like(held, HOLD_STEPS), (before + 1).clamp(max=HOLD_STEPS))
    less = torch.where(before == HOLD_STEPS, torch.full_like(held, -1), torch.zeros_like(held))
    if sums is not None:
        less = torch.where(sums & (before < HOLD_STEPS), before.clamp(min=0), less)
    held = torch.where(touching, more, less)
    return held, (held == HOLD_STEPS) & (before == HOLD_STEPS - 1)


def record_touches(new: Tensor, counted: Tensor, wanted: Tensor, rank: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Records new touches and finds mistakes.

    A touch is a mistake if the object is not wanted, if it was counted already while others are still missing, or if it
    comes out of order. Once all wanted objects have been touched, touching them again is no mistake.

    Args:
        new: (N, K) bool, touches that count from this step on.
        counted: (N, K) bool, wanted objects touched earlier.
        wanted: (N, K) bool.
        rank: (N, K) int64, place of each wanted object in the required order, from 0; None where the order is free.

    Returns:
        ``counted`` after this step, and (N,) bool: there was a mistake in this step.
    """
    complete = (counted | ~wanted).all(dim=1, keepdim=True)
    mistake = (new & ~wanted) | (new & counted & ~complete)
    right = new & wanted
    if rank is not None:
        expected = counted.sum(dim=1, keepdim=True)
        out_of_order = right & ~counted & (rank != expected)
        mistake |= out_of_order
        right &= ~out_of_order
    return counted | right, mistake.any(dim=1)
