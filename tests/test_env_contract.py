"""What environments promise beside the rules of their tasks: results that stay, seeds, saved states, bad actions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_reset_seed_determinism, check_step_determinism
from sapien.utils.viewer.control_window import ControlWindow
from task_helpers import flatten

import mikasa_robo
from mikasa_robo.core import observations
from mikasa_robo.core.env import ARM_JOINTS, START_QPOS
from mikasa_robo.core.phases import CUE
from mikasa_robo.utils.wrappers import CameraShutdownWrapper, InitialZeroActionWrapper, UnbatchWrapper
from mikasa_robo.utils.wrappers.camera_shutdown import _blank
from mikasa_robo.workers.nested import map_leaves

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


def test_what_a_controller_was_asked_for_stays_as_it_was() -> None:
    """ManiSkill's observation has the controllers' own tensors, into which a reset writes."""
    env: Any = mikasa_robo.make_env(
        "RememberColor3-v0", 2, obs_mode="state_dict", control_mode="pd_joint_target_delta_pos"
    )
    env.reset(seed=0)
    obs, *_ = env.step(torch.ones(2, 8))
    target = obs["agent"]["controller"]["arm"]["target_qpos"]
    before = target.clone()
    env.reset(seed=5)
    assert torch.equal(target, before)
    env.close()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_held_arm_keeps_no_control_mode_of_an_action(num_envs: int) -> None:
    """ManiSkill takes actions that choose a control mode, and the robot keeps it: a memory for a policy without one."""
    env: Any = mikasa_robo.make_env("RememberColor3-v0", num_envs, arm="held", cue_steps=1, delay_steps=1)
    env.reset(seed=0)
    chosen = {"control_mode": "pd_joint_pos", "action": torch.zeros(num_envs, 8)}
    with pytest.raises(ValueError, match="'pd_joint_pos', and the arm is held in 'pd_joint_delta_pos'"):
        env.step(chosen)
    assert env.unwrapped.agent.control_mode == "pd_joint_delta_pos"
    for _ in range(2):
        env.step({**chosen, "control_mode": "pd_joint_delta_pos"})
    env.step(chosen)  # the arm is free
    assert env.unwrapped.agent.control_mode == "pd_joint_pos"
    env.close()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_control_mode_of_an_action_ends_with_the_episodes(num_envs: int) -> None:
    env: Any = mikasa_robo.make_env("RememberColor3-v0", num_envs)

    def played() -> list[Any]:
        first = env.reset(seed=0)[0].clone()
        return [first] + [env.step(torch.full((num_envs, 8), 0.5))[0].clone() for _ in range(2)]

    before = played()
    for mode, width in (("pd_joint_pos", 8), ("pd_ee_delta_pose", 7)):
        env.step({"control_mode": mode, "action": torch.zeros(num_envs, width)})
        assert env.unwrapped.agent.control_mode == mode
        if num_envs > 1:  # it is for all of them, also where only one begins anew
            env.reset(options={"env_idx": torch.tensor([0])})
            assert env.unwrapped.agent.control_mode == mode
        for one, other in zip(before, played(), strict=True):
            assert torch.equal(one, other)
        assert env.unwrapped.agent.control_mode == "pd_joint_delta_pos"
    env.close()


@pytest.mark.parametrize("seed", [True, [True, 3], [(1, False), 3]])
def test_a_bool_is_no_seed(seed: Any) -> None:
    env: Any = mikasa_robo.make_env("RememberColor3-v0", 2)
    with pytest.raises(TypeError, match=r"True|False"):
        env.reset(seed=seed)
    env.close()


def test_the_action_of_a_held_step_is_the_one_that_was_received() -> None:
    """pd_joint_pos_vel keeps a view of the action, and where the arm is held the controllers are put back as they were."""
    env: Any = mikasa_robo.make_env("RememberColor3-v0", 2, arm="held", control_mode="pd_joint_pos_vel")
    env.reset(seed=0)
    action = torch.rand(2, env.unwrapped.single_action_space.shape[0])
    env.step(action.clone())
    assert torch.equal(env.unwrapped._action, action)
    env.close()


@pytest.mark.parametrize(("env_id", "num_envs"), [("RememberColor3-v0", 2), ("InterceptGrabFast-v0", 1)])
@pytest.mark.parametrize("control_mode", ["pd_joint_delta_pos", "pd_joint_pos_vel"])
def test_inference_mode_may_begin_and_end_anywhere(env_id: str, num_envs: int, control_mode: str) -> None:
    def action() -> torch.Tensor:
        return torch.zeros(num_envs, env.unwrapped.single_action_space.shape[0])

    with torch.inference_mode():
        env: Any = mikasa_robo.make_env(env_id, num_envs, control_mode=control_mode)
        env.reset(seed=0)
        assert not env.step(action())[0].is_inference()
    env.step(action())
    with torch.inference_mode():
        env.step(action())
        saved = env.unwrapped.get_state_dict()
    expected = env.reset(seed=1)[0]
    env.unwrapped.set_state_dict(saved)
    env.step(action())
    with torch.inference_mode():
        assert torch.equal(env.reset(seed=1)[0], expected)
    env.close()


@pytest.mark.parametrize("layout", ["flat", "maniskill"])
def test_observation_and_info_share_nothing(layout: str) -> None:
    for env_id, mode in (
        ("RotateStrictPos-v0", "state+joints+prompt"),
        ("InterceptGrabFastHidden-v0", "joints+oracle"),
    ):
        env: Any = mikasa_robo.make_env(env_id, 2, obs_mode=mode, obs_layout=layout)
        obs, info = env.reset(seed=0)
        before = flatten(info)
        map_leaves(lambda value: value.add_(1.0), obs)
        now = flatten(info)
        assert all(torch.equal(now[name], value) for name, value in before.items())
        env.close()


def test_cameras_of_different_sizes_cannot_be_joined() -> None:
    images = {"base": {"rgb": torch.zeros(1, 8, 8, 3)}, "hand": {"rgb": torch.zeros(1, 4, 6, 3)}}
    task: Any = SimpleNamespace(_get_obs_sensor_data=lambda: images)
    data: Any = None
    with pytest.raises(ValueError, match=r"base 8 x 8, hand 4 x 6.*give all cameras one size, or use obs_layout='mani"):
        observations.observation(task, observations.parse_modes("rgb"), {}, data)


def test_segmentation_may_be_drawn_on_another_device_than_that_of_the_simulation() -> None:
    """Such as on a GPU while the CPU simulates; the device here has no numbers, so only shapes are compared."""
    env: Any = mikasa_robo.make_env("RememberColor3-v0", 2, obs_mode="objects")
    image = torch.zeros(2, 4, 4, 1, dtype=torch.int16)
    layout = env.unwrapped.object_layout
    assert torch.equal(layout.renumber(image), image)
    drawn = layout.renumber(image.to("meta"))
    assert (drawn.device.type, drawn.shape, drawn.dtype) == ("meta", image.shape, image.dtype)
    blanked = _blank({"sensor_data": {"rgb": image.to("meta")}}, torch.tensor([True, False]))
    assert blanked["sensor_data"]["rgb"].device.type == "meta"
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


def test_every_kind_of_image_is_blanked_alike() -> None:
    images = {name: torch.ones(2, 4, 4, 1) for name in (*observations.VISUAL, *observations.SEGMENTATION_CHANNELS)}
    obs = {**images, "joints": torch.ones(2, 25), "sensor_data": {"hand_camera": dict(images)}}
    blanked = _blank(obs, torch.tensor([False, True]))
    for name in images:
        for image in (blanked[name], blanked["sensor_data"]["hand_camera"][name]):
            assert image.flatten(1).sum(dim=1).tolist() == [16, 0], name
    assert bool(blanked["joints"].all())


def test_other_arguments_than_those_of_the_id_have_no_instruction() -> None:
    cases: tuple[tuple[dict[str, Any], bool], ...] = (({}, True), ({"delay_steps": 9}, True), ({"n": 7}, False))
    for kwargs, found in cases:
        env: Any = gym.make(ENV_ID, **kwargs)
        assert bool(env.unwrapped.instruction) is found, kwargs
        env.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "found"),
    [
        ("RotateLenientPos-v0", {"recall": "replaced"}, False),
        ("RotateLenientPosReplaced-v0", {"recall": "replaced"}, True),
        ("InterceptMedium-v0", {"blank_steps": 9}, False),
        ("InterceptMediumHidden-v0", {}, True),
        ("InterceptMediumHidden-v0", {"drift_range": np.array([-0.1, 0.15])}, True),
        ("InterceptMediumHidden-v0", {"drift_range": [-0.1, 0.1]}, False),
        ("ChainOfColors3-v0", {"start_counted": [0, 2]}, False),
    ],
)
def test_an_instruction_that_would_be_wrong_is_left_out(env_id: str, kwargs: dict[str, Any], found: bool) -> None:
    """An object that comes back elsewhere, a ball that is hidden and targets that count already make another task."""
    env: Any = gym.make(env_id, obs_mode="none", **kwargs)
    assert bool(env.unwrapped.instruction) is found
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


def test_an_unbatched_episode_is_truncated_at_its_end_and_terminated_by_its_outcome() -> None:
    env: Any = UnbatchWrapper(gym.make(ENV_ID, obs_mode="none", max_episode_steps=2))
    nothing = np.zeros(env.action_space.shape, np.float32)
    env.reset(seed=0)
    assert [env.step(nothing)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    env.reset(seed=0)
    env.unwrapped.task_state.mistaken[:] = True
    assert env.step(nothing)[2:4] == (True, False)
    env.close()


def test_at_the_start_each_joint_is_off_by_a_number_of_its_own_and_as_far_as_asked() -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, 32, obs_mode="none", robot_init_qpos_noise=0.05)
    off = []
    for seed in range(6):
        env.reset(seed=1000 * seed)
        off.append((positions(env) - torch.tensor(START_QPOS))[:, :ARM_JOINTS])
    found = torch.cat(off)
    assert float((found.std(dim=0) - 0.05).abs().max()) < 4 * 0.05 / (2 * 192) ** 0.5
    assert float(found.mean(dim=0).abs().max()) < 4 * 0.05 / 192**0.5
    assert float((torch.corrcoef(found.T) - torch.eye(ARM_JOINTS)).abs().max()) < 4 / 192**0.5
    env.close()


# ---------------------------------------------------------------------- a step without an action
MODES_OF_CONTROL = ["pd_joint_delta_pos", "pd_joint_target_delta_pos", "pd_ee_delta_pose", "pd_joint_pos_vel"]
SIMULATORS = [(1, "auto"), (2, "physx_cpu")]


@pytest.mark.parametrize(("num_envs", "sim_backend"), SIMULATORS)
@pytest.mark.parametrize("control_mode", MODES_OF_CONTROL)
def test_a_step_without_an_action_after_a_reset_moves_nothing(
    control_mode: str, num_envs: int, sim_backend: str
) -> None:
    """Not towards what the last action of the episode before was to reach, nor, in a new environment, towards zeros."""
    env: Any = mikasa_robo.make_env(ENV_ID, num_envs, control_mode=control_mode, sim_backend=sim_backend)
    shape = env.unwrapped.single_action_space.shape
    for _ in range(2):
        env.reset(seed=3)
        start = positions(env)
        env.step(None)
        assert torch.allclose(positions(env), start, rtol=0, atol=1e-5)
        for _ in range(4):
            env.step(torch.ones(num_envs, *shape))
        assert not torch.allclose(positions(env), start, rtol=0, atol=0.01)
    env.close()


@pytest.mark.parametrize(("num_envs", "sim_backend"), SIMULATORS)
@pytest.mark.parametrize("control_mode", MODES_OF_CONTROL)
def test_a_step_without_an_action_after_a_restored_state_goes_on_from_it(
    control_mode: str, num_envs: int, sim_backend: str
) -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, num_envs, control_mode=control_mode, sim_backend=sim_backend)
    shape = env.unwrapped.single_action_space.shape
    env.reset(seed=3)
    saved, start = env.unwrapped.get_state_dict(), positions(env)
    moved = []
    for scale in (1.0, -1.0):
        for _ in range(4):
            env.step(torch.full((num_envs, *shape), scale))
        env.unwrapped.set_state_dict(saved)
        env.step(None)
        moved.append(positions(env))
    assert torch.allclose(moved[0], start, rtol=0, atol=1e-5)
    assert torch.equal(moved[0], moved[1]), "what was played before the restore must not show"
    env.close()


def test_a_step_without_an_action_goes_on_to_the_saved_targets() -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, 2, control_mode="pd_joint_target_delta_pos")
    env.reset(seed=3)
    for _ in range(4):
        env.step(torch.ones(2, 8))
    saved, at = env.unwrapped.get_state_dict(), positions(env)
    target = saved["controller"]["arm"]["target_qpos"]
    env.reset(seed=4)
    env.step(-torch.ones(2, 8))
    env.unwrapped.set_state_dict(saved)
    for _ in range(40):
        env.step(None)
    assert not torch.allclose(at[:, :7], target, rtol=0, atol=0.02)
    assert torch.allclose(positions(env)[:, :7], target, rtol=0, atol=0.02)
    env.close()


# ---------------------------------------------------------------------- resets to saved states
@pytest.mark.parametrize(("num_envs", "sim_backend"), SIMULATORS)
def test_a_reset_to_a_saved_state_keeps_its_targets(num_envs: int, sim_backend: str) -> None:
    env: Any = mikasa_robo.make_env(
        ENV_ID, num_envs, control_mode="pd_joint_target_delta_pos", sim_backend=sim_backend, sim_debug=True
    )
    actions = torch.rand(8, num_envs, 8, generator=torch.Generator().manual_seed(0))
    env.reset(seed=1)
    for action in actions[:4]:
        env.step(action)
    saved = env.unwrapped.get_state_dict()
    flat = env.unwrapped.get_state()
    for action in actions[4:]:
        env.step(action)
    expected = positions(env)
    for state in (saved, flat):
        env.reset(seed=2)
        env.reset(options={"reset_to_env_states": {"env_states": state}})
        assert torch.equal(
            env.unwrapped.get_state_dict()["controller"]["arm"]["target_qpos"],
            saved["controller"]["arm"]["target_qpos"],
        )
        assert env.unwrapped.elapsed_steps.tolist() == [4] * num_envs
        for action in actions[4:]:
            env.step(action)
        torch.testing.assert_close(positions(env), expected, atol=1e-3, rtol=0)
    env.close()


def test_a_partial_reset_to_a_saved_state_keeps_the_targets_of_all() -> None:
    env: Any = mikasa_robo.make_env(ENV_ID, 3, control_mode="pd_joint_target_delta_pos")
    task = env.unwrapped
    env.reset(seed=1)
    env.step(torch.ones(3, 8))
    saved = task.get_state_dict()
    env.step(-torch.ones(3, 8))
    before = task.get_state_dict()["controller"]["arm"]["target_qpos"]
    rows = {
        part: {name: value[[0, 2]] for name, value in saved[part].items()} for part in saved if part != "controller"
    }
    target = saved["controller"]["arm"]["target_qpos"]
    rows["controller"] = {"arm": {"target_qpos": target[[0, 2]]}}
    env.reset(options={"env_idx": [2, 1], "reset_to_env_states": {"env_states": rows}})
    now = task.get_state_dict()["controller"]["arm"]["target_qpos"]
    assert torch.equal(now, torch.stack([before[0], target[2], target[0]]))
    env.close()


def test_only_episodes_that_are_drawn_are_counted() -> None:
    """The name of an episode, given as a seed, plays it."""
    env: Any = mikasa_robo.make_env(ENV_ID, 2)
    task = env.unwrapped
    env.reset(seed=7)
    names = [task._episode_seed.tolist()]
    to_saved = {"reset_to_env_states": {"env_states": task.get_state_dict()}}
    env.reset(options=to_saved)
    names.append(task._episode_seed.tolist())
    assert names[1] == names[0]
    obs, _ = env.reset()
    names.append(task._episode_seed.tolist())
    again, _ = env.reset(seed=names[2])
    assert torch.equal(again, obs)

    env.reset(seed=8, options=to_saved)
    assert task._episode_seed.tolist() == [-1, -1], "none was drawn since the seed"
    obs, _ = env.reset()
    assert torch.equal(env.reset(seed=8)[0], obs), "the first one that is drawn is the seed's own"
    env.close()


BAD_STATES: list[tuple[Any, type[Exception], str]] = [
    (lambda s: {name: s[name] for name in ("actors", "articulations")}, KeyError, r"lacks \['task/counted'"),
    (
        lambda s: s | {"task": {}},
        KeyError,
        r"lacks .*'task/elapsed_steps'.*by another version; give what get_state_dict",
    ),
    (lambda s: s | {"actors": {"cup": torch.zeros(2, 13)}}, KeyError, "lacks .*'actors/cube_red'"),
    (
        lambda s: s | {"actors": s["actors"] | {"cup": torch.zeros(2, 13)}},
        KeyError,
        r"has \['actors/cup'\], which this",
    ),
    (lambda s: s | {"actors": None}, TypeError, "saved actors is None: give a tensor or an array"),
    (
        lambda s: s | {"articulations": {"panda_wristcam": torch.zeros(2, 30)}},
        ValueError,
        r"saved articulations/panda_wristcam has the shape \(2, 30\): give \(2, 31\)",
    ),
    (
        lambda s: s | {"articulations": {"panda_wristcam": torch.full((2, 31), torch.nan)}},
        ValueError,
        "saved articulations/panda_wristcam holds NaN or infinity: give finite numbers",
    ),
    *(
        (
            lambda s, name=name, value=value: s | {"task": s["task"] | {name: torch.full_like(s["task"][name], value)}},
            ValueError,
            message,
        )
        for name, value, message in (
            ("target", 3.0, "saved task/target holds 3: give whole numbers from 0 to 2"),
            ("target", torch.nan, "saved task/target holds nan: give whole numbers from 0 to 2"),
            ("counted", 2.0, "saved task/counted holds 2: give whole numbers from 0 to 1"),
            ("held", 0.5, "saved task/held holds 0.5: give whole numbers from -16777216 to 16777216"),
            ("elapsed_steps", -5.0, "saved task/elapsed_steps holds -5: give whole numbers from 0 to 16777216"),
            ("elapsed_steps", 2.5, "saved task/elapsed_steps holds 2.5: give whole numbers"),
            ("home", torch.nan, "saved task/home holds NaN: give numbers"),
        )
    ),
    (
        lambda s: s | {"task": s["task"] | {"target": torch.zeros(2, 2)}},
        ValueError,
        r"saved task/target has the shape \(2, 2\): give \(2, 1\)",
    ),
    (lambda s: torch.zeros(2, 5), ValueError, "the state has 5 numbers for each environment, this task has "),
    (lambda s: torch.zeros(3, 5), ValueError, "the saved state has 3 rows for 2 environments: give one for each"),
    (lambda s: None, TypeError, "the saved state is None: give a tensor or an array of numbers"),
]


@pytest.fixture(scope="module")
def played() -> Iterator[Any]:
    """An environment in the middle of an episode."""
    env: Any = mikasa_robo.make_env(ENV_ID, 2)
    env.reset(seed=1)
    env.step(torch.ones(2, 8))
    yield env
    env.close()


@pytest.mark.parametrize(("change", "error", "message"), BAD_STATES)
def test_a_bad_state_to_reset_to_is_refused_before_anything_changes(
    played: Any, change: Any, error: type[Exception], message: str
) -> None:
    task = played.unwrapped
    before, names = flatten(task.get_state_dict()), task._episode_seed.tolist()
    bad = change(task.get_state_dict())
    with pytest.raises(error, match=message):
        played.reset(seed=5, options={"reset_to_env_states": {"env_states": bad}})
    after = flatten(task.get_state_dict())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert task._episode_seed.tolist() == names


def test_a_bad_state_to_restore_is_refused_before_anything_changes(played: Any) -> None:
    task = played.unwrapped
    before = flatten(task.get_state_dict())
    saved = {
        part: {name: torch.zeros_like(value) for name, value in task.get_state_dict()[part].items()}
        for part in ("actors", "task")
    }
    wrong = {"articulations": {"panda_wristcam": torch.zeros(2, 30)}}
    with pytest.raises(ValueError, match="saved articulations/panda_wristcam has the shape"):
        task.set_state_dict(saved | wrong)
    after = flatten(task.get_state_dict())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_an_option_that_is_none_is_left_out(played: Any) -> None:
    options = {"env_idx": None, "reconfigure": None, "reset_to_env_states": None}
    obs, info = played.reset(seed=2, options=options)
    assert torch.equal(obs, played.reset(seed=2)[0])
    assert info["reconfigure"] is False


# ---------------------------------------------------------------------- the viewer
class FakeViewer:
    """Stands for a window on a screen."""

    render_scene = None

    def __init__(self, scene: Any) -> None:
        controls = ControlWindow()
        controls.viewer = self
        self.scene, self.closed, self.plugins, self.window, self.pose = scene, False, [controls], self, "the user's"

    def set_scene(self, scene: Any) -> None:
        self.scene = scene

    def get_camera_pose(self) -> str:
        return self.pose

    def set_camera_pose(self, pose: str) -> None:
        self.pose = pose

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("num_envs", "sim_backend"), SIMULATORS)
def test_the_viewer_shows_the_scene_that_a_reset_makes(num_envs: int, sim_backend: str) -> None:
    """A reset moves everything to a new scene, so that nothing of the episode before is left."""
    env: Any = mikasa_robo.make_env(ENV_ID, num_envs, sim_backend=sim_backend, render_backend="none")
    task = env.unwrapped
    viewer = task._viewer = FakeViewer(task.scene.sub_scenes[0])
    for seed in (1, 2):
        env.reset(seed=seed)
        assert viewer.scene is task.scene.sub_scenes[0]
        assert viewer.scene.entities
        assert viewer.pose == "the user's"
        env.step(torch.zeros(num_envs, 8))
    viewer.closed, shown = True, viewer.scene
    env.reset(seed=3)
    assert viewer.scene is shown, "the user has closed it"
    env.close()


# ---------------------------------------------------------------------- time limits
@pytest.mark.parametrize("limit", [-1, 0, 2.5, True, False, "5"])
def test_a_bad_time_limit_is_refused(limit: Any) -> None:
    for make in (mikasa_robo.make_env, gym.make_vec):
        with pytest.raises(ValueError, match=rf"^max_episode_steps={limit!r} must be .* at least 1; leave it out"):
            make(ENV_ID, 2, max_episode_steps=limit)
    if limit == -1:  # Gymnasium adds no limit then
        env = gym.make(ENV_ID, num_envs=2, max_episode_steps=limit)
        assert env.get_wrapper_attr("_max_episode_steps") == env.get_wrapper_attr("horizon")
        env.close()
    else:
        with pytest.raises((TypeError, ValueError), match="max_episode_steps"):
            gym.make(ENV_ID, num_envs=2, max_episode_steps=limit)


def test_time_limits_that_are_whole_numbers() -> None:
    for limit in (None, 7, np.int64(7)):
        env = mikasa_robo.make_env(ENV_ID, 1, max_episode_steps=limit)
        assert env.get_wrapper_attr("_max_episode_steps") == (limit or env.get_wrapper_attr("horizon"))
        env.close()
