"""Simulation within ``torch.inference_mode()``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["outside_inference_mode"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def outside_inference_mode(method: _Method) -> _Method:
    """Let a method make usual tensors, also in a block of ``torch.inference_mode()``.

    The simulation keeps tensors and writes into them later. Outside of such a block torch refuses that for those that were
    made inside.
    """

    @functools.wraps(method)
    def usual(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return cast("_Method", usual)
