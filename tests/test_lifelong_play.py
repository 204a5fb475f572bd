"""`mikasa lifelong play`: saved stages play as they did in the run, and videos show them side by side."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
from lifelong_helpers import play_loop, tiny_args

from mikasa_lifelong import catalog, command
from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import STREAMS
from mikasa_lifelong.film import GAP, HOLD, side_by_side
from mikasa_lifelong.learners.sequential import Sequential
from mikasa_lifelong.loop import make_setup
from mikasa_lifelong.nav.film import episode_frames
from mikasa_lifelong.record import read_record
from mikasa_lifelong.stages import SavedStages, save_stage
from mikasa_lifelong.stream import DrawableTask, TaskStream

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("play") / "run"
    play_loop(run_dir, "sequential", steps=20)
    return run_dir


def test_every_stage_plays_as_it_did_in_the_run(folder: Path) -> None:
    R = read_record(folder).array()
    saved = SavedStages.find(folder)
    assert saved.numbers == (0, 1, 2, 3)
    for stage in saved.numbers:
        args, stream, learner = saved.load(stage)
        for k, task in enumerate(stream.tasks):
            assert task.evaluate(learner.policy(k), args.episodes).value == R[stage, -1, k], (stage, k)
    assert len(np.unique(R[:, -1])) > 3, "stages differ"


def test_a_run_knows_when_its_stream_has_other_tasks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses to go on, or to be played, where a script registers a stream of the same name with other tasks."""
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    row = STREAMS["tiny-digits"]
    monkeypatch.setitem(catalog._streams, row.name, dataclasses.replace(row, tasks=("digits-89", *row.tasks[1:])))
    before = (run / "record.json").read_bytes()
    for words, named in ((["run", "--resume", str(run)], "--resume"), (["play", "--run", str(run)], "--run")):
        assert command.main(words) == 2
        assert (
            f"{named} {run} has the tasks digits-01, digits-23, digits-45, and the stream tiny-digits has digits-89, "
            "digits-23, digits-45 now; register it as it was"
        ) in capsys.readouterr().err
    assert (run / "record.json").read_bytes() == before


def test_play_prints_the_score_after_the_own_stage_and_the_last(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    R = read_record(folder).array()
    assert command.main(["play", "--run", str(folder), "--task", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "tiny-digits, sequential, seed 1: task 1, digits-01"
    assert shown[1:] == [
        f"  after stage 1, digits-01: {R[1, -1, 0]:.1%} of 20",
        f"  after stage 3, digits-45: {R[3, -1, 0]:.1%} of 20",
    ]
    assert command.main(["play", "--run", str(folder), "--stages", "0", "--episodes", "10"]) == 0
    untrained = capsys.readouterr().out
    assert "before any training" in untrained
    assert "of 10" in untrained


def test_a_task_is_played_with_the_network_that_was_kept_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    R = play_loop(tmp_path / "run", "ftn", steps=20).record.array()
    assert R[3, -1, 0] == R[1, -1, 0] != R[3, -1, 1]
    for task in (1, 2):
        assert command.main(["play", "--run", str(tmp_path / "run"), "--task", str(task), "--stages", "3"]) == 0
        assert f"after stage 3, digits-45: {R[3, -1, task - 1]:.1%} of 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--task 4", "--task 4: tiny-digits has the tasks 1 to 3"),
        ("--task 0", "--task 0: tiny-digits has the tasks 1 to 3"),
        ("--stages 1 7", "--stages 7: "),
        ("--episodes 0", "--episodes 0 must be at least 1"),
        ("--episodes 1000", "--episodes 1000: digits-01 has "),
        ("--video {out}/a.mp4 --video-episodes 0", "--video-episodes 0 must be at least 1"),
        ("--video-episodes 2", "--video-episodes 2 needs --video, the name of the file"),
        ("--video {out}/a.gif", "a.gif is not the name of an MP4 file; let it end in .mp4"),
        ("--video {out}/nowhere/a.mp4", "there is no folder"),
        ("--video {out}/a.mp4", "digits-01 cannot be drawn, as the mazes can; leave --video out"),
    ],
)
def test_what_cannot_be_played_is_refused(
    words: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["play", "--run", str(folder), *words.format(out=tmp_path).split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_folders_without_stages_and_broken_files_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["play", "--run", str(tmp_path)]) == 2
    assert "holds no stage of a run (stage-*.pt)" in capsys.readouterr().err
    whole = (folder / "stage-1.pt").read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        (tmp_path / "stage-1.pt").write_bytes(content)
        assert command.main(["play", "--run", str(tmp_path)]) == 2
        assert "stage-1.pt is not a checkpoint" in capsys.readouterr().err


class Standing:
    """A task whose episodes are single images of one brightness; a policy is the number of frames."""

    signature: Any = None

    def dataset(self, seed: int) -> Any: ...

    def evaluate(self, policy: Any, episodes: int | None) -> Any: ...

    def frames(self, policy: Any, episode: int) -> Iterator[Any]:
        for i in range(policy):
            yield np.full((20, 30, 3), 10 * episode + i, np.uint8)


def test_episodes_of_different_length_are_shown_side_by_side() -> None:
    task = Standing()
    assert isinstance(task, DrawableTask)
    assert not isinstance(TaskStream(tiny_args("sequential").stream_row).tasks[0], DrawableTask)
    frames = list(side_by_side([task.frames(2, 0), task.frames(4, 1)], ["after stage 1: 90% ok", "B"]))
    assert len(frames) == 4 + HOLD
    strip = frames[0].shape[0] - 20
    assert frames[0].shape == (strip + 20, 30 + GAP + 30, 3)
    assert [int(frame[-1, 0, 0]) for frame in frames[:4]] == [0, 1, 1, 1], "the shorter one stops"
    assert [int(frame[-1, -1, 0]) for frame in frames[:5]] == [10, 11, 12, 13, 13]
    captions = frames[0][:strip]
    assert not (captions[:, :30] == captions[:, 30 + GAP :]).all(), "each has a caption of its own"


def test_a_maze_is_filmed_after_two_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = RunArgs(stream="ST1", steps=1, checkpoints=1, episodes=1, hidden_size=4).completed()
    stream = TaskStream(args.stream_row)
    setup = make_setup(args, stream)
    for stage in (1, 4):
        save_stage(tmp_path, stage, args, stream, Sequential(setup).state())
    video = tmp_path / "forgot.mp4"
    words = ["play", "--run", str(tmp_path), "--video", str(video), "--video-episodes", "1"]
    steps = 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mikasa_lifelong.nav.game.MAX_STEPS", steps)
        with pytest.MonkeyPatch.context() as full:
            full.setattr("mikasa_robo.video._count_frames", lambda path: 0)
            assert command.main(words) == 2
        assert "forgot.mp4 could not be written: the file holds 0 of" in capsys.readouterr().err
        assert not video.exists()
        assert command.main(words) == 0
    shown = capsys.readouterr().out
    assert "after stage 1, SimpleTownBase: 0.0% of 1" in shown
    assert f"written: {video}" in shown
    frames = imageio.mimread(video)
    assert len(frames) == 1 + steps + HOLD
    assert frames[0].shape[1] == 2 * 746 + GAP
    assert command.main(words) == 2
    assert "forgot.mp4 exists" in capsys.readouterr().err


def test_an_episode_in_a_maze_is_drawn_step_by_step() -> None:
    rng = np.random.default_rng(0)

    def act(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert obs.shape == (1, 140)
        return rng.random((1, 6))

    def first(seed: int, count: int) -> list[Any]:
        return [image for image, _ in zip(episode_frames("SimpleTownOOX", act, seed), range(count), strict=False)]

    one, again, other = first(5, 3), first(5, 1), first(6, 1)
    assert one[0].shape == (480, 746, 3)
    assert (one[0] == again[0]).all(), "the same episode"
    assert not (one[0] == other[0]).all()
    assert not (one[0] == one[2]).all()
