"""Logging of a run: progress.csv, TensorBoard, optionally Weights & Biases, and the run's provenance."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import logging
import os
import platform
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from mikasa_robo.locks import take_lock
from mikasa_robo.partial_files import remove_leftovers

from .arguments import ArgumentError
from .files import write_atomically

__all__ = [
    "ProgressBar",
    "ProgressCsv",
    "RunLogger",
    "claim_run_dir",
    "configure_logging",
    "provenance",
    "require_free",
    "short_revision",
    "sole_writer",
]

log = logging.getLogger(__name__)


def require_free(run_dir: Path) -> None:
    """Raise FileExistsError where a run would overwrite something."""
    if run_dir.is_dir():
        if any(run_dir.iterdir()):
            raise FileExistsError(
                f"--run-dir {run_dir} exists and is not empty; name another folder, or move that one away"
            )
    elif run_dir.exists() or run_dir.is_symlink():
        raise FileExistsError(f"--run-dir {run_dir} exists and is not a folder; name another folder")


def claim_run_dir(run_dir: Path) -> None:
    """Create the folder of a run. Raises FileExistsError where it is not new or empty."""
    require_free(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def sole_writer(run_dir: Path) -> Iterator[None]:
    """Lock the folder of a run for a block; the lock of a process that is killed is released.

    Raises:
        FileExistsError: another process holds the lock.
    """
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            is_locked = take_lock(folder)
        except BlockingIOError as error:
            raise FileExistsError(
                f"{run_dir}: another process is training in this folder; wait until it ends or stop it, then use --resume"
            ) from error
        if not is_locked:
            log.warning("%s: its file system has no locks; make sure that only one process trains there", run_dir)
        remove_leftovers(run_dir)
        yield
    finally:
        os.close(folder)


class ProgressCsv:
    """A CSV file that gets a new column when a row has one; the file is then rewritten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._rows: list[dict[str, float]] = []

    def go_on(self, step: int) -> None:
        """Keep the rows up to ``step`` of an existing file, and drop later ones."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in file if line.endswith("\n")]  # the last line may be incomplete
        reader = csv.DictReader(lines)
        self._rows = []
        # After a power failure a file may end with zeros. What follows a damaged row is dropped with it.
        with contextlib.suppress(KeyError, TypeError, ValueError, csv.Error):
            for row in reader:
                values = {k: float(v) for k, v in row.items() if v}
                self._columns = list(row)
                if values["step"] <= step:
                    self._rows.append(values)
        self._rewrite()

    def _rewrite(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomically(self._path, text.getvalue().encode())

    def append(self, row: Mapping[str, float]) -> None:
        """Append a row to the file."""
        self._rows.append(dict(row))
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite()
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns, restval="").writerow(dict(row))


def _start_wandb(run_dir: Path, config: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A new run of Weights & Biases. Raises ArgumentError where it cannot start."""
    import wandb

    try:
        return wandb.init(name=run_dir.name, dir=str(run_dir), config=dict(config), **options)
    except wandb.errors.Error as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        mode = options.get("mode", "online")
        raise ArgumentError(
            f"--track --wandb-mode {mode}: Weights & Biases cannot start ({reason}); "
            f"{'run `wandb login`, or use --wandb-mode offline' if mode == 'online' else 'leave --track out'}"
        ) from error


class RunLogger:
    """Writes each row of figures to progress.csv, TensorBoard and, if asked, Weights & Biases."""

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        wandb_options: dict[str, Any] | None = None,
        after: int | None = None,
    ) -> None:
        """Open the logs in ``run_dir``.

        Args:
            run_dir: folder of the run.
            config: the arguments of the run.
            wandb_options: keyword arguments of ``wandb.init``; None for no Weights & Biases.
            after: step from which a resumed run continues; later rows are dropped.

        Raises:
            ArgumentError: Weights & Biases cannot log the run, for example because nobody has logged in.
        """
        from torch.utils.tensorboard import SummaryWriter  # not above: playing a policy does not need it

        # First, because it may be refused.
        self._wandb: Any = None if wandb_options is None else _start_wandb(run_dir, config, wandb_options)
        self._csv = ProgressCsv(run_dir / "progress.csv")
        if after is not None:
            self._csv.go_on(after)
        self._tensorboard = SummaryWriter(str(run_dir), purge_step=None if after is None else after + 1)
        table = "\n".join(f"|{name}|{value}|" for name, value in config.items())
        table = table.encode(errors="backslashreplace").decode()  # a path may hold bytes that are not UTF-8
        self._tensorboard.add_text("args", f"|argument|value|\n|-|-|\n{table}")

    def write(self, row: Mapping[str, float]) -> None:
        """Log a row; its ``step`` is the number of environment steps so far."""
        step = int(row["step"])
        self._csv.append(row)
        for name, value in row.items():
            if name != "step":
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(row), step=step)

    def close(self) -> None:
        """Flush and close the logs."""
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


@dataclass
class EpisodeStats:
    """Running statistics of the training episodes, for the log.

    `record` leaves everything on the environment's device, so that it never waits for a GPU; `pop` reads it.
    """

    episodes: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=100))
    terms: dict[str, Tensor] = field(default_factory=dict)  # name -> () sum over steps of the mean over environments
    steps: int = 0
    _ended: list[tuple[list[str], Tensor, Tensor]] = field(default_factory=list)  # columns, values (N, C), done (N,)

    def record(self, info: dict[str, Any], done: Tensor) -> None:
        """Add one step; ``done`` (N,) marks episodes that ended in it. Episodes that were cut short do not count."""
        final = info.get("final_info", info)  # after an automatic reset, `info` is that of the new episode
        for name, value in final.get("reward_terms", {}).items():
            self.terms[name] = self.terms.get(name, 0.0) + value.float().mean()
        self.steps += 1
        if "final_observation" not in info:  # no episode ended
            return
        columns = {"return": final["episode"]["return"], "length": final["episode"]["episode_len"]}
        if "success" in final:
            columns |= {"success_once": final["episode"]["success_once"], "success_at_end": final["success"]}
        if "fail" in final:
            columns["fail_once"] = final["episode"]["fail_once"]
        if "cut_short" in info:
            done = done & ~info["cut_short"]
        values = torch.stack([column.float() for column in columns.values()], dim=1)
        self._ended.append((list(columns), values, done))

    def pop(self) -> dict[str, float]:
        """Means over the last 100 episodes, and of each reward term since the last call."""
        for columns, values, done in self._ended:
            self.episodes.extend(dict(zip(columns, row, strict=True)) for row in values[done].tolist())
        self._ended = []
        # An environment that reports success only at the end of an episode may have had episodes before it first did.
        common = set.intersection(*map(set, self.episodes)) if self.episodes else set()
        names = [name for name in self.episodes[0] if name in common] if self.episodes else []
        row = {f"train/{name}": sum(e[name] for e in self.episodes) / len(self.episodes) for name in names}
        row |= {f"reward/{name}": float(total) / self.steps for name, total in self.terms.items()}
        self.terms, self.steps = {}, 0
        return row


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line in the log every ``interval`` seconds."""

    def __init__(self, total: int, interval: float = 10.0) -> None:
        self._total = total
        self._interval = interval
        self._last = time.monotonic()
        self._bar = tqdm(total=total, unit="step", unit_scale=True, dynamic_ncols=True, disable=not sys.stderr.isatty())

    def update(self, step: int, figures: Mapping[str, float]) -> None:
        """Move to ``step`` and show these figures."""
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if not self._bar.disable:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._last >= self._interval or step >= self._total:
            self._last = time.monotonic()
            log.info("step %d of %d: %s", step, self._total, text)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class _BarFriendlyHandler(logging.Handler):
    """Writes records above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def configure_logging(level: int = logging.INFO) -> None:
    """Show this package's messages on stderr; for programs, not for libraries. A second call changes nothing.

    Records still go to the handlers of the root logger, which a program of one's own may have set up.
    """
    logger = logging.getLogger(__package__)
    logger.setLevel(level)
    if not logger.handlers:
        handler = _BarFriendlyHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)


def provenance(argv: Sequence[str]) -> dict[str, Any]:
    """Provenance of a result: versions, git revision, command line and hardware, as JSON-ready values."""
    return {
        "command": shlex.join(argv),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(dist) for name, dist in _DISTRIBUTIONS.items()},
        },
        "git": _git_revision(Path(__file__).resolve()),
        "hardware": {
            "cpu": _cpu_model(),
            "cores": _usable_cores(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "platform": platform.platform(),
        },
    }


def short_revision(git: Mapping[str, Any] | None) -> str:
    """The first ten digits of the revision in `provenance`'s "git", then "+" where files had been changed.

    "unknown" where there is none, as in an installed copy.
    """
    return f"{git['revision'][:10]}{'+' if git.get('dirty') else ''}" if git else "unknown"


_DISTRIBUTIONS = {
    "torch": "torch",
    "mani_skill": "mani-skill",
    "sapien": "sapien",
    "gymnasium": "gymnasium",
    "numpy": "numpy",
    "mikasa": "mikasa-suite",
}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git_revision(file: Path) -> dict[str, Any] | None:
    """The git revision of ``file``; None where it is not tracked, for example in an installed copy.

    Where tracked files were changed, "changes" is a hash of the changes outside of docs and tests: two trees with equal
    hashes hold the same code.
    """

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", "-C", str(file.parent), *words], capture_output=True, check=True, timeout=10)
        return done.stdout

    try:
        # A virtual environment is often inside a checkout that its files do not belong to.
        git("ls-files", "--error-unmatch", file.name)
        found: dict[str, Any] = {
            "revision": git("rev-parse", "HEAD").decode().strip(),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
        if found["dirty"]:
            places = (":(top)", ":(top,exclude)docs", ":(top,exclude)tests")
            changes = git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--", *places)
            found["changes"] = hashlib.sha256(changes).hexdigest()[:10]
        return found
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
