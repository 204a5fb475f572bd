"""Policies that remember nothing and hold the cue of Rotate and TakeItBack in their grasp.

The cue stays on view until the object moves. So the hand chooses how to grasp the object by what it sees, and later reads
the cue back from where its own tool centre point is. Both use only the present ``objects`` observation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from .arm import Arm
from .policies import Policy
from .rotating import MOST_OFFSET, RotateSkill, fold, yaw_of
from .skill import Skill, View, look

DAMPING = 0.005
"""Of `Arm`: with its own, the hand stays up to 4 mm away from where it is sent."""


class GraspOffset(Policy):
    """Rotate: where along the peg it is grasped, ±7.5 cm, stands for the yaw at the start, ±π/2 rad.

    The peg turns with the hand, so the place in the hand's frame stays what it was.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        super().__init__(skill, seed)
        skill.arm = Arm(skill.device, DAMPING)

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view, skill = look(obs, self._objects), cast(RotateSkill, self.skill)
        yaw = yaw_of(torch.cat([view.position[:, 0], view.quaternion[:, 0]], dim=1))
        skill.offset = fold(yaw) * MOST_OFFSET / (math.pi / 2)
        return skill.act(view, self.cue(view, info), info)

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        skill = cast(RotateSkill, self.skill)
        yaw = yaw_of(torch.cat([view.position[:, 0], view.quaternion[:, 0]], dim=1))
        read = skill.grasped_at(view) * (math.pi / 2) / MOST_OFFSET
        return skill.remaining(view, torch.where(skill.holding(view), read, yaw))
