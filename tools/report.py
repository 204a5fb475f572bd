"""``mikasa report``: a table and learning curves of the runs in some folders.

    mikasa report runs/ --out report/

A run counts once it is finished, which means that it has a final_eval.json. Others are listed with what they lack.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from mikasa_robo.baselines.files import write_atomically
from mikasa_robo.catalog import CATALOG
from mikasa_robo.statistics import wilson_interval

from .extras import require_modules
from .html import as_code, as_text, to_html
from .intervals import Estimate, aggregate, bootstrap_interval, standard_error
from .output import print_report, require_folder, require_new_files
from .plot import read_column, read_progress
from .progress import say
from .runs import EVALUATION_FORMAT, METRICS, TRAINED_WITH, Collection, Run, collect, settings_that_differ

__all__ = [
    "EVALUATION_FORMAT",
    "METRICS",
    "Args",
    "Collection",
    "Run",
    "collect",
    "learning_curve",
    "main",
    "write_report",
]

WILSON_MARK = "†"
"""Follows an interval that is not a bootstrap over runs."""
WEAK_MARK = "‡"
"""Follows the ID of a task that is a weak test of memory."""


@dataclass
class Args:
    """Make a table and learning curves of training runs and evaluations."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, folders that contain such folders at any depth, or files that `mikasa eval` wrote."""
    env_id: tuple[str, ...] = ()
    """Only runs of these tasks; by default of all. module:ID means the same as ID here."""
    out: Path = Path("report")
    """The folder for report.md, the same as one file report.html, runs.csv and curves-*.png, none of which may exist."""


def learning_curve(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[float], list[float]]:
    """Mean and standard error over runs that were evaluated at different steps.

    Args:
        curves: for each run its steps, in rising order, and its values; not empty.

    Returns:
        All steps within the range of every run, and for each the mean over the linearly interpolated runs and its
        standard error (nan for a single run).
    """
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    grid = sorted({step for steps, _ in curves for step in steps if first <= step <= last})
    columns = np.array([np.interp(grid, steps, values) for steps, values in curves]).T  # (steps, runs)
    errors = [standard_error(row.tolist()) for row in columns]
    return grid, [float(row.mean()) for row in columns], [math.nan if e is None else e for e in errors]


def read_curves(runs: Sequence[Run], metric: str) -> tuple[str, list[tuple[list[float], list[float]]]]:
    """Steps and values of the runs of one group, all of evaluations or all of training episodes.

    A run that was not evaluated during training has the metrics of its training episodes alone. The two are not averaged:
    what more runs have is taken, evaluations if as many have both. Behaviour cloning has no curve then, because the expert
    plays its training episodes.

    Returns:
        "eval" or "train", and the curves.
    """
    found: dict[str, list[tuple[list[float], list[float]]]] = {"eval": [], "train": []}
    for run in runs:
        try:
            rows = read_progress(run.path)
        except ValueError:  # listed among the problems
            continue
        for kind, curves in found.items():
            if kind == "train" and run.learner == "bc":
                continue
            curve = read_column(rows, f"{kind}/{metric}")
            if len(curve[0]) > 1:
                curves.append(curve)
    kind = max(found, key=lambda name: len(found[name]))  # the first of those that are equally long
    return kind, found[kind]


def draw_curves(groups: dict[tuple[str, str], list[Run]], metric: str) -> bytes | None:
    """A PNG with a panel for each task and a line for each algorithm; None if there is no data."""
    panels: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    labels: dict[str, dict[str, str]] = {}
    units: dict[str, dict[str, str]] = {}
    for (env_id, algorithm), runs in groups.items():
        kind, curves = read_curves(runs, metric)
        if curves:
            panels.setdefault(env_id, {})[algorithm] = curves
            labels.setdefault(env_id, {})[algorithm] = _line_label(algorithm, len(curves), kind)
            units.setdefault(env_id, {})[algorithm] = runs[0].unit
    if not panels:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, MaxNLocator

    legend_lines = max(sum(label.count("\n") + 1 for label in shown.values()) for shown in labels.values())
    columns = min(4, len(panels))
    rows_of_panels = math.ceil(len(panels) / columns)
    height = 3.4 + 0.19 * legend_lines
    figure, grid = plt.subplots(
        rows_of_panels, columns, figsize=(4.5 * columns, height * rows_of_panels), layout="constrained", squeeze=False
    )
    colours = line_colours(panels)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (env_id, algorithms) in zip(grid.flat, panels.items(), strict=False):
        for algorithm, curves in algorithms.items():
            steps, means, errors = learning_curve(curves)
            axes.plot(steps, means, color=colours[algorithm], label=labels[env_id][algorithm])
            low, high = np.array(means) - np.array(errors), np.array(means) + np.array(errors)
            axes.fill_between(steps, low, high, color=colours[algorithm], alpha=0.2, linewidth=0)
        axes.set(title=env_id.replace("$", r"\$"), xlabel=_steps_label(units[env_id]), ylabel=metric.replace("_", " "))
        if metric.startswith("success"):
            axes.set_ylim(-0.02, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.grid(alpha=0.3)
        # Below the panel, because names may be longer than it is wide.
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.18))
    image = io.BytesIO()
    figure.savefig(image, dpi=100, format="png", bbox_inches="tight")
    plt.close(figure)
    return image.getvalue()


def _steps_label(units: Mapping[str, str]) -> str:
    """What a panel has on its x axis: "environment steps", and whose steps are others."""
    if len(set(units.values())) == 1:
        return next(iter(units.values()))
    others = [f"{unit} of {agent}" for agent, unit in units.items() if unit != "environment steps"]
    return textwrap.fill(f"environment steps; {', '.join(others)}".replace("$", r"\$"), 56)


def _line_label(agent: str, runs: int, kind: str) -> str:
    shown = agent.replace("$", r"\$")  # a pair of them would be a formula
    count = f"({runs}\N{NO-BREAK SPACE}{'run' if runs == 1 else 'runs'}{', training' if kind == 'train' else ''})"
    return textwrap.fill(f"{shown} {count}", 56, break_on_hyphens=False)


def line_colours(panels: Mapping[str, Iterable[str]]) -> dict[str, tuple[float, ...]]:
    """An RGBA colour for each agent, for the names of the agents of each task: a variant has the same one in all panels.

    What is said of a variant's training environments may differ from task to task. So it is left out, unless the names of a
    panel would then be the same.
    """
    from matplotlib import colormaps

    names = sorted({agent for agents in panels.values() for agent in agents})
    short = {name: name.partition(TRAINED_WITH)[0] for name in names}
    if any(len({short[agent] for agent in agents}) < len(set(agents)) for agents in panels.values()):
        short = {name: name for name in names}
    numbers = {name: i for i, name in enumerate(sorted(set(short.values())))}
    colours = colormaps["tab10" if len(numbers) <= 10 else "tab20"]
    return {name: colours(numbers[short[name]] % colours.N) for name in names}


def _percent(metric: str) -> Callable[[float], str]:
    return (lambda x: f"{x:.1%}") if metric.startswith("success") else (lambda x: f"{x:.2f}")


def _mean_and_error(values: Sequence[float], metric: str) -> str:
    show = _percent(metric)
    if any(math.isnan(v) for v in values):
        return "-"
    error = standard_error(values)
    return show(sum(values) / len(values)) + ("" if error is None else f" ± {show(error)}")


def _interval(estimate: Estimate | None, metric: str) -> str:
    show = _percent(metric)
    return "-" if estimate is None else f"{show(estimate.low)} to {show(estimate.high)}"


def _interval_over_runs(runs: Sequence[Run], metric: str) -> str:
    """The 95 % interval of the mean over runs, "-" where there is none.

    Where all runs are equal, a bootstrap over them has no width. Then the interval of a success rate is Wilson's over the
    episodes of one run, with `WILSON_MARK`, and others have none. Runs share their evaluation seeds, so the episodes of
    several are not independent.
    """
    values = [run.scores[metric] for run in runs]
    if len(runs) < 2 or any(map(math.isnan, values)):
        return "-"
    if len(set(values)) > 1:
        return _interval(bootstrap_interval(values), metric)
    if not metric.startswith("success"):
        return "-"
    episodes = min(run.episodes for run in runs)
    return _interval(Estimate(values[0], *wilson_interval(round(values[0] * episodes), episodes)), metric) + WILSON_MARK


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> list[str]:
    rule = "|" + "---|" * text_columns + "---:|" * (len(header) - text_columns)
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def _steps(runs: Sequence[Run]) -> str:
    """The environment steps of training, and for runs that play nothing the steps that they count."""
    shown = {
        unit: _span([run.steps for run in runs if run.unit == unit]) for unit in sorted({run.unit for run in runs})
    }
    return ", ".join(steps if unit == "environment steps" else f"0 ({steps} {unit})" for unit, steps in shown.items())


def is_weak(env_id: str) -> bool:
    """Whether the catalog calls the task a weak test of memory. ``env_id`` may be followed by arguments, as in `Run`."""
    row = CATALOG.get(env_id.partition(" ")[0].rpartition(":")[2])
    return row is not None and row.certification == "weak"


def _group_table(groups: dict[tuple[str, str], list[Run]]) -> list[str]:
    rows = []
    for (env_id, algorithm), runs in groups.items():
        column = {metric: [run.scores[metric] for run in runs] for metric in METRICS}
        times = [run.wall_time for run in runs if run.wall_time is not None]
        rows.append(
            (
                as_code(env_id) + (WEAK_MARK if is_weak(env_id) else ""),
                as_text(algorithm),
                str(len(runs)),
                _span([run.episodes for run in runs]),
                _steps(runs),
                _mean_and_error(column["success_once"], "success_once"),
                _interval_over_runs(runs, "success_once"),
                _mean_and_error(column["success_at_end"], "success_at_end"),
                _mean_and_error(column["return"], "return"),
                _interval_over_runs(runs, "return"),
                _mean_and_error(column["length"], "length"),
                f"{sum(times) / len(times):,.0f} s" if times else "-",
            )
        )
    header = ("Task", "Algorithm", "Runs", "Episodes", "Env steps", "Success", "95 % interval", "Success at the end")
    lines = _table((*header, "Return", "95 % interval", "Length", "Wall time"), rows, 2)
    if any(WILSON_MARK in cell for row in rows for cell in row):
        lines += [
            f"{WILSON_MARK} All runs have the same success; the interval is Wilson's over the episodes of one run.",
            "",
        ]
    if any(is_weak(env_id) for env_id, _ in groups):
        lines += [f"{WEAK_MARK} A weak test of memory: a policy without memory succeeds nearly as often.", ""]
    return lines


def _lifelong_table(groups: dict[tuple[str, str], list[Run]]) -> list[str]:
    rows = [
        (
            as_code(stream),
            as_text(learner),
            str(len(runs)),
            _mean_and_error([run.scores["success_once"] for run in runs], "success_once"),
            _interval_over_runs(runs, "success_once"),
        )
        for (stream, learner), runs in groups.items()
    ]
    lines = _table(("Stream", "Learner", "Runs", "Success on all tasks after the last", "95 % interval"), rows, 2)
    return [*lines, "`mikasa lifelong report` shows what was forgotten, what was transferred and what it cost.", ""]


def _aggregate_table(groups: dict[tuple[str, str], list[Run]]) -> list[str]:
    """Mean and interquartile mean of success over the tasks, for each algorithm with more than one task."""
    lines, notes = [], []
    for algorithm in sorted({name for _, name in groups}):
        tasks = {env_id: runs for (env_id, name), runs in groups.items() if name == algorithm}
        scored = {k: r for k, r in tasks.items() if not any(math.isnan(run.scores["success_once"]) for run in r)}
        counts = {len(runs) for runs in scored.values()}
        if len(scored) < 2:
            continue
        if counts == {1} or len(counts) > 1:
            reason = (
                "only one run of each"
                if counts == {1}
                else f"a different number of runs for each ({', '.join(map(str, sorted(counts)))})"
            )
            notes.append(f"{as_text(algorithm)}: no mean over its {len(scored)} tasks, because there is {reason}.")
            continue
        scores = np.array([[run.scores["success_once"] for run in runs] for runs in scored.values()]).T
        figures = [f"{e.value:.1%} ({_interval(e, 'success_once')})" for e in aggregate(scores)]
        lines.append((as_text(algorithm), str(len(scored)), str(len(scores)), *figures))
    if not lines and not notes:
        return []
    table = _table(("Algorithm", "Tasks", "Runs of each", "Mean", "Interquartile mean"), lines, 1) if lines else []
    return ["### Success over all tasks", "", *table, *(note + "\n" for note in notes)]


def write_report(collection: Collection, out: Path) -> Path:
    """Write report.md, report.html, runs.csv and the curves into ``out``; return the path of report.md.

    Raises:
        OptionError: ``out`` cannot be used, or one of the files exists. Nothing has been written.
        ModuleNotFoundError: rliable or matplotlib is not installed.
    """
    training, evaluations = collection.groups("training"), collection.groups("eval")
    plots = {metric: out / f"curves-{metric.partition('_')[0]}.png" for metric in ("success_once", "return")}
    report, page, table = out / "report.md", out / "report.html", out / "runs.csv"
    require_new_files(out, (report, page, table, *plots.values()))
    require_modules("report", "rliable", "matplotlib", "markdown")
    lines = [
        "# Report",
        "",
        "Mean ± standard error over training runs, or a dash if there is none. Intervals are 95 % percentile bootstraps "
        "over runs by rliable; with as few as three runs they are rough.",
        "",
    ]
    for title, groups in (("Training runs, final evaluation", training), ("Evaluations by `mikasa eval`", evaluations)):
        if not groups:
            continue
        lines += [f"## {title}", "", *_group_table(groups), *_aggregate_table(groups)]
        for (env_id, algorithm), runs in groups.items():
            if began := sorted({run.began_from for run in runs} - {""}):
                lines += [
                    f"Runs of {as_text(algorithm)} on {as_code(env_id)} began with a policy: {as_text('; '.join(began))}. "
                    "The steps that trained it are not among theirs.",
                    "",
                ]
            if differ := settings_that_differ([run.args for run in runs]):
                lines += [
                    f"Runs of {as_text(algorithm)} on {as_code(env_id)} differ in {as_text(', '.join(differ))}. "
                    "They are averaged all the same.",
                    "",
                ]
    if lifelong := collection.groups("lifelong"):
        lines += ["## Across tasks", "", *_lifelong_table(lifelong)]
    figures = {metric: image for metric in plots if (image := draw_curves(training, metric)) is not None}
    if figures:
        lines += ["## Learning curves", "", "Finished runs. The band is ± one standard error over runs.", ""]
        lines += [
            "A line is of evaluations during training. Runs without them are shown by their training episodes, and the "
            "legend says so: these have the noise of exploration, the expert may play some of them (dagger, sac), and they "
            "may be easier (--train-env-kwargs).",
            "",
        ]
        lines += [line for metric in figures for line in (f"![{metric.replace('_', ' ')}]({plots[metric].name})", "")]
    if collection.problems:
        lines += ["## Problems", "", "These are not in the tables, unless noted otherwise.", ""]
        lines += _table(
            ("Path", "Problem"), [(as_code(str(path)), as_text(why)) for path, why in collection.problems], 2
        )
    if not collection.runs:
        lines += ["No finished run was found.", ""]
    cells = io.StringIO()
    writer = csv.writer(cells)
    writer.writerow(("path", "source", "env_id", "algorithm", "seed", "steps", "wall_time_s", "episodes", *METRICS))
    writer.writerows(
        (r.path, r.source, r.env_id, r.algorithm, r.seed, r.steps, r.wall_time, r.episodes, *r.scores.values())
        for r in collection.runs
    )
    text = "\n".join(lines)
    images = {plots[metric].name: image for metric, image in figures.items()}
    texts = {table: cells.getvalue(), report: text, page: to_html(text, images)}
    # A path may hold bytes that are not UTF-8. All is made before the first file is: half a report would be in the way.
    contents = {path: content.encode(errors="backslashreplace") for path, content in texts.items()}
    out.mkdir(parents=True, exist_ok=True)
    for path, data in {**{out / name: image for name, image in images.items()}, **contents}.items():
        write_atomically(path, data, overwrite=False)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code: 1 if no finished run was found."""
    args = tyro.cli(Args, args=argv, prog="mikasa report")
    if not args.paths:
        print("name at least one run folder, or a file of `mikasa eval`", file=sys.stderr)
        return 2

    def make() -> tuple[Path, bool]:
        require_folder(args.out)
        collection = collect(args.paths)
        if args.env_id:
            collection.keep(args.env_id)
        say(f"{len(collection.runs)} runs found; computing intervals")
        return write_report(collection, args.out), bool(collection.runs)

    return print_report(make, FileNotFoundError)


if __name__ == "__main__":
    sys.exit(main())
