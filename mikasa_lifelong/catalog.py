"""The table of tasks and streams: one row each, which the command line, documentation and tests read.

This module needs only the standard library.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .errors import LifelongError, find

__all__ = ["STREAMS", "TASKS", "StreamRow", "TaskRow", "find_stream", "load_entry_point", "register"]


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task of a world; a stream may name it more than once."""

    name: str
    world: str
    """The world that it belongs to, such as ``"digits"``."""
    instruction: str
    """The task in one English sentence."""
    entry_point: str
    """The class of the `mikasa_lifelong.stream.Task`, ``"module:Class"``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its constructor's arguments, kept as a read-only copy."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """One stream: tasks in the order in which they are learnt. The network and the sizes below are its defaults."""

    name: str
    summary: str
    """What changes from task to task, in one line."""
    tasks: tuple[str, ...]
    """Names of `TaskRow`; a repeated task is measured once for each place that it has."""
    network: str
    """A name in `mikasa_lifelong.nets.NETWORKS`."""
    steps: int
    """Gradient steps per task."""
    batch_size: int
    learning_rate: float
    hidden_size: int
    dropout: float = 0.0
    paper_steps: int | None = None
    """Gradient steps per task in the paper, for ``--protocol paper``."""
    needs_data: bool = False
    """Whether it reads files, so that ``--data`` must name their folder."""
    source: str
    """Where the stream comes from."""


_tasks: dict[str, TaskRow] = {}
_streams: dict[str, StreamRow] = {}
TASKS: Mapping[str, TaskRow] = MappingProxyType(_tasks)
"""Every task by its name."""
STREAMS: Mapping[str, StreamRow] = MappingProxyType(_streams)
"""Every stream by its name."""


def register(tasks: Iterable[TaskRow] = (), streams: Iterable[StreamRow] = ()) -> None:
    """Add tasks and streams, for example of your own.

    Raises:
        LifelongError: a name is taken, or a stream has no task or one that does not exist. Nothing has been added.
    """
    new_tasks, new_streams = _by_name("task", tasks, TASKS), _by_name("stream", streams, STREAMS)
    for stream in new_streams.values():
        if not stream.tasks:
            raise LifelongError(f"the stream {stream.name!r} has no tasks; name at least one")
        for task in stream.tasks:
            find("task", task, {**TASKS, **new_tasks}, f"stream {stream.name!r}, task")
    _tasks.update(new_tasks)
    _streams.update(new_streams)


def _by_name(kind: str, rows: Iterable[Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in rows:
        if row.name in taken or row.name in found:
            raise LifelongError(f"there is a {kind} {row.name!r} already; choose another name")
        found[row.name] = row
    return found


def find_stream(name: str, option: str = "") -> StreamRow:
    """The row of a stream. Raises LifelongError, which names similar ones, if there is none."""
    return find("stream", name, STREAMS, option)


def load_entry_point(entry_point: str) -> Any:
    """What ``"module:name"`` names; imports the module.

    Raises:
        LifelongError: it is not of that form, there is no such module, or the module has no such name.
        ModuleNotFoundError: the module needs another one that is not installed.
    """
    module, _, name = entry_point.partition(":")
    if not module or not name:
        raise LifelongError(
            f"entry point {entry_point!r} should have the form 'module:name', such as 'my_tasks:MyTask'"
        )
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise LifelongError(
            f"entry point {entry_point!r}: there is no module {error.name!r}; correct the name, or put its folder on "
            "PYTHONPATH"
        ) from error
    if not hasattr(loaded, name):
        raise LifelongError(f"entry point {entry_point!r}: the module {module} has no {name!r}; correct the name")
    return getattr(loaded, name)


_PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
_ORDERS = {"": (0, 1, 2, 3, 4), "-b": (4, 3, 2, 1, 0), "-c": (2, 0, 4, 1, 3)}
"""Suffixes of a stream's name, and in which order it has the tasks."""
_DIGITS = "1797 digits of 8 x 8 pixels (scikit-learn, from UCI's Optical Recognition of Handwritten Digits)"


def _digit_tasks() -> Iterator[TaskRow]:
    for low, high in _PAIRS:
        yield TaskRow(
            name=f"digits-{low}{high}",
            world="digits",
            instruction=f"Tell the digits {low} and {high} apart.",
            entry_point="mikasa_lifelong.digits:DigitPair",
            kwargs={"digits": (low, high)},
        )
    for number in range(5):
        yield TaskRow(
            name=f"permuted-digits-{number}",
            world="digits",
            instruction="Name the digit" + (f", with its pixels in shuffled order {number}." if number else "."),
            entry_point="mikasa_lifelong.digits:PermutedDigits",
            kwargs={"permutation": number},
        )
    for group in range(20):
        yield TaskRow(
            name=f"cifar100-{group}",
            world="digits",
            instruction=f"Tell the five classes of group {group} of CIFAR-100 apart.",
            entry_point="mikasa_lifelong.digits:CifarGroup",
            kwargs={"group": group},
        )


def _digit_streams() -> Iterator[StreamRow]:
    for suffix, order in _ORDERS.items():
        yield StreamRow(
            name=f"split-digits{suffix}",
            summary="five pairs of digits; one network with two outputs says which of the pair it sees",
            tasks=tuple("digits-{}{}".format(*_PAIRS[i]) for i in order),
            network="residual-mlp",
            steps=300,
            batch_size=64,
            learning_rate=1e-3,
            hidden_size=64,
            source=f"{_DIGITS}; split as in Zenke et al. 2017 (arXiv 1703.04200)",
        )
    for suffix, order in _ORDERS.items():
        yield StreamRow(
            name=f"permuted-digits{suffix}",
            summary="ten digits; all tasks but the first shuffle the pixels, each in its own way",
            tasks=tuple(f"permuted-digits-{i}" for i in order),
            network="residual-mlp",
            steps=300,
            batch_size=64,
            learning_rate=1e-3,
            hidden_size=64,
            source=f"{_DIGITS}; permuted as in Goodfellow et al. 2013 (arXiv 1312.6211)",
        )
    yield StreamRow(
        name="split-cifar100",
        summary="twenty groups of five classes; one network with five outputs; needs --data",
        tasks=tuple(f"cifar100-{group}" for group in range(20)),
        network="residual-mlp",
        steps=1000,
        batch_size=64,
        learning_rate=3e-4,
        hidden_size=256,
        needs_data=True,
        source="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; the groups are its coarse labels",
    )


_NAV_STREAMS = {
    "ST1": "Base OXO Base OOX",
    "ST2": "Base OXX XOO OXX",
    "AT1": "HOOX HXOX HXOX HOOX",
    "AT2": "LOOO LOOO LXOX LXOO",
    "AR1": "LOOX HXOX LXOX HXOX",
    "AR2": "HXOO HOOX LOOX LXOO",
}
"""Names of streams, and the ends of their mazes' names.

The paper prints LXXO for the third maze of AR1, the fourth of AR2 and the last two of AT2. There is no such maze; the names
here are those of the authors' release.
"""


def _maze_of(stream: str, end: str) -> str:
    return ("SimpleTown" if stream[0] == "S" else "AmazeVille") + end


def _nav_tasks() -> Iterator[TaskRow]:
    used = {_maze_of(stream, end): None for stream, ends in _NAV_STREAMS.items() for end in ends.split()}
    for maze in used:
        town = maze.startswith("SimpleTown")
        yield TaskRow(
            name=maze,
            world="nav",
            instruction=f"Go to the goal in {maze}.",
            entry_point="mikasa_lifelong.nav.task:CrossMaze",
            kwargs={
                "maze": maze,
                "demonstrations": 250 if town else 100,
                "goal_steps": 15.0 if town else 100.0,
                "offset_steps": 5 if town else 10,
            },
        )


def _nav_streams() -> Iterator[StreamRow]:
    for name, ends in _NAV_STREAMS.items():
        changes = "doors" if name[1] == "T" else "doors and the height of hedges"
        yield StreamRow(
            name=name,
            summary=f"cloned demonstrations in mazes of {_maze_of(name, '')}; {changes} change",
            tasks=tuple(_maze_of(name, end) for end in ends.split()),
            network="hgcbc",
            steps=5000,
            batch_size=64,
            learning_rate=3e-4,
            hidden_size=256,
            dropout=0.1,
            paper_steps=100_000,
            source="Kobanda et al. 2025, Continual NavBench (arXiv 2502.04830); the mazes are our own",
        )


register(_digit_tasks(), _digit_streams())
register(_nav_tasks(), _nav_streams())
