"""What environments promise beside the rules of their tasks: results that stay, seeds, saved states, bad actions."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_reset_seed_determinism, check_step_determinism

import mikasa_robo
from mikasa_robo.core.phases import CUE
from mikasa_robo.utils.wrappers import CameraShutdownWrapper, InitialZeroActionWrapper, UnbatchWrapper

ENV_ID = "RememberColor3-v0"

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def positions(env: Any) -> torch.Tensor:
    return env.unwrapped.agent.robot.get_qpos().clone()


@pytest.mark.parametrize("control_mode", ["pd_joint_target_delta_pos", "pd_ee_target_delta_pose"])
def test_a_saved_state_keeps_the_targets_of_its_controllers(control_mode: str) -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, 2, control_mode=control_mode)
    env.reset(seed=1)
    actions = torch.rand(8, 2, *env.unwrapped.single_action_space.shape, generator=torch.Generator().manual_seed(0))
    for action in actions[:4]:
        env.step(action)
    saved = env.unwrapped.get_state_dict()
    for action in actions[4:]:
        env.step(action)
    expected = positions(env)
    env.reset(seed=2)  # writes into the controllers' own tensors
    env.unwrapped.set_state_dict(saved)
    for action in actions[4:]:
        env.step(action)
    torch.testing.assert_close(positions(env), expected, atol=1e-3, rtol=0)
    env.close()


def test_what_was_returned_stays_as_it_was() -> None:
    env: Any = mikasa_robo.make_env("TakeItBack-v0", 1, obs_mode="state_dict")
    obs, info = env.reset(seed=0)
    start, elapsed = obs["extra"]["start"], info["elapsed_steps"]
    before = start.clone()
    env.step(torch.zeros(1, 8))
    env.reset(seed=5)
    env.step(torch.zeros(1, 8))
    assert torch.equal(start, before)
    assert elapsed.tolist() == [0]
    env.close()


def test_without_a_response_the_cue_goes_on_to_the_last_observation() -> None:
    env: Any = mikasa_robo.make_env("InterceptSlow-v0", 1, cue_steps=3)
    _, info = env.reset(seed=0)
    phases = [info["phase"].item()]
    for _ in range(3):
        *_, info = env.step(torch.zeros(1, 8))
        phases.append(info["phase"].item())
    assert phases == [CUE] * 4
    env.close()


def test_whole_numbers_are_the_actions_that_they_say() -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, 2)
    reached = []
    for dtype in (np.float32, np.uint8, np.int64, np.bool_):
        env.reset(seed=0)
        for _ in range(5):
            env.step(np.zeros((2, 8), dtype))
        reached.append(positions(env))
    assert all(torch.equal(each, reached[0]) for each in reached)
    env.reset(seed=0)
    env.step(torch.ones(2, 8, dtype=torch.uint8))
    one = positions(env)
    env.reset(seed=0)
    env.step(torch.ones(2, 8))
    assert torch.equal(positions(env), one)
    env.close()


def test_a_wrapped_task_refuses_an_action_of_another_shape() -> None:
    env = InitialZeroActionWrapper(mikasa_robo.make_env(ENV_ID, 2))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \(8, 2\)"):
        env.step(torch.zeros(8, 2))
    env.close()


def test_points_of_a_cloud_are_blanked_with_the_images() -> None:
    cloud = {
        "pointcloud": {"xyzw": torch.ones(2, 5, 4), "rgb": torch.ones(2, 5, 3)},
        "agent": {"qpos": torch.ones(2, 9)},
    }
    blanks = inspect.getmodule(CameraShutdownWrapper)
    assert blanks is not None
    blank = blanks._blank(cloud, torch.tensor([True, False]))
    assert not blank["pointcloud"]["xyzw"][0].any()
    assert blank["pointcloud"]["xyzw"][1].all()
    assert blank["agent"]["qpos"].all()


def test_other_arguments_than_those_of_the_id_have_no_instruction() -> None:
    cases: tuple[tuple[dict[str, Any], bool], ...] = (({}, True), ({"delay_steps": 9}, True), ({"n": 7}, False))
    for kwargs, found in cases:
        env: Any = gym.make(ENV_ID, **kwargs)
        assert bool(env.unwrapped.instruction) is found, kwargs
        env.close()


def test_copies_that_nobody_seeds_play_different_episodes() -> None:
    envs: Any = gym.make_vec("RememberColor9-v0", num_envs=3, vectorization_mode="sync")
    obs, _ = envs.reset()
    assert not np.array_equal(obs[0], obs[1])
    assert not np.array_equal(obs[1], obs[2])
    first, _ = envs.reset(seed=[4, 4, 5])
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])
    envs.close()


def test_gymnasiums_check_of_seeds() -> None:
    env = UnbatchWrapper(gym.make(ENV_ID))
    check_reset_seed_determinism(env)
    check_step_determinism(env)
    env.close()
