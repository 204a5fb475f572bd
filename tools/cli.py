"""The command ``mikasa``. What needs torch or SAPIEN is imported only when it is used, so ``--help`` stays quick."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

import mikasa_robo
import mikasa_suite
from mikasa_robo.catalog import BLANK_START, CATALOG, CERTIFICATIONS, MemoryType, TaskSpec
from mikasa_robo.env_ids import make_current_folder_importable

from .extras import TRAIN_MODULES, missing_module_message

__all__ = ["main"]


@dataclass
class ListTasks:
    """List the robot tasks, the small memory environments, or the streams of tasks."""

    suite: Literal["robo", "base", "lifelong"] = "robo"
    """The robot tasks, the small memory environments of mikasa_base, or the streams and mazes of mikasa_lifelong."""
    family: str | None = None
    """Only this family, such as RememberColor."""
    memory: MemoryType | None = None
    """Only tasks about this kind of memory."""
    tier: Literal["diagnostic", "complex"] | None = None
    """Suite base: only environments with vector (diagnostic) or image (complex) observations."""
    existing: bool = False
    """Suite base: only environments whose optional packages are installed. All robot tasks are."""


@dataclass
class Train:
    """Train an agent. `mikasa train ppo-mlp --help` shows the options of that algorithm."""

    algorithm: tyro.conf.Positional[str]
    """The algorithm: ppo-mlp, ppo-lstm, ppo, dagger, bc, sac, dt, rate, iql, or module:NAME for one that a module of your
    own registers. All options after it are the algorithm's own."""


@dataclass
class Expert:
    """Run a scripted expert, or a variant of it without memory. `mikasa expert --help` shows the options."""


@dataclass
class Record:
    """Record videos of a policy. `mikasa record --help` shows the options."""


@dataclass
class Collect:
    """Record a dataset of episodes. `mikasa collect --help` shows the options."""


@dataclass
class Data:
    """Check, show, replay or export a dataset. `mikasa data --help` shows the options."""


@dataclass
class Gallery:
    """Draw a looping image of each task family. `mikasa gallery --help` shows the options."""


@dataclass
class Doctor:
    """Check this machine and say how to fix what is missing. `mikasa doctor --help` shows the options."""


@dataclass
class Eval:
    """Evaluate checkpoints on a fixed set of episodes. `mikasa eval --help` shows the options."""


@dataclass
class Serve:
    """Serve a checkpoint to evaluations elsewhere. `mikasa serve --help` shows the options."""


@dataclass
class Submit:
    """Check a file for the leaderboard, also by playing it again. `mikasa submit --help` shows the commands."""


@dataclass
class Probe:
    """Look into the memory of a trained policy. `mikasa probe --help` shows the options."""


@dataclass
class Attack:
    """Train policies without memory to cheat, and compare them with chance. `mikasa attack --help` shows the options."""


@dataclass
class Report:
    """Make a table and learning curves of training runs. `mikasa report --help` shows the options."""


@dataclass
class Sweep:
    """Train tasks x algorithms x seeds, several runs at a time. `mikasa sweep --help` shows the options."""


@dataclass
class Lifelong:
    """Learn streams of tasks, and compare what is kept of them. `mikasa lifelong --help` shows the commands."""


_MODULES = {
    "attack": "mikasa_robo.tools.attack",
    "collect": "mikasa_robo.tools.collect",
    "data": "mikasa_robo.tools.data",
    "doctor": "mikasa_robo.tools.doctor",
    "eval": "mikasa_robo.tools.evaluate",
    "expert": "mikasa_robo.tools.expert",
    "gallery": "mikasa_robo.tools.gallery",
    "lifelong": "mikasa_lifelong.command",
    "probe": "mikasa_robo.tools.probe",
    "record": "mikasa_robo.tools.record",
    "report": "mikasa_robo.tools.report",
    "serve": "mikasa_robo.tools.serve",
    "submit": "mikasa_robo.tools.submit",
    "sweep": "mikasa_robo.tools.sweep",
}
"""Commands whose options, --help included, are read by the ``main(argv)`` of a module."""

_Command = (
    Annotated[ListTasks, tyro.conf.subcommand("list", prefix_name=False)]
    | Annotated[Train, tyro.conf.subcommand("train", prefix_name=False)]
    | Annotated[Doctor, tyro.conf.subcommand("doctor", prefix_name=False)]
    | Annotated[Expert, tyro.conf.subcommand("expert", prefix_name=False)]
    | Annotated[Lifelong, tyro.conf.subcommand("lifelong", prefix_name=False)]
    | Annotated[Record, tyro.conf.subcommand("record", prefix_name=False)]
    | Annotated[Collect, tyro.conf.subcommand("collect", prefix_name=False)]
    | Annotated[Data, tyro.conf.subcommand("data", prefix_name=False)]
    | Annotated[Gallery, tyro.conf.subcommand("gallery", prefix_name=False)]
    | Annotated[Eval, tyro.conf.subcommand("eval", prefix_name=False)]
    | Annotated[Serve, tyro.conf.subcommand("serve", prefix_name=False)]
    | Annotated[Submit, tyro.conf.subcommand("submit", prefix_name=False)]
    | Annotated[Probe, tyro.conf.subcommand("probe", prefix_name=False)]
    | Annotated[Attack, tyro.conf.subcommand("attack", prefix_name=False)]
    | Annotated[Report, tyro.conf.subcommand("report", prefix_name=False)]
    | Annotated[Sweep, tyro.conf.subcommand("sweep", prefix_name=False)]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mikasa`` with ``argv`` (by default that of the process) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    make_current_folder_importable()
    try:
        code = _dispatch(args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's own flush fails
        if args[:1] == ["list"] or args == ["--version"]:  # `mikasa list | head`: the reader has seen enough
            return 0
        print(f"mikasa {' '.join(args[:1])}: stopped, because the reader of its output has ended", file=sys.stderr)
        return 128 + signal.SIGPIPE
    return code


def _dispatch(args: list[str]) -> int:
    if args == ["--version"]:
        print(f"mikasa {mikasa_robo.__version__}")
        return 0
    if args[:1] == ["train"] and len(args) >= 2 and not args[1].startswith("-"):
        # Handed over before anything is parsed: the options, --help included, are the algorithm's.
        return _train(args[1], args[2:])
    if args and args[0] in _MODULES:
        return _run(_MODULES[args[0]], f"mikasa {args[0]}", args[1:])
    # Any: tyro takes a union of commands, for which typing has no name.
    command_type: Any = _Command
    description = "MIKASA: robot tasks that need memory. `mikasa --version` prints the version."
    command = tyro.cli(command_type, args=args, prog="mikasa", description=description)
    if isinstance(command, ListTasks):
        if command.suite == "lifelong":
            return _list_lifelong(command)
        return _list(command) if command.suite == "robo" else _list_base(command)
    return _train(command.algorithm, [])


def _train(algorithm: str, argv: Sequence[str]) -> int:
    return _run("mikasa_robo.baselines.command", "mikasa train", algorithm, argv)


def _run(module: str, command: str, *arguments: Any) -> int:
    try:
        run: Callable[..., int | None] = importlib.import_module(module).main
        return run(*arguments) or 0
    except ModuleNotFoundError as error:
        if error.name not in TRAIN_MODULES:
            raise
        print(missing_module_message(command, error.name, "train"), file=sys.stderr)
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
    _print_table(("ID", "T", "memory", "certification", "cue/delay", "oracle", "prompt"), [_cells(row) for row in rows])
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
        ("installed", "ID", "T", "memory", "tier", "perfect/memoryless", "extra", "weak"),
        [
            (
                "yes" if usable[variant.id] else "no",
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


def _list_lifelong(options: ListTasks) -> int:
    if options.family or options.memory or options.tier or options.existing:
        print(
            "--suite lifelong takes no other option; `mikasa lifelong list` shows tasks and learners", file=sys.stderr
        )
        return 2
    command = importlib.import_module("mikasa_lifelong.command")
    print(f"{command.list_streams()}\n\n{command.list_mazes()}")
    return 0


def _unknown_family(family: str, families: Iterable[str]) -> int:
    print(f"--family {family}: no such family; use one of {', '.join(sorted(families))}", file=sys.stderr)
    return 2


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _phases(row: TaskSpec) -> str:
    if row.cue < row.horizon:
        return f"{row.cue}/{row.delay}"
    blank = row.kwargs.get("blank_steps", 0)
    if not blank:
        return "always on view"
    return "hidden until slowed" if BLANK_START + blank >= row.horizon else f"hidden for {blank}"


def _cells(row: TaskSpec) -> tuple[str, ...]:
    shape = "x".join(map(str, row.oracle_shape))
    return (
        row.id,
        str(row.horizon) + (f" (held {row.held_horizon})" if row.held_horizon != row.horizon else ""),
        row.memory,
        "-" if row.certification is None else CERTIFICATIONS[row.certification],
        _phases(row),
        f"{row.oracle} ({shape})",
        row.prompt or "-",
    )


if __name__ == "__main__":
    sys.exit(mikasa_suite.main())
