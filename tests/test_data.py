"""``mikasa collect`` and ``mikasa data``: the native store, the manifest, seeds, resuming, checks, replay."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from format_helpers import make_dataset, make_episode, make_info
from tool_helpers import OWN_ID, own_task, save_untrained
from train_helpers import break_off

import mikasa_robo
from mikasa_robo.baselines import loggers, ppo_lstm, registry
from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.dagger_arguments import BCArgs
from mikasa_robo.baselines.dataset import open_dataset
from mikasa_robo.baselines.networks import RecurrentActorCritic
from mikasa_robo.baselines.ppo_arguments import PPOMemoryArgs
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.data.checking import count_problems, find_problems
from mikasa_robo.data.dataset import BEGUN, MANIFEST, Dataset, checksum, export, locked
from mikasa_robo.data.episode import DatasetInfo, Episode
from mikasa_robo.data.formats import FORMATS, FormatError, find_format
from mikasa_robo.data.manifest import EPISODES
from mikasa_robo.data.recording import draw_noise, record_episodes
from mikasa_robo.data.replaying import replay
from mikasa_robo.data.seeds import SPLIT_SIZE, SPLITS, split_seeds
from mikasa_robo.data.store import DataError, read_episode, read_facts, write_episode
from mikasa_robo.partial_files import PREFIX
from mikasa_robo.tools import collect, data, evaluate, expert
from mikasa_robo.tools.collecting import Collector
from mikasa_robo.tools.data_table import describe

__all__ = ["own_task"]  # a fixture

ENV_ID = "RememberColor3-v0"
FIRST = SPLITS["train"]


def collect_into(folder: Path, *more: str, episodes: int = 5, num_envs: int = 2) -> int:
    argv = f"--env-id {ENV_ID} --out {folder} --episodes {episodes} --num-envs {num_envs}".split()
    return collect.main([*argv, *more])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "episodes").iterdir())}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes, two at a time, with a format of our own. Tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("data") / "made"
    assert collect_into(folder, "--format", "data_helpers:Lines") == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


# ---------------------------------------------------------------------- what is recorded
def test_what_is_recorded(made: Path) -> None:
    dataset = Dataset.open(made)
    assert [row["seed"] for row in dataset.rows()] == [FIRST + k for k in range(5)]
    assert [row["index"] for row in dataset.rows()] == list(range(5))
    assert dataset.info.env_kwargs["obs_mode"] == dataset.info.obs_mode == "objects+joints"
    assert dataset.info.instruction.startswith("Remember the colour")
    assert (dataset.info.control_freq, dataset.info.max_episode_steps) == (20, 60)
    joints, actions = dataset.info.names["joints"], dataset.info.names["actions"]
    assert len(joints) == 25
    assert joints[::9] == ("qpos_panda_joint1", "qvel_panda_joint1", "tcp_x")
    assert len(actions) == 8
    assert (actions[0], actions[-1]) == ("delta_panda_joint1", "gripper")
    lines = [json.loads(line) for line in (made / "Lines" / "episodes.jsonl").read_text().splitlines()]
    for episode, row, line in zip(dataset.episodes(), dataset.rows(), lines, strict=True):
        length = episode.length
        assert line == {"index": episode.index, "seed": episode.seed, "actions": episode.actions.tolist()}
        assert {name: array.shape for name, array in episode.observations.items()} == {
            "objects": (length + 1, 51),
            "joints": (length + 1, 25),
        }
        assert episode.actions.dtype == episode.rewards.dtype == np.float32
        assert episode.columns["phase"].shape == (length + 1,)
        assert episode.columns["phase"][0] == 0
        assert episode.columns["oracle_info"].shape == (length + 1, 1)
        assert episode.states["env_states/task/elapsed_steps"][:, 0].tolist() == list(range(length + 1))
        robot = episode.states["env_states/articulations/panda_wristcam"][:, 13:]  # after its pose and velocity
        assert np.array_equal(episode.observations["joints"][:, :18], robot), "positions, then velocities"
        # the expert reaches the cube: the last step and no other is the success
        assert episode.success == episode.terminated == row["success"] is True
        assert episode.step_columns["success"].tolist() == [False] * (length - 1) + [True]
        assert not episode.truncated
        std, noise = draw_noise(episode.seed, 0.1, dataset.info.max_episode_steps, 8)
        assert episode.noise == std == row["noise"]
        wanted = np.clip(episode.step_columns["expert_action"] + noise[:length], -1, 1)
        assert np.array_equal(wanted, episode.actions)
        assert not np.array_equal(episode.step_columns["expert_action"], episode.actions)


def test_episodes_depend_on_their_seed_alone(made: Path, tmp_path: Path) -> None:
    """Another batch size, another beginning, and a policy that guesses: the files are equal byte by byte."""
    assert collect_into(tmp_path / "late", "--start", "2", episodes=3, num_envs=3) == 0
    assert list(contents(tmp_path / "late").values()) == list(contents(made).values())[2:]
    for num_envs in (1, 2):
        folder = tmp_path / f"random{num_envs}"
        assert collect_into(folder, "--policy", "random", "--no-states", episodes=2, num_envs=num_envs) == 0
    assert contents(tmp_path / "random1") == contents(tmp_path / "random2")
    random = Dataset.open(tmp_path / "random1")
    assert not random.read(0).states
    assert replay(random.info, random.read(1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["ShellGamePick-v0", "InterceptGrabFast-v0"])
def test_episodes_do_not_depend_on_those_before_them(tmp_path: Path, env_id: str) -> None:
    """In the one a mug is held at the end; in the other the hand waits for the ball, as it did in the episode before."""
    found = []
    for num_envs in (1, 3):
        folder = tmp_path / str(num_envs)
        argv = f"--env-id {env_id} --out {folder} --episodes 4 --num-envs {num_envs} --format data_helpers:Lines"
        assert collect.main(argv.split()) == 0
        found.append(contents(folder))
    assert found[0] == found[1]
    dataset = Dataset.open(tmp_path / "1")
    assert replay(dataset.info, dataset.read(3)) == []


class Ends(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episode of environment i with its step i + 2, the last one by the time limit alone. Env 0 fails at its first
    step and succeeds at its end, env 1 the other way round."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, _, _, info = self.env.step(action)
        elapsed = self.get_wrapper_attr("elapsed_steps")
        env = torch.arange(len(elapsed))
        first, end = elapsed == 1, elapsed >= env + 2
        flags = {"success": (env == 0) & end | (env == 1) & first, "fail": (env == 0) & first | (env == 1) & end}
        return obs, reward, end & (env < 2), end & (env == 2), {**info, **flags}


def test_an_episode_holds_what_the_environment_said_at_each_step() -> None:
    """Played once by hand and once by `record_episodes`."""
    n, seeds, indices, obs_mode = 3, [11, 12, 13], [2, 0, 1], "objects+joints"
    steps: dict[str, Any] = {"cue_steps": 2, "delay_steps": 1, "response_steps": 30}
    env: Any = Ends(gym.make(ENV_ID, num_envs=n, obs_mode=obs_mode, sim_backend="physx_cpu_batched", **steps))
    actions = np.random.default_rng(0).uniform(-1, 1, (n + 1, n, 8)).astype(np.float32)
    before: list[Any] = [env.reset(seed=seeds)]
    after: list[Any] = []
    for action in actions:
        obs, *results, info = env.step(torch.from_numpy(action))
        before.append((obs, info))
        after.append((*results, info))
    played = iter(torch.from_numpy(actions))
    quiet = dataclasses.replace(make_info(obs_mode), noise=0.0)
    episodes = record_episodes(env, lambda: lambda obs, info: next(played), seeds, quiet, indices=indices)
    for i, episode in enumerate(episodes):
        length = i + 2
        assert (episode.index, episode.seed, episode.length) == (indices[i], seeds[i], length)
        assert np.array_equal(episode.actions, actions[:length, i])
        assert np.array_equal(episode.step_columns["expert_action"], actions[:length, i])
        for t, (obs, info) in enumerate(before[: length + 1]):
            for part in ("objects", "joints"):
                assert np.array_equal(episode.observations[part][t], obs[part][i]), (i, t, part)
            for name in ("phase", "oracle_info"):
                assert np.array_equal(episode.columns[name][t], info[name][i]), (i, t, name)
        assert episode.rewards.tolist() == [float(reward[i]) for reward, *_ in after[:length]]
        assert len(set(episode.rewards.tolist())) > 1, "or a step too early or late would not show"
        for name in ("success", "fail"):
            told = [bool(info[name][i]) for *_, info in after[:length]]
            assert episode.step_columns[name].tolist() == told
            assert getattr(episode, name) is any(told)
        assert episode.terminated is bool(after[length - 1][1][i])
        assert episode.truncated is bool(after[length - 1][2][i])
    env.close()


def test_noise_belongs_to_a_seed() -> None:
    std, noise = draw_noise(7, 0.1, 500, 8)
    again, longer = draw_noise(7, 0.1, 600, 8)
    assert std == again
    assert np.array_equal(noise, longer[:500])
    assert noise.std() == pytest.approx(std, rel=0.1)
    stds = [draw_noise(seed, 0.1, 1, 1)[0] for seed in range(300)]
    assert 0.0 < min(stds) < 0.02 < 0.18 < max(stds) < 0.2
    assert not draw_noise(7, 0.0, 5, 8)[1].any()


def test_episodes_of_a_split_have_its_seeds(tmp_path: Path) -> None:
    assert collect_into(tmp_path / "new", "--split", "test", "--start", "3", "--policy", "random", episodes=1) == 0
    dataset = Dataset.open(tmp_path / "new")
    assert dataset.info.split == "test"
    assert [row["seed"] for row in dataset.rows()] == [SPLITS["test"] + 3]


def test_seeds_of_datasets_and_evaluations_share_none() -> None:
    splits = [split_seeds(split) for split in SPLITS]
    evaluations = [
        range(first, first + 10_000_000)
        for first in (CommonArgs.eval_seed, CommonArgs.final_eval_seed, evaluate.FIRST_SEED)
    ]
    # scripted policies are evaluated on the seed of a batch, counted from 0
    evaluations.append(range(expert.Options.seed, 10_000_000))
    for k, split in enumerate(splits):
        assert len(split) == SPLIT_SIZE
        for other in [*splits[k + 1 :], *evaluations]:
            assert split.stop <= other.start or other.stop <= split.start
    table = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
    for name, first in SPLITS.items():
        assert f"| {name} | {first:,} + j |" in table


# ---------------------------------------------------------------------- going on
KILLED = """
import os, signal, sys
from mikasa_robo import partial_files
from mikasa_robo.tools import collect
replace, count = partial_files.PartialFile.replace, 0

def killed(self, *more):
    global count
    count += 1
    if count == 5:  # collect.json and three episodes are there
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, *more)

partial_files.PartialFile.replace = killed
collect.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_and_started_again(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    argv = f"--env-id {ENV_ID} --out {folder} --episodes 5 --num-envs 2 --format data_helpers:Lines".split()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *argv], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    partial = list((folder / "episodes").glob(f"{PREFIX}*"))
    assert len(partial) == 1, "killed while it wrote the fourth episode"
    assert len(list((folder / "episodes").glob("0*.npz"))) == 3
    assert not (folder / MANIFEST).exists()
    with pytest.raises(DataError, match="not complete"):
        Dataset.open(folder).rows()
    (folder / f"{PREFIX}export").mkdir()  # and as if it had been killed in an export before

    times = {path.name: path.stat().st_mtime_ns for path in (folder / "episodes").glob("0*.npz")}
    assert collect_into(folder, "--format", "data_helpers:Lines", num_envs=3) == 0
    assert contents(folder) == contents(made)
    assert {name: (folder / "episodes" / name).stat().st_mtime_ns for name in times} == times, "not recorded again"
    assert (folder / "Lines" / "episodes.jsonl").read_bytes() == (made / "Lines" / "episodes.jsonl").read_bytes()
    assert not list(folder.glob(f"{PREFIX}*"))
    assert not (folder / "collect.json").exists()
    assert Dataset.open(folder).rows() == Dataset.open(made).rows()
    assert list(find_problems(Dataset.open(folder))) == []


def test_a_complete_dataset_is_left_alone(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert collect_into(copy, num_envs=1) == 0
    assert "is complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_two_processes_cannot_write_at_once(copy: Path) -> None:
    with locked(copy), pytest.raises(DataError, match="another process is writing"), locked(copy):
        pass


def test_only_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failures are kept in the native folder and left out of the dataset, whatever the batch."""
    manifests = []
    for num_envs in (3, 5):
        folder = tmp_path / str(num_envs)
        # without memory about every third colour is right
        argv = ["--policy", "memoryless", "--only-success", "--format", "data_helpers:Lines"]
        assert collect_into(folder, *argv, episodes=2, num_envs=num_envs) == 0
        dataset = Dataset.open(folder)
        manifests.append({**dataset.manifest, "command": ""} if dataset.manifest else {})
        assert all(row["success"] for row in dataset.rows())
        assert [episode.index for episode in dataset.episodes()] == [0, 1]
        lines = [json.loads(line) for line in (folder / "Lines" / "episodes.jsonl").read_text().splitlines()]
        assert len(lines) == 2
        assert [(line["index"], line["seed"]) for line in lines] == [
            (row["index"], row["seed"]) for row in dataset.rows()
        ]
        left_out = manifests[-1]["left_out"]
        assert left_out
        assert not any(row["success"] for row in left_out)
        seeds = sorted(row["seed"] for row in [*dataset.rows(), *left_out])
        assert seeds == list(range(FIRST, dataset.rows()[-1]["seed"] + 1)), "every seed up to the last success"
        assert list(find_problems(dataset)) == []
        assert f"shares no episode with it from --start {seeds[-1] + 1 - FIRST} on\n" in capsys.readouterr().out
    assert manifests[0] == manifests[1]
    # a format that is added later holds the same episodes
    before = (folder / "Lines" / "episodes.jsonl").read_bytes()
    shutil.rmtree(folder / "Lines")
    assert collect_into(folder, *argv, episodes=2) == 0
    assert (folder / "Lines" / "episodes.jsonl").read_bytes() == before


def test_progress_promises_no_end_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mikasa_robo.tools.progress.INTERVAL", -1.0)
    argv = ["--policy", "memoryless", "--only-success", "--no-states"]
    assert collect_into(tmp_path / "a", *argv, episodes=1) == 0
    told = capsys.readouterr().err
    assert "recording 1 successes: step 1\n" in told
    assert "at most" not in told
    assert collect_into(tmp_path / "b", *argv[:2], "--no-states", episodes=1) == 0
    assert "recording 1 episodes: step 1 of at most 60\n" in capsys.readouterr().err


def test_only_success_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(collect, "MOST_TRIES", 2)
    argv = ["--policy", "random", "--only-success"]
    assert collect_into(tmp_path / "new", *argv, episodes=1) == 2
    assert "0 of 2 episodes succeeded, and 1 successes are wanted" in capsys.readouterr().err


# ---------------------------------------------------------------------- refused
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--episodes", "0"], "--episodes 0 must be from 1"),
        (["--start", "99999999"], "a split has 100000000 seeds"),
        (["--noise", "nan"], "--noise nan must be from 0 to 1"),
        (["--policy", "nobody"], "--policy nobody is not a file"),
        (["--format", "tapes"], "there is no format 'tapes'"),
        (["--format", "nowhere:Writer"], "needs the module nowhere"),
        (["--format", "data_helpers:Lines,data_helpers:Lines"], "names a format twice"),
        (["--no-keep-native"], "would keep nothing"),
        (["--obs", "pointcloud"], "is a mode of ManiSkill's"),
        (["--obs", "smell+joints"], "'smell' is not known"),
        (["--env-kwargs", "obs_mode=state"], "--env-kwargs obs_mode=state"),
        (["--env-id", "PickCube-v1"], "has no expert"),
        (["--policy", "peek"], "--policy peek with --env-id RememberColor3-v0: Peek looks under mugs"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect_into(tmp_path / "new", *argv) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_another_folder_is_refused(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["--noise", "0.2"], "begun with --noise 0.1, not 0.2"),
        (["--env-kwargs", "on_mistake=ignore"], "begun with --env-kwargs nothing, not on_mistake=ignore"),
        (["--only-success"], "begun with --only-success False, not True"),
    ):
        assert collect_into(copy, *argv) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    assert collect_into(tmp_path / "photos") == 2
    assert "has files that are no dataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--env-id RememberColor5-v0", "--env-id RememberColor3-v0, not RememberColor5-v0"),
        ("--episodes 6", "--episodes 5, not 6"),
        ("--policy random", "--policy expert, not random"),
        ("--noise 0.2", "--noise 0.1, not 0.2"),
        ("--obs joints", "--obs objects+joints, not joints"),
        ("--split test", "--split train, not test"),
        ("--start 1", "--start 0, not 1"),
        ("--only-success", "--only-success False, not True"),
        ("--no-states", "--states True, not False"),
        ("--arm held", "--arm free, not held"),
        ("--env-kwargs delay_steps=9", "--env-kwargs nothing, not delay_steps=9"),
        ("--sim-backend physx_cpu", "--sim-backend auto, not physx_cpu"),
    ],
)
def test_a_folder_of_other_episodes_is_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = collect.Options(ENV_ID, tmp_path, episodes=5)
    Dataset.begin(tmp_path, make_info(), begun.arguments())
    asked = {"--env-id": [ENV_ID], "--out": [str(tmp_path)], "--episodes": ["5"]}
    name, *values = words.split()
    argv = [word for option, given in {**asked, name: values}.items() for word in (option, *given)]
    assert collect.main(argv) == 2
    assert f"--out {tmp_path} was begun with {message}; " in capsys.readouterr().err


def test_other_versions_are_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Dataset.open(made)
    versions = {**dataset.info.versions, "torch": "1.0"}
    folder = tmp_path / "old"
    folder.mkdir()
    Dataset.begin(folder, dataclasses.replace(dataset.info, versions=versions), dataset.arguments)
    assert collect_into(folder) == 2
    assert "was begun with torch 1.0, and now it is" in capsys.readouterr().err


def test_changed_code_has_a_revision_of_its_own(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    files = [tmp_path / name for name in ("baselines/code.py", "docs/page.md")]
    for file in files:
        file.parent.mkdir()
        file.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    clean = loggers._git_revision(files[0])
    assert clean is not None
    assert clean.keys() == {"revision", "dirty"}
    found = []
    for code, page in (("1", "2"), ("1", "3"), ("2", "3"), ("3", "3"), ("2", "1")):
        files[0].write_bytes(code.encode() + b"\xff")  # not UTF-8
        files[1].write_text(page)
        state = loggers._git_revision(files[0])
        assert state is not None
        assert (state["revision"], state["dirty"]) == (clean["revision"], True)
        found.append(state["changes"])
    assert found[0] == found[1] != found[2] == found[4] != found[3]

    folder = tmp_path / "data"
    folder.mkdir()
    info = dataclasses.replace(Dataset.open(made).info, revision=f"{clean['revision']}-dirty-{found[0]}")
    Dataset.begin(folder, info, Dataset.open(made).arguments)
    monkeypatch.setattr(loggers, "_git_revision", lambda file: state)
    assert collect_into(folder) == 2
    told = f"revision of MIKASA {info.revision}, and now it is {clean['revision']}-dirty-{found[4]}"
    assert told in capsys.readouterr().err


def damage(path: Path) -> None:
    """Change a byte of the arrays. What `read_facts` reads stays as it is."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    read_facts(path)
    with pytest.raises(DataError):
        read_episode(path, 0)


def test_a_broken_episode_is_recorded_again(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a"
    break_off(lambda: collect_into(folder), Collector, "play", 2)
    damage(folder / "episodes" / "00000001.npz")
    (folder / "episodes" / "00000002.npz").write_bytes(b"")
    capsys.readouterr()
    assert collect_into(folder) == 0
    told = capsys.readouterr().err
    for number in (1, 2):
        assert re.search(rf"0000000{number}\.npz cannot be read as an episode .*; it is recorded again\n", told)
    assert contents(folder) == contents(made)
    assert list(find_problems(Dataset.open(folder))) == []


def test_a_broken_episode_is_no_problem_of_a_format(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(copy / "episodes" / "00000003.npz")
    before = (copy / MANIFEST).read_bytes()
    capsys.readouterr()
    assert collect_into(copy, "--format", "data_helpers:Lines,maniskill", "--no-keep-native") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r".*00000003\.npz cannot be read as an episode .*; restore the file, or collect", told)
    assert data.main(["export", str(copy), "--format", "maniskill"]) == 2
    assert re.match(r".*00000003\.npz cannot be read", capsys.readouterr().err.splitlines()[-1])
    assert (copy / MANIFEST).read_bytes() == before
    assert len(list((copy / "episodes").iterdir())) == 5


def test_native_episodes_are_kept_where_a_format_is_damaged(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them the format would be all that there is."""
    argv = ["--format", "data_helpers:Lines", "--no-keep-native"]
    file = copy / "Lines" / "episodes.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:10])
    assert collect_into(copy, *argv) == 2
    assert "Lines/episodes.jsonl has 10 bytes, not" in (told := capsys.readouterr().err)
    assert "the native episodes are kept" in told
    file.unlink()
    assert collect_into(copy, *argv) == 2
    assert f"{file.parent} has no files; remove it" in capsys.readouterr().err
    assert len(list(Dataset.open(copy).episodes())) == 5
    file.parent.rmdir()
    assert collect_into(copy, *argv) == 0
    assert file.read_bytes() == whole
    assert not (copy / "episodes").exists()


def test_an_empty_folder_is_no_format_of_a_begun_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, argv = tmp_path / "new", ["--format", "data_helpers:Lines", "--no-keep-native", "--no-states"]
    break_off(lambda: collect_into(folder, *argv, episodes=2, num_envs=1), Collector, "play", 1)
    (folder / "Lines").mkdir()
    capsys.readouterr()
    assert collect_into(folder, *argv, episodes=2, num_envs=1) == 2
    assert f"{folder / 'Lines'} has no files; remove it" in capsys.readouterr().err
    (folder / "Lines").rmdir()
    assert collect_into(folder, *argv, episodes=2, num_envs=1) == 0
    assert len((folder / "Lines" / "episodes.jsonl").read_text().splitlines()) == 2


def test_only_native_episodes_are_removed(copy: Path) -> None:
    for name in ("notes.txt", "00000001-mine.npz"):
        (copy / "episodes" / name).write_text("mine")
    assert collect_into(copy, "--format", "data_helpers:Lines", "--no-keep-native") == 0
    assert sorted(path.name for path in (copy / "episodes").iterdir()) == ["00000001-mine.npz", "notes.txt"]


def test_a_format_cannot_have_the_folder_of_the_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect_into(tmp_path / "new", "--format", "data_helpers:episodes") == 2
    assert "the folder 'episodes' is that of the native episodes; give the class another" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_writer_gets_an_absolute_path(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ffmpeg "a:1/video.mp4" would be a URL."""
    monkeypatch.chdir(copy.parent)
    assert data.main(["export", copy.name, "--format", "data_helpers:Absolute"]) == 0


def test_a_dataset_does_not_lie_in_another(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect_into(copy / "more") == 2
    assert f"would lie in the dataset {copy} (manifest.json)" in capsys.readouterr().err
    assert not (copy / "more").exists()


def test_a_task_that_has_changed_is_not_mixed_with_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    break_off(lambda: collect_into(folder, "--no-states", episodes=2, num_envs=1), Collector, "play", 1)
    begun = json.loads((folder / BEGUN).read_text())
    before = begun["info"]["instruction"]
    for name, value in (("instruction", "Touch it."), ("max_episode_steps", 70)):
        changed = {**begun, "info": {**begun["info"], name: value}}
        (folder / BEGUN).write_text(json.dumps(changed))
        capsys.readouterr()
        assert collect_into(folder, "--no-states", episodes=2, num_envs=1) == 2
        assert f"was begun where the {name.replace('_', ' ')} was {value!r}, and now it is" in capsys.readouterr().err
    (folder / BEGUN).write_text(json.dumps(begun))
    assert collect_into(folder, "--no-states", episodes=2, num_envs=1) == 0
    assert Dataset.open(folder).info.instruction == before


def test_a_file_that_the_system_does_not_read_is_kept(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(made / "episodes", folder / "episodes")
    dataset = Dataset.begin(folder, Dataset.open(made).info, {})

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError("not you")

    with monkeypatch.context() as patch:
        patch.setattr("mikasa_robo.data.store.np.load", fails)
        with pytest.raises(DataError, match="not you"):
            dataset.remove_broken()
    assert contents(folder) == contents(made)
    assert dataset.remove_broken() == []


# ---------------------------------------------------------------------- mikasa data
def test_check_finds_what_changed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["check", str(copy)]) == 0
    assert "5 episodes, 6 files: as its manifest says" in capsys.readouterr().out

    flipped = copy / "episodes" / "00000002.npz"
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    (copy / "episodes" / "00000003.npz").unlink()
    (copy / "episodes" / "notes.txt").touch()
    with open(copy / "Lines" / "episodes.jsonl", "a", encoding="utf-8") as file:
        file.write("{}\n")
    assert data.main(["check", str(copy)]) == 1
    told = capsys.readouterr().out
    assert "episodes/00000002.npz has changed: its SHA-256" in told
    assert "episodes/00000003.npz is missing" in told
    assert "Lines/episodes.jsonl has " in told
    assert "not in the manifest: episodes/notes.txt" in told


def test_a_manifest_says_nothing_to_the_terminal(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((copy / MANIFEST).read_text())
    files = {**content["files"], "Lines/\x1b]0;title\x07": {"bytes": 3, "sha256": "0"}}
    change_manifest(copy, files=files, info={**content["info"], "env_id": "Foo-v0\x1b[31m"})
    assert data.main(["check", str(copy)]) == 1
    assert data.main(["replay", str(copy)]) == 2
    told = "".join(capsys.readouterr())
    assert "Lines/?]0;title? is missing" in told
    assert "the task Foo-v0?[31m is not registered" in told
    assert not {"\x1b", "\x07"} & set(told)


def test_a_folder_of_another_writer_of_this_name_is_told(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other_writer.py").write_text("from data_helpers import Lines as Lines\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = contents(copy)
    capsys.readouterr()
    assert collect_into(copy, "--format", "other_writer:Lines") == 0
    assert f"{copy / 'Lines'} is there already and stays as it is; move it away" in capsys.readouterr().err
    assert contents(copy) == before


def test_check_finds_bad_numbers(copy: Path) -> None:
    """What a manifest that fits its files cannot show."""
    dataset = Dataset.open(copy)
    episode = dataset.read(1)
    rewards = episode.rewards.copy()
    rewards[3] = np.nan
    joints = episode.observations["joints"][:-1]
    bad = dataclasses.replace(episode, rewards=rewards, observations={"joints": joints}, success=False)
    write_episode(dataset.path(1), bad)
    (copy / MANIFEST).write_text(json.dumps({**json.loads((copy / MANIFEST).read_text()), "files": {}}))
    manifest = Dataset.open(copy).refresh([EPISODES])
    problems = list(find_problems(manifest))
    for part in (
        "has the success False, and the manifest says True",
        "rewards has values that are not finite",
        f"observations/joints has {episode.length} rows, not {episode.length + 1}",
        "lacks observations/objects",
    ):
        assert any(part in problem for problem in problems), part
    assert all("00000001" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("success", False),
        ("fail", True),
        ("terminated", False),
        ("truncated", True),
        ("noise", 0.3),
        ("policy", "random"),
    ],
)
def test_check_compares_what_an_episode_and_the_manifest_say(name: str, value: Any, tmp_path: Path) -> None:
    dataset, changes = make_dataset(tmp_path / "a"), {name: value}
    write_episode(dataset.path(0), dataclasses.replace(make_episode(0, 5), **changes))
    row = dataset.rows()[0]
    told = f"episodes/00000000.npz has the {name} {value!r}, and the manifest says {row[name]!r}"
    assert told in list(find_problems(dataset))


def test_check_finds_actions_out_of_range_and_arrays_of_another_kind(tmp_path: Path) -> None:
    """The actions of these episodes are not from -1 to 1."""
    dataset = make_dataset(tmp_path / "a")
    wanted = [f"episodes/{number:08d}.npz: actions are not all in [-1, 1]" for number in range(3)]
    assert list(find_problems(dataset)) == wanted
    episode = make_episode(2, 7)
    clipped = dataclasses.replace(episode, actions=np.clip(episode.actions, -1, 1), rewards=episode.rewards.astype(int))
    write_episode(dataset.path(2), clipped)
    found = list(find_problems(dataset))
    assert found[-1] == "episodes/00000002.npz: rewards is int64 (), and float32 () before"
    assert wanted[2] not in found


def test_counts_that_do_not_fit_the_list_are_found(tmp_path: Path) -> None:
    content = json.loads((make_dataset(tmp_path / "a").folder / MANIFEST).read_text())
    assert content["summary"] == {"episodes": 3, "successes": 2, "failures": 1, "steps": 13}
    for name, number in content["summary"].items():
        change_manifest(tmp_path / "a", summary={**content["summary"], name: number + 1})
        told = f"the summary says {number + 1} {name}, and the list of episodes {number}"
        assert list(count_problems(Dataset.open(tmp_path / "a"))) == [told]
    rows = [{**row, "index": 2 * row["index"]} for row in content["episodes"]]
    change_manifest(tmp_path / "a", summary=content["summary"], episodes=rows)
    assert list(count_problems(Dataset.open(tmp_path / "a"))) == [
        "the episodes are not numbered from 0 on without gaps"
    ]


def test_an_episode_is_not_taken_for_another(copy: Path) -> None:
    dataset = Dataset.open(copy)
    content = json.loads((copy / MANIFEST).read_text())
    content["episodes"][2] = {**content["episodes"][1], "index": 2}
    content["summary"]["steps"] = sum(row["length"] for row in content["episodes"])
    (copy / MANIFEST).write_text(json.dumps(content))
    assert list(find_problems(Dataset.open(copy))) == ["two episodes have the same seed"]
    dataset.path(1).rename(dataset.path(7))
    with pytest.raises(DataError, match=f"00000007.npz holds the episode with the seed {FIRST + 1}, which has another"):
        dataset.recorded()


def test_an_episode_that_was_cut_is_found(copy: Path) -> None:
    """By the length that its file tells, and by playing it again."""
    dataset = Dataset.open(copy)
    episode = dataset.read(2)
    length = episode.length - 5

    def cut(arrays: Mapping[str, Any], rows: int) -> dict[str, Any]:
        return {name: array[:rows] for name, array in arrays.items()}

    groups: dict[str, Any] = {
        name: cut(getattr(episode, name), length + 1) for name in ("observations", "columns", "states")
    }
    groups["step_columns"] = cut(episode.step_columns, length)
    short = dataclasses.replace(episode, actions=episode.actions[:length], rewards=episode.rewards[:length], **groups)
    found = {one.name: one for one in replay(dataset.info, short)}
    names = {"actions", "rewards", "observations/joints", "columns/phase", "env_states/articulations/panda_wristcam"}
    assert names <= found.keys()
    assert all(one.first_row in (length, length + 1) for one in found.values())
    path = dataset.path(2)
    write_episode(path, short)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(members["episode.json"])
    members["episode.json"] = json.dumps({**facts, "length": episode.length}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=f"holds {length} actions and says that it has {episode.length}"):
        dataset.read(2)


def test_replay(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["replay", str(copy), "--episode", "3"]) == 0
    told = capsys.readouterr().out
    assert "states, observations and rewards agree to the bit" in told
    assert "flags, actions, columns, states" in told
    assert told.endswith("(not compared: expert_action)\n")
    dataset = Dataset.open(copy)
    episode = dataset.read(3)
    actions = episode.actions.copy()
    actions[10, 0] = -actions[10, 0]
    write_episode(dataset.path(3), dataclasses.replace(episode, actions=actions))
    assert data.main(["replay", str(copy), "--episode", "3"]) == 1
    told = capsys.readouterr().out
    assert "do not all agree" in told
    assert "env_states/articulations/panda_wristcam: from step 11 on" in told
    assert data.main(["replay", str(copy), "--episode", "5"]) == 2
    assert "there is no episode 5; " in capsys.readouterr().err


def test_a_replay_compares_flags_and_what_the_file_lacks(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Dataset.open(copy)
    episode = dataset.read(0)
    flags: dict[str, Any] = {
        name: not getattr(episode, name) for name in ("success", "fail", "terminated", "truncated")
    }
    fewer: dict[str, Any] = {"columns": {"phase": episode.columns["phase"]}, "step_columns": {}, "states": {}}
    write_episode(dataset.path(0), dataclasses.replace(episode, **flags, **fewer))
    assert data.main(["replay", str(copy)]) == 1
    told = capsys.readouterr().out
    assert "flags, actions, columns, observations and rewards do not all agree" in told
    for name in flags:
        assert f"\n  {name}: from step {episode.length} on, by at most 1\n" in told
    for name in ("columns/oracle_info", "step_columns/success", "env_states/articulations/panda_wristcam"):
        assert f"\n  {name}: from step 0 on" in told
    assert "expert_action" not in told
    short = dataclasses.replace(episode, states={})
    assert replay(dataset.info, short) == [], "as with --no-states"


def test_show(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["show", str(copy)]) == 0
    told = capsys.readouterr().out
    assert "success       100.0%" in told
    assert "step_columns/expert_action" in told
    assert (copy / "show.png").read_bytes().startswith(b"\x89PNG")
    assert data.main(["show", str(copy), "--out", str(copy / "show.png")]) == 2
    assert "show.png exists" in capsys.readouterr().err


def test_show_tells_the_numbers_of_the_manifest(tmp_path: Path) -> None:
    """Of three episodes of 5, 1 and 7 steps; the second is a mistake, and the others are successes."""
    lines = dict(line.split(maxsplit=1) for line in describe(make_dataset(tmp_path / "a")) if not line.startswith(" "))
    assert lines["seeds"] == "1000 to 1002 (train)"
    assert lines["episodes"] == "3"
    assert lines["success"] == "66.7% (95 % interval 20.8% to 93.9%)"
    assert lines["mistakes"] == "in 1 of 3 episodes"
    assert lines["steps"] == "13; an episode has 1 to 7, median 5, of at most 60 at 20 Hz"
    assert lines["policy"] == "expert, noise 0.1 on average"


def test_show_without_native_episodes_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    assert collect_into(folder, "--no-keep-native", "--format", "data_helpers:Lines", episodes=1, num_envs=1) == 0
    capsys.readouterr()
    assert data.main(["show", str(folder)]) == 0
    assert "no figure: there are no native episodes" in capsys.readouterr().out
    assert data.main(["show", str(folder), "--out", str(tmp_path / "a.png")]) == 2
    told = capsys.readouterr()
    assert "has no native episodes" in told.err
    assert told.out == ""


def test_a_format_that_cannot_hold_the_data_is_named_before_anything_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect_into(tmp_path / "data", "--format", "data_helpers:Lines,data_helpers:Refuses") == 2
    assert "--format data_helpers:Refuses: it cannot hold images" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "num_envs"),
    [
        ("--episodes 2", 2),
        ("--episodes 2 --num-envs 16", 2),
        ("--episodes 2 --num-envs 16 --only-success", 16),
        ("--episodes 2 --only-success", 2),
        ("--episodes 90", 64),
        ("--episodes 90 --obs rgb+joints", 16),
    ],
)
def test_how_many_environments_play(words: str, num_envs: int, tmp_path: Path) -> None:
    options = tyro.cli(collect.Options, args=[*f"--env-id {ENV_ID} --out {tmp_path}".split(), *words.split()])
    assert collect._environments(options) == num_envs


def test_a_full_disk_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("data_helpers.Lines.add", full)
    shutil.rmtree(copy / "Lines")
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not (copy / "Lines").exists()


def test_what_others_wrote_does_not_control_the_terminal(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mikasa_robo.tools.data_table.describe", lambda dataset: ["task \x1b[2J cleared"])
    assert data.main(["show", str(copy), "--no-figure"]) == 0
    assert capsys.readouterr().out == "task ?[2J cleared\n"


def test_export(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 2
    assert "Lines exists already" in capsys.readouterr().err
    shutil.rmtree(copy / "Lines")
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 0
    assert "5 episodes" in capsys.readouterr().out
    assert list(find_problems(Dataset.open(copy))) == []
    shutil.rmtree(copy / "Lines")
    assert collect_into(copy, "--format", "data_helpers:Refuses,data_helpers:Lines") == 2
    assert "--format data_helpers:Refuses: it cannot hold images" in capsys.readouterr().err
    assert (copy / "Lines").is_dir(), "a format that refuses does not cost the others"
    assert not (copy / "Refuses").exists()


def test_an_export_does_not_hide_what_was_lost_or_added(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "Lines" / "episodes.jsonl").rename(copy / "Lines" / "mine.jsonl")
    for name in ("maniskill", "robomimic"):
        assert data.main(["export", str(copy), "--format", name]) == 0
        capsys.readouterr()
        assert data.main(["check", str(copy)]) == 1
        assert "Lines/episodes.jsonl is missing" in capsys.readouterr().out
        assert "Lines/mine.jsonl" not in json.loads((copy / MANIFEST).read_text())["files"]
    (copy / "Lines" / "mine.jsonl").rename(copy / "Lines" / "episodes.jsonl")
    assert data.main(["check", str(copy)]) == 0


def test_a_dataset_goes_on_with_one_environment(made: Path, tmp_path: Path) -> None:
    """One environment on the CPU has another simulator than several, and episodes are the same to the bit."""
    folder = tmp_path / "a"
    break_off(lambda: collect_into(folder), Collector, "play", 1)
    assert len(list((folder / "episodes").glob("0*.npz"))) == 2
    assert collect_into(folder, num_envs=1) == 0
    assert contents(folder) == contents(made)
    assert Dataset.open(folder).info.versions["simulator"] == "physx_cpu"


def test_a_policy_that_is_replaced_while_it_is_loaded_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, folder = save_untrained(tmp_path / "policy.pt", ENV_ID, 65), tmp_path / "a"
    begin = Collector.__init__

    def replaced(self: Collector, *args: Any) -> None:
        begin(self, *args)
        save_untrained(policy, ENV_ID, 65, seed=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "__init__", replaced)
        assert collect_into(folder, "--policy", str(policy)) == 2
    assert f"--policy {policy} was written anew while it was loaded" in capsys.readouterr().err
    assert not list(folder.glob("*"))


@pytest.mark.parametrize(("asked", "used"), [("auto", "physx_cuda"), ("physx_cpu_batched", "physx_cpu")])
def test_a_replay_simulates_as_the_recording_did(
    asked: str, used: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as "auto" would for the one environment of a replay."""

    class Made(Exception):
        pass

    def make_env(*args: Any, sim_backend: str, **kwargs: Any) -> Any:
        raise Made(sim_backend)

    dataset = Dataset.open(copy)
    info = dataclasses.replace(
        dataset.info,
        env_kwargs={**dataset.info.env_kwargs, "sim_backend": asked},
        versions={**dataset.info.versions, "simulator": "physx_cuda"},
    )
    monkeypatch.setattr("mikasa_robo.make_env", make_env)
    with pytest.raises(Made, match=f"^{used}$"):
        replay(info, dataset.read(0))


def test_native_episodes_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    argv = ["--format", "data_helpers:Lines", "--no-keep-native", "--no-states"]
    assert collect_into(folder, *argv, episodes=1) == 0
    assert not (folder / "episodes").exists()
    (folder / "episodes").mkdir()  # as if it had been killed before it could remove them
    assert collect_into(folder, *argv, episodes=1) == 0
    assert not (folder / "episodes").exists()
    assert data.main(["check", str(folder)]) == 0
    assert data.main(["replay", str(folder)]) == 2
    assert "has no native episodes" in capsys.readouterr().err
    assert data.main(["show", str(folder), "--no-figure"]) == 0
    assert collect_into(folder, *argv[:2], "--no-states", episodes=1) == 0
    assert "is complete, without native episodes (--no-keep-native)" in capsys.readouterr().out


def test_native_episodes_are_kept_where_a_format_could_not_be_written(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be all that there is of the episodes, whatever --no-keep-native says."""
    formats = ["--format", "data_helpers:Lines,data_helpers:RefusesLater", "--no-keep-native"]
    new, few = tmp_path / "new", ["--policy", "random", "--no-states"]
    for folder, argv, episodes in ((new, few, 1), (new, few, 1), (copy, [], 5)):
        before = contents(folder) if folder.exists() else None
        assert collect_into(folder, *formats, *argv, episodes=episodes) == 2
        assert "--format data_helpers:RefusesLater: an episode is too long for it" in capsys.readouterr().err
        assert before in (None, contents(folder))
        assert not (folder / "RefusesLater").exists()
        assert list(find_problems(Dataset.open(folder))) == []
        assert len(list(Dataset.open(folder).episodes())) == episodes


def test_native_episodes_are_removed_later(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (copy / "Lines" / "episodes.jsonl").read_bytes()
    assert collect_into(copy, "--format", "data_helpers:Lines", "--no-keep-native") == 0
    assert capsys.readouterr().out.startswith(f"{copy} is complete\n")
    assert not (copy / "episodes").exists()
    assert (copy / "Lines" / "episodes.jsonl").read_bytes() == lines
    assert data.main(["check", str(copy)]) == 0


def test_a_folder_that_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["check", str(tmp_path)]) == 2
    assert "holds no dataset" in capsys.readouterr().err
    for text in ("[]", '{"format": "mikasa/data/9"}', '{"format": "mikasa/data/1"}', "{"):
        (tmp_path / MANIFEST).write_text(text)
        assert data.main(["check", str(tmp_path)]) == 2
        assert MANIFEST in capsys.readouterr().err


# ---------------------------------------------------------------------- the file
def example(**changes: Any) -> Episode:
    ramp = np.arange(12, dtype=np.float32).reshape(3, 4)
    parts: Mapping[str, Any] = {
        "observations": {"rgb": np.arange(3 * 2 * 2 * 6, dtype=np.uint8).reshape(3, 2, 2, 6), "joints": ramp},
        "columns": {"phase": np.arange(3)},
        "step_columns": {"success": np.array([False, True])},
        "states": {"env_states/actors/cube": ramp},
    }
    facts = {"index": 4, "seed": 9, "success": True, "fail": False, "terminated": True, "truncated": False}
    words = {"policy": "expert", "noise": 0.25, "instruction": "Touch the réd cube."}
    return Episode(**{**facts, **words, "actions": ramp[:2] / 12, "rewards": ramp[:2, 0], **parts, **changes})


def test_an_episode_is_read_as_it_was_written(tmp_path: Path) -> None:
    episode = example()
    write_episode(tmp_path / "one.npz", episode)
    write_episode(tmp_path / "two.npz", episode)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    again = read_episode(tmp_path / "one.npz", 4)
    for field in dataclasses.fields(Episode):
        before, after = getattr(episode, field.name), getattr(again, field.name)
        if isinstance(before, dict):
            assert before.keys() == after.keys()
            assert all(np.array_equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
        else:
            assert np.array_equal(before, after), field.name


def test_objects_are_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        write_episode(tmp_path / "one.npz", example(rewards=np.array([{}, {}], dtype=object)))
    assert not list(tmp_path.iterdir())
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"bad\.npz cannot be read as an episode"):
        read_episode(tmp_path / "bad.npz", 0)


def test_cameras_share_an_image() -> None:
    info: Any = DatasetInfo.split_cameras
    cameras = info(dataclasses.replace(_info(), cameras=("base", "hand")), example().observations["rgb"])
    assert {name: image.shape for name, image in cameras.items()} == {"base": (3, 2, 2, 3), "hand": (3, 2, 2, 3)}
    assert _info().image_parts == ("rgb",)


def _info() -> DatasetInfo:
    values: dict[str, Any] = dict.fromkeys(("env_id", "control_mode", "robot", "instruction", "policy", "split"), "x")
    values |= dict.fromkeys(("control_freq", "max_episode_steps", "noise", "first_seed"), 1)
    values |= {"env_kwargs": {}, "cameras": (), "only_success": False, "versions": {}, "revision": None}
    return DatasetInfo(**values, obs_mode="rgb+joints")


def test_formats_name_writers() -> None:
    for name in FORMATS:
        assert find_format(name).name == name
        assert ":" not in name
    with pytest.raises(FormatError, match="has no Nothing"):
        find_format("data_helpers:Nothing").writer()


# ---------------------------------------------------------------------- other policies and tasks
def test_a_checkpoint_and_a_task_of_ones_own(own_task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = save_untrained(tmp_path / "p.pt", ENV_ID, 65, obs="state")
    argv = ["--policy", str(policy), "--obs", "joints+time", "--no-states"]
    assert collect_into(tmp_path / "trained", *argv, episodes=2) == 0
    dataset = Dataset.open(tmp_path / "trained")
    episode = dataset.read(0)
    assert set(episode.observations) == {"joints", "time"}
    assert "expert_action" not in episode.step_columns
    assert episode.success != episode.fail or episode.truncated
    assert len({row["policy"] for row in dataset.rows()}) == 1
    save_untrained(tmp_path / "p.pt", ENV_ID, 65, obs="state", seed=5)  # another checkpoint of the same name
    assert collect_into(tmp_path / "trained", *argv, episodes=2) == 2
    assert "was begun with another file at --policy" in capsys.readouterr().err

    argv = f"--env-id {own_task} --out {tmp_path / 'own'} --episodes 1 --obs state".split()
    assert collect.main(argv) == 0
    dataset = Dataset.open(tmp_path / "own")
    assert dataset.info.env_id == OWN_ID
    assert set(dataset.read(0).observations) == {"state"}
    assert data.main(["replay", str(tmp_path / "own")]) == 0
    assert "agree to the bit" in capsys.readouterr().out


def save_recurrent(path: Path) -> Path:
    """The checkpoint of an untrained policy with an LSTM."""
    env = mikasa_robo.make_env(ENV_ID, 1, obs_mode="objects+joints", sim_backend="physx_cpu", render_backend="none")
    task: Any = env.unwrapped
    layout = ObservationLayout.of(task.single_observation_space)
    action = ActionLayout.of(task.single_action_space)
    env.close()
    torch.manual_seed(0)
    args = ppo_lstm.Args(env_id=ENV_ID, obs="objects+joints")
    save_policy(path, RecurrentActorCritic(layout, action, (8,), 8, (8,)), args, step=0)
    return path


def test_a_policy_that_sees_several_parts(tmp_path: Path) -> None:
    """The parts have one order, whatever else is recorded."""
    policy = save_recurrent(tmp_path / "p.pt")
    actions = []
    for obs in ("objects+joints", "state"):
        folder = tmp_path / obs
        assert collect_into(folder, "--policy", str(policy), "--obs", obs, "--no-states", episodes=1) == 0
        actions.append(Dataset.open(folder).read(0).actions)
    assert np.array_equal(actions[0], actions[1])


def test_a_policy_with_memory_begins_every_episode_with_an_empty_one(tmp_path: Path) -> None:
    """Episode 1 is the same after episode 0 and alone."""
    argv = ["--policy", str(save_recurrent(tmp_path / "p.pt")), "--no-states", "--env-kwargs", "response_steps=9"]
    for name, start, episodes in (("both", "0", 2), ("alone", "1", 1)):
        assert collect_into(tmp_path / name, *argv, "--start", start, episodes=episodes, num_envs=1) == 0
    assert contents(tmp_path / "both")["00000001.npz"] == contents(tmp_path / "alone")["00000000.npz"]


def test_the_state_has_no_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The expert sees one in this task, and the mode `state` alone has none."""
    argv = f"--env-id RotateLenientPos-v0 --obs state --episodes 1 --out {tmp_path / 'new'}"
    assert collect.main(argv.split()) == 0
    assert {*Dataset.open(tmp_path / "new").read(0).observations} == {"state"}
    assert data.main(["replay", str(tmp_path / "new")]) == 0
    assert "agree to the bit" in capsys.readouterr().out


@pytest.mark.render
@pytest.mark.slow
def test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recorded two at a time, played again alone."""
    assert collect_into(tmp_path / "new", "--obs", "rgb+depth+joints", "--env-kwargs", "cue_steps=1", episodes=2) == 0
    dataset = Dataset.open(tmp_path / "new")
    assert dataset.info.cameras == ("base_camera", "hand_camera")
    episode = dataset.read(1)
    assert episode.observations["rgb"].shape == (episode.length + 1, 128, 128, 6)
    assert episode.observations["rgb"].dtype == np.uint8
    assert dataset.info.split_cameras(episode.observations["depth"])["hand_camera"].shape[-1] == 1
    assert data.main(["replay", str(tmp_path / "new"), "--episode", "1"]) == 0
    assert "agree to the bit" in capsys.readouterr().out
    assert data.main(["show", str(tmp_path / "new")]) == 0


def test_too_large_a_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from mikasa_robo.tools import collecting

    monkeypatch.setattr(collecting, "MOST_BYTES", 100_000)
    assert collect_into(tmp_path / "new", num_envs=4) == 2
    assert "in memory; use --num-envs 2" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_format_is_written_through_a_folder_of_its_own(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of an export that fails in the middle."""
    import data_helpers

    shutil.rmtree(copy / "Lines")
    monkeypatch.setattr(data_helpers.Lines, "finish", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError), locked(copy):
        export(Dataset.open(copy), find_format("data_helpers:Lines"), [0, 1])
    assert sorted(path.name for path in copy.iterdir()) == ["episodes", MANIFEST]


# ---------------------------------------------------------------------- datasets of somebody else's
def change_manifest(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**content, **changes}))


def test_replay_imports_no_module_that_a_manifest_names(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dataset that was downloaded may have a .py file beside it."""
    (tmp_path / "module_of_a_dataset.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    manifest = json.loads((copy / MANIFEST).read_text())
    arguments = {**manifest["arguments"], "env_id": f"module_of_a_dataset:{ENV_ID}"}
    change_manifest(copy, arguments=arguments)
    assert data.main(["replay", str(copy)]) == 0, "the task is registered without it"

    unknown = {**manifest["info"], "env_id": "OfADataset-v0"}
    change_manifest(copy, arguments={**arguments, "env_id": "module_of_a_dataset:OfADataset-v0"}, info=unknown)
    assert data.main(["replay", str(copy)]) == 2
    assert "add --env-id module_of_a_dataset:OfADataset-v0" in capsys.readouterr().err
    change_manifest(copy, arguments={**arguments, "env_id": "OfADataset-v0"})
    assert data.main(["replay", str(copy)]) == 2
    assert f"{copy}: the task OfADataset-v0" in capsys.readouterr().err
    assert data.main(["replay", str(copy), "--env-id", f"module_of_a_dataset:{ENV_ID}"]) == 2
    assert "is of OfADataset-v0; name that one" in capsys.readouterr().err

    named = f"module_of_a_dataset:{ENV_ID}"
    change_manifest(copy, info={**manifest["info"], "env_id": named})  # Gymnasium would import it, too
    assert data.main(["replay", str(copy)]) == 2
    assert f"info has the env_id '{named}'" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()

    change_manifest(copy, info=manifest["info"])
    assert data.main(["replay", str(copy), "--env-id", named]) == 0
    assert (tmp_path / "imported").exists(), "the user named it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 3}, "it has the episodes 3, which is of the wrong type"),
        ({"episodes": []}, "it lists no episodes"),
        ({"episodes": [5]}, "episodes[0] must be an object, not 5"),
        ({"episodes": [{"seed": 1}]}, "episodes[0] has no length"),
        ({"left_out": [{}]}, "left_out[0] has no seed"),
        ({"summary": {}}, "summary has no episodes"),
        ({"files": {"a": {"bytes": True}}}, "files['a'] has the bytes True, which is of the wrong type"),
        ({"formats": [1]}, "formats has 1"),
        ({"info": {}}, "info has no env_id"),
        *(
            ({name: None}, f"it has the {name} None")
            for name in ("summary", "files", "native", "command", "arguments", "left_out")
        ),
    ],
)
def test_a_malformed_manifest_is_refused(
    copy: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change_manifest(copy, **changes)
    for words in (["show"], ["check"], ["replay"], ["export", "--format", "data_helpers:Lines"]):
        assert data.main([*words, str(copy)]) == 2
        assert f"{copy / MANIFEST}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "../../away"}, "info has the env_id '../../away', which must be an ID of Gymnasium's"),
        ({"env_id": ".."}, "info has the env_id '..'"),
        ({"env_id": "/tmp/away"}, "info has the env_id '/tmp/away'"),
        ({"split": "../away"}, "info has the split '../away', which must be one of train, validation, test"),
        ({"cameras": ["x/../../away"]}, "info has the camera 'x/../../away', which must be a name without slashes"),
        ({"cameras": [7]}, "info has the camera 7"),
        (
            {"image_size": [32, True]},
            "info has the image_size [32, True], which must be a height and a width in pixels",
        ),
        ({"image_size": [[32, 32]]}, "info has the image_size [[32, 32]]"),
        ({"image_size": "32x"}, "info has the image_size '32x'"),
        ({"control_freq": 0}, "info has the control_freq 0, which must be at least 1"),
        ({"max_episode_steps": -1}, "info has the max_episode_steps -1, which must be at least 1"),
        ({"names": {"actions": [1, 2]}}, "info has the names [1, 2] of 'actions', which must be a list of text"),
    ],
)
def test_a_manifest_leads_no_export_out_of_its_folder_or_into_an_error(
    copy: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads((copy / MANIFEST).read_text())["info"]
    change_manifest(copy, info={**info, **changes})
    before = sorted(copy.parent.rglob("*"))
    for words in (["check"], ["export", "--format", "data_helpers:Lines"]):
        assert data.main([*words, str(copy)]) == 2
        assert f"{copy / MANIFEST}: {message}" in capsys.readouterr().err
    assert sorted(copy.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["../away.npz", "/tmp/away.npz", "Lines/../../away.npz", "", "a\0b"])
def test_a_manifest_names_no_file_outside_of_its_folder(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    change_manifest(copy, files={**manifest["files"], name: {"bytes": 1, "sha256": "0"}})
    assert data.main(["check", str(copy)]) == 2
    assert f"files has {name!r}, which must be a relative name without '..'" in capsys.readouterr().err
    for key in ("episodes", "left_out"):
        row = {**manifest["episodes"][0], "file": name}
        change_manifest(copy, files=manifest["files"], **{"episodes": manifest["episodes"], key: [row]})
        for words in (["check"], ["replay"]):
            assert data.main([*words, str(copy)]) == 2
            told = f"{key}[0] has the file {name!r}, which must be episodes/00000000.npz"
            assert told in capsys.readouterr().err


def test_to_read_all_episodes_takes_no_copy_of_the_list_for_each(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    rows = Dataset.rows
    monkeypatch.setattr(Dataset, "rows", lambda self: copies.append(1) or rows(self))  # type: ignore[func-returns-value]
    assert len(list(Dataset.open(copy).episodes())) == 5
    assert not copies


def test_show_refuses_a_summary_that_does_not_fit(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(copy, summary={"episodes": 5, "successes": 9, "failures": 0, "steps": 1})
    assert data.main(["show", str(copy)]) == 2
    assert "the summary says 9 successes, and the list of episodes 5" in capsys.readouterr().err
    assert data.main(["check", str(copy)]) == 1


# ---------------------------------------------------------------------- damage
def _set_in_zip(path: Path, offset: int, value: int) -> None:
    """Set two bytes of every entry of the central directory of a ZIP file."""
    content = bytearray(path.read_bytes())
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + offset : place + offset + 2] = value.to_bytes(2, "little")
        place = content.find(b"PK\x01\x02", place + 4)
    path.write_bytes(content)


def _with_header(path: Path, header: bytes) -> None:
    """Write a ZIP file like ``path`` whose arrays have a header that NumPy cannot read."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name.endswith(".npy"):
                content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr(name, content)


def _raw_deflate(path: Path) -> None:
    """Break what is compressed."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("actions.npy")
    start = member.header_offset + 30 + len("actions.npy")
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: _set_in_zip(path, 8, 1),
        lambda path: _set_in_zip(path, 10, 99),
        lambda path: _with_header(path, b"{'descr': '''"),
        lambda path: _with_header(path, b"{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}\n"),
        lambda path: _with_header(path, b"{'descr': '<f4', 'fortran_order': False, 'shape': ()}\n" + bytes(4)),
        _raw_deflate,
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(b""),
    ],
    ids=["encrypted", "compression", "tokens", "end", "number", "deflate", "cut", "empty"],
)
def test_a_damaged_episode_is_reported(
    copy: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "episodes" / "00000002.npz"
    damage(path)
    with pytest.raises(DataError, match=r"00000002\.npz cannot be read as an episode"):
        read_episode(path, 2)
    assert data.main(["check", str(copy)]) == 1
    assert f"{path} cannot be read as an episode" in capsys.readouterr().out


def test_an_unreadable_file_is_reported(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mikasa_robo.data import checking

    def refuse(path: Path) -> str:
        if path.name == "00000002.npz":
            raise PermissionError(13, "Permission denied", str(path))
        return checksum(path)

    monkeypatch.setattr(checking, "checksum", refuse)  # not chmod: a superuser may read everything
    assert data.main(["check", str(copy)]) == 1
    assert "episodes/00000002.npz cannot be read (Permission denied)" in capsys.readouterr().out


def test_select_takes_no_longer_for_many_episodes(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set for each episode would take minutes."""
    found = Dataset.open(made)
    dataset = dataclasses.replace(found, info=dataclasses.replace(found.info, only_success=True))
    many = {number: {"success": number % 2 == 0} for number in range(30_000)}
    monkeypatch.setattr(Dataset, "recorded", lambda self: many)
    begin = time.process_time()
    chosen, left_out = dataset.select(15_000)
    assert time.process_time() - begin < 2.0
    assert (len(chosen), len(left_out)) == (15_000, 15_000)


# ---------------------------------------------------------------------- exports
def test_a_format_is_on_the_disk_before_its_folder_has_its_name(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a crash of the machine could leave neither the format nor, with --no-keep-native, the episodes."""
    synced: set[int] = set()
    fsync = os.fsync

    def record(handle: int) -> None:
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    monkeypatch.setattr("os.fsync", record)
    rename, renamed = os.rename, []

    def check(source: Any, target: Any) -> None:
        renamed.append(target)
        assert {path.stat().st_ino for path in (Path(source), *Path(source).rglob("*"))} <= synced
        rename(source, target)

    monkeypatch.setattr("os.rename", check)
    dataset = Dataset.open(copy)
    export(dataset, find_format("minari"), dataset.numbers())
    assert renamed == [copy / "minari"]
    assert copy.stat().st_ino in synced


def test_a_format_that_is_written_again_gets_new_checksums(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each way to write it again, over a file that was of another content."""
    lines = copy / "Lines" / "episodes.jsonl"
    wanted = lines.read_bytes()
    for again in (
        lambda: data.main(["export", str(copy), "--format", "data_helpers:Lines"]),
        lambda: collect_into(copy, "--format", "data_helpers:Lines"),
    ):
        files = json.loads((copy / MANIFEST).read_text())["files"]
        change_manifest(copy, files={**files, "Lines/episodes.jsonl": {"bytes": 3, "sha256": "0"}})
        shutil.rmtree(copy / "Lines")
        assert again() == 0
        assert lines.read_bytes() == wanted
        assert data.main(["check", str(copy)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("listed", [False, True])
def test_an_export_that_was_killed_gets_checksums(
    copy: Path, listed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed when the folder was there, and the manifest not yet refreshed; with ``listed`` it replaced a former one."""
    shutil.rmtree(copy / "Lines")
    if not listed:
        Dataset.open(copy).refresh()
    with locked(copy):
        dataset = Dataset.open(copy)
        export(dataset, find_format("data_helpers:Lines"), dataset.numbers())
    assert Dataset.open(copy).unlisted_formats() == ["Lines"]
    assert data.main(["check", str(copy)]) == 1, "nothing that has no checksum passes"
    told = capsys.readouterr().out
    assert "not in the manifest: Lines/episodes.jsonl" in told
    assert "the same `mikasa data export` adds them" in told
    other = Path(shutil.copytree(copy, copy.parent / "other"))
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 0
    assert collect_into(other, "--format", "data_helpers:Lines") == 0
    for folder in (copy, other):
        assert Dataset.open(folder).unlisted_formats() == []
        assert "Lines/episodes.jsonl" in json.loads((folder / MANIFEST).read_text())["files"]
        assert data.main(["check", str(folder)]) == 0


def test_a_folder_of_the_users_own_is_no_format(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an export nor a collection lists it, so it can change; a check says that nobody knows its files."""
    (copy / "notes").mkdir()
    (copy / "notes" / "today.txt").write_text("mine")
    shutil.rmtree(copy / "Lines")
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 0
    assert collect_into(copy, "--format", "data_helpers:Lines") == 0
    manifest = Dataset.open(copy).manifest
    assert manifest is not None
    assert manifest["formats"] == ["Lines"]
    assert not [name for name in manifest["files"] if name.startswith("notes")]
    assert Dataset.open(copy).unlisted_formats() == ["notes"]
    capsys.readouterr()
    assert data.main(["check", str(copy)]) == 1
    assert "not in the manifest: notes/today.txt" in capsys.readouterr().out


def test_show_and_export_refuse_a_folder_that_is_read_only(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / "Lines")
    before = sorted(copy.rglob("*"))
    monkeypatch.setattr(data, "why_not_writable", lambda folder, name: f"{folder} cannot be written to: Read-only")
    assert data.main(["show", str(copy)]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "cannot be written to: Read-only; name a file elsewhere with --out, or add --no-figure" in told.err
    assert data.main(["export", str(copy), "--format", "data_helpers:Lines"]) == 2
    assert "cannot be written to: Read-only; an export goes into the dataset" in capsys.readouterr().err
    assert sorted(copy.rglob("*")) == before
    assert data.main(["show", str(copy), "--no-figure"]) == 0
    assert data.main(["show", str(copy), "--out", str(tmp_path / "figure.png")]) == 0


# ---------------------------------------------------------------------- the arm, and modules of one's own
def test_the_arm_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default as the policy was trained; --arm wins, whatever it says."""
    policy = save_untrained(tmp_path / "p.pt", ENV_ID, 65, obs="state", env_kwargs=("arm=held",))
    for name, argv, arm in (
        ("trained", [], "held"),
        ("free", ["--arm", "free"], "free"),
        ("kwargs", ["--env-kwargs", "arm=free"], "free"),
    ):
        assert collect_into(tmp_path / name, "--policy", str(policy), *argv, episodes=1) == 0
        assert Dataset.open(tmp_path / name).info.env_kwargs["arm"] == arm
    assert collect_into(tmp_path / "trained", "--policy", str(policy), "--arm", "free", episodes=1) == 2
    assert "was begun with --arm nothing, not free" in capsys.readouterr().err


def test_the_arm_of_a_scripted_policy(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Dataset.open(made).arguments["arm"] == "free"
    assert "arm" not in Dataset.open(made).info.env_kwargs
    assert collect_into(tmp_path / "held", "--env-kwargs", "arm=held", episodes=1) == 0
    held = Dataset.open(tmp_path / "held")
    assert (held.arguments["arm"], held.arguments["env_kwargs"], held.info.env_kwargs["arm"]) == ("held", [], "held")
    assert collect_into(tmp_path / "held", "--arm", "held", episodes=1) == 0, "the same dataset"
    assert collect_into(tmp_path / "new", "--env-kwargs", "arm=free", "--arm", "held") == 2
    assert "--env-kwargs arm=free with --arm held: both set the arm" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_modules_of_a_checkpoint_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, name, told in (
        ("--memory", "nowhere_at_all:Mine", "--memory: 'nowhere_at_all:Mine': there is no module"),
        ("--algorithm", "nowhere_at_all:mine", "--algorithm: 'nowhere_at_all:mine': there is no module"),
        ("--network", "nowhere_at_all:mine", "--network: 'nowhere_at_all:mine': there is no module"),
    ):
        assert collect_into(tmp_path / "new", option, name) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
    code = "from mikasa_robo.baselines.memory.gru import GRU\n\n\nclass Mine(GRU):\n    pass\n"
    (tmp_path / "memory_to_collect.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "MEMORIES", dict(registry.MEMORIES))
    mine = "memory_to_collect:Mine"
    registry.use_memory(mine)
    policy = RecurrentActorCritic(65, 8, (8,), 8, (8,), memory=mine)
    save_policy(tmp_path / "p.pt", policy, PPOMemoryArgs(env_id=ENV_ID, obs="state", memory=mine), step=0)
    registry.MEMORIES.pop(mine)
    argv = ["--policy", str(tmp_path / "p.pt"), "--no-states"]
    assert collect_into(tmp_path / "new", *argv, episodes=1) == 2
    assert f"add --memory {mine}" in capsys.readouterr().err
    assert collect_into(tmp_path / "new", *argv, "--memory", mine, episodes=1) == 0
    assert mine in registry.MEMORIES
    assert collect_into(tmp_path / "new", *argv, episodes=1) == 0, "the episodes do not depend on the option"
    without = save_untrained(tmp_path / "without.pt", ENV_ID, 65, obs="state")
    assert collect_into(tmp_path / "other", "--policy", str(without), "--memory", mine, episodes=1) == 2
    assert f"without.pt has no --memory, not '{mine}'; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "other" / MANIFEST).exists()


def test_training_names_the_dataset_whose_episode_is_damaged(copy: Path) -> None:
    (copy / "episodes" / "00000000.npz").write_bytes(b"")
    with pytest.raises(ArgumentError, match=rf"^--dataset {re.escape(str(copy))}: .*00000000\.npz cannot be read"):
        open_dataset(copy, BCArgs(env_id=ENV_ID), ["objects"])
