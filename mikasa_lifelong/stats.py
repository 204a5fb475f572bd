"""How certain a mean over seeds is, and whether two learners differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "differs", "summarise"]

LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """A mean over seeds."""

    mean: float
    low: float
    """Lower end of the 95 % interval; nan where there is none."""
    high: float
    """Its upper end."""
    runs: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean of one number for each seed, with the 95 % percentile bootstrap over seeds by rliable, nan for fewer than two.

    Raises:
        ModuleNotFoundError: rliable is not installed.
    """
    if not values or any(map(math.isnan, values)):
        return Summary(math.nan, math.nan, math.nan, len(values))
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Summary(mean, math.nan, math.nan, 1)
    from mikasa_robo.tools.intervals import bootstrap_interval

    estimate = bootstrap_interval(values)
    assert estimate is not None
    return Summary(mean, estimate.low, estimate.high, len(values))


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
