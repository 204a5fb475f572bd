"""Tensors and the wait for a GPU.

A GPU works through its queue while Python goes on. Whatever needs a value of a tensor in Python (``bool(t)``, ``t.item()``,
``t.tolist()``, ``t.cpu()``), an index of unknown length (``t[mask]``, ``nonzero``, ``unique``), or a copy from the host
(``torch.tensor(..., device="cuda")``) waits until the queue is empty. No step and no partial reset of a task does any of
these on a GPU; tests/test_host_reads.py counts them. On a CPU nothing waits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def reads_wait(device: torch.device) -> bool:
    """Whether reading a value of a tensor on ``device`` from Python waits for it."""
    return device.type != "cpu"


def take_rows(nested: Mapping[str, Any], index: Tensor) -> dict[str, Any]:
    """The rows ``index`` of every tensor or array of a nested dict, copied."""
    return {
        name: take_rows(value, index) if isinstance(value, Mapping) else torch.as_tensor(value)[index]
        for name, value in nested.items()
    }


@functools.cache
def constant(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``values``, nested tuples of numbers, as a tensor.

    It is made once and shared, so do not write to it. ``torch.tensor`` and ``new_tensor`` copy from the host every time.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def length(vectors: Tensor) -> Tensor:
    """(…) lengths of ``vectors`` (…, d).

    ``torch.linalg.norm`` may add up the squares in an order that depends on the shape. Here every operation is rounded as
    IEEE 754 says, element by element, so that a vector's length is the same to the bit in any tensor.
    """
    return total((vectors * vectors).unbind(-1)).sqrt()


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape, added up from the first to the last: `torch.sum` chooses an order by the shape."""
    return functools.reduce(torch.add, parts)
