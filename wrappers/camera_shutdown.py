"""Simulate cameras that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.checks import whole_number

from .task_wrapper import TaskWrapper

__all__ = ["CameraShutdownWrapper"]

IMAGES = (
    *("rgb", "depth", "segmentation", "rgbd", "position", "normal", "albedo", "xyzw"),
    *("Color", "Position", "Segmentation", "PositionSegmentation", "Normal", "Albedo"),  # of obs_mode="sensor_data"
)


class CameraShutdownWrapper(TaskWrapper):
    """Replaces the images by zeros in exactly those environments that are past a given step.

    Args:
        env: a task whose observations contain images.
        n_initial_steps: the last step t at which the cameras work, at least 0; the observation of a reset has t = 0.

    Raises:
        ValueError: ``n_initial_steps`` is not such a number, or the observations contain no images.
    """

    def __init__(self, env: gym.Env[Any, Any], n_initial_steps: int = 19) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, n_initial_steps=n_initial_steps)
        self.n_initial_steps = whole_number("n_initial_steps", n_initial_steps)
        super().__init__(env)
        self._require_batched()
        if not _has_images(self.task._init_raw_obs):
            mode = "+".join(self.task._modes.parts) or self.task.obs_mode
            raise ValueError(f"obs_mode={mode!r} has no images to blank: make the environment with obs_mode='rgb'")

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed, options)
        return self._blanked(obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._blanked(obs), reward, terminated, truncated, info

    def _blanked(self, obs: Any) -> Any:
        if not isinstance(obs, dict):  # the images are for others: a wrapper around this one reads something else
            return obs
        past = self.task.elapsed_steps > self.n_initial_steps
        # asking a GPU whether there are any would wait for it
        return _blank(obs, past) if tensors.reads_wait(past.device) or bool(past.any()) else obs


def _has_images(obs: Any) -> bool:
    return isinstance(obs, dict) and any(name in IMAGES or _has_images(value) for name, value in obs.items())


def _blank(obs: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """Copy nested observations, with zeros for the images of the environments ``rows`` (N,) bool."""
    blanked: dict[str, Any] = {}
    for name, value in obs.items():
        if isinstance(value, dict):
            blanked[name] = _blank(value, rows)
        elif name in IMAGES:
            past = rows.to(value.device).reshape(-1, *[1] * (value.ndim - 1))  # a GPU may draw what the CPU simulates
            blanked[name] = torch.where(past, torch.zeros_like(value), value)
        else:
            blanked[name] = value
    return blanked
