"""Does each environment of mikasa_base need memory? Scores of scripted agents with perfect memory and with none.

    python benchmarks/base_memory_need.py --csv docs/results/base_memory_need.csv --markdown docs/results/base_memory_need.md

For every ID it measures the mean score, with its 95 % interval, of an agent that remembers all, of one that uses only the
current observation, and of random actions, over ``--episodes`` episodes each. A score is the return of an episode or, where
the registry says so, success in per cent. Every result is written to the CSV as soon as it is measured; a run with an
existing CSV continues it.
"""

from __future__ import annotations

import csv
import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import tyro
from tables import in_markdown, plain, write_text

from mikasa_base.agents.agent import play
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import ENV_IDS, VARIANTS, Variant, load

AGENTS = ("perfect memory", "memoryless", "random")
FIELDS = ("env_id", "agent", "episodes", "mean", "std", "seconds")
CHUNK = 10
"""Episodes between two looks at the clock."""


@dataclass
class Args:
    """Measures the scores of agents with and without memory in the environments of mikasa_base."""

    env_ids: tuple[str, ...] = ENV_IDS
    """Which environments; by default all."""
    episodes: int = 200
    """Episodes of each agent in each environment."""
    seconds: float = 120.0
    """Time limit, s, after which an agent starts no further episode; the table shows how many it had."""
    csv: Path | None = None
    """The CSV file of the results; an existing file is continued."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        unknown = [env_id for env_id in self.env_ids if env_id not in VARIANTS]
        if unknown:
            raise ValueError(f"--env-ids {' '.join(unknown)}: no such ID; `mikasa list --suite base` shows all")
        if self.episodes < 2:
            raise ValueError(f"--episodes {self.episodes}: use at least 2, so that there is an interval")


@dataclass(frozen=True)
class Scores:
    """Scores of an agent: how many, their mean and standard deviation."""

    episodes: int
    mean: float
    std: float

    def interval(self, success: bool) -> tuple[float, float]:
        """95 % interval of the mean: of Wilson for shares of successes, else of the normal distribution."""
        z, n = 1.96, self.episodes
        if not success:
            return self.mean - z * self.std / math.sqrt(n), self.mean + z * self.std / math.sqrt(n)
        middle = (self.mean + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(self.mean * (1 - self.mean) / n + z * z / (4 * n * n))
        return middle - half, middle + half


def agent_of(variant: Variant, name: str) -> str | None:
    """Where the agent of that name is, if the environment has one."""
    row = variant.row
    return {
        "perfect memory": row.perfect_agent,
        "memoryless": row.memoryless_agent,
        "random": "mikasa_base.agents.agent:RandomAgent",
    }[name]


def measure(variant: Variant, agent_path: str, args: Args) -> Scores:
    """Plays one agent in one environment."""
    env = gym.make(variant.id, disable_env_checker=True)
    agent = load(agent_path)(env, np.random.default_rng(0))
    scores: list[float] = []
    start = time.perf_counter()
    while len(scores) < args.episodes and (len(scores) < 2 or time.perf_counter() - start < args.seconds):
        chunk = min(CHUNK, args.episodes - len(scores)) if variant.steps < 1000 else 1
        played = play(env, agent, chunk, seed=len(scores))
        success = played.success if variant.row.score == "success" else None
        scores.extend((played.returns if success is None else success).tolist())
    env.close()
    return Scores(len(scores), float(np.mean(scores)), float(np.std(scores, ddof=1)))


def read(path: Path | None) -> dict[tuple[str, str], Scores]:
    """What a CSV of an earlier run holds."""
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["env_id"], row["agent"]): Scores(int(row["episodes"]), float(row["mean"]), float(row["std"]))
            for row in csv.DictReader(file)
        }


def append(path: Path, values: Sequence[object]) -> None:
    """Adds a row to the CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(FIELDS)
        writer.writerow(values)


def cell(scores: Scores | None, success: bool, wanted: int) -> str:
    """Mean and interval, and the number of episodes if it is not that which was asked for."""
    if scores is None:
        return "-"
    factor = 100 if success else 1
    mean, low, high = (f"{factor * value:.3g}" for value in (scores.mean, *scores.interval(success)))
    few = "" if scores.episodes == wanted else f", {scores.episodes} episodes"
    return f"{mean} ({low} to {high}{few})"


def verdict(variant: Variant, results: dict[str, Scores]) -> str:
    """What the row shows, in a few words."""
    missing = missing_dependency(variant.row)
    if missing is not None and not results:
        return f"needs {missing}: pip install 'mikasa-suite[{variant.row.extra}]'"
    said = [f"weak: {variant.row.weak}"] if variant.row.weak else []
    if results.keys() >= {"perfect memory", "memoryless"}:
        success = variant.row.score == "success"
        low = results["perfect memory"].interval(success)[0]
        above = low > results["memoryless"].interval(success)[1]
        said.insert(0, "memory pays" if above else "no difference found")
    return "; ".join(said)


def table(results: dict[tuple[str, str], Scores], env_ids: Iterable[str], episodes: int) -> list[list[str]]:
    """Header and a row for each ID."""
    rows = [["ID", "score", "chance", *AGENTS, "what that shows"]]
    for env_id in env_ids:
        variant = VARIANTS[env_id]
        success = variant.row.score == "success"
        own = {name: results[env_id, name] for name in AGENTS if (env_id, name) in results}
        chance = "-" if variant.chance is None else f"{(100 if success else 1) * variant.chance:.3g}"
        cells = [cell(own.get(name), success, episodes) for name in AGENTS]
        rows.append([env_id, "success, %" if success else "return", chance, *cells, verdict(variant, own)])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    warnings.filterwarnings("ignore")
    results = read(args.csv)
    for env_id in args.env_ids:
        variant = VARIANTS[env_id]
        missing = missing_dependency(variant.row)
        if missing is not None:
            print(f"{env_id} skipped: it needs {missing}, pip install 'mikasa-suite[{variant.row.extra}]'", flush=True)
            continue
        for name in AGENTS:
            path = agent_of(variant, name)
            if path is None or (env_id, name) in results:
                continue
            start = time.perf_counter()
            scores = results[env_id, name] = measure(variant, path, args)
            seconds = round(time.perf_counter() - start, 1)
            if args.csv is not None:
                append(args.csv, (env_id, name, scores.episodes, scores.mean, scores.std, seconds))
            print(
                f"{env_id} {name}: {cell(scores, variant.row.score == 'success', args.episodes)}, {seconds} s",
                flush=True,
            )
    rows = table(results, args.env_ids, args.episodes)
    print(f"\n{args.episodes} episodes\n\n" + plain(rows))
    if args.markdown is not None:
        write_text(args.markdown, f"{args.episodes} episodes\n\n{in_markdown(rows, text_columns=2)}\n")


if __name__ == "__main__":
    main()
