"""Observations as a dict in every observation mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor

from .task_wrapper import TaskWrapper

__all__ = ["StateOnlyTensorToDictWrapper"]


class StateOnlyTensorToDictWrapper(TaskWrapper):
    """Turns the tensor of ``obs_mode="state"`` into a dict, so that observations of all modes are read by their keys.

    Observation: ``{"state": (N, D) float32}`` and, if the task has one, ``"prompt"``; a dict is returned unchanged. The
    observation spaces change accordingly.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._require_batched()
        first = self.task._init_raw_obs
        if isinstance(first, Tensor):
            prompt = self.task.evaluate().get("prompt")
            self.task.update_obs_space(_as_dict(first, {} if prompt is None else {"prompt": prompt.cpu()}))

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed, options)
        return _as_dict(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return _as_dict(obs, info), reward, terminated, truncated, info


def _as_dict(obs: Any, info: dict[str, Any]) -> dict[str, Any]:
    """``obs`` if it is a dict, else a dict of it and of the prompt in ``info``."""
    if isinstance(obs, dict):
        return obs
    return {"state": obs} | ({"prompt": info["prompt"].clone()} if "prompt" in info else {})
