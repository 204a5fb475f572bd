"""Draw the learning curves of one or more runs from their progress.csv.

python -m mikasa_robo.tools.plot runs/A runs/B --out curves.png
"""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .extras import require_modules
from .output import require_folder

__all__ = ["Args", "main", "read_column", "read_progress"]


@dataclass
class Args:
    """Draw success and return against the steps of training."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, each with a progress.csv."""
    out: Path = Path("curves.png")
    """The image; its suffix decides the format. An existing image is replaced."""


def read_progress(run_dir: Path) -> list[dict[str, str]]:
    """The rows of a run's progress.csv.

    Raises:
        ValueError: there is no such file, it is empty, or it is not the progress of a run.
    """
    path = run_dir / "progress.csv"
    if not os.path.isfile(path):
        raise ValueError(f"{run_dir} has no progress.csv; name the folder of a training run")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, restval=""))
        for row in rows:
            if not math.isfinite(float(row["step"])):
                raise ValueError(f"step {row['step']}")
            for value in row.values():
                if value:
                    float(value)
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not the progress of a run: {type(error).__name__}: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no rows yet; wait for the run's first update")
    return rows


def read_column(rows: Sequence[dict[str, str]], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of a column, without the rows where it is empty."""
    kept = [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]
    return [step for step, _ in kept], [value for _, value in kept]


def draw(runs: Sequence[Path], out: Path) -> None:
    """Write the image: success on the left, return on the right."""
    require_modules("report", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tables = [(run.name, read_progress(run)) for run in runs]  # read all before anything is drawn
    figure, (success, returns) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for index, (name, rows) in enumerate(tables):
        colour = f"C{index}"
        success.plot(*read_column(rows, "train/success_once"), color=colour, alpha=0.4, linewidth=1)
        success.plot(*read_column(rows, "eval/success_once"), color=colour, marker="o", markersize=3, label=name)
        steps, low = read_column(rows, "eval/success_low")
        success.fill_between(steps, low, read_column(rows, "eval/success_high")[1], color=colour, alpha=0.15)
        returns.plot(*read_column(rows, "train/return"), color=colour, alpha=0.4, linewidth=1)
        returns.plot(*read_column(rows, "eval/return"), color=colour, marker="o", markersize=3, label=name)
    success.set(title="Success rate", ylim=(-0.02, 1.02))
    returns.set(title="Return (an evaluation episode ends at success)")
    for axes in (success, returns):
        axes.set_xlabel("steps of training")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", title="dots: evaluation, pale: training", title_fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    args = tyro.cli(Args, args=argv, prog="python -m mikasa_robo.tools.plot", description=__doc__)
    if not args.runs:
        sys.stderr.write("name at least one run folder\n")
        return 2
    try:
        require_folder(args.out.absolute().parent, f"--out {args.out}: the folder", args.out.name)
        draw(args.runs, args.out)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
