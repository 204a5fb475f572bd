"""The figures of a report, each with a CSV file of the numbers that it shows. Nothing is written here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .record import AFTER, Record
from .stats import Summary

__all__ = ["Figure", "csv_of", "draw_bars", "draw_curves", "draw_radar", "radar_scores"]

Cells = Mapping[str, Mapping[str, Summary]]
"""Metric, learner: mean and interval."""


@dataclass(frozen=True)
class Figure:
    """The contents of two files."""

    png: bytes
    csv: bytes


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def csv_of(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """The content of a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")  # JSON may hold what is not UTF-8


def _png_of(figure: Any) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, dpi=100, format="png")
    _pyplot().close(figure)
    return image.getvalue()


def _label(name: str) -> str:
    """A name from a file as matplotlib shows it as it is: a pair of $ would be a formula, a "_" in front a hidden entry."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def radar_scores(cells: Mapping[str, Mapping[str, float]], better: Mapping[str, bool]) -> dict[str, dict[str, float]]:
    """Each metric scaled over the learners to 0 for the worst and 1 for the best.

    Args:
        cells: metric, learner: mean. A metric that a learner lacks is left out.
        better: whether a high value of the metric is good.

    Returns:
        Metric, learner: score in [0, 1]; 1 for all where they are equal.
    """
    scores = {}
    for name, by_learner in cells.items():
        values = list(by_learner.values())
        if not values or any(map(math.isnan, values)):
            continue
        low, high = min(values), max(values)
        scores[name] = {
            learner: 1.0 if high == low else ((value - low) if better[name] else (high - value)) / (high - low)
            for learner, value in by_learner.items()
        }
    return scores


def draw_radar(cells: Mapping[str, Mapping[str, float]], better: Mapping[str, bool]) -> Figure | None:
    """Draw one polygon for each learner; None for fewer than two learners or three axes."""
    scores = radar_scores(cells, better)
    learners = list(next(iter(scores.values()), {}))
    if len(scores) < 3 or len(learners) < 2:
        return None
    axes_names = list(scores)
    pyplot = _pyplot()
    angles = np.linspace(0, 2 * math.pi, len(axes_names), endpoint=False)
    figure = pyplot.figure(figsize=(8, 6))
    axes = figure.add_axes((0.08, 0.08, 0.63, 0.84), projection="polar")  # room for the names around it, and the legend
    for i, learner in enumerate(learners):
        values = [scores[name][learner] for name in axes_names]
        style = ("-", "--", ":")[i // 10 % 3]
        closed = [*values, values[0]]
        axes.plot([*angles, angles[0]], closed, style, color=f"C{i % 10}", label=_label(learner))
        axes.fill([*angles, angles[0]], closed, color=f"C{i % 10}", alpha=0.05)
    axes.set_xticks(angles, axes_names)
    axes.set_yticks([0, 0.5, 1], ["worst", "", "best"], fontsize="small")
    axes.tick_params(axis="x", pad=12)
    axes.set_ylim(0, 1.05)
    figure.legend(loc="center right", fontsize="small")
    rows = [(learner, *(scores[name][learner] for name in axes_names)) for learner in learners]
    return Figure(_png_of(figure), csv_of(("learner", *axes_names), rows))


def draw_bars(cells: Cells, titles: Mapping[str, str]) -> Figure:
    """Draw a panel for each metric with a bar and its interval for each learner."""
    rows = [
        (name, learner, s.mean, s.low, s.high, s.runs)
        for name, by_learner in cells.items()
        for learner, s in by_learner.items()
    ]
    pyplot = _pyplot()
    columns = min(3, len(cells))
    lines = math.ceil(len(cells) / columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(4.5 * columns, 3 * lines), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    for axes, (name, by_learner) in zip(grid.flat, cells.items(), strict=False):
        shown = {learner: s for learner, s in by_learner.items() if not math.isnan(s.mean)}
        means = np.array([s.mean for s in shown.values()])
        axes.bar(range(len(shown)), means, color=[f"C{list(by_learner).index(learner) % 10}" for learner in shown])
        for x, s in enumerate(shown.values()):
            if not math.isnan(s.low):
                axes.plot([x, x], [s.low, s.high], color="black", linewidth=1)
        axes.set_xticks(range(len(shown)), list(map(_label, shown)), rotation=60, ha="right", fontsize="small")
        axes.set_title(titles[name])
        axes.grid(alpha=0.3, axis="y")
    return Figure(_png_of(figure), csv_of(("metric", "learner", "mean", "low", "high", "runs"), rows))


def task_curve(record: Record, task: int) -> tuple[list[float], list[float]]:
    """Stages, with checkpoints as fractions, and the scores of a task at these."""
    points: dict[float, float] = {}
    for m in record.measurements:
        if m.task == task and (m.checkpoint == AFTER or m.stage > 0):
            at = float(m.stage) if m.checkpoint == AFTER else m.stage - 1 + m.checkpoint / record.checkpoints
            # A checkpoint before the first step of a stage has the place of the measurement after the stage before, which
            # counts: some learners begin a stage with other weights.
            if m.checkpoint == AFTER or (at < m.stage and at not in points):
                points[at] = m.value
    return sorted(points), [points[at] for at in sorted(points)]


def draw_curves(records: Mapping[str, Mapping[int, Record]]) -> Figure:
    """Draw a panel for each task of one stream with a line for each learner: the mean over seeds against the stage.

    Args:
        records: learner, seed: record.
    """
    first = next(iter(next(iter(records.values())).values()))
    K = len(first.tasks)
    rows: list[tuple[Any, ...]] = []
    pyplot = _pyplot()
    columns = min(5, K)
    lines = math.ceil(K / columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(3.2 * columns, 2.8 * lines + 0.6), layout="constrained", squeeze=False, sharey=True
    )
    for axes in grid.flat[K:]:
        axes.set_axis_off()
    for k, axes in enumerate(grid.flat[:K]):
        axes.axvspan(k, k + 1, color="0.92")
        for i, (learner, by_seed) in enumerate(records.items()):
            curves = [task_curve(record, k) for record in by_seed.values()]
            common = [at for at in curves[0][0] if all(at in other for other, _ in curves)]
            means = [float(np.mean([dict(zip(*curve, strict=True))[at] for curve in curves])) for at in common]
            style = ("-", "--", ":")[i // 10 % 3]
            axes.plot(common, means, style, color=f"C{i % 10}", label=_label(learner), linewidth=1.2)
            rows += [
                (k + 1, first.tasks[k], learner, at, value, len(curves))
                for at, value in zip(common, means, strict=True)
            ]
        axes.set(title=f"{k + 1}: {_label(first.tasks[k])}", xlabel="stage", ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), fontsize="small")
    return Figure(_png_of(figure), csv_of(("place", "task", "learner", "stage", "mean", "runs"), rows))
