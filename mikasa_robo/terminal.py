"""Text that others wrote, for a terminal."""

from __future__ import annotations

import sys

__all__ = ["print_error", "printable"]


def printable(text: str) -> str:
    """``text`` without line breaks and control characters, which a terminal would obey; each becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def print_error(error: Exception) -> None:
    """Print to stderr what went wrong. Its text may quote files and servers that nobody vouches for; see `printable`."""
    sys.stderr.write("\n".join(map(printable, str(error).splitlines())) + "\n")
