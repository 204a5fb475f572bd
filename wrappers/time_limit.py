"""Truncate each environment of a batch after its own number of steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from mikasa_robo.checks import step_limit

__all__ = ["BatchedTimeLimit"]


class BatchedTimeLimit(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Truncates each environment of a batch after its own number of steps.

    The limit is the task's ``horizon``, or ``max_episode_steps`` of ``gym.make``, whose own `TimeLimit` wrapper is removed
    because it counts one environment only.

    With ``max_episode_steps=-1`` ``gymnasium.make`` adds no `TimeLimit`, so the task's own horizon remains. `make_env` and
    ``gymnasium.make_vec`` refuse it.

    Args:
        env: a batched environment with ``elapsed_steps`` (N,) and ``horizon``.

    Raises:
        ValueError: ``max_episode_steps`` is not a whole number of at least 1.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        limit: int | None = None
        if isinstance(env, gym.wrappers.TimeLimit):
            limit, env = env._max_episode_steps, env.env
            try:
                limit = step_limit(limit)
            except ValueError:
                env.close()
                raise
        super().__init__(env)
        self._given = limit
        # ManiSkill's wrappers read the limit under this name
        self._max_episode_steps = int(self.unwrapped.horizon if limit is None else limit)  # type: ignore[attr-defined]

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the environment, from which ``gymnasium.make`` makes another one with the same limit."""
        spec = super().spec
        if spec is not None:
            # the wrapper that was removed would say so
            spec.max_episode_steps = self._given
        return spec

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step; ``truncated`` (N,) bool is True for an environment that has reached the limit."""
        obs, reward, terminated, _, info = self.env.step(action)
        truncated = self.unwrapped.elapsed_steps >= self._max_episode_steps  # type: ignore[attr-defined]
        return obs, reward, terminated, truncated, info
