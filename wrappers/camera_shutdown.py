"""Cameras that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from .task_wrapper import TaskWrapper

__all__ = ["CameraShutdownWrapper"]

PICTURES = ("rgb", "depth", "segmentation", "rgbd", "position", "normal", "albedo")


class CameraShutdownWrapper(TaskWrapper):
    """Blanks the pictures of exactly those environments that are past a given step: all zeros from there on.

    Args:
        env: a task whose observations hold pictures.
        n_initial_steps: the last step t at which the cameras work, at least 0; the observation of a reset has t = 0.

    Raises:
        ValueError: ``n_initial_steps`` is no such number, or there are no pictures to blank.
    """

    def __init__(self, env: gym.Env[Any, Any], n_initial_steps: int = 19) -> None:
        if not isinstance(n_initial_steps, int) or isinstance(n_initial_steps, bool) or n_initial_steps < 0:
            raise ValueError(f"n_initial_steps={n_initial_steps!r} must be a whole number of at least 0")
        super().__init__(env)
        if not _has_pictures(self.task._init_raw_obs):
            raise ValueError(
                f"obs_mode={self.task.obs_mode!r} has no pictures to blank: make the environment with obs_mode='rgb'"
            )
        self.n_initial_steps = n_initial_steps

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed, options)
        return self._blanked(obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._blanked(obs), reward, terminated, truncated, info

    def _blanked(self, obs: dict[str, Any]) -> dict[str, Any]:
        past = self.task.elapsed_steps > self.n_initial_steps
        return _blank(obs, past) if bool(past.any()) else obs


def _has_pictures(obs: Any) -> bool:
    return isinstance(obs, dict) and any(name in PICTURES or _has_pictures(value) for name, value in obs.items())


def _blank(obs: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """A copy of nested observations in which the pictures of some rows (N,) bool are zeros."""
    blanked: dict[str, Any] = {}
    for name, value in obs.items():
        if isinstance(value, dict):
            blanked[name] = _blank(value, rows)
        elif name in PICTURES:
            blanked[name] = torch.where(rows.reshape(-1, *[1] * (value.ndim - 1)), torch.zeros_like(value), value)
        else:
            blanked[name] = value
    return blanked
