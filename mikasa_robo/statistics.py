"""Statistics of success rates."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

__all__ = ["lowest_difference", "wilson_interval"]


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a success rate, for a confidence ``level`` in (0, 1).

    >>> [round(x, 4) for x in wilson_interval(95, 100)]
    [0.8882, 0.9785]

    Raises:
        ValueError: not 0 <= successes <= trials, or no trials.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(
            f"wilson_interval: {successes} successes in {trials} trials; need 0 <= successes <= trials >= 1"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = successes / trials
    denominator = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / denominator
    half = z * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def lowest_difference(one: tuple[int, int], other: tuple[int, int], level: float = 0.95) -> float:
    """The lower end of the interval of the difference of two success rates, ``one`` minus ``other``.

    Newcombe's hybrid score interval (1998, Statistics in Medicine 17, 873-890, method 10), from two Wilson intervals.

    >>> round(lowest_difference((56, 70), (48, 80)), 4)
    0.0524

    Args:
        one: successes and trials.
        other: likewise.
        level: confidence of the two-sided interval, in (0, 1).
    """
    rate, reference = one[0] / one[1], other[0] / other[1]
    low, high = wilson_interval(*one, level)[0], wilson_interval(*other, level)[1]
    return rate - reference - sqrt((rate - low) ** 2 + (high - reference) ** 2)
