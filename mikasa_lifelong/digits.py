"""Digits: 1797 handwritten digits of 8 x 8 pixels, which scikit-learn brings along, so nothing is fetched."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import LifelongError
from .stream import ArrayDataset, Policy, Scores, Signature

__all__ = ["DigitPair", "PermutedDigits", "load_split"]

TRAIN_SHARE = 0.7
SPLIT_SEED, PERMUTATION_SEED = 0, 1
PIXELS = 64

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@functools.cache
def load_split() -> tuple[Arrays, Arrays]:
    """Training and test data: pixels (N, 64) in [0, 1] and digits (N,). The split is always the same.

    Raises:
        LifelongError: scikit-learn is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise LifelongError("digits need scikit-learn, which is not installed: pip install 'mikasa-suite[lifelong]'")
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32), digits.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    cut = round(TRAIN_SHARE * len(x))
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


class _Digits:
    """Classification: the input is ``x`` (64,), the target ``label`` ()."""

    def __init__(self, classes: int) -> None:
        self.signature = Signature({"x": (PIXELS,)}, "categorical", classes)

    def _select(self, x: NDArray[np.float32], digits: NDArray[np.int64]) -> Arrays:
        raise NotImplementedError

    def dataset(self, seed: int) -> ArrayDataset:
        """The training data; ``seed`` changes nothing, as there is only one."""
        x, label = self._select(*load_split()[0])
        return ArrayDataset({"x": x, "label": label})

    def evaluate(self, policy: Policy, episodes: int | None) -> Scores:
        """Name the digits of the test data, or of its first ``episodes`` items."""
        x, label = self._select(*load_split()[1])
        x, label = x[:episodes], label[:episodes]
        policy.on_episode_start()
        answers: NDArray[Any] = policy.act({"x": x})
        right = int((answers == label).sum())
        return Scores(right, len(label), right / len(label))


class DigitPair(_Digits):
    """Which of two digits is it? The label is 0 for the first and 1 for the second.

    Args:
        digits: the two digits.
    """

    def __init__(self, digits: tuple[int, int]) -> None:
        super().__init__(classes=2)
        self._pair = digits

    def _select(self, x: NDArray[np.float32], digits: NDArray[np.int64]) -> Arrays:
        rows = np.isin(digits, self._pair)
        return x[rows], (digits[rows] == self._pair[1]).astype(np.int64)


class PermutedDigits(_Digits):
    """Which of ten digits is it, with the pixels in another order?

    Args:
        permutation: number of the order; 0 leaves the pixels where they are.
    """

    def __init__(self, permutation: int) -> None:
        super().__init__(classes=10)
        rng = np.random.default_rng([PERMUTATION_SEED, permutation])
        self._order = rng.permutation(PIXELS) if permutation else np.arange(PIXELS)

    def _select(self, x: NDArray[np.float32], digits: NDArray[np.int64]) -> Arrays:
        return x[:, self._order], digits
