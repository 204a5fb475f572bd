"""Seeds of episodes, and an environment whose episodes depend on its seed alone.

An episode has a key (s, i, k): k episodes after the one that environment i plays with the seed s. `episode_name` writes a
key as one integer, which is a seed too: ``gymnasium.make(id, num_envs=1).reset(seed=name)`` plays that episode, to the last
bit. ManiSkill's `RecordEpisode` notes these names as ``episode_seed``.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from gymnasium.utils.seeding import np_random
from torch import Tensor

from mikasa_robo.sim.call_arguments import RESET_OPTIONS, checked_options
from mikasa_robo.sim.controllers import single_agents
from mikasa_robo.sim.env import BatchedSimMixin

from .pcg import BatchedPCG64, Entropy
from .sampling import Uniforms

Seed: TypeAlias = int | Sequence[int | tuple[int, ...]]
"""A seed for all environments, or one for each: a seed of its own, or (s, i) for the i-th episode of the seed s; (s, i, k)
for the episode k after that."""


Key: TypeAlias = tuple[int, int, int]
"""(s, i, k): k episodes after the i-th episode of the seed s."""
NAMED = 2**62
"""The first integer that names an episode; below and from twice this on, an integer s is the seed s."""
_INDEX_BITS, _EPISODE_BITS, _SEED_BITS = 14, 16, 32


def episode_name(key: Key) -> int:
    """The integer that names an episode as a seed.

    It is s itself for (s, 0, 0), and 2**62 + s * 2**30 + i * 2**16 + k otherwise. -1, which is no seed, if the key does not
    fit: s has 32 bits there, i 14 and k 16.
    """
    s, i, k = key
    if i == k == 0 and s < NAMED:
        return s
    if s >> _SEED_BITS or i >> _INDEX_BITS or k >> _EPISODE_BITS:
        return -1
    return NAMED | ((s << _INDEX_BITS | i) << _EPISODE_BITS) | k


def episode_key(seed: int) -> Key:
    """The key of the episode that a single environment plays with this seed."""
    if not NAMED <= seed < 2 * NAMED:
        return seed, 0, 0
    rest, k = divmod(seed - NAMED, 2**_EPISODE_BITS)
    return *divmod(rest, 2**_INDEX_BITS), k


def fresh_seed() -> int:
    """A seed from the operating system's random numbers, below 2**32."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def _entropy(seed: int, env: int) -> Entropy:
    """What the generator of environment ``env`` starts with; different for each pair."""
    if seed < 2**32:
        return seed, env
    # numpy joins the 32-bit words of all numbers, and those of a larger seed can be a small seed and an environment. A spawn
    # key comes after at least four words.
    return np.random.SeedSequence(seed, spawn_key=(env,))


def episode_keys(seed: Seed, index: Sequence[int]) -> list[Key]:
    """The keys of the episodes that the environments ``index`` play.

    With an int, environment i gets (seed, i, 0), whatever the other environments are; a seed of its own, s, gives
    (s, 0, 0). A seed that names an episode gives its key; with an int that does, environment i plays the i-th after it.

    Raises:
        TypeError: a seed is not a whole number.
        ValueError: seeds are negative, or not as many as environments.
    """
    if isinstance(seed, bool | np.bool_):
        raise TypeError(f"seed={seed!r} is a {type(seed).__name__}: give an int, or one seed for each environment")
    if isinstance(seed, int | np.integer):
        s, first, k = episode_key(int(seed))
        keys = [(s, first + i, k) for i in index]
    else:
        if isinstance(seed, str | bytes) or not hasattr(seed, "__len__") or getattr(seed, "ndim", 1) == 0:
            raise TypeError(f"seed={seed!r} is a {type(seed).__name__}: give an int, or one seed for each environment")
        if len(seed) != len(index):
            raise ValueError(
                f"seed holds {len(seed)} seeds for {len(index)} environments: give one for each, or an int"
            )
        keys = [_key_of(s, seed) for s in seed]
    if any(min(key) < 0 for key in keys):
        raise ValueError(f"seed={seed!r} is negative: seeds are whole numbers of at least 0")
    return keys


def _key_of(one: Any, seed: Seed) -> Key:
    try:
        if any(isinstance(each, bool | np.bool_) for each in (one if isinstance(one, tuple) else [one])):
            raise TypeError
        if not isinstance(one, tuple):
            return episode_key(operator.index(one))
        s, i, k = map(operator.index, one if len(one) == 3 else (*one, 0))
        return s, i, k
    except (TypeError, ValueError):
        raise TypeError(f"seed={seed!r} holds {one!r}: give whole numbers, or pairs (seed, episode)") from None


class SeededEnv(BatchedSimMixin):
    """An environment whose episodes depend on its seed alone, not on ``num_envs`` or on the other environments."""

    must_reset = True
    reset_options: ClassVar[tuple[str, ...]] = RESET_OPTIONS
    """The names that ``reset(options=…)`` knows; a task that reads more adds them to its own tuple."""
    # ManiSkill's seeds of its own generators, which no task uses, while it resets; at all other times names of episodes
    _own_episode_seed: np.ndarray | None = None
    _resetting = False

    @functools.cached_property
    def _generators(self) -> BatchedPCG64:
        return BatchedPCG64(self.num_envs, self.device)

    @functools.cached_property
    def _keys(self) -> list[Key]:
        """Of each environment the key of the episode that it played after it was last seeded."""
        return [(0, 0, 0)] * self.num_envs

    @functools.cached_property
    def _to_skip(self) -> dict[int, int]:
        """Of environments that were seeded and have not drawn yet: how many episodes their generators are to skip."""
        return {}

    @functools.cached_property
    def _episodes_since(self) -> Tensor:
        """(N,) int64: episodes drawn since, without a seed; -1 where not even the seed's own was drawn."""
        return torch.full((self.num_envs,), -1, dtype=torch.int64, device=self.device)

    @property
    def _episode_seed(self) -> np.ndarray | None:
        """(N,) int64: for each environment the name of the last episode that it drew; see `episode_name`.

        An environment that begins in a saved state draws none. -1 if it has drawn none since it was seeded.
        """
        if self._resetting or self._own_episode_seed is None:
            return self._own_episode_seed
        pairs = zip(self._keys, self._episodes_since.tolist(), strict=True)
        names = [-1 if since < 0 else episode_name((s, i, k + since)) for (s, i, k), since in pairs]
        return np.array(names, dtype=np.int64)

    @_episode_seed.setter
    def _episode_seed(self, seeds: np.ndarray | None) -> None:
        self._own_episode_seed = seeds

    @contextlib.contextmanager
    def _own_seeds(self) -> Iterator[None]:
        self._resetting = True
        try:
            yield
        finally:
            self._resetting = False

    def reset(self, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in ``options["env_idx"]`` only.

        An action may choose another control mode (``{"control_mode": …, "action": …}``). It is for all environments, and
        stays until all of them are reset.

        Args:
            seed: an int: environment i gets the i-th episode of this seed, whatever ``num_envs`` is. A list with one seed
                for each environment being reset: each gets the episode that a single environment would get with that
                seed; a pair (s, i) in it stands for the i-th episode of the seed s. None: each environment goes on with
                its own generator, which ManiSkill starts with the same seed in every process. A seed may also be the
                name of an episode; see `episode_name`.
            options: ManiSkill's; ``{"env_idx": (b,) ints or (N,) bools}`` names the environments to reset.

        Returns:
            the observation and the info of all N environments.

        Raises:
            TypeError: ``options`` is no dict, or a seed or an environment is not a whole number.
            ValueError: an option or an environment is not known, or a seed is negative. Nothing has changed.
        """
        options, outer = checked_options(options, self.reset_options), None
        if "env_idx" in options:
            options["env_idx"] = self._checked_env_idx(options["env_idx"])
        index = options.get("env_idx", torch.arange(self.num_envs, device=self.device))
        if seed is not None:
            keys = episode_keys(seed, index.tolist())
            self._generators.seed(index, [_entropy(s, i) for s, i, _ in keys])
            self._episodes_since[index] = -1
            for env, key in zip(index.tolist(), keys, strict=True):
                self._keys[env] = key
                # how many numbers an episode takes is known when they are drawn
                self._to_skip[env] = key[2]
            if isinstance(seed, int):
                # Gymnasium's checker expects it; no task uses it
                self._np_random, self._np_random_seed = np_random(seed)
            # no task uses ManiSkill's own generators; reseeding some of them would change every environment
            outer = None if "env_idx" in options else [sum(key) % 2**31 for key in keys]
        if "env_idx" not in options:
            # a mode that an action has chosen is for all environments, and would outlive the episodes
            for agent in single_agents(getattr(self, "agent", None)):
                if agent.control_mode != agent._default_control_mode:
                    agent.set_control_mode()
        with self._own_seeds():
            return super().reset(seed=outer, options=options)

    def _clear_sim_state(self) -> None:
        # what was simulated before must not show in the new episodes
        self._clear_sim_history()

    def _draw(self, env_idx: Tensor, columns: int) -> Uniforms:
        """The next ``columns`` uniform numbers of the environments ``env_idx`` (b,)."""
        late = [env for env, episodes in self._to_skip.items() if episodes]
        if late:
            self._generators.seed(
                torch.tensor(late, device=self.device),
                [_entropy(*self._keys[env][:2]) for env in late],
                [self._to_skip[env] * columns for env in late],
            )
        self._to_skip.clear()
        self._episodes_since[env_idx] += 1
        return Uniforms(self._generators.random(env_idx, columns))
