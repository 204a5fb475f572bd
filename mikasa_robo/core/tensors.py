"""Constants as tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def constant(values: Any, like: Tensor) -> Tensor:
    """``values``, nested tuples of numbers, as a tensor with the dtype and the device of ``like``.

    It is made once and shared: do not write to it. ``torch.tensor`` and ``new_tensor`` would copy from the host and wait
    for the GPU every time.
    """
    return _constant(values, like.dtype, like.device)


@functools.cache
def _constant(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
