"""Runs of every learner are killed at any moment, and go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lifelong_helpers import TINY, Played, play_loop, same, tiny_args

from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.command import _resumed, main
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.learners.registry import LEARNERS
from mikasa_lifelong.loop import Loop
from mikasa_lifelong.record import read_record
from mikasa_robo.baselines.checkpoints import Checkpoints
from mikasa_robo.baselines.loggers import sole_writer

pytestmark = pytest.mark.usefixtures("one_torch_thread", "no_sync")


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy disk `os.fsync` takes longer than all else here, and only a crash of the machine shows the difference."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


SEVERAL_NETWORKS = ("pnn", "hispo")
"""These are also killed in the first step of the second stage, so that they go on from the end of the first."""
DIFFERENT = tuple(name for name in LEARNERS if name != "ft1")
"""ft1 is another name of sequential."""
# 70 examples, 32 a piece, or eight batches, four a piece. HiSPO's second stage has 71 mixtures, 64 at a time.
PIECES = {"ewc": 3, "ewc-online": 2, "hispo": 2}
"""Pieces of the consolidation of the second stage, where there are several."""
MEASUREMENTS = (2, 5, 9, 11)
"""In the middle of the first stage's measurements, in training of the next, and in the measurements after it."""


def words_of(learner: str, run_dir: Path, **changes: Any) -> list[str]:
    """The options of a tiny run."""
    words = ["--learner", learner, "--run-dir", str(run_dir)]
    args = tiny_args(learner, **changes)
    for name in {**TINY, **args.learner_options(), **changes}:
        words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return words


def test_a_result_names_the_revision_that_the_run_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"

    def provenance(command: Any) -> dict[str, Any]:
        return {"git": {"revision": "a later one" if run_dir.exists() else "that of the code"}}

    monkeypatch.setattr("mikasa_lifelong.run.provenance", provenance)
    assert main(["run", *words_of("sequential", run_dir)]) == 0
    assert json.loads((run_dir / "final_eval.json").read_text())["git"]["revision"] == "that of the code"


def play(words: list[str], what: str, count: int) -> None:
    """`mikasa lifelong run` that ends by SIGKILL in call number ``count`` of the learner's ``step`` or ``end``, or of an
    evaluation (``evaluate``), before anything comes of it."""
    init = Loop.__init__

    def kills(method: Callable[..., Any]) -> Callable[..., Any]:
        calls = itertools.count(1)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if next(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        target, name = (self, "_evaluate") if what == "evaluate" else (self.learner, what)
        setattr(target, name, kills(getattr(target, name)))

    Loop.__init__ = patched  # type: ignore[method-assign]
    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    os.fsync = lambda fd: None  # as in `no_sync`: what is written survives the process either way
    main(["run", *words])


def kill(jobs: list[tuple[list[str], str, int]]) -> None:
    """Plays runs that die at their calls, each in a fork of this process, which has imported everything."""
    Played("sequential", stages=1)  # what torch and scikit-learn import late is imported before the forks
    for job in jobs:
        process = multiprocessing.get_context("fork").Process(target=play, args=job)
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL, job


def course(run_dir: Path) -> tuple[Any, ...]:
    """What must be the same: all measurements, the learning curve, and the last state of the learner."""
    record = read_record(run_dir)
    newest = Checkpoints.load_newest(run_dir)
    sizes = record.one_network, record.inference_numbers, record.training_numbers, record.steps
    return record.measurements, (run_dir / "progress.csv").read_text(), sizes, newest["learner"], newest["step"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of runs, one for each learner, that were killed in training in the second stage, resumed, and killed again
    in its consolidation."""
    folder = tmp_path_factory.mktemp("killed")
    jobs = []
    for learner in DIFFERENT:
        again = ["--resume", str(folder / learner)]
        jobs.append((words_of(learner, folder / learner), "step", 4 if learner in SEVERAL_NETWORKS else 6))
        if learner in SEVERAL_NETWORKS:
            jobs.append((again, "step", 3))
        jobs.append((again, "end", PIECES.get(learner, 1)))
    best = {count: words_of("sequential", folder / f"best-{count}", select="best") for count in MEASUREMENTS}
    jobs += [(words, "evaluate", count) for count, words in best.items()]
    kill(jobs)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("learner", DIFFERENT)
def test_killed_and_resumed_is_as_if_it_had_not_been(learner: str, killed: Path, tmp_path: Path) -> None:
    play_loop(tmp_path / "whole", learner)
    folder = killed / learner
    assert not (folder / "final_eval.json").exists()
    record = read_record(folder)
    assert not record.complete
    assert {m.stage for m in record.measurements} == ({0, 3} if learner == "joint" else {0, 1, 2}), "killed in stage 2"
    assert main(["run", "--resume", str(folder)]) == 0
    assert same(course(folder), course(tmp_path / "whole"))
    assert read_record(folder).complete
    assert json.loads((folder / "final_eval.json").read_text())["algorithm"] == learner


@pytest.mark.slow
def test_killed_between_measurements_and_with_the_best_checkpoint(killed: Path, tmp_path: Path) -> None:
    play_loop(tmp_path / "whole", "sequential", select="best")
    for count in MEASUREMENTS:
        folder = killed / f"best-{count}"
        assert main(["run", "--resume", str(folder)]) == 0
        assert same(course(folder), course(tmp_path / "whole")), count
    R = read_record(tmp_path / "whole").array()
    for k in range(3):
        assert R[k + 1, -1, k] == R[k + 1, :-1, k].max(), "the best checkpoint is what is kept"


def test_what_cannot_go_on_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert main(["run", *words]) == 2
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return capsys.readouterr().err

    folder = tmp_path / "run"
    assert main(["run", *words_of("sequential", folder)]) == 0
    assert "PER" in capsys.readouterr().out
    assert "is complete" in refused("--resume", str(folder))
    assert "exists and is not empty" in refused("--run-dir", str(folder), "--stream", "tiny-digits")
    (folder / "final_eval.json").unlink()
    assert "--steps 5 differs from 3" in refused("--resume", str(folder), "--steps", "5")
    assert "--learner er differs from sequential" in refused("--resume", str(folder), "--learner", "er")
    with sole_writer(folder):
        assert "another process" in refused("--resume", str(folder))
    assert main(["run", "--resume", str(folder)]) == 0, "only the result was missing"

    other = tmp_path / "other"
    other.mkdir()
    payload = {"algorithm": "ppo-mlp", "world_size": 1, "args": {}, "weights": torch.zeros(1)}
    Checkpoints(other, 2).save(1, payload)
    assert "is a run of `mikasa train ppo-mlp`" in refused("--resume", str(other))


def test_the_folder_of_the_data_may_be_named_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = RunArgs(stream="split-digits", data=Path("mnist")).completed()
    assert _resumed(saved, ["--resume", "run", "--data", "mnist"], "mikasa lifelong run").data == saved.data
    with pytest.raises(LifelongError, match=r"--data .*/other differs from .*/mnist"):
        _resumed(saved, ["--resume", "run", "--data", "other"], "mikasa lifelong run")


def test_a_run_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = dataclasses.replace(tiny_args("sequential"), run_dir=tmp_path / "run")
    words = words_of("sequential", tmp_path / "run", learning_rate=1e30)
    assert args.run_dir is not None
    assert main(["run", *words]) == 1
    assert "the loss of step 2 of task 1 is" in capsys.readouterr().err
