"""The success rate of a guess. Importing this loads neither torch nor the simulator."""

from __future__ import annotations

import math

from mikasa_robo.catalog import TaskSpec

__all__ = ["chance"]


def chance(row: TaskSpec) -> float | None:
    """Probability of success by guessing; None if the cue is not one of finitely many."""
    n = int(row.kwargs.get("n", 0))
    if row.family == "ShellGame":
        return 1 / 3
    if row.family in ("RememberColor", "RememberShape"):
        return 1 / n
    if row.family == "RememberShapeAndColor":
        return 1 / (row.kwargs["shapes"] * row.kwargs["colors"])
    if row.family in ("BunchOfColors", "SeqOfColors"):
        return 1 / math.comb(9, n)
    return 1 / math.perm(9, n) if row.family == "ChainOfColors" else None
