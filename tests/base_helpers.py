"""What the tests of mikasa_base share."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from mikasa_base.factory import missing_dependency
from mikasa_base.registry import VARIANTS, EnvRow


def skip_without_extra(row: EnvRow) -> None:
    missing = missing_dependency(row)
    if missing is not None:
        pytest.skip(f"{row.name} needs {missing}: pip install 'mikasa-suite[{row.extra}]'")


def make(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """The environment; the test is skipped where the extra is missing."""
    skip_without_extra(VARIANTS[env_id].row)
    return gym.make(env_id, **kwargs)


def leaves(value: Any) -> list[Any]:
    """All that is in nested dicts, tuples and lists."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def same(a: Any, b: Any) -> bool:
    """Whether two observations, or whatever is nested, are equal to the bit."""
    first, second = leaves(a), leaves(b)
    return len(first) == len(second) and all(
        np.array_equal(x, y) and np.asarray(x).dtype == np.asarray(y).dtype for x, y in zip(first, second, strict=True)
    )
