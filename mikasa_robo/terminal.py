"""Text that others wrote, for a terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """``text`` without line breaks and control characters, which a terminal would obey; each becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
