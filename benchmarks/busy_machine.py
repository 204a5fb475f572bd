"""Speed of training while other processes want the same cores, compared with its speed on quiet cores, in one run.

``python benchmarks/busy_machine.py`` starts `mikasa train` with its default settings on two cores. It lets it do some
updates undisturbed, then starts a busy loop for each core, and then ends the loops again. Speeds are env-steps/s over the
wall time, by progress.csv; the quiet speed is the mean of before and after. Two processes for each core leave training half
of it, so a ratio of a half is what a fair scheduler gives at best. The goal is a third.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from tables import in_markdown, plain, write_csv, write_text

GOAL = 1 / 3
HEADER = ("algorithm", "cores", "busy loops", "quiet env-steps/s", "busy env-steps/s", "ratio", "≥ 1/3")
PATIENCE = 1800.0
"""Seconds in which one update has to be done."""


@dataclass
class Args:
    """Measures training beside busy processes."""

    algorithms: tuple[str, ...] = ("ppo-mlp", "ppo-lstm")
    """Algorithms to measure."""
    env_id: str = "RememberColor3-v0"
    """The environment."""
    cores: int = 2
    """Cores that training and the busy loops share."""
    loops: int = 2
    """Busy loops."""
    updates: int = 4
    """Updates, with their rollouts, in each of the three phases; the first update of a run is left out besides."""
    options: tuple[str, ...] = ()
    """Options of `mikasa train` in the place of its defaults, each word after this one: --options --num-envs 32"""
    csv: Path | None = None
    """Also write the table to this CSV file."""
    markdown: Path | None = None
    """Also write the table to this Markdown file."""


def rows_of(run_dir: Path) -> list[tuple[float, float]]:
    """Steps and wall time (s) after each update so far."""
    path = run_dir / "progress.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in file if line.endswith("\n")]  # the last one may be half written
    return [(float(row["step"]), float(row["wall_time_s"])) for row in csv.DictReader(lines)]


def wait_for(count: int, run_dir: Path, training: subprocess.Popen[str]) -> None:
    """Until the run has written ``count`` rows. Raises RuntimeError where it ends or hangs."""
    deadline, seen = time.monotonic() + PATIENCE, 0
    while (now := len(rows_of(run_dir))) < count:
        if now > seen:
            seen, deadline = now, time.monotonic() + PATIENCE
        if training.poll() is not None:
            raise RuntimeError(f"training ended after {now} updates:\n{training.communicate()[1][-2000:]}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"no update in {PATIENCE:g} s")
        time.sleep(0.05)


def measure(algorithm: str, args: Args) -> tuple[float, float]:
    """Env-steps/s quiet and busy."""
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    pinned = ["taskset", "-c", ",".join(map(str, cores))]
    k = args.updates
    loops: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = ["-m", "mikasa_robo.tools.cli", "train", algorithm, "--env-id", args.env_id, "--run-dir", str(run_dir)]
        training = subprocess.Popen(
            [*pinned, sys.executable, *words, "--no-video", *args.options], stderr=subprocess.PIPE, text=True
        )
        try:
            wait_for(1 + k, run_dir, training)
            loops += [subprocess.Popen([*pinned, sys.executable, "-c", "while True: pass"]) for _ in range(args.loops)]
            began = len(rows_of(run_dir)) + 1  # the update that saw the loops begin is left out
            wait_for(began + k, run_dir, training)
            for loop in loops:
                loop.kill()
            over = len(rows_of(run_dir)) + 1
            wait_for(over + k, run_dir, training)
            rows = rows_of(run_dir)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
            if training.poll() is None:
                training.send_signal(signal.SIGKILL)
            training.communicate()

    def speed(*spans: tuple[int, int]) -> float:
        steps = sum(rows[b][0] - rows[a][0] for a, b in spans)
        return steps / sum(rows[b][1] - rows[a][1] for a, b in spans)

    # after row i the run has done i + 1 updates
    return speed((0, k), (over - 1, over - 1 + k)), speed((began - 1, began - 1 + k))


def problem(args: Args) -> str | None:
    """What is wrong with the arguments, and the fix."""
    for name in ("cores", "loops", "updates"):
        if getattr(args, name) < 1:
            return f"--{name} {getattr(args, name)} cannot be used; use at least 1"
    if args.cores > len(os.sched_getaffinity(0)):
        return f"--cores {args.cores} is more than the {len(os.sched_getaffinity(0))} that are here; use fewer"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    args = tyro.cli(Args, args=argv, description=__doc__)
    wrong = problem(args)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    rows: list[tuple[str, ...]] = [HEADER]
    for algorithm in args.algorithms:
        quiet, busy = measure(algorithm, args)
        ratio = busy / quiet
        held = "yes" if ratio >= GOAL else "NO"
        numbers = (str(args.cores), str(args.loops), f"{quiet:.0f}", f"{busy:.0f}", f"{ratio:.2f}")
        rows.append((algorithm, *numbers, held))
    print(plain(rows))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        title = f"Training on {args.env_id} beside busy processes (`python benchmarks/busy_machine.py`)."
        write_text(args.markdown, f"{title}\n\n{in_markdown(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
