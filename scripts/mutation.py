"""What an entry of scripts/mutations.py is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutation"]


@dataclass(frozen=True)
class Mutation:
    """One error."""

    name: str
    file: str
    """Path in the repository."""
    old: str
    """Source text that occurs exactly once in the file."""
    new: str
    """What it is replaced by."""
    tests: tuple[str, ...]
    """Test IDs of pytest, one of which must fail."""
