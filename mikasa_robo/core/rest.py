"""When an object counts as lying on the table, at rest and set down: pure functions of (N,) tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from mikasa_robo.tensors import length

REST_SPEED = 0.05
"""An object whose centre moves slower than this over a control step is at rest, m/s."""
LYING_TOLERANCE = 0.01
"""An object whose centre is this close to the height at which it lies is on the table, m."""
REST_STEPS = 2
"""An object is set down once it has been at rest for 0.1 s, as long as a touch has to be held: 2 control steps in a row
at 20 Hz."""


def at_rest(speed: Tensor) -> Tensor:
    """(…) bool: an object with the speed ``speed`` (…), m/s, is at rest."""
    return speed < REST_SPEED


def lying(z: Tensor, height: float) -> Tensor:
    """(N,) bool: an object with its centre at ``z`` (N,) is on the table, where it lies at ``height``, both in m."""
    return (z - height).abs() < LYING_TOLERANCE


def distance_to_area(position: Tensor, centre: Tensor, radius: float, height: float) -> Tensor:
    """How far an object is from lying in a disc on the table.

    Args:
        position: (N, 3) centre of the object, m.
        centre: (N, 2) x and y of the disc's centre, m.
        radius: of the disc, m.
        height: z of the object's centre when it lies on the table, m.

    Returns:
        (N,) m; 0 where the object lies in the disc.
    """
    across = (length(position[:, :2] - centre) - radius).clamp(min=0)
    above = ((position[:, 2] - height).abs() - LYING_TOLERANCE).clamp(min=0)
    return length(torch.stack([across, above], dim=-1))


def count_rest(rested: Tensor, rests: Tensor) -> Tensor:
    """The rest counter after a control step.

    Args:
        rested: (N,) int64, control steps in a row at rest before this step.
        rests: (N,) bool, at rest in this step.

    Returns:
        (N,) int64, at most `REST_STEPS`; 0 where the rest was interrupted.
    """
    return torch.where(rests, (rested + 1).clamp(max=REST_STEPS), torch.zeros_like(rested))


def set_down(rested: Tensor) -> Tensor:
    """(N,) bool: the rest counter ``rested`` (N,) has reached `REST_STEPS`."""
    return rested >= REST_STEPS
