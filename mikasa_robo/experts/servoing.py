"""Intercept and InterceptGrab without a memory of the velocity: two policies that an independent review would write.

Neither measures how fast the ball rolls. They show how much of a success rate a task owes to memory: with the ball always on
view, `Servo` does well, so the paper's forms are weak tests of memory; with ``blank_steps`` it does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mikasa_robo.tasks.rolling_ball import RollingBallTask

from .arm import facing_down
from .intercepting import BLOCKING, LOW, InterceptSkill
from .policies import Policy, UnfitPolicyError
from .skill import Skill, View, look

LINE = 0.1
"""y of the line on which the hand waits, m."""
X_RANGE = (-0.42, 0.15)
"""x that an upright hand reaches on this line, m."""


class _BallPolicy(Policy):
    """For the skill of Intercept and InterceptGrab only."""

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        if not isinstance(skill, InterceptSkill):
            name = type(self).__name__
            raise UnfitPolicyError(f"{name} needs the skill of Intercept or InterceptGrab, not {type(skill).__name__}")
        super().__init__(skill, seed)
        self._catch = skill


class Servo(_BallPolicy):
    """Waits on a line across the ball's way and follows the ball's present x: reads the present view alone.

    While the ball is hidden the hand stays where it is.

    Args:
        skill: an `InterceptSkill`, for what it does with a ball that has come to rest at the hand.
        seed: has no effect.

    Raises:
        UnfitPolicyError: the skill is of another task than Intercept and InterceptGrab.
    """

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view = look(obs, self._objects)
        tcp, n = view.tcp, self.skill.num_envs
        x = torch.where(view.visible[:, 0], view.position[:, 0, 0], tcp[:, 0]).clamp(*X_RANGE)
        place = torch.stack([x, torch.full_like(x, LINE), torch.full_like(x, LOW)], dim=1)
        yaw = torch.full((n,), math.pi / 2, device=x.device)
        self._catch._yaw = yaw
        move = self.skill.arm.act(view.joints, place, facing_down(yaw), torch.full_like(x, BLOCKING))
        return self._catch.catch(view, move, torch.ones_like(view.visible[:, 0]))

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("`act` needs no cue")


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
        task = cast(RollingBallTask[Any], self.skill.task)
        middle = [sum(limits) / 2 for limits in (task.drift_range, task.speed_range)]
        self._start = torch.where(self._fresh[:, None], view.position[:, 0, :2], self._start)
        self._fresh = torch.zeros_like(self._fresh)
        velocity = torch.tensor(middle, device=self._start.device).expand(len(self._start), 2)
        return torch.cat([velocity, self._start], dim=1)[:, : self.skill.size]
