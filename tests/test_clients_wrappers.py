"""skrl, and the chain of wrappers of CleanRL's examples."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import vector

import mikasa_base  # noqa: F401  (registers the small environments)
import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_robo.utils.wrappers import UnbatchWrapper

SHORT: dict[str, Any] = {
    "cue_steps": 2,
    "delay_steps": 2,
    "response_steps": 4,
    "sim_backend": "physx_cpu_batched",
    "sim_threads": 1,
}
ID = "RememberColor3-v0"
T, N = 8, 4


@pytest.mark.parametrize("wrapper", ["auto", "mani-skill"])
def test_skrl_plays_the_episodes_of_the_task(wrapper: Any) -> None:
    """Through make_vec, and through gymnasium.make with its own wrapper for ManiSkill."""
    skrl = pytest.importorskip("skrl.envs.wrappers.torch")
    raw: Any = (
        gym.make_vec(ID, num_envs=N, obs_mode="objects", autoreset_mode="SameStep", **SHORT)
        if wrapper == "auto"
        else gym.make(ID, num_envs=N, obs_mode="objects", **SHORT)
    )
    env = skrl.wrap_env(raw, wrapper, verbose=False)
    env._seed = 5
    assert env.num_envs == N
    other: Any = gym.make(ID, num_envs=N, obs_mode="objects", **SHORT)
    expected, _ = other.reset(seed=5)
    obs, _ = env.reset()
    actions = torch.rand(T + 2, N, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in actions:
        # skrl flattens dicts in alphabetical order
        assert torch.equal(obs, torch.cat([expected[name] for name in sorted(env.observation_space)], dim=1))
        obs, reward, terminated, truncated, _ = env.step(action)
        expected, own, ended, cut, _ = other.step(action)
        assert reward.shape == (N, 1)
        assert torch.equal(reward[:, 0], own)
        assert torch.equal(terminated[:, 0], ended)
        assert torch.equal(truncated[:, 0], cut)
        if bool((ended | cut).any()):
            expected, _ = other.reset(options={"env_idx": (ended | cut).nonzero().flatten()})
    env.close()
    other.close()


def test_cleanrl_s_vector_wrappers_on_a_robot_task() -> None:
    envs: Any = gym.make_vec(ID, num_envs=N, obs_mode="state", **SHORT)
    envs = vector.RecordEpisodeStatistics(envs)
    envs = vector.ClipAction(envs)
    envs = vector.NormalizeObservation(envs)
    envs = vector.TransformObservation(envs, lambda obs: np.clip(obs, -3, 3))
    envs = vector.NormalizeReward(envs, gamma=0.99)
    envs = vector.TransformReward(envs, lambda reward: np.clip(reward, -10, 10))
    plain: Any = gym.make(ID, num_envs=N, obs_mode="state", **SHORT)
    plain.reset(seed=1)
    obs, _ = envs.reset(seed=1)
    actions = np.random.default_rng(0).uniform(-3, 3, (T, N, 8)).astype(np.float32)
    total: Any = 0
    for action in actions:
        obs, reward, _, truncated, infos = envs.step(action)
        assert obs.shape == (N, envs.single_observation_space.shape[0])
        assert np.abs(obs).max() <= 3
        assert np.abs(reward).max() <= 10
        total = total + plain.step(np.clip(action, -1, 1))[1].numpy()
    assert truncated.all()
    np.testing.assert_allclose(infos["episode"]["r"], total, rtol=1e-5)
    assert infos["episode"]["l"].tolist() == [T] * N
    assert infos["_episode"].all()
    envs.close()
    plain.close()


@pytest.mark.parametrize("env_id", ["NumpadContinuousEasy-v0", "AutoencodeEasy-v0"])
def test_cleanrl_s_chain_of_single_wrappers_on_small_environments(env_id: str) -> None:
    def thunk() -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = gym.wrappers.FlattenObservation(gym.make(env_id))
        env = gym.wrappers.RecordEpisodeStatistics(env)
        if isinstance(env.action_space, gym.spaces.Box):
            env = gym.wrappers.ClipAction(env)
        env = gym.wrappers.NormalizeObservation(env)
        env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
        return gym.wrappers.NormalizeReward(env, gamma=0.99)

    if env_id.startswith("Autoencode"):
        pytest.importorskip("popgym")
    envs = gym.vector.SyncVectorEnv([thunk, thunk])
    envs.action_space.seed(0)
    envs.reset(seed=0)
    ended = 0
    for _ in range(300):
        obs, _, _, _, infos = envs.step(envs.action_space.sample())
        assert np.isfinite(obs).all()
        ended += int(infos["_episode"].sum()) if "episode" in infos else 0
    assert ended >= 2
    envs.close()


def test_gymnasium_s_wrappers_for_one_environment_on_a_robot_task() -> None:
    plain: Any = gym.make(ID, obs_mode="joints+oracle", **SHORT)
    env: Any = gym.wrappers.FlattenObservation(UnbatchWrapper(gym.make(ID, obs_mode="joints+oracle", **SHORT)))
    env = gym.wrappers.NormalizeReward(gym.wrappers.ClipAction(gym.wrappers.RecordEpisodeStatistics(env)))
    expected, _ = plain.reset(seed=2)
    obs, _ = env.reset(seed=2)
    total, over = 0.0, False
    actions = iter(np.random.default_rng(0).uniform(-2, 2, (T, 8)).astype(np.float32))
    while not over:
        np.testing.assert_array_equal(obs, torch.cat([expected["joints"], expected["oracle"]], dim=1)[0].numpy())
        action = next(actions)
        obs, _, terminated, truncated, info = env.step(action)
        expected, reward, *_ = plain.step(np.clip(action, -1, 1)[None])
        total, over = total + float(reward), terminated or truncated
    assert info["episode"]["r"] == pytest.approx(total, rel=1e-5)
    assert info["episode"]["l"] == T
    env.close()
    plain.close()


def test_small_environments_need_numpy_and_gymnasium_alone() -> None:
    """What docs/other-libraries.md says of ``pip install --no-deps``."""
    code = (
        "import sys\n"
        "for name in ('torch', 'mani_skill', 'sapien', 'tyro', 'PIL'): sys.modules[name] = None\n"
        "import gymnasium as gym, mikasa_base\n"
        "env = gym.make('MemoryLength-v0'); env.reset(seed=0); env.step(env.action_space.sample())\n"
        "batch = gym.make_vec('PassiveTMazeHard-v0', num_envs=4); batch.reset(seed=0)\n"
        "batch.step(batch.action_space.sample())\n"
        "ours = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not {'mikasa_robo', 'stable_baselines3'} & ours, ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
