"""Nested results as flat ones, and the memory in which several processes keep their rows of them."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Path = tuple[str, ...]
_ALIGNMENT = 64


def flatten(value: Any, path: Path = ()) -> dict[Path, Any]:
    """The leaves of nested dicts by the names that lead to them; an empty dict is a leaf."""
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


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Nested dicts with every leaf changed."""
    if isinstance(value, Mapping):
        return {name: map_leaves(change, child) for name, child in value.items()}
    return change(value)


def has_rows(leaf: Any, count: int) -> bool:
    """Whether ``leaf`` is a tensor or an array with a row for each of ``count`` environments."""
    return isinstance(leaf, Tensor | np.ndarray) and leaf.ndim > 0 and leaf.shape[0] == count


@dataclass(frozen=True)
class Column:
    """One leaf of a result, as all environments have it."""

    path: Path
    shape: tuple[int, ...]
    """Of one environment."""
    dtype: torch.dtype


class SharedRows:
    """Tensors (N, …), one for each column, in memory that a file descriptor stands for.

    The memory has no name: it is gone when the last process that maps it is, however that ends.

    Args:
        descriptor: of an empty or equally large memory file; closed here, once it is mapped.
        num_envs: N.
        columns: what to make room for.
    """

    def __init__(self, descriptor: int, num_envs: int, columns: Iterable[Column]) -> None:
        places, size = [], _ALIGNMENT
        for column in columns:
            places.append((column, size))
            length = num_envs * math.prod(column.shape) * column.dtype.itemsize
            size += -(-length // _ALIGNMENT) * _ALIGNMENT
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.tensors: dict[Path, Tensor] = {}
        for column, start in places:
            count = num_envs * math.prod(column.shape)
            flat = torch.frombuffer(memory, dtype=column.dtype, count=count, offset=start) if count else torch.empty(0)
            self.tensors[column.path] = flat.to(column.dtype).reshape(num_envs, *column.shape)
