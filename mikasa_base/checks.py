"""Checks of the arguments of environments. Each raises ValueError with the argument, its value and what is allowed.

An argument that does not exist is an `UnknownArgumentError`.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["UnknownArgumentError", "array", "choice", "integer", "number"]


class UnknownArgumentError(TypeError, ValueError):
    """An environment takes no argument of this name.

    It is a TypeError, as everywhere in Python: TorchRL's ``GymEnv`` and others try an argument and leave it out then. It is
    a ValueError as well, like every other bad argument.
    """


def array(name: str, value: Any) -> npt.NDArray[Any]:
    """``value`` as an array; a tensor loses its gradient. Raises ValueError where it cannot be one."""
    try:
        return np.asarray(value.detach() if hasattr(value, "detach") else value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r} should be numbers: {error}") from error


def choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises ValueError unless ``value`` equals one of ``choices`` and has the same type."""
    if not any(type(value) is type(one) and value == one for one in choices):
        raise ValueError(f"{name}={value!r} should be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")


def integer(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int. Raises ValueError unless it is a whole number from ``low`` to ``high``, both included."""
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or not low <= whole <= high:
        raise ValueError(f"{name}={value!r} should be an integer from {low} to {high}")
    return whole


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """``value`` as a float. Raises ValueError unless it is finite and from ``low`` to ``high``, both included."""
    try:
        real = math.nan if isinstance(value, (bool, str)) else float(value)
    except (OverflowError, RuntimeError, TypeError, ValueError):  # RuntimeError: a tensor of several numbers
        real = math.nan
    if not (math.isfinite(real) and low <= real <= high):
        bounds = f" from {low:g} to {high:g}" if math.isfinite(low) and math.isfinite(high) else ""
        if not bounds:
            bounds = (
                f" of at least {low:g}" if math.isfinite(low) else f" of at most {high:g}" if high < math.inf else ""
            )
        raise ValueError(f"{name}={value!r} should be a finite number{bounds}")
    return real
