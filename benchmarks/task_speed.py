"""Speed of every robot task on this machine, relative to RememberColor3-v0.

``python benchmarks/task_speed.py`` steps each ID with 1 and with 64 environments as a training loop does: state
observations, joint control, environments at different t, and a partial reset of those whose episode is over. All tasks
get the same actions, a random walk. RememberColor3-v0 is measured before and after every measurement of another task. A
task's ratio is its speed divided by the mean of these two, the median over the rounds: a machine that is busy for a while
slows down both alike. Env-steps/s are those of the best round.
"""

from __future__ import annotations

import csv
import importlib.metadata
import logging
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import torch
import tyro

import mikasa_robo
from mikasa_robo.catalog import CATALOG

REFERENCE = "RememberColor3-v0"
SLOW = 0.5
"""A task whose ratio is below this should have its reason in `NOTES`."""
NOTES: dict[str, str] = {
    "RememberShapeAndColor": "up to fifteen objects, three of them toruses of eight convex pieces",
}
"""Why a family is slow, by its name."""
WALK_STEPS = 512
WALK_STD, WALK_MEMORY = 0.3, 0.8
"""Standard deviation of an action and its correlation with the one before: within 60 steps a joint wanders by about
0.7 rad, a little more than with a policy that has learnt nothing yet."""
GROUPS = 8
"""Environments start at so many different t, as in training."""


@dataclass
class Args:
    """Measures the speed of the robot tasks relative to RememberColor3-v0 in the same run."""

    env_ids: tuple[str, ...] = mikasa_robo.TASKS
    """Which tasks; by default all."""
    num_envs: tuple[int, ...] = (1, 64)
    """Numbers of environments; each has its own columns in the table."""
    rounds: int = 3
    """Measurements of each task and number."""
    seconds: float = 1.0
    """Shortest duration of a measurement, s; it consists of whole episodes."""
    steps: int | None = None
    """Control steps of a measurement, in place of --seconds."""
    warm_up: int | None = None
    """Control steps before the first measurement; by default one episode."""
    sim_backend: str = "auto"
    """Physics backend: auto uses the GPU if CUDA is available, else the CPU."""
    csv: Path | None = None
    """Also write the table to this CSV file."""
    markdown: Path | None = None
    """Also write the table to this Markdown file."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        unknown = [env_id for env_id in self.env_ids if env_id not in CATALOG]
        if unknown:
            raise ValueError(f"--env-ids {' '.join(unknown)}: no such task; `mikasa list` shows all")
        wanted = {"rounds": self.rounds, "steps": self.steps, "num_envs": min(self.num_envs, default=0)}
        for name, value in wanted.items():
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: use at least 1")


@dataclass
class Measured:
    """One task with one number of environments."""

    rates: list[float]
    """Env-steps/s of each round."""
    ratios: list[float]
    """The same, by those of the reference just before and after."""

    @property
    def best(self) -> float:
        return max(self.rates)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def random_walk(num_envs: int, size: int) -> torch.Tensor:
    """(WALK_STEPS, num_envs, size) actions in [-1, 1]; environment i gets the same whatever ``num_envs`` is."""
    walks = []
    for i in range(num_envs):
        noise = torch.randn(WALK_STEPS, size, generator=torch.Generator().manual_seed(i)) * WALK_STD
        walk = [noise[0]]
        for step in noise[1:]:
            walk.append(WALK_MEMORY * walk[-1] + (1 - WALK_MEMORY**2) ** 0.5 * step)
        walks.append(torch.stack(walk))
    return torch.stack(walks, dim=1).clamp(-1, 1)


class Batch:
    """Environments of one task that are stepped and reset as a training loop does it, already warm."""

    def __init__(self, env_id: str, num_envs: int, args: Args) -> None:
        # to Gymnasium's own type an environment has one reward and no horizon
        self.env = cast(Any, gym.make(env_id, num_envs=num_envs, obs_mode="state", sim_backend=args.sim_backend))
        self.num_envs, self.horizon = num_envs, self.env.unwrapped.horizon
        self._actions = random_walk(num_envs, self.env.action_space.shape[-1]).to(self.env.unwrapped.device)
        self._t = 0
        self.env.reset(seed=0)
        steps = self.horizon if args.warm_up is None else args.warm_up
        groups = min(GROUPS, num_envs)
        for t in range(steps):
            self.step()
            if t * groups // steps != (t + 1) * groups // steps:
                self._reset(torch.arange(num_envs) * groups // num_envs == t * groups // steps)

    def step(self) -> None:
        """One control step, then new episodes where one is over."""
        _, _, terminated, truncated, _ = self.env.step(self._actions[self._t % WALK_STEPS])
        self._t += 1
        done = terminated | truncated
        if done.any():
            self._reset(done)

    def _reset(self, which: torch.Tensor) -> None:
        self.env.reset(options={"env_idx": which.nonzero().squeeze(1)})

    def measure(self, args: Args) -> float:
        """Env-steps/s."""
        done, start = 0, time.perf_counter()
        while True:
            for _ in range(args.steps or self.horizon):
                self.step()
                done += 1
            elapsed = time.perf_counter() - start
            if args.steps is not None or elapsed >= args.seconds:
                return done * self.num_envs / elapsed


def measure(env_id: str, reference: Batch, args: Args) -> Measured:
    """All rounds of one task, with as many environments as ``reference`` has."""
    batch = Batch(env_id, reference.num_envs, args)
    rates, ratios = [], []
    before = reference.measure(args)
    for _ in range(args.rounds):
        rates.append(batch.measure(args))
        after = reference.measure(args)
        ratios.append(rates[-1] / ((before + after) / 2))
        before = after
    batch.env.close()
    return Measured(rates, ratios)


def note(env_id: str, measured: Sequence[Measured]) -> str:
    """Why a task is slow; empty where it is not."""
    if all(m.ratio >= SLOW for m in measured):
        return ""
    return NOTES.get(CATALOG[env_id].family, "not explained yet")


def table(results: dict[str, list[Measured]], sizes: Sequence[int]) -> list[list[str]]:
    """Header and a row for each task."""
    rows = [["ID", "T", *(title for n in sizes for title in (f"env-steps/s, {n} env", f"ratio, {n} env")), "note"]]
    for env_id, measured in results.items():
        numbers = [text for m in measured for text in (f"{m.best:.0f}", f"{m.ratio:.2f}")]
        rows.append([env_id, str(CATALOG[env_id].horizon), *numbers, note(env_id, measured)])
    return rows


def plain(rows: list[list[str]]) -> str:
    """The table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def in_markdown(rows: list[list[str]]) -> str:
    """The table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 2) + "---|", *lines[1:]])


def circumstances(args: Args) -> str:
    """What this was measured with."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mani-skill", "sapien", "torch"))
    device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{count} cores{device}, sim_backend={args.sim_backend}, Python {platform.python_version()}, {versions}; "
        f"{args.rounds} rounds; ratio: to {REFERENCE} with as many environments, in the same run."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # the arrays are small
    results: dict[str, list[Measured]] = {env_id: [] for env_id in args.env_ids}
    for n in args.num_envs:
        reference = Batch(REFERENCE, n, args)
        for env_id, measured in results.items():
            measured.append(measure(env_id, reference, args))
            print(f"{env_id}, {n} env: {measured[-1].best:.0f}/s, {measured[-1].ratio:.2f}", file=sys.stderr)
        reference.env.close()
    rows = table(results, args.num_envs)
    print(circumstances(args) + "\n\n" + plain(rows))
    if args.csv is not None:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    if args.markdown is not None:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(f"{circumstances(args)}\n\n{in_markdown(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
