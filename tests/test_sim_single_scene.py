"""All environments in one scene, as on a GPU with a viewer: buffers hold offset positions, ManiSkill's poses do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import pick_cube, random_actions, rows

from mikasa_robo.sim.scene import grid_offsets

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

CLOSE = 1e-3
"""float32 keeps about 1e-6 m at 5 m from the origin, and 20 steps of contact make more of it."""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[BaseEnv, BaseEnv]]:
    """A scene for each environment, and one for all."""
    envs = pick_cube(), pick_cube(parallel_in_single_scene=True)
    yield envs
    for env in envs:
        env.close()


def test_environments_stand_in_a_grid() -> None:
    assert grid_offsets(1, 5).tolist() == [[0, 0, 0]]
    assert grid_offsets(4, 5).tolist() == [[-5, -5, 0], [0, -5, 0], [-5, 0, 0], [0, 0, 0]]
    assert grid_offsets(9, 2)[5].tolist() == [2, 0, 0]


def test_buffers_hold_offset_positions_and_poses_do_not(pair: tuple[BaseEnv, BaseEnv]) -> None:
    many, one = pair
    assert [len(scene.entities) > 0 for scene in one.scene.sub_scenes] == [True, False, False, False]
    assert torch.equal(one.scene.scene_offsets, torch.from_numpy(grid_offsets(4, one.sim_config.spacing)))
    assert not many.scene.scene_offsets.any()
    many.reset(seed=5)
    one.reset(seed=5)
    for thing in ("cube", "agent.tcp"):
        first: Any = many.agent.tcp if thing == "agent.tcp" else many.cube
        second: Any = one.agent.tcp if thing == "agent.tcp" else one.cube
        raw = one.scene.px.cuda_rigid_body_data.torch()[second._body_data_index, :3]
        torch.testing.assert_close(second.pose.p, first.pose.p, rtol=0, atol=CLOSE)
        torch.testing.assert_close(raw, first.pose.p + one.scene.scene_offsets, rtol=0, atol=CLOSE)


def test_an_episode_is_the_same(pair: tuple[BaseEnv, BaseEnv]) -> None:
    """Observations, rewards and states, with a partial reset to a given state half-way."""
    many, one = pair
    many.reset(seed=6)
    one.reset(seed=6)
    start = many.get_state_dict()
    for t, action in enumerate(random_actions(many, 20)):
        if t == 10:
            again = rows(start, [3, 0])
            for env in pair:
                env.reset(options={"env_idx": [1, 2], "reset_to_env_states": {"env_states": again}})
        seen, expected = one.step(action), many.step(action)
        for name, a, b in zip(("obs", "reward", "terminated"), seen, expected, strict=False):
            assert torch.allclose(a, b, rtol=0, atol=CLOSE), f"step {t}: {name}"
    torch.testing.assert_close(one.get_state_dict(), many.get_state_dict(), rtol=0, atol=1e-2)


def test_contacts_are_told_apart(pair: tuple[BaseEnv, BaseEnv]) -> None:
    """The cube of each environment lies on its own table."""
    for env in pair:
        env.reset(seed=7)
        for _ in range(5):
            env.step(None)
    cubes = [env.scene.get_pairwise_contact_forces(env.cube, env.table_scene.table) for env in pair]
    assert (cubes[0][:, 2] > 0.1).all()
    torch.testing.assert_close(cubes[1], cubes[0], rtol=0.05, atol=0.01)
