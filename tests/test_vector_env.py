"""``gymnasium.make_vec``: one native batch, held to the same environments one by one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import mikasa_robo
from mikasa_robo.vector import TaskVectorEnv

ID = "RememberColor3-v0"
N = 3
SEEDS = [3, 4, 5]
# the batched simulator in all of them, so that results are equal to the bit
SHORT: dict[str, Any] = {
    "cue_steps": 1,
    "delay_steps": 1,
    "response_steps": 2,
    "sim_backend": "physx_cpu_batched",
}


def assert_equal(a: Any, b: Any, path: str = "") -> None:
    """Nested results are the same: names, shapes and numbers."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (path, a.keys() ^ b.keys())
        for name in a:
            assert_equal(a[name], b[name], f"{path}/{name}")
    elif isinstance(a, np.ndarray) and a.dtype.kind == "O":
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None), path
            assert_equal(x, y, path)
    else:
        np.testing.assert_array_equal(a, b, path)


@pytest.fixture(scope="module")
def one_by_one() -> Any:
    """The environments that Gymnasium puts side by side; the mode is set by each test."""
    envs = gym.make_vec(ID, N, "sync", **SHORT)
    yield envs
    envs.close()


@pytest.fixture(scope="module")
def task() -> Any:
    env = gym.make(ID, num_envs=N, **SHORT)
    yield env
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_results_equal_those_of_environments_side_by_side(mode: AutoresetMode, task: Any, one_by_one: Any) -> None:
    """Observations, rewards, flags and infos of every step, through the ends of episodes, to the bit."""
    envs = TaskVectorEnv(task, autoreset_mode=mode)
    assert envs.metadata["autoreset_mode"] is mode
    one_by_one.autoreset_mode = mode
    for got, expected in zip(envs.reset(seed=SEEDS), one_by_one.reset(seed=SEEDS), strict=True):
        assert_equal(got, expected)
    rng = np.random.default_rng(0)
    ends = 0
    for t in range(12):
        actions = rng.uniform(-1, 1, envs.action_space.shape or ()).astype(np.float32)
        results = envs.step(actions)
        for got, expected in zip(results, one_by_one.step(actions), strict=True):
            assert_equal(got, expected, f"{mode} {t}")
        over = results[2] | results[3]
        ends += int(over.sum())
        if mode is AutoresetMode.DISABLED and over.any():
            # env 2 waits for the others, as a partial reset leaves it as it was
            parts = [mask for mask in (over & [True, True, False], over & [False, False, True]) if mask.any()]
            for mask in parts:
                both = [env.reset(options={"reset_mask": mask.copy()}) for env in (envs, one_by_one)]
                for got, expected in zip(*both, strict=True):
                    assert_equal(got, expected, f"{mode} {t}")
    assert ends >= 2 * N


def test_make_vec_gives_one_native_batch() -> None:
    assert mikasa_robo.TASKS
    envs = gym.make_vec(ID, num_envs=2, **SHORT)
    assert isinstance(envs, TaskVectorEnv)
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space
    envs.close()
