"""Nested dicts of tensors, such as an observation and an info, as flat dicts and back.

The keys are paths, tuples of names, so that `unflatten` gives back exactly what `flatten` was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

__all__ = ["Path", "flatten", "is_batched", "map_leaves", "unflatten"]

Path: TypeAlias = tuple[str, ...]
"""The names that lead to a leaf of nested dicts."""


def flatten(value: Any, path: Path = ()) -> dict[Path, Any]:
    """The leaves of nested dicts by their paths. An empty dict is a leaf.

    >>> flatten({"obs": 1, "info": {"success": 2}})
    {('obs',): 1, ('info', 'success'): 2}
    """
    if isinstance(value, Mapping) and value:
        return {p: leaf for name, child in value.items() for p, leaf in flatten(child, (*path, name)).items()}
    return {path: value}


def unflatten(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for path, leaf in leaves.items():
        level = nested
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = leaf
    return nested


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested dicts of the same structure, with ``function`` applied to every leaf."""
    if isinstance(value, Mapping):
        return {name: map_leaves(function, child) for name, child in value.items()}
    return function(value)


def is_batched(leaf: Any, num_envs: int) -> bool:
    """Whether ``leaf`` is a tensor or an array with one row for each of ``num_envs`` environments."""
    return isinstance(leaf, Tensor | np.ndarray) and leaf.ndim > 0 and leaf.shape[0] == num_envs
