"""How certain a mean over training runs is: its standard error, and bootstrap intervals by rliable."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .extras import require_modules

__all__ = ["Estimate", "aggregate", "bootstrap_columns", "bootstrap_interval", "standard_error"]

RESAMPLES = 2000
SEED = 0

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of ``values``, from the sample standard deviation.

    None for fewer than two values, and where one is not finite: then there is none.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def bootstrap_interval(values: Sequence[float]) -> Estimate | None:
    """Mean of ``values``, one for each run or episode, with its percentile bootstrap interval.

    None for fewer than two values, and where one is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return bootstrap_columns(np.asarray(values, dtype=np.float64)[:, None])[0]


def bootstrap_columns(scores: Scores) -> list[Estimate]:
    """Mean of each column with its percentile bootstrap interval, as `bootstrap_interval` of each, in one go.

    Args:
        scores: (R, T) number t of run r, for at least two runs.
    """
    return _estimate(scores, lambda sample: sample.mean(axis=0))


def aggregate(scores: Scores) -> tuple[Estimate, Estimate]:
    """Mean and interquartile mean over runs and tasks, with stratified bootstrap intervals.

    Args:
        scores: (R, T) score of run r on task t. Runs are resampled within each task (Agarwal et al., 2021,
            arXiv 2108.13264), so the intervals are about other seeds, not about other tasks.

    Raises:
        ValueError: there are fewer than two runs.
    """
    if len(scores) < 2:
        raise ValueError(
            f"aggregate: scores of shape {scores.shape} hold {len(scores)} runs; give at least 2 of each task"
        )
    mean, iqm = _estimate(scores, _mean_and_iqm)
    return mean, iqm


def _mean_and_iqm(sample: Scores) -> Scores:
    from rliable import metrics

    return np.array([metrics.aggregate_mean(sample), metrics.aggregate_iqm(sample)])


def _estimate(scores: Scores, figures: Callable[[Scores], Scores]) -> list[Estimate]:
    require_modules("report", "rliable")
    from rliable import library

    with _seeded():
        points, intervals = library.get_interval_estimates({"": scores}, figures, reps=RESAMPLES)
    low, high = intervals[""]
    return [Estimate(*map(float, numbers)) for numbers in zip(points[""], low, high, strict=True)]


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed numpy's global generator, which rliable always draws from, for a block, and restore it afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(SEED)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
