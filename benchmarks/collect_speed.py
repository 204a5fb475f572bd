"""Speed of recording a dataset, compared with the same policy that plays the same episodes and records nothing.

    python benchmarks/collect_speed.py --markdown docs/results/collect_speed.md

For each observation mode, both play the same batch of episodes of the expert, with the same noise, in the same environments.
Recording copies every step, packs each episode and writes it, flushed, to a temporary folder. Every round measures both, in
turn. The ratio is the median over the rounds of the ratio within a round, so that a machine that is busy for a while slows
down both alike. Then the episodes are written in each format; its cost is given as a share of the time that playing takes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from tables import in_markdown, plain, write_text

from mikasa_robo.data.dataset import Dataset, export
from mikasa_robo.data.episode import Array
from mikasa_robo.data.formats import FORMATS, FormatError
from mikasa_robo.data.recording import draw_noise
from mikasa_robo.rollouts import play_episodes
from mikasa_robo.tools.collect import Options
from mikasa_robo.tools.collecting import Collector

GOAL_NUMERIC, GOAL_IMAGES = 0.8, 0.75
HEADER = ("task", "mode", "what", "envs", "steps/s", "x playing", "share of playing", "kB an episode", "note")


@dataclass
class Args:
    """Measures steps/s of `mikasa collect`, compared with playing alone."""

    env_id: tuple[str, ...] = ("RememberColor3-v0", "ShellGameTouch-v0")
    """The tasks."""
    obs: tuple[str, ...] = ("objects+joints", "state", "rgb+joints")
    """The observation modes."""
    num_envs: int = 64
    """Episodes at a time in numeric modes; with images, a quarter of it."""
    rounds: int = 5
    """Measurements of each."""
    clock: Literal["wall", "cpu"] = "wall"
    """Time by the clock, or CPU time of this process and of encoders that it starts, which other programs disturb less."""
    format: tuple[str, ...] = tuple(FORMATS)
    """The formats."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""


def _cpu_time() -> float:
    """CPU seconds of this process and of those that it waited for: videos are encoded by a process of ffmpeg."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the table."""
    args = tyro.cli(Args, args=argv)
    if args.rounds < 1 or args.num_envs < 4:
        print(f"--rounds {args.rounds} --num-envs {args.num_envs}: use at least 1 and 4", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    rows: list[tuple[str, ...]] = [HEADER]
    for env_id in args.env_id:
        for obs in args.obs:
            rows += measure(args, env_id, obs)
            print(plain([HEADER, *rows[-1:]]), file=sys.stderr)
    print(plain(rows))
    if args.markdown is not None:
        threads = f"{torch.get_num_threads()} torch threads, {args.rounds} rounds, {args.clock} time"
        write_text(args.markdown, f"# Speed of `mikasa collect`\n\n{threads}.\n\n{in_markdown(rows, 3)}\n")
    return 0


def measure(args: Args, env_id: str, obs: str) -> list[tuple[str, ...]]:
    """The rows of a task in an observation mode."""
    clock = time.perf_counter if args.clock == "wall" else _cpu_time
    options = Options(env_id=env_id, out=Path("unused"), obs=obs)
    num_envs = args.num_envs // 4 if options.images else args.num_envs
    goal = GOAL_IMAGES if options.images else GOAL_NUMERIC
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(contextlib.closing(Collector(options, env_id, num_envs)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dataset = Dataset.begin(folder, collector.info, options.arguments())
        numbers = range(num_envs)
        play(collector, numbers)  # warms up
        ratios, played, recorded, steps = [], [], [], 0
        for _ in range(args.rounds):
            one = timed(clock, lambda: play(collector, numbers))
            start = clock()
            episodes = list(collector.play(numbers, lambda t: None))
            dataset.write(episodes)
            other = clock() - start
            steps = sum(episode.length for episode in episodes)
            played.append(one)
            recorded.append(other)
            ratios.append(one / other)
        ratio, base = statistics.median(ratios), statistics.median(played)
        note = "" if ratio >= goal else f"below the goal of {goal:.0%}"
        native = size(folder / "episodes") / num_envs / 1e3
        rate = steps / statistics.median(recorded)
        words = (env_id, obs)
        rows = [(*words, "play", str(num_envs), f"{steps / base:.0f}", "1", "", "", "")]
        rows += [(*words, "record", str(num_envs), f"{rate:.0f}", f"{ratio:.2f}", "", f"{native:.1f}", note)]
        for name in args.format:
            start = clock()
            try:
                target = export(dataset, FORMATS[name], list(numbers))
            except (FormatError, ValueError) as error:
                rows.append((*words, name, str(num_envs), "", "", "", "", str(error).split(";")[0]))
                continue
            took = clock() - start
            kilobytes = f"{size(target) / num_envs / 1e3:.1f}"
            rows.append((*words, name, str(num_envs), f"{steps / took:.0f}", "", f"{took / base:.0%}", kilobytes, ""))
    return rows


def play(collector: Collector, numbers: Sequence[int]) -> None:
    """Play the episodes with these numbers as they are recorded, and keep nothing."""
    task, info = collector.task, collector.info
    seeds = [info.first_seed + number for number in numbers]
    noises: list[Array] = [
        draw_noise(seed, info.noise, task.horizon, task.single_action_space.shape[-1])[1] for seed in seeds
    ]
    noise = torch.stack([torch.from_numpy(values) for values in noises], dim=1).to(task.device)
    act: list[Any] = []
    t = 0

    def carry_out(obs: Any, step_info: Any) -> torch.Tensor:
        return (act[0](obs, step_info).clamp(-1.0, 1.0) + noise[t]).clamp(-1.0, 1.0)

    for step in play_episodes(collector.env, carry_out, seeds, task.horizon):
        t = step.t
        if t == 0:
            act.append(collector.start(seeds))


def timed(clock: Callable[[], float], work: Callable[[], None]) -> float:
    """Seconds that ``work`` takes."""
    start = clock()
    work()
    return clock() - start


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
