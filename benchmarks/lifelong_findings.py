"""Which findings of LIBERO and Continual NavBench hold in the runs of a report.

    python benchmarks/lifelong_findings.py docs/results/lifelong/digits/runs.csv --markdown findings.md

Reads the runs.csv of `mikasa lifelong report`. Each finding says that one learner has a higher or lower metric than
others, or the same. Differences are taken between runs of the same stream and seed; their mean has a 95 % interval of
Student's t over these pairs. A finding is met where the interval lies on its side of 0, unmet where it lies on the
other, and otherwise inside the interval. Two learners are the same where the interval is within 2 points of 0. Orders
of one stream share its data, so the intervals are somewhat too narrow.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from scipy.stats import t
from tables import in_markdown, plain, write_text

from mikasa_lifelong.collection import BEST

ALIASES = {"ft1": "sequential"}
SAME = 0.02
"""Two learners whose difference is smaller are the same."""
HEADER = ("finding", "metric", "difference, points", "pairs", "verdict")
Runs = dict[tuple[str, str, str], dict[str, str]]  # stream, learner, seed: the row
Verdict = Literal["met", "unmet", "inside the interval", "no runs"]


@dataclass(frozen=True)
class Finding:
    """``learner`` has a higher ``metric`` than each of ``others``; all learners where these are empty."""

    text: str
    metric: str
    learner: str
    others: tuple[str, ...] = ()
    sign: int = 1  # -1 for a lower one
    same: bool = False  # neither higher nor lower


LIBERO = ("er", "ewc", "packnet")
"""What LIBERO compares with sequential and joint learning."""
FINDINGS = (
    Finding("sequential has the best FWT (LIBERO)", "fwt_libero", "sequential", LIBERO),
    Finding("sequential has the worst NBT (LIBERO)", "nbt_libero", "sequential", LIBERO),
    Finding("EWC's AUC is below that of sequential (LIBERO)", "auc_libero", "ewc", ("sequential",), sign=-1),
    Finding("learning all tasks at once is best (LIBERO)", "per", "joint", ("sequential", *LIBERO)),
    Finding("PNN above FTN (NavBench)", "per", "pnn", ("ftn",)),
    Finding("FTN above SCN (NavBench)", "per", "ftn", ("scn",)),
    Finding("SCN above RPL (NavBench)", "per", "scn", ("rpl",)),
    Finding("FRZ has the worst FWT (NavBench)", "fwt_nav", "frz", sign=-1),
    Finding("EWC is as good as FT1 (NavBench)", "per", "ewc", ("sequential",), same=True),
)


@dataclass
class Args:
    """Tells which published findings hold in the runs of a report."""

    runs: tyro.conf.Positional[Path]
    """runs.csv of a report."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""


def read_runs(path: Path) -> Runs:
    """The rows of a file by stream, learner and seed, without those that only repeat a learner with its best strength."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["learner"].endswith(BEST)]
    return {(row["stream"], ALIASES.get(row["learner"], row["learner"]), row["seed"]): row for row in rows}


def differences(runs: Runs, finding: Finding, other: str) -> list[float]:
    """The metric of the finding's learner minus that of another one, for each stream and seed that both have."""
    found = []
    for (stream, learner, seed), row in runs.items():
        if learner == finding.learner and (stream, other, seed) in runs:
            value = float(row[finding.metric]) - float(runs[stream, other, seed][finding.metric])
            found += [finding.sign * value] * (not math.isnan(value))
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval; without one, (mean, -inf, inf), where there are fewer than two values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def judge(runs: Runs, finding: Finding) -> list[str]:
    """The row of a finding; that of the closest rival where there are several. It names rivals that have no runs."""
    named = finding.others or tuple(sorted({learner for _, learner, _ in runs} - {finding.learner}))
    rivals = {other: values for other in named if (values := differences(runs, finding, other))}
    if not rivals:
        return [finding.text, finding.metric, "-", "0", "no runs"]
    closest = min(rivals, key=lambda other: statistics.fmean(rivals[other]))
    mean, low, high = interval(rivals[closest])
    verdict: Verdict
    if finding.same:
        within = max(-low, high) < SAME
        verdict = "met" if within else "unmet" if low > 0 or high < 0 else "inside the interval"
    else:
        verdict = "met" if low > 0 else "unmet" if high < 0 else "inside the interval"
    # of what is told, so that a lower value has a negative sign
    ends = sorted((finding.sign * low, finding.sign * high))
    shown = f"{100 * finding.sign * mean:+.1f} ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}) against {closest}"
    if missing := [other for other in finding.others if other not in rivals]:
        shown += f"; not compared with {', '.join(missing)}"
    return [finding.text, finding.metric, shown, str(len(rivals[closest])), verdict]


def main(argv: Sequence[str] | None = None) -> None:
    """Judges, prints and writes."""
    args = tyro.cli(Args, args=argv)
    runs = read_runs(args.runs)
    rows = [list(HEADER), *(judge(runs, finding) for finding in FINDINGS)]
    print(plain(rows))
    if args.markdown is not None:
        write_text(args.markdown, in_markdown(rows, text_columns=3) + "\n")


if __name__ == "__main__":
    main()
