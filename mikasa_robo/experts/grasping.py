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

from mikasa_robo.tasks.take_it_back import LANES, START_X

from .arm import Arm
from .policies import Policy
from .rotating import MOST_OFFSET, RotateSkill, fold, yaw_of
from .skill import Skill, View, look
from .taking_back import CUBE, TakeItBackSkill

DAMPING = 0.005
"""Of `Arm`: with its own, the hand stays up to 4 mm away from where it is sent."""

CELLS = 4
"""How many ranges of x `GraspYaw` tells apart in each of the three lanes: the middle of each is within 0.024 m of any start
in it, and so in the region."""
YAW_STEP = 0.1
"""Difference of two yaws of the hand that stand for different starts, rad."""


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


class GraspYaw(Policy):
    """TakeItBack: the yaw with which the hand grasps the cube, one of 12, stands for where the cube started."""

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view, skill = look(obs, self._objects), cast(TakeItBackSkill, self.skill)
        number = self._number(view)
        skill.yaw = (number - (CELLS * len(LANES) - 1) / 2) * YAW_STEP
        return skill.act(view, self._place(number), info)

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        return self._place(self._number(view))

    def _number(self, view: View) -> Tensor:
        """(N,) number of the cell in which the cube lies or, once the hand has it, that the hand's yaw stands for."""
        skill = cast(TakeItBackSkill, self.skill)
        cube = view.position[:, CUBE]
        low, high = START_X
        column = ((cube[:, 0] - low) / (high - low) * CELLS).floor().clamp(0, CELLS - 1)
        lane = (cube[:, 1, None] - torch.tensor(LANES, device=cube.device)).abs().argmin(dim=1)
        read = (skill.hand_yaw(view) / YAW_STEP + (CELLS * len(LANES) - 1) / 2).round().clamp(0, CELLS * len(LANES) - 1)
        return torch.where(skill.carrying(), read, lane * CELLS + column)

    def _place(self, number: Tensor) -> Tensor:
        """(N, 2) the middle of the cell ``number`` (N,), m."""
        low, high = START_X
        column = torch.remainder(number, CELLS)
        lane = torch.tensor(LANES, device=number.device)[(number / CELLS).to(torch.int64)]
        return torch.stack([low + (column + 0.5) * (high - low) / CELLS, lane], dim=1)
