"""Is a dataset as its manifest says?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .dataset import Dataset, checksum
from .episode import Array, Episode
from .store import DataError, read_episode

__all__ = ["count_problems", "file_problems", "find_problems", "unlisted_files"]


def find_problems(dataset: Dataset) -> Iterator[str]:
    """What is wrong with a complete dataset, one sentence each: with its files, its counts, and its native episodes.

    Raises:
        DataError: the dataset is not complete, or its manifest lacks an entry.
    """
    rows = dataset.rows()
    manifest: Mapping[str, Any] = dataset.manifest or {}
    try:
        files, native = manifest["files"], manifest["native"]
        all_rows = [*rows, *manifest["left_out"]]
        yield from file_problems(dataset, files)
        yield from count_problems(dataset)
        shapes: dict[str, tuple[Any, ...]] = {}
        for row in all_rows if native else ():
            path = dataset.folder / row["file"]
            if row["file"] not in files:
                yield f"{row['file']} is not among the files of the manifest"
            elif os.path.isfile(path):
                yield from _episode_problems(dataset, row, shapes)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the manifest of {dataset.folder} is broken ({type(error).__name__}: {error})") from error


def unlisted_files(dataset: Dataset) -> list[str]:
    """Files in the folders of a dataset that its manifest does not list."""
    files = (dataset.manifest or {}).get("files", {})
    names = (path.relative_to(dataset.folder).as_posix() for path in dataset.files())
    return [name for name in names if name not in files]


def file_problems(dataset: Dataset, files: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with ``files``, entries of the manifest by name: whether they are there, with the checksums of it."""
    for name, entry in files.items():
        path = dataset.folder / name
        try:
            if not path.is_file():
                yield f"{name} is missing"
            elif path.stat().st_size != entry["bytes"]:
                yield f"{name} has {path.stat().st_size} bytes, not {entry['bytes']}"
            elif checksum(path) != entry["sha256"]:
                yield f"{name} has changed: its SHA-256 is not that of the manifest"
        except OSError as error:  # no permission, or a broken disk
            yield f"{name} cannot be read ({error.strerror or error})"


def count_problems(dataset: Dataset) -> Iterator[str]:
    """Where the summary of a complete dataset does not fit its list of episodes, and what is wrong with the list."""
    rows, summary = dataset.rows(), (dataset.manifest or {})["summary"]
    counted = {
        "episodes": len(rows),
        "successes": sum(row["success"] for row in rows),
        "failures": sum(row["fail"] for row in rows),
        "steps": sum(row["length"] for row in rows),
    }
    for name, number in counted.items():
        if summary[name] != number:
            yield f"the summary says {summary[name]} {name}, and the list of episodes {number}"
    if [row["index"] for row in rows] != list(range(len(rows))):
        yield "the episodes are not numbered from 0 on without gaps"
    if len({row["seed"] for row in rows}) != len(rows):
        yield "two episodes have the same seed"


def _episode_problems(dataset: Dataset, row: Mapping[str, Any], shapes: dict[str, tuple[Any, ...]]) -> Iterator[str]:
    """Of one native episode. ``shapes`` holds the dtypes and shapes that the first had, and gets those of this one."""
    try:
        episode = read_episode(dataset.folder / row["file"], row.get("index", -1))
    except DataError as error:
        yield str(error)
        return
    for name in ("seed", "success", "fail", "terminated", "truncated", "length", "noise", "policy"):
        if getattr(episode, name) != row[name]:
            yield f"{row['file']} has the {name} {getattr(episode, name)!r}, and the manifest says {row[name]!r}"
    for name, array, length in _arrays(episode):
        if len(array) != length:
            yield f"{row['file']}: {name} has {len(array)} rows, not {length}"
        kind = (array.dtype, array.shape[1:])
        if shapes.setdefault(name, kind) != kind:
            yield f"{row['file']}: {name} is {kind[0]} {kind[1]}, and {shapes[name][0]} {shapes[name][1]} before"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            yield f"{row['file']}: {name} has values that are not finite"
    if set(shapes) - {name for name, _, _ in _arrays(episode)}:
        yield f"{row['file']} lacks {', '.join(sorted(set(shapes) - {name for name, _, _ in _arrays(episode)}))}"
    if np.abs(episode.actions).max(initial=0.0) > 1.0:
        yield f"{row['file']}: actions are not all in [-1, 1]"


def _arrays(episode: Episode) -> list[tuple[str, Array, int]]:
    """All arrays, with their names in the file and the number of rows that each should have."""
    found = [("actions", episode.actions, episode.length), ("rewards", episode.rewards, episode.length)]
    for group, more in (("observations", 1), ("columns", 1), ("step_columns", 0)):
        arrays: Mapping[str, Array] = getattr(episode, group)
        found += [(f"{group}/{name}", array, episode.length + more) for name, array in arrays.items()]
    return [*found, *((name, array, episode.length + 1) for name, array in episode.states.items())]
