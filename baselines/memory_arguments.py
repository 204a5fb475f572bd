"""The options ``--memory`` and ``--memory-kwargs`` of algorithms that train any memory. Does not load torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import tyro

from .arguments import ArgumentError, CommonArgs, read_kwargs
from .option_words import option_words
from .registry import MEMORIES, get_memory

__all__ = ["MemoryArgs", "MemoryName", "named_memory_errors"]

MemoryName: TypeAlias = Annotated[
    str, tyro.conf.arg(help=f"The memory: {', '.join(MEMORIES)}, or module:Class for a class of your own.")
]


@dataclass
class MemoryArgs(CommonArgs):
    """What every algorithm with a choice of memories has. List it after other base classes: its copies of
    their fields' defaults would hide theirs."""

    size_field: ClassVar[str] = "memory_size"
    """The field of a subclass that holds the width of the memory."""

    memory: MemoryName = "gru"
    memory_kwargs: tuple[str, ...] = ()
    """Options of the memory as NAME=VALUE, such as frames=8 for frame-stack; docs/baselines.md lists them."""

    @property
    def hidden_size(self) -> int:
        """Width of the memory."""
        size: int = getattr(self, self.size_field)
        return size

    @property
    def run_name(self) -> str:
        """The algorithm and its memory."""
        return f"{self.algorithm}-{self.memory.rpartition(':')[2]}"

    def read_memory_kwargs(self) -> dict[str, Any]:
        """The arguments of ``--memory-kwargs``.

        Raises:
            ArgumentError: a word cannot be used.
        """
        kwargs = read_kwargs(self.memory_kwargs, "--memory-kwargs")
        if "hidden_size" in kwargs:
            size = kwargs["hidden_size"]
            instead = " ".join(option_words(self.size_field, size))
            raise ArgumentError(f"--memory-kwargs hidden_size={size} cannot be used; use {instead}")
        return kwargs

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        self.read_memory_kwargs()
        get_memory(self.memory)


@contextlib.contextmanager
def named_memory_errors(args: Any) -> Iterator[None]:
    """An error of what makes the memory of ``args``, a `MemoryArgs`, becomes an ArgumentError that names the option."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and not args.memory_kwargs:
            raise  # a mistake in the code of a memory, not in its options
        raise ArgumentError(f"--memory {' '.join([args.memory, *args.memory_kwargs])}: {error}") from error
