"""How certain a mean over seeds is, and whether two learners differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["NOTHING", "Summary", "differs", "summarise"]

LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, with its 95 % interval; nan where there is none."""

    mean: float
    low: float
    high: float
    runs: int


NOTHING = Summary(math.nan, math.nan, math.nan, 0)
"""Of a metric that was not measured."""


def summarise(columns: Sequence[Sequence[float]]) -> list[Summary]:
    """The mean of each column with the 95 % percentile bootstrap over seeds by rliable.

    Args:
        columns: for each metric one number for each seed, none, or some of them nan. All that are not empty have one length.

    Returns:
        One for each column: `NOTHING` where it is empty or holds nan; without an interval where there is one seed.

    Raises:
        ModuleNotFoundError: rliable is not installed.
    """
    known = [i for i, values in enumerate(columns) if values and not any(map(math.isnan, values))]
    found = [NOTHING] * len(columns)
    if not known:
        return found
    if len(columns[known[0]]) < 2:
        for i in known:
            found[i] = Summary(columns[i][0], math.nan, math.nan, 1)
        return found
    from mikasa_robo.tools.intervals import bootstrap_columns

    scores = np.array([columns[i] for i in known], np.float64).T  # (seeds, metrics)
    for i, estimate in zip(known, bootstrap_columns(scores), strict=True):
        found[i] = Summary(statistics.fmean(columns[i]), estimate.low, estimate.high, len(scores))
    return found


def differs(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether Welch's t-test tells two means over seeds apart, p < 0.05; False where one has fewer than two values.

    Raises:
        ModuleNotFoundError: SciPy is not installed.
    """
    if min(len(one), len(other)) < 2:
        return False
    if len(set(one)) == len(set(other)) == 1:  # no variance: the test is not defined
        return one[0] != other[0]
    from scipy.stats import ttest_ind

    return bool(ttest_ind(one, other, equal_var=False).pvalue < LEVEL)
