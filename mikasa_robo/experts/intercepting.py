"""Intercept and InterceptGrab: the gripper blocks the ball's path, opens over the ball, closes and carries it away.

The ball's path follows from its position and its velocity, which is what has to be remembered. The gripper waits at the
first of a row of places along the path that the arm reaches before the ball does. It is turned so that it opens across
the path and is closed to less than the ball's width, so that the ball stops in the groove between the fingertips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mikasa_robo.core.env import ARM_JOINTS, MemoryEnv
from mikasa_robo.core.sampling import between
from mikasa_robo.tasks.intercept import Intercept
from mikasa_robo.tasks.rolling_ball import DAMPING, DRIFT, RollingBallTask

from .arm import REACHED, STEP_LIMIT, facing_down
from .skill import History, Skill, View

BLOCK, ENTER, CLOSE, CARRY = range(4)
GAP = 0.014
"""Distance of each finger from closed while the gripper blocks, m."""
TIP = 0.022
"""Distance from the tool centre point to the centre of a ball at the fingertips, m."""
LOW = 0.020
"""z of the tool centre point at the ball, m."""
JOINT_SPEED = 0.75
"""Sustained speed of a joint, rad/s."""
DELAY = 0.3
"""Time to accelerate and to come to rest, s."""
PLACES = torch.arange(-0.45, 0.46, 0.05)
"""Places at which the hand may wait, y in m."""
STOPPED, NEAR_STEPS = 0.06, 4
"""A ball has stopped once it was closer than this to the TCP, m, for more than this many steps."""
HELD = 0.0215
"""Fingers that are closed further than this hold the ball, m."""


class InterceptSkill(Skill):
    """Cue: velocity (N, 2) with which the ball rolls, x and y, m/s."""

    size = 2
    draws = 2

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        self._speeds = cast(RollingBallTask[Any], task).speed_range
        self._lifts = not isinstance(task, Intercept)
        n, device = task.num_envs, task.device
        self._age = torch.zeros(n, dtype=torch.int64, device=device)
        self._stage = torch.zeros_like(self._age)
        self._since = torch.zeros_like(self._age)
        self._near = torch.zeros_like(self._age)
        self._posture = torch.zeros(n, ARM_JOINTS, device=device)
        self._yaw = torch.zeros(n, device=device)

    def reset(self, env_idx: Tensor) -> None:
        self._age[env_idx] = self._since[env_idx] = self._near[env_idx] = 0
        self._stage[env_idx] = BLOCK

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        velocity: Tensor = info["oracle_info"][:, :2]
        return velocity

    def from_history(self, history: History, u: Tensor) -> Tensor:
        row = torch.arange(self.num_envs, device=u.device)
        ball = history.position[:, :, 0, :2]  # (W, N, 2)
        moved = ball[-1] - ball[history.oldest, row]
        seconds = (history.valid.sum(dim=0) - 1) / self.task.control_freq
        measured = moved * DAMPING / (1 - torch.exp(-DAMPING * seconds))[:, None].clamp(min=1e-9)
        guessed = torch.stack([between(u[:, 0], *DRIFT), between(u[:, 1], *self._speeds)], dim=1)
        return torch.where((seconds > 0)[:, None], measured, guessed)

    def _plan(self, view: View, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Joint angles (N, 7) and the hand's yaw (N,) with which to wait for the ball."""
        n, count = self.num_envs, len(PLACES)
        places = PLACES.to(self.device)
        ball, q0 = view.position[:, 0], view.joints[:, :ARM_JOINTS]
        vx, vy = velocity[:, :1], velocity[:, 1:].clamp(min=0.05)
        way = places - TIP - ball[:, 1:2]  # (N, G)
        arrival = -torch.log((1 - way * DAMPING / vy).clamp(min=1e-6)) / DAMPING
        x = ball[:, :1] + vx / vy * way
        place = torch.stack([x, places.expand(n, -1), torch.full_like(x, LOW)], dim=-1).reshape(-1, 3)
        postures, slacks = [], []
        for sign in (1.0, -1.0):
            yaw = torch.full((n * count,), sign * math.pi / 2, device=self.device)
            q, error = self.arm.solve(place, yaw)
            turn = (q.reshape(n, count, -1) - q0[:, None]).abs().amax(dim=-1)
            wrong = (error > 0.005) | (q[:, -1].abs() > 2.8)
            slack = arrival - turn / JOINT_SPEED - DELAY
            slacks.append(torch.where(wrong.reshape(n, count) | (way < 0), -10.0, slack))
            postures.append(q.reshape(n, count, -1))
        slack = torch.cat(slacks, dim=1)  # (N, 2G)
        # the earliest place that is reached in time, or else the one that is missed by the least
        best = torch.where(slack > 0, arrival.repeat(1, 2), 100 - slack).argmin(dim=1)
        row = torch.arange(n, device=self.device)
        yaw = torch.where(best < count, 1.0, -1.0) * math.pi / 2
        return torch.cat(postures, dim=1)[row, best], yaw

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        self._age += 1
        fresh = self._age == 2  # two views are needed to measure a velocity
        if bool(fresh.any()):
            posture, yaw = self._plan(view, cue)
            self._posture = torch.where(fresh[:, None], posture, self._posture)
            self._yaw = torch.where(fresh, yaw, self._yaw)
        ball, tcp, q = view.position[:, 0], view.tcp, view.joints[:, :ARM_JOINTS]
        off = ball[:, :2] - tcp[:, :2]
        apart = torch.linalg.norm(off, dim=1)
        self._since += 1
        # a ball that stays close to the TCP has stopped
        self._near = torch.where(apart < STOPPED, self._near + 1, torch.zeros_like(self._near))
        self._enter((self._stage == BLOCK) & (self._near > NEAR_STEPS) & (self._age > 2), ENTER)
        self._enter((self._stage == ENTER) & (off[:, 1].abs() < 0.006) & (off[:, 0].abs() < 0.025), CLOSE)
        self._enter((self._stage == CLOSE) & (self._since > 3) & (view.fingers < HELD), CARRY)
        self._enter((self._stage >= CLOSE) & (apart > 0.03), ENTER)

        carrying = (self._stage == CARRY)[:, None]
        over = torch.cat([ball[:, :2], torch.full_like(ball[:, :1], LOW)], dim=1)
        target = torch.where(carrying, self._carry(view), over)
        gripper = torch.where(self._stage >= CLOSE, -1.0, 1.0)
        action = self.arm.act(view.joints, target, facing_down(self._yaw), gripper)
        # each joint by itself, as fast as possible
        move = ((self._posture - q) / (REACHED * STEP_LIMIT)).clamp(-1, 1) * (self._age > 1)[:, None]
        move = torch.cat([move, torch.full_like(move[:, :1], (GAP + 0.01) / 0.025 - 1)], dim=1)
        return torch.where((self._stage == BLOCK)[:, None], move, action)

    def _enter(self, rows: Tensor, stage: int) -> None:
        self._stage = torch.where(rows, stage, self._stage)
        self._since = torch.where(rows, 0, self._since)

    def _carry(self, view: View) -> Tensor:
        """(N, 3) where to carry the ball: up, or along the table to the nearest point well inside the disc."""
        if self._lifts:
            return torch.cat([view.tcp[:, :2], torch.full_like(view.tcp[:, :1], LOW + 0.05)], dim=1)
        to_goal = view.position[:, 1, :2] - view.position[:, 0, :2]
        way = torch.linalg.norm(to_goal, dim=1, keepdim=True).clamp(min=1e-6)
        inward = view.tcp[:, :2] + to_goal / way * (way - 0.06).clamp(min=0)
        return torch.cat([inward, torch.full_like(way, LOW)], dim=1)
