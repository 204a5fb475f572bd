"""Intercept and InterceptGrab without a memory of the velocity: policies that an independent review would write.

None measures how fast the ball rolls. They show how much of a success rate a task owes to memory. With the ball always on
view, `Servo` does well, so the paper's forms are weak tests of memory. Where it is hidden until it is stopped, none does.
Their constants are the best of those that we tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mikasa_robo.core.sampling import ROBOT_BASE_X
from mikasa_robo.tasks.rolling_ball import RollingBallTask

from .arm import facing_down, quaternion_product
from .intercepting import BLOCK, BLOCKING, ENTER, LOW, InterceptSkill
from .policies import Policy, UnfitPolicyError
from .skill import Skill, View, look

SERVO_LINES = ((0.375, 0.1), (0.625, 0.3), (0.875, 0.4))
BARRIER_LINES = ((0.625, 0.15), (0.875, 0.3))
"""Speed of the ball, m/s, and y of the line on which the hand waits, m: the faster, the more time the arm needs."""
LEFTMOST, REACH = -0.42, 0.74
"""Where an upright hand can wait: x above the first, m, and so far from the robot's base, m."""
LEAN = 0.85
"""Angle between the hand of `Barrier` and straight down, rad. The hand is 0.2 m wide."""
BARRIER_HEIGHT = 0.03
"""z of its tool centre point, m."""


def line_for(task: RollingBallTask[Any], lines: Sequence[tuple[float, float]]) -> float:
    """y of the line for the mean speed of the task's balls, m, between the two nearest of ``lines``."""
    speeds, places = zip(*lines, strict=True)
    return float(np.interp(sum(task.speed_range) / 2, speeds, places))


class _BallPolicy(Policy):
    """For the skill of Intercept and InterceptGrab only."""

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        if not isinstance(skill, InterceptSkill):
            name = type(self).__name__
            raise UnfitPolicyError(f"{name} needs the skill of Intercept or InterceptGrab, not {type(skill).__name__}")
        super().__init__(skill, seed)
        self._catch = skill
        self._ball_task = cast(RollingBallTask[Any], skill.task)

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("a policy whose `act` needs no cue")

    def _middle(self, line: float) -> float:
        """x at which a ball of mean start, speed and drift crosses the line, m."""
        task = self._ball_task
        x, y, drift, speed = (
            sum(limits) / 2 for limits in (task.start_x_range, task.start_y_range, task.drift_range, task.speed_range)
        )
        return x + drift * (line - y) / speed

    def _wait(self, view: View, x: Tensor, line: float, height: float, hand: Tensor, gripper: float) -> Tensor:
        """The action (N, 8) that brings the hand to x (N,) on the line, and ``hand`` (N, 4) is its orientation."""
        place = torch.stack([x, torch.full_like(x, line), torch.full_like(x, height)], dim=1)
        self._catch._yaw = torch.full_like(x, math.pi / 2)
        return self.skill.arm.act(view.joints, place, hand, torch.full_like(x, gripper))


class Servo(_BallPolicy):
    """Waits on a line across the ball's way and follows the ball's present x: reads the present view alone.

    While the ball is hidden the hand waits in the middle of where balls pass.

    Args:
        skill: an `InterceptSkill`, for what it does with a ball that has come to rest at the hand.
        seed: has no effect.

    Raises:
        UnfitPolicyError: the skill is of another task than Intercept and InterceptGrab.
    """

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view = look(obs, self._objects)
        line = line_for(self._ball_task, SERVO_LINES)
        ball_x = view.position[:, 0, 0]
        x = torch.where(view.visible[:, 0], ball_x, torch.full_like(ball_x, self._middle(line)))
        x = x.clamp(LEFTMOST, ROBOT_BASE_X + math.sqrt(REACH**2 - line**2))
        down = facing_down(torch.full_like(x, math.pi / 2))
        move = self._wait(view, x, line, LOW, down, BLOCKING)
        return self._catch.catch(view, move, torch.ones_like(view.visible[:, 0]))


class Barrier(_BallPolicy):
    """Lays the hand across the middle of the paths of the balls, and grasps the ball that has run into it.

    Args:
        skill: an `InterceptSkill` whose ball is hidden on its way, for how it grasps a ball at rest.
        seed: has no effect.

    Raises:
        UnfitPolicyError: the skill is of another task, or its ball is always on view.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        super().__init__(skill, seed)
        if not self._ball_task.blank_steps:
            raise UnfitPolicyError("Barrier needs a ball that is hidden on its way; use servo, or blank_steps")
        self._hidden_before = torch.zeros(skill.num_envs, dtype=torch.bool, device=skill.device)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        self._hidden_before[slice(None) if env_idx is None else env_idx] = False

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view = look(obs, self._objects)
        line = line_for(self._ball_task, BARRIER_LINES)
        x = torch.full_like(view.tcp[:, 0], self._middle(line))
        zero = torch.zeros_like(x)
        half = torch.full_like(x, -LEAN / 2)  # about the x axis, so that the fingers point against the ball's way
        lean = torch.stack([half.cos(), half.sin(), zero, zero], dim=1)
        hand = quaternion_product(lean, facing_down(torch.full_like(x, math.pi / 2)))
        move = self._wait(view, x, line, BARRIER_HEIGHT, hand, 1.0)
        seen = view.visible[:, 0]
        self._hidden_before |= ~seen
        self._catch._enter((self._catch._stage == BLOCK) & seen & self._hidden_before, ENTER)
        return self._catch.catch(view, move, torch.ones_like(seen))


class MeanVelocity(_BallPolicy):
    """Remembers where the ball was at the start, and takes the middle of the mode's range for its velocity.

    Raises:
        UnfitPolicyError: the skill is of another task than Intercept and InterceptGrab.
    """

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        if not hasattr(self, "_fresh"):
            self._fresh = torch.ones(self.skill.num_envs, dtype=torch.bool, device=self.skill.device)
            self._start = torch.zeros(self.skill.num_envs, 2, device=self.skill.device)
        self._fresh[slice(None) if env_idx is None else env_idx] = True

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        task = self._ball_task
        middle = [sum(limits) / 2 for limits in (task.drift_range, task.speed_range)]
        self._start = torch.where(self._fresh[:, None], view.position[:, 0, :2], self._start)
        self._fresh = torch.zeros_like(self._fresh)
        velocity = torch.tensor(middle, device=self._start.device).expand(len(self._start), 2)
        return torch.cat([velocity, self._start], dim=1)[:, : self.skill.size]
