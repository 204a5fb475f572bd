"""ManiSkill's own wrappers on the tasks, in the chains of its PPO examples, and the layout of observations they need."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from mani_skill.utils.wrappers.flatten import FlattenObservationWrapper, FlattenRGBDObservationWrapper
from mani_skill.utils.wrappers.frame_stack import FrameStack
from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper
from mani_skill.utils.wrappers.record import RecordEpisode
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from task_helpers import base, flatten, random_actions
from torch import Tensor

from mikasa_robo.core.observations import parse_modes

ID = "RememberColor3-v0"
SHORT = {"cue_steps": 2, "delay_steps": 2, "response_steps": 4, "sim_backend": "physx_cpu_batched", "sim_threads": 1}
T = 8


def make(num_envs: int = 3, env_id: str = ID, **kwargs: Any) -> Any:
    return gym.make(env_id, num_envs=num_envs, **{**SHORT, **kwargs})


def as_flat(obs: dict[str, Any]) -> dict[str, Tensor]:
    """What the flat layout holds, from ManiSkill's; fails if that has another key."""
    obs = {**obs}
    agent, extra = {**obs.pop("agent", {})}, {**obs.pop("extra", {})}
    sensors, _ = obs.pop("sensor_data", {}), obs.pop("sensor_param", None)
    flat: dict[str, Tensor] = {}
    if agent:
        flat["joints"] = torch.cat([agent.pop("qpos"), agent.pop("qvel"), extra.pop("tcp_pose")], dim=1)
    flat |= {name: extra.pop(name) for name in ("objects", "time", "oracle", "prompt") if name in extra}
    if "state" in obs:
        flat["state"] = obs.pop("state")
    for name in ("rgb", "depth", "segmentation"):
        if any(name in textures for textures in sensors.values()):
            flat[name] = torch.cat([textures.pop(name) for textures in sensors.values()], dim=-1)
    left = [*obs, *agent, *extra, *(name for textures in sensors.values() for name in textures)]
    assert left == []
    return flat


# ---------------------------------------------------------------------- the layout
@pytest.mark.parametrize(
    ("env_id", "obs_mode"), [(ID, "objects"), ("RotateLenientPos-v0", "joints+time+oracle"), (ID, "state+joints")]
)
def test_the_layout_holds_what_the_flat_one_holds_and_nothing_else(env_id: str, obs_mode: str) -> None:
    flat_env = make(env_id=env_id, obs_mode=obs_mode)
    env = make(env_id=env_id, obs_mode=obs_mode, obs_layout="maniskill")
    obs, flat = env.reset(seed=3)[0], flat_env.reset(seed=3)[0]
    for action in random_actions(env, T + 1, seed=0):
        got = as_flat(obs)
        assert got.keys() == flat.keys()
        for name, value in flat.items():
            assert torch.equal(got[name], value), name
            assert got[name].dtype == value.dtype
        spaces = flatten({"obs": obs}).keys()
        assert {f"obs/{name}" for name in _leaves(env.observation_space)} == spaces
        assert env.observation_space.contains(_numpy(obs))
        obs, flat = env.step(action)[0], flat_env.step(action)[0]
    env.close()
    flat_env.close()


def _leaves(space: gym.Space[Any], prefix: str = "") -> list[str]:
    if not isinstance(space, gym.spaces.Dict):
        return [prefix.removesuffix("/")]
    return [leaf for name, part in space.items() for leaf in _leaves(part, f"{prefix}{name}/")]


def _numpy(obs: Any) -> Any:
    return {name: _numpy(part) for name, part in obs.items()} if isinstance(obs, dict) else obs.numpy()


def test_state_alone_stays_a_tensor_and_the_layout_stays_when_the_mode_changes() -> None:
    env = make(obs_mode="state", obs_layout="maniskill")
    assert isinstance(env.reset(seed=0)[0], Tensor)
    base(env).set_obs_mode("joints")
    assert set(env.reset(seed=0)[0]) == {"agent", "extra"}
    assert not base(env)._modes.flat_dict
    env.close()


@pytest.mark.parametrize("obs_mode", ["rgb", "time", "oracle", "prompt", "depth+segmentation"])
def test_a_layout_without_joints_is_refused(obs_mode: str) -> None:
    with pytest.raises(
        ValueError, match=rf"always has the robot's joints; use obs_mode='{obs_mode}\+joints'".replace("+s", r"\+s")
    ):
        parse_modes(obs_mode, "maniskill")


@pytest.mark.parametrize("layout", ["ManiSkill", "", None, 3])
def test_an_unknown_layout_is_refused_before_anything_is_built(layout: Any) -> None:
    with pytest.raises(ValueError, match=r"obs_layout=.* is not known: use 'flat' or 'maniskill'"):
        make(obs_layout=layout)


# ---------------------------------------------------------------------- wrappers
def test_flatten_observation_wrapper_and_frame_stack() -> None:
    """In ManiSkill 3.0.1 the first fails on every nested dict, its own too, so both take the flat layout."""
    raw = make(obs_mode="joints+oracle")
    obs, _ = raw.reset(seed=1)
    action = random_actions(raw, 1, seed=0)[0]
    stacked: Any = FrameStack(raw, 2)
    first, _ = stacked.reset(seed=1)
    now, *_ = stacked.step(action)
    assert stacked.observation_space["joints"].shape == now["joints"].shape == (3, 2, 25)
    for name in obs:
        assert torch.equal(first[name][:, 0], obs[name])
        assert torch.equal(now[name][:, 0], obs[name])
        assert torch.equal(now[name][:, 1], base(raw).get_obs()[name])
    base(raw).update_obs_space({name: part.cpu() for name, part in obs.items()})
    flat: Any = FlattenObservationWrapper(raw)
    assert torch.equal(flat.reset(seed=1)[0], torch.cat([obs["joints"], obs["oracle"]], dim=1))
    assert flat.observation_space.shape == (3, 26)
    raw.close()


def test_the_chain_of_the_state_example(tmp_path: Path) -> None:
    """Its episodes, metrics and recorded trajectories, against the task's own."""
    n, steps = 3, 2 * T
    env: Any = make(n, reconfiguration_freq=None)
    played = random_actions(env, steps, seed=2)
    rewards = []
    env.reset(seed=9)
    for action in played[:T]:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        assert not terminated.any()
    assert truncated.all()
    record = RecordEpisode(env, str(tmp_path), save_trajectory=True, trajectory_name="trajectory", save_video=False)
    vector = ManiSkillVectorEnv(record, n, ignore_terminations=False, record_metrics=True)
    assert isinstance(vector.single_action_space, gym.spaces.Box), "so the example adds no FlattenActionSpaceWrapper"
    vector.reset(seed=9)
    for t, action in enumerate(played):
        obs, _, _, truncated, info = vector.step(action)
        assert bool(truncated.all()) == (t % T == T - 1)
        if t == T - 1:
            episode = info["final_info"]["episode"]
            torch.testing.assert_close(episode["return"], torch.stack(rewards).sum(0))
            assert episode["episode_len"].tolist() == [T] * n
            assert not episode["success_once"].any()
            assert not torch.equal(info["final_observation"], obs)
    vector.close()
    episodes = json.loads((tmp_path / "trajectory.json").read_text())["episodes"]
    assert [episode["elapsed_steps"] for episode in episodes] == [T] * (2 * n)
    with h5py.File(tmp_path / "trajectory.h5") as file:
        assert len(file) == 2 * n
        recorded = [np.asarray(file[f"traj_{i}"]["actions"]) for i in range(n)]
    np.testing.assert_array_equal(np.stack(recorded, 1), played[:T].numpy())


def test_the_evaluation_environments_of_the_examples_are_built_anew_at_each_reset() -> None:
    vector = ManiSkillVectorEnv(make(2, reconfiguration_freq=1), 2, ignore_terminations=True, record_metrics=True)
    obs, _ = vector.reset(seed=0)
    other, _ = vector.reset(seed=0)
    assert torch.equal(obs, other)
    for action in random_actions(vector, T, seed=0):
        info = vector.step(action)[4]
    assert "success_at_end" in info["final_info"]["episode"]
    vector.close()


@pytest.mark.parametrize(("obs_mode", "layout"), [("state", "flat"), ("joints+oracle", "maniskill")])
def test_cpu_gym_wrapper_makes_an_ordinary_gymnasium_environment(obs_mode: str, layout: str) -> None:
    env = CPUGymWrapper(make(1, obs_mode=obs_mode, obs_layout=layout, sim_backend="physx_cpu"), record_metrics=True)
    obs, _ = env.reset(seed=0)
    over, steps = False, 0
    while not over:
        assert env.observation_space.contains(obs)
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        over, steps = bool(terminated or truncated), steps + 1
        assert np.ndim(reward) == 0
    assert steps == info["episode"]["episode_len"] == T
    env.close()


@pytest.mark.render
@pytest.mark.slow
def test_the_chain_of_the_rgb_example(tmp_path: Path) -> None:
    env: Any = make(2, obs_mode="rgb+joints", obs_layout="maniskill", render_mode="all")
    task = base(env)
    obs, _ = env.reset(seed=4)
    modes = task._modes
    task._modes = dataclasses.replace(modes, layout="flat")
    flat = task.get_obs()
    task._modes = modes
    params = obs["sensor_param"]
    assert {name: set(part) for name, part in params.items()} == {
        camera: {"extrinsic_cv", "cam2world_gl", "intrinsic_cv"} for camera in ("base_camera", "hand_camera")
    }
    carried = task.agent.robot.links_map["camera_link"].pose.p
    torch.testing.assert_close(params["hand_camera"]["cam2world_gl"][:, :3, 3], carried)
    got = as_flat(obs)
    assert got.keys() == flat.keys()
    for name, value in flat.items():
        assert torch.equal(got[name], value), name
    assert got["rgb"].any()

    env = FlattenRGBDObservationWrapper(env, rgb=True, depth=False, state=True)
    record = RecordEpisode(env, str(tmp_path), save_trajectory=False, max_steps_per_video=T, video_fps=30)
    vector = ManiSkillVectorEnv(record, 2, ignore_terminations=False, record_metrics=True)
    images, _ = vector.reset(seed=4)
    assert torch.equal(images["rgb"], flat["rgb"])
    assert torch.equal(images["state"], flat["joints"])
    for action in random_actions(env, T, seed=0):
        images, *_, info = vector.step(action)
    assert images["rgb"].shape == vector.observation_space["rgb"].shape == (2, 128, 128, 6)
    assert info["final_info"]["episode"]["episode_len"].tolist() == [T, T]
    vector.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1
