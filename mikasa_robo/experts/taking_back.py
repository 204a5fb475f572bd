"""TakeItBack: grasp the cube, drag it to the goal and drag it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.tasks.take_it_back import LANES, TakeItBack

from .arm import quaternion_product
from .skill import WAITING, History, Skill, View

CUBE, RED, MAGENTA = range(3)
ABOVE, DOWN, CLOSE, DRAG = range(4)
LEAN = math.radians(30)
"""How far the hand leans forward: an upright hand reaches x = 0.165 m only."""
HEIGHT = 0.09
"""Height of the hand above the cube before it comes down, m."""
LOW = 0.022
"""z of the tool centre point while the hand drags the cube, m."""
DRAG_STEP = 0.035
"""Distance of the hand to its goal while it drags, m: slow enough for the cube to stay in the hand."""
YAW_ERROR = 0.03
"""How exactly the hand is turned before it comes down, if its yaw matters, rad."""
RESTING = 0.07
"""Joints that are slower than this, rad/s, move a cube at arm's length, 0.7 m, slower than 0.05 m/s: it is at rest."""


class TakeItBackSkill(Skill):
    """Cue: where the cube started, x and y (N, 2), m."""

    size = 2
    draws = 1
    candidates = 2 * len(LANES)
    posture_policy = "mikasa_robo.experts.grasping:GraspYaw"

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        self.take_it_back = cast(TakeItBack, task)
        self.yaw: Tensor | None = None
        """(N,) turn of the hand about the vertical with which it grasps and holds the cube, rad; None: 0."""
        self._stage = torch.zeros(task.num_envs, dtype=torch.int64, device=task.device)
        self._since = torch.zeros_like(self._stage)
        self._stops = torch.tensor([(x, y) for y in LANES for x in (0.025, -0.025)], device=task.device)

    def reset(self, env_idx: Tensor) -> None:
        self._stage[env_idx] = self._since[env_idx] = 0

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        start: Tensor = info["oracle_info"][:, :2]
        return start

    def from_history(self, history: History, u: Tensor) -> Tensor:
        row = torch.arange(self.num_envs, device=u.device)
        seen = history.visible[..., RED]  # (W, N); the oldest view before the goal was reached may show the start
        if self.take_it_back.replaced:
            seen = history.in_cue(self.take_it_back.timeline.cue)
        first = history.position[seen.to(torch.int8).argmax(dim=0), row, CUBE, :2]
        guessed = self._stops[(u[:, 0] * len(self._stops)).to(torch.int64)]
        return torch.where(seen.any(dim=0)[:, None], first, guessed)

    def attempt(self, number: Tensor) -> Tensor:
        return self._stops[number]

    def tried(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        there = torch.linalg.norm(view.position[:, CUBE, :2] - cue, dim=1) < 0.01
        # a cube counts as set down when it is at rest, not when the hand carries it past
        return view.visible[:, MAGENTA] & there & (view.joint_speed < RESTING)

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        cube, tcp = view.position[:, CUBE], view.tcp
        off = cube - tcp
        across, apart = torch.linalg.norm(off[:, :2], dim=1), torch.linalg.norm(off, dim=1)
        self._since += 1
        self._enter((self._stage >= CLOSE) & (apart > 0.04), ABOVE)
        turned = across < 0.01
        if self.yaw is not None:
            turned = turned & ((self.hand_yaw(view) - self.yaw).abs() < YAW_ERROR)
        self._enter((self._stage == ABOVE) & turned, DOWN)
        self._enter((self._stage == DOWN) & (apart < 0.01), CLOSE)
        self._enter((self._stage == CLOSE) & (self._since > 4), DRAG)

        goal = torch.where(view.visible[:, RED, None], view.position[:, RED, :2], view.position[:, MAGENTA, :2])
        aim = torch.where(view.visible[:, MAGENTA, None], cue, goal)
        to_aim = aim - cube[:, :2]
        length = torch.linalg.norm(to_aim, dim=1, keepdim=True).clamp(min=1e-9)
        drag = tcp[:, :2] + to_aim * (length.clamp(max=DRAG_STEP) / length)
        dragging = (self._stage == DRAG)[:, None]
        xy = torch.where(dragging, drag, cube[:, :2])
        xy = torch.where((self._stage == CLOSE)[:, None], tcp[:, :2], xy)
        z = torch.where(self._stage == ABOVE, cube[:, 2] + HEIGHT, torch.full_like(cube[:, 2], LOW))
        gripper = torch.where(self._stage >= CLOSE, -1.0, 1.0)
        action = self.arm.act(view.joints, torch.cat([xy, z[:, None]], dim=1), self._leaning(), gripper)
        hidden = ~view.visible[:, CUBE]
        self._enter(hidden, ABOVE)
        return torch.where(hidden[:, None], self.wait(view, WAITING), action)

    def _enter(self, rows: Tensor, stage: int) -> None:
        self._stage = torch.where(rows, stage, self._stage)
        self._since = torch.where(rows, 0, self._since)

    def carrying(self) -> Tensor:
        """(N,) bool: the fingers close on the cube, or have it between them."""
        return self._stage >= CLOSE

    def hand_yaw(self, view: View) -> Tensor:
        """(N,) turn of the hand about the vertical, rad: that of its y axis, along which the fingers open."""
        w, x, y, z = view.joints[:, -4:].unbind(-1)
        # of a hand that points down, the y axis points to -y of the world
        return torch.atan2(2 * (x * y - w * z), 2 * (x**2 + z**2) - 1)

    def _leaning(self) -> Tensor:
        """(N, 4) wxyz of a hand that points down, by `LEAN` forward, and is turned by `yaw`."""
        lean = torch.tensor([math.cos(LEAN / 2), 0.0, -math.sin(LEAN / 2), 0.0], device=self.device)
        down = torch.tensor([0.0, 1.0, 0.0, 0.0], device=self.device)
        leaning = quaternion_product(lean, down).expand(self.num_envs, 4)
        if self.yaw is None:
            return leaning
        half, zero = self.yaw / 2, torch.zeros_like(self.yaw)
        return quaternion_product(torch.stack([half.cos(), zero, zero, half.sin()], dim=1), leaning)
