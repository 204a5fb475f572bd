"""The error of this package, and the look-up of names that raises it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["LifelongError", "find"]

T = TypeVar("T")


class LifelongError(ValueError):
    """Something that the user named cannot be used; the message names the thing, the value and the fix."""


def find(kind: str, name: str, known: Mapping[str, T], option: str = "") -> T:
    """``known[name]``.

    Args:
        kind: what the names are of, such as ``"stream"``.
        name: the one that is asked for.
        known: all of them.
        option: where the user gave it, such as ``"--stream"``.

    Raises:
        LifelongError: there is no such name; it says which are close, or all of them.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"use one of {', '.join(known)}"
    raise LifelongError(f"{option + ' ' if option else ''}{name}: there is no {kind} {name!r}; {hint}")
