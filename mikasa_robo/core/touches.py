"""The ledger of touches and mistakes: pure functions over (N, K) tensors of N environments and K objects."""

from __future__ import annotations

import torch
from torch import Tensor

HOLD_STEPS = 2
"""A touch counts once it has been held for 0.1 s: 2 control steps in a row at 20 Hz."""


def hold_touches(held: Tensor, touching: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """How long each object has been touched without a break, and which touches begin to count now.

    A touch that counted is over once the object has been let go for 2 control steps in a row: a hand that leaves an
    object slides along it, and a force that is gone for a single step does not make one touch into two.

    Args:
        held: (N, K) int64, control steps held so far; -1 in the first step without contact after a touch that counted.
        touching: (N, K) bool, contact in this step.
        active: (N,) bool, whether touches count in this step (the response phase); elsewhere they never do.

    Returns:
        ``held`` after this step, at most `HOLD_STEPS`, and (N, K) bool: touches that have just been held for
        `HOLD_STEPS`. Each is reported once; to be reported again the object has to be let go and touched anew.
    """
    touching = touching & active[:, None]
    before = held
    more = torch.where(before < 0, torch.full_like(held, HOLD_STEPS), (before + 1).clamp(max=HOLD_STEPS))
    less = torch.where(before == HOLD_STEPS, torch.full_like(held, -1), torch.zeros_like(held))
    held = torch.where(touching, more, less)
    return held, (held == HOLD_STEPS) & (before == HOLD_STEPS - 1)


def record_touches(new: Tensor, counted: Tensor, wanted: Tensor, rank: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Enters new touches and tells who made a mistake.

    A touch is a mistake on an object that is not wanted, on one that was counted already (while others are missing), or
    out of order. Once everything wanted has been touched, touching it again harms nobody.

    Args:
        new: (N, K) bool, touches that begin to count in this step.
        counted: (N, K) bool, wanted objects touched earlier.
        wanted: (N, K) bool.
        rank: (N, K) int64, place of each wanted object in the required order, from 0; None where the order is free.

    Returns:
        ``counted`` after this step and (N,) bool: a mistake was made in this step.
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
