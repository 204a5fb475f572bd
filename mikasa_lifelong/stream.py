"""What a world provides: tasks with data to learn from and a way to be played, and streams of them. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .catalog import TASKS, StreamRow, load_entry_point
from .errors import LifelongError

__all__ = [
    "ArrayDataset",
    "Batch",
    "Dataset",
    "DrawableTask",
    "Policy",
    "Scores",
    "Signature",
    "Task",
    "TaskStream",
    "UnionDataset",
]

Batch = Mapping[str, NDArray[Any]]
"""Named arrays with a common leading axis: inputs, and in training also targets."""


@dataclass(frozen=True)
class Signature:
    """What a network for a task reads and writes."""

    inputs: Mapping[str, tuple[int, ...]]
    """Shape of each input for one example, by its name in a batch."""
    head: str
    """How outputs become actions: a name in `mikasa_lifelong.nets.HEADS`."""
    outputs: int
    """The head's size, such as the number of classes."""


class Dataset(Protocol):
    """Items to learn from. An item is what a batch is drawn of: a labelled picture, a step or a window of an episode."""

    def __len__(self) -> int: ...

    @property
    def numbers_per_item(self) -> int:
        """How many numbers an item takes in memory."""

    def draw(self, rows: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """The items ``rows`` (B,), with repetitions, as arrays (B, …).

        Whatever chance adds, such as a relabelled goal, is drawn from ``rng`` alone.
        """

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """A dataset of the items ``rows`` only."""


class ArrayDataset:
    """Items that are rows of arrays.

    Args:
        columns: arrays (N, …) by name.

    Raises:
        LifelongError: there are no columns or no rows, or the columns differ in length.
    """

    def __init__(self, columns: Batch) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise LifelongError(f"columns of length {lengths} are no dataset; give at least one, all of one length > 0")
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def numbers_per_item(self) -> int:
        return sum(int(np.prod(column.shape[1:])) for column in self.columns.values())

    def draw(self, rows: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        return {name: column[rows] for name, column in self.columns.items()}

    def take(self, rows: NDArray[np.int64]) -> ArrayDataset:
        return ArrayDataset({name: column[rows] for name, column in self.columns.items()})


class UnionDataset:
    """The items of several datasets one after another; all of them have the same columns."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        if not parts:
            raise LifelongError("a union of no datasets has no items; give at least one")
        self.parts = list(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])  # (parts + 1,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def numbers_per_item(self) -> int:
        return max(part.numbers_per_item for part in self.parts)

    def _local(self, rows: NDArray[np.int64]) -> list[tuple[Dataset, NDArray[np.bool_], NDArray[np.int64]]]:
        """For each part with items among ``rows``: the part, which of ``rows`` are its own (B,), and their rows in it."""
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        found = []
        for i, part in enumerate(self.parts):
            mine = owner == i
            if mine.any():
                found.append((part, mine, rows[mine] - self._starts[i]))
        return found

    def draw(self, rows: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        local = self._local(rows)
        if len(local) == 1:
            part, _, within = local[0]
            return part.draw(within, rng)
        batch: dict[str, NDArray[Any]] = {}
        for part, mine, within in local:
            for name, values in part.draw(within, rng).items():
                if name not in batch:
                    batch[name] = np.empty((len(rows), *values.shape[1:]), values.dtype)
                batch[name][mine] = values
        return batch

    def take(self, rows: NDArray[np.int64]) -> UnionDataset:
        """The items ``rows``, sorted by the datasets that they come from."""
        return UnionDataset([part.take(within) for part, _, within in self._local(rows)])


class Policy(Protocol):
    """What plays a task. It acts by the mode of its distribution, so equal policies score equally."""

    def on_episode_start(self) -> None:
        """New episodes begin: forget the last ones."""

    def act(self, obs: Batch) -> NDArray[Any]:
        """Actions (N, …) for the inputs of N episodes that run side by side, or of N examples."""


@dataclass(frozen=True)
class Scores:
    """The result of one evaluation."""

    successes: int
    trials: int
    value: float
    """The score of the record, from 0 to 1; in general ``successes / trials``."""


class Task(Protocol):
    """A task of a world, built from its `mikasa_lifelong.catalog.TaskRow`."""

    signature: Signature

    def dataset(self, seed: int) -> Dataset:
        """What a learner of run ``seed`` learns the task from; the same at every call."""

    def evaluate(self, policy: Policy, episodes: int | None) -> Scores:
        """Play ``episodes`` episodes, by default as many as the task has or as its world thinks right.

        Episode j has the same seed at every call.
        """


@runtime_checkable
class DrawableTask(Protocol):
    """A task whose episodes can be drawn."""

    def frames(self, policy: Policy, episode: int) -> Iterator[NDArray[np.uint8]]:
        """Play episode ``episode`` of the evaluation, counted from 0; yield images (H, W, 3), one at least."""


class TaskStream:
    """The tasks of a stream, built. A task that stands in several places is built once.

    A task that reads files may have an attribute ``data_sha256``, the SHA-256 of what it reads in hexadecimal digits. With
    it a run knows its data again, also where the folder has moved. One with a limited number of episodes, such as the items
    of a test set, may have an attribute ``most_episodes``, so that no more are asked for.

    Args:
        row: the stream.
        data: folder with the data of its tasks, where these take it from files.
    """

    def __init__(self, row: StreamRow, data: Path | None = None) -> None:
        self.row, self.data = row, data
        files = {} if data is None else {"data": data}
        built = {name: load_entry_point(TASKS[name].entry_point)(**TASKS[name].kwargs, **files) for name in row.tasks}
        self.tasks: list[Task] = [built[name] for name in row.tasks]
        self._datasets: dict[tuple[str, int], Dataset] = {}
        first = self.tasks[0].signature
        for name, task in built.items():
            if task.signature != first:
                raise LifelongError(
                    f"stream {row.name!r}: {name} has {task.signature}, and {row.tasks[0]} has {first}; one network has to "
                    "serve all tasks of a stream"
                )

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def data_sha256(self) -> str | None:
        """Of what the tasks read from files; None where no task tells it."""
        told = list(dict.fromkeys(getattr(task, "data_sha256", None) for task in self.tasks))
        if len(told) == 1:
            return told[0]
        return hashlib.sha256(" ".join(map(str, told)).encode()).hexdigest()

    def require_tasks(self, expected: Sequence[str], what: str) -> None:
        """Raise LifelongError where ``expected``, the tasks of ``what``, are not those of the stream as it is now."""
        tasks = self.row.tasks
        if tuple(expected) != tasks:
            raise LifelongError(
                f"{what} has the tasks {', '.join(expected)}, and the stream {self.row.name} has {', '.join(tasks)} now; "
                "register it as it was, or start a new run"
            )

    def require_episodes(self, episodes: int | None) -> None:
        """Raise LifelongError where a task does not have so many episodes."""
        for name, task in zip(self.row.tasks, self.tasks, strict=True):
            most = getattr(task, "most_episodes", None)
            if episodes is not None and most is not None and episodes > most:
                raise LifelongError(
                    f"--episodes {episodes}: {name} has {most} for an evaluation; use at most as many as each task of "
                    f"{self.row.name} has, or leave it out to use all"
                )

    def require_data(self, expected: str | None, what: str) -> None:
        """Raise LifelongError where ``expected``, the `data_sha256` of ``what``, is known and that of other data."""
        if expected is not None and expected != self.data_sha256:
            raise LifelongError(
                f"{what} learnt from other data than there is in {self.data} now (SHA-256 {expected}, now "
                f"{self.data_sha256}); put the files back as they were, or start a new run"
            )

    @property
    def signature(self) -> Signature:
        """That of every task."""
        return self.tasks[0].signature

    def dataset(self, k: int, seed: int) -> Dataset:
        """The data of the task in place ``k``, counted from 0; built once."""
        key = (self.row.tasks[k], seed)
        if key not in self._datasets:
            self._datasets[key] = self.tasks[k].dataset(seed)
        return self._datasets[key]
