"""Pictures and labels from the files of MNIST and CIFAR-100, as their authors publish them."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import LifelongError

__all__ = ["Pictures", "read_cifar100", "read_mnist"]

Pictures = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Pixels (N, P) in [0, 1], and a label for each picture, (N,) or, in CIFAR-100, the coarse and the fine one, (N, 2)."""

CIFAR_PIXELS = 3 * 32 * 32


def _read(folder: Path, name: str) -> tuple[Path, bytes]:
    """The content of a file or, where there is none of that name, of the same with .gz."""
    path = folder / name
    if not path.is_file() and (packed := folder / f"{name}.gz").is_file():
        path = packed
    try:
        content = path.read_bytes()
        return path, gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise LifelongError(
            f"--data {folder}: {path.name} cannot be read ({error}); name the folder of the files"
        ) from error


def _read_idx(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes: two zeros, 8 for unsigned bytes, the number of dimensions, the dimensions as big-endian 32 bit."""
    path, content = _read(folder, name)
    start = 4 + 4 * dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], ">u4")) if len(content) >= start else ()
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) - start != math.prod(shape):
        raise LifelongError(
            f"--data {folder}: {path.name} is not an idx file of bytes in {dimensions} dimensions; fetch it anew"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _pixels(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (raw.reshape(len(raw), -1) / 255).astype(np.float32)


def read_mnist(folder: Path) -> tuple[Pictures, Pictures]:
    """Training and test pictures of MNIST, or of another set of ten classes in its format, such as Fashion-MNIST.

    The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, each as it is or with ``.gz``.

    Raises:
        LifelongError: a file is missing or damaged, or pictures and labels do not fit together.
    """
    parts, sizes = [], []
    for part in ("train", "t10k"):
        pictures, labels = (
            _read_idx(folder, f"{part}-images-idx3-ubyte", 3),
            _read_idx(folder, f"{part}-labels-idx1-ubyte", 1),
        )
        if len(pictures) != len(labels) or not len(labels) or labels.max() > 9:
            raise LifelongError(
                f"--data {folder}: {len(pictures)} pictures and {len(labels)} labels of {part} do not fit together, or "
                "labels are above 9; use the four files of one set"
            )
        sizes.append("x".join(map(str, pictures.shape[1:])))
        parts.append((_pixels(pictures), labels.astype(np.int64)))
    if sizes[0] != sizes[1]:
        raise LifelongError(
            f"--data {folder}: training pictures have {sizes[0]} pixels and test pictures {sizes[1]}; use the four files of "
            "one set"
        )
    return parts[0], parts[1]


def read_cifar100(folder: Path) -> tuple[Pictures, Pictures]:
    """Training and test pictures of CIFAR-100's binary version: ``train.bin`` and ``test.bin``.

    Raises:
        LifelongError: a file is missing or damaged.
    """
    parts = []
    for name in ("train.bin", "test.bin"):
        path, content = _read(folder, name)
        if not content or len(content) % (2 + CIFAR_PIXELS):
            raise LifelongError(
                f"--data {folder}: {path.name} has {len(content)} bytes, no multiple of {2 + CIFAR_PIXELS}; fetch "
                "CIFAR-100's binary version"
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, 2 + CIFAR_PIXELS)
        if rows[:, 0].max() > 19 or rows[:, 1].max() > 99:
            raise LifelongError(
                f"--data {folder}: {path.name} has labels above 19 or 99; fetch CIFAR-100's binary version"
            )
        parts.append((_pixels(rows[:, 2:]), rows[:, :2].astype(np.int64)))
    return parts[0], parts[1]
