"""The table of learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mikasa_lifelong.catalog import load_entry_point
from mikasa_lifelong.errors import LifelongError, find

__all__ = ["LEARNERS", "LearnerRow", "find_learner", "register_learner"]


@dataclass(frozen=True, kw_only=True)
class LearnerRow:
    """One learner."""

    name: str
    summary: str
    entry_point: str
    """``"module:Class"`` of a `mikasa_lifelong.learners.base.Learner`."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options that it takes, with their defaults."""
    joint: bool = False
    """Whether it learns all tasks at once instead of one after another."""
    columns: bool = False
    """Whether it needs a network that can be given columns."""
    source: str

    def load(self) -> Any:
        """The class; imports torch."""
        return load_entry_point(self.entry_point)


_LEARNERS: dict[str, LearnerRow] = {}
LEARNERS: Mapping[str, LearnerRow] = MappingProxyType(_LEARNERS)
"""Every learner by its name."""


def register_learner(row: LearnerRow) -> None:
    """Add a learner, for example of your own. Raises LifelongError if the name is taken."""
    if row.name in _LEARNERS:
        raise LifelongError(f"there is a learner {row.name!r} already; choose another name")
    _LEARNERS[row.name] = row


def find_learner(name: str, option: str = "") -> LearnerRow:
    """The row of a learner. Raises LifelongError, which names similar ones, if there is none."""
    return find("learner", name, LEARNERS, option)


_NAVBENCH = "Kobanda et al. 2025, Continual NavBench (arXiv 2502.04830)"
_BANK = "mikasa_lifelong.learners.bank"
_EWC = "Kirkpatrick et al. 2017 (arXiv 1612.00796)"
for _row in (
    LearnerRow(
        name="sequential",
        summary="goes on training one network",
        entry_point="mikasa_lifelong.learners.sequential:Sequential",
        source="SEQL of LIBERO (arXiv 2306.03310)",
    ),
    LearnerRow(
        name="ft1",
        summary="sequential, by the name that Continual NavBench has for it",
        entry_point="mikasa_lifelong.learners.sequential:Sequential",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="sc1",
        summary="fresh weights for each task; keeps the last network only",
        entry_point=f"{_BANK}:FreshLast",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="scn",
        summary="fresh weights for each task; keeps every network, each for its own task",
        entry_point=f"{_BANK}:FreshAll",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="ftn",
        summary="goes on from a copy of the last network; keeps every network",
        entry_point=f"{_BANK}:FinetuneAll",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="frz",
        summary="trains on the first task only",
        entry_point=f"{_BANK}:Frozen",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="joint",
        summary="learns all tasks at once, in as many steps as the others take together",
        entry_point="mikasa_lifelong.learners.sequential:Sequential",
        joint=True,
        source="MTL of LIBERO (arXiv 2306.03310)",
    ),
):
    register_learner(_row)
