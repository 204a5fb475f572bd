"""What the memory models cost on a CPU: time for a step of all environments, in steps and in whole sequences.

    python benchmarks/memory_speed.py --markdown docs/results/memory_speed.md

Step form: single steps without gradients, as in a rollout. Sequence form: forward and backward through T steps, as in an
update, divided by T. One torch thread, inputs of 128 numbers, default options; an episode begins in every environment at the
first step. The shortest of ``--rounds`` rounds counts.
"""

from __future__ import annotations

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
STEPS = 60
"""Steps of a round of the step form."""


@dataclass
class Args:
    """Measures what the memory models cost."""

    memories: tuple[str, ...] = tuple(MEMORIES)
    """Which models; by default all."""
    num_envs: int = 64
    """Environments that are stepped together."""
    lengths: tuple[int, ...] = (60, 180, 1000)
    """Lengths T of the sequences."""
    rounds: int = 3
    """Rounds of each measurement."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        if min((self.num_envs, self.rounds, *self.lengths)) < 1:
            raise ValueError("--num-envs, --rounds and --lengths must be at least 1")


def shortest(rounds: int, run: Callable[[], None]) -> float:
    """Seconds that ``run`` takes, after one run that does not count."""
    run()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


@torch.no_grad()
def play(memory: Memory, n: int) -> None:
    """The step form."""
    state, starts = memory.initial_state(n), torch.ones(n, dtype=torch.bool)
    for _ in range(STEPS):
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
    times = [shortest(args.rounds, lambda: play(memory, args.num_envs)) / STEPS]
    times += [shortest(args.rounds, lambda: learn(memory, args.num_envs, t)) / t for t in args.lengths]  # noqa: B023
    weights = sum(parameter.numel() for parameter in memory.parameters())
    return [name, f"{memory.state_size():,}", f"{weights:,}", *(f"{1000 * seconds:.3f}" for seconds in times)]


def main(args: Args) -> None:
    """Measure, print and write."""
    args.check()
    torch.set_num_threads(1)
    rows = [["memory", "state", "parameters", "step, ms", *(f"sequence of {t}, ms" for t in args.lengths)]]
    for name in args.memories:
        rows.append(measure(name, args))
        print(plain([rows[0], rows[-1]]), flush=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{plain(rows)}")
    if args.markdown is not None:
        write_text(
            args.markdown,
            f"# What memory models cost\n\nTime in ms for a step of {args.num_envs} environments, one torch thread of "
            f"{platform.machine()} ({os.cpu_count()} cores, load average {load} at the end), torch {torch.__version__}. "
            "A step is without gradients, as in a rollout; a step of a sequence is with its backward pass, as in an update. "
            "The shortest of "
            f"{args.rounds} rounds.\n\n{in_markdown(rows)}\n\n```bash\npython benchmarks/memory_speed.py --markdown "
            "docs/results/memory_speed.md\n```\n",
        )


if __name__ == "__main__":
    main(tyro.cli(Args))
