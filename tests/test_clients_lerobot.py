"""The vector environment for LeRobot, without LeRobot: what it returns and freezes; it plays again what was recorded."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded

import mikasa_robo
from mikasa_robo.clients import lerobot
from mikasa_robo.clients.lerobot import LeRobotVectorEnv, TaskDescription, describe_task, task_ids
from mikasa_robo.data.dataset import Dataset
from mikasa_robo.data.formats.lerobot_names import observation_keys
from mikasa_robo.tools import collect

ID = "RememberColor3-v0"
ROOT = Path(__file__).resolve().parent.parent


class Toy(gym.Env[Any, Any]):
    """Three environments: env i counts steps, and is over after i + 2 of them. The first and last fail at the end, the
    middle one succeeds at its first step and at its end."""

    num_envs, device, _max_episode_steps = 3, torch.device("cpu"), 4
    made = closed = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.seeds: list[Any] = []
        self.actions: list[torch.Tensor] = []

    def _obs(self) -> dict[str, torch.Tensor]:
        count = torch.full((3, 1), float(self.t))
        return {"joints": count, "objects": -count, "prompt": count + 0.5}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert options is None
        self.t = 0
        self.seeds.append(seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.actions.append(action)
        end = torch.arange(3) + 2 == self.t
        success = torch.tensor([False, True, False]) & (end | (self.t == 1))
        info = {"success": success, "fail": end & ~success}
        # after its end an environment goes on: whatever it says then must not count
        past = torch.arange(3) + 2 < self.t
        info = {name: flag | past for name, flag in info.items()}
        terminated, truncated = end & torch.tensor([True, True, False]) | past, end & ~success | past
        return self._obs(), torch.full((3,), 1.0), terminated, truncated, info

    def render(self) -> Any:
        return torch.full((3, 4, 4, 3), self.t, dtype=torch.uint8)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> LeRobotVectorEnv:
    """The vector environment around a `Toy`."""
    Toy.made = Toy.closed = 0
    vectors = {"agent_pos": (1,), "environment_state": (1,), "prompt": (1,)}
    monkeypatch.setattr(
        lerobot,
        "describe_task",
        lambda *_, **__: TaskDescription(vectors, {}, (2,), 20, 4, mikasa_robo.CATALOG[ID].instruction),
    )
    monkeypatch.setattr(lerobot, "_make", lambda *_: Toy())
    return LeRobotVectorEnv(ID, 3, obs="joints")


def counts(obs: dict[str, Any]) -> list[float]:
    """The step that each environment shows, the same in all parts."""
    assert np.array_equal(obs["agent_pos"], -obs["environment_state"])
    assert np.array_equal(obs["agent_pos"] + 0.5, obs["prompt"])
    return [float(x) for x in obs["agent_pos"][:, 0]]


# ---------------------------------------------------------------------- freezing
def test_an_environment_whose_episode_is_over_is_frozen(toy: LeRobotVectorEnv) -> None:
    obs, info = toy.reset(seed=[5, 6, 7], options={"lerobot_new_rollout": True, "unknown": 1})
    assert counts(obs) == [0, 0, 0]
    assert info == {}
    steps = [toy.step(np.full((3, 2), t + 1.0)) for t in range(6)]
    assert [counts(obs) for obs, *_ in steps] == [
        [1, 1, 1],
        [2, 2, 2],
        [2, 3, 3],
        [2, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
    ]
    assert [reward.tolist() for _, reward, *_ in steps] == [
        [1, 1, 1],
        [1, 1, 1],
        [0, 1, 1],
        [0, 0, 1],
        [0, 0, 0],
        [0, 0, 0],
    ]
    over = [[False] * 3, [True, False, False], [True, True, False], [True] * 3, [True] * 3, [True] * 3]
    assert [(terminated | truncated).tolist() for *_, terminated, truncated, _ in steps] == over
    assert steps[-1][2].tolist() == [True, True, False]
    assert steps[-1][3].tolist() == [True, False, True]
    inner = toy._env
    assert inner.seeds == [[5, 6, 7]]
    assert inner.t == 4, "once all are over nothing is simulated"
    # an environment that is over is given zeros, whatever the policy says
    assert [action[:, 0].tolist() for action in inner.actions] == [[1, 1, 1], [2, 2, 2], [0, 3, 3], [0, 0, 4]]


def test_final_info_tells_how_episodes_ended(toy: LeRobotVectorEnv) -> None:
    toy.reset(seed=0)
    infos = [toy.step(np.zeros((3, 2)))[-1] for _ in range(5)]
    assert "final_info" not in infos[0]
    assert infos[0]["success"].tolist() == [False, True, False]
    assert infos[1]["_final_info"].tolist() == [True, False, False]
    assert infos[1]["final_info"]["is_success"].tolist() == [False, False, False], "env 1 is not over"
    assert infos[2]["final_info"]["is_success"].tolist() == [False, True, False]
    assert infos[2]["success"].tolist() == [False, True, False]
    for info in infos[3:]:
        final = info["final_info"]
        assert final["is_success"].tolist() == final["success_at_end"].tolist() == [False, True, False]
        assert final["fail"].tolist() == [True, False, True]
        assert final["length"].tolist() == [2, 3, 4]
        assert final["_is_success"].tolist() == info["_final_info"].tolist() == [True] * 3
    assert infos[4]["success"].tolist() == [False] * 3


def test_a_success_that_is_lost_again_is_none_at_the_end(
    toy: LeRobotVectorEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Toy.step

    def lost(self: Toy, action: Any) -> Any:
        *others, _ = step(self, action)
        early = torch.full((3,), self.t == 1)
        return *others, {"success": early, "fail": early}

    monkeypatch.setattr(Toy, "step", lost)
    toy.reset(seed=0)
    for _ in range(4):
        *_, info = toy.step(np.zeros((3, 2)))
    final = info["final_info"]
    assert final["is_success"].tolist() == final["fail"].tolist() == [True] * 3
    assert final["success_at_end"].tolist() == [False] * 3
    monkeypatch.setattr(Toy, "step", step)
    toy.reset(seed=1)
    for _ in range(4):
        *_, info = toy.step(np.zeros((3, 2)))
    assert info["final_info"]["is_success"].tolist() == [False, True, False], "nothing is left of the episode before"


def test_what_is_returned_is_the_callers_own(toy: LeRobotVectorEnv) -> None:
    toy.reset(seed=0)
    first = toy.step(np.zeros((3, 2)))
    second = toy.step(np.zeros((3, 2)))
    for value in (first[0]["agent_pos"], second[0]["agent_pos"], second[1], second[2], second[4]["_final_info"]):
        value[:] = 1
    obs, reward, terminated, _, _ = toy.step(np.zeros((3, 2)))
    assert counts(obs) == [2, 3, 3]
    assert reward.tolist() == [0, 1, 1]
    assert terminated.tolist() == [True, True, False]


def test_frames_show_where_an_episode_ended(toy: LeRobotVectorEnv) -> None:
    toy.reset(seed=0)
    shown = []
    for _ in range(4):
        toy.step(np.zeros((3, 2)))
        frames = toy.call("render")
        assert len(frames) == 3
        shown.append([int(frame[0, 0, 0]) for frame in frames])
    assert shown == [[1, 1, 1], [2, 2, 2], [2, 3, 3], [2, 3, 4]]
    toy.reset(seed=1)
    assert [int(frame[0, 0, 0]) for frame in toy.render()] == [0, 0, 0]


def test_frames_show_where_an_episode_ended_also_if_none_was_asked_for_then(toy: LeRobotVectorEnv) -> None:
    toy.reset(seed=0)
    toy.render()
    for wanted in ([1, 1, 1], [2, 2, 2], [2, 3, 3], [2, 3, 4], [2, 3, 4]):
        toy.step(np.zeros((3, 2)))
        if wanted[2] > 2:
            assert [int(frame[0, 0, 0]) for frame in toy.render()] == wanted
    toy.reset(seed=1)
    toy.render()
    for _ in range(5):
        toy.step(np.zeros((3, 2)))
    assert [int(frame[0, 0, 0]) for frame in toy.render()] == [2, 3, 4]


def test_frames_that_nobody_asks_for_are_not_drawn(toy: LeRobotVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes long, and not every machine can."""
    toy.reset(seed=0)
    monkeypatch.delattr(Toy, "render")
    for _ in range(5):
        toy.step(np.zeros((3, 2)))


def test_it_is_made_at_the_first_reset_and_again_after_close(toy: LeRobotVectorEnv) -> None:
    assert Toy.made == 0
    with pytest.raises(ResetNeeded, match="step before reset"):
        toy.step(np.zeros((3, 2)))
    with pytest.raises(ResetNeeded, match="render before reset"):
        toy.render()
    for k in range(2):
        toy.reset(seed=[1, 2, 3])
        toy.reset()
        assert (Toy.made, Toy.closed) == (k + 1, k)
        toy.close()
        toy.close()
        assert (Toy.made, Toy.closed) == (k + 1, k + 1)
    with pytest.raises(ResetNeeded, match="also after close"):
        toy.step(np.zeros((3, 2)))


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 1), (4, 2)])
def test_actions_of_another_shape_are_refused(toy: LeRobotVectorEnv, shape: tuple[int, ...]) -> None:
    toy.reset()
    with pytest.raises(ValueError, match=re.escape(f"actions have the shape {shape}: give (3, 2)")):
        toy.step(np.zeros(shape))


@pytest.mark.parametrize("name", ["reset_mask", "env_idx"])
def test_some_environments_cannot_be_reset_alone(toy: LeRobotVectorEnv, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*all environments begin an episode together"):
        toy.reset(options={name: [0]})
    assert Toy.made == 0


def test_what_lerobot_asks_for_by_name(toy: LeRobotVectorEnv) -> None:
    assert toy.call("_max_episode_steps") == (4, 4, 4)
    assert toy.call("task") == toy.get_attr("task") == (ID,) * 3
    assert toy.call("task_description") == (mikasa_robo.CATALOG[ID].instruction,) * 3
    assert toy.unwrapped.metadata["render_fps"] == 20
    with pytest.raises(AttributeError, match="no_such_thing"):
        toy.call("no_such_thing")


# ---------------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeRobotVectorEnv("RememberColour3-v0", 2), "no task with the ID 'RememberColour3-v0'; did you mean"),
        (lambda: LeRobotVectorEnv(ID, 0), "num_envs=0 must be"),
        (lambda: LeRobotVectorEnv(ID, 2, obs="joints", frames="observation"), "obs='joints' has none: add 'rgb'"),
        (lambda: LeRobotVectorEnv(ID, 2, frames="video"), "frames='video'"),  # type: ignore[arg-type]
        (lambda: LeRobotVectorEnv(ID, 2, obs="joints+depth"), "'depth': leave it out"),
        (lambda: LeRobotVectorEnv(ID, 2, obs="pointcloud"), "'pointcloud': leave it out"),
        (lambda: LeRobotVectorEnv(ID, 2, obs="joint"), "'joint' is not known"),
        (
            lambda: LeRobotVectorEnv(ID, 2, obs="joints", control_mode="pd_joint_pos"),
            "control_mode='pd_joint_pos' takes actions outside of [-1, 1]: use a mode of deltas",
        ),
        (
            lambda: LeRobotVectorEnv(ID, 2, obs="joints", obs_mode="state"),
            "obs_mode='state' is no argument of the task",
        ),
        (lambda: LeRobotVectorEnv(ID, 2, obs="joints", obs_layout="maniskill"), "observations are flat; leave it out"),
        (lambda: LeRobotVectorEnv(ID, 2, obs="joints", render_mode="human"), "use frames"),
        (lambda: task_ids(f"{ID}, {ID}"), "names RememberColor3-v0 twice"),
        (lambda: task_ids("ShellGame-v0"), "no task with the ID 'ShellGame-v0'"),
    ],
)
def test_a_bad_argument_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_several_tasks() -> None:
    assert task_ids("RememberColor3-v0,TakeItBack-v0") == ["RememberColor3-v0", "TakeItBack-v0"]
    assert task_ids("all") == list(mikasa_robo.TASKS)


def test_names_are_those_of_policies() -> None:
    assert observation_keys(["objects", "joints", "time"]) == {
        "objects": "observation.environment_state",
        "joints": "observation.state",
        "time": "observation.time",
    }
    assert observation_keys(["state"]) == {"state": "observation.state"}
    assert observation_keys(["state", "joints"])["state"] == "observation.environment_state"
    assert observation_keys(["state", "joints", "objects"])["state"] == "observation.task_state"


# ---------------------------------------------------------------------- the real thing
def test_a_recorded_episode_is_played_again_to_the_bit(tmp_path: Path) -> None:
    """The dataset of `mikasa collect` and the environment show a policy the same, whatever the number of environments."""
    command = ("--env-id", ID, "--episodes", "3", "--num-envs", "3", "--out", str(tmp_path / "data"))
    assert collect.main((*command, "--no-states")) == 0
    episodes = list(Dataset.open(tmp_path / "data").episodes())
    assert len({episode.length for episode in episodes}) > 1, "some are frozen while others go on"
    for chosen in (episodes, episodes[:1]):
        n = len(chosen)
        env = LeRobotVectorEnv(ID, n, obs="objects+joints", frames="blank")
        obs, _ = env.reset(seed=[episode.seed for episode in chosen])
        assert obs in env.observation_space
        longest, total = max(episode.length for episode in chosen), np.zeros(n)
        for t in range(longest + 1):
            for i, episode in enumerate(chosen):
                row = min(t, episode.length)
                assert np.array_equal(obs["agent_pos"][i], episode.observations["joints"][row]), (i, t)
                assert np.array_equal(obs["environment_state"][i], episode.observations["objects"][row]), (i, t)
            if t < longest:
                action = [episode.actions[min(t, episode.length - 1)] for episode in chosen]
                obs, reward, _, _, info = env.step(np.stack(action))
                total += reward
        assert info["final_info"]["is_success"].tolist() == [episode.success for episode in chosen] == [True] * n
        assert info["final_info"]["length"].tolist() == [episode.length for episode in chosen]
        assert np.allclose(total, [episode.rewards.sum() for episode in chosen])
        assert [frame.shape for frame in env.render()] == [lerobot.BLANK] * n
        env.close()


def test_the_description_of_a_task_with_a_prompt() -> None:
    found = describe_task("RotateLenientPos-v0", "joints", sim_backend="physx_cpu_batched", max_episode_steps=7)
    assert found == TaskDescription({"agent_pos": (25,), "prompt": (1,)}, {}, (8,), 20, 7, found.instruction)
    assert found.instruction == mikasa_robo.CATALOG["RotateLenientPos-v0"].instruction
    other = describe_task("RotateLenientPos-v0", "joints", both_ways=True)
    assert other.instruction == "", "another task than that of the ID, as `mikasa collect` has it"
    with pytest.raises(TypeError, match="no_such_argument"):
        describe_task("RotateLenientPos-v0", "joints", no_such_argument=1)
    for name in ("num_envs", "num_workers"):
        with pytest.raises(ValueError, match=f"{name}=2 is no argument of the task here: .*leave it out"):
            describe_task("RotateLenientPos-v0", "joints", **{name: 2})


@pytest.mark.render
def test_images_come_by_camera() -> None:
    env = LeRobotVectorEnv(ID, 2, frames="observation")
    obs, _ = env.reset(seed=[3, 4])
    assert obs in env.observation_space
    assert {name: image.shape for name, image in obs["pixels"].items()} == {
        "base_camera": (2, 128, 128, 3),
        "hand_camera": (2, 128, 128, 3),
    }
    wanted: Any = mikasa_robo.make_env(ID, 2, obs_mode="rgb+joints", sim_backend="physx_cpu_batched")
    given, _ = wanted.reset(seed=[3, 4])
    images = torch.as_tensor(np.concatenate(list(obs["pixels"].values()), axis=-1))
    assert torch.equal(images, given["rgb"])
    frames = env.call("render")
    assert np.array_equal(np.stack(frames), obs["pixels"]["base_camera"])
    env.close()
    wanted.close()


# ---------------------------------------------------------------------- the distribution
def test_lerobot_would_find_the_plugin() -> None:
    """LeRobot imports the distributions whose names begin with lerobot_env_, by these names."""
    tomllib = pytest.importorskip("tomllib")
    folder = ROOT / "integrations" / "lerobot_env_mikasa"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    name = project["project"]["name"]
    assert name.startswith("lerobot_env_")
    assert project["tool"]["setuptools"]["packages"] == [name]
    assert (folder / name / "__init__.py").is_file()
    pins = dict(
        line.split("==") for line in (ROOT / "constraints-lerobot.txt").read_text().split("\n") if "==" in line[:40]
    )
    assert "lerobot>=0.6,<0.7" in project["project"]["dependencies"]
    assert pins["lerobot"].startswith("0.6.")


def test_the_hubs_file_makes_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy
    import types

    monkeypatch.setattr(
        lerobot, "describe_task", functools.partial(lambda *_, **__: TaskDescription({}, {}, (8,), 20, 60, ""))
    )
    module = runpy.run_path(str(ROOT / "integrations" / "lerobot_env_mikasa" / "env.py"))
    envs = module["make_env"](n_envs=2, use_async_envs=True)
    assert list(envs) == [ID]
    cfg = types.SimpleNamespace(task="TakeItBack-v0,ShellGameTouch-v0")
    envs = module["make_env"](n_envs=3, cfg=cfg)
    assert {name: [(k, env.task, env.num_envs) for k, env in group.items()] for name, group in envs.items()} == {
        "TakeItBack-v0": [(0, "TakeItBack-v0", 3)],
        "ShellGameTouch-v0": [(0, "ShellGameTouch-v0", 3)],
    }
