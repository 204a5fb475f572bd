"""Stable-Baselines3 and sb3-contrib on the tasks: their own algorithms and wrappers, on small networks."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

from mani_skill.utils.registration import TimeLimitWrapper
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from wrapper_helpers import GREY, Canvas

import mikasa_base
import mikasa_robo
from mikasa_robo.clients.sb3 import SB3VecEnv
from mikasa_robo.sim.env import make as make_maniskill_task
from mikasa_robo.utils.wrappers import BatchedTimeLimit

ID = "RememberColor3-v0"
N = 16
SHORT = {"cue_steps": 2, "delay_steps": 2, "response_steps": 4, "sim_backend": "physx_cpu_batched", "sim_threads": 1}
T = 8


def tiny(**policy: Any) -> dict[str, Any]:
    """Settings of the smallest agent. New dicts each time, as Stable-Baselines3 writes into them."""
    return {"policy_kwargs": {"net_arch": [4], **policy}, "seed": 0, "device": "cpu"}


def on_policy(n: int = N, steps: int = T, **policy: Any) -> dict[str, Any]:
    """Settings of PPO for one update of ``n * steps`` samples."""
    return {**tiny(**policy), "n_steps": steps, "n_epochs": 1, "batch_size": n * steps}


def make(num_envs: int = N, **kwargs: Any) -> Any:
    return gym.make(ID, num_envs=num_envs, **{**SHORT, **kwargs})


class Ends(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episodes of environment i at step ``first + i``: by success if that is even, else by failure."""

    def __init__(self, env: Any, first: int = 2) -> None:
        super().__init__(env)
        self.first = first

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, _, truncated, info = self.env.step(action)
        task: Any = self.unwrapped
        last = torch.arange(task.num_envs) + self.first
        over = task.elapsed_steps >= last
        return obs, reward, over, truncated, {**info, "success": over & (last % 2 == 0), "fail": over & (last % 2 == 1)}


@pytest.fixture(scope="module")
def state_env() -> Iterator[Any]:
    env = make()
    yield env
    env.close()


@pytest.fixture
def vec(state_env: Any) -> Any:
    return SB3VecEnv(state_env)


def actions(steps: int, n: int = N) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, n, 8)).astype(np.float32)


def row(obs: Any, i: int) -> dict[str, np.ndarray]:
    return {name: part[i] for name, part in obs.items()} if isinstance(obs, dict) else {"": obs[i]}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
        assert a[name].dtype == b[name].dtype


# ---------------------------------------------------------------------- the interface, against single environments
@pytest.mark.parametrize("obs_mode", ["state", "joints+oracle"])
def test_each_environment_plays_the_episodes_that_it_plays_by_itself(obs_mode: str) -> None:
    """Observations, terminal ones too, rewards, flags, infos and the episodes that follow a reset."""
    steps, n = 14, 8
    played = actions(steps, n)
    batch = SB3VecEnv(Ends(make(n, obs_mode=obs_mode)))
    assert batch.seed(7) == [7 + i for i in range(n)]
    first = batch.reset()
    results = [batch.step(action) for action in played]
    batch.close()

    single = make(1, obs_mode=obs_mode)
    ends: set[tuple[bool, bool]] = set()
    for i in (0, 1, 6, 7):
        env = Ends(single, 2 + i)
        obs, _ = env.reset(seed=7 + i)
        now = row(_numpy(obs), 0)
        same(row(first, i), now)
        total, length = 0.0, 0
        for t in range(steps):
            obs, reward, terminated, truncated, info = env.step(played[t, i : i + 1])
            total, length = total + float(reward), length + 1
            got, rewards, dones, infos = results[t]
            assert rewards[i] == float(reward)
            assert dones[i] == bool(terminated | truncated)
            assert infos[i]["TimeLimit.truncated"] is bool(truncated & ~terminated)
            assert infos[i]["phase"] == int(info["phase"])
            assert infos[i]["reward_terms"]["reach"] == float(info["reward_terms"]["reach"])
            if dones[i]:
                ends.add((bool(terminated), bool(truncated)))
                last = infos[i]["terminal_observation"]
                same(last if isinstance(last, dict) else {"": last}, row(_numpy(obs), 0))
                assert infos[i]["episode"]["r"] == pytest.approx(total, abs=1e-6)
                assert infos[i]["episode"]["l"] == length
                assert infos[i]["episode"]["t"] >= 0
                assert infos[i]["is_success"] is bool(info["success"])
                obs, _ = env.reset()
                total, length = 0.0, 0
            else:
                assert not {"terminal_observation", "episode", "is_success"} & set(infos[i])
            same(row(got, i), row(_numpy(obs), 0))
    single.close()
    assert ends == {(True, False), (False, True), (True, True)}, "every way in which an episode can end"


def _numpy(obs: Any) -> Any:
    return {name: part.numpy().copy() for name, part in obs.items()} if isinstance(obs, dict) else obs.numpy().copy()


def test_what_was_returned_does_not_change_and_may_be_changed(vec: Any) -> None:
    vec.seed(1)
    first = vec.reset()
    kept = first.copy()
    action = actions(1)[0]
    vec.step_async(action)
    action[:] = np.nan  # a buffer of the caller
    obs, *_ = vec.step_wait()
    np.testing.assert_array_equal(first, kept)
    vec.seed(1)
    vec.reset()[:] = 0
    np.testing.assert_array_equal(vec.step(actions(1)[0])[0], obs)


def test_seeds_are_used_once_and_none_is_another_episode_each_time(vec: Any) -> None:
    vec.seed(3)
    a, b = vec.reset(), vec.reset()
    vec.seed(3)
    np.testing.assert_array_equal(vec.reset(), a)
    assert not np.array_equal(a, b)
    vec.seed()
    assert not np.array_equal(vec.reset(), a)


def test_options_are_those_of_all_environments(vec: Any) -> None:
    vec.set_options([{"a": i} for i in range(N)])
    with pytest.raises(ValueError, match="different options for different environments"):
        vec.reset()
    vec.set_options({"env_idx": [0]})
    with pytest.raises(ValueError, match="'env_idx'"):
        vec.reset()
    vec.set_options()
    vec.reset()
    with pytest.raises(RuntimeError, match="step_wait without step_async"):
        vec.step_wait()


def test_attributes_and_methods(vec: Any) -> None:
    vec.reset()
    vec.step(actions(1)[0])
    steps = vec.get_attr("elapsed_steps")
    assert steps == [1] * N
    assert isinstance(steps[0], np.integer)
    assert vec.get_attr("horizon", [0, -1]) == [T, T]
    assert vec.has_attr("task_state")
    assert not vec.has_attr("no_such_thing")
    with pytest.raises(IndexError, match="there are 16 environments"):
        vec.get_attr("horizon", [16])
    infos = vec.env_method("evaluate")
    assert len(infos) == N
    np.testing.assert_array_equal([info["oracle_info"] for info in infos], vec.env.unwrapped.evaluate()["oracle_info"])
    with pytest.raises(ValueError, match=r"env_method\('evaluate'\) with indices=\[3\]: .* leave indices out"):
        vec.env_method("evaluate", indices=3)
    vec.set_attr("note", "seen")
    assert vec.get_attr("note", 0) == ["seen"]
    with pytest.raises(ValueError, match="set_attr"):
        vec.set_attr("note", "other", indices=[0])
    vec.set_attr("rows", np.zeros(N))
    vec.set_attr("rows", 5.0, indices=[1, 2])
    assert vec.get_attr("rows") == [0.0, 5.0, 5.0] + [0.0] * (N - 3)
    assert vec.env_is_wrapped(BatchedTimeLimit, [0, 1]) == [True, True]
    assert vec.env_is_wrapped(Ends, 0) == [False]
    assert vec.env_is_wrapped(Monitor) == [True] * N


def test_images(state_env: Any) -> None:
    canvas = Canvas(state_env, 6, 4)
    with pytest.warns(UserWarning, match="render_mode=None gives no images"):
        assert SB3VecEnv(canvas).get_images() == [None] * N
    canvas.unwrapped.render_mode = "rgb_array"
    try:
        vec: Any = SB3VecEnv(canvas)
        images = vec.get_images()
        assert [image.shape for image in images if image is not None] == [(6, 4, 3)] * N
        tiled = vec.render()
        assert tiled.shape == (24, 16, 3), "4 x 4 images"
        assert bool((tiled == GREY).all())
        assert vec.metadata["render_fps"] == 20
    finally:
        canvas.unwrapped.render_mode = None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: gym.make("CartPole-v1"), "no num_envs, device, single_observation_space"),
        (lambda: gym.make_vec("CartPole-v1", num_envs=2), "resets by itself, .* give gymnasium.make"),
        (lambda: ID, "'RememberColor3-v0' is not a batched environment"),
    ],
)
def test_what_is_no_batched_environment_is_refused(env: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        SB3VecEnv(env())


def test_nested_observations_are_refused() -> None:
    env = make(2, obs_mode="state_dict")
    with pytest.raises(ValueError, match=r"nested under 'agent', 'extra', .* obs_mode='rgb\+joints'"):
        SB3VecEnv(env)
    env.close()


def test_importing_mikasa_robo_imports_no_client() -> None:
    code = (
        "import sys, mikasa_robo, mikasa_base, mikasa_robo.clients;"
        "print(sorted({'stable_baselines3', 'sb3_contrib', 'torchrl', 'tensordict', 'skrl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------- algorithms
@pytest.mark.parametrize(
    "learn",
    [
        lambda env: PPO("MlpPolicy", env, **on_policy()),
        lambda env: SAC("MlpPolicy", env, learning_starts=N * T, buffer_size=1000, batch_size=8, **tiny()),
        lambda env: RecurrentPPO("MlpLstmPolicy", env, **on_policy(lstm_hidden_size=4)),
    ],
    ids=["PPO", "SAC", "RecurrentPPO"],
)
def test_algorithms_learn_on_the_batch(learn: Callable[[Any], Any], vec: Any) -> None:
    model = learn(vec)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(2 * N * T)
    assert model.num_timesteps == 2 * N * T
    assert [episode["l"] for episode in model.ep_info_buffer] == [T] * (2 * N)
    assert len(model.ep_success_buffer) == 2 * N
    after = model.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(bool(torch.isfinite(value).all()) for value in after.values())


def test_a_cut_episode_is_bootstrapped_from_its_true_last_observation(
    vec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    model = PPO("MlpPolicy", vec, **on_policy())
    inner = model.policy.predict_values

    def recorded(obs: torch.Tensor) -> torch.Tensor:
        seen.append(obs.numpy().copy())
        return inner(obs)

    monkeypatch.setattr(model.policy, "predict_values", recorded)
    model.learn(N * T)
    # N terminal observations, one at a time, then the N observations from which the next rollout goes on
    assert [len(obs) for obs in seen] == [1] * N + [N]
    t = 9 + 9 + 7 + 3  # qpos, qvel, tcp and phase come before t / T
    assert [float(obs[0, t]) for obs in seen[:N]] == [1.0] * N
    assert not seen[N][:, t].any()


def test_dict_observations(tmp_path: Path) -> None:
    vec = SB3VecEnv(make(obs_mode="objects"))
    model = PPO("MultiInputPolicy", vec, **on_policy()).learn(N * T)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=vec)
    obs = vec.reset()
    assert set(obs) == {"objects", "joints"}
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    joints = VecExtractDictObs(vec, "joints")
    assert PPO("MlpPolicy", joints, **on_policy()).learn(N * T).num_timesteps == N * T
    vec.close()


@pytest.mark.render
@pytest.mark.slow
def test_image_observations() -> None:
    n = 4
    vec = SB3VecEnv(make(n, obs_mode="rgb+joints"))
    space = vec.observation_space
    assert isinstance(space, gym.spaces.Dict)
    assert space["rgb"].shape == (128, 128, 6)
    features = {"cnn_output_dim": 4}
    model = PPO("MultiInputPolicy", vec, **on_policy(n, 2, features_extractor_kwargs=features)).learn(2 * n)
    assert isinstance(model.env, VecTransposeImage), "Stable-Baselines3 saw that these are images"
    assert model.observation_space["rgb"].shape == (6, 128, 128)  # type: ignore[index]
    images = VecTransposeImage(VecExtractDictObs(vec, "rgb"))
    PPO("CnnPolicy", images, **on_policy(n, 2, features_extractor_kwargs={"features_dim": 4})).learn(2 * n)
    stacked = VecFrameStack(vec, 2)
    obs = stacked.reset()
    assert isinstance(obs, dict)
    assert obs["rgb"].shape == (n, 128, 128, 12)
    assert obs["rgb"].dtype == np.uint8
    assert obs["rgb"].any()
    vec.close()


# ---------------------------------------------------------------------- wrappers
def test_vec_normalize_normalizes_terminal_observations_too(vec: Any) -> None:
    env: Any = VecNormalize(vec, clip_obs=5.0)
    env.seed(0)
    env.reset()
    for action in actions(T):
        obs, _, dones, infos = env.step(action)
    assert dones.all()
    assert np.abs(obs).max() <= 5
    last = np.stack([info["terminal_observation"] for info in infos])
    assert np.abs(last).max() <= 5
    assert np.isfinite(last).all()
    assert infos[0]["episode"]["r"] == pytest.approx(sum(_rewards(vec, 0)), abs=1e-5), "of the task, not normalized"


def _rewards(vec: Any, i: int) -> list[float]:
    vec.seed(0)
    vec.reset()
    return [float(vec.step(action)[1][i]) for action in actions(T)]


def test_vec_monitor_agrees_with_the_environment(vec: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        env = VecMonitor(vec, str(tmp_path / "log"), info_keywords=("is_success",))
    env.seed(2)
    env.reset()
    for action in actions(T):
        *_, infos = env.step(action)
    theirs = [info["episode"] for info in infos]
    vec.seed(2)
    vec.reset()
    for action in actions(T):
        *_, infos = vec.step(action)
    for mine, other in zip((info["episode"] for info in infos), theirs, strict=True):
        assert (mine["r"], mine["l"]) == (pytest.approx(other["r"], abs=1e-5), other["l"])
    env.results_writer.close()  # type: ignore[union-attr]
    assert len((tmp_path / "log.monitor.csv").read_text().splitlines()) == 2 + N


def test_vec_frame_stack(vec: Any) -> None:
    env = VecFrameStack(vec, 3)
    env.seed(4)
    seen = [np.asarray(env.reset())]
    for action in actions(T):
        obs, _, _, infos = env.step(action)
        seen.append(np.asarray(obs))
    size = seen[0].shape[1] // 3
    np.testing.assert_array_equal(seen[3][:, :size], seen[1][:, -size:])
    np.testing.assert_array_equal(infos[5]["terminal_observation"][:-size], seen[T - 1][5, size:])
    assert not seen[T][:, :-size].any(), "the stack of a new episode is empty"


def test_evaluate_policy_counts_true_episodes(vec: Any) -> None:
    class Noise:
        def __init__(self) -> None:
            self.steps = iter(actions(100))

        def predict(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, None]:
            return next(self.steps), None

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it knows the returns; no Monitor is missing
        vec.seed(5)
        policy: Any = Noise()
        returns, lengths = evaluate_policy(policy, vec, 20, return_episode_rewards=True)
    assert lengths == [T] * 20
    vec.seed(5)
    vec.reset()
    expected = sum(vec.step(action)[1] for action in actions(T))
    np.testing.assert_allclose(np.asarray(returns)[:N], expected, atol=1e-5)


def test_vec_video_recorder(state_env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder is Stable-Baselines3's; where moviepy is not installed, something stands for its encoder."""
    films: list[tuple[list[np.ndarray], float, str]] = []

    class Clip:
        def __init__(self, frames: list[np.ndarray], fps: float) -> None:
            self.frames, self.fps = list(frames), fps

        def write_videofile(self, path: str) -> None:
            films.append((self.frames, self.fps, path))

    names = ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[names[-1]], "ImageSequenceClip", Clip, raising=False)
    canvas = Canvas(state_env, 8, 8)
    canvas.unwrapped.render_mode = "rgb_array"
    try:
        env = VecVideoRecorder(SB3VecEnv(canvas), str(tmp_path), lambda step: step == 0, video_length=T)
        env.reset()
        for action in actions(T):
            env.step(action)
    finally:
        canvas.unwrapped.render_mode = None
    ((frames, fps, path),) = films
    assert len(frames) == T + 1
    assert frames[0].shape == (32, 32, 3)
    assert fps == 20
    assert path.startswith(str(tmp_path))


# ---------------------------------------------------------------------- other environments
def test_a_task_of_maniskill_itself() -> None:
    env = SB3VecEnv(TimeLimitWrapper(make_maniskill_task("PickCube-v1", num_envs=3, sim_threads=1), 2))
    env.seed(1)
    env.reset()
    still = np.zeros((3, 8), np.float32)
    assert not env.step(still)[2].any()
    _, _, dones, infos = env.step(still)
    assert dones.all()
    assert [info["episode"]["l"] for info in infos] == [2] * 3
    assert all(info["TimeLimit.truncated"] and not info["is_success"] for info in infos)
    assert [info["elapsed_steps"] for info in env.step(still)[3]] == [1] * 3
    env.close()


@pytest.mark.slow
def test_worker_processes() -> None:
    sizes = {name: value for name, value in SHORT.items() if name != "sim_backend"}
    env = SB3VecEnv(mikasa_robo.make_env(ID, num_envs=4, num_workers=2, **sizes))
    other = SB3VecEnv(make(4))
    for vec in (env, other):
        vec.seed(1)
    np.testing.assert_array_equal(env.reset(), other.reset())
    for action in actions(T + 1, 4):
        a, b = env.step(action), other.step(action)
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    PPO("MlpPolicy", env, **on_policy(4)).learn(4 * T)
    env.close()
    other.close()


@pytest.mark.parametrize(
    "env_id", ["MemoryLengthEasy-v0", "RepeatPreviousEasy-v0", "AutoencodeEasy-v0", "BattleshipEasy-v0"]
)
def test_small_environments_through_make_vec_env(env_id: str) -> None:
    """Tuples of observations need FlattenObservation; all other spaces work as they are."""
    if mikasa_base.VARIANTS[env_id].row.extra is not None:
        pytest.importorskip(mikasa_base.VARIANTS[env_id].row.requires[0])
    flatten = isinstance(gym.make(env_id).observation_space, gym.spaces.Tuple)
    wrapper = gym.wrappers.FlattenObservation if flatten else None
    assert flatten == env_id.startswith(("Autoencode", "Battleship"))
    env = make_vec_env(env_id, n_envs=2, wrapper_class=wrapper)
    assert PPO("MlpPolicy", env, **on_policy(2)).learn(2 * T).num_timesteps == 2 * T
    assert RecurrentPPO("MlpLstmPolicy", env, **on_policy(2, lstm_hidden_size=4)).learn(2 * T).num_timesteps == 2 * T
    env.close()
