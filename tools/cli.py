"""The command ``mikasa``. What needs torch or SAPIEN is imported when asked for, so that ``--help`` stays quick."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import tyro

from mikasa_robo.catalog import CATALOG, MemoryType, TaskSpec

__all__ = ["main"]

Algorithm = Literal["ppo-mlp", "ppo-lstm"]
"""Each is a module of ``mikasa_robo.baselines`` with a ``main(argv)`` and a help of its own."""


_TRAIN_MODULES = ("imageio", "imageio_ffmpeg", "tensorboard", "tqdm", "wandb")
"""What the extra `train` of pyproject.toml installs, by the names of import."""


@dataclass
class ListTasks:
    """Show the robot tasks and which of them exist, or the small memory environments."""

    suite: Literal["robo", "base"] = "robo"
    """The robot tasks, or the small memory environments of mikasa_base."""
    family: str | None = None
    """Only this family, such as RememberColor."""
    memory: MemoryType | None = None
    """Only what is about this kind of memory."""
    tier: Literal["diagnostic", "complex"] | None = None
    """Suite base: only environments that show vectors (diagnostic) or images (complex)."""
    existing: bool = False
    """Suite robo: only tasks that are written already. Suite base: only environments whose extra is installed."""


@dataclass
class Train:
    """Train an agent. `mikasa train ppo-mlp --help` shows the options of that algorithm."""

    algorithm: tyro.conf.Positional[Algorithm]
    """The algorithm; all that follows it are its own options."""


@dataclass
class Expert:
    """Run a scripted expert, or a twin of it without memory. `mikasa expert --help` shows the options."""


@dataclass
class Record:
    """Record videos of a policy. `mikasa record --help` shows the options."""


@dataclass
class Gallery:
    """Draw a looping picture of each family of tasks. `mikasa gallery --help` shows the options."""


@dataclass
class Doctor:
    """Say what this machine has and how to mend what is missing. `mikasa doctor --help` shows the options."""


@dataclass
class Eval:
    """Evaluate checkpoints on published episodes. `mikasa eval --help` shows the options."""


@dataclass
class Report:
    """Make a table and learning curves of training runs. `mikasa report --help` shows the options."""


@dataclass
class Sweep:
    """Train tasks x algorithms x seeds, several at a time. `mikasa sweep --help` shows the options."""


_OWN_OPTIONS = {
    "doctor": "mikasa_robo.tools.doctor",
    "eval": "mikasa_robo.tools.evaluate",
    "expert": "mikasa_robo.tools.expert",
    "record": "mikasa_robo.tools.record",
    "report": "mikasa_robo.tools.report",
    "sweep": "mikasa_robo.tools.sweep",
    "gallery": "mikasa_robo.tools.gallery",
}
"""Commands whose module reads their options, --help among them, by its ``main(argv)``."""

_Command = (
    Annotated[ListTasks, tyro.conf.subcommand("list", prefix_name=False)]
    | Annotated[Train, tyro.conf.subcommand("train", prefix_name=False)]
    | Annotated[Doctor, tyro.conf.subcommand("doctor", prefix_name=False)]
    | Annotated[Expert, tyro.conf.subcommand("expert", prefix_name=False)]
    | Annotated[Record, tyro.conf.subcommand("record", prefix_name=False)]
    | Annotated[Gallery, tyro.conf.subcommand("gallery", prefix_name=False)]
    | Annotated[Eval, tyro.conf.subcommand("eval", prefix_name=False)]
    | Annotated[Report, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[Sweep, tyro.conf.subcommand("sweep", prefix_name=False)]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mikasa`` with ``argv`` (by default that of the process) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if len(args) >= 2 and args[0] == "train" and args[1] in get_args(Algorithm):
        # Handed over before anything is parsed: the options, --help among them, are the algorithm's.
        return _train(args[1], args[2:])
    if args and args[0] in _OWN_OPTIONS:
        return _run(_OWN_OPTIONS[args[0]], args[1:], f"mikasa {args[0]}")
    # Any: tyro takes a union of commands, for which typing has no name.
    command_type: Any = _Command
    command = tyro.cli(command_type, args=args, prog="mikasa", description="MIKASA: robot tasks that need memory.")
    if isinstance(command, ListTasks):
        try:
            code = _list(command) if command.suite == "robo" else _list_base(command)
            sys.stdout.flush()
        except BrokenPipeError:  # `mikasa list | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush fails
            return 0
        return code
    return _train(command.algorithm, [])


def _train(algorithm: str, argv: Sequence[str]) -> int:
    return _run(f"mikasa_robo.baselines.{algorithm.replace('-', '_')}", argv, "mikasa train")


def _run(module: str, argv: Sequence[str], command: str) -> int:
    try:
        run: Callable[[Sequence[str]], int | None] = importlib.import_module(module).main
        return run(argv) or 0
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN_MODULES:
            raise
        print(
            f"{command} needs {error.name}, which is not installed: pip install 'mikasa-suite[train]'", file=sys.stderr
        )
        return 2


def _list(options: ListTasks) -> int:
    if options.tier is not None:
        print("--tier is for --suite base: the robot tasks have no tiers.", file=sys.stderr)
        return 2
    families = {row.family for row in CATALOG.values()}
    if options.family is not None and options.family not in families:
        return _unknown_family(options.family, families)
    rows = [
        row for row in CATALOG.values() if options.family in (None, row.family) and options.memory in (None, row.memory)
    ]
    _print_table(("ID", "T", "memory", "cue/delay", "oracle", "prompt"), [_cells(row) for row in rows])
    print(f"{len(rows)} of {len(CATALOG)} tasks")
    return 0


def _list_base(options: ListTasks) -> int:
    registry = importlib.import_module("mikasa_base.registry")
    missing = importlib.import_module("mikasa_base.factory").missing_dependency
    if options.family is not None and options.family not in registry.BY_NAME:
        return _unknown_family(options.family, registry.BY_NAME)
    variants = [
        variant
        for variant in registry.VARIANTS.values()
        if options.family in (None, variant.row.name)
        and (options.memory is None or options.memory in variant.row.memory)
        and options.tier in (None, variant.row.tier)
    ]
    usable = {variant.id: missing(variant.row) is None for variant in variants}
    _print_table(
        ("", "ID", "T", "memory", "tier", "perfect/memoryless", "extra", "weak"),
        [
            (
                "*" if usable[variant.id] else "",
                variant.id,
                str(variant.steps),
                ", ".join(variant.row.memory),
                variant.row.tier,
                "/".join("-" if score is None else f"{score:.3g}" for score in (variant.perfect, variant.memoryless)),
                variant.row.extra or "-",
                "weak" if variant.row.weak else "",
            )
            for variant in variants
            if usable[variant.id] or not options.existing
        ],
    )
    print(f"{sum(usable.values())} of {len(variants)} environments can be made with what is installed")
    return 0


def _unknown_family(family: str, families: Iterable[str]) -> int:
    print(f"There is no family {family!r}; the families are {', '.join(sorted(families))}.", file=sys.stderr)
    return 2


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(row: TaskSpec) -> tuple[str, ...]:
    shape = "x".join(map(str, row.oracle_shape))
    return (
        row.id,
        str(row.horizon),
        row.memory,
        "always on view" if row.cue == row.horizon else f"{row.cue}/{row.delay}",
        f"{row.oracle} ({shape})",
        row.prompt or "-",
    )


if __name__ == "__main__":
    sys.exit(main())
