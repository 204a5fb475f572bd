"""Every task against every memory: the tables and figures of a sweep, from a CSV that outlives the folders of its runs.

    mikasa sweep docs/results/memory-table/table.toml --skip-in docs/results/memory-table/table.csv
    python benchmarks/memory_table.py docs/results/memory-table/table.toml

Finished runs of the sweep are added to the CSV, which stands beside the sweep's file unless ``--csv`` names another; runs
that it holds already stay as they are. Table and figure are drawn from the CSV alone. A sweep of delays
(``delay_steps`` among the ``env_kwargs`` of its variants) gets a figure of success against the delay, others one of
performance profiles. With ``--columns variant`` the columns are the variants of the sweep in place of their memories.
A sweep with several variants of one memory needs that: they are not seeds of one another.
"""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from mikasa_base.registry import VARIANTS
from mikasa_robo.baselines.option_words import read_env_kwargs
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.chance import chance
from mikasa_robo.statistics import wilson_interval
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.intervals import aggregate, standard_error
from mikasa_robo.tools.output import put_between_marks
from mikasa_robo.tools.sweep_plan import Plan, SweepError, read_plan
from mikasa_robo.tools.sweep_rows import Row, delay_of, gather, memory_of, read_csv, write_csv

MARK = "<!-- memory-table -->"


@dataclass
class Options:
    """Draw the table of a sweep over memories."""

    sweep: tyro.conf.Positional[Path]
    """The sweep's file."""
    csv: Path | None = None
    """The CSV of the results, which is continued; by default beside the sweep's file."""
    markdown: Path | None = None
    """The Markdown file of the table, which is replaced; by default beside the sweep's file."""
    picture: Path | None = None
    """The PNG file of the figure, which is replaced; by default beside the sweep's file."""
    columns: Literal["memory", "variant"] = "memory"
    """What the columns of the table are; variant for a sweep whose variants differ in more than the memory. Variants with
    the same memory need it."""
    readme: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """A Markdown file that gets a row of each family between its two lines `<!-- memory-table -->`."""


Line = tuple[str, "int | None"]
"""A line of the table: ID and delay."""
Cells = Mapping[tuple[Line, str], Sequence[Row]]
"""The runs by line and memory."""


def lines_of(plan: Plan) -> list[Line]:
    """The lines of the table, in the order of the plan."""
    return list(dict.fromkeys((run.task, delay_of(run)) for run in plan.runs))


def shown_lines(plan: Plan, rows: Iterable[Row]) -> list[Line]:
    """The first line of each family and delay that was measured; tasks outside the catalog are a family each."""
    measured = {(row.env_id, row.delay) for row in rows}
    first: dict[tuple[str, int | None], Line] = {}
    for line in lines_of(plan):
        env_id, delay = line
        if line in measured:
            first.setdefault((CATALOG[env_id].family if env_id in CATALOG else env_id, delay), line)
    return list(first.values())


def columns_of(plan: Plan, columns: str) -> list[str]:
    """The columns of the table, in the order of the plan."""
    return list(dict.fromkeys(run.label if columns == "variant" else memory_of(run) for run in plan.runs))


def require_own_cells(rows: Iterable[Row], sweep: Path) -> None:
    """Raises OptionError where two variants would share a cell, and so would be averaged as if they were seeds of one."""
    variants: dict[tuple[Line, str], str] = {}
    for row in rows:
        line = row.env_id, row.delay
        other = variants.setdefault((line, row.memory), row.variant)
        if other != row.variant:
            raise OptionError(
                f"{sweep}: the variants {other} and {row.variant} both have the memory {row.memory} on {row.env_id}, and a "
                "cell holds the seeds of one variant only; add --columns variant"
            )


def in_cells(rows: Iterable[Row]) -> Cells:
    """The rows by line and memory."""
    cells: dict[tuple[Line, str], list[Row]] = {}
    for row in rows:
        cells.setdefault(((row.env_id, row.delay), row.memory), []).append(row)
    return cells


def rate_in_words(successes: int, episodes: int) -> str:
    """Success in per cent with its 95 % interval."""
    low, high = wilson_interval(successes, episodes)
    return f"{100 * successes / episodes:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def in_words(rows: Sequence[Row] | None) -> str:
    """A cell: success in per cent with its 95 % interval over the episodes of all seeds, or the mean return."""
    if not rows:
        return "-"
    if any(row.successes is None for row in rows):
        scores = [row.mean_return for row in rows]
        error = standard_error(scores)
        return f"{np.mean(scores):.2f}" + ("" if error is None else f" ± {error:.2f}")
    return rate_in_words(sum(row.successes or 0 for row in rows), sum(row.episodes for row in rows))


def are_robots(lines: Sequence[Line]) -> bool:
    """Whether all lines are tasks of mikasa_robo, which have a kind, a chance and a success."""
    return all(env_id in CATALOG for env_id, _ in lines)


def chances_of(plan: Plan) -> dict[str, float | None]:
    """Success of a guess in each task, with its arguments in the sweep; None where it is unknown or differs among runs."""
    found: dict[str, set[float | None]] = {}
    for run in plan.runs:
        words = run.options.get("env_kwargs", ())
        kwargs = read_env_kwargs([words] if isinstance(words, str) else words)
        found.setdefault(run.task, set()).add(chance(CATALOG[run.task], kwargs) if run.task in CATALOG else None)
    return {task: bounds.pop() if len(bounds) == 1 else None for task, bounds in found.items()}


def told_chance(bound: float | None) -> str:
    """Success of a guess in per cent; a dash where it is not known."""
    return "-" if bound is None else f"{100 * bound:.3g}"


def are_diagnostic(lines: Sequence[Line]) -> bool:
    """Whether all lines are environments of mikasa_base that are scored by their return."""
    return all(env_id in VARIANTS and VARIANTS[env_id].row.score == "return" for env_id, _ in lines)


def kinds_of(env_id: str) -> Sequence[str]:
    """The kinds of memory that a task needs."""
    return [CATALOG[env_id].memory] if env_id in CATALOG else VARIANTS[env_id].row.memory


def on_one_scale(rows: Iterable[Row]) -> list[Row]:
    """The rows whose scores can be averaged over tasks: a success rate, or a return between those of scripted agents.

    For a diagnostic environment 0 is the return of the memoryless agent, and 1 that of the agent with perfect memory.
    """
    found = []
    for row in rows:
        variant = VARIANTS.get(row.env_id)
        if row.successes is not None:
            found.append(row)
        elif variant is not None and variant.row.score == "return":
            low, high = variant.memoryless, variant.perfect
            if low is not None and high is not None and low < high:  # in a maze memory may bring nothing
                found.append(replace(row, mean_return=(row.mean_return - low) / (high - low)))
    return found


def told_score(score: float | None) -> str:
    """A return; a dash where it is not known."""
    return "-" if score is None else f"{score:.2f}"


def main_table(
    cells: Cells, lines: Sequence[Line], memories: Sequence[str], chances: Mapping[str, float | None]
) -> list[str]:
    """Task against memory, in Markdown; lines without any run are left out. ``chances`` are those of `chances_of`."""
    is_robot, is_base = are_robots(lines), are_diagnostic(lines)
    delays = any(delay is not None for _, delay in lines)
    known = ["kind", "chance"] if is_robot else ["memoryless", "perfect"] if is_base else []
    head = ["ID", *known, *(["delay"] if delays else []), *memories]
    text = ["| " + " | ".join(head) + " |", "|---|" + "---|" * is_robot + "---:|" * (len(head) - 1 - is_robot)]
    for line in lines:
        env_id, delay = line
        if not any((line, memory) in cells for memory in memories):
            continue
        about = [CATALOG[env_id].memory, told_chance(chances[env_id])] if is_robot else []
        about += [told_score(VARIANTS[env_id].memoryless), told_score(VARIANTS[env_id].perfect)] if is_base else []
        about += [str(delay)] if delays else []
        values = [in_words(cells.get((line, memory))) for memory in memories]
        text.append("| " + " | ".join([f"`{env_id}`", *about, *values]) + " |")
    return text


def seed_table(cells: Cells, lines: Sequence[Line], memories: Sequence[str]) -> list[str]:
    """How far the seeds of each cell with two runs or more differ, in Markdown; empty if there is no such cell."""
    text = []
    for line, memory in itertools.product(lines, memories):
        scores = [100 * row.score for row in sorted(cells.get((line, memory), []), key=lambda row: row.seed)]
        error = standard_error(scores)
        if error is not None:
            env_id, delay = line
            where = f"`{env_id}`" + ("" if delay is None else f", delay {delay}")
            each = ", ".join(f"{score:.0f}" for score in scores)
            text.append(f"| {where} | {memory} | {each} | {np.mean(scores):.1f} ± {error:.1f} |")
    head = ["| ID | run | success of each seed | mean ± standard error |", "|---|---|---|---:|"]
    return [*head, *text] if text else []


def score_matrix(cells: Cells, lines: Sequence[Line], memory: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Scores (R, T) of a memory in these lines: of so many runs of each as the line with the fewest has."""
    runs = min(len(cells[line, memory]) for line in lines)
    return np.array([[row.score for row in cells[line, memory][:runs]] for line in lines]).T


def complete(cells: Cells, lines: Sequence[Line], memories: Sequence[str]) -> list[Line]:
    """The lines that have a run of every memory."""
    return [line for line in lines if all((line, memory) in cells for memory in memories)]


def compared(cells: Cells, lines: Sequence[Line], memories: Sequence[str]) -> tuple[list[str], list[Line]]:
    """The memories that a mean over lines compares, and the lines that all of them have.

    A memory with a run of one line only is left out: with it, nothing would be left to compare.
    """
    count = Counter(memory for _, memory in cells)
    kept = [memory for memory in memories if count[memory] > 1]
    return kept, complete(cells, lines, kept) if kept else []


def iqm(scores: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Interquartile mean in per cent, with a stratified bootstrap interval where there are two runs or more."""
    if len(scores) > 1:
        estimate = aggregate(scores)[1]
        return f"{100 * estimate.value:.0f} ({100 * estimate.low:.0f} to {100 * estimate.high:.0f})"
    from rliable import metrics

    return f"{100 * metrics.aggregate_iqm(scores):.0f}"


def aggregate_table(cells: Cells, lines: Sequence[Line], memories: Sequence[str]) -> list[str]:
    """Interquartile mean over the tasks that every memory has, and over those of each kind of memory, in Markdown."""
    ran = {memory for _, memory in cells}
    kept, shared = compared(cells, lines, memories)
    alone = [memory for memory in memories if memory in ran and memory not in kept]
    kinds = {"all": shared}
    for line in shared:
        for kind in kinds_of(line[0]):
            kinds.setdefault(kind, []).append(line)
    if len(shared) < 2:
        return ["No mean over tasks: fewer than two of them have a run of every memory."]
    text = ["| kind of memory | tasks | " + " | ".join(kept) + " |", "|---|---:|" + "---:|" * len(kept)]
    for kind, members in kinds.items():
        values = [iqm(score_matrix(cells, members, memory)) for memory in kept]
        text.append(f"| {kind} | {len(members)} | " + " | ".join(values) + " |")
    if alone:
        names = ", ".join(f"`{memory}`" for memory in alone)
        text += ["", f"Left out of these means, because only one task has a run of them: {names}."]
    return text


def budget(rows: Sequence[Row]) -> str:
    """What the runs were given, in words."""

    def span(values: Sequence[int]) -> str:
        return f"{min(values):,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"

    gradient = [row.gradient_steps for row in rows if row.gradient_steps is not None]
    parts = [f"{span([row.env_steps for row in rows])} env steps"]
    parts += [f"{span(gradient)} gradient steps"] if gradient else []
    hours = sum(row.seconds for row in rows) / 3600
    revisions = ", ".join(sorted({row.revision for row in rows}))
    return (
        f"Each run: {' and '.join(parts)}; {span([row.episodes for row in rows])} episodes of the final evaluation. "
        f"{len(rows)} run{'s' if len(rows) > 1 else ''} took {hours:.1f} hours, one after another, at revision {revisions}."
    )


def what_is_missing(plan: Plan, rows: Sequence[Row]) -> str:
    """Which runs of the plan are not there, in words."""
    there = {row.key for row in rows}
    missing = [run for run in plan.runs if (run.task, run.label, run.seed) not in there]
    if not missing:
        return f"All {len(plan.runs)} runs of the sweep are there."
    per_seed = ", ".join(
        f"{sum(run.seed == seed for run in missing)} of seed {seed}" for seed in sorted({run.seed for run in missing})
    )
    none = [task for task in dict.fromkeys(run.task for run in plan.runs) if all(row.env_id != task for row in rows)]
    return f"**Missing: {len(missing)} of {len(plan.runs)} runs** ({per_seed})" + (
        f"; nothing was measured of {', '.join(f'`{task}`' for task in none)}." if none else "."
    )


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph of a Markdown file."""
    return textwrap.wrap(text, 128, break_long_words=False, break_on_hyphens=False)


def document(plan: Plan, rows: Sequence[Row], sweep: Path, picture: Path | None, columns: str = "memory") -> str:
    """The Markdown file; `picture` is None where nothing was drawn."""
    lines, memories, cells = lines_of(plan), columns_of(plan, columns), in_cells(rows)
    is_robot, is_base = are_robots(lines), are_diagnostic(lines)
    seeds = sorted({len(found) for found in cells.values()})
    told = " or ".join(map(str, seeds))
    kind = "Tasks" if len(memories) == 1 else "Memories" if columns == "memory" else "Algorithms"
    what = (
        "Success in per cent, with the 95 % Wilson interval over the episodes of all seeds: it says how well these policies "
        "were measured, not how much another seed would differ."
        if is_robot
        else "Mean return ± standard error over seeds."
    )
    if is_robot and seeds != [1]:
        what += " All seeds play the same episodes, so the interval of a cell with several may be too narrow."
    if is_base:
        what += " *Memoryless* and *perfect* are mean returns of two scripted agents (`docs/base.md`)."
    text = [f"# {kind}: {sweep.stem}", ""]
    text += [*paragraph(f"{what} Seeds of a cell: {told}. A dash was not measured. {budget(rows)}"), ""]
    text += [*paragraph(what_is_missing(plan, rows)), "", *main_table(cells, lines, memories, chances_of(plan)), ""]
    if is_robot and (by_seed := seed_table(cells, lines, memories)):
        text += ["## Over seeds", "", "Success in per cent, for cells with two seeds or more.", "", *by_seed, ""]
    if (is_robot or is_base) and not any(delay is not None for _, delay in lines):
        score = "success" if is_robot else "the score (return; 0 % is *memoryless*, and 100 % *perfect*)"
        text += [
            "## Over tasks",
            "",
            f"Interquartile mean of {score} over tasks and runs; the interval is a stratified",
        ]
        text += ["bootstrap over runs (rliable), and missing where a cell has one run only.", ""]
        if len(seeds) > 1:
            text += [
                "Where the tasks of a row have different numbers of runs, the mean uses as many of each as the task"
            ]
            text += ["with the fewest has: the first ones in the CSV. The figure does the same.", ""]
        text += [*aggregate_table(in_cells(on_one_scale(rows)), lines, memories), ""]
    if picture is not None:
        text += [f"![{sweep.stem}]({picture.name})", ""]
    command = f"python benchmarks/memory_table.py {sweep}" + (" --columns variant" if columns == "variant" else "")
    return "\n".join(
        [*text, "```bash", f"mikasa sweep {sweep} --skip-in {sweep.with_suffix('.csv')}", command, "```", ""]
    )


def draw(plan: Plan, rows: Sequence[Row], path: Path, columns: str = "memory") -> bool:
    """Success against delay, or performance profiles over the tasks that every memory has; False if there is nothing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from cycler import cycler

    lines, cells = lines_of(plan), in_cells(on_one_scale(rows))
    memories = [name for name in columns_of(plan, columns) if any(name == other for _, other in cells)]
    figure, axes = plt.subplots(figsize=(6, 4))
    if any(delay is not None for _, delay in lines):
        tasks, chances = list(dict.fromkeys(task for task, _ in lines)), chances_of(plan)
        for task in tasks:
            of_task = "" if len(tasks) == 1 else f", {task}"
            for place, memory in enumerate(memories):
                points = [
                    (line[1] or 0, cells[line, memory]) for line in lines if line[0] == task and (line, memory) in cells
                ]
                rates = [float(np.mean([row.score for row in found])) for _, found in points]
                # side by side, or memories that do equally well would hide each other
                aside = 1.05 ** (place - (len(memories) - 1) / 2)
                axes.plot([delay * aside for delay, _ in points], rates, marker="o", ms=4, label=f"{memory}{of_task}")
            bound = chances[task]
            if bound is not None:
                axes.axhline(bound, color="grey", linestyle=":", label=f"a guess{of_task}")
        axes.set(
            xlabel="delay, control steps (points side by side)", ylabel="success", xscale="log", ylim=(-0.03, 1.03)
        )
        axes.set_xticks([delay for _, delay in lines if delay], [str(delay) for _, delay in lines if delay])
        axes.minorticks_off()
    else:
        memories, shared = compared(cells, lines, memories)
        if len(shared) > 1:
            from rliable import library

            taus = np.linspace(0, 1, 51)
            scores = {memory: score_matrix(cells, shared, memory) for memory in memories}
            profiles, bands = library.create_performance_profile(scores, taus, reps=500)
            # ten colours, then the same ones dashed: eleven memories must not look like ten
            axes.set_prop_cycle(cycler(linestyle=["-", "--"]) * plt.rcParams["axes.prop_cycle"])
            for memory in memories:
                axes.plot(taus, profiles[memory], label=memory)
                if len(scores[memory]) > 1:
                    axes.fill_between(taus, *bands[memory], alpha=0.15, linewidth=0)
        else:
            memories = []
        what = "success" if are_robots(shared) else "score"
        axes.set(xlabel=f"{what} τ", ylabel=f"share of runs above τ, {len(shared)} tasks", ylim=(-0.03, 1.03))
    if memories:
        # beside the curves, which fill the figure
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    plt.close(figure)
    return bool(memories)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = tyro.cli(Options, args=argv)
    try:
        publish(options)
    except SweepError as error:
        raise SystemExit(f"{options.sweep}: {error}") from error
    except OptionError as error:
        raise SystemExit(str(error)) from error


def publish(options: Options) -> None:
    """Continue the CSV, and write what is made of it.

    Raises:
        SweepError: the sweep's file cannot be used, or a folder holds another run than it says.
        OptionError: another file cannot be used, there is no run, or two variants would share a cell.
    """
    table = options.csv or options.sweep.with_suffix(".csv")
    markdown = options.markdown or options.sweep.with_suffix(".md")
    picture = options.picture or options.sweep.with_suffix(".png")
    plan = read_plan(options.sweep)
    known = read_csv(table)
    rows = gather(plan, known)
    new = len(rows) - len(known)
    own = {(run.task, run.label) for run in plan.runs}
    own_rows = [row for row in rows if (row.env_id, row.variant) in own]
    if not own_rows:
        others = f" ({len(rows)} of other sweeps)" if rows else ""
        raise OptionError(
            f"no run of {options.sweep} is finished in {plan.out}, and {table} holds none{others}; "
            "run the sweep first, or name the CSV of this sweep with --csv"
        )
    if options.columns == "variant":
        own_rows = [replace(row, memory=row.variant) for row in own_rows]
    require_own_cells(own_rows, options.sweep)
    write_csv(table, rows)
    rows = own_rows
    # A picture of earlier runs may lie there, so what was drawn now decides whether the page shows one.
    drawn = draw(plan, rows, picture, options.columns)
    markdown.write_text(
        document(plan, rows, options.sweep, picture if drawn else None, options.columns), encoding="utf-8"
    )
    if options.readme is not None:
        shown = shown_lines(plan, rows)
        lines = main_table(in_cells(rows), shown, columns_of(plan, options.columns), chances_of(plan))
        try:
            put_between_marks(options.readme, MARK, "\n".join(lines) + "\n")
        except ValueError as error:
            raise OptionError(f"--readme {error}") from error
    print(f"{len(rows)} runs, {new} of them new: {table}, {markdown}")
    print(what_is_missing(plan, rows))


if __name__ == "__main__":
    main()
