"""Checks of command-line arguments, made before a run has created anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ArgumentError", "device_works", "nearest_divisor", "require"]


class ArgumentError(ValueError):
    """An argument cannot be used; the message names it, its value and the fix."""


def require(args: object, names: str, holds: Callable[[Any], bool], advice: str) -> None:
    """Raises ``ArgumentError`` unless ``holds`` is true of each of the named (space-separated) fields of ``args``.

    Infinity and NaN are never accepted.
    """
    for name in names.split():
        value = getattr(args, name)
        if (isinstance(value, float) and not math.isfinite(value)) or not holds(value):
            raise ArgumentError(f"--{name.replace('_', '-')} {value} cannot be used; {advice}")


def device_works(device: str | None) -> bool:
    """Whether torch can put a tensor on ``device``; None, the environment's own, always works."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


def nearest_divisor(number: int, wish: int) -> int:
    """The divisor of ``number`` nearest to ``wish``.

    >>> nearest_divisor(4096, 10)
    8
    """
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wish))
