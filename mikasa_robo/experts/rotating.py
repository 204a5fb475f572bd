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
MOST_OFFSET = 0.075
"""How far from its centre the peg can be grasped safely, m: its half length is 0.12 m."""
OFFSET_ERROR, OFFSET_SKEW = 0.003, 0.05
"""How exactly the hand has to be over its place and turned along the peg before it comes all the way down, if the place
matters, m and rad."""
FUNNEL = 10.0
"""How much higher the hand then stays for each metre that it is away from its place."""


class RotateSkill(Skill):
    """Cue: the angle (N, 1) by which the peg still has to be turned, rad."""

    size = 1
    draws = 1
    posture_policy = "mikasa_robo.experts.grasping:GraspOffset"

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        self.rotate = cast(Rotate, task)
        self.offset: Tensor | None = None
        """(N,) where along the peg it is grasped, m from its centre in the direction of the hand's x axis; None: there."""

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        remaining: Tensor = info["oracle_info"]
        return remaining

    def from_history(self, history: History, u: Tensor) -> Tensor:
        now = history.now
        row = torch.arange(self.num_envs, device=u.device)
        poses = torch.stack([_pose(view) for view in history.views])  # (W, N, 7)
        if self.rotate.replaced:
            in_cue = history.in_cue(self.rotate.timeline.cue)
            shown = poses[in_cue.to(torch.int8).argmax(dim=0), row]
            start = torch.where(in_cue.any(dim=0), yaw_of(shown), math.pi * (u[:, 0] - 0.5))
            return self.remaining(now, start)
        seen = history.visible[..., 0].to(torch.int8).argmax(dim=0)  # hidden in a delay, in which it does not move
        first = poses[seen, row]
        # a single view does not show the start, which is guessed
        start = torch.where(history.valid.sum(dim=0) > 1, yaw_of(first), math.pi * (u[:, 0] - 0.5))
        if len(history.views) > 1:
            started = history.valid.sum(dim=0) == 1  # the first view of an episode shows the start
            start = torch.where(started, yaw_of(first), start)
        return self.remaining(now, start)

    def remaining(self, view: View, start: Tensor) -> Tensor:
        """The cue (N, 1) if the peg had the yaw ``start`` (N,), rad, either way round, when the episode began."""
        assert view.prompt is not None
        turned = fold(yaw_of(_pose(view)) - start)
        if self.rotate.replaced:
            return fold(view.prompt - turned[:, None])
        if not self.rotate.both_ways:  # between -0.3 rad and nearly half a turn
            turned = torch.remainder(turned + 0.3, math.pi) - 0.3
        return view.prompt - turned[:, None]

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        remaining = cue[:, 0]
        pose, tcp, hand = _pose(view), view.tcp, hand_yaw(view)
        # of the two ways to grasp, take the one that turns the wrist less and stays within its range up to the target
        options = yaw_of(pose)[:, None] + math.pi * torch.tensor([-1.0, 0.0, 1.0], device=hand.device)
        outside = _out_of_range(options) | _out_of_range(options + remaining[:, None])
        best = (options.abs() + 10.0 * outside).argmin(dim=1)
        low = (tcp[:, 2] < pose[:, 2] + 0.03) & (self._beside(view) < 0.03)
        # once the fingers surround the peg, the hand's own yaw tells which way it was grasped
        nearest = (options - hand[:, None]).abs().argmin(dim=1)
        grasp = options.gather(1, torch.where(low, nearest, best)[:, None])[:, 0]
        place = pose[:, :2] if self.offset is None else pose[:, :2] + self.offset[:, None] * direction(grasp)
        distance = torch.linalg.norm(place - tcp[:, :2], dim=1)
        skew = (grasp - hand).abs()
        closing, holding = self._closing(view), self.holding(view)
        z = torch.where((distance < 0.012) & (skew < 0.25) | low, GRASP, HOVER)
        if self.offset is not None:  # the lower, the more exactly over its place
            high = (FUNNEL * (distance - OFFSET_ERROR) + skew - OFFSET_SKEW).clamp(0, HOVER - GRASP)
            z = torch.where(closing, GRASP, GRASP + high)
        if self.rotate.replaced:
            # near a quarter of a turn either way leads to the goal: the one that the wrist can go
            turns = remaining[:, None] + math.pi * torch.tensor([0.0, -1.0, 1.0], device=hand.device)
            way = (turns.abs() + 10.0 * _out_of_range(hand[:, None] + turns)).argmin(dim=1, keepdim=True)
            remaining = turns.gather(1, way)[:, 0]
        turn = remaining.clamp(-0.3, 0.3)
        held = tcp[:, :2] if self.offset is None else pose[:, :2] + _rotated(tcp[:, :2] - pose[:, :2], turn)
        goal = torch.cat([torch.where(holding[:, None], held, place), z[:, None]], dim=1)
        wanted = torch.where(holding, hand + turn, grasp)
        gripper = torch.where(closing, -1.0, 1.0)
        action = self.arm.act(view.joints, goal, facing_down(wanted), gripper)
        done = (remaining.abs() < 0.04) & holding
        rest = torch.zeros_like(action)
        rest[:, -1] = -1
        action = torch.where(done[:, None], rest, action)
        return torch.where(view.visible[:, :1], action, self.wait(view, WAITING))

    def holding(self, view: View) -> Tensor:
        """(N,) bool: the fingers are closed on the peg."""
        return self._closing(view) & (view.fingers < HALF_WIDTH + 0.002)

    def grasped_at(self, view: View) -> Tensor:
        """(N,) how far the hand is along the peg from its centre, m, in the direction of the hand's x axis."""
        off = view.tcp[:, :2] - view.position[:, 0, :2]
        return (off * direction(hand_yaw(view))).sum(dim=1)

    def _closing(self, view: View) -> Tensor:
        low = (view.tcp[:, 2] < view.position[:, 0, 2] + 0.012) & (self._beside(view) < 0.03)
        return low & view.visible[:, 0]

    def _beside(self, view: View) -> Tensor:
        """(N,) distance of the hand from where it may grasp the peg, seen from above, m."""
        off = view.tcp[:, :2] - view.position[:, 0, :2]
        if self.offset is None:
            return torch.linalg.norm(off, dim=1)
        along = direction(yaw_of(_pose(view)))
        part = (off * along).sum(dim=1).clamp(-MOST_OFFSET, MOST_OFFSET)
        return torch.linalg.norm(off - part[:, None] * along, dim=1)


def direction(yaw: Tensor) -> Tensor:
    """(N, 2) of length 1."""
    return torch.stack([yaw.cos(), yaw.sin()], dim=1)


def _rotated(vector: Tensor, angle: Tensor) -> Tensor:
    """``vector`` (N, 2) turned by ``angle`` (N,), rad."""
    x, y = vector.unbind(dim=1)
    return torch.stack([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], dim=1)


def _out_of_range(yaw: Tensor) -> Tensor:
    """Whether the last joint cannot turn the gripper to ``yaw``, rad."""
    return (yaw < YAW_RANGE[0]) | (yaw > YAW_RANGE[1])


def fold(angle: Tensor) -> Tensor:
    """Wrap an angle to [-pi/2, pi/2): the yaw of an object whose two ends look alike."""
    return torch.remainder(angle + math.pi / 2, math.pi) - math.pi / 2


def yaw_of(pose: Tensor) -> Tensor:
    """(N,) rad, the direction of the long side of a peg at ``pose`` (N, 7), seen from above."""
    return heading(pose[:, 3:]).to(torch.float32)


def _pose(view: View) -> Tensor:
    return torch.cat([view.position[:, 0], view.quaternion[:, 0]], dim=1)


def hand_yaw(view: View) -> Tensor:
    """(N,) rad, turn of the gripper about the vertical, in the range of the last joint."""
    w, x, y, z = view.joints[:, -4:].unbind(-1)
    yaw = torch.atan2(2 * (x * y + w * z), w * w + x * x - y * y - z * z)
    middle = sum(YAW_RANGE) / 2
    return torch.remainder(yaw - middle + math.pi, 2 * math.pi) - math.pi + middle
