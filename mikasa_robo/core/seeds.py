"""Which episode a seed means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

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
