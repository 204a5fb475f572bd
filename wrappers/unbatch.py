"""One environment as Gymnasium's own environments are: NumPy arrays without a batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from mani_skill.envs.sapien_env import BaseEnv
from torch import Tensor

from mikasa_robo.core.seeds import fresh_seed
from mikasa_robo.workers.nested import is_batched, map_leaves

from .task_wrapper import TaskWrapper

__all__ = ["UnbatchWrapper"]


class UnbatchWrapper(TaskWrapper):
    """Takes the batch axis off the results of a single environment.

    Gymnasium's wrappers for single environments, such as `RecordEpisodeStatistics`, `RecordVideo`, `NormalizeReward` and
    `FlattenObservation`, go around this one. It works with every ManiSkill task and every simulation backend.

    Observation: an array, or a dict of arrays, on the CPU.
    Action: (A,) float32.
    Reward: float. Termination and truncation: bool. Info: arrays, numbers and bools.

    Args:
        env: a task made with ``num_envs=1``, with or without other wrappers.

    Raises:
        ValueError: ``env`` has several environments.
    """

    base_class: ClassVar[type[Any]] = BaseEnv
    unbatches: ClassVar[bool] = True
    _seeded = False

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        n = self.task.num_envs
        if n != 1:
            raise ValueError(
                f"UnbatchWrapper is for num_envs=1, and this task has {n}: use gymnasium.make_vec and "
                "gymnasium.wrappers.vector for a batch"
            )
        self.observation_space = self.task.single_observation_space
        self.action_space = self.task.single_action_space
        self.metadata = {"render_fps": self.task.control_freq, **env.metadata}

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts a new episode. Without a seed the first one is drawn at random, so that copies differ."""
        if seed is None and not self._seeded:
            seed = fresh_seed()
        obs, info = super().reset(seed, options)
        self._seeded = True
        return _first(obs), _plain(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return _first(obs), float(reward), bool(terminated), bool(truncated), _plain(info)

    def render(self) -> Any:
        """The image, (H, W, 3) uint8; None where a window shows it."""
        image = self.env.render()
        if not isinstance(image, Tensor | np.ndarray):
            return None
        return _array(image) if image.ndim == 3 else _first(image)


def _array(leaf: Any) -> np.ndarray:
    """A copy: on the CPU a tensor may share its memory with the simulator."""
    return np.array(leaf.cpu().numpy()) if isinstance(leaf, Tensor) else np.array(leaf)


def _first(batch: Any) -> Any:
    return map_leaves(lambda leaf: _array(leaf)[0], batch)


def _plain(info: Any) -> dict[str, Any]:
    """The info of the environment, with Python's numbers and bools where it holds one value."""

    def plain(leaf: Any) -> Any:
        value = _array(leaf[0] if is_batched(leaf, 1) else leaf)
        return value.item() if value.ndim == 0 else value

    entries: dict[str, Any] = map_leaves(plain, info)
    return entries
