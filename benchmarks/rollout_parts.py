"""Cost of a reset and of the contact query, compared with a control step, in the simulation on the CPU.

``python benchmarks/rollout_parts.py`` plays rollouts as PPO-MLP does: state observations, a network of its size that
samples actions, and a partial reset of the environments whose episode is over. It measures two figures for each task:

- reset / step: how long a reset of all environments takes, in control steps. Both are measured in turn in every round,
  so a machine that is busy for a while slows both down; the median over the rounds counts.
- contact query: its share of the CPU time of a rollout, over all threads. The threads that step the scenes also read their
  contacts, so this adds up what each thread spends on contacts, the touch sensor's own arithmetic included.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import torch
import tyro
from tables import in_markdown, plain, write_csv, write_text
from torch import nn

import mikasa_robo  # noqa: F401  (registers the tasks)

GOAL_RESET = 2.0
"""A reset of all environments should take at most as long as so many control steps."""
GOAL_CONTACTS = 0.05
"""The contact query should take at most this share of a rollout."""
HIDDEN = (256, 256, 256)
"""Widths of PPO-MLP's hidden layers."""
HEADER = ("ID", "envs", "step, ms", "reset, ms", "reset / step", "contact query", "goals")


@dataclass
class Args:
    """Measures the cost of a reset and of the contact query, compared with a control step."""

    env_ids: tuple[str, ...] = ("RememberColor3-v0", "RememberColor9-v0")
    """Which tasks."""
    num_envs: int = 64
    """Number of environments."""
    sim_threads: int = 2
    """Threads that simulate them."""
    rounds: int = 8
    """Measurements of each task."""
    steps: int = 60
    """Control steps of a measurement."""
    csv: Path | None = None
    """Writes the table here as CSV."""
    markdown: Path | None = None
    """Writes the table here in Markdown."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        for name in ("num_envs", "sim_threads", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: use at least 1")


@dataclass
class Measured:
    """Rounds of one task."""

    steps: list[float] = field(default_factory=list)  # s
    resets: list[float] = field(default_factory=list)  # s
    contacts: list[float] = field(default_factory=list)  # shares

    @property
    def reset_ratio(self) -> float:
        return statistics.median(reset / step for reset, step in zip(self.resets, self.steps, strict=True))

    @property
    def contact_share(self) -> float:
        return statistics.median(self.contacts)


class Rollouts:
    """Environments of one task, played as PPO-MLP plays them while it collects a rollout."""

    def __init__(self, env_id: str, args: Args) -> None:
        # to Gymnasium's own type an environment has one reward and no horizon
        self.env = cast(
            Any,
            gym.make(
                env_id,
                num_envs=args.num_envs,
                obs_mode="state",
                sim_backend="physx_cpu_batched",
                sim_threads=args.sim_threads,
                sim_debug=False,
            ),
        )
        self._steps = args.steps
        self._obs, _ = self.env.reset(seed=0)
        sizes = [self._obs.shape[1], *HIDDEN, self.env.unwrapped.single_action_space.shape[0]]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self._network = nn.Sequential(*layers)
        self._contact_seconds: list[float] = []
        self._step()  # the touch sensor is made by the first step
        self._watch(self.env.unwrapped._touch_sensor, "read")
        self._watch(self.env.unwrapped.scene.px._contacts, "read")

    def _watch(self, owner: Any, name: str) -> None:
        """Notes the CPU time of every call of ``owner.name``, whichever thread makes it."""
        original = getattr(owner, name)

        def timed(*args: Any) -> Any:
            start = time.thread_time()
            result = original(*args)
            self._contact_seconds.append(time.thread_time() - start)
            return result

        setattr(owner, name, timed)

    @torch.no_grad()
    def _step(self) -> None:
        mean = self._network(self._obs)
        action = (mean + 0.5 * torch.randn_like(mean)).clamp(-1, 1)
        self._obs, _, terminated, truncated, _ = self.env.step(action)
        done = terminated | truncated
        if done.any():
            self._obs, _ = self.env.reset(options={"env_idx": done.nonzero().squeeze(1)})

    def measure(self, into: Measured) -> None:
        """One round: a reset of all environments, then a rollout."""
        start = time.perf_counter()
        self._obs, _ = self.env.reset()
        into.resets.append(time.perf_counter() - start)
        self._contact_seconds.clear()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(self._steps):
            self._step()
        into.steps.append((time.perf_counter() - start) / self._steps)
        into.contacts.append(sum(self._contact_seconds) / (time.process_time() - cpu))


def row(env_id: str, args: Args, measured: Measured) -> list[str]:
    """A row of the table."""
    held = measured.reset_ratio <= GOAL_RESET and measured.contact_share <= GOAL_CONTACTS
    return [
        env_id,
        str(args.num_envs),
        f"{1e3 * statistics.median(measured.steps):.2f}",
        f"{1e3 * statistics.median(measured.resets):.2f}",
        f"{measured.reset_ratio:.2f}",
        f"{measured.contact_share:.1%}",
        "yes" if held else "NO",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # the arrays are small
    rollouts = {env_id: Rollouts(env_id, args) for env_id in args.env_ids}
    results = {env_id: Measured() for env_id in args.env_ids}
    for i in range(args.rounds):
        for env_id, rollout in rollouts.items():
            rollout.measure(results[env_id])
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr)
    for rollout in rollouts.values():
        rollout.env.close()
    rows = [list(HEADER), *(row(env_id, args, measured) for env_id, measured in results.items())]
    goals = f"Goals: reset / step at most {GOAL_RESET:g}, contact query at most {GOAL_CONTACTS:.0%} of a rollout."
    print(f"{plain(rows)}\n\n{goals}")
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        write_text(args.markdown, f"{in_markdown(rows)}\n\n{goals}\n")


if __name__ == "__main__":
    main()
