"""RotateLenient and RotateStrict: grasp the peg at its centre and turn it with the wrist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.tasks.rotate import HALF_WIDTH, Rotate, heading

from .arm import facing_down
from .skill import WAITING, History, Skill, View

YAW_RANGE = (-2.0, 3.5)
"""Turn of the gripper about the vertical that the last joint allows, rad."""
HOVER = 0.12
GRASP = 0.02
"""z of the fingertips, m."""


class RotateSkill(Skill):
    """Cue: the angle (N, 1) by which the peg still has to be turned, rad."""

    size = 1
    draws = 1

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        self._both_ways = cast(Rotate, task).both_ways

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        remaining: Tensor = info["oracle_info"]
        return remaining

    def from_history(self, history: History, u: Tensor) -> Tensor:
        now = history.now
        assert now.prompt is not None
        row = torch.arange(self.num_envs, device=u.device)
        seen = (
            history.visible[..., 0].to(torch.int8).argmax(dim=0)
        )  # during a delay the peg is hidden and does not move
        first = torch.stack([_pose(view) for view in history.views])[seen, row]
        # a single view does not show the start, which is guessed
        start = torch.where(history.valid.sum(dim=0) > 1, yaw_of(first), math.pi * (u[:, 0] - 0.5))
        if len(history.views) > 1:
            started = history.valid.sum(dim=0) == 1  # the first view of an episode shows the start
            start = torch.where(started, yaw_of(first), start)
        turned = fold(yaw_of(_pose(now)) - start)
        if not self._both_ways:  # between -0.3 rad and nearly half a turn
            turned = torch.remainder(turned + 0.3, math.pi) - 0.3
        return now.prompt - turned[:, None]

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        remaining = cue[:, 0]
        pose, tcp = _pose(view), view.tcp
        place, yaw = pose[:, :3], yaw_of(pose)
        distance = torch.linalg.norm(place[:, :2] - tcp[:, :2], dim=1)
        # of the two ways to grasp, take the one that turns the wrist less and stays within its range up to the target
        options = yaw[:, None] + math.pi * torch.tensor([-1.0, 0.0, 1.0], device=yaw.device)
        end = options + remaining[:, None]
        outside = (options < YAW_RANGE[0]) | (options > YAW_RANGE[1]) | (end < YAW_RANGE[0]) | (end > YAW_RANGE[1])
        best = (options.abs() + 10.0 * outside).argmin(dim=1)
        low = (tcp[:, 2] < place[:, 2] + 0.03) & (distance < 0.03)
        # once the fingers surround the peg, the hand's own yaw tells which way it was grasped
        hand = _hand_yaw(view)
        nearest = (options - hand[:, None]).abs().argmin(dim=1)
        grasp = options.gather(1, torch.where(low, nearest, best)[:, None])[:, 0]
        aligned = (grasp - hand).abs() < 0.25
        over = (distance < 0.012) & aligned
        closing = low & (tcp[:, 2] < place[:, 2] + 0.012)
        holding = closing & (view.fingers < HALF_WIDTH + 0.002)
        z = torch.where(over | low, torch.full_like(distance, GRASP), torch.full_like(distance, HOVER))
        goal = torch.cat([place[:, :2], z[:, None]], dim=1)
        goal = torch.where(holding[:, None], torch.cat([tcp[:, :2], z[:, None]], dim=1), goal)
        wanted = torch.where(holding, hand + remaining.clamp(-0.3, 0.3), grasp)
        gripper = torch.where(closing, -1.0, 1.0)
        action = self.arm.act(view.joints, goal, facing_down(wanted), gripper)
        done = (remaining.abs() < 0.04) & holding
        rest = torch.zeros_like(action)
        rest[:, -1] = -1
        action = torch.where(done[:, None], rest, action)
        return torch.where(view.visible[:, :1], action, self.wait(view, WAITING))


def fold(angle: Tensor) -> Tensor:
    """Wrap an angle to [-pi/2, pi/2): the yaw of an object whose two ends look alike."""
    return torch.remainder(angle + math.pi / 2, math.pi) - math.pi / 2


def yaw_of(pose: Tensor) -> Tensor:
    """(N,) rad, the direction of the long side of a peg at ``pose`` (N, 7), seen from above."""
    return heading(pose[:, 3:]).to(torch.float32)


def _pose(view: View) -> Tensor:
    return torch.cat([view.position[:, 0], view.quaternion[:, 0]], dim=1)


def _hand_yaw(view: View) -> Tensor:
    """(N,) rad, turn of the gripper about the vertical, in the range of the last joint."""
    w, x, y, z = view.joints[:, -4:].unbind(-1)
    yaw = torch.atan2(2 * (x * y + w * z), w * w + x * x - y * y - z * z)
    middle = sum(YAW_RANGE) / 2
    return torch.remainder(yaw - middle + math.pi, 2 * math.pi) - math.pi + middle
