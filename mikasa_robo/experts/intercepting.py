"""Intercept and InterceptGrab: the gripper blocks the ball's path, opens over the ball, closes and carries it away.

The ball's path follows from its position and its velocity, which is what has to be remembered. Where the ball is hidden on
its way, a memory also has to hold where it rolled, and so the cue does. The gripper waits at the
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
from mikasa_robo.tasks.rolling_ball import DAMPING, RollingBallTask

from .arm import REACHED, STEP_LIMIT, facing_down
from .skill import History, Skill, View

BLOCK, ENTER, CLOSE, CARRY = range(4)
GAP = 0.014
"""Distance of each finger from closed while the gripper blocks, m."""
BLOCKING = (GAP + 0.01) / 0.025 - 1
"""The gripper's action that keeps the fingers at `GAP`."""
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
REPLAN = 5
"""The hand looks for another place to wait at most every so many steps."""
CHANGED = 0.02
"""The hand looks for another place to wait once the cue differs by more than this from that of the plan, m or m/s."""
STOPPED, NEAR_STEPS = 0.06, 4
"""A ball has stopped once it was closer than this to the TCP, m, for more than this many steps."""
HELD = 0.0215
"""Fingers that are closed further than this hold the ball, m."""


def rolled(seconds: Tensor) -> Tensor:
    """How far a ball has rolled after ``seconds``, as a multiple of its velocity at the start, s."""
    return (1 - torch.exp(-DAMPING * seconds)) / DAMPING


class InterceptSkill(Skill):
    """Cue: velocity (N, 2) of the ball, x and y, m/s; with ``blank_steps`` also where it was at t = 0, (N, 4) in all.

    A ball that is always on view need not be remembered itself: the hand is sent to its place once two views have shown
    the velocity. For a ball that is hidden the place is chosen anew whenever the cue says something else, so that the skill
    holds no more than its policy remembers. Both come from the two oldest views that show the ball (`from_history`), or the
    velocity from the oracle and the position from the views before the blank (`from_oracle`), which the skill keeps.
    """

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        ball = cast(RollingBallTask[Any], task)
        self._ranges = ball.roll_ranges
        self._hidden = ball.blank_steps > 0
        self.size = self.draws = 4 if self._hidden else 2
        self._lifts = not isinstance(task, Intercept)
        n, device = task.num_envs, task.device
        self._age = torch.zeros(n, dtype=torch.int64, device=device)
        self._stage = torch.zeros_like(self._age)
        self._since = torch.zeros_like(self._age)
        self._near = torch.zeros_like(self._age)
        self._posture = torch.zeros(n, ARM_JOINTS, device=device)
        self._yaw = torch.zeros(n, device=device)
        self._planned = torch.zeros(n, self.size, device=device)
        self._arrival = torch.zeros(n, device=device)
        self._start = torch.zeros(n, 2, device=device)

    def reset(self, env_idx: Tensor) -> None:
        self._age[env_idx] = self._since[env_idx] = self._near[env_idx] = 0
        self._stage[env_idx] = BLOCK

    def _guess(self, u: Tensor) -> Tensor:
        """(N, size) a velocity of the mode's, and where the ball may have started."""
        return torch.stack([between(u[:, k], *self._ranges[k]) for k in range(self.size)], dim=1)

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        velocity: Tensor = info["oracle_info"][:, :2]
        if not self._hidden:
            return velocity
        self._start = torch.where((self._age == 0)[:, None], view.position[:, 0, :2], self._start)
        return torch.cat([velocity, self._start], dim=1)

    def from_history(self, history: History, u: Tensor) -> Tensor:
        row = torch.arange(self.num_envs, device=u.device)
        ball = history.position[:, :, 0, :2]  # (W, N, 2)
        if not self._hidden:
            moved = ball[-1] - ball[history.oldest, row]
            seconds = (history.valid.sum(dim=0) - 1) / self.task.control_freq
            measured = moved / rolled(seconds)[:, None].clamp(min=1e-9)
            return torch.where((seconds > 0)[:, None], measured, self._guess(u))
        seen = history.visible[..., 0]  # (W, N)
        count, first = seen.sum(dim=0), seen.to(torch.int8).argmax(dim=0)
        later = seen & (torch.arange(len(seen), device=u.device)[:, None] > first)
        second = later.to(torch.int8).argmax(dim=0)
        # `act` counts the present view only afterwards
        when = (self._age - (len(seen) - 1 - first)) / self.task.control_freq
        until = (self._age - (len(seen) - 1 - second)) / self.task.control_freq
        between_them = (rolled(until) - rolled(when))[:, None]
        velocity = (ball[second, row] - ball[first, row]) / between_them.clamp(min=1e-9)
        guess = self._guess(u)
        velocity = torch.where((count > 1)[:, None], velocity, guess[:, :2])
        start = ball[first, row] - velocity * rolled(when)[:, None]
        return torch.where((count > 0)[:, None], torch.cat([velocity, start], dim=1), guess)

    def _plan(self, view: View, cue: Tensor, rows: Tensor) -> None:
        """Choose where to wait for the ball in the environments ``rows`` (b,): posture, yaw and when the ball arrives."""
        n, count = len(rows), len(PLACES)
        places = PLACES.to(self.device)
        q0, velocity = view.joints[rows, :ARM_JOINTS], cue[rows, :2]
        ball, elapsed = view.position[rows, 0, :2], torch.zeros(n, device=self.device)
        if self._hidden:
            # from where it was at t = 0; `_age` already counts the present view
            ball, elapsed = cue[rows, 2:], (self._age[rows] - 1) / self.task.control_freq
        vx, vy = velocity[:, :1], velocity[:, 1:].clamp(min=0.05)
        way = places - TIP - ball[:, 1:2]  # (b, G)
        arrival = -torch.log((1 - way * DAMPING / vy).clamp(min=1e-6)) / DAMPING - elapsed[:, None]
        x = ball[:, :1] + vx / vy * way
        place = torch.stack([x, places.expand(n, -1), torch.full_like(x, LOW)], dim=-1).reshape(-1, 3)
        signs = torch.tensor([1.0, -1.0], device=self.device)
        yaw = (signs * math.pi / 2).repeat_interleave(n * count)
        q, error = self.arm.solve(place.repeat(2, 1), yaw)
        turn = (q.reshape(2, n, count, -1) - q0[:, None]).abs().amax(dim=-1)
        wrong = ((error > 0.005) | (q[:, -1].abs() > 2.8)).reshape(2, n, count)
        slack = torch.where(wrong | (way < 0), -10.0, arrival - turn / JOINT_SPEED - DELAY)
        slack = slack.transpose(0, 1).flatten(1)  # (b, 2G)
        postures = q.reshape(2, n, count, -1).transpose(0, 1).flatten(1, 2)  # (b, 2G, 7)
        arrivals = arrival.repeat(1, 2)
        # the earliest place that is reached in time, or else the one that is missed by the least
        best = torch.where(slack > 0, arrivals, 100 - slack).argmin(dim=1)
        row = torch.arange(n, device=self.device)
        self._posture[rows] = postures[row, best]
        self._yaw[rows] = torch.where(best < count, 1.0, -1.0) * math.pi / 2
        self._planned[rows] = cue[rows]
        self._arrival[rows] = arrivals[row, best]

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        self._age += 1
        ball, q = view.position[:, 0, :2], view.joints[:, :ARM_JOINTS]
        due = self._age == 2  # two views are needed to measure a velocity
        if self._hidden:
            apart = torch.where(view.visible[:, 0], torch.linalg.norm(ball - view.tcp[:, :2], dim=1), torch.inf)
            told = (cue - self._planned).abs().amax(dim=1) > CHANGED
            due = due | (told & (self._age % REPLAN == 2) & (self._stage == BLOCK) & (apart > 2 * STOPPED))
        rows = torch.nonzero(due).flatten()
        if len(rows):
            self._plan(view, cue, rows)
        # each joint by itself, as fast as possible
        move = ((self._posture - q) / (REACHED * STEP_LIMIT)).clamp(-1, 1)
        move = torch.where((self._age > 1)[:, None], move, 0.0)  # a product would keep the sign of an earlier episode
        return self.catch(view, torch.cat([move, torch.full_like(move[:, :1], BLOCKING)], dim=1), self._age > 2)

    def catch(self, view: View, move: Tensor, ready: Tensor) -> Tensor:
        """The action (N, 8): ``move`` (N, 8) until the ball has come to rest at the hand, then grasp it and carry it away.

        Args:
            view: the present view.
            move: how the hand gets in the ball's way.
            ready: (N,) bool, whether a ball near the hand may be taken for one that was stopped.
        """
        ball, tcp, seen = view.position[:, 0], view.tcp, view.visible[:, 0]
        off = ball[:, :2] - tcp[:, :2]
        apart = torch.where(seen, torch.linalg.norm(off, dim=1), torch.inf)  # a hidden ball is near nothing
        self._since += 1
        # a ball that stays close to the TCP has stopped
        self._near = torch.where(apart < STOPPED, self._near + 1, torch.zeros_like(self._near))
        self._enter((self._stage == BLOCK) & (self._near > NEAR_STEPS) & ready, ENTER)
        self._enter((self._stage == ENTER) & seen & (off[:, 1].abs() < 0.006) & (off[:, 0].abs() < 0.025), CLOSE)
        self._enter((self._stage == CLOSE) & (self._since > 3) & (view.fingers < HELD), CARRY)
        self._enter((self._stage >= CLOSE) & (apart > 0.03), ENTER)

        carrying = (self._stage == CARRY)[:, None]
        over = torch.where(seen[:, None], ball[:, :2], tcp[:, :2])
        over = torch.cat([over, torch.full_like(ball[:, :1], LOW)], dim=1)
        target = torch.where(carrying, self._carry(view), over)
        gripper = torch.where(self._stage >= CLOSE, -1.0, 1.0)
        action = self.arm.act(view.joints, target, facing_down(self._yaw), gripper)
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
