"""``mikasa train bc --dataset``."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import mikasa_robo
from mikasa_robo.baselines.arguments import ArgumentError, read_kwargs
from mikasa_robo.baselines.checkpoints import Checkpoints
from mikasa_robo.baselines.command import main
from mikasa_robo.baselines.dagger_arguments import BCArgs
from mikasa_robo.baselines.dataset import DIGEST, open_dataset, read_dataset, to_training_episode
from mikasa_robo.baselines.episodes import validation_indices
from mikasa_robo.core.phases import CUE, RESPONSE
from mikasa_robo.data.dataset import Dataset
from mikasa_robo.tools import collect

ENV_ID = "RememberColor3-v0"
PARTS = ("objects", "joints")
SMALL = [
    "--memory-size",
    "16",
    "--token-size",
    "16",
    "--head-sizes",
    "16",
    "--num-envs",
    "4",
    "--num-steps",
    "20",
    "--batch-episodes",
    "4",
]
SHORT = [
    "--updates-per-rollout",
    "20",
    "--eval-episodes",
    "2",
    "--eval-every",
    "0",
    "--no-video",
    "--checkpoint-every",
    "80",
]

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "colors"
    assert collect.main(f"--env-id {ENV_ID} --out {path} --episodes 4 --no-states".split()) == 0
    return path


@pytest.fixture(scope="module")
def task() -> Any:
    env: Any = mikasa_robo.make_env(ENV_ID, 1, obs_mode="objects+joints")
    yield env.unwrapped
    env.close()


def test_episodes_are_those_of_the_dataset(folder: Path, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.open(folder)
    found, validation = read_dataset(dataset, BCArgs(env_id=ENV_ID), PARTS, task)
    assert len(found) == 4
    assert not validation
    for episode, recorded in zip(found, dataset.episodes(), strict=True):
        length = recorded.length
        assert {len(value) for value in episode.values()} == {length}
        # not the actions that were carried out: those have noise
        assert torch.equal(episode["labels"], torch.from_numpy(recorded.step_columns["expert_action"]))
        assert torch.equal(episode["obs/joints"], torch.from_numpy(recorded.observations["joints"][:length]))
        assert episode["carried"].all()
        phase = torch.from_numpy(recorded.columns["phase"][:length])
        assert torch.equal(episode["known"], phase != CUE)
        without = dataclasses.replace(recorded, step_columns={})
        assert torch.equal(to_training_episode(without, task, ())["labels"], torch.from_numpy(recorded.actions))
        with monkeypatch.context() as patch:
            patch.setattr(task, "arm", "held")
            assert torch.equal(to_training_episode(recorded, task, ())["carried"], phase == RESPONSE)


def test_a_dataset_that_does_not_fit_is_refused(folder: Path, task: Any, tmp_path: Path) -> None:
    args = BCArgs(env_id=ENV_ID)
    held, later = ({"env_kwargs": (word,)} for word in ("arm=held", "delay_steps=9"))
    refused: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
        ({"env_id": "RememberColor5-v0"}, PARTS, "is of RememberColor3-v0; train on it"),
        (held, PARTS, "recorded with no arguments of the task; leave --env-kwargs out"),
        (later, PARTS, "recorded with no arguments of the task; leave --env-kwargs out"),
        ({}, ("rgb",), "has no rgb in its observations"),
        ({"buffer_episodes": 3}, PARTS, "has 4 episodes; use --buffer-episodes 4"),
        ({"validation_share": 0.1}, PARTS, "--validation-share 0.1 is 0 of the 4 episodes of --dataset .*colors; use"),
        ({"validation_share": 0.9}, PARTS, "--validation-share 0.9 is 4 of the 4 episodes"),
    )
    for changes, parts, message in refused:
        changed = dataclasses.replace(args, **changes)
        with pytest.raises(ArgumentError, match=message):
            read_dataset(open_dataset(folder, changed, parts), changed, parts, task)
    with pytest.raises(ArgumentError, match="holds no dataset"):
        open_dataset(tmp_path, args, PARTS)
    with pytest.raises(ArgumentError, match="is no folder"):
        BCArgs(env_id=ENV_ID, dataset=str(tmp_path / "none")).check()
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ArgumentError, match=f"--validation-share {share}"):
            BCArgs(env_id=ENV_ID, dataset=str(folder), validation_share=share).check()
    with pytest.raises(ArgumentError, match=r"--validation-share 0\.25 does nothing without --dataset"):
        BCArgs(env_id=ENV_ID, validation_share=0.25).check()


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"teacher": "posture"}, "--teacher posture"),
        ({"expert_noise": 0.3}, r"--expert-noise 0\.3"),
        ({"ignore_mistakes": True}, "--ignore-mistakes"),
        ({"train_env_kwargs": ("on_mistake=ignore",)}, "--train-env-kwargs on_mistake=ignore"),
        ({"image_pretraining_steps": 7}, "--image-pretraining-steps 7"),
    ],
)
def test_what_only_matters_in_play_is_refused(folder: Path, changes: dict[str, Any], option: str) -> None:
    with pytest.raises(ArgumentError, match=f"{option} cannot be used with --dataset: nothing is played"):
        BCArgs(env_id=ENV_ID, dataset=str(folder), **changes).check()


def test_workers_that_would_do_nothing_are_refused(folder: Path) -> None:
    for workers in (2, 10_000):
        with pytest.raises(
            ArgumentError, match=f"{workers} cannot be used: bc with --dataset simulates nothing in training;"
        ):
            BCArgs(env_id=ENV_ID, dataset=str(folder), num_workers=workers).check()
        with pytest.raises(ArgumentError, match=f"{workers} cannot be used: the expert acts where the simulation is;"):
            BCArgs(env_id=ENV_ID, num_workers=workers).check()


def test_the_advice_can_be_typed(folder: Path, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.open(folder)
    own = {"reward_scales": {"reach": 10}, "arm": "held"}
    info = dataclasses.replace(dataset.info, env_kwargs={**dataset.info.env_kwargs, **own})
    monkeypatch.setattr(Dataset, "open", lambda folder: dataclasses.replace(dataset, info=info))
    with pytest.raises(ArgumentError, match="use --env-kwargs") as refusal:
        open_dataset(folder, BCArgs(env_id=ENV_ID), PARTS)
    words = shlex.split(str(refusal.value).partition("use --env-kwargs ")[2])
    assert read_kwargs(words, "--env-kwargs") == own


def test_a_task_without_an_expert_can_be_learnt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mikasa_robo.baselines.dagger.has_skill", lambda env_id: False)
    argv = f"--env-id {ENV_ID} --total-timesteps 80 --updates-per-rollout 1 --run-dir {tmp_path / 'run'}".split()
    short = [*argv, *SMALL, "--eval-episodes", "1", "--eval-every", "0", "--no-video", "--checkpoint-every", "80"]
    assert main("bc", short) == 2
    assert "has no expert to learn from" in capfd.readouterr().err
    assert main("bc", [*short, "--dataset", str(folder)]) == 0
    saved = Checkpoints.load_newest(tmp_path / "run")["algorithm_state"]
    assert saved["buffer"] is None, "a dataset is read again"
    assert len(saved[DIGEST]) == 64
    result = json.loads((tmp_path / "run" / "final_eval.json").read_text())
    assert result[DIGEST] == saved[DIGEST], "a path alone does not tell which episodes"


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(10, 0.3, [1, 5, 8]), (4, 0.25, [2]), (3, 0.0, []), (2, 0.5, [1])]
)
def test_episodes_for_validation_are_spread_over_the_dataset(count: int, share: float, expected: list[int]) -> None:
    assert validation_indices(count, share) == expected


def test_episodes_for_validation_are_not_learnt_from(folder: Path, task: Any) -> None:
    dataset = open_dataset(folder, BCArgs(env_id=ENV_ID), PARTS)
    episodes, _ = read_dataset(dataset, BCArgs(env_id=ENV_ID), PARTS, task)
    split = read_dataset(dataset, BCArgs(env_id=ENV_ID, validation_share=0.5), PARTS, task)
    for found, indices in zip(split, ([0, 2], [1, 3]), strict=True):
        for episode, k in zip(found, indices, strict=True):
            assert torch.equal(episode["labels"], episodes[k]["labels"])


@pytest.mark.slow
def test_training_learns_and_goes_on(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = f"--env-id {ENV_ID} --dataset {folder} --total-timesteps 240 --run-dir {run} --validation-share 0.25".split()
    assert main("bc", [*argv, *SMALL, *SHORT]) == 0
    rows = (run / "progress.csv").read_text().splitlines()
    names = rows[0].split(",")
    losses = [float(row.split(",")[names.index("loss/action")]) for row in rows[1:]]
    assert len(losses) == 3
    assert losses[2] < 0.7 * losses[0]
    assert all(float(row.split(",")[names.index("validation/loss/action")]) > 0.0 for row in rows[1:])
    assert {row.split(",")[names.index("imitation/buffer_episodes")] for row in rows[1:]} == {"3.0"}
    result = json.loads((run / "final_eval.json").read_text())
    assert result["args"]["dataset"] == str(folder)
    assert result["final"]["episodes"] == 2

    # as if it had been killed after the second rollout
    (run / "final_eval.json").unlink()
    newest = max(run.glob("resume-*.pt"), key=lambda path: path.name)
    newest.unlink()
    manifest = folder / "manifest.json"
    before = manifest.read_text()
    other = json.loads(before)
    other["files"][other["episodes"][0]["file"]]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(other))
    assert main("bc", ["--resume", str(run), "--env-id", ENV_ID]) == 2, "the dataset has other episodes"
    manifest.write_text(before)
    assert main("bc", ["--resume", str(run), "--env-id", ENV_ID]) == 0
    assert json.loads((run / "final_eval.json").read_text())["final"] == result["final"]
