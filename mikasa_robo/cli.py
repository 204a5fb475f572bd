"""The command ``mikasa``. What needs torch or SAPIEN is imported when asked for, so that ``--help`` stays quick."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import tyro

from mikasa_robo.catalog import CATALOG, MemoryType, TaskSpec

__all__ = ["main"]

Algorithm = Literal["ppo-mlp"]
"""Each is a module of ``mikasa_robo.baselines`` with a ``main(argv)`` and a help of its own."""


_TRAIN_MODULES = ("imageio", "imageio_ffmpeg", "tensorboard", "tqdm", "wandb")
"""What the extra `train` of pyproject.toml installs, by the names of import."""


@dataclass
class ListTasks:
    """Show the robot tasks, and which of them exist."""

    family: str | None = None
    """Only this family, such as RememberColor."""
    memory: MemoryType | None = None
    """Only tasks about this kind of memory."""
    existing: bool = False
    """Only tasks that are written already."""


@dataclass
class Train:
    """Train an agent. `mikasa train ppo-mlp --help` shows the options of that algorithm."""

    algorithm: tyro.conf.Positional[Algorithm]
    """The algorithm; all that follows it are its own options."""


@dataclass
class Expert:
    """Run a scripted expert, or a twin of it without memory. `mikasa expert --help` shows the options."""


_Command = (
    Annotated[ListTasks, tyro.conf.subcommand("list", prefix_name=False)]
    | Annotated[Train, tyro.conf.subcommand("train", prefix_name=False)]
    | Annotated[Expert, tyro.conf.subcommand("expert", prefix_name=False)]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mikasa`` with ``argv`` (by default that of the process) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if len(args) >= 2 and args[0] == "train" and args[1] in get_args(Algorithm):
        # Handed over before anything is parsed: the options, --help among them, are the algorithm's.
        return _train(args[1], args[2:])
    if args and args[0] == "expert":
        run: Callable[[Sequence[str]], int] = importlib.import_module("mikasa_robo.experts.command").main
        return run(args[1:])
    # Any: tyro takes a union of commands, for which typing has no name.
    command_type: Any = _Command
    command = tyro.cli(command_type, args=args, prog="mikasa", description="MIKASA: robot tasks that need memory.")
    return _list(command) if isinstance(command, ListTasks) else _train(command.algorithm, [])


def _train(algorithm: str, argv: Sequence[str]) -> int:
    try:
        module = importlib.import_module(f"mikasa_robo.baselines.{algorithm.replace('-', '_')}")
        run: Callable[[Sequence[str]], int | None] = module.main
        return run(argv) or 0
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN_MODULES:
            raise
        print(
            f"mikasa train needs {error.name}, which is not installed: pip install 'mikasa-suite[train]'",
            file=sys.stderr,
        )
        return 2


def _list(options: ListTasks) -> int:
    families = {row.family for row in CATALOG.values()}
    if options.family is not None and options.family not in families:
        print(
            f"There is no family {options.family!r}; the families are {', '.join(sorted(families))}.", file=sys.stderr
        )
        return 2
    rows = [
        row for row in CATALOG.values() if options.family in (None, row.family) and options.memory in (None, row.memory)
    ]
    header = ("", "ID", "T", "memory", "cue/delay", "oracle", "prompt")
    table = [header, *(_cells(row) for row in rows if row.exists or not options.existing)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"{sum(row.exists for row in rows)} of {len(rows)} tasks exist")
    return 0


def _cells(row: TaskSpec) -> tuple[str, ...]:
    shape = "x".join(map(str, row.oracle_shape))
    return (
        "*" if row.exists else "",
        row.id,
        str(row.horizon),
        row.memory,
        "always on view" if row.cue == row.horizon else f"{row.cue}/{row.delay}",
        f"{row.oracle} ({shape})",
        row.prompt or "-",
    )


if __name__ == "__main__":
    sys.exit(main())
