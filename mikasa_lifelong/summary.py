"""A run as a table on the terminal."""

from __future__ import annotations

import math
from pathlib import Path

from . import metrics
from .record import read_record

__all__ = ["run_table"]


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def run_table(run_dir: Path) -> str:
    """Scores of every task after every stage in per cent, then the run's metrics."""
    record = read_record(run_dir)
    R = record.array()
    K = len(record.tasks)
    lines = [f"{record.stream}, {record.learner}, seed {record.seed}: success in % after each stage", ""]
    header = ["after", *record.tasks, "mean"]
    rows = []
    for stage in range(K + 1):
        row = R[stage, -1]
        if not all(map(math.isnan, row)):
            name = "no training" if stage == 0 else f"task {stage}"
            rows.append([name, *map(_percent, row), _percent(float(row.mean()))])
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    for line in [header, *rows]:
        first, *rest = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]))
    lines += [
        "",
        f"PER {_percent(metrics.per(R))}   BWT {_percent(metrics.bwt_nav(R))}   "
        f"FWT_libero {_percent(metrics.fwt_libero(R))}   NBT_libero {_percent(metrics.nbt_libero(R))}   "
        f"AUC_libero {_percent(metrics.auc_libero(R))}",
        f"memory {record.inference_numbers / record.one_network:.2f} networks to play, "
        f"{record.training_numbers / record.one_network:.2f} to go on; "
        f"{record.inference_ms or math.nan:.2f} ms a forward, {record.train_seconds:.1f} s of training",
    ]
    return "\n".join(lines)
