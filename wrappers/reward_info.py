"""Overlay with the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import torch
from mani_skill.envs.sapien_env import BaseEnv

from mikasa_robo.sim.backend import checked_env_idx

from .overlay import Overlay

__all__ = ["RenderRewardInfoWrapper"]


class RenderRewardInfoWrapper(Overlay):
    """Shows each environment's reward of the last step and the sum since its reset.

    The rewards are those of the wrapped environment, in its reward mode. It works with every ManiSkill task.
    """

    base_class: ClassVar[type[Any]] = BaseEnv

    place = "bottom"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._reward = torch.zeros(self.task.num_envs)
        self._sum = torch.zeros(self.task.num_envs)

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed, options)
        begun = (options or {}).get("env_idx")
        # a saved state may begin at a later step than 0, so the clock does not tell
        rows = slice(None) if begun is None else checked_env_idx(begun, self.task.num_envs, self._sum.device)
        self._reward[rows], self._sum[rows] = 0.0, 0.0
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self.env.step(action)
        self._reward = torch.as_tensor(result[1], dtype=torch.float32).detach().cpu().reshape(-1).clone()
        self._sum = self._sum + self._reward
        return result

    def lines(self) -> list[list[str]]:
        rewards = zip(self._reward.tolist(), self._sum.tolist(), strict=True)
        return [[f"reward {reward:.3f} (sum {total:.2f})"] for reward, total in rewards]
