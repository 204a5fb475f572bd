"""Intercept on the video."""

from __future__ import annotations

import torch

from mikasa_robo.tasks.intercept import Intercept
from mikasa_robo.tasks.rolling_ball import RollingState

from .task_info import TaskInfoWrapper

__all__ = ["InterceptInfoWrapper"]


class InterceptInfoWrapper(TaskInfoWrapper):
    """Shows the velocity (x, y) with which the ball began, and how fast it is now."""

    task_class = Intercept

    def facts(self, state: RollingState) -> dict[str, list[str]]:
        speeds = torch.linalg.norm(self.task.object_layout.read()[:, 0, 7:10], dim=-1)
        return {
            "ball began with": [f"({x:.2f}, {y:.2f}) m/s" for x, y, _ in state.velocity.tolist()],
            "ball now": [f"{speed:.2f} m/s" for speed in speeds.tolist()],
        }
