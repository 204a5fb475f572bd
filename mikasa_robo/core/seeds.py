"""Which episode a seed means, and the random numbers of each environment."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mikasa_robo.sim.env import BatchedSimMixin

from .sampling import Uniforms

Seed: TypeAlias = int | Sequence[int | tuple[int, int]]
"""A seed for all environments, or one for each: a seed of its own, or (s, i) for the i-th episode of the seed s."""


def episode_keys(seed: Seed, index: Sequence[int]) -> list[tuple[int, int]]:
    """For each environment of ``index`` the pair (s, i) that its episode is drawn from.

    With an int, environment i gets (seed, i), whatever the other environments are; a seed of its own, s, gives (s, 0).
    Raises ValueError where seeds are negative or not as many as environments.
    """
    keys: list[tuple[int, int]] = []
    if isinstance(seed, int | np.integer):
        keys = [(int(seed), i) for i in index]
    else:
        if len(seed) != len(index):
            raise ValueError(
                f"seed holds {len(seed)} seeds for {len(index)} environments: give one for each, or an int"
            )
        for s in seed:
            first, second = s if isinstance(s, tuple) else (s, 0)
            keys.append((int(first), int(second)))
    if any(min(key) < 0 for key in keys):
        raise ValueError(f"seed={seed!r} is negative: seeds are whole numbers of at least 0")
    return keys


class EpisodeRandom:
    """The random numbers of N environments, each from a generator of its own.

    Args:
        num_envs: N.
        device: where the numbers are wanted.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._device = device
        self._generators = [np.random.default_rng() for _ in range(num_envs)]

    def seed(self, index: Sequence[int], keys: Sequence[tuple[int, int]]) -> None:
        """Starts the generators of the environments ``index`` anew, from the `episode_keys`."""
        for i, key in zip(index, keys, strict=True):
            self._generators[i] = np.random.default_rng(np.random.SeedSequence(key))

    def draw(self, env_idx: Tensor, columns: int) -> Uniforms:
        """The next ``columns`` numbers of the environments ``env_idx`` (b,)."""
        drawn = np.stack([self._generators[i].random(columns) for i in env_idx.tolist()])
        return Uniforms(torch.from_numpy(drawn).to(self._device))


class SeededEnv(BatchedSimMixin):
    """An environment whose episodes depend on its seed alone, not on ``num_envs`` or on the other environments."""

    @functools.cached_property
    def _random(self) -> EpisodeRandom:
        return EpisodeRandom(self.num_envs, self.device)

    def reset(self, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in ``options["env_idx"]`` only.

        Args:
            seed: an int: environment i gets the i-th episode of this seed, whatever ``num_envs`` is. A list with one seed
                for each environment being reset: each gets the episode that a single environment would get with that
                seed; a pair (s, i) in it stands for the i-th episode of the seed s. None: each environment goes on with
                its own generator.
            options: ManiSkill's; ``{"env_idx": (b,) ints or (N,) bools}`` names the environments to reset.

        Returns:
            the observation and the info of all N environments.
        """
        options, outer = dict(options or {}), None
        if "env_idx" in options:
            options["env_idx"] = self._checked_env_idx(options["env_idx"])
        if seed is not None:
            index = options["env_idx"].tolist() if "env_idx" in options else list(range(self.num_envs))
            keys = episode_keys(seed, index)
            self._random.seed(index, keys)
            # no task uses ManiSkill's own generators; reseeding some of them would change every environment
            outer = None if "env_idx" in options else [sum(key) % 2**31 for key in keys]
        return super().reset(seed=outer, options=options)
