"""``mikasa sweep sweep.toml``: tasks x algorithms x seeds, each a `mikasa train` of its own, several at a time, on Ray.

    out = "runs/colors"               # a folder for each run, and for its log, is made in it
    tasks = ["RememberColor3-v0"]
    algorithms = ["ppo-mlp"]
    seeds = [1, 2, 3]
    cpus_per_run = 1                  # how many cores Ray sets aside for one run
    retries = 2                       # how often a run that failed is started again

    [options.ppo-mlp]                 # options of that algorithm, as in `mikasa train ppo-mlp --help`
    total_timesteps = 300_000

    [task_options."Remember*"]        # options for some of the tasks; they come after all others
    obs = "objects+joints"

    [[variant]]                       # an algorithm with options and a name of its own, beside `algorithms` or instead
    name = "dagger-ffm"
    algorithm = "dagger"
    options = { memory = "ffm" }      # they come after [options.dagger]

Runs that are finished, which means that they have a final_eval.json, are skipped. So the same command continues a sweep
that was stopped.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fnmatch
import functools
import glob
import itertools
import json
import logging
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import mikasa_suite
from mikasa_robo.locks import take_lock

from .env_ids import OptionError
from .extras import require_modules
from .output import require_folder
from .plot import read_column, read_progress
from .sweep_plan import TRAINING, Plan, PlannedRun, SweepError, Vocabulary, read_plan

__all__ = ["Args", "Plan", "PlannedRun", "SweepError", "finished_folder", "main", "read_plan", "run_file", "sweep"]

log = logging.getLogger(__name__)

USAGE_ERROR = 2
"""Exit status of a trainer that cannot use its arguments: another attempt would end the same way."""
PATIENCE = 20.0
"""Seconds that runs get to end when a sweep is stopped."""
OBJECT_STORE = 80 * 1024 * 1024
"""Bytes of shared memory for Ray on this machine, close to its minimum: runs exchange no data."""
STARTS = 3
"""How often Ray may try to start on this machine. An attempt fails where its processes are not up within 30 seconds."""
LOCK = ".sweep.lock"
"""The file in ``out``/logs that a sweep locks. It stays: another sweep may have opened it already."""
FREE = (
    *("torch_threads", "num_workers", "device", "compile", "eval_num_envs"),
    *("keep_checkpoints", "video", "video_episodes", "track", "wandb_project", "wandb_mode"),
)
"""Options that say where and how fast a run trains, and what it leaves besides: they do not change its result."""
NOT_COMPARED = (*FREE, "preset", "env_module", "algorithm_module", "network_module")
"""Arguments in which the record of a run may differ from the sweep. What a preset sets is among the other arguments."""

State = Literal["waiting", "running", "finished", "failed"]
Checked = frozenset[tuple[Path, int, int]]
"""Checkpoints by path, inode and time of change: where these are the same, so is what is in them."""


@dataclass
class Args:
    """Train tasks x algorithms x seeds, several runs at a time. Runs that are finished are skipped."""

    file: tyro.conf.Positional[Path]
    """The sweep, a TOML file. docs/training.md shows one, and docs/lifelong.md one of `mikasa lifelong sweep`."""
    address: str | None = None
    """A Ray cluster to join (host:port, or auto); by default Ray runs on this machine only, for this sweep."""
    num_cpus: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Cores that Ray may use on this machine; by default all. Not together with --address."""
    dry_run: bool = False
    """Show the runs and how far each has come, and start none."""
    only: tuple[str, ...] = ()
    """Only the runs whose names fit one of these patterns: `--only 'RememberColor3*' '*__gru__1'`. The name of a run is
    <task>__<algorithm or variant>__<seed>."""
    skip_in: Path | None = None
    """A CSV of results with the columns env_id, variant and seed, as benchmarks/memory_table.py writes it: the runs in it
    are not made again, also where their folders are gone."""


Command = Callable[[PlannedRun, Path, bool], list[str]]
"""(run, run folder, whether to resume what is in it) to the words that follow `python`."""


def train_command(run: PlannedRun, run_dir: Path, resume: bool) -> list[str]:
    """`mikasa train` with as many torch threads as the run has cores, unless its options say otherwise."""
    words = ["-m", "mikasa_robo.tools.cli", "train", run.algorithm]
    if resume:  # with the arguments that it was started with; a module is imported only where it is named
        named = ["--env-id", run.env_id] if run.env_id != run.task else []
        for name in ("network", "memory"):
            if ":" in str(run.options.get(name)):
                named += [f"--{name}", str(run.options[name])]
        return [*words, "--resume", str(run_dir), *named]
    words += run.arguments(run_dir)
    if "torch_threads" not in run.options:
        words += ["--torch-threads", str(max(1, math.floor(run.cpus)))]
    return words


@dataclass
class Progress:
    """The state of one run of a sweep."""

    run: PlannedRun
    folder: Path
    state: State = "waiting"
    attempts: int = 0
    note: str = ""
    log: Path | None = None  # of the last attempt; written once it has begun
    checked: Checked = frozenset()  # the checkpoints among which the newest was found to be of this run


def _is_finished(progress: Progress) -> bool:
    """Whether the run's folder holds the result of this run.

    Raises:
        SweepError: it holds the result of another run.
    """
    file = progress.folder / "final_eval.json"
    if not file.is_file():
        return False
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        env_id, algorithm, seed = found["env_id"], found["algorithm"], found["seed"]
        args = found.get("args", {})
        if not isinstance(env_id, str) or not isinstance(args, dict):
            raise TypeError("env_id is no text, or args is no table")
        recorded = {**args, "env_id": env_id, "algorithm": algorithm, "seed": seed}
        _require_same(progress.run, recorded, f"{progress.folder} is finished")
    except SweepError:
        raise
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SweepError(f"{file} is broken ({reason}); move {progress.folder} away") from error
    return True


def _require_own_checkpoint(progress: Progress) -> None:
    """Raise SweepError where the run would go on from a checkpoint of another run."""
    # `--resume` goes on with the arguments in the checkpoint, whatever the sweep says.
    if progress.run.args is None or not progress.checked:
        return
    from mikasa_robo.baselines.checkpoints import CheckpointError, Checkpoints

    try:
        saved = Checkpoints.load_newest(progress.folder)
    except (CheckpointError, OSError) as error:
        raise SweepError(f"{progress.folder} cannot be continued: {error}; or move that folder away") from error
    _require_same(progress.run, {**saved["args"], "algorithm": saved["algorithm"]}, f"{progress.folder} was begun")


def _require_same(run: PlannedRun, recorded: Mapping[str, Any], what: str) -> None:
    """Raise SweepError where a run has other arguments than a record says. ``what`` says where the record is."""
    asked = {"env_id": run.task, "algorithm": run.algorithm_name, "seed": run.seed}
    if run.variant is not None:
        asked["variant"] = run.variant
    # A record from before there was an option says nothing of it; the run had what is the default now.
    absent: Mapping[str, Any] = asked
    if run.args is None:
        asked = {**run.options, **asked}
        absent = asked
    else:
        asked = {**{name: value for name, value in run.args.items() if name not in NOT_COMPARED}, **asked}
        # Not for what a preset or a default of another version may have set.
        absent = {**asked, **{name: value for name, value in run.defaults.items() if name in run.options}}
    for name, value in asked.items():
        was = recorded.get(name, absent[name])
        if name in ("env_id", "network"):  # the module that registers a name may stand before it, or apart
            was, value = (each.rpartition(":")[2] if isinstance(each, str) else each for each in (was, value))
        if was != value:
            raise SweepError(
                f"{what} with {name} = {was!r}, and the sweep asks for {value!r}; "
                "name another `out`, or move that folder away"
            )


def _attempts(out: Path, run: PlannedRun) -> dict[int, Path]:
    """The folders in use of a run, by the number of the attempt, in order: its own, and those of attempts that could not
    resume the one before. The user may have removed some of them."""
    found = {1: out / run.name}
    for folder in found[1].parent.glob(f"{glob.escape(found[1].name)}__attempt-*"):
        number = folder.name.rpartition("-")[2]
        if re.fullmatch(r"[2-9]|[1-9][0-9]{1,5}", number):
            found[int(number)] = folder
    return {number: found[number] for number in sorted(found) if _is_in_use(found[number])}


def _is_in_use(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _find(out: Path, run: PlannedRun) -> Progress:
    """Find the last folder of a run, or the one that it will get."""
    last = None
    for folder in _attempts(out, run).values():
        last = folder
        progress = Progress(run, folder)
        if _is_finished(progress):
            progress.state, progress.note = "finished", "skipped: it was finished before"
            return progress
    return Progress(run, last or out / run.name)


def _place(out: Path, run: PlannedRun, before: Checked = frozenset()) -> Progress:
    """`_find`, for a run that will be made where it is not finished.

    Args:
        out: the sweep's folder.
        run: the run.
        before: what `Progress.checked` was when the run was placed earlier. They are not read again.

    Raises:
        SweepError: its folder holds the result of another run, or the checkpoint of one.
    """
    progress = _find(out, run)
    if progress.state != "finished":
        progress.checked = _checkpoints(progress.folder)  # before they are read: what changes meanwhile is read again
        if progress.checked != before:
            _require_own_checkpoint(progress)
    return progress


def _require_start(out: Path, run: PlannedRun, runs: Sequence[PlannedRun], left_out: Sequence[PlannedRun] = ()) -> None:
    """Raise SweepError where the policy that a run is to start from is not there, and none of ``runs`` makes it.

    Likewise where it is that of a run among ``left_out`` which is not finished.
    """
    start = run.options.get("init_from")
    if start is None:
        return
    path = Path(start).resolve()
    if any(path.is_relative_to(out / other.name) for other in runs):
        return
    for other in left_out:
        # What lies there may be half trained, and nobody would notice.
        if path.is_relative_to(out / other.name) and finished_folder(out, other) != out / other.name:
            raise SweepError(
                f"{run.name}: init_from = {start!r} is the policy of {other.name}, which --only leaves out and which is not "
                f"finished there; add {other.name!r} to --only, or finish that run first"
            )
    from mikasa_robo.baselines.files import find_policy_file

    try:
        find_policy_file(path)
    except FileNotFoundError as error:
        raise SweepError(f"{run.name}: init_from = {start!r}: {error}") from error


def _source(out: Path, progress: Progress, runs: Sequence[Progress]) -> Progress | None:
    """The run among ``runs`` whose policy a run is to start from; None where there is none, and where the run resumes."""
    start = progress.run.options.get("init_from")
    if start is None or progress.checked:
        return None
    path = Path(start).resolve()
    return next((other for other in runs if path.is_relative_to(out / other.run.name)), None)


def _require_order(out: Path, runs: Sequence[Progress]) -> None:
    """Raise SweepError where runs would wait for each other's policies for ever."""
    for progress in runs:
        chain = [progress]
        while chain[-1].state != "finished" and (source := _source(out, chain[-1], runs)) is not None:
            if any(source is one for one in chain):
                names = " starts from ".join(one.run.name for one in (*chain, source))
                raise SweepError(f"init_from: {names}; name the policy of another run")
            chain.append(source)


def _when(out: Path, progress: Progress, runs: Sequence[Progress]) -> Literal["now", "later", "never"]:
    """When a run can start: not before the run is finished whose policy it is to start from."""
    source = _source(out, progress, runs)
    if source is None:
        return "now"
    if source.state != "finished":
        return "never" if source.state == "failed" else "later"
    # Another attempt may have finished. Then the named folder may hold a policy that was not trained to the end.
    return "now" if source.folder == out / source.run.name else "never"


def _checkpoints(folder: Path) -> Checked:
    found = set()
    for path in folder.glob("resume-*.pt"):
        with contextlib.suppress(FileNotFoundError):  # a process that trains there removes older ones
            status = path.stat()
            found.add((path, status.st_ino, status.st_mtime_ns))
    return frozenset(found)


def finished_folder(out: Path, run: PlannedRun) -> Path | None:
    """The folder below ``out`` that holds the result of a run; None where it is not finished.

    Raises:
        SweepError: the folder holds the result of another run.
    """
    progress = _find(out, run)
    return progress.folder if progress.state == "finished" else None


def _next_attempt(progress: Progress, out: Path) -> bool:
    """Choose the folder of the next attempt; return whether it resumes from a checkpoint."""
    if any(progress.folder.glob("resume-*.pt")):
        return True
    number = max(_attempts(out, progress.run), default=0) + 1
    progress.folder = out / (progress.run.name if number == 1 else f"{progress.run.name}__attempt-{number}")
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
    """Train what is not finished yet, and return how every run ended.

    Args:
        plan: what to train.
        address: a Ray cluster; its machines must see the files of this one under the same paths.
        num_cpus: cores for Ray, where there is no ``address`` and Ray does not run in this process yet.
        command: makes the command line of a run; it is run by the Python of its machine.
        show: called with a table of all runs after each change, and every ``interval`` seconds.

    Raises:
        SweepError: ``out`` cannot be used, another sweep uses it, a folder holds another run, or a policy that a run is to
            start from is not there. Nothing has been started.
        ModuleNotFoundError: Ray is not installed.
    """
    out = plan.out.resolve()
    runs = [_place(out, run) for run in plan.runs]
    for progress in runs:
        if progress.state != "finished" and not progress.checked:
            _require_start(out, progress.run, plan.runs, plan.left_out)
    _require_order(out, runs)
    if all(progress.state == "finished" for progress in runs):
        show(table(runs))
        return runs
    try:
        require_folder(out, "out =")
    except OptionError as error:
        raise SweepError(str(error)) from error
    require_modules("distributed", "ray")
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with _only_sweep(out):
        # Again: another sweep may have ended meanwhile. A checkpoint may be large, and is read again only if it changed.
        runs = [_place(out, progress.run, progress.checked) for progress in runs]
        for progress in runs:
            if progress.state != "finished":
                _require_idle(progress.folder)
        _train(plan, runs, out, address=address, num_cpus=num_cpus, command=command, show=show, interval=interval)
    return runs


@contextlib.contextmanager
def _only_sweep(out: Path) -> Iterator[None]:
    """Lock the folder of a sweep for a block; the lock of a process that is killed is released.

    Raises:
        SweepError: another sweep holds the lock.
    """
    # Without it, two sweeps would make the same runs: a run that has just begun looks like one that failed early.
    with open(out / "logs" / LOCK, "ab") as file:
        try:
            is_locked = take_lock(file.fileno())
        except BlockingIOError as error:
            raise SweepError(
                f"out = {out}: another sweep is training in this folder; wait until it ends or stop it, "
                "or name another folder"
            ) from error
        if not is_locked:
            log.warning("%s: its file system has no locks; make sure that only one sweep trains there", out)
        yield


def _require_idle(folder: Path) -> None:
    """Raise SweepError where a process trains in the folder of a run, such as one that outlived its sweep."""
    if not folder.is_dir():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        take_lock(handle)  # as `mikasa train` does; where there are no locks, `_only_sweep` has warned
    except BlockingIOError as error:
        raise SweepError(
            f"{folder}: a process is training in this folder; wait until it ends or stop it, then start the sweep again"
        ) from error
    finally:
        os.close(handle)


def _train(
    plan: Plan,
    runs: Sequence[Progress],
    out: Path,
    *,
    address: str | None,
    num_cpus: int | None,
    command: Command,
    show: Callable[[str], None],
    interval: float,
) -> None:
    """Train the runs that are not finished; see `sweep`."""
    show("starting Ray ...")
    with _ray(address, num_cpus) as ray:
        _require_cores(ray, plan)
        work = ray.remote(max_retries=0)(_task())
        pending: dict[Any, Progress] = {}
        waiting = [progress for progress in runs if progress.state != "finished"]

        def submit(progress: Progress) -> None:
            resume = _next_attempt(progress, out)
            progress.state, progress.attempts = "waiting", progress.attempts + 1
            progress.log = _new_log(out, progress.run)
            words = command(progress.run, progress.folder, resume)
            reference = work.options(num_cpus=progress.run.cpus).remote(words, str(progress.log), os.getcwd())
            pending[reference] = progress

        def submit_ready() -> None:
            """Start the runs that need not wait any longer, and give up those that would wait for ever."""
            for progress in list(waiting):
                when, start = _when(out, progress, runs), progress.run.options.get("init_from")
                progress.note = "" if when == "now" else f"waits for {start}"
                if when == "now":
                    waiting.remove(progress)
                    submit(progress)
                elif when == "never":
                    waiting.remove(progress)
                    progress.state, progress.note = "failed", f"not started: {start} is not the result of a run"
                    submit_ready()  # others may start from this one
                    return

        try:
            submit_ready()
            shown = -math.inf
            while pending:
                done, _ = ray.wait(list(pending), timeout=1.0)
                for reference in done:
                    progress = pending.pop(reference)
                    again = _conclude(ray, reference, progress)
                    if again and progress.attempts <= plan.retries:
                        submit(progress)
                if done:
                    submit_ready()
                for progress in pending.values():
                    if progress.log is not None and progress.log.exists():
                        progress.state = "running"
                if done or time.monotonic() - shown > interval:
                    shown = time.monotonic()
                    show(table(runs))
        finally:
            with mikasa_suite.finish_first():  # no run may go on by itself
                for reference in pending:
                    ray.cancel(reference)
                if pending:
                    ray.wait(list(pending), num_returns=len(pending), timeout=PATIENCE)


def _require_cores(ray: Any, plan: Plan) -> None:
    most = max((node["Resources"].get("CPU", 0) for node in ray.nodes()), default=0)
    for run in plan.runs:
        if run.cpus > most:
            raise SweepError(f"cpus_per_run = {run.cpus} is more than any machine has for Ray ({most:g}); lower it")


def _new_log(out: Path, run: PlannedRun) -> Path:
    """The log of an attempt, a file that no attempt of this or an earlier sweep has written."""
    (out / "logs" / run.name).parent.mkdir(parents=True, exist_ok=True)  # the ID of a task may have a namespace
    numbers = itertools.count(1)
    return next(file for n in numbers if not (file := out / "logs" / f"{run.name}.{n}.log").exists())


def _conclude(ray: Any, reference: Any, progress: Progress) -> bool:
    """Note the result of an attempt; return whether to try again."""
    progress.state = "failed"
    try:
        status = ray.get(reference)
    except ray.exceptions.RayError as error:
        progress.note = f"lost: {str(error).splitlines()[0]}"
        return True
    if (progress.folder / "final_eval.json").is_file():  # training writes it before it draws the video
        progress.state = "finished"
        progress.note = "" if status == 0 else f"exit status {status} after its result was written: its log says why"
        return False
    if status == USAGE_ERROR:
        progress.note = f"exit status {USAGE_ERROR}: its log says why; it is not tried again"
        return False
    what = "no final_eval.json" if status == 0 else f"exit status {status}"
    progress.note = f"attempt {progress.attempts}: {what}"
    return True


def _task() -> Callable[[list[str], str, str], int]:
    """The function that a Ray worker runs. Ray sends a closure whole, so workers need not import this package and torch."""
    patience = PATIENCE / 2

    def run(words: list[str], log_file: str, cwd: str) -> int:
        import os
        import signal
        import subprocess
        import sys
        import time

        # Shells make background processes ignore SIGINT. Then neither ray.cancel would work, nor the SIGINT that tells a
        # trainer to write its checkpoint.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        words = [sys.executable, *words]
        with open(log_file, "ab") as output:
            output.write(f"$ {' '.join(words)}\n".encode())
            output.flush()
            # Ray blocks SIGINT in its workers, and their child processes would inherit that.
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # No file in the folder hides an installed package. Before Python 3.11 it does nothing.
                    env={**os.environ, "PYTHONSAFEPATH": "1"},
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                # Not wait(): ray.cancel interrupts Python code, not a system call.
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
    """Ray for a block: started here, without dashboard and usage statistics, or the one that this process already has."""
    with _own_token() if address is None else contextlib.nullcontext():
        yield from _started_ray(address, num_cpus)


def _started_ray(address: str | None, num_cpus: int | None) -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Let a run see the GPUs of its machine although Ray reserves none for it, as later versions of Ray do by default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    _read_authentication_again()
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        own = {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE, **common}
        _start_here(ray, own)
        _require_authentication(ray)
    else:
        ray.init(address=address, **common)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_here(ray: Any, options: Mapping[str, Any]) -> None:
    """Start Ray on this machine. Raises SweepError if it does not start in `STARTS` attempts."""
    for _ in range(STARTS):
        reason = _why_not_started(ray, options)
        if reason is None:
            return
    raise SweepError(
        f"Ray did not start on this machine in {STARTS} attempts ({reason}); if other programs keep it busy, run the same "
        "command again later"
    )


def _why_not_started(ray: Any, options: Mapping[str, Any]) -> str | None:
    """Try to start Ray. None if it runs; what it says where one of its processes was not up in time."""
    try:
        ray.init(**options)
    except Exception as error:
        # Ray has no class of its own for this. The others are about the options.
        if type(error) not in (Exception, RuntimeError):
            raise
        ray.shutdown()
        return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return None


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """Lets a Ray that is started inside refuse everybody but its own processes, which inherit the environment.

    Ray listens on all interfaces, whatever address it is given, and runs what it is sent. The token is in no file.
    """
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@functools.cache
def _token() -> str:
    """256 random bits, the same for all sweeps of this process."""
    return secrets.token_hex(32)


def _read_authentication_again() -> None:
    """Makes a Ray that was imported before the environment changed notice it."""
    with contextlib.suppress(ImportError):  # an older Ray has none of this
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def _require_authentication(ray: Any) -> None:
    """Raises SweepError if the Ray of this process answers strangers."""
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:
        enabled = False
    else:
        enabled = is_token_auth_enabled()
    if not enabled:
        ray.shutdown()
        raise SweepError(f"Ray {ray.__version__} would run what anyone on the network sends it; install ray >= 2.52")


def _last_score(rows: Sequence[dict[str, str]]) -> str:
    """Success rate, or mean return where there is none, of the last evaluation or else of the training episodes."""
    for metric, show in (("success_once", "success {:.1%}"), ("return", "return {:.2f}")):
        for kind in ("eval", "train"):
            if values := read_column(rows, f"{kind}/{metric}")[1]:
                return show.format(values[-1])
    return "-"


def _final_score(folder: Path) -> str:
    """That of a finished run: the one of its final evaluation, as in `mikasa report`."""
    final = json.loads((folder / "final_eval.json").read_text(encoding="utf-8"))["final"]
    if "success_once" in final:
        return f"success {final['success_once']:.1%}"
    return f"return {final['return']:.2f}"


def table(runs: Sequence[Progress]) -> str:
    """The state of every run, as lines of text."""
    rows = [("run", "state", "attempts", "step", "score", "")]
    for progress in runs:
        step = score = "-"
        with contextlib.suppress(ValueError, KeyError, OSError):
            lines = read_progress(progress.folder)
            step = f"{float(lines[-1]['step']):,.0f}"
            score = _last_score(lines)
        if progress.state == "finished":
            with contextlib.suppress(ValueError, KeyError, OSError, TypeError):
                score = _final_score(progress.folder)
        rows.append((progress.run.name, progress.state, str(progress.attempts), step, score, progress.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines_out = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines_out, f"{sum(p.state == 'finished' for p in runs)} of {len(runs)} runs are finished"])


def select(plan: Plan, only: Sequence[str] = (), skip_in: Path | None = None) -> Plan:
    """The plan with the runs that ``--only`` and ``--skip-in`` leave.

    Raises:
        SweepError: they leave none, or the CSV cannot be used.
    """
    runs = [run for run in plan.runs if not only or any(fnmatch.fnmatchcase(run.name, pattern) for pattern in only)]
    chosen = {run.name for run in runs}
    left_out = tuple(run for run in plan.runs if run.name not in chosen)
    if not runs:
        raise SweepError(f"--only {' '.join(only)} fits no run; the first is {plan.runs[0].name}")
    if skip_in is not None:
        if skip_in.exists() and not skip_in.is_file():  # a device may have no end
            raise SweepError(f"--skip-in {skip_in} is not a file; name a CSV file")
        try:
            with skip_in.open(encoding="utf-8", newline="") as file:
                done = {(row["env_id"], row["variant"], int(row["seed"])) for row in csv.DictReader(file)}
        except OSError as error:
            raise SweepError(f"--skip-in {skip_in} cannot be read: {error.strerror}; name a CSV file") from error
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise SweepError(
                f"--skip-in {skip_in} is no CSV with the columns env_id, variant and seed ({error!r})"
            ) from error
        runs = [run for run in runs if (run.task, run.label, run.seed) not in done]
        left_out = tuple(run for run in left_out if (run.task, run.label, run.seed) not in done)
        if not runs:
            raise SweepError(f"--skip-in {skip_in} holds all runs; there is nothing left to train")
    return dataclasses.replace(plan, runs=tuple(runs), left_out=left_out)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code: 1 if a run failed."""
    return run_file(tyro.cli(Args, args=argv, prog="mikasa sweep"), TRAINING, train_command, "mikasa report")


def run_file(args: Args, words: Vocabulary, command: Command, report: str) -> int:
    """Run the sweep that ``args`` names, and return the exit code of the command: 1 if a run failed.

    Args:
        args: the command's arguments.
        words: what the names in the file stand for.
        command: see `sweep`.
        report: the command that reports its runs, for the last line.
    """
    if args.address is not None and args.num_cpus is not None:
        print(
            f"--num-cpus {args.num_cpus} is for Ray on this machine only; leave it out together with --address",
            file=sys.stderr,
        )
        return 2
    if args.num_cpus is not None and args.num_cpus < 1:
        print(f"--num-cpus {args.num_cpus} must be at least 1", file=sys.stderr)
        return 2
    try:
        plan = select(read_plan(args.file, words), args.only, args.skip_in)
        if args.dry_run:
            print(table([_place(plan.out.resolve(), run) for run in plan.runs]))
            return 0
        runs = sweep(plan, address=args.address, num_cpus=args.num_cpus, command=command, show=print)
    except (SweepError, ModuleNotFoundError, ConnectionError) as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        code = mikasa_suite.exit_code(error)
        mikasa_suite.tell(code, "run the same command again to continue")
        return code
    failed = [progress for progress in runs if progress.state == "failed"]
    for progress in failed:
        why = f"{progress.run.name}, {progress.note}" if progress.log is None else f"see {progress.log}"
        print(f"failed: {why}", file=sys.stderr)
    print(f"{report} {plan.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
