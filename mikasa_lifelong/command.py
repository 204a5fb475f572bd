"""``mikasa lifelong``: learn streams of tasks, and compare what is kept of them."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Literal

import tyro

import mikasa_suite
from mikasa_robo.terminal import print_error
from mikasa_robo.tools.extras import missing_module_message

from .arguments import RunArgs
from .catalog import STREAMS, TASKS
from .errors import LifelongError
from .learners.registry import LEARNERS
from .nav.mazes import HEDGE, MAZES, load_maze

__all__ = ["list_mazes", "list_streams", "main"]

USAGE = """usage: mikasa lifelong {list,run,play,report,sweep} ...

  list     the streams, the tasks, the learners and the mazes
  run      learn a stream of tasks and measure every task after each
  play     a run's policies, as they were after some stages, on one of its tasks; a video of mazes
  report   tables and figures of runs
  sweep    streams x learners x seeds, several runs at a time, on Ray

`mikasa lifelong run --help` shows the options of a command; docs/lifelong.md explains the rest."""


@dataclasses.dataclass
class ListArgs:
    """List the streams, the tasks, the learners or the mazes."""

    what: tyro.conf.Positional[Literal["all", "streams", "tasks", "learners", "mazes"]] = "all"
    """What to list."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mikasa lifelong`` with ``argv`` and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": _list,
        "run": _run,
        "play": _play,
        "report": _report,
        "sweep": _sweep,
    }
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] not in commands:
        print(f"mikasa lifelong {words[0]}: no such command; use one of {', '.join(commands)}", file=sys.stderr)
        return 2
    return commands[words[0]](words[1:])


# ---- list
def _list(words: list[str]) -> int:
    args = tyro.cli(ListArgs, args=words, prog="mikasa lifelong list")
    tables = {"streams": list_streams, "tasks": _list_tasks, "learners": _list_learners, "mazes": list_mazes}
    shown = tables.values() if args.what == "all" else (tables[args.what],)
    print("\n\n".join(table() for table in shown))
    return 0


def list_streams() -> str:
    """The streams as a table, a line each, and their number."""
    rows = [
        (row.name, str(len(row.tasks)), row.network, str(row.steps), " ".join(row.tasks)) for row in STREAMS.values()
    ]
    return f"{_table(('stream', 'K', 'network', 'steps', 'tasks'), rows)}\n{len(rows)} streams"


def list_mazes() -> str:
    """The mazes as a table, a line each, and their number."""
    rows = []
    for name in MAZES:
        maze = load_maze(name)
        size = len(maze.heights)
        hedges = maze.heights[maze.kinds == HEDGE]
        rows.append((f"{name}-v0", f"{size} x {size} m", maze.doors or "-", f"{hedges[0]:g} m" if hedges.size else "-"))
    return f"{_table(('maze', 'size', 'doors', 'hedges'), rows)}\n{len(rows)} mazes"


def _list_tasks() -> str:
    rows = [(row.name, row.world, row.instruction) for row in TASKS.values()]
    return f"{_table(('task', 'world', 'instruction'), rows)}\n{len(rows)} tasks"


def _list_learners() -> str:
    rows = [
        (row.name, row.summary, " ".join(f"{name}={value}" for name, value in row.options.items()) or "-")
        for row in LEARNERS.values()
    ]
    return f"{_table(('learner', 'what it does', 'options'), rows)}\n{len(rows)} learners"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


# ---- run
def _run(words: list[str]) -> int:
    program = "mikasa lifelong run"
    asked = tyro.cli(RunArgs, args=words, prog=program)
    try:
        if asked.resume is None:
            args = asked.completed()  # before torch is loaded: a mistake in a name is told at once
            if args.run_dir is not None and args.run_dir.is_file():
                raise LifelongError(f"--run-dir {args.run_dir} is a file; name a folder")
    except LifelongError as error:
        print_error(error)
        return 2
    if importlib.util.find_spec("tqdm") is None:
        print(missing_module_message(program, "tqdm", "lifelong"), file=sys.stderr)
        return 2
    from mikasa_robo.baselines.checkpoints import CheckpointError
    from mikasa_robo.baselines.files import why_not_writable

    from .run import read_saved, run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    folder = asked.folder
    try:
        if asked.resume is not None:
            args = _resumed(RunArgs.from_dict(read_saved(asked.resume)["args"]), words, program)
        if problem := why_not_writable(folder, "resume-000000000000.pt"):
            raise LifelongError(f"{'--run-dir' if asked.resume is None else '--resume'} {folder}: {problem}")
        run(args, [*program.split(), *words])
    except (LifelongError, CheckpointError, FileExistsError) as error:
        print_error(error)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        print(f"{error}; make room, then continue with --resume {folder}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print_error(error)
        return 1
    except KeyboardInterrupt as error:
        code = mikasa_suite.exit_code(error)
        can_resume = folder.is_dir() and any(folder.glob("resume-*.pt"))
        mikasa_suite.tell(code, f"--resume {folder} continues it" if can_resume else "nothing to resume was written")
        return code
    from .summary import run_table

    print(run_table(folder))
    print(f"written: {folder}; `mikasa lifelong report {folder}` draws it, beside other runs that you name")
    return 0


def _resumed(saved: RunArgs, words: list[str], program: str) -> RunArgs:
    """The arguments of the run to go on with. Raises LifelongError for an option that differs from them."""
    from mikasa_robo.baselines.arguments import changed_option

    again = tyro.cli(RunArgs, args=words, prog=program, default=saved)
    if again.data is not None:
        again.data = again.data.resolve()  # as it was recorded
    if problem := changed_option(saved, again):
        raise LifelongError(problem)
    return again


# ---- play, report, sweep
def _play(words: list[str]) -> int:
    from .play import main as play

    return play(words)


def _report(words: list[str]) -> int:
    from .report import main as report

    return report(words)


def _sweep(words: list[str]) -> int:
    from .sweep import main as sweep

    return sweep(words)


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
