"""Environments whose rules are written once, in numpy, for N episodes side by side.

A `Game` holds the rules. `SingleEnv` makes it a ``gymnasium.Env`` with N = 1, and `BatchedEnv` a
``gymnasium.vector.VectorEnv`` with any N.

At the start of an episode, the generator of its environment draws a row of uniform numbers in [0, 1). Every random choice
of the episode is computed from this row. Therefore environment i of a batch that is reset with seed s plays exactly the
same episode as a single environment that is reset with seed s + i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image

__all__ = ["MAX_ENVS", "BatchedEnv", "Bools", "Floats", "Game", "Ints", "Observations", "SingleEnv"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Observations = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
"""Of N environments: an array, or arrays by the names of a Dict space."""

MAX_ENVS = 2**20
MOST_SEED = 2**128 - 1
MOST_STEPS = 2**62
_NUMBERS_AHEAD = 256
"""A batch draws this many random numbers at a time for each environment, as a call costs more than the numbers."""


class Game(ABC):
    """The rules of N independent episodes.

    A subclass sets the spaces of one episode and ``num_uniforms``, the number of random numbers that an episode needs.

    Args:
        num_envs: N.
    """

    observation_space: gym.Space[Any]
    action_space: gym.spaces.Discrete | gym.spaces.Box
    num_uniforms: int

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.each = np.arange(num_envs)

    @abstractmethod
    def begin(self, which: Ints, uniforms: Floats) -> None:
        """Starts episodes in environments ``which`` (b,), each from its row of ``uniforms`` (b, num_uniforms)."""

    @abstractmethod
    def step(self, actions: Any) -> tuple[Floats, Bools, Bools]:
        """Plays ``actions`` (N, ...) and returns rewards, terminated and truncated, each (N,).

        Where an episode is over already, the results are undefined. The other environments are not affected.
        """

    @abstractmethod
    def observe(self) -> Observations:
        """The current observations (N, ...), as a new array, or as a new dict of arrays if the space is a Dict."""

    @abstractmethod
    def frame(self, i: int) -> Image:
        """An image of what the agent of environment i sees."""

    def check_actions(self, actions: Any) -> npt.NDArray[Any]:
        """``actions`` as an array (N, ...).

        Raises ValueError for a wrong shape, for discrete actions outside the space and for numbers that are not finite.
        Continuous actions are clipped to the bounds of the space.
        """
        space, array = self.action_space, checks.array("actions", actions)
        shape = (self.num_envs, *(space.shape if isinstance(space, gym.spaces.Box) else ()))
        if array.shape != shape:
            raise ValueError(
                f"actions of shape {array.shape} should have shape {shape}: one of {space} for each environment"
            )
        if isinstance(space, gym.spaces.Discrete):
            if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= space.n:
                raise ValueError(f"actions={_text(array)} should be integers from 0 to {space.n - 1}")
            return array
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ValueError(f"actions={_text(array)} should be finite numbers")
        return array.clip(space.low, space.high)


def _observation(observations: Observations, i: int) -> Any:
    """That of environment i."""
    if isinstance(observations, dict):
        return {name: array[i] for name, array in observations.items()}
    return observations[i]


def _text(array: npt.NDArray[Any]) -> str:
    return np.array2string(array, separator=", ", threshold=20).replace("\n", "")


class SingleEnv(DrawnEnv[Any, Any]):
    """A game as a single environment.

    Args:
        game: The rules, with ``num_envs`` 1.
        render_mode: See `DrawnEnv`.
    """

    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.game = game
        self.observation_space, self.action_space = game.observation_space, game.action_space
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self.game.begin(self.game.each, self.np_random.random((1, self.game.num_uniforms)))
        self._over = False
        return _observation(self.game.observe(), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        reward, terminated, truncated = self.game.step(self.game.check_actions([action]))
        self._over = bool(terminated[0] or truncated[0])
        obs = _observation(self.game.observe(), 0)
        return obs, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def frame(self) -> Image:
        """The picture of the episode."""
        return self.game.frame(0)


class BatchedEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """A game as a vector environment.

    Its results equal those of a ``gymnasium.vector.SyncVectorEnv`` of single environments, bit for bit. This includes
    seeds, autoreset, ``final_obs`` with SAME_STEP and ``options["reset_mask"]``. But ``np_random`` is Gymnasium's own and is
    not used: each environment has a generator inside.

    Args:
        game: The rules.
        render_mode: None, or "rgb_array": ``render()`` then returns an image of each environment.
        autoreset_mode: When the next episode starts after the end of one; see ``gymnasium.vector.AutoresetMode``.

    ``gym.make_vec(ID, max_episode_steps=T)`` also truncates episodes after T steps, as ``gym.make`` does (`limit_episodes`).
    """

    def __init__(
        self,
        game: Game,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} should be None or 'rgb_array' for a batch of environments")
        self.game = game
        self.num_envs = game.num_envs
        self.render_mode = render_mode
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        checks.choice("autoreset_mode", mode, tuple(m.value for m in AutoresetMode))
        self.autoreset_mode = AutoresetMode(mode)
        self.metadata = {**SingleEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = game.observation_space, game.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rngs: list[np.random.Generator | None] = [None] * self.num_envs
        self._seeds: list[int] = [-1] * self.num_envs
        depth = max(1, _NUMBERS_AHEAD // game.num_uniforms)
        self._ahead = np.empty((self.num_envs, depth, game.num_uniforms))
        self._used = np.full(self.num_envs, depth)
        self._over = np.ones(self.num_envs, np.bool_)
        self._begun = False
        self._max_episode_steps = MOST_STEPS
        self._elapsed = np.zeros(self.num_envs, np.int64)

    def limit_episodes(self, max_episode_steps: int) -> None:
        """Truncates episodes after this many steps, as ``gymnasium.wrappers.TimeLimit`` does; -1 removes the limit.

        Raises ValueError for a number that cannot be a limit.
        """
        self._max_episode_steps = step_limit(max_episode_steps)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment."""
        return tuple(self._seeds)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment, or only where the bool array ``options["reset_mask"]`` (N,) is True.

        An integer ``seed`` gives environment i the seed ``seed + i``. Without a seed, the generators continue.

        Raises ValueError for a seed, options or a mask that cannot be used. Nothing has changed then.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"options={options!r} should be a dict, such as {{'reset_mask': …}}, or None")
        mask = (options or {}).get("reset_mask")
        which = self.game.each if mask is None else self._masked(mask)
        seeds = self._checked_seeds(seed)
        for i in which.tolist():
            own = None if seeds is None else seeds[i]
            if own is not None or self._rngs[i] is None:
                self._rngs[i], self._seeds[i] = seeding.np_random(own)
                self._used[i] = self._ahead.shape[1]
        self._begin(which)
        self._over[which] = False
        self._begun = True
        return self.game.observe(), {}

    def step(self, actions: Any) -> tuple[Any, Floats, Bools, Bools, dict[str, Any]]:
        """Steps every environment. Where an episode is over, ``autoreset_mode`` says when the next one starts."""
        if not self._begun:
            raise ResetNeeded("step(): no episode is going on; call reset() first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise ResetNeeded(
                f"step(): the episodes of environments {np.flatnonzero(self._over).tolist()} are over, and "
                "autoreset_mode is DISABLED: reset them with options={'reset_mask': ...}"
            )
        rewards, terminated, truncated = self.game.step(self.game.check_actions(actions))
        self._elapsed += 1
        truncated = truncated | (self._elapsed >= self._max_episode_steps)
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            if self._over.any():
                self._begin(np.flatnonzero(self._over))
                rewards[self._over] = 0.0
                terminated[self._over] = truncated[self._over] = False
            self._over = terminated | truncated
        elif self.autoreset_mode is AutoresetMode.SAME_STEP:
            over = terminated | truncated
            if over.any():
                final = self.game.observe()
                for i in np.flatnonzero(over).tolist():
                    infos = self._add_info(infos, {"final_obs": _observation(final, i), "final_info": {}}, i)
                self._begin(np.flatnonzero(over))
        else:
            self._over = terminated | truncated
        return self.game.observe(), rewards, terminated, truncated, infos

    def render(self) -> tuple[Image, ...] | None:
        """A picture of each environment; None without a ``render_mode``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='rgb_array' in gym.make_vec")
            return None
        return tuple(self.game.frame(i) for i in range(self.num_envs))

    def _checked_seeds(self, seed: Any) -> list[int | None] | None:
        if seed is None:
            return None
        if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if not isinstance(seed, (list, tuple, np.ndarray)):
            raise ValueError(f"seed={seed!r} should be an integer, or a list with one for each environment")
        if len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} entries and should have {self.num_envs}, one for each environment")
        return [None if one is None else checks.integer("seed", one, 0, MOST_SEED) for one in seed]

    def _masked(self, mask: Any) -> Ints:
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise ValueError(f"options['reset_mask']={mask!r} should be a bool array of shape ({self.num_envs},)")
        if not mask.any():
            raise ValueError("options['reset_mask'] names no environment: at least one entry should be True")
        if not self._begun and not mask.all():
            raise ResetNeeded("options['reset_mask']: the first reset should be one of all environments")
        return np.flatnonzero(mask)

    def _begin(self, which: Ints) -> None:
        depth = self._ahead.shape[1]
        for i in which[self._used[which] == depth].tolist():
            rng = self._rngs[i]
            assert rng is not None, "reset() comes first"
            rng.random(out=self._ahead[i])
            self._used[i] = 0
        self.game.begin(which, self._ahead[which, self._used[which]])
        self._used[which] += 1
        self._elapsed[which] = 0


def batch_size(num_envs: int) -> int:
    """``num_envs``, checked."""
    return checks.integer("num_envs", num_envs, 1, MAX_ENVS)


def step_limit(max_episode_steps: Any) -> int:
    """``max_episode_steps``, checked; -1 means none, as in ``gym.make``."""
    if checks.integer("max_episode_steps", max_episode_steps, -1, MOST_STEPS) == -1:
        return MOST_STEPS
    return checks.integer("max_episode_steps", max_episode_steps, 1, MOST_STEPS)
