"""Checks of arguments. Each raises ValueError with the argument's name, its value and what is allowed.

This module imports nothing of the package, so that every part of it can use these checks.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Collection
from typing import Any

__all__ = [
    "NaNActionError",
    "boolean",
    "number",
    "number_range",
    "one_of",
    "one_or_two_numbers",
    "positive_int",
    "step_limit",
    "warn_hard",
    "whole_number",
    "whole_range",
]


class NaNActionError(ValueError):
    """An environment was given an action that is NaN."""


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None, unit: str = "") -> int:
    """``value`` as an int between ``least`` and ``most``, both included.

    Python's and NumPy's integers are accepted, booleans and floats are not.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed.
        least: smallest value allowed.
        most: largest value allowed; None: no limit.
        unit: what is counted, such as "control steps", for the message.
    """
    whole = _as_int(value)
    if whole is None or whole < least or (most is not None and whole > most):
        of_what = f" of {unit}" if unit else ""
        limits = f", at least {least}" if unit else f" of at least {least}"
        if most is not None:
            limits = f" from {least} to {most}"
        raise ValueError(f"{name}={value!r} must be a whole number{of_what}{limits}")
    return whole


def whole_range(name: str, value: Any, least: int, most: int) -> tuple[int, int]:
    """``value`` as two ints (low, high) with ``least <= low <= high <= most``; a single int is both of them.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed: a whole number, or a sequence of two.
        least: smallest value allowed.
        most: largest value allowed.
    """
    try:
        pair = [] if isinstance(value, str | bytes) else [_as_int(v) for v in value]
    except TypeError:  # not a sequence
        pair = [_as_int(value)] * 2
    if len(pair) == 2 and pair[0] is not None and pair[1] is not None and least <= pair[0] <= pair[1] <= most:
        return pair[0], pair[1]
    raise ValueError(
        f"{name}={value!r} must be a whole number from {least} to {most}, or two of them (low, high) with low <= high"
    )


def positive_int(name: str, value: Any) -> int:
    """``value`` as an int of at least 1."""
    return whole_number(name, value, 1)


def step_limit(value: Any) -> int:
    """The argument ``max_episode_steps`` of ``gymnasium.make`` as an int of at least 1."""
    try:
        return whole_number("max_episode_steps", value, 1, unit="control steps")
    except ValueError as error:
        raise ValueError(f"{error}; leave it out, and an episode ends at the task's own horizon") from None


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, unit: str = "") -> float:
    """``value`` as a finite float between ``low`` and ``high``, both included.

    Python's and NumPy's numbers are accepted, booleans and strings are not.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed.
        low: smallest value allowed.
        high: largest value allowed.
        unit: such as "m", for the message.
    """
    real = _as_float(value)
    if not (math.isfinite(real) and low <= real <= high):
        after = f" {unit}" if unit else ""
        limits = ""
        if math.isfinite(low) and math.isfinite(high):
            limits = f" from {low:g} to {high:g}{after}"
        elif math.isfinite(low):
            limits = f" of at least {low:g}{after}"
        elif math.isfinite(high):
            limits = f" of at most {high:g}{after}"
        raise ValueError(f"{name}={value!r} must be a number{limits}")
    return real


def number_range(name: str, value: Any, low: float, high: float, unit: str = "") -> tuple[float, float]:
    """``value`` as two floats (first, second) with ``low <= first <= second <= high``.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed; any sequence of two numbers.
        low: smallest value allowed.
        high: largest value allowed.
        unit: such as "rad", for the message.
    """
    try:
        pair = [_as_float(v) for v in value] if not isinstance(value, str | bytes) else []
    except TypeError:
        pair = []
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high:
        after = f" {unit}" if unit else ""
        raise ValueError(
            f"{name}={value!r} must be two numbers (first, second) with {low:g} <= first <= second <= {high:g}{after}"
        )
    return pair[0], pair[1]


def one_or_two_numbers(name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    """``value`` as two floats (first, second) with ``low <= first <= second <= high``; a single number is both of them.

    Args:
        name: the argument's name, for the message.
        value: what the caller passed: a number, or a sequence of two.
        low: smallest value allowed.
        high: largest value allowed.
    """
    single = _as_float(value)
    try:
        return number_range(name, value if math.isnan(single) else (single, single), low, high)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} must be a number from {low:g} to {high:g}, or two of them (low, high) with low <= high"
        ) from None


def warn_hard(name: str, value: Any, limit: str) -> None:
    """Warn that a value is possible, but that no expert copes with it.

    Args:
        name: the argument's name.
        value: what the caller passed.
        limit: the limit that was measured, and what of.
    """
    warnings.warn(f"{name}={value!r} is hard: {limit}", UserWarning, stacklevel=3)


def boolean(name: str, value: Any) -> bool:
    """``value``, if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be True or False")
    return value


def one_of(name: str, value: Any, choices: Collection[str]) -> str:
    """``value``, if it is one of the strings in ``choices``."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(
            f"{name}={value!r} is not known: use {', '.join(others)} or {last}"
            if others
            else f"{name}={value!r} is not known: use {last}"
        )
    return value


def _as_int(value: Any) -> int | None:
    if _is_boolean(value):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _as_float(value: Any) -> float:
    """NaN for what is not a number."""
    if _is_boolean(value) or isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        return math.nan


def _is_boolean(value: Any) -> bool:
    # also NumPy's and torch's booleans, which count as integers to operator.index or float
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
