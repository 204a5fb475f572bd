"""Does each task need memory? Success of the expert and of policies without its memory, for every task, in one table.

    python benchmarks/memory_need.py --csv docs/results/memory_need.csv --markdown docs/results/memory_need.md

Every row is written to the CSV as soon as it is measured; a run with an existing CSV continues it.

With ``--sweep window`` it measures instead how far back a task of each family reaches: how often a memory of k views
succeeds, for several k and for delays of ``--delay`` steps. An existing CSV is continued:

    python benchmarks/memory_need.py --sweep window --episodes 60 --num-envs 60 --csv docs/results/horizon.csv \\
        --markdown docs/results/horizon.md --picture docs/pictures/horizon.png
"""

from __future__ import annotations

import csv
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

import mikasa_robo
from mikasa_robo.baselines.loggers import provenance, short_revision
from mikasa_robo.catalog import CATALOG, CERTIFICATIONS, Certification, TaskSpec
from mikasa_robo.experts.chance import (
    chance as chance,  # measured before it moved there; tests and scripts read it here
)
from mikasa_robo.experts.evaluation import Outcome, evaluate
from mikasa_robo.experts.makers import PolicyName, policy_maker
from mikasa_robo.experts.registry import has_skill
from mikasa_robo.tools.output import put_between_marks

CHEATS: dict[str, PolicyName] = {
    "ShellGamePush": "peek",
    "ShellGamePick": "peek",
    "Intercept": "servo",
    "InterceptGrab": "servo",
    "InterceptMediumHidden": "barrier",
    "InterceptFastHidden": "barrier",
    "InterceptGrabMediumHidden": "barrier",
    "InterceptGrabFastHidden": "barrier",
}
"""By family, or family and mode: the policy written to cheat at it. That of Rotate and TakeItBack is their ``posture``."""
RUNS: tuple[tuple[str, PolicyName | None, str], ...] = (
    ("expert", "expert", "free"),
    ("expert, arm held", "expert", "held"),
    ("perfect memory", "window", "free"),
    ("memoryless", "memoryless", "free"),
    ("exhaustive", "exhaustive", "free"),
    ("posture", "posture", "free"),
    ("posture, arm held", "posture", "held"),
    ("cheat, arm held", None, "held"),
    ("reward reader, arm held", "reward-reader", "held"),
    ("random", "random", "free"),
)
"""Column, policy, arm. A policy of None is the family's in `CHEATS`. Where the arm is never held, a cheat's is free."""
STRICT = 0.999
"""Level of the intervals that decide: with some 200 comparisons, one in twenty would be a false alarm at 0.95."""
ENOUGH = 0.9
MARK = "<!-- memory-need -->"
INTRODUCTION = """\
Success in per cent with its 95 % interval, {episodes} episodes a cell. A dash means that the policy does not apply (the arm
is never held where the cue is visible until the end, and only some families have a cheat) or was not measured. Cells with a
star were measured with an earlier version of the tasks and not again: their rules have not changed since, but the cue was a
body that could be touched, and poses were not rounded. Made by `python benchmarks/memory_need.py`; `docs/memory.md`
discusses it.

"""
SWEEP_FIELDS = ("env_id", "delay", "k", "episodes", "successes")
FIELDS = ("env_id", "run", "episodes", "successes", "failures", "mean_length", "seconds", "revision")


@dataclass
class Options:
    """Measure how often the scripted policies succeed."""

    ids: tuple[str, ...] = ()
    """Only these tasks; by default all, with --sweep the first of each family."""
    columns: tuple[str, ...] = ()
    """Measure only these columns of the table; by default all."""
    episodes: int = 300
    """Episodes for each cell, rounded up to whole batches."""
    num_envs: int = 100
    """Episodes at a time."""
    csv: Path | None = None
    """The CSV file of the results, written row by row; an existing file is continued."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""
    readme: Path | None = None
    """A Markdown file that gets a short table of the first tasks of each family, between its two lines
    `<!-- memory-need -->`."""
    picture: Path | None = None
    """With --sweep: the PNG file of the plot."""
    sweep: Literal["window", "forgetful"] | None = None
    """Measure success against the number of views remembered instead."""
    delay: tuple[int, ...] = (5, 20, 50)
    """With --sweep: delays in control steps; a task whose cue is visible until the end has none."""
    resolution: int = 2
    """With --sweep: the precision of the smallest k, in views."""


def goal(row: TaskSpec) -> float:
    """The success rate that the expert should reach."""
    if row.family.startswith("Intercept"):
        return 0.90 if row.mode.startswith("Fast") else 0.95
    return 0.99


def beats(outcome: Outcome, bound: float, level: float = STRICT) -> bool:
    """Whether the interval of a success rate lies above ``bound``."""
    return outcome.interval(level)[0] > bound


def runs_of(row: TaskSpec) -> list[tuple[str, PolicyName, dict[str, Any]]]:
    """What is measured of a task: column, policy, arguments of the task."""
    found: list[tuple[str, PolicyName, dict[str, Any]]] = []
    for name, policy, arm in RUNS:
        if policy is None:
            policy = CHEATS.get(row.family + row.mode, CHEATS.get(row.family))
            arm = arm if row.can_hold_arm else "free"
        if policy is None or (arm == "held" and not row.can_hold_arm):
            continue
        if policy == "reward-reader" and not row.family.startswith("Remember"):
            continue
        found.append((name, policy, {"arm": arm} if arm == "held" else {}))
    return found


def holds_arm(row: TaskSpec) -> bool:
    """Whether the task itself holds the arm until the response phase."""
    return row.kwargs.get("recall") == "replaced"


DECIDING = {"expert", "memoryless", "exhaustive", "posture, arm held", "cheat, arm held"}
"""The columns from which `certification` follows, where they apply."""


def is_decided(row: TaskSpec, runs: Collection[str]) -> bool:
    """Whether all columns that a certification follows from were measured."""
    return {name for name, _, _ in runs_of(row)} & DECIDING <= set(runs)


def certification(row: TaskSpec, runs: Mapping[str, Outcome]) -> Certification:
    """What else than memory can hold the cue, as far as the policies that we tried show it.

    A policy stands out if the 99.9 % interval of its success lies above chance or, where the cue is not one of finitely
    many, above the success of the better of two guesses: ``memoryless`` and ``exhaustive``.
    """
    guesses = [runs[name].rate for name in ("memoryless", "exhaustive")]
    known = chance(row)
    bound = max(guesses) if known is None else known
    seen = [runs[name] for name in ("memoryless", "exhaustive", "cheat, arm held", "random") if name in runs]
    # without a known chance, a task is weak if a policy without memory does half as well as the expert
    limit = runs["expert"].rate / 2 if known is None else known
    if any(beats(outcome, limit) for outcome in seen):
        return "weak"
    if "posture, arm held" in runs and beats(runs["posture, arm held"], bound):
        return "body"
    if holds_arm(row):
        return "certified"
    # where the arm is free while the cue is on view, a better posture policy may exist than the one that we wrote
    return "report held" if row.can_hold_arm else "body"


def verdict(row: TaskSpec, runs: Mapping[str, Outcome]) -> str:
    """What the results of a row show, in a few words."""
    experts = [runs[name] for name in ("expert", "expert, arm held") if name in runs]
    # an expert at its goal may measure less in this many episodes: it misses the goal only if its interval does
    missed = ["expert below its goal"] if any(outcome.interval()[1] < goal(row) for outcome in experts) else []
    missed.append(CERTIFICATIONS[certification(row, runs)] if is_decided(row, runs) else "not measured in full")
    return ", ".join(missed)


def read(path: Path | None) -> dict[tuple[str, str], Outcome]:
    """What a CSV of an earlier run holds."""
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["env_id"], row["run"]): Outcome(
                int(row["episodes"]), int(row["successes"]), int(row["failures"]), float(row["mean_length"])
            )
            for row in csv.DictReader(file)
        }


def measured_earlier(path: Path | None) -> set[tuple[str, str]]:
    """The cells of a CSV that were measured before it told the revision of the code."""
    if path is None or not path.exists():
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["env_id"], row["run"]) for row in csv.DictReader(file) if not row.get("revision")}


def append(path: Path | None, values: dict[str, Any]) -> None:
    """Adds a row to the CSV."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(values))
        if new:
            writer.writeheader()
        writer.writerow(values)


def cell(outcome: Outcome | None, earlier: bool = False) -> str:
    """Success rate and its 95 % interval, in per cent, with a star if it was measured earlier."""
    return "-" if outcome is None else outcome.in_percent() + "*" * earlier


def markdown(
    results: dict[tuple[str, str], Outcome], rows: Iterable[TaskSpec], earlier: Collection[tuple[str, str]] = ()
) -> str:
    """The table; ``earlier`` are the cells that get a star."""
    names = [name for name, _, _ in RUNS]
    lines = ["| ID | chance | " + " | ".join(names) + " | |", "|---|---:|" + "---:|" * len(names) + "---|"]
    for row in rows:
        runs = {name: results[row.id, name] for name in names if (row.id, name) in results}
        if not runs:
            continue
        bound = chance(row)
        told = "-" if bound is None else f"{100 * bound:.3g}"
        cells = " | ".join(cell(runs.get(name), (row.id, name) in earlier) for name in names)
        lines.append(f"| `{row.id}` | {told} | {cells} | {verdict(row, runs)} |")
    return "\n".join(lines) + "\n"


def short(results: dict[tuple[str, str], Outcome], rows: Iterable[TaskSpec]) -> str:
    """The table in short: rates without their intervals."""
    names = [name for name, _, _ in RUNS]
    lines = ["| ID | chance | " + " | ".join(names) + " | |", "|---|---:|" + "---:|" * len(names) + "---|"]
    for row in rows:
        bound = chance(row)
        runs = {name: results[row.id, name] for name in names if (row.id, name) in results}
        cells = [f"{100 * runs[name].rate:.0f}" if name in runs else "-" for name in names]
        told = "-" if bound is None else f"{100 * bound:.2g}"
        lines.append(f"| `{row.id}` | {told} | {' | '.join(cells)} | {verdict(row, runs)} |")
    return "\n".join(lines) + "\n"


def first_of_each_family(rows: Iterable[TaskSpec]) -> list[TaskSpec]:
    """The first task of each family, and the first of those of its tasks that hide or replace an object."""
    first: dict[tuple[str, bool], TaskSpec] = {}
    for row in rows:
        first.setdefault((row.family, "Hidden" in row.mode or "Replaced" in row.mode), row)
    return list(first.values())


def measure(options: Options, rows: Sequence[TaskSpec]) -> None:
    """Fills the table."""
    results, earlier, revision = read(options.csv), measured_earlier(options.csv), short_revision(provenance([])["git"])
    for row in rows:
        for name, policy, kwargs in runs_of(row):
            if (row.id, name) in results or (options.columns and name not in options.columns):
                continue
            start = time.perf_counter()
            outcome = evaluate(row.id, policy_maker(policy), options.episodes, options.num_envs, **kwargs)
            results[row.id, name] = outcome
            values = (outcome.episodes, outcome.successes, outcome.failures, outcome.mean_length)
            seconds = round(time.perf_counter() - start, 1)
            append(options.csv, dict(zip(FIELDS, (row.id, name, *values, seconds, revision), strict=True)))
            print(f"{row.id} {name}: {cell(outcome)} %, {seconds} s", flush=True)
        if options.markdown is not None:
            options.markdown.parent.mkdir(parents=True, exist_ok=True)
            # rounded up to whole batches, and perhaps continued: what was played, not what was asked for
            episodes = " or ".join(str(n) for n in sorted({outcome.episodes for outcome in results.values()}))
            options.markdown.write_text(
                INTRODUCTION.format(episodes=episodes) + markdown(results, rows, earlier), encoding="utf-8"
            )
    if options.readme is not None:
        put_between_marks(options.readme, MARK, short(results, first_of_each_family(rows)))
    print(markdown(results, rows, earlier))


def sweep(options: Options, rows: Sequence[TaskSpec]) -> None:
    """Success of a memory of k views against k, and the smallest k with which it succeeds, found by bisection.

    The policy has to remember the cue until its last touch. Besides the delay, the specified horizon, this takes the rest
    of the cue after it was seen and the time of the movement. Bisection assumes that more memory is never worse.
    """
    known: dict[tuple[str, int, int], float] = {}
    if options.csv is not None and options.csv.exists():
        with options.csv.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != SWEEP_FIELDS:
                raise SystemExit(f"--csv {options.csv} holds no sweep: name another file, or move that one away")
            for found in reader:
                key = found["env_id"], int(found["delay"]), int(found["k"])
                known[key] = int(found["successes"]) / int(found["episodes"])
    curves: dict[tuple[str, int], dict[int, float]] = {}
    table = []
    for row in rows:
        for delay in options.delay if row.can_hold_arm else (0,):
            dial = {"delay_steps": delay} if row.can_hold_arm else {}
            curve: dict[int, float] = {}

            def succeeds(
                k: int,
                row: TaskSpec = row,
                delay: int = delay,
                dial: dict[str, Any] = dial,
                curve: dict[int, float] = curve,
            ) -> bool:
                if (row.id, delay, k) in known:
                    curve[k] = known[row.id, delay, k]
                    return curve[k] > ENOUGH
                outcome = evaluate(row.id, policy_maker("window", k), options.episodes, options.num_envs, **dial)
                curve[k] = outcome.rate
                values = (row.id, delay, k, outcome.episodes, outcome.successes)
                append(options.csv, dict(zip(SWEEP_FIELDS, values, strict=True)))
                print(f"{row.id} delay {delay} k {k}: {cell(outcome)} %", flush=True)
                return outcome.rate > ENOUGH

            low, high = 0, row.horizon - row.delay + delay
            if succeeds(low):
                high = low
            elif not succeeds(high):
                low = high = -1
            while high - low > options.resolution:
                middle = (low + high) // 2
                low, high = (low, middle) if succeeds(middle) else (middle, high)
            curves[row.id, delay] = dict(sorted(curve.items()))
            told = f"{high}" if high >= 0 else "more than the episode"
            specified = str(delay) if row.can_hold_arm else "always on view"
            table.append(f"| `{row.id}` | {specified} | {told} | {100 * curve[0]:.0f} |")
    head = (
        f"| ID | delay (specified horizon) | smallest k with success above {ENOUGH:.0%} | success with k = 0, % |\n"
        "|---|---:|---:|---:|\n"
    )
    print("\n" + head + "\n".join(table))
    if options.markdown is not None:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(head + "\n".join(table) + "\n", encoding="utf-8")
    if options.picture is not None:
        draw(curves, options.picture)


def draw(curves: dict[tuple[str, int], dict[int, float]], path: Path) -> None:
    """Success against k, a panel for each task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ids = list(dict.fromkeys(env_id for env_id, _ in curves))
    columns = min(4, len(ids))
    rows = -(-len(ids) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3 * columns, 2.4 * rows), sharey=True, squeeze=False)
    for axis in axes.flat[len(ids) :]:
        axis.remove()
    for axis, env_id in zip(axes.flat, ids, strict=False):
        for (other, delay), curve in curves.items():
            if other == env_id:
                label = f"delay {delay}" if CATALOG[env_id].can_hold_arm else "always on view"
                axis.plot(list(curve), list(curve.values()), marker=".", label=label)
        axis.set(xlabel="views remembered, k")
        axis.set_title(env_id, fontsize=9)
        axis.legend(fontsize=7)
    for axis in axes[:, 0]:
        axis.set(ylabel="success", ylim=(-0.03, 1.03))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command."""
    options = tyro.cli(Options, args=argv)
    unknown = [env_id for env_id in options.ids if not has_skill(env_id)]
    if unknown:
        raise SystemExit(f"--ids {' '.join(unknown)}: no such task with an expert; `mikasa list` shows all tasks")
    names = [name for name, _, _ in RUNS]
    if wrong := [name for name in options.columns if name not in names]:
        raise SystemExit(
            f"--columns {' '.join(map(repr, wrong))}: no such column; use some of {', '.join(map(repr, names))}"
        )
    rows = [CATALOG[env_id] for env_id in (options.ids or mikasa_robo.TASKS) if has_skill(env_id)]
    torch.set_num_threads(1)
    if options.sweep is None:
        measure(options, rows)
    else:
        first = {row.family: row for row in reversed(rows)}  # the first of each family
        sweep(options, rows if options.ids else [row for row in rows if row is first[row.family]])


if __name__ == "__main__":
    main()
