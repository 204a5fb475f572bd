"""What the adapters of all POPGym environments share."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, rectangle, text

__all__ = [
    "MAX_STEPS",
    "PopGymEnv",
    "check_decks",
    "check_steps",
]

MAX_STEPS = 1_000_000
_MAX_DECKS = 100
_WHITE, _DARK, _BAR = (255, 255, 255), (25, 25, 25), (60, 160, 220)
_CELLS_PER_ROW, _CELL = 13, 24


class PopGymEnv(DrawnEnv[Any, Any]):
    """An environment of POPGym with its faults corrected.

    Args:
        env: POPGym's environment.
        render_mode: See `DrawnEnv`.
        previous_action: If True, the observation is the pair (POPGym's observation, previous action). Each part of the
            action has one more value, which stands for "none" at the reset.
    """

    def __init__(self, env: gym.Env[Any, Any], render_mode: str | None, previous_action: bool = False) -> None:
        super().__init__(render_mode)
        self._env = env
        # A copy: POPGym may use one space, with one generator, for actions and observations.
        self.action_space = copy.deepcopy(env.action_space)
        self.observation_space = env.observation_space
        self._none: Any = None
        if previous_action:
            space, self._none = _with_none(env.action_space)
            self.observation_space = spaces.Tuple((env.observation_space, space))
        self._action_scale = 1
        self._over = True
        self._shown: npt.NDArray[np.float64] = np.zeros(0)
        self._steps, self._reward = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self._env.unwrapped.np_random = self.np_random
        obs = self._begin()
        self._over = False
        self._steps, self._reward = 0, 0.0
        return self._show(obs, self._none), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        action = _checked_action(self.action_space, action)
        obs, reward, terminated, truncated, _ = self._env.step(self._action_scale * action)
        terminated = bool(terminated)
        truncated = bool(truncated) and not terminated
        self._over = terminated or truncated
        self._steps, self._reward = self._steps + 1, float(reward)
        return self._show(self._correct(obs), action), self._reward, terminated, truncated, {}

    def frame(self) -> Image:
        """The observation: each discrete value is a coloured cell with its number, each continuous value a bar."""
        rows = max(1, -(-self._shown.size // _CELLS_PER_ROW))
        image = canvas(24 + _CELL * rows, 8 + _CELL * _CELLS_PER_ROW, _DARK)
        text(image, 8, 8, f"step {self._steps} reward {self._reward:+.3f}", _WHITE, 2)
        discrete = not isinstance(self.observation_space, spaces.Box)
        for i, value in enumerate(self._shown.tolist()):
            y, x = 24 + _CELL * (i // _CELLS_PER_ROW), 8 + _CELL * (i % _CELLS_PER_ROW)
            if discrete:
                shade = int(45 + 170 * np.sin(1.7 * value + 0.4) ** 2)
                rectangle(image, y, x, _CELL - 4, _CELL - 4, (shade, 70, 225 - shade // 2))
                text(image, y + 5, x + 2, f"{value:.0f}", _WHITE, 2)
            else:
                height = round(float(np.tanh(value)) * (_CELL // 2 - 2))
                rectangle(image, y + _CELL // 2 - max(height, 0), x, abs(height) + 1, _CELL - 4, _BAR)
        return image

    def _begin(self) -> Any:
        """Resets POPGym's environment and returns its observation, corrected."""
        return self._correct(self._env.reset()[0], first=True)

    def _correct(self, obs: Any, first: bool = False) -> Any:
        """The observation without POPGym's faults; the same one unless a subclass changes it."""
        return obs

    def _show(self, obs: Any, action: Any) -> Any:
        given = _copied(self.observation_space, obs if self._none is None else (obs, action))
        self._shown = np.concatenate([np.ravel(part).astype(float) for part in _leaves(given)])
        return given


def _with_none(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Any]:
    """The action space with one more value, which stands for "none", and that value."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1), int(space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    return spaces.MultiDiscrete(space.nvec + 1), space.nvec.copy()


def _checked_action(space: spaces.Space[Any], action: Any) -> Any:
    if isinstance(space, spaces.Box):
        values = checks.array("action", action)
        if values.shape != space.shape or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError(f"action={action!r} should be {space.shape} finite numbers, as in {space}")
        return np.clip(values, space.low, space.high).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return checks.integer("action", action, 0, int(space.n) - 1)
    values = checks.array("action", action)
    if not space.contains(values):
        raise ValueError(f"action={action!r} should be in {space}")
    return np.array(values)


def _copied(space: spaces.Space[Any], obs: Any) -> Any:
    """A copy of ``obs`` with the dtype of its space."""
    if isinstance(space, spaces.Tuple):
        return tuple(_copied(part, value) for part, value in zip(space.spaces, obs, strict=True))
    return int(obs) if isinstance(space, spaces.Discrete) else np.array(obs, dtype=space.dtype)


def _leaves(obs: Any) -> list[Any]:
    return [leaf for part in obs for leaf in _leaves(part)] if isinstance(obs, tuple) else [obs]


def check_decks(num_decks: int) -> int:
    """``num_decks`` as an int. Raises ValueError outside 1 to 100."""
    return checks.integer("num_decks", num_decks, 1, _MAX_DECKS)


def check_steps(max_episode_length: int) -> int:
    """``max_episode_length`` as an int. Raises ValueError outside 1 to `MAX_STEPS`."""
    return checks.integer("max_episode_length", max_episode_length, 1, MAX_STEPS)
