"""Tasks of one's own in `mikasa_lifelong`: a run from a script, and what is said about one that cannot be learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mikasa_lifelong import catalog
from mikasa_lifelong.catalog import StreamRow, TaskRow, load_entry_point
from mikasa_lifelong.command import main
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.learners import registry
from mikasa_lifelong.learners.registry import LearnerRow
from mikasa_lifelong.stream import ArrayDataset, Policy, Scores, Signature

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Plane:
    """In which third of a circle is a point? What is wrong with its data or scores is up to the argument."""

    head, outputs = "categorical", 3

    def __init__(self, fault: str) -> None:
        self.fault = fault
        head = "softmax" if fault == "head" else self.head
        self.signature = Signature({"x": (2,)}, head, self.outputs)

    def columns(self) -> dict[str, Any]:
        label = np.arange(30) % 3
        x = np.stack([np.cos(2 * label), np.sin(2 * label)], axis=1).astype(np.float32)
        return {"x": x, "label": label}

    def dataset(self, seed: int) -> ArrayDataset:
        columns = self.columns()
        x, label = columns["x"], columns.get("label")
        changed: dict[str, dict[str, Any]] = {
            "float64": {"x": x.astype(np.float64)},
            "int32": {"label": None if label is None else label.astype(np.int32)},
            "range": {"label": None if label is None else label + 1},
            "shape": {"x": np.repeat(x, 2, axis=1)},
            "nan": {"x": np.where(x > 0, np.nan, x).astype(np.float32)},
        }
        return ArrayDataset({**columns, **changed.get(self.fault, {})})

    def evaluate(self, policy: Policy, episodes: int | None) -> Scores:
        columns = self.columns()
        right: Any = policy.act({"x": columns["x"]}) == columns["label"]
        trials: Any = np.int64(30)
        if self.fault == "no trials":
            return Scores(0, 0, float("nan"))
        if self.fault == "no value":
            return Scores(0, 30, float("nan"))
        if self.fault == "a return":
            return Scores(0, 30, -4.5)
        return Scores(right.sum(), trials, right.astype(np.float32).mean())  # NumPy's numbers


class Keys(Plane):
    """The same points with two keys and a turn, whose column is flat: one number where it should be an array of one."""

    head, outputs = "keys-turn", 3

    def columns(self) -> dict[str, Any]:
        columns = super().columns()
        label = columns.pop("label").astype(np.float32)
        return {**columns, "keys": np.stack([label > 0, label > 1], axis=1).astype(np.float32), "turn": label - 1}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The words of a run on a stream of one such task."""

    def make(entry_point: str, fault: str = "") -> list[str]:
        task = TaskRow(name="own", world="own", instruction="-", entry_point=entry_point, kwargs={"fault": fault})
        stream = StreamRow(
            name="own-stream",
            summary="-",
            tasks=("own",),
            network="residual-mlp",
            steps=3,
            batch_size=4,
            learning_rate=1e-3,
            hidden_size=4,
            source="-",
        )
        monkeypatch.setitem(catalog._tasks, task.name, task)
        monkeypatch.setitem(catalog._streams, stream.name, stream)
        words = ["run", "--stream", stream.name, "--checkpoints", "1", "--timed-forwards", "2"]
        return [*words, "--run-dir", str(tmp_path / "run")]

    return make


def test_a_task_may_count_with_numpy(words: Any, tmp_path: Path) -> None:
    assert main(words("test_lifelong_own:Plane")) == 0
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["complete"]
    assert {(type(m["value"]), type(m["successes"])) for m in record["measurements"]} == {(float, int)}


@pytest.mark.parametrize(
    ("entry_point", "fault", "message"),
    [
        (
            "Plane",
            "float64",
            "task own: the network cannot learn from items {'x': 'float64 (2,)', 'label': 'int64 ()'}",
        ),
        ("Plane", "int32", "'label': 'int32 ()'} (RuntimeError"),
        ("Plane", "range", "task own: the network cannot learn from items"),
        ("Plane", "shape", "has the inputs {'x': (4,)}, and its signature {'x': (2,)}; let them agree"),
        ("Plane", "nan", "task own: its data gives a loss that is not finite"),
        ("Plane", "head", "there is no head 'softmax'; use one of categorical, keys-turn"),
        (
            "Keys",
            "",
            "the loss of an item of {'x': 'float32 (2,)', 'keys': 'float32 (2,)', 'turn': 'float32 ()'} depends",
        ),
        ("Nothing", "", "the module test_lifelong_own has no 'Nothing'; correct the name"),
    ],
)
def test_what_cannot_be_learnt_is_told_before_there_is_a_folder(
    entry_point: str, fault: str, message: str, words: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(f"test_lifelong_own:{entry_point}", fault)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_learner_that_cannot_be_loaded_leaves_no_folder(
    words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = LearnerRow(name="own", summary="-", entry_point="test_lifelong_own:Nothing", source="-")
    monkeypatch.setitem(registry._LEARNERS, row.name, row)
    assert main([*words("test_lifelong_own:Plane"), "--learner", "own"]) == 2
    assert "has no 'Nothing'; correct the name" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fault", ["no trials", "no value", "a return"])
def test_impossible_scores_are_refused(fault: str, words: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("test_lifelong_own:Plane", fault)) == 2
    assert "the evaluation of own returned Scores(successes=0, trials=" in capsys.readouterr().err


def test_an_entry_point_names_what_is_wrong_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for entry_point, message in (
        ("needs_more", "should have the form 'module:name'"),
        ("no_such_module.tasks:Task", "there is no module 'no_such_module'"),
    ):
        with pytest.raises(LifelongError, match=message):
            load_entry_point(entry_point)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):  # what it imports is another matter
        load_entry_point("needs_more:Task")
