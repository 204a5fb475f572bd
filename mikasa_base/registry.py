"""Every environment by its ID, and registration with Gymnasium.

`mikasa_base.rows` holds the table. Registration, ``mikasa list --suite base``, the documentation and the tests read it
from here.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym

from .env_row import EnvRow, MemoryType, Tier, Variant
from .rows import ROWS

__all__ = ["BY_NAME", "ENV_IDS", "ROWS", "VARIANTS", "EnvRow", "MemoryType", "Tier", "Variant", "load", "register_all"]

VECTOR_SUFFIX = "Vector"


def load(entry_point: str) -> Any:
    """The object that ``module:attribute`` names; imports the module."""
    module, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _variants(rows: tuple[EnvRow, ...]) -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    for row in rows:
        for variant in (Variant(row, preset) for preset in ("", *row.presets)):
            if variant.id in variants:
                raise ValueError(f"{variant.id} stands twice in mikasa_base.rows: rename a row or a preset")
            variants[variant.id] = variant
    return variants


BY_NAME: dict[str, EnvRow] = {row.name: row for row in ROWS}
VARIANTS: dict[str, Variant] = _variants(ROWS)
"""Every ID with its row and preset, in the order of the table."""
ENV_IDS: tuple[str, ...] = tuple(VARIANTS)


def register_all() -> None:
    """Registers every ID with Gymnasium. The entry points are strings; see `mikasa_base.factory`."""
    for env_id, variant in VARIANTS.items():
        row = variant.row
        entry_point = f"mikasa_base.factory:{row.name}"
        gym.register(
            id=env_id,
            entry_point=entry_point,
            vector_entry_point=entry_point + VECTOR_SUFFIX if row.vector_entry_point else None,
            kwargs=variant.kwargs,
        )
