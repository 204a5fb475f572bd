"""Networks. This module holds their table and loads no torch; the others do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["HEADS", "NETWORKS", "NetworkRow"]


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """One kind of network."""

    name: str
    summary: str
    entry_point: str
    """``"module:function"`` that builds a `mikasa_lifelong.nets.model.Model` from a `Signature`, hidden size and dropout."""
    columns: bool = False
    """Whether pnn can add columns to it."""
    world: str | None = None
    """The only world whose tasks it can be used for; None for any."""


NETWORKS: Mapping[str, NetworkRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            NetworkRow(
                name="residual-mlp",
                summary="a linear layer and a residual block of two, with LayerNorm and GELU",
                entry_point="mikasa_lifelong.nets.mlp:build",
                columns=True,
            ),
            NetworkRow(
                name="gcbc",
                summary="a residual MLP that acts on what it sees and on a goal",
                entry_point="mikasa_lifelong.nets.goals:build_flat",
                columns=True,
                world="nav",
            ),
            NetworkRow(
                name="hgcbc",
                summary="two residual MLPs: one says where to be in some steps, the other acts on that",
                entry_point="mikasa_lifelong.nets.goals:build_hierarchical",
                columns=True,
                world="nav",
            ),
        )
    }
)
HEADS: Mapping[str, str] = MappingProxyType(
    {"categorical": "mikasa_lifelong.nets.heads:Categorical", "keys-turn": "mikasa_lifelong.nets.heads:KeysTurn"}
)
"""Classes of heads, ``"module:Class"``, by the names that a `Signature` uses."""
