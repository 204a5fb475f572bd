"""The success rate of a guess. Importing this loads neither torch nor the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mikasa_robo.catalog import TaskSpec

__all__ = ["chance"]


def chance(row: TaskSpec, env_kwargs: Mapping[str, Any] = MappingProxyType({})) -> float | None:
    """Probability of success by guessing; None if the cue is not one of finitely many, or where one can do more than guess.

    Args:
        row: the task.
        env_kwargs: arguments that take the place of the task's own. With ``on_mistake="ignore"`` one can try again, and with
            ``start_counted`` a part is done already.
    """
    kwargs = {**row.kwargs, **env_kwargs}
    counted = kwargs.get("start_counted", 0)  # a number, or a list, tuple or array of two
    if kwargs.get("on_mistake", "fail") != "fail" or any(counted if hasattr(counted, "__len__") else (counted,)):
        return None
    n = int(kwargs.get("n", 0))
    if row.family == "ShellGame":
        return 1 / 3
    if row.family in ("RememberColor", "RememberShape"):
        return 1 / n
    if row.family == "RememberShapeAndColor":
        return 1 / (kwargs["shapes"] * kwargs["colors"])
    if row.family in ("BunchOfColors", "SeqOfColors"):
        return 1 / math.comb(9, n)
    return 1 / math.perm(9, n) if row.family == "ChainOfColors" else None
