"""``mikasa lifelong report``: tables and figures of the runs in some folders.

    mikasa lifelong report runs/ --out report/

A run counts once it is complete. Others are listed with what they lack.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from mikasa_robo.tools.html import as_code, as_text, to_html

from . import figures, metrics
from .collection import COLUMNS, SCRATCH, Collection, Column, collect, place_of, values_of
from .errors import LifelongError
from .record import Record
from .stats import NOTHING, Summary, differs, summarise

__all__ = ["Args", "main", "write_report"]

NAV = COLUMNS[:6]
"""The metrics of Continual NavBench."""
SAME_MARK = "†"
"""Follows a PER that Welch's test does not tell from the best one of its column."""


BEST_CHECKPOINTS = (
    "These evaluations also chose the checkpoint that each stage ends with (`--select best`), so the scores look better "
    "than they are"
)


@dataclass
class Args:
    """Make tables and figures of runs of `mikasa lifelong run`."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or folders that contain such folders at any depth."""
    out: Path = Path("report-lifelong")
    """The folder for report.md, the same as one file report.html, runs.csv and the figures, none of which may exist."""


def _show(column: Column, summary: Summary) -> str:
    if math.isnan(summary.mean):
        return "-"
    scale, places = (100, 1) if column.percent else (1, 2)
    text = f"{scale * summary.mean:.{places}f}"
    if not math.isnan(summary.low):
        text += f" ({scale * summary.low:.{places}f} to {scale * summary.high:.{places}f})"
    return text


class _Table:
    """All metrics of all streams and learners."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.streams, self.learners = collection.streams(), collection.learners()
        self.values: dict[tuple[str, str, str], list[float]] = {}  # stream, learner, metric: one for each seed
        self.summaries: dict[tuple[str, str, str], Summary] = {}
        self.notes: list[str] = []
        for stream in self.streams:
            for learner in collection.runs[stream]:
                found = [self._values(column, stream, learner) for column in COLUMNS]
                for column, values, summary in zip(COLUMNS, found, summarise(found), strict=True):
                    self.values[stream, learner, column.name] = values
                    self.summaries[stream, learner, column.name] = summary
        self.means = {
            (learner, column.name): self._mean(learner, column) for learner in self.learners for column in NAV
        }

    def _values(self, column: Column, stream: str, learner: str) -> list[float]:
        try:
            return list(values_of(column, self.collection, stream, learner).values())
        except LifelongError as error:
            self.notes.append(f"{stream}, {learner}: {error}")
            return []

    def summary(self, stream: str, learner: str, column: Column) -> Summary:
        """Mean over seeds."""
        return self.summaries.get((stream, learner, column.name), NOTHING)

    def over_streams(self, learner: str, column: Column) -> Summary:
        """Mean over the streams of the means over seeds; nothing unless the learner has runs of every stream."""
        return self.means[learner, column.name]

    def _mean(self, learner: str, column: Column) -> Summary:
        each = [self.summary(stream, learner, column) for stream in self.streams]
        if len(each) == 1:
            return each[0]
        if any(math.isnan(summary.mean) for summary in each):
            return NOTHING
        mean = statistics.fmean(summary.mean for summary in each)
        counts = {summary.runs for summary in each}
        if len(counts) > 1 or counts == {1}:
            return Summary(mean, math.nan, math.nan, min(counts))
        from mikasa_robo.tools.intervals import aggregate

        scores = np.array([self.values[stream, learner, column.name] for stream in self.streams])  # (streams, seeds)
        estimate = aggregate(scores.T)[0]  # resamples the seeds within each stream
        return Summary(mean, estimate.low, estimate.high, counts.pop())

    def stream_lines(self, stream: str) -> list[str]:
        """The table of one stream."""
        learners = [name for name in self.learners if name in self.collection.runs[stream]]
        best = self._best([self.summary(stream, name, NAV[0]).mean for name in learners])
        rows = []
        for i, learner in enumerate(learners):
            cells = [_show(column, self.summary(stream, learner, column)) for column in COLUMNS]
            if i == best:
                cells[0] = f"**{cells[0]}**"
            elif best is not None and not differs(*(self.values[stream, n, "per"] for n in (learner, learners[best]))):
                runs = [len(self.values[stream, n, "per"]) for n in (learner, learners[best])]
                cells[0] += SAME_MARK if min(runs) > 1 else ""
            rows.append((as_text(learner), str(len(self.collection.runs[stream][learner])), *cells))
        return _lines(("Learner", "Seeds", *(column.title for column in COLUMNS)), rows)

    def strength_lines(self, stream: str) -> list[str]:
        """PER of each strength of the learners that have several; empty where there is none."""
        several = {n: found for n, found in self.collection.strengths[stream].items() if len(found) > 1}
        if not several:
            return []
        known = sorted({strength for found in several.values() for strength in found if strength is not None})
        rows = []
        for learner in sorted(several, key=place_of):
            best = self.collection.best[stream, learner]
            cells = []
            for strength in known:
                runs = several[learner].get(strength, {})
                (summary,) = summarise([[metrics.per(record.array()) for record in runs.values()]])
                cells.append(f"**{_show(NAV[0], summary)}**" if strength == best else _show(NAV[0], summary))
            rows.append((as_text(learner), *cells))
        text = (
            "PER by strength λ. The best of those that have all seeds is bold; as these numbers choose it, it looks better "
            "than it is."
        )
        return [text, "", *_lines(("Learner", *(f"λ = {strength:g}" for strength in known)), rows)]

    def mean_lines(self) -> list[str]:
        """The table of all streams: PER of each, then the means of all metrics."""
        header = (
            "Learner",
            *(f"PER {as_text(stream)}" for stream in self.streams),
            *(f"{column.title}, mean" for column in NAV),
        )
        rows = []
        for learner in self.learners:
            each = [_show(NAV[0], self.summary(stream, learner, NAV[0])) for stream in self.streams]
            rows.append(
                (as_text(learner), *each, *(_show(column, self.over_streams(learner, column)) for column in NAV))
            )
        return _lines(header, rows)

    @staticmethod
    def _best(means: Sequence[float]) -> int | None:
        known = [(mean, i) for i, mean in enumerate(means) if not math.isnan(mean)]
        return max(known, key=lambda pair: pair[0])[1] if len(known) > 1 else None


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""]


def write_report(collection: Collection, out: Path) -> Path:
    """Write report.md, report.html, runs.csv and the figures with their CSV files into ``out``; return report.md's path.

    Raises:
        mikasa_robo.tools.env_ids.OptionError: ``out`` cannot be used, or a file exists. Nothing has been written.
        ModuleNotFoundError: rliable, matplotlib or Python-Markdown is not installed.
    """
    from mikasa_robo.baselines.files import write_atomically
    from mikasa_robo.tools.extras import require_modules
    from mikasa_robo.tools.output import require_new_files

    table = _Table(collection)
    report, page, runs = out / "report.md", out / "report.html", out / "runs.csv"
    radar, bars = out / "radar.png", out / "bars.png"
    curves = {stream: out / f"curves-{name}.png" for stream, name in _file_names(table.streams).items()}
    pictures = [radar, bars, *curves.values()]
    require_new_files(out, [report, page, runs, *pictures, *(path.with_suffix(".csv") for path in pictures)])
    require_modules("report", "rliable", "matplotlib", "markdown")
    drawn: dict[Path, figures.Figure] = {}
    lines = [
        "# Across tasks",
        "",
        "PER: mean success of all tasks after the last, in %. BWT: that, minus success right after each task's own stage. "
        f"FWT: success after the own stage, minus that of {SCRATCH}, which trains from scratch. MEM: numbers held, in "
        "networks. INF: one forward with 64 items on one thread. TRN: training time without evaluation. INF and TRN compare "
        "only runs of one quiet machine. In parentheses: 95 % bootstrap over seeds, which is rough for few of them. "
        f"{SAME_MARK}: Welch's t-test does not tell it from the best (p ≥ 0.05).",
        "",
    ]
    means = len(table.streams) > 1
    if means:
        lines += ["## All streams", "", *table.mean_lines()]
    for stream in table.streams:
        record = next(iter(next(iter(collection.runs[stream].values())).values()))
        title, tasks = as_text(stream), as_text(", ".join(record.tasks))
        lines += [f"## {title}", "", f"Tasks: {tasks}.", "", *table.stream_lines(stream)]
        lines += table.strength_lines(stream)
        if chosen := _chosen_by_evaluation(collection, stream):
            names = as_text("; ".join(chosen))
            lines += [f"{BEST_CHECKPOINTS}: {names}.", ""]
        drawn[curves[stream]] = figures.draw_curves(_ordered(table, stream))
        lines += [f"![success on each task of {title}]({curves[stream].name})", ""]
    if table.streams:
        cells = {c.name: {n: table.over_streams(n, c) for n in table.learners} for c in NAV}
        drawn[bars] = figures.draw_bars(cells, {c.name: c.title for c in NAV})
        lines += ["## Figures", "", "Means over all streams.", "", f"![bars]({bars.name})", ""]
        # A learner that lacks a metric, such as joint, would take the axis from all others.
        complete = [n for n in table.learners if not any(math.isnan(cells[c.name][n].mean) for c in NAV)]
        if len(complete) < 2:
            complete = [n for n in table.learners if not math.isnan(cells["per"][n].mean)]
        points = {c.title: {n: cells[c.name][n].mean for n in complete} for c in NAV}
        if (figure := figures.draw_radar(points, {c.title: c.higher_is_better for c in NAV})) is not None:
            drawn[radar] = figure
            text = "Each axis runs from the worst learner to the best; where less is better it is reversed."
            lines += [text, "", f"![radar]({radar.name})", ""]
    notes = [as_text(note) for note in dict.fromkeys(table.notes)]
    notes += [f"{as_code(str(path))}: {as_text(why)}" for path, why in collection.problems]
    if notes:
        lines += ["## Problems", "", *(f"- {note}" for note in notes), ""]
    if not table.streams:
        lines += ["No complete run was found.", ""]
    text = "\n".join(lines)
    # All is made before the first file is: half a report would be in the way.
    contents = {runs: _runs_csv(collection, table)}
    for path, figure in drawn.items():
        contents |= {path: figure.png, path.with_suffix(".csv"): figure.csv}
    html = to_html(text, {path.name: figure.png for path, figure in drawn.items()})
    contents |= {path: content.encode(errors="backslashreplace") for path, content in ((report, text), (page, html))}
    out.mkdir(parents=True, exist_ok=True)
    for path, data in contents.items():
        write_atomically(path, data, overwrite=False)
    return report


def _chosen_by_evaluation(collection: Collection, stream: str) -> list[str]:
    """The learners with a run that kept the checkpoint with the best evaluation."""
    runs = collection.runs[stream]
    return [n for n in sorted(runs, key=place_of) if any(r.args.get("select") == "best" for r in runs[n].values())]


def _file_names(streams: Sequence[str]) -> dict[str, str]:
    """A part of a file's name for each stream: a name from somebody's record may hold what no file's name can."""
    names: dict[str, str] = {}
    for stream in streams:
        name = re.sub(r"[^\w.+=-]", "-", stream)
        while name in names.values():
            name += "-"
        names[stream] = name
    return names


def _ordered(table: _Table, stream: str) -> dict[str, dict[int, Record]]:
    runs = table.collection.runs[stream]
    return {learner: runs[learner] for learner in table.learners if learner in runs}


def _runs_csv(collection: Collection, table: _Table) -> bytes:
    rows: list[tuple[object, ...]] = []
    for stream in table.streams:
        for learner, by_seed in _ordered(table, stream).items():
            columns = [table.values[stream, learner, c.name] or [math.nan] * len(by_seed) for c in COLUMNS]
            for i, seed in enumerate(sorted(by_seed)):
                rows.append((stream, learner, seed, *(column[i] for column in columns)))
    return figures.csv_of(("stream", "learner", "seed", *(column.name for column in COLUMNS)), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code: 1 if no complete run was found."""
    args = tyro.cli(Args, args=argv, prog="mikasa lifelong report")
    if not args.paths:
        print("name at least one folder of a run, or one that holds such folders", file=sys.stderr)
        return 2
    from mikasa_robo.tools.output import print_report

    def make() -> tuple[Path, bool]:
        collection = collect(args.paths)
        return write_report(collection, args.out), bool(collection.runs)

    return print_report(make, LifelongError)
