"""``mikasa sweep sweep.toml``: tasks x algorithms x seeds, each a `mikasa train` of its own, several at a time on Ray.

    out = "runs/colors"               # a folder for each run, and for its log, is made in it
    tasks = ["RememberColor3-v0"]
    algorithms = ["ppo-mlp"]
    seeds = [1, 2, 3]
    cpus_per_run = 1                  # how many cores Ray sets aside for one run
    retries = 2                       # how often a run that failed is started again

    [options.ppo-mlp]                 # options of that algorithm, as in `mikasa train ppo-mlp --help`
    total_timesteps = 300_000

Runs that are finished (they have a final_eval.json) are skipped, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import itertools
import json
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.environments import check_env_id
from mikasa_robo.baselines.training import parse_args

from .intervals import require_modules
from .plot import read_column, read_progress

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Args", "Plan", "PlannedRun", "SweepError", "main", "read_plan", "sweep"]

log = logging.getLogger(__name__)

RESERVED = ("env_id", "seed", "run_dir", "resume")
"""Options of the trainers that a sweep sets itself."""
USAGE_ERROR = 2
"""Exit status of a trainer that cannot use its arguments: another attempt would end the same way."""
PATIENCE = 20.0
"""Seconds that the runs have to end when a sweep is stopped."""
OBJECT_STORE = 80 * 1024 * 1024
"""Bytes of shared memory for an embedded Ray, nearly the least it takes: runs send each other nothing."""

State = Literal["waiting", "running", "finished", "failed"]


class SweepError(ValueError):
    """A sweep's file cannot be used; the message names the key and the fix."""


@dataclass
class Args:
    """Train tasks x algorithms x seeds, several runs at a time; what is finished already is skipped."""

    file: tyro.conf.Positional[Path]
    """The sweep, a TOML file; docs/training.md shows one."""
    address: str | None = None
    """A Ray cluster to join (host:port, or auto); by default Ray runs on this machine alone, for this sweep only."""
    num_cpus: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Cores that Ray may use on this machine; by default all. Without --address only."""
    dry_run: bool = False
    """Show the runs and what each would do, and start none."""


@dataclass(frozen=True)
class PlannedRun:
    """One training run of a sweep."""

    env_id: str
    algorithm: str
    seed: int
    options: Mapping[str, Any]
    cpus: float = 1

    @property
    def name(self) -> str:
        """Of its folder, and of its log."""
        return f"{self.env_id}__{self.algorithm}__{self.seed}"

    def arguments(self, run_dir: Path) -> list[str]:
        """What follows `mikasa train <algorithm>` to start it in ``run_dir``."""
        fixed = {"env_id": self.env_id, "seed": self.seed, "run_dir": run_dir}
        return [word for name, value in {**fixed, **self.options}.items() for word in _words(name, value)]


@dataclass(frozen=True)
class Plan:
    """What a sweep's file says."""

    out: Path
    runs: tuple[PlannedRun, ...]
    retries: int = 2


Command = Callable[[PlannedRun, Path, bool], list[str]]
"""(run, run folder, whether to resume what is in it) to the words that follow `python`."""


def _words(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *map(str, value if isinstance(value, list) else [value])]


def _trainer(algorithm: str) -> Any:
    return importlib.import_module(f"mikasa_robo.baselines.{algorithm.replace('-', '_')}")


def train_command(run: PlannedRun, run_dir: Path, resume: bool) -> list[str]:
    """`mikasa train` with as many torch threads as the run has cores, unless its options say otherwise."""
    words = ["-m", "mikasa_robo.tools.cli", "train", run.algorithm]
    if resume:  # with the arguments that it was started with
        return [*words, "--resume", str(run_dir)]
    words += run.arguments(run_dir)
    if "torch_threads" not in run.options:
        words += ["--torch-threads", str(max(1, math.floor(run.cpus)))]
    return words


# ---- the file ---------------------------------------------------------------------------------------------------------


def read_plan(path: Path) -> Plan:
    """Reads and checks a sweep's file.

    Raises:
        SweepError: it is no TOML, or a key or a value in it cannot be used.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SweepError(f"{path} cannot be read: {error.strerror}; name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} is no TOML: {error}") from error
    known = ("out", "tasks", "algorithms", "seeds", "cpus_per_run", "retries", "options")
    _refuse_unknown(content, known, "")
    for key in known[:4]:
        if key not in content:
            raise SweepError(f"{key} is missing; add {_EXAMPLES[key]}")
    if not isinstance(content["out"], str) or not content["out"]:
        raise SweepError(f"out = {content['out']!r} names no folder; write {_EXAMPLES['out']}")
    tasks, algorithms, seeds = (
        _list(content, key, kind) for key, kind in (("tasks", str), ("algorithms", str), ("seeds", int))
    )
    if min(seeds) < 0:
        raise SweepError(f"seeds: {min(seeds)} is negative; use numbers of at least 0")
    cpus, retries, options = content.get("cpus_per_run", 1), content.get("retries", 2), content.get("options", {})
    if not isinstance(cpus, int | float) or isinstance(cpus, bool) or not cpus > 0:
        raise SweepError(f"cpus_per_run = {cpus!r} is not a number above 0; write cpus_per_run = 1")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise SweepError(f"retries = {retries!r} is not a whole number of at least 0; write retries = 2")
    if not isinstance(options, dict):
        raise SweepError(f"options = {options!r} is not a table; write [options.{algorithms[0]}] above the options")
    from .cli import Algorithm

    for algorithm in algorithms:
        if algorithm not in get_args(Algorithm):
            raise SweepError(f"algorithms: there is no {algorithm!r}; use {', '.join(get_args(Algorithm))}")
    _refuse_unknown(options, algorithms, "options.")
    for algorithm in algorithms:
        _check_options(algorithm, options.get(algorithm, {}), tasks)
    runs = tuple(
        PlannedRun(task, algorithm, seed, options.get(algorithm, {}), cpus)
        for task in tasks
        for algorithm in algorithms
        for seed in seeds
    )
    return Plan(Path(content["out"]), runs, retries)


_EXAMPLES = {
    "out": 'out = "runs/colors"',
    "tasks": 'tasks = ["RememberColor3-v0"]',
    "algorithms": 'algorithms = ["ppo-mlp"]',
    "seeds": "seeds = [1, 2, 3]",
}


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"use one of {', '.join(prefix + k for k in known)}"
            raise SweepError(f"{prefix}{key} is not known here; {hint}")


def _list(content: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values = content[key]
    if not isinstance(values, list) or not values:
        raise SweepError(f"{key} = {values!r} is not a list with something in it; write {_EXAMPLES[key]}")
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SweepError(
                f"{key}: {value!r} is not {'a name' if kind is str else 'a number'}; write {_EXAMPLES[key]}"
            )
        if values.count(value) > 1:
            raise SweepError(f"{key}: {value!r} stands there twice; remove one")
    return values


def _check_options(algorithm: str, options: Any, tasks: Sequence[str]) -> None:
    """Has the algorithm read its own options, for every task."""
    if not isinstance(options, dict):
        raise SweepError(
            f"options.{algorithm} = {options!r} is not a table; write [options.{algorithm}] above the options"
        )
    trainer = _trainer(algorithm)
    for name in RESERVED:
        if name in options:
            raise SweepError(f"options.{algorithm}.{name} is set by the sweep itself; remove it")
    fields = [field.name for field in dataclasses.fields(trainer.Args) if field.name not in RESERVED]
    _refuse_unknown(options, fields, f"options.{algorithm}.")
    for task in tasks:
        try:
            check_env_id(task)
        except ArgumentError as error:
            raise SweepError(f"tasks: {error}") from error
        run = PlannedRun(task, algorithm, 0, options)
        # A folder that cannot exist: whether the run's own is free is another question.
        words = run.arguments(Path(os.devnull) / "run")
        refusal = open(os.devnull, "w")  # noqa: SIM115
        with refusal, contextlib.redirect_stdout(refusal), contextlib.redirect_stderr(refusal):
            try:
                args = parse_args(trainer.Args, words, "")
            except SystemExit:
                args = None
            except ArgumentError as error:
                raise SweepError(f"options.{algorithm}: {error}") from error
        if args is None:
            raise SweepError(
                f"options.{algorithm}: `mikasa train {algorithm} {shlex.join(words)}` cannot be read; "
                f"`mikasa train {algorithm} --help` says what each option takes"
            )
        try:
            args.check()
        except ArgumentError as error:
            raise SweepError(f"options.{algorithm}: {error}") from error


# ---- the runs ---------------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """How one run of a sweep stands."""

    run: PlannedRun
    folder: Path
    state: State = "waiting"
    attempts: int = 0
    note: str = ""
    log: Path | None = None  # of the last attempt; there once it has begun


def _is_finished(progress: Progress) -> bool:
    """Whether the run's folder holds the result of this very run.

    Raises:
        SweepError: it holds that of another one.
    """
    file = progress.folder / "final_eval.json"
    if not file.is_file():
        return False
    run = progress.run
    try:
        found = json.loads(file.read_text())
        args = {
            "env_id": found["env_id"],
            "algorithm": found["algorithm"],
            "seed": found["seed"],
            **found.get("args", {}),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise SweepError(f"{file} is broken ({error}); move {progress.folder} away") from error
    asked = {"env_id": run.env_id, "algorithm": run.algorithm, "seed": run.seed, **run.options}
    for name, value in asked.items():
        if args.get(name, value) != value:
            raise SweepError(
                f"{progress.folder} is finished with {name} = {args[name]!r}, and the sweep asks for {value!r}; "
                "name another `out`, or move that folder away"
            )
    return True


def _folders(out: Path, run: PlannedRun) -> Iterator[Path]:
    """Where a run may be: its folder, and those of attempts that could not go on in the one before."""
    yield out / run.name
    for attempt in itertools.count(2):
        yield out / f"{run.name}__attempt-{attempt}"


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _place(out: Path, run: PlannedRun) -> Progress:
    """Finds the run's last folder, or the one it is to have."""
    last = None
    for folder in _folders(out, run):
        if not _holds_something(folder):
            break
        last = folder
        progress = Progress(run, folder)
        if _is_finished(progress):
            progress.state, progress.note = "finished", "skipped: was finished before"
            return progress
    return Progress(run, last or out / run.name)


def _next_attempt(progress: Progress, out: Path) -> bool:
    """Prepares the folder of the next attempt; returns whether it goes on from a checkpoint."""
    if any(progress.folder.glob("resume-*.pt")):
        return True
    progress.folder = next(folder for folder in _folders(out, progress.run) if not _holds_something(folder))
    return False


def sweep(
    plan: Plan,
    *,
    address: str | None = None,
    num_cpus: int | None = None,
    command: Command = train_command,
    show: Callable[[str], None] = log.info,
    interval: float = 30.0,
) -> list[Progress]:
    """Trains what is not finished yet, and returns how every run ended.

    Args:
        plan: what to train.
        address: a Ray cluster; its machines have to see this one's files under the same paths.
        num_cpus: cores for the Ray that is started where there is no ``address`` and none runs in this process yet.
        command: what is run, in the Python of the machine it runs on.
        show: takes a table of all runs whenever something has changed, and every ``interval`` seconds.

    Raises:
        SweepError: a folder holds the result of another run; nothing has been started.
        ModuleNotFoundError: Ray is not installed.
    """
    out = plan.out.resolve()
    runs = [_place(out, run) for run in plan.runs]
    if all(progress.state == "finished" for progress in runs):
        show(table(runs))
        return runs
    require_modules("distributed", "ray")
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with _ray(address, num_cpus) as ray:
        _require_cores(ray, plan)
        work = ray.remote(max_retries=0)(_task())
        pending: dict[Any, Progress] = {}

        def submit(progress: Progress) -> None:
            resume = _next_attempt(progress, out)
            progress.state, progress.attempts = "waiting", progress.attempts + 1
            progress.log = _new_log(out, progress.run)
            words = command(progress.run, progress.folder, resume)
            reference = work.options(num_cpus=progress.run.cpus).remote(words, str(progress.log), os.getcwd())
            pending[reference] = progress

        try:
            for progress in runs:
                if progress.state != "finished":
                    submit(progress)
            shown = -math.inf
            while pending:
                done, _ = ray.wait(list(pending), timeout=1.0)
                for reference in done:
                    progress = pending.pop(reference)
                    again = _conclude(ray, reference, progress)
                    if again and progress.attempts <= plan.retries:
                        submit(progress)
                for progress in pending.values():
                    if progress.log is not None and progress.log.exists():
                        progress.state = "running"
                if done or time.monotonic() - shown > interval:
                    shown = time.monotonic()
                    show(table(runs))
        finally:
            for reference in pending:
                ray.cancel(reference)
            if pending:
                ray.wait(list(pending), num_returns=len(pending), timeout=PATIENCE)
    return runs


def _require_cores(ray: Any, plan: Plan) -> None:
    most = max((node["Resources"].get("CPU", 0) for node in ray.nodes()), default=0)
    for run in plan.runs:
        if run.cpus > most:
            raise SweepError(f"cpus_per_run = {run.cpus} is more than any machine has for Ray ({most:g}); lower it")


def _new_log(out: Path, run: PlannedRun) -> Path:
    """The log of an attempt: no attempt of this or an earlier sweep has written it."""
    numbers = itertools.count(1)
    return next(file for n in numbers if not (file := out / "logs" / f"{run.name}.{n}.log").exists())


def _conclude(ray: Any, reference: Any, progress: Progress) -> bool:
    """Takes the result of an attempt; returns whether another one may end otherwise."""
    progress.state = "failed"
    try:
        status = ray.get(reference)
    except ray.exceptions.RayError as error:
        progress.note = f"lost: {str(error).splitlines()[0]}"
        return True
    if status == USAGE_ERROR:
        progress.note = "its arguments cannot be used; not tried again"
        return False
    if status != 0:
        progress.note = f"attempt {progress.attempts}: exit status {status}"
    elif not (progress.folder / "final_eval.json").is_file():
        progress.note = f"attempt {progress.attempts}: no final_eval.json"
    else:
        progress.state, progress.note = "finished", ""
    return progress.state == "failed"


def _task() -> Callable[[list[str], str, str], int]:
    """What a Ray worker does. A closure, as Ray then sends it whole: a worker need not import this package and torch."""
    patience = PATIENCE / 2

    def run(words: list[str], log_file: str, cwd: str) -> int:
        import signal
        import subprocess
        import sys
        import time

        # A shell has what it starts in the background ignore SIGINT: ray.cancel would have no effect, nor would the SIGINT
        # that tells a trainer to write its checkpoint.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        words = [sys.executable, *words]
        with open(log_file, "ab") as output:
            output.write(f"$ {' '.join(words)}\n".encode())
            output.flush()
            # Ray keeps SIGINT from its workers, and what they start would inherit that.
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            try:
                process = subprocess.Popen(
                    words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                # Not wait(): ray.cancel interrupts Python, not a system call.
                while process.poll() is None:
                    time.sleep(0.2)
                return process.returncode
            finally:
                if process.poll() is None:  # the sweep was stopped: a trainer writes its checkpoint when interrupted
                    process.send_signal(signal.SIGINT)
                    try:
                        process.wait(patience)
                    except subprocess.TimeoutExpired:
                        process.kill()

    return run


@contextlib.contextmanager
def _ray(address: str | None, num_cpus: int | None) -> Iterator[Any]:
    """Ray, started for a block, or the one that this process has already; without a dashboard, and telling nobody."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # A run sees the GPUs of its machine, though Ray sets none aside for it (the default of later versions of Ray).
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        ray.init(
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            _node_ip_address="127.0.0.1",
            **common,
        )
    else:
        ray.init(address=address, **common)
    try:
        yield ray
    finally:
        ray.shutdown()


def _last_score(rows: Sequence[dict[str, str]]) -> str:
    """The share of successes, or the mean return where the environment tells no success; of the last evaluation, if any."""
    for metric, show in (("success_once", "success {:.1%}"), ("return", "return {:.2f}")):
        for kind in ("eval", "train"):
            if values := read_column(rows, f"{kind}/{metric}")[1]:
                return show.format(values[-1])
    return "-"


def table(runs: Sequence[Progress]) -> str:
    """How every run stands, as lines of text."""
    rows = [("run", "state", "attempts", "step", "score", "")]
    for progress in runs:
        step = score = "-"
        with contextlib.suppress(ValueError, KeyError, OSError):
            lines = read_progress(progress.folder)
            step = f"{float(lines[-1]['step']):,.0f}"
            score = _last_score(lines)
        rows.append((progress.run.name, progress.state, str(progress.attempts), step, score, progress.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines_out = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines_out, f"{sum(p.state == 'finished' for p in runs)} of {len(runs)} runs are finished"])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 where a run failed."""
    args = tyro.cli(Args, args=argv, prog="mikasa sweep")
    if args.address is not None and args.num_cpus is not None:
        print("--num-cpus is for a Ray on this machine alone; leave it out beside --address", file=sys.stderr)
        return 2
    if args.num_cpus is not None and args.num_cpus < 1:
        print(f"--num-cpus {args.num_cpus} cannot be used; use at least 1", file=sys.stderr)
        return 2
    try:
        plan = read_plan(args.file)
        if args.dry_run:
            print(table([_place(plan.out.resolve(), run) for run in plan.runs]))
            return 0
        runs = sweep(plan, address=args.address, num_cpus=args.num_cpus, show=print)
    except (SweepError, ModuleNotFoundError, ConnectionError) as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on where the runs are", file=sys.stderr)
        return 130
    failed = [progress for progress in runs if progress.state == "failed"]
    for progress in failed:
        print(f"failed: {progress.log} says why", file=sys.stderr)
    print(f"mikasa report {plan.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
