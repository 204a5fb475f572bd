"""Metrics of a stream: the worked example, identities, and records on disk."""

from __future__ import annotations

import csv
import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mikasa_lifelong import metrics
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.figures import radar_scores, task_curve
from mikasa_lifelong.record import AFTER, RECORD_FILE, Record, read_record
from mikasa_lifelong.stats import differs, summarise
from mikasa_lifelong.stream import Scores

AFTER_STAGES = ((0, 0.1, 0.1), (0.8, 0.1, 0), (0.5, 0.9, 0.2), (0.3, 0.6, 0.7))
WITHIN_STAGES = ((0, 0.6, 0.8), (0.1, 0.9, 0.8), (0.2, 0.5, 0.7))
SCRATCH = (0.8, 0.7, 0.8)


def record(after: tuple[tuple[float, ...], ...] = AFTER_STAGES, learner: str = "ewc", seed: int = 1) -> Record:
    """The worked example as a record: three tasks and two checkpoints."""
    found = Record("own", learner, seed, ("a", "b", "c"), 2, one_network=10, complete=True)
    for stage, row in enumerate(after):
        if stage:
            for e, value in enumerate(WITHIN_STAGES[stage - 1]):
                found.add(stage, e, stage - 1, Scores(0, 1, value), loss=None if e == 0 else 0.5)
        for k, value in enumerate(row):
            found.add(stage, AFTER, k, Scores(0, 1, value))
    return found


def scratch(seed: int = 1) -> Record:
    """Its run of scn, of which only the own scores matter."""
    rows = [(math.nan,) * 3, *(tuple(SCRATCH[k] if k <= stage else math.nan for k in range(3)) for stage in range(3))]
    return record(tuple(rows), "scn", seed)


def test_the_worked_example() -> None:
    R = record().array()
    assert R.shape == (4, 4, 3)
    assert metrics.in_stage_means(R) == pytest.approx([0.4667, 0.6333, 0.4667], abs=1e-4)
    assert metrics.fwt_libero(R) == pytest.approx(0.5222, abs=1e-4)
    assert metrics.nbt_libero(R) == pytest.approx(0.2333, abs=1e-4)
    assert metrics.nbt_libero(R, without_last=True) == pytest.approx(0.35)
    assert metrics.auc_libero(R) == pytest.approx(0.5019, abs=1e-4)
    assert metrics.per(R) == pytest.approx(0.5333, abs=1e-4)
    assert metrics.bwt_nav(R) == pytest.approx(-0.2667, abs=1e-4)
    assert metrics.bwt_gem(R) == pytest.approx(-0.4)
    assert metrics.fwt_gem(R) == pytest.approx(0.05)
    S = scratch().array()
    assert metrics.fwt_nav({1: R}, {1: S}) == {1: pytest.approx(0.0333, abs=1e-4)}
    assert metrics.per(S) == pytest.approx(0.7667, abs=1e-4)


def test_performance_is_that_from_scratch_plus_both_transfers() -> None:
    rng = np.random.default_rng(0)
    for K in (1, 2, 5):
        R, S = rng.random((K + 1, 4, K)), rng.random((K + 1, 4, K))
        S[-1, -1] = metrics.own_scores(S)  # scn forgets nothing
        (forward,) = metrics.fwt_nav({3: R}, {3: S}).values()
        assert metrics.per(R) == pytest.approx(metrics.per(S) + forward + metrics.bwt_nav(R))
        if K > 1:
            assert metrics.bwt_gem(R) * (K - 1) / K == pytest.approx(metrics.bwt_nav(R))
        else:
            assert math.isnan(metrics.bwt_gem(R))
            assert metrics.nbt_libero(R) == 0
        assert metrics.nbt_libero(R) * K == pytest.approx(metrics.nbt_libero(R, without_last=True) * max(1, K - 1))


def test_what_was_not_measured_is_not_a_number() -> None:
    R = record().array()
    R[1, -1] = math.nan
    assert not math.isnan(metrics.per(R))
    for metric in (metrics.bwt_nav, metrics.bwt_gem, metrics.nbt_libero):
        assert math.isnan(metric(R))


def test_forward_transfer_names_the_runs_that_are_missing() -> None:
    R = record().array()
    with pytest.raises(LifelongError, match=r"^fwt_nav needs scn runs of seeds 1, 2, with the same arguments$"):
        metrics.fwt_nav({2: R, 1: R, 3: R}, {3: R})


def test_standard_and_generalised_accuracy() -> None:
    scores = [[0.5, 0.2, 0.6], [0.3, 0.4, 0.1], [0.9, 0.1, 0.2]]  # of labels a, b, c
    truth, tasks = [0, 1, 2], [(0, 1), (0, 1), (2,)]
    own = np.array([metrics.top_n([s], [t], task)[0] for s, t, task in zip(scores, truth, tasks, strict=True)])
    general = metrics.top_n(scores, truth)
    assert own.tolist() == [True, True, True]
    assert general.mean() == pytest.approx(1 / 3)
    assert np.mean([general[:2].mean(), general[2:].mean()]) == 0.25
    assert metrics.top_n(scores, truth, n=3).all()
    rng = np.random.default_rng(0)
    many, labels = rng.random((500, 6)).round(1), rng.integers(3, size=500)  # with ties
    for n in (1, 2):
        assert (metrics.top_n(many, labels, (0, 1, 2), n) >= metrics.top_n(many, labels, n=n)).all()
    assert metrics.top_n([[0.5, 0.5]], [0]).tolist() == [False], "a tie is not won"


def test_similarity_of_tasks() -> None:
    one, other = ({"dog", "man"}, {"ride"}, {"horse"}), ({"man"}, {"ride", "eat"}, {"horse", "cake"})
    assert metrics.spo_overlap(one, other) == pytest.approx(0.5)
    assert metrics.spo_overlap((set(), {"ride"}, {"horse"}), (set(), {"ride"}, {"horse"})) == 1
    assert metrics.cosine([[1, 0], [0, 1]], [[3, 3]]) == pytest.approx(1)
    assert metrics.cosine([[1, 0]], [[0, 2]]) == pytest.approx(0)


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    written = record()
    written.save(tmp_path)
    read = read_record(tmp_path)
    assert read == written
    np.testing.assert_array_equal(read.array(), written.array())
    np.testing.assert_array_equal(np.isnan(read.array("loss")), ~(read.array("loss") == 0.5))
    lines = (tmp_path / "progress.csv").read_text().splitlines()
    assert lines[0] == "step,stage,train/loss,eval/success_once"
    assert len(lines) == 1 + 3 * (3 + 1), "a row for each checkpoint within a stage and one after it"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["progress.csv", RECORD_FILE]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mikasa/lifelong/1", "mikasa/lifelong/2", r"has the format 'mikasa/lifelong/2', expected 'mikasa/lifelong/1'"),
        ('"seed"', '"sede"', r"is broken \(KeyError: 'seed'\)"),
        ('"task": 2', '"task": 7', r"is broken \(IndexError"),
        ('"seed": 1', '"seed": "one"', r"is broken \(TypeError: seed is 'one', which is no int\)"),
        ('"stream": "own"', '"stream": ["own"]', r"is broken \(TypeError: stream is \['own'\], which is no str\)"),
        ('"complete": true', '"complete": 1', r"is broken \(TypeError: complete is 1, which is no bool\)"),
        ('"value": 0', '"value": true', r"is broken \(TypeError: value is True, which is no float\)"),
        ('"format"', "format", r"cannot be read"),
    ],
)
def test_a_record_of_another_kind_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    record().save(tmp_path)
    file = tmp_path / RECORD_FILE
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(LifelongError, match=message) as error:
        read_record(tmp_path)
    assert str(file) in str(error.value)
    file.write_text(json.dumps([1]))
    with pytest.raises(LifelongError, match="not a JSON object"):
        read_record(tmp_path)


def test_intervals_and_differences() -> None:
    three, nothing, unknown, same = summarise([[0.5, 0.6, 0.7], [], [0.5, math.nan, 0.1], [0.25] * 3])
    assert three.mean == pytest.approx(0.6)
    assert 0.5 <= three.low < 0.6 < three.high <= 0.7
    assert three.runs == 3
    assert math.isnan(nothing.mean)
    assert math.isnan(unknown.mean)
    assert (same.low, same.mean, same.high) == (0.25, 0.25, 0.25)
    (alone,) = summarise([[0.5]])
    assert alone.mean == 0.5
    assert math.isnan(alone.low)
    assert differs([0.1, 0.11, 0.12], [0.9, 0.91, 0.92])
    assert not differs([0.1, 0.9, 0.5], [0.2, 0.8, 0.55])
    assert not differs([0.1], [0.9])
    assert differs([0.1, 0.1], [0.9, 0.9])
    steady, unsteady = [0.5, 0.52, 0.51, 0.49, 0.5, 0.51, 0.5, 0.49, 0.51, 0.5], [0.4, 0.52, 0.3]
    assert not differs(steady, unsteady), "three values that spread tell little, however steady the others are"


def test_radar_and_curves_show_what_was_measured() -> None:
    cells = {"PER": {"a": 0.5, "b": 0.75, "c": 1.0}, "MEM": {"a": 1.0, "b": 2.0, "c": 5.0}, "FWT": {"a": math.nan}}
    scores = radar_scores(cells, {"PER": True, "MEM": False, "FWT": True})
    assert scores == {"PER": {"a": 0, "b": 0.5, "c": 1}, "MEM": {"a": 1, "b": 0.75, "c": 0}}
    assert radar_scores({"PER": {}}, {"PER": True}) == {}, "no learner has all streams"
    stages, values = task_curve(record(), 1)
    assert stages == [0, 1, 1.5, 2, 3]
    assert values == [0.1, 0.1, 0.9, 0.9, 0.6], "after a stage counts what was measured after its consolidation"


def test_findings_are_judged_by_paired_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parent.parent / "benchmarks")
    module = importlib.import_module("lifelong_findings")
    path = tmp_path / "runs.csv"
    levels = {"pnn": 0.9, "ftn": 0.8, "scn": 0.8, "rpl": 0.7, "ft1": 0.5, "ewc": 0.5, "ewc, best λ": 0.99}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("stream", "learner", "seed", "per", "fwt_nav"))
        for learner, level in levels.items():
            for seed in range(4):
                noise = (-1) ** seed * (0.1 if learner == "scn" else 0.001 * level)
                writer.writerow(("ST1", learner, seed, level + 0.1 * seed + noise, "nan"))
    runs = module.read_runs(path)

    def verdict(learner: str, *others: str, metric: str = "per", **how: Any) -> str:
        return str(module.judge(runs, module.Finding("", metric, learner, others, **how))[-1])

    assert verdict("pnn", "ftn") == "met"
    assert verdict("pnn") == "met", "the best of all, but for the row with the best strength"
    assert verdict("ftn", "pnn") == "unmet"
    assert verdict("ftn", "pnn", sign=-1) == "met"
    assert verdict("ftn", "scn") == "inside the interval"
    assert verdict("ewc", "sequential", same=True) == "met"
    assert verdict("ewc", "rpl", same=True) == "unmet"
    assert verdict("ewc", "scn", metric="fwt_nav") == "no runs"
    compared = module.judge(runs, module.Finding("", "per", "pnn", ("ftn", "er", "packnet")))
    assert compared[2].endswith(" against ftn; not compared with er, packnet")
    assert module.judge(runs, module.Finding("", "per", "pnn", ("ftn",)))[2].endswith(" against ftn")
