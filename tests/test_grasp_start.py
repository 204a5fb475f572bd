"""Episodes that begin with the object in the hand: where the hand is, that it holds, and what else stays as it is."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import base, make

from mikasa_robo.core.grasp_start import grasp_posture
from mikasa_robo.core.sampling import ROBOT_BASE_X
from mikasa_robo.tasks.rotate import heading, long_axis, wrapped

N = 8
LAST_JOINT_LIMIT = 2.8973  # rad


def closing(env: Any, last_joint: float = 0.0) -> torch.Tensor:
    """An action that turns the last joint alone, with a gripper that closes halfway."""
    action = torch.zeros(base(env).num_envs, 8)
    action[:, 6] = last_joint
    return action


@pytest.mark.parametrize("env_id", ["RotateLenientPos-v0", "RotateStrictPosNeg-v0", "TakeItBack-v0"])
def test_the_fingers_are_closed_on_the_object(env_id: str) -> None:
    env, plain = (make(env_id, N, start_grasped=grasped) for grasped in (True, False))
    obs, info = env.reset(seed=3)
    other, expected = plain.reset(seed=3)
    task, s = base(env), base(env).task_state
    assert obs.shape == other.shape
    assert torch.equal(info["oracle_info"], expected["oracle_info"]), "all that is drawn is as ever"
    assert torch.equal(s.start, base(plain).task_state.start)

    tcp = task.agent.tcp.pose.raw_pose
    assert torch.allclose(tcp[:, :3], s.start[:, :3], atol=1e-5)
    if "Rotate" in env_id:
        axis = heading(s.start[:, 3:])
        last = task.agent.robot.get_qpos()[:, 6]
        way = math.pi / 4 if "Neg" in env_id else math.pi / 2
        assert bool((last - way > -LAST_JOINT_LIMIT).all()), "the last joint can turn as far as is asked for"
    else:
        axis = torch.zeros(N)
    turn = 2 * wrapped(heading(tcp[:, 3:]) - axis)  # either end will do
    assert float(wrapped(turn).abs().max()) < 1e-4
    assert float(long_axis(tcp[:, 3:])[:, 2].abs().max()) < 1e-5, "the hand is upright"

    for _ in range(8):
        _, _, _, _, info = env.step(closing(env))
    assert bool(s.grasped.all())
    assert not bool(info["fail"].any() | info["success"].any())
    assert float((task.object_layout.read()[:, 0, :3] - s.start[:, :3]).abs().max()) < 1e-3
    if "Rotate" in env_id:
        for _ in range(10):
            env.step(closing(env, -0.5))
        assert bool((s.turned > 0.1).all()), "the peg turns with the hand"
    for one in (env, plain):
        one.close()


def test_a_partial_reset_puts_the_hand_there_too() -> None:
    env = make("RotateLenientPos-v0", 4, start_grasped=True)
    env.reset(seed=0)
    for _ in range(5):
        env.step(torch.ones(4, 8))
    before = base(env).agent.robot.get_qpos().clone()
    env.reset(options={"env_idx": torch.tensor([1, 3])})
    tcp, start = base(env).agent.tcp.pose.raw_pose[:, :3], base(env).task_state.start[:, :3]
    assert torch.allclose(tcp[[1, 3]], start[[1, 3]], atol=1e-5)
    assert torch.equal(base(env).agent.robot.get_qpos()[[0, 2]], before[[0, 2]])
    env.close()


def test_the_last_joint_is_near_its_middle_and_a_row_depends_on_itself_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    point = torch.rand(50, 3, generator=generator) * torch.tensor([0.2, 0.2, 0.1]) - torch.tensor([0.1, 0.1, 0.0])
    yaw = 6.0 * torch.rand(50, generator=generator) - 3.0
    found = grasp_posture(point, yaw, 0.05, 0.3)
    assert found.dtype == torch.float32
    assert float((found[:, 6] - 0.3).abs().max()) <= math.pi / 2 + 1e-6
    assert torch.equal(found[:, 7:], torch.full((50, 2), 0.025))
    opposite = grasp_posture(point, yaw + math.pi, 0.05, 0.3)
    off = (found[:, 6] - opposite[:, 6]).abs()
    assert bool(((off < 1e-5) | ((off - math.pi).abs() < 1e-5)).all()), "either end of the axis"
    for i in range(0, 50, 7):
        assert torch.equal(grasp_posture(point[i : i + 1], yaw[i : i + 1], 0.05, 0.3)[0], found[i])


def test_what_cannot_be_is_refused() -> None:
    for env_id in ("RotateLenientPos-v0", "TakeItBack-v0"):
        with pytest.raises(ValueError, match="the object comes back elsewhere than the hand is; use one of them"):
            gym.make(env_id, start_grasped=True, recall="replaced")
        with pytest.raises(ValueError, match="start_grasped=1"):
            gym.make(env_id, start_grasped=1)
    with pytest.raises(ValueError, match="cannot reach"):
        grasp_posture(torch.tensor([[ROBOT_BASE_X + 0.9, 0.0, 0.02]]), torch.zeros(1), 0.05, 0.0)
