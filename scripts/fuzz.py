"""Gives MIKASA random bad input: command lines, arguments of gymnasium.make, resets, actions, checkpoints and paths.

    python scripts/fuzz.py --seed 0 --cases 300
    python scripts/fuzz.py --seed 0 --only 17      # one case again, with its output

Case k of a seed is always the same. It runs in a process of its own, in a folder with a run, checkpoints and other files,
and with limits on memory and time. It passes if it ends with

- success: exit code 0, or 1 for a command that reports a result that way, and no traceback;
- a sentence on stderr and exit code 2;
- in Python a documented exception, whose message names an argument; see ``fuzz_calls.attempt``. The environment works on.

All else is a find: a traceback, a signal, a limit, another exception, a damaged checkpoint that is loaded, code that a
checkpoint carries. A find is printed with the command that repeats it. The exit status is 1 if there are finds.

SAPIEN does not draw here: commands that need pictures have to say so. ``--pictures`` lets it draw if it can.
"""
# ruff: noqa: E402

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy and torch: the cases are forked from this process

import argparse
import contextlib
import gc
import importlib
import io
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY = 6 * 2**30
"""Bytes that a case may take besides those that are taken when it begins."""
CPU_SECONDS, WALL_SECONDS = 30, 600
"""Limits of a case. The second is large because the machine may be busy with something else."""
FILE_SIZE = 2**30
KINDS = {"command": 34, "robot": 6, "base": 26, "vector": 6, "checkpoint": 28}
"""Kinds of cases, with how often each comes."""
RESULT_BY_CODE_1 = ("report", "train", "sweep", "data", "doctor", "submit")
"""Commands whose exit code 1 is a result: no finished run, training has diverged, a run failed, something is wrong."""
WARM = (
    "mani_skill.envs",
    "matplotlib.pyplot",
    "rliable.library",
    "mikasa_robo.baselines.command",
    "mikasa_robo.experts.evaluation",
    "mikasa_robo.tools.checkpoint",
    "mikasa_robo.tools.playing",
    "mikasa_robo.tools.cli",
    "torch.utils.tensorboard",
    "fuzz_calls",
    "fuzz_commands",
    "fuzz_files",
)
"""What most cases import."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    kind: str
    what: str  # the words or calls
    problem: str | None  # None: it passed
    output: str
    seconds: float  # of CPU time


def kind_of(seed: int, number: int) -> tuple[str, random.Random]:
    """The kind of a case, and the random numbers it is made of."""
    rng = random.Random(f"{seed}/{number}")
    return rng.choices(list(KINDS), list(KINDS.values()))[0], rng


def warm_up(pictures: bool) -> None:
    """Import what the cases need, so that they are forked with it."""
    from mikasa_base.registry import BY_NAME
    from mikasa_robo.catalog import CATALOG
    from mikasa_robo.sim import render

    tasks = {row.entry_point.partition(":")[0] for row in CATALOG.values()}
    tasks |= {row.entry_point.partition(":")[0] for row in BY_NAME.values() if row.extra is None}
    for module in (*WARM, *sorted(tasks)):
        importlib.import_module(module)
    if not pictures:
        render.rendering_problem = lambda device="cpu": "the fuzzer does not draw"  # type: ignore[assignment]
    gc.collect()
    gc.freeze()  # else each case's first collection would copy all of it


def run_case(seed: int, number: int, show: Callable[[str], None]) -> int:
    """Run a case in this process; return the exit code of a command line, else 0. What is a find, is raised."""
    import fuzz_calls
    import fuzz_commands

    kind, rng = kind_of(seed, number)
    if kind == "command":
        from mikasa_robo.tools import cli, plot

        words = fuzz_commands.command_line(rng)
        show(f"mikasa {shlex.join(words)}")
        main, words = (plot.main, words[1:]) if words[:1] == ["plot"] else (cli.main, words)
        try:
            return main(words)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    if kind == "checkpoint":
        fuzz_calls.checkpoint_case(rng, show)
    else:
        base = kind == "base" or (kind == "vector" and rng.random() < 0.5)
        fuzz_calls.env_case(rng, show, base, kind == "vector")
    return 0


def fork(folder: Path, work: Callable[[], int]) -> tuple[int, str, str, float]:
    """Do ``work`` in a child process, in ``folder`` and with limits; return its wait status, outputs and CPU seconds."""
    out, err = folder.parent / "stdout", folder.parent / "stderr"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.environ["TMPDIR"] = str(folder.parent)
            tempfile.tempdir = None
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if (
                "tqdm" in sys.modules
            ):  # its own lock is shared with other cases, and one that is killed never releases it
                sys.modules["tqdm"].tqdm.set_lock(threading.RLock())
            signal.alarm(WALL_SECONDS)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it may have started
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    return status, texts[0], texts[1], usage.ru_utime + usage.ru_stime


def judge(kind: str, what: str, status: int, out: str, err: str, folder: Path) -> str | None:
    """What is wrong with how a case ended, or None."""
    from fuzz_files import PWNED

    if (folder / PWNED).exists():
        return "code in a checkpoint was run"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        limits = {signal.SIGXCPU: f" (more than {CPU_SECONDS} s of CPU time)", signal.SIGALRM: f" ({WALL_SECONDS} s)"}
        return f"killed by {signal.Signals(number).name}{limits.get(signal.Signals(number), '')}"
    if "Traceback (most recent call last)" in err + out:
        lines = [line for line in err.splitlines() if line.strip()]
        return f"a traceback: {lines[-1] if lines else ''}"
    code = os.waitstatus_to_exitcode(status)
    command = what.split()[1] if kind == "command" and len(what.split()) > 1 else ""
    if code == 0 or (code == 1 and command in RESULT_BY_CODE_1):
        return None
    if code != 2:
        return f"exit code {code}"
    if not err.strip():
        return "exit code 2 without a sentence"
    if " object at 0x" in err:
        return "the sentence has an address in it"
    return None


def copy_tree(source: Path, target: Path) -> None:
    """As shutil.copytree, but for named pipes and links too."""
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        copy = target / entry.name
        if entry.is_symlink():
            copy.symlink_to(os.readlink(entry))
        elif entry.is_dir():
            copy_tree(Path(entry.path), copy)
        elif entry.is_file():
            shutil.copyfile(entry.path, copy)
        else:
            os.mkfifo(copy)


def try_case(seed: int, number: int, world: Path, scratch: Path) -> Outcome:
    """Run a case in a process of its own and judge it."""
    kind, _ = kind_of(seed, number)
    folder = scratch / "case" / "cwd"
    if kind in ("command", "checkpoint"):
        copy_tree(world, folder)
    else:
        folder.mkdir(parents=True)
    told = scratch / "case" / "what"
    told.touch()

    def show(line: str) -> None:
        with told.open("a", errors="backslashreplace") as file:
            file.write(line + "\n")

    status, out, err, seconds = fork(folder, lambda: run_case(seed, number, show))
    what = told.read_text(encoding="utf-8").strip()
    problem = judge(kind, what, status, out, err, folder)
    shutil.rmtree(scratch / "case", ignore_errors=True)
    return Outcome(kind, what, problem, out + err, seconds)


def fuzz(seed: int, numbers: Sequence[int], report: Callable[[int, Outcome], None], pictures: bool = False) -> None:
    """Run these cases of a seed and call ``report`` with each."""
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    warm_up(pictures)
    with tempfile.TemporaryDirectory(prefix="mikasa-fuzz-") as name:
        scratch = Path(name)
        world = scratch / "world" / "files"
        world.mkdir(parents=True)

        def make_world() -> int:
            from fuzz_files import lay_out

            lay_out(world)
            return 0

        status, _, err, _ = fork(world, make_world)
        if status:
            raise RuntimeError(f"the files of the cases cannot be made:\n{err}")
        for number in numbers:
            report(number, try_case(seed, number, world, scratch))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the fuzzer with ``argv`` and return its exit status: 1 if there are finds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--cases", type=int, default=300, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", choices=KINDS, help="only cases of this kind")
    parser.add_argument("--only", type=int, nargs="+", help="only these cases, with their output")
    parser.add_argument("--pictures", action="store_true", help="let SAPIEN draw")
    args = parser.parse_args(argv)
    finds, slowest = [], Outcome("", "", None, "", 0.0)
    ends: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    start = time.monotonic()

    def report(number: int, outcome: Outcome) -> None:
        nonlocal slowest
        end = f"{outcome.kind} {'find' if outcome.problem else 'passed'}"
        ends[end] += 1
        seconds[end] += outcome.seconds
        slowest = max(slowest, outcome, key=lambda one: one.seconds)
        if args.only:
            print(
                f"case {number}: {outcome.what}\n{outcome.output}\n{outcome.seconds:.1f} s: {outcome.problem or 'passed'}"
            )
        if outcome.problem:
            finds.append(number)
            if not args.only:
                shown = "\n    ".join(outcome.what.splitlines())
                print(
                    f"FIND {outcome.problem}\n    {shown}\n    {Path(sys.argv[0]).name} --seed {args.seed} --only {number}"
                )
        if sum(ends.values()) % 500 == 0:
            print(f"{sum(ends.values())} cases, {len(finds)} finds, {time.monotonic() - start:.0f} s")
        sys.stdout.flush()

    chosen = range(args.first, args.first + args.cases)
    numbers = args.only or [number for number in chosen if args.kind in (None, kind_of(args.seed, number)[0])]
    fuzz(args.seed, numbers, report, args.pictures)
    print(", ".join(f"{count} {end} ({seconds[end]:.0f} s)" for end, count in sorted(ends.items())))
    print(f"slowest: {slowest.seconds:.1f} s, {slowest.what[:200]}")
    print(f"{sum(ends.values())} cases, {len(finds)} finds, {time.monotonic() - start:.0f} s")
    return 1 if finds else 0


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
