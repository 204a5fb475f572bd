"""Memory that several processes share: tensors with one row for each environment of the batch."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .nested import Path

__all__ = ["SharedTensors", "TensorSpec"]

_ALIGNMENT = 64
"""Each tensor starts at a multiple of this many bytes, the length of a cache line."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a result."""

    path: Path
    shape: tuple[int, ...]
    """Without the leading axis of environments."""
    dtype: torch.dtype


class SharedTensors:
    """Tensors (N, …) in memory that belongs to a file descriptor.

    The memory has no name. The system frees it when the last process that maps it has ended, however that happens.

    Args:
        descriptor: an anonymous memory file, either empty or of the size that ``specs`` need. It is closed here.
        num_envs: N.
        specs: the tensors. Every process must pass the same ones in the same order.
    """

    def __init__(self, descriptor: int, num_envs: int, specs: Iterable[TensorSpec]) -> None:
        offsets, size = [], _ALIGNMENT
        for spec in specs:
            offsets.append((spec, size))
            length = num_envs * math.prod(spec.shape) * spec.dtype.itemsize
            size += math.ceil(length / _ALIGNMENT) * _ALIGNMENT
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.tensors: dict[Path, Tensor] = {}
        for spec, offset in offsets:
            count = num_envs * math.prod(spec.shape)
            flat = torch.frombuffer(memory, dtype=spec.dtype, count=count, offset=offset) if count else torch.empty(0)
            self.tensors[spec.path] = flat.to(spec.dtype).reshape(num_envs, *spec.shape)
