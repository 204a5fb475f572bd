"""Pictures of N scenes: each pixel as a single env draws it in the same state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import assert_identical, copied, rows, set_exactly

from mikasa_robo.sim.env import make

pytestmark = [pytest.mark.render, pytest.mark.filterwarnings("ignore::DeprecationWarning:mani_skill")]

N = 3
# a small picture: a software renderer pays by the pixel
SETTINGS: dict[str, Any] = {
    "obs_mode": "rgb+depth+segmentation",
    "render_mode": "rgb_array",
    "control_mode": "pd_joint_delta_pos",
    # from the robot's own definition, with a camera in its hand
    "robot_uids": "panda_wristcam",
    "sensor_configs": {"width": 64, "height": 64},
    "human_render_camera_configs": {"width": 96, "height": 96},
}


@pytest.fixture(scope="module")
def batch() -> Iterator[BaseEnv]:
    env = make("PickCube-v1", num_envs=N, sim_debug=True, sim_threads=2, **SETTINGS)
    env.reset(seed=2)
    yield env
    env.close()


@pytest.fixture(scope="module")
def single() -> Iterator[BaseEnv]:
    env = make("PickCube-v1", num_envs=1, **SETTINGS)
    env.reset(seed=0)
    assert not env.scene.gpu_sim_enabled
    yield env
    env.close()


def different_states(env: BaseEnv) -> dict[str, Any]:
    """Another cube and another arm in every env, so that mixed-up pictures cannot agree."""
    state = env.get_state_dict()
    state["actors"]["cube"][:, :3] = torch.tensor([[0.0, 0.0, 0.02], [0.1, -0.1, 0.02], [-0.1, 0.15, 0.2]])
    state["articulations"]["panda_wristcam"][:, 13] += torch.tensor([0.0, 0.3, -0.3])
    return state


def test_sensor_pictures_equal_a_single_envs(batch: BaseEnv, single: BaseEnv) -> None:
    """Colour, depth and segmentation of the fixed camera and of the one in the hand, before and after a step."""
    state = different_states(batch)
    set_exactly(batch, state)
    seen = [copied(batch.get_obs()["sensor_data"])]
    parameters = [copied(batch.get_obs()["sensor_param"])]
    action = torch.full((N, 8), 0.5)
    seen.append(copied(batch.step(action)[0]["sensor_data"]))
    parameters.append(copied(batch.get_obs()["sensor_param"]))

    assert set(seen[0]) == {"base_camera", "hand_camera"}
    for name, pictures in seen[0].items():
        assert {kind: tuple(picture.shape) for kind, picture in pictures.items()} == {
            "rgb": (N, 64, 64, 3),
            "depth": (N, 64, 64, 1),
            "segmentation": (N, 64, 64, 1),
        }
        for kind, picture in pictures.items():
            assert len(picture.unique()) > 3, f"{name} {kind} shows nothing"
            # the cubes of envs 1 and 2 are out of the hand's view, where only colour and depth can differ
            for a, b in ((0, 1), (0, 2), (1, 2)) if kind != "segmentation" or name == "base_camera" else ():
                assert not torch.equal(picture[a], picture[b]), f"{name} {kind} of envs {a} and {b} are one picture"
            assert not torch.equal(picture, seen[1][name][kind]), f"{name} {kind} did not change with the step"

    for env in range(N):
        set_exactly(single, rows(state, env))
        for moment in range(2):
            obs = single.get_obs() if moment == 0 else single.step(action[:1])[0]
            for name in seen[moment]:
                for kind in ("rgb", "depth", "segmentation"):
                    where = f"env {env}, {name}, {kind}, {('before', 'after')[moment]} the step"
                    assert_identical(seen[moment][name][kind][[env]], obs["sensor_data"][name][kind], where)
                for what, value in rows(parameters[moment][name], env).items():
                    # ManiSkill inverts the camera's pose in torch for a batch and in SAPIEN for a single env
                    expected = obs["sensor_param"][name][what]
                    assert torch.allclose(value, expected, rtol=0, atol=1e-6), f"env {env}, {name}, {what}"


def test_render_shows_every_scene(batch: BaseEnv, single: BaseEnv) -> None:
    """``render()`` draws (N, H, W, 3), each as a single env does, and the goal that observations hide."""
    state = different_states(batch)
    set_exactly(batch, state)
    pictures = batch.render().clone()
    assert pictures.shape == (N, 96, 96, 3)
    assert pictures.dtype == torch.uint8
    for env in range(N):
        set_exactly(single, rows(state, env))
        assert torch.equal(pictures[env], single.render()[0]), f"env {env}"
    assert not torch.equal(pictures[0], pictures[1])


def test_a_partial_reset_changes_only_its_own_pictures(batch: BaseEnv) -> None:
    set_exactly(batch, different_states(batch))
    before = copied(batch.get_obs()["sensor_data"]["base_camera"])
    obs, _ = batch.reset(seed=9, options={"env_idx": [1]})
    after = obs["sensor_data"]["base_camera"]
    for kind, picture in before.items():
        assert torch.equal(picture[[0, 2]], after[kind][[0, 2]]), kind
        assert not torch.equal(picture[1], after[kind][1]), kind
