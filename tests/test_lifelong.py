"""`mikasa lifelong`: its catalog, its data, its commands and their errors, and what importing it loads."""

from __future__ import annotations

import dataclasses
import errno
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifelong_helpers import TINY, Played, play_loop, register_tiny_stream, same
from sweep_helpers import require_refused

from mikasa_lifelong import command
from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import STREAMS, TASKS, StreamRow, find_stream, load_entry_point, register
from mikasa_lifelong.collection import COLUMNS, best_strength, collect, values_of
from mikasa_lifelong.digits import load_split
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.figures import task_curve
from mikasa_lifelong.learners.registry import LEARNERS, register_learner
from mikasa_lifelong.loop import Loop
from mikasa_lifelong.nav import ENV_IDS
from mikasa_lifelong.nets import HEADS, NETWORKS
from mikasa_lifelong.record import read_record
from mikasa_lifelong.run import result_of
from mikasa_lifelong.stream import ArrayDataset, Batch, TaskStream, UnionDataset
from mikasa_lifelong.sweep import WORDS, run_command
from mikasa_robo.tools import cli
from mikasa_robo.tools.report import main as report_main
from mikasa_robo.tools.sweep_plan import read_plan

ROOT = Path(__file__).resolve().parent.parent


def test_importing_it_loads_neither_torch_nor_sapien() -> None:
    code = (
        "import sys, mikasa_lifelong, mikasa_lifelong.stream, mikasa_lifelong.learners.registry, mikasa_lifelong.command\n"
        "print(*(name for name in ('torch', 'sapien', 'mani_skill', 'sklearn', 'scipy') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""


# ---- catalog and data
def test_every_row_can_be_loaded() -> None:
    names = [*(row.entry_point for row in TASKS.values()), *(row.entry_point for row in LEARNERS.values())]
    names += [*(row.entry_point for row in NETWORKS.values()), *HEADS.values()]
    for entry_point in dict.fromkeys(names):
        assert callable(load_entry_point(entry_point)), entry_point
    for row in STREAMS.values():
        assert row.network in NETWORKS
        assert set(row.tasks) <= set(TASKS)


def test_a_stream_of_ones_own() -> None:
    row = STREAMS["split-digits"]

    def own(**changes: Any) -> StreamRow:
        values = {f: getattr(row, f) for f in row.__dataclass_fields__}
        return StreamRow(**{**values, **changes})

    for changes, message in (
        ({}, "there is a stream 'split-digits' already"),
        ({"name": "own", "tasks": ()}, "has no tasks"),
        ({"name": "own", "tasks": ("digits-10",)}, "there is no task 'digits-10'; did you mean digits-01"),
    ):
        with pytest.raises(LifelongError, match=message):
            register(streams=[own(**changes)])
    assert "own" not in STREAMS
    twice = TaskStream(own(name="own", tasks=("digits-01", "digits-23", "digits-01")))
    assert twice.tasks[0] is twice.tasks[2]
    assert len(twice) == 3
    with pytest.raises(LifelongError, match="one network has to serve all tasks"):
        TaskStream(own(name="own", tasks=("digits-01", "permuted-digits-1")))


def test_a_learner_of_ones_own_has_known_options() -> None:
    row = dataclasses.replace(LEARNERS["er"], name="own-er", options={"capacity": 5, "foo": 1})
    with pytest.raises(LifelongError, match=r"learner 'own-er': there is no option foo; use strength, .*capacity"):
        register_learner(row)
    assert "own-er" not in LEARNERS


def test_a_stream_of_ones_own_may_read_files(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(find_stream("ST1"), name="own-files", needs_data=True)
    monkeypatch.setattr("mikasa_lifelong.arguments.find_stream", lambda name, option: row)
    with pytest.raises(LifelongError, match="--data is missing: own-files reads files"):
        RunArgs(stream="own-files").completed()
    assert RunArgs(stream="own-files", data=Path("/data")).completed().data == Path("/data")


def test_the_digits_are_split_once_and_for_all() -> None:
    (x, y), (x_test, y_test) = load_split()
    assert (len(x), len(x_test)) == (1258, 539)
    assert x.min() == 0
    assert x.max() == 1
    assert len(np.unique(np.concatenate([x, x_test]), axis=0)) > 1790, "no picture is on both sides"
    pair = TaskStream(STREAMS["split-digits"]).tasks[1]
    data = pair.dataset(seed=1)
    batch = data.draw(np.arange(len(data)), np.random.default_rng(0))
    assert len(data) == int(np.isin(y, (2, 3)).sum())
    assert batch["label"].sum() == int((y == 3).sum())

    class Knows:
        """Answers as told."""

        def __init__(self, answers: np.ndarray[Any, Any]) -> None:
            self.answers = answers

        def on_episode_start(self) -> None: ...

        def act(self, obs: Batch) -> np.ndarray[Any, Any]:
            return self.answers[: len(obs["x"])]

    truth = (y_test[np.isin(y_test, (2, 3))] == 3).astype(int)
    right = pair.evaluate(Knows(truth), None)
    assert (right.successes, right.trials, right.value) == (len(truth), len(truth), 1.0)
    assert pair.evaluate(Knows(1 - truth), 10).successes == 0
    assert pair.evaluate(Knows(truth), 10).trials == 10


def test_permuted_digits_are_the_same_digits() -> None:
    stream = TaskStream(STREAMS["permuted-digits"])
    plain, shuffled = (stream.dataset(k, 1).draw(np.arange(50), np.random.default_rng(0)) for k in (0, 3))
    assert (plain["label"] == shuffled["label"]).all()
    assert not (plain["x"] == shuffled["x"]).all()
    np.testing.assert_array_equal(np.sort(plain["x"]), np.sort(shuffled["x"]))


def test_a_union_draws_from_its_parts() -> None:
    rng = np.random.default_rng(0)
    parts = [ArrayDataset({"x": np.arange(n) + 100 * i, "y": np.zeros((n, 2))}) for i, n in enumerate((3, 1, 4))]
    union = UnionDataset(parts)
    assert len(union) == 8
    assert union.numbers_per_item == 3
    rows = np.array([7, 0, 3, 3, 2, 4])
    assert union.draw(rows, rng)["x"].tolist() == [203, 0, 100, 100, 2, 200]
    assert sorted(union.take(rows).draw(np.arange(6), rng)["x"].tolist()) == [0, 2, 100, 100, 200, 203]
    with pytest.raises(LifelongError, match=r"columns of length \{'x': 2, 'y': 3\}"):
        ArrayDataset({"x": np.zeros(2), "y": np.zeros(3)})


# ---- the loop
@pytest.mark.usefixtures("one_torch_thread")
def test_the_best_checkpoint_of_a_stage_is_what_is_kept(tmp_path: Path) -> None:
    changes = {"steps": 6, "checkpoints": 3, "learning_rate": 0.3, "seed": 2}  # so large that scores go up and down
    best, last = (
        play_loop(tmp_path / name, "sequential", select=name, **changes).record.array() for name in ("best", "last")
    )
    assert any(last[k + 1, -1, k] < last[k + 1, :-1, k].max() for k in range(3)), "or the test shows nothing"
    for k in range(3):
        assert best[k + 1, -1, k] == best[k + 1, :-1, k].max()
        assert last[k + 1, -1, k] == last[k + 1, -2, k]


@pytest.mark.usefixtures("one_torch_thread")
def test_of_equal_checkpoints_the_first_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "_evaluate", lambda self, checkpoint, k, loss=None: 0.5)
    loop: Any = play_loop(tmp_path / "run", "sequential", select="best")
    assert same(loop.learner.model.state_dict(), loop.setup.fresh_model(0).state_dict()), "nothing has been gained"


@pytest.mark.usefixtures("one_torch_thread")
def test_the_loss_of_a_checkpoint_is_the_mean_since_the_one_before(tmp_path: Path) -> None:
    losses = Played("sequential").losses
    told = play_loop(tmp_path / "run", "sequential").record.array("loss")
    for k in range(3):
        first, second, third = losses[3 * k : 3 * k + 3]
        assert np.isnan(told[k + 1, 0, k]), "no step was made yet"
        assert told[k + 1, 1, k] == pytest.approx((first + second) / 2)
        assert told[k + 1, 2, k] == pytest.approx(third)


# ---- commands
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (*STREAMS, *TASKS, *LEARNERS, *ENV_IDS):
        assert re.search(rf"^{name} ", shown, re.MULTILINE), name
    assert cli.main(["list", "--suite", "lifelong"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*STREAMS, *ENV_IDS))
    assert cli.main(["list", "--suite", "lifelong", "--family", "X"]) == 2
    assert cli.main(["lifelong", "--help"]) == 0
    assert "sweep" in capsys.readouterr().out
    assert command.main(["learn"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--stream split-digit", r"--stream split-digit: there is no stream 'split-digit'; did you mean split-digits"),
        ("", r"--stream is missing"),
        ("--stream split-digits --learner ecw", r"there is no learner 'ecw'; did you mean ewc"),
        ("--stream split-digits --network mlp", r"--network mlp: there is no network 'mlp'; use one of residual-mlp"),
        ("--stream split-digits --gamma 0.5", r"--gamma 0.5 is not an option of sequential but of ewc-online"),
        ("--stream split-digits --learner er --capacity -1", r"--capacity -1 must be at least 0"),
        (
            "--stream split-digits --learner er --capacity 5 --capacity-total 50",
            r"--capacity 5 and --capacity-total 50 exclude each other; leave one out",
        ),
        (
            "--stream split-digits --learner er --capacity-total 4",
            r"--capacity-total 4 leaves nothing for some of the 5 tasks of split-digits; use at least 5, or 0",
        ),
        ("--stream split-digits --learning-rate 0", r"--learning-rate 0.0 must be above 0"),
        ("--stream split-digits --learner hispo --threshold 2", r"--threshold 2.0 must be at most 1"),
        ("--stream split-digits --torch-threads 100000", r"--torch-threads 100000 must be at most \d+"),
        ("--stream split-digits --steps 3", r"--checkpoints 5 is more than --steps 3"),
        ("--stream split-digits --protocol paper", r"--protocol paper: split-digits is in no paper"),
        ("--stream split-digits --run-dir {file}", r"--run-dir .* is a file; name a folder"),
        ("--resume {file}", r"holds no checkpoint"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name_value_and_fix(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert command.main(["run", *words.format(file=tmp_path / "file").split()]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_pnn_needs_a_network_with_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    row = NETWORKS["residual-mlp"]
    plain = type(row)(name="plain", summary="", entry_point=row.entry_point)
    monkeypatch.setattr("mikasa_lifelong.arguments.NETWORKS", {**NETWORKS, "plain": plain})
    with pytest.raises(
        LifelongError, match=r"pnn needs a network with columns \(residual-mlp, .*\); split-digits uses plain"
    ):
        RunArgs(stream="split-digits", learner="pnn", network="plain").completed()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of ewc and scn with two seeds each, but of ewc also seed 3."""
    register_tiny_stream()
    folder = tmp_path_factory.mktemp("runs")
    tiny = {**TINY, "steps": 30, "checkpoint_every": 1000}
    options = [word for name, value in tiny.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    pairs = [("scn", 1), ("scn", 2), ("ewc", 1), ("ewc", 2), ("ewc", 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)  # slow on a busy disk
        for learner, seed in pairs:
            words = [
                "--learner",
                learner,
                "--seed",
                str(seed),
                "--run-dir",
                str(folder / f"{learner}{seed}"),
            ]
            assert command.main(["run", *options, *words]) == 0
    return folder


def test_a_curve_has_the_score_after_the_stage_before(runs: Path) -> None:
    """Not that of the weights with which the next stage begins, which may be fresh ones."""
    record = read_record(runs / "scn1")
    numbered = [dataclasses.replace(m, value=i / 1000) for i, m in enumerate(record.measurements)]
    record = dataclasses.replace(record, measurements=numbered)
    after = {(m.stage, m.task): m.value for m in numbered if m.checkpoint == -1}
    assert any(m.checkpoint == 0 and m.stage == 2 and m.task == 1 for m in numbered), "or the test shows nothing"
    for task in range(3):
        curve = dict(zip(*task_curve(record, task), strict=True))
        assert [curve[float(stage)] for stage in (1, 2, 3)] == [after[stage, task] for stage in (1, 2, 3)]


def test_a_report_has_tables_figures_and_their_numbers(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["report", str(runs), "--out", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    assert "tiny-digits, ewc: fwt_nav needs scn runs of seeds 3" in shown
    (scn,) = re.findall(r"^\| scn \| 2 \|.*$", shown, re.MULTILINE)
    assert "| 0.0 (0.0 to 0.0) | 0.0 (0.0 to 0.0) | 3.00" in scn, "no forgetting, no transfer, three networks"
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"report.md", "report.html", "runs.csv", "bars.png", "bars.csv"} <= names
    assert {"curves-tiny-digits.png", "curves-tiny-digits.csv"} <= names
    lines = (tmp_path / "a" / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 5
    assert command.main(["report", str(runs), "--out", str(tmp_path / "a")]) == 2
    assert "already contains" in capsys.readouterr().err

    two = [str(runs / name) for name in ("scn1", "scn2", "ewc1", "ewc2")]
    assert command.main(["report", *two, "--out", str(tmp_path / "b")]) == 0
    assert "Problems" not in capsys.readouterr().out
    assert (tmp_path / "b" / "radar.csv").read_text().startswith("learner,PER,BWT,FWT,MEM,")
    assert command.main(["report", str(runs / "nowhere")]) == 2


def test_unfinished_and_strange_runs_are_listed(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((runs / "ewc1" / "record.json").read_text())
    for name, changes in (
        ("unfinished", {"complete": False}),
        ("other version", {"format": "mikasa/lifelong/9"}),
        ("again", {}),
        ("other", {"seed": 7, "args": {**content["args"], "hidden_size": 12}}),
        ("variant", {"args": {**content["args"], "fisher": "minibatch", "fisher_samples": 9}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps({**content, **changes}))
    assert command.main(["report", str(runs / "ewc1"), str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "unfinished, in stage 3 of 3" in shown
    assert "has the format 'mikasa/lifelong/9'" in shown
    assert "not counted: tiny-digits, ewc, seed 1 is there already" in shown
    assert "differs from others of ewc in hidden_size" in shown
    assert "| ewc, fisher minibatch, fisher samples 9 | 1 |" in shown, "a learner of its own"


def test_runs_of_one_seed_that_were_made_in_several_ways_have_names_of_their_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain name is that of the way that most runs have, also where the folders of the others sort before theirs."""
    wide = [
        changed_copy(runs / f"{name}1", tmp_path / f"a-{name}", args={"hidden_size": 12, "steps": 99})
        for name in ("scn", "ewc")
    ]
    usual = [runs / name for name in ("scn1", "scn2", "ewc1", "ewc2")]
    found = collect([*wide, *usual])
    of = {
        label: {seed: record.args["hidden_size"] for seed, record in by_seed.items()}
        for label, by_seed in found.runs["tiny-digits"].items()
    }
    other = "ewc, steps 99, hidden size 12"
    assert of["ewc"] == {1: 6, 2: 6}
    assert of[other] == {1: 12}
    assert not any("not counted" in why for _, why in found.problems)
    assert any(
        why.startswith(f"{other} differs from other learners in steps, hidden_size") for _, why in found.problems
    )
    (forward,) = [column for column in COLUMNS if column.name == "fwt_nav"]
    assert list(values_of(forward, found, "tiny-digits", other)) == [1], "with the run of scn that was made likewise"
    assert command.main(["report", *map(str, [*wide, *usual]), "--out", str(tmp_path / "out")]) == 0
    assert f"| {other} | 1 |" in capsys.readouterr().out


def test_of_as_many_runs_those_nearer_to_the_defaults_keep_the_plain_name(runs: Path, tmp_path: Path) -> None:
    """The copy has the default number of checkpoints, 5."""
    near = changed_copy(runs / "scn1", tmp_path / "b", args={"checkpoints": 5})
    for paths in ([runs / "scn1", near], [near, runs / "scn1"]):
        found = collect(paths).runs["tiny-digits"]
        assert {label: next(iter(seeds.values())).args["checkpoints"] for label, seeds in found.items()} == {
            "scn": 5,
            "scn, checkpoints 2": 2,
        }


def test_a_link_to_a_run_is_followed(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs / "ewc1")
    assert list(collect([tmp_path]).runs["tiny-digits"]) == ["ewc"]


@pytest.mark.parametrize(
    ("changes", "of_last", "message"),
    [
        ({"one_network": 0}, {}, "one_network 0"),
        ({"tasks": []}, {}, "0 tasks"),
        ({"args": {"strength": [1]}}, {}, "args.strength is [1], which is no number"),
        ({}, {"value": float("nan")}, "has numbers that no evaluation has"),
        ({}, {"value": 1.5}, "has numbers that no evaluation has"),
        ({}, {"trials": 0, "successes": 0}, "has numbers that no evaluation has"),
        ({}, {"task": -3}, "a task that the run does not have"),
        ({}, {"stage": -1}, "a stage, a checkpoint or a task that the run does not have"),
        ({}, {"checkpoint": -2}, "a checkpoint or a task that the run does not have"),
    ],
)
def test_a_record_with_numbers_that_no_run_has_is_a_problem_of_its_folder(
    changes: dict[str, Any], of_last: dict[str, Any], message: str, runs: Path, tmp_path: Path
) -> None:
    content = json.loads((runs / "ewc1" / "record.json").read_text())
    content["measurements"][-1] |= of_last
    bad = changed_copy(runs / "ewc1", tmp_path / "bad", **{"measurements": content["measurements"], **changes})
    found = collect([bad, runs / "ewc2"])
    assert list(found.runs["tiny-digits"]["ewc"]) == [2]
    ((folder, why),) = found.problems
    assert folder == bad.resolve()
    assert message in why


def test_no_more_episodes_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--stream", "split-digits", "--episodes", "117", "--run-dir", str(tmp_path / "run")]
    assert command.main(words) == 2
    assert re.search(r"--episodes 117: digits-\d\d has 1\d\d for an evaluation; use at most", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_learners_that_were_trained_otherwise_are_not_compared(runs: Path, tmp_path: Path) -> None:
    content = json.loads((runs / "scn1" / "record.json").read_text())
    (tmp_path / "scn").mkdir()
    text = json.dumps({**content, "args": {**content["args"], "steps": 1, "data": "/mnist"}})
    (tmp_path / "scn" / "record.json").write_text(text)
    found = collect([runs / "ewc1", runs / "ewc2", tmp_path / "scn"])
    problem = "scn differs from other learners in steps, data, so they cannot be compared"
    assert [text for _, text in found.problems] == [problem]
    (forward,) = [column for column in COLUMNS if column.name == "fwt_nav"]
    with pytest.raises(LifelongError, match="needs scn runs of seeds 1, 2, with the same arguments"):
        values_of(forward, found, "tiny-digits", "ewc")


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 1e-5), ("dropout", 0.9), ("max_grad_norm", 1e-3)])
def test_a_transfer_is_not_that_of_another_optimizer(name: str, value: float, runs: Path, tmp_path: Path) -> None:
    content = json.loads((runs / "scn1" / "record.json").read_text())
    (tmp_path / "scn").mkdir()
    (tmp_path / "scn" / "record.json").write_text(json.dumps({**content, "args": {**content["args"], name: value}}))
    found = collect([runs / "ewc1", runs / "ewc2", tmp_path / "scn"])
    assert [text for _, text in found.problems] == [
        f"scn differs from other learners in {name}, so they cannot be compared"
    ]


def test_the_interval_is_that_of_the_mean_over_tasks(runs: Path) -> None:
    """Also where one task has many more episodes than another."""
    record = read_record(runs / "ewc1")
    usual = result_of(record)["final"]
    assert usual["success_low"] <= usual["success_once"] <= usual["success_high"]
    last = [m for m in record.measurements if m.stage == 3 and m.checkpoint == -1]
    others = [m for m in record.measurements if m not in last]
    changed = [
        dataclasses.replace(m, value=float(k == 0), successes=1000 * (k == 0), trials=1000 if k == 0 else 20)
        for k, m in enumerate(last)
    ]
    final = result_of(dataclasses.replace(record, measurements=[*others, *changed]))["final"]
    assert final["success_once"] == pytest.approx(1 / 3)
    assert final["success_low"] < 1 / 3 < final["success_high"]
    assert final["success_high"] - final["success_low"] > 0.1, "mostly that of the tasks with 20"


def test_of_several_strengths_the_best_has_a_row_of_its_own(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of the runs of ewc, with another strength and all its scores after the last stage at one value."""
    for seed, learner, strength, value in ((1, "ewc", 9.0, 1.0), (2, "ewc", 9.0, 0.8), (1, "ewc", 0.5, 0.0)):
        content = json.loads((runs / f"{learner}{seed}" / "record.json").read_text())
        content["args"]["strength"] = strength
        for measured in content["measurements"]:
            if measured["stage"] == 3:
                measured["value"] = value
        (tmp_path / f"{strength}-{seed}").mkdir()
        (tmp_path / f"{strength}-{seed}" / "record.json").write_text(json.dumps(content))
    usual = [str(runs / name) for name in ("scn1", "scn2", "ewc1", "ewc2")]
    collection = collect([Path(path) for path in (*usual, str(tmp_path))])
    by_name = collection.runs["tiny-digits"]
    assert list(collection.learners()) == ["scn", "ewc", "ewc, best λ"]
    assert {r.args["strength"] for r in by_name["ewc"].values()} == {1.0}, "the default"
    assert {r.args["strength"] for r in by_name["ewc, best λ"].values()} == {9.0}
    assert command.main(["report", *usual, str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "| Learner | λ = 0.5 | λ = 1 | λ = 9 |" in shown
    (row,) = re.findall(r"^\| ewc \| 0.0 \| .* \|$", shown, re.MULTILINE)
    assert row.endswith("| **90.0 (80.0 to 100.0)** |")
    assert "| ewc, best λ | 2 | **90.0 (80.0 to 100.0)** |" in shown
    del collection.strengths["tiny-digits"]["ewc"][9.0]
    assert best_strength(collection.strengths["tiny-digits"]["ewc"], 1.0) == 1.0, "0.5 has no seed 2"


def changed_copy(run: Path, folder: Path, **changes: Any) -> Path:
    """A folder with the record of ``run``, in which some entries are others; those in ``args`` are added to its own."""
    content = json.loads((run / "record.json").read_text())
    args = {**content["args"], **changes.pop("args", {})}
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({**content, **changes, "args": args}))
    return folder


def test_a_name_alone_is_the_default_strength(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are never shown under it, also where the default was not run."""
    for strength in (0.1, 100.0):
        changed_copy(runs / "ewc1", tmp_path / f"{strength}", args={"strength": strength})
    alone = collect([tmp_path / "100.0"]).runs["tiny-digits"]
    assert list(alone) == ["ewc, strength 100.0"]
    assert command.main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"^\| (ewc.*?) \| 1 \|", shown, re.MULTILINE)
    assert rows == ["ewc, best λ", "ewc, strength 0.1", "ewc, strength 100.0"]
    assert "| Learner | λ = 0.1 | λ = 100 |" in shown
    assert len(re.findall(r"^\| ewc \| .*\*\*", shown, re.MULTILINE)) == 1, "PER by strength"


def test_a_learner_that_is_not_known_here_has_no_default_strength(runs: Path, tmp_path: Path) -> None:
    own = {"learner": "own-anchored"}
    for strength in (0.1, 100.0):
        changed_copy(runs / "ewc1", tmp_path / f"{strength}", **own, args={"strength": strength})
    assert list(collect([tmp_path / "0.1"]).runs["tiny-digits"]) == ["own-anchored"]
    assert set(collect([tmp_path]).runs["tiny-digits"]) == {
        "own-anchored, strength 0.1",
        "own-anchored, strength 100.0",
        "own-anchored, best λ",
    }


def test_two_streams_of_one_name_do_not_share_a_table(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tasks that most runs have are counted."""
    content = json.loads((runs / "scn1" / "record.json").read_text())
    shorter = [m for m in content["measurements"] if m["stage"] < 3 and m["task"] < 2]
    changed_copy(runs / "scn1", tmp_path / "two", tasks=content["tasks"][:2], measurements=shorter)
    words = ["report", str(tmp_path / "two"), str(runs / "ewc1"), str(runs / "ewc2"), "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    shown = capsys.readouterr().out
    assert "| scn |" not in shown
    assert (
        "not counted: its tasks are digits-01, digits-23; most runs of tiny-digits have digits-01, digits-23, digits-45"
        in shown
    )


def test_a_report_says_which_scores_also_chose_the_checkpoints(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "(`--select best`), so the scores look better than they are: "
    changed_copy(runs / "ewc1", tmp_path / "best", args={"select": "best"})
    assert command.main(["report", str(tmp_path / "best"), "--out", str(tmp_path / "out")]) == 0
    assert f"{told}ewc.\n" in capsys.readouterr().out
    assert command.main(["report", str(runs / "ewc1"), "--out", str(tmp_path / "other")]) == 0
    assert told not in capsys.readouterr().out


def test_data_is_known_by_its_content(runs: Path, tmp_path: Path) -> None:
    """Not by the folder, which may be another on each machine."""
    ones, others = "1" * 64, "2" * 64
    first = changed_copy(runs / "ewc1", tmp_path / "a", args={"data": "/here/mnist"}, data_sha256=ones)
    moved = changed_copy(runs / "ewc2", tmp_path / "b", args={"data": "/there/mnist"}, data_sha256=ones)
    assert collect([first, moved]).problems == []
    swapped = changed_copy(runs / "ewc2", tmp_path / "c", args={"data": "/here/mnist"}, data_sha256=others)
    assert [text for _, text in collect([first, swapped]).problems] == [
        "counted, but it differs from others of ewc in data",
        "ewc differs from other learners in data, so they cannot be compared",
    ]


@pytest.mark.filterwarnings("ignore:constrained_layout")  # the names are long
def test_the_texts_of_others_are_only_texts_in_a_report(runs: Path, tmp_path: Path) -> None:
    """Also where they are no name of a file, or a formula of matplotlib's."""
    hostile = "../a/b [y](http://a.org) <b> | *c* `d` $_{$ ![z](radar.png)"
    for name in ("scn1", "ewc1"):
        content = json.loads((runs / name / "record.json").read_text())
        tasks = [hostile, *content["tasks"][1:]]
        learner = hostile if name == "ewc1" else "scn"
        for stream in (hostile, hostile.replace("$", "%")):
            folder = tmp_path / f"{name} {len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            text = json.dumps({**content, "stream": stream, "tasks": tasks, "learner": learner})
            (folder / "record.json").write_text(text)
    (tmp_path / "broken *e*").mkdir()
    (tmp_path / "broken *e*" / "record.json").write_text(json.dumps({"format": hostile}))
    out = tmp_path / "out"
    assert command.main(["report", str(tmp_path), "--out", str(out)]) == 0
    names = sorted(path.name for path in out.glob("curves-*.png"))
    assert names == [
        f"curves-..-a-b--y--http---a.org---b-----c---d---_-----z--radar.png-{end}.png" for end in ("-", "")
    ]
    page = (out / "report.html").read_text()
    assert not re.findall(r"<(?:a|b|em)[ >]", page)
    assert re.findall(r"<code>(.*?)</code>", page) == [str(tmp_path / "broken *e*")]
    assert page.count("<img ") == 2 + 2, "the curves, bars and radar"
    assert f"<h2>{html.escape(hostile, quote=False)}</h2>" in page
    for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL):
        assert len(re.findall(r"<t[hd]", row)) in (2 + len(COLUMNS), 1 + 2 + 6), "no text begins another cell"


def test_a_report_that_fails_leaves_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mikasa_lifelong.figures.draw_radar", fail)
    with pytest.raises(ZeroDivisionError):
        command.main(["report", str(runs), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_files_of_a_report_are_whole_or_not_there(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        command.main(["report", str(runs), "--out", str(tmp_path / "out")])
    assert not list((tmp_path / "out").iterdir())


def test_the_report_of_training_runs_shows_them_apart(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_main([str(runs), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "## Across tasks" in shown
    assert "`tiny-digits`" in shown
    content = json.loads((runs / "ewc1" / "final_eval.json").read_text())
    content["args"]["strength"] = 9.0
    (tmp_path / "ewc-9").mkdir()
    (tmp_path / "ewc-9" / "final_eval.json").write_text(json.dumps(content))
    assert report_main([str(tmp_path / "ewc-9"), str(runs), "--out", str(tmp_path / "both")]) == 0
    shown = capsys.readouterr().out
    assert "| `tiny-digits` | ewc | 3 |" in shown
    assert "| `tiny-digits` | ewc, strength 9.0 | 1 |" in shown
    assert "not counted" not in shown
    content["args"] |= {"strength": 1.0, "hidden_size": 12}
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "final_eval.json").write_text(json.dumps(content))
    assert report_main([str(runs), str(tmp_path / "wide"), "--out", str(tmp_path / "wide and usual")]) == 0
    assert "ewc1; the two differ in hidden_size" in capsys.readouterr().out
    assert "## Training runs" not in shown


# ---- sweeps
SWEEP = """
out = "runs/digits"
streams = ["split-digits", "permuted-digits"]
learners = ["scn", "ewc"]
seeds = [1, 2]
[options.ewc]
strength = 10
fisher = "minibatch"
"""
VARIANT = """
[[variant]]
name = "ewc-0.1"
learner = "ewc"
options = { strength = 0.1 }
"""


def test_a_sweep_plans_streams_learners_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    planned = read_plan(file, WORDS).runs
    assert len(planned) == 8
    assert planned[2].name == "split-digits__ewc__1"
    words = run_command(planned[2], Path("/runs/a"), resume=False)
    assert words[:3] == ["-m", "mikasa_lifelong.command", "run"]
    text = " ".join(words)
    for part in ("--stream split-digits", "--learner ewc", "--seed 1", "--run-dir /runs/a", "--fisher minibatch"):
        assert part in text
    assert run_command(planned[2], Path("/runs/a"), resume=True)[3:] == ["--resume", "/runs/a"]


def test_a_sweep_has_variants_of_a_learner(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP + VARIANT)
    planned = [run for run in read_plan(file, WORDS).runs if run.variant is not None]
    assert [run.name for run in planned[:2]] == ["split-digits__ewc-0.1__1", "split-digits__ewc-0.1__2"]
    text = " ".join(run_command(planned[0], Path("/runs/a"), resume=False))
    for part in ("--learner ewc", "--strength 0.1", "--fisher minibatch"):
        assert part in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("streams", "tasks", r"tasks is not known here"),
        ('"split-digits"', '"split-digit"', r"streams: split-digit: there is no stream .* did you mean split-digits"),
        ('"ewc"]', '"ecw"]', r"learners: ecw: there is no learner 'ecw'; did you mean ewc"),
        ("strength = 10", "strenght = 10", r"options.ewc.strenght is not known here"),
        ("strength = 10", "seed = 10", r"options.ewc.seed is set by the sweep itself"),
        ("strength = 10", 'strength = "high"', r"options.ewc.strength = 'high' is of the wrong kind"),
        ("strength = 10", "strength = -1", r"options.ewc: --strength -1 must be at least 0"),
        ("strength = 10", "capacity = 10", r"options.ewc: --capacity 10 is not an option of ewc but of er"),
        ('"minibatch"', '"batch"', r"options.ewc.fisher = 'batch' is of the wrong kind"),
        ('fisher = "minibatch"', '[[variant]]\nname = "a"', r"variant number 1: learner is missing"),
        ('fisher = "minibatch"', '[[variant]]\nname = "a"\nlearner = "ecw"', r"no learner 'ecw'; did you mean ewc"),
    ],
)
def test_a_bad_sweep_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    require_refused(SWEEP, old, new, message, tmp_path / "sweep.toml", WORDS)


TINY_SWEEP = """
out = "{out}"
streams = ["tiny-digits"]
learners = ["ewc"]
seeds = [1]
[options.ewc]
steps = 30
batch_size = 8
hidden_size = 6
dropout = 0.2
checkpoints = 2
episodes = 20
"""


def test_a_sweep_takes_no_run_of_other_arguments(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out" / "tiny-digits__ewc__1"
    shutil.copytree(runs / "ewc1", folder)
    file = tmp_path / "sweep.toml"
    asked = TINY_SWEEP.format(out=tmp_path / "out")
    file.write_text(asked + "torch_threads = 2\n")  # not what its result depends on
    assert command.main(["sweep", str(file), "--dry-run"]) == 0
    assert "1 of 1 runs are finished" in capsys.readouterr().out
    file.write_text(asked.replace("dropout = 0.2\n", ""))
    assert command.main(["sweep", str(file), "--dry-run"]) == 2
    assert "is finished with dropout = 0.2, and the sweep asks for 0.0" in capsys.readouterr().err
    # killed before its end
    (folder / "final_eval.json").unlink()
    file.write_text(asked + "strength = 5.0\n")
    assert command.main(["sweep", str(file)]) == 2
    assert "was begun with strength = 1.0, and the sweep asks for 5.0" in capsys.readouterr().err


def test_a_sweep_knows_its_runs_by_the_folder_of_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.replace('fisher = "minibatch"', 'data = "mnist"'))
    (planned, *_) = [run for run in read_plan(file, WORDS).runs if run.algorithm == "ewc"]
    assert planned.args is not None
    assert planned.args["data"] == str(tmp_path / "mnist")


@pytest.mark.slow
def test_a_sweep_on_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    file = tmp_path / "sweep.toml"
    file.write_text(
        f'out = "{tmp_path / "runs"}"\nstreams = ["split-digits"]\nlearners = ["frz"]\nseeds = [1]\n'
        '[options.frz]\nprotocol = "smoke"\nhidden_size = 8\ntimed_forwards = 5\n'
    )
    assert command.main(["sweep", str(file), "--num-cpus", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 runs are finished" in shown
    assert "mikasa lifelong report" in shown
    assert command.main(["sweep", str(file), "--dry-run"]) == 0
    assert "skipped" in capsys.readouterr().out
