"""What the memory models cost on a CPU: time for a step of all environments, in steps and in whole sequences.

    python benchmarks/memory_speed.py --markdown docs/results/memory_speed.md

Step form: T single steps without gradients, as in a rollout. Sequence form: forward and backward through T steps, as in an
update. Both are divided by T. One torch thread, inputs of 128 numbers, default options; an episode begins in every
environment at the first step. CPU time of the process is measured, not wall time, so that the figures can be compared where
other processes use the cores too. The shortest of ``--rounds`` rounds counts.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from tables import in_markdown, plain, write_text

from mikasa_robo.baselines.memory import MEMORIES, Memory, make_memory

INPUT_SIZE = 128
WARM_UP = 8
"""Steps of the run before the first round: torch sets itself up at a first call."""


@dataclass
class Args:
    """Measures what the memory models cost."""

    memories: tuple[str, ...] = tuple(MEMORIES)
    """Which models; by default all."""
    num_envs: int = 64
    """Environments that are stepped together."""
    lengths: tuple[int, ...] = (60, 180, 1000)
    """Numbers T of steps, one after another and as a sequence."""
    rounds: int = 3
    """Rounds of each measurement."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        if min((self.num_envs, self.rounds, *self.lengths)) < 1:
            raise ValueError("--num-envs, --rounds and --lengths must be at least 1")


def shortest(rounds: int, run: Callable[[int], None], steps: int) -> float:
    """Seconds of CPU time for one of ``steps`` steps of ``run``, after a short run that does not count."""
    run(WARM_UP)
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        run(steps)
        times.append(time.process_time() - begin)
    return min(times) / steps


@torch.no_grad()
def play(memory: Memory, n: int, steps: int) -> None:
    """The step form."""
    state, starts = memory.initial_state(n), torch.ones(n, dtype=torch.bool)
    for _ in range(steps):
        _, state = memory.step(torch.randn(n, INPUT_SIZE), state, starts)
        starts = torch.zeros(n, dtype=torch.bool)


def learn(memory: Memory, n: int, steps: int) -> None:
    """The sequence form."""
    starts = torch.zeros(steps, n, dtype=torch.bool)
    starts[0] = True
    y, _ = memory.forward_sequence(torch.randn(steps, n, INPUT_SIZE), memory.initial_state(n), starts)
    y.square().mean().backward()
    memory.zero_grad()


def measure(name: str, args: Args) -> list[str]:
    """A row of the table; times in ms."""
    torch.manual_seed(0)
    memory = make_memory(name, INPUT_SIZE)
    forms = [functools.partial(form, memory, args.num_envs) for form in (play, learn)]
    times = [shortest(args.rounds, form, steps) for form in forms for steps in args.lengths]
    weights = sum(parameter.numel() for parameter in memory.parameters())
    return [name, f"{memory.state_size():,}", f"{weights:,}", *(f"{1000 * seconds:.3f}" for seconds in times)]


def main(args: Args) -> None:
    """Measure, print and write."""
    args.check()
    torch.set_num_threads(1)
    columns = [f"{form}, T = {steps}" for form in ("step", "sequence") for steps in args.lengths]
    rows = [["memory", "state", "parameters", *columns]]
    for name in args.memories:
        rows.append(measure(name, args))
        print(plain([rows[0], rows[-1]]), flush=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{plain(rows)}")
    if args.markdown is not None:
        write_text(args.markdown, page(rows, load, args))


def page(rows: list[list[str]], load: str, args: Args) -> str:
    """The Markdown page of the table."""
    return (
        f"# What memory models cost\n\nCPU time in ms for a step of {args.num_envs} environments, one torch thread of "
        f"{platform.machine()} (torch {torch.__version__}). `step`: T single steps without gradients, as in a rollout. "
        "`sequence`: T steps at once with their backward pass, as in an update. Both are divided by T. "
        f"The shortest of rounds: {args.rounds}. The load average of the {os.cpu_count()} cores was {load} at the end: "
        "where it is above 1, other processes shared caches and cores with this one, and a quiet machine is faster."
        f"\n\n{in_markdown(rows)}\n\n```bash\ntaskset -c 1 python benchmarks/memory_speed.py --rounds {args.rounds} "
        "--markdown docs/results/memory_speed.md\n```\n"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
