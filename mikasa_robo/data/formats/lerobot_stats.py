"""The statistics of LeRobot datasets, over any number of episodes in bounded memory.

LeRobot 0.6.1 computes them for each episode and joins those: the mean and the standard deviation exactly, the quantiles as
the mean of the episodes' quantiles, weighted by their lengths. So do these. Quantiles of an episode are exact here, where
LeRobot reads them off a histogram of 5,000 bins.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mikasa_robo.data.episode import Array

__all__ = ["QUANTILES", "RunningStats", "Stats", "image_stats", "vector_stats"]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, NDArray[np.float64]]
"""min, max, mean, std and the quantiles, all of one shape, and count (1,)."""

_FEW, _MANY = 100, 10_000  # how many images of an episode are looked at: all of a few, and at most so many
_LARGE, _SMALLER = 300, 150  # pixels; larger images are thinned out to about so many


def vector_stats(values: Array) -> Stats:
    """Statistics of the rows of ``values`` (L, D), each (D,)."""
    ordered = np.sort(values.astype(np.float64), axis=0)
    count = len(ordered)
    quantiles = {name: ordered[_rank(q, count)] for name, q in QUANTILES.items()}
    mean, std = ordered.mean(axis=0), ordered.std(axis=0)
    return {"min": ordered[0], "max": ordered[-1], "mean": mean, "std": std, "count": np.array([count]), **quantiles}


def image_stats(images: Array, scale: float) -> Stats:
    """Statistics of the channels of images (L, H, W, C) of whole numbers from 0 on, divided by ``scale``; each (C, 1, 1).

    Like LeRobot, of some images alone where there are more than 100, and of some pixels where images are large.
    """
    sample = images[sampled_indices(len(images))]
    height, width = images.shape[1:3]
    if max(height, width) >= _LARGE:
        step = max(height, width) // _SMALLER
        sample = sample[:, ::step, ::step]
    stats: dict[str, list[float]] = {}
    for channel in range(images.shape[-1]):
        histogram = np.bincount(sample[..., channel].reshape(-1))
        for name, value in _histogram_stats(histogram).items():
            stats.setdefault(name, []).append(value / scale)
    shaped = {name: np.array(values).reshape(-1, 1, 1) for name, values in stats.items()}
    return {**shaped, "count": np.array([len(sample)])}


def sampled_indices(length: int) -> NDArray[np.int64]:
    """Which of ``length`` images LeRobot looks at: about length**0.75, spread evenly."""
    count = max(min(_FEW, length), min(int(length**0.75), _MANY))
    return np.round(np.linspace(0, length - 1, count)).astype(np.int64)


def _histogram_stats(histogram: NDArray[np.intp]) -> dict[str, float]:
    values = np.arange(len(histogram), dtype=np.float64)
    seen = np.flatnonzero(histogram)
    below = np.cumsum(histogram)
    count = int(below[-1])
    mean = float(values @ histogram) / count
    variance = float((values - mean) ** 2 @ histogram) / count
    quantiles = {name: float(np.searchsorted(below, _rank(q, count) + 1)) for name, q in QUANTILES.items()}
    return {"min": float(seen[0]), "max": float(seen[-1]), "mean": mean, "std": math.sqrt(variance), **quantiles}


def _rank(quantile: float, count: int) -> int:
    """Which of ``count`` ordered values is the quantile: the first that so many are not above."""
    return max(math.ceil(quantile * count) - 1, 0)


class RunningStats:
    """Joins the statistics of the episodes of one feature, as LeRobot does."""

    def __init__(self) -> None:
        self._count = 0
        self._squares: NDArray[np.float64] = np.zeros(())  # sum of squared differences from the mean
        self._stats: Stats = {}

    def add(self, stats: Stats) -> None:
        """Add an episode."""
        count = int(stats["count"][0])
        squares = stats["std"] ** 2 * count
        if not self._stats:
            self._count, self._squares, self._stats = count, squares, dict(stats)
            return
        before, total = self._count, self._count + count
        delta = stats["mean"] - self._stats["mean"]
        self._squares = self._squares + squares + delta**2 * (before * count / total)
        for name in ("mean", *QUANTILES):
            self._stats[name] = self._stats[name] + (stats[name] - self._stats[name]) * (count / total)
        self._stats["min"] = np.minimum(self._stats["min"], stats["min"])
        self._stats["max"] = np.maximum(self._stats["max"], stats["max"])
        self._count = total

    def result(self) -> Stats:
        """The statistics of all episodes so far; there is at least one."""
        return {**self._stats, "std": np.sqrt(self._squares / self._count), "count": np.array([self._count])}
