"""The table of learners."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mikasa_lifelong.catalog import load_entry_point
from mikasa_lifelong.errors import LifelongError, find

__all__ = ["LEARNERS", "OPTIONS", "LearnerRow", "find_learner", "label_of", "register_learner"]

OPTIONS = (
    "strength",
    "fisher",
    "fisher_samples",
    "fisher_update",
    "gamma",
    "capacity",
    "capacity_total",
    "threshold",
    "draws",
)
"""The options that only some learners take; they are fields of `RunArgs`."""


@dataclass(frozen=True, kw_only=True)
class LearnerRow:
    """One learner."""

    name: str
    summary: str
    entry_point: str
    """``"module:Class"`` of a `mikasa_lifelong.learners.base.Learner`."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The options that it takes, of `OPTIONS`, with their defaults."""
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
    """Add a learner, for example of your own. Raises LifelongError if the name is taken, or an option is not known."""
    if row.name in _LEARNERS:
        raise LifelongError(f"there is a learner {row.name!r} already; choose another name")
    if unknown := [name for name in row.options if name not in OPTIONS]:
        raise LifelongError(f"learner {row.name!r}: there is no option {', '.join(unknown)}; use {', '.join(OPTIONS)}")
    _LEARNERS[row.name] = row


def find_learner(name: str, option: str = "") -> LearnerRow:
    """The row of a learner. Raises LifelongError, which names similar ones, if there is none."""
    return find("learner", name, LEARNERS, option)


def label_of(learner: str, args: Mapping[str, Any], without: Collection[str] = ()) -> str:
    """A learner's name and those of its options that are not at their defaults, such as ``"er, capacity 5"``.

    Args:
        learner: its name.
        args: the arguments of a run.
        without: options that the label does not tell.
    """
    defaults = LEARNERS[learner].options if learner in LEARNERS else {}
    told = {name: args.get(name) for name in defaults if name not in without}
    others = [
        f"{name.replace('_', ' ')} {value}" for name, value in told.items() if value not in (None, defaults[name])
    ]
    return ", ".join([learner, *others])


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
    LearnerRow(
        name="er",
        summary="experience replay: stores items of each task, and mixes them into every batch",
        entry_point="mikasa_lifelong.learners.replay:ExperienceReplay",
        options={"capacity": 1000, "capacity_total": 0},
        source="Chaudhry et al. 2019 (arXiv 1902.10486)",
    ),
    LearnerRow(
        name="rpl",
        summary="replay of everything: keeps all data, and draws batches from all of it alike",
        entry_point="mikasa_lifelong.learners.replay:FullReplay",
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="l2",
        summary="holds all weights near those of earlier tasks",
        entry_point="mikasa_lifelong.learners.anchored:L2",
        options={"strength": 1.0},
        source=_NAVBENCH,
    ),
    LearnerRow(
        name="ewc",
        summary="holds weights near those of earlier tasks as far as the Fisher information says",
        entry_point="mikasa_lifelong.learners.anchored:EWC",
        options={"strength": 1.0, "fisher": "example", "fisher_samples": 256},
        source=_EWC,
    ),
    LearnerRow(
        name="ewc-online",
        summary="ewc with one Fisher information that fades",
        entry_point="mikasa_lifelong.learners.anchored:OnlineEWC",
        options={
            "strength": 5e4,
            "fisher": "minibatch",
            "fisher_samples": 256,
            "fisher_update": "mean",
            "gamma": 0.9,
        },
        source="Schwarz et al. 2018 (arXiv 1805.06370), as LIBERO (arXiv 2306.03310) has it",
    ),
    LearnerRow(
        name="pnn",
        summary="progressive networks: a column for each task, which reads all earlier ones",
        entry_point="mikasa_lifelong.learners.columns:Progressive",
        columns=True,
        source="Rusu et al. 2016 (arXiv 1606.04671)",
    ),
    LearnerRow(
        name="hispo",
        summary="mixes anchors; a task adds one only where it lowers the error enough",
        entry_point="mikasa_lifelong.learners.subspace:Subspace",
        options={"strength": 0.1, "threshold": 0.1, "draws": 512},
        source="Kobanda et al. 2024 (arXiv 2412.14865)",
    ),
):
    register_learner(_row)
