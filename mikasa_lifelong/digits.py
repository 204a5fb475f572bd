"""Digits: 1797 handwritten digits of 8 x 8 pixels, which scikit-learn brings along, so nothing is fetched.

Larger sets, MNIST and CIFAR-100, are read from the user's own files.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data_files import Pictures, read_cifar100, read_mnist
from .errors import LifelongError
from .stream import ArrayDataset, Policy, Scores, Signature

__all__ = ["CifarGroup", "DigitPair", "PermutedDigits", "load_split"]

TRAIN_SHARE = 0.7
SPLIT_SEED, PERMUTATION_SEED = 0, 1
GROUP_SIZE = 5
"""Classes in a group of CIFAR-100."""

Split = tuple[Pictures, Pictures]
"""Training and test data."""


@functools.cache
def _read_once(read: Callable[[Path], Split], folder: Path) -> tuple[Split, str]:
    """What ``read`` returns for a folder, and the SHA-256 of it in hexadecimal digits."""
    split = read(folder)
    digest = hashlib.sha256()
    for array in (array for part in split for array in part):
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return split, digest.hexdigest()


@functools.cache
def load_split() -> Split:
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


class _Pictures:
    """Classification: the input is ``x`` (P,), the target ``label`` ()."""

    data_sha256: str | None
    """Of the pictures and labels from ``--data``, see `mikasa_lifelong.stream.TaskStream.data_sha256`."""

    def __init__(self, split: Split, data_sha256: str | None, classes: int) -> None:
        self._split, self.data_sha256 = split, data_sha256
        self.signature = Signature({"x": split[0][0].shape[1:]}, "categorical", classes)

    def _select(self, x: NDArray[np.float32], labels: NDArray[np.int64]) -> Pictures:
        raise NotImplementedError

    @property
    def most_episodes(self) -> int:
        """Items of the test data."""
        return len(self._select(*self._split[1])[1])

    def dataset(self, seed: int) -> ArrayDataset:
        """The training data; ``seed`` changes nothing, as there is only one."""
        x, label = self._select(*self._split[0])
        return ArrayDataset({"x": x, "label": label})

    def evaluate(self, policy: Policy, episodes: int | None) -> Scores:
        """Name the classes of the test data, or of its first ``episodes`` items."""
        x, label = self._select(*self._split[1])
        x, label = x[:episodes], label[:episodes]
        policy.on_episode_start()
        answers: NDArray[Any] = policy.act({"x": x})
        right = int((answers == label).sum())
        return Scores(right, len(label), right / len(label))


def _digits(data: Path | None) -> tuple[Split, str | None]:
    return (load_split(), None) if data is None else _read_once(read_mnist, data)


class DigitPair(_Pictures):
    """Which of two digits is it? The label is 0 for the first and 1 for the second.

    Args:
        digits: the two digits.
        data: folder with the files of MNIST, see `read_mnist`; by default scikit-learn's digits.

    Raises:
        LifelongError: there are no training or no test pictures of one of the digits.
    """

    def __init__(self, digits: tuple[int, int], data: Path | None = None) -> None:
        super().__init__(*_digits(data), classes=2)
        self._pair = digits
        for part, (_, labels) in zip(("training", "test"), self._split, strict=True):
            for digit in digits:
                if digit not in labels:
                    raise LifelongError(
                        f"--data {data}: there is no {part} picture of the digit {digit}; use the four files of a set that "
                        "has all ten"
                    )

    def _select(self, x: NDArray[np.float32], labels: NDArray[np.int64]) -> Pictures:
        rows = np.isin(labels, self._pair)
        return x[rows], (labels[rows] == self._pair[1]).astype(np.int64)


class PermutedDigits(_Pictures):
    """Which of ten digits is it, with the pixels in another order?

    Args:
        permutation: number of the order; 0 leaves the pixels where they are.
        data: as for `DigitPair`.
    """

    def __init__(self, permutation: int, data: Path | None = None) -> None:
        super().__init__(*_digits(data), classes=10)
        (pixels,) = self.signature.inputs["x"]
        rng = np.random.default_rng([PERMUTATION_SEED, permutation])
        self._order = rng.permutation(pixels) if permutation else np.arange(pixels)

    def _select(self, x: NDArray[np.float32], labels: NDArray[np.int64]) -> Pictures:
        return x[:, self._order], labels


class CifarGroup(_Pictures):
    """Which of the five classes of a group (a coarse label of CIFAR-100) is it? Labels are 0 to 4.

    Args:
        group: the coarse label.
        data: folder with the files of CIFAR-100, see `read_cifar100`.

    Raises:
        LifelongError: there is no ``data``, or the group does not have the same five classes in both of its files.
    """

    def __init__(self, group: int, data: Path | None = None) -> None:
        if data is None:
            raise LifelongError("this stream needs --data, a folder with train.bin and test.bin of CIFAR-100")
        super().__init__(*_read_once(read_cifar100, data), classes=GROUP_SIZE)
        self._group = group
        self._classes, of_test = (np.unique(labels[labels[:, 0] == group, 1]) for _, labels in self._split)
        for classes in (self._classes, of_test):
            if len(classes) != GROUP_SIZE:
                raise LifelongError(
                    f"--data {data}: the coarse label {group} has {len(classes)} classes, not {GROUP_SIZE}; fetch "
                    "CIFAR-100's binary version"
                )
        if not np.array_equal(self._classes, of_test):
            raise LifelongError(
                f"--data {data}: the coarse label {group} has the classes {self._classes.tolist()} in train.bin and "
                f"{of_test.tolist()} in test.bin; fetch CIFAR-100's binary version"
            )

    def _select(self, x: NDArray[np.float32], labels: NDArray[np.int64]) -> Pictures:
        rows = labels[:, 0] == self._group
        return x[rows], np.searchsorted(self._classes, labels[rows, 1])
