"""Seeds of episodes, and an environment whose episodes depend on its seed alone."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mikasa_robo.sim.call_arguments import RESET_OPTIONS, checked_options
from mikasa_robo.sim.env import BatchedSimMixin

from .pcg import BatchedPCG64
from .sampling import Uniforms

Seed: TypeAlias = int | Sequence[int | tuple[int, int]]
"""A seed for all environments, or one for each: a seed of its own, or (s, i) for the i-th episode of the seed s."""


def episode_keys(seed: Seed, index: Sequence[int]) -> list[tuple[int, int]]:
    """For each environment of ``index`` the pair (s, i) that its episode is drawn from.

    With an int, environment i gets (seed, i), whatever the other environments are; a seed of its own, s, gives (s, 0).

    Raises:
        TypeError: a seed is not a whole number.
        ValueError: seeds are negative, or not as many as environments.
    """
    keys: list[tuple[int, int]] = []
    if isinstance(seed, int | np.integer):
        keys = [(int(seed), i) for i in index]
    else:
        if isinstance(seed, str | bytes) or not hasattr(seed, "__len__"):
            raise TypeError(f"seed={seed!r} is a {type(seed).__name__}: give an int, or one seed for each environment")
        if len(seed) != len(index):
            raise ValueError(
                f"seed holds {len(seed)} seeds for {len(index)} environments: give one for each, or an int"
            )
        for s in seed:
            first, second = s if isinstance(s, tuple) else (s, 0)
            try:
                keys.append((operator.index(first), operator.index(second)))
            except TypeError:
                raise TypeError(f"seed={seed!r} holds {s!r}: give whole numbers, or pairs (seed, episode)") from None
    if any(min(key) < 0 for key in keys):
        raise ValueError(f"seed={seed!r} is negative: seeds are whole numbers of at least 0")
    return keys


class SeededEnv(BatchedSimMixin):
    """An environment whose episodes depend on its seed alone, not on ``num_envs`` or on the other environments."""

    must_reset = True
    reset_options: ClassVar[tuple[str, ...]] = RESET_OPTIONS
    """The names that ``reset(options=…)`` knows; a task that reads more adds them to its own tuple."""

    @functools.cached_property
    def _generators(self) -> BatchedPCG64:
        return BatchedPCG64(self.num_envs, self.device)

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

        Raises:
            TypeError: ``options`` is no dict, or a seed or an environment is not a whole number.
            ValueError: an option or an environment is not known, or a seed is negative. Nothing has changed.
        """
        options, outer = checked_options(options, self.reset_options), None
        if "env_idx" in options:
            options["env_idx"] = self._checked_env_idx(options["env_idx"])
        if seed is not None:
            index = options.get("env_idx", torch.arange(self.num_envs, device=self.device))
            keys = episode_keys(seed, index.tolist())
            self._generators.seed(index, keys)
            # no task uses ManiSkill's own generators; reseeding some of them would change every environment
            outer = None if "env_idx" in options else [sum(key) % 2**31 for key in keys]
        return super().reset(seed=outer, options=options)

    def _clear_sim_state(self) -> None:
        # what was simulated before must not show in the new episodes
        self._clear_sim_history()

    def _draw(self, env_idx: Tensor, columns: int) -> Uniforms:
        """The next ``columns`` uniform numbers of the environments ``env_idx`` (b,)."""
        return Uniforms(self._generators.random(env_idx, columns))
