"""The published seeds of datasets. docs/data.md has the same table beside the seeds of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SPLITS", "SPLIT_SIZE", "split_seeds"]

SPLITS: Mapping[str, int] = MappingProxyType({"train": 100_000_000, "validation": 200_000_000, "test": 300_000_000})
"""The first seed of each split. Evaluations play seeds from 1,000,000 and 2,000,000 on; see docs/data.md."""
SPLIT_SIZE = 100_000_000
"""Number of seeds in a split."""


def split_seeds(split: str) -> range:
    """The seeds of a split; episode j of a dataset that starts at its beginning has number j of them."""
    return range(SPLITS[split], SPLITS[split] + SPLIT_SIZE)
