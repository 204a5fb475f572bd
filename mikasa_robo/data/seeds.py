"""The published seeds of datasets and evaluations. docs/data.md has the same table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["EVALUATION_SEEDS", "SPLITS", "SPLIT_SIZE", "split_seeds"]

EVALUATION_SEEDS = range(2_000_000, 3_000_000)
"""Episode k of an evaluation has number k of these seeds. `mikasa train` refuses them."""

SPLITS: Mapping[str, int] = MappingProxyType({"train": 100_000_000, "validation": 200_000_000, "test": 300_000_000})
"""The first seed of each split. All are above `EVALUATION_SEEDS`, and above the seeds of evaluations during training."""
SPLIT_SIZE = 100_000_000
"""Number of seeds in a split."""


def split_seeds(split: str) -> range:
    """The seeds of a split; episode j of a dataset that starts at its beginning has number j of them."""
    return range(SPLITS[split], SPLITS[split] + SPLIT_SIZE)
