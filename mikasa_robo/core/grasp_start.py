"""Arm postures in which the hand holds an object that lies on the table, for episodes that begin so."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mikasa_robo import tensors

from .sampling import ROBOT_BASE_X

__all__ = ["grasp_posture"]

SHOULDER_HEIGHT = 0.333
UPPER_ARM, FOREARM, ELBOW = 0.316, 0.384, 0.0825
WRIST = 0.088
HAND = 0.107 + 0.1034
"""Lengths of the Panda, m: the shoulder above the base; along and across the two arms; across the wrist; the flange and the
TCP below it."""
LIMIT = 0.0001
"""m by which a point may be out of reach through rounding."""


def grasp_posture(point: Tensor, yaw: Tensor, width: float, middle: float) -> Tensor:
    """Joint positions with the TCP at a point, the hand upright and the fingers closed on an object.

    Args:
        point: (b, 3) of the TCP, m. An upright hand on the table reaches 0.75 m from the base.
        yaw: (b,) of the hand's x axis, across which the fingers open, rad; the opposite direction will do as well.
        width: of the object between the fingers, m, at most 0.08.
        middle: the last joint's position is within π/2 rad of it.

    Returns:
        (b, 9) float32: seven joints, rad, and two fingers, m.

    Raises:
        ValueError: a point is out of reach.
    """
    robot = tensors.constant((ROBOT_BASE_X, 0.0, 0.0), point.dtype, point.device)
    x, y, z = (point.to(torch.float64) - robot.to(torch.float64)).unbind(1)
    base = torch.atan2(y, x)
    # Joints 2, 4 and 6 turn about parallel axes: two links from the shoulder to the wrist.
    across, up = (x.square() + y.square()).sqrt() - WRIST, z + HAND - SHOULDER_HEIGHT
    upper, fore = math.hypot(UPPER_ARM, ELBOW), math.hypot(FOREARM, ELBOW)
    distance = (across.square() + up.square()).sqrt()
    far, message = (distance > upper + fore + LIMIT).any(), "the hand cannot reach an object that far away"
    if tensors.reads_wait(point.device):
        torch._assert_async(~far, message)  # the GPU checks it, and the host does not wait for the answer
    elif far:
        raise ValueError(message)
    distance = distance.clamp(max=upper + fore)
    at_shoulder = ((upper**2 + distance.square() - fore**2) / (2 * upper * distance)).clamp(-1, 1).acos()
    to_elbow = torch.atan2(across, up) - at_shoulder  # from the vertical, the elbow above
    to_wrist = torch.atan2(across - upper * to_elbow.sin(), up - upper * to_elbow.cos())
    shoulder = to_elbow - math.atan2(ELBOW, UPPER_ARM)
    forearm = to_wrist + math.atan2(ELBOW, FOREARM)  # which for an upright hand is the position of joint 6, too
    turn = math.pi / 4 + base - yaw.to(torch.float64) - middle
    last = middle + torch.remainder(turn + math.pi / 2, math.pi) - math.pi / 2
    zero, finger = torch.zeros_like(base), torch.full_like(base, width / 2)
    joints = base, shoulder, zero, shoulder - forearm, zero, forearm, last, finger, finger
    return torch.stack(joints, dim=1).to(torch.float32)
