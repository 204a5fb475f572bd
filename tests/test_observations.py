"""Observation modes, over one ID of every mechanic: what they hold, and what they must not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import MECHANICS, Env, base, compare, flatten, make, random_actions, row_of, stagger, still_action
from torch import Tensor

import mikasa_robo
from mikasa_robo.assets.palette import COLORS, color_codes
from mikasa_robo.assets.shapes import SHAPES, shape_codes
from mikasa_robo.core.observations import MODES, object_view, parse_modes, rounded_pose

N = 4


# ---------------------------------------------------------------------- names
def test_modes_are_joined_in_any_order() -> None:
    assert parse_modes(None).parts == parse_modes("state").parts == ("state",)
    assert not parse_modes("state").flat_dict
    assert parse_modes("joints+rgb") == parse_modes("rgb + joints")
    assert parse_modes("joints+rgb").parts == ("joints", "rgb")
    assert parse_modes("segmentation+rgb+state").maniskill == "rgb+segmentation"
    assert parse_modes("oracle").maniskill == "state_dict"
    assert parse_modes("objects").parts == ("objects", "joints"), "perception comes with the robot's own joints"
    assert parse_modes("+".join(MODES)).parts == MODES
    assert parse_modes("sensor_data").parts == ()


@pytest.mark.parametrize("mode", ["rgbd", "rgb+joint", "", "state_dict+rgb", 3])
def test_unknown_modes_are_named_before_anything_is_built(mode: str) -> None:
    with pytest.raises(ValueError, match=r"obs_mode=.*is not known.*state, objects, joints, time, oracle, prompt"):
        gym.make(mikasa_robo.TASKS[0], num_envs=2, obs_mode=mode)


def test_a_prompt_alone_needs_a_task_that_has_one() -> None:
    with pytest.raises(ValueError, match="no prompt"):
        gym.make("RememberColor3-v0", num_envs=2, obs_mode="prompt")


def test_the_mode_can_be_changed_later_and_a_bad_one_changes_nothing() -> None:
    made = make("RotateLenientPos-v0", 2, obs_mode="state")
    task = base(made)
    made.reset(seed=0)
    for mode in ("objects+oracle", "prompt", "state_dict", "state"):
        task.set_obs_mode(mode)
        other = make("RotateLenientPos-v0", 2, obs_mode=mode)
        expected = flatten({"obs": other.reset(seed=0)[0]})
        compare(flatten({"obs": task.get_obs()}), expected, [0, 1], [0, 1], mode)
        assert made.observation_space == other.observation_space, mode
        assert task.single_observation_space == base(other).single_observation_space
        assert task.obs_mode == base(other).obs_mode
        obs = flatten({"obs": made.step(still_action(made))[0]})
        assert obs.keys() == expected.keys()
        made.reset(seed=0)
        other.close()
    kept, space = task.get_obs().clone(), made.observation_space
    bad: tuple[tuple[Any, str], ...] = (
        ("rgbd", "not known"),
        ("rgb", "without a renderer"),
        ("sensor_data", "renderer"),
    )
    for mode, named in (*bad, (3, "obs_mode=3")):
        with pytest.raises(ValueError, match=named):
            task.set_obs_mode(mode)
        assert task.obs_mode == "state"
        assert made.observation_space is space
        assert torch.equal(task.get_obs(), kept)
    made.close()
    made = make("RememberColor3-v0", 2, obs_mode="joints")
    with pytest.raises(ValueError, match="no prompt"):
        base(made).set_obs_mode("prompt")
    assert set(base(made).get_obs()) == {"joints"}
    made.close()


# ---------------------------------------------------------------------- perception, as pure tensors
def test_perception_is_zero_where_nothing_is_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(1000, 4, 7, generator=generator)
    visible = torch.rand(1000, 4, generator=generator) < 0.5
    codes = torch.eye(4)[:, :3]
    view = object_view(visible, poses, codes).reshape(1000, 4, 11)
    assert not bool(view[~visible].any())
    assert bool((view[visible][:, 0] == 1).all())
    rounded = (poses.to(torch.float64) * 1e4).round().div(1e4).to(torch.float32)[visible]
    assert torch.equal(view[visible][:, 1:4], rounded[:, :3])
    assert bool((view[visible][:, 4] >= 0).all()), "q and -q are one rotation"
    assert torch.equal(view[visible][:, 4:8].abs(), rounded[:, 3:].abs())
    assert torch.equal(view[visible][:, 8:], codes.expand(1000, 4, 3)[visible])
    flipped = torch.cat([poses[..., :3], -poses[..., 3:]], dim=-1)
    assert torch.equal(object_view(visible, flipped, codes).reshape(1000, 4, 11), view)
    assert torch.equal(object_view(visible[:7], poses[:7], codes), object_view(visible, poses, codes)[:7])


def test_a_rotation_is_rounded_without_a_trace_of_its_sign() -> None:
    """Half a turn has w = 0 on either side: after rounding the next part that is not zero decides the sign."""
    q = torch.tensor([[1e-6, 0.0, -0.0, -1.0], [-1e-6, 0.0, 0.0, -1.0], [1e-6, -1e-6, 0.0, 1.0]])
    pose = rounded_pose(torch.cat([torch.full((3, 3), -0.12344), q], dim=1)[:, None])[:, 0]
    assert torch.equal(pose, torch.tensor([-0.1234, -0.1234, -0.1234, 0.0, 0.0, 0.0, 1.0]).expand(3, -1))
    assert not bool(torch.signbit(pose[:, 3:]).any()), "zeros have a sign, too"
    generator = torch.Generator().manual_seed(0)
    q = torch.nn.functional.normalize(torch.randn(1000, 4, generator=generator), dim=1)
    told = rounded_pose(torch.cat([torch.zeros(1000, 3), q], dim=1)[:, None])[:, 0, 3:]
    assert float((torch.linalg.norm(told, dim=1) - 1).abs().max()) < 2e-4
    exact, told = (torch.nn.functional.normalize(each.to(torch.float64), dim=1) for each in (q, told))
    apart = torch.minimum((exact - told).norm(dim=1), (exact + told).norm(dim=1))
    assert float(2 * apart.max()) < 2.01e-4, "rad"


# ---------------------------------------------------------------------- every task
@pytest.fixture(scope="module", params=MECHANICS)
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = make(str(request.param), N, obs_mode="state+objects+time+oracle")
    yield made
    made.close()


def parts(env: Env, obs: dict[str, Tensor]) -> Tensor:
    """The ``objects`` part, (N, K, 8 + C)."""
    task = base(env)
    return obs["objects"].reshape(N, len(task.objects), -1)


def test_the_observation_agrees_with_its_space_and_the_task(env: Env) -> None:
    task, row = base(env), row_of(env)
    obs, info = env.reset(seed=0)
    prompt = {"prompt"} if row.prompt else set()
    assert set(obs) == set(env.observation_space.spaces) == {"state", "objects", "joints", "time", "oracle"} | prompt
    for t in range(2):
        assert bool((task.elapsed_steps == t).all())
        for name, value in obs.items():
            assert value.dtype == torch.float32
            assert value.shape == env.observation_space[name].shape
        robot = task.agent.robot
        assert torch.equal(
            obs["joints"], torch.cat([robot.get_qpos(), robot.get_qvel(), task.agent.tcp.pose.raw_pose], dim=1)
        )
        assert obs["joints"].shape == (N, 25)
        assert torch.equal(obs["time"], (task.elapsed_steps / row.horizon).to(torch.float32)[:, None])
        assert torch.equal(obs["oracle"], info["oracle_info"].to(torch.float32))
        if prompt:
            assert torch.equal(obs["prompt"], info["prompt"])
        obs, _, _, _, info = env.step(still_action(env))


def test_perception_shows_what_is_on_view_and_nothing_else(env: Env) -> None:
    task = base(env)
    codes = task.object_features()
    assert codes.shape[0] == len(task.objects)
    stagger(env, seed=1)
    seen = hidden = 0
    for action in random_actions(env, 8, seed=2):
        obs = env.step(action)[0]
        view = parts(env, obs)
        on_view, _ = task.layout(task.task_state, task.elapsed_steps)
        flag = view[..., 0] == 1
        assert not bool((flag & ~on_view).any()), "an object is reported that is not on view"
        assert not bool(view[~flag].any())
        assert torch.equal(view[..., 8:][flag], codes.to(torch.float32).expand(N, -1, -1)[flag])
        where = task.object_layout.read()[..., :3]
        assert torch.allclose(view[..., 1:4][flag], where[flag], rtol=0, atol=5.1e-5)
        assert float(where[flag].abs().max()) < 2, "an object was reported where it is parked"
        seen, hidden = seen + int(flag.sum()), hidden + int((~flag).sum())
    assert seen > 0
    if row_of(env).delay:
        assert hidden > 0


def test_perception_is_of_this_instant_alone(env: Env) -> None:
    """The same objects, cue and clock aside, give the same report: nothing of the episode's past is in it."""
    task, row = base(env), row_of(env)
    stagger(env, seed=3)
    view = task.get_obs()["objects"].clone()
    state = vars(task.task_state)
    kept = {name: value.clone() for name, value in state.items()}
    # what the layout is made of says what is on view now; all else is the past
    for name in ("held", "counted", "mistaken", "grasped"):
        if name in state:
            state[name].fill_(1)
    velocity = task.object_layout.read()[..., 7:]
    task.get_obs()
    assert torch.equal(task.get_obs()["objects"], view)
    for name, value in kept.items():
        state[name].copy_(value)
    assert velocity.shape[-1] == 6
    assert row.oracle


def test_the_oracle_and_perception_name_the_shape_and_the_colour_that_are_shown() -> None:
    shapes, colors = ("cube", "sphere", "t_shape"), ("red", "lime")
    made = make("RememberShapeAndColor3x2-v0", 16, obs_mode="objects")
    obs, info = made.reset(seed=0)
    task = base(made)
    view = obs["objects"].reshape(16, len(task.objects), -1)
    assert len(torch.unique(info["oracle_info"], dim=0)) > 4
    for seen, (shape, color) in zip(view, info["oracle_info"].tolist(), strict=True):
        (k,) = torch.nonzero(seen[:, 0]).flatten().tolist()
        assert task.objects[k].name == f"{colors[color]}_{shapes[shape]}"
        codes = [shape_codes([SHAPES.index(shapes[shape])]), color_codes([list(COLORS).index(colors[color])])]
        assert torch.equal(seen[k, 8:], torch.cat(codes, dim=1)[0])
    made.close()


def test_the_base_camera_stands_before_the_robot_and_looks_at_the_table() -> None:
    made = make("RememberColor3-v0", 1, obs_mode="none")
    (camera,) = base(made)._default_sensor_configs
    pose = camera.pose.sp.to_transformation_matrix()
    forwards = torch.tensor([-0.4, 0.0, -0.5])  # from (0.3, 0, 0.6) to (-0.1, 0, 0.1)
    assert pose[:3, 3].tolist() == pytest.approx([0.3, 0.0, 0.6])
    assert pose[:3, 0].tolist() == pytest.approx((forwards / forwards.norm()).tolist(), abs=1e-6)
    assert (camera.uid, camera.width, camera.height) == ("base_camera", 128, 128)
    assert camera.fov == pytest.approx(math.pi / 2)
    made.close()


@pytest.mark.parametrize("task_id", [i for i in MECHANICS if mikasa_robo.CATALOG[i].delay])
def test_in_the_delay_all_cues_look_alike(task_id: str) -> None:
    """Episodes with the same places and another cue give the same joints and objects at every t of the delay."""
    made = make(task_id, N, obs_mode="objects")
    task, row = base(made), row_of(made)
    made.reset(seed=list(range(N // 2)) * 2)
    target = task.task_state.target
    count = task.task_state.home.shape[1]
    target[N // 2 :] = (target[N // 2 :] + 1) % count
    actions = random_actions(made, row.cue + row.delay, seed=1, num_envs=N // 2).repeat(1, 2, 1)
    compared = 0
    for t, action in enumerate(actions, start=1):
        obs = made.step(action)[0]
        if row.cue <= t < row.cue + row.delay:
            for name, value in obs.items():
                assert torch.equal(value[: N // 2], value[N // 2 :]), (name, t)
            compared += 1
        elif t < row.cue:
            assert not torch.equal(obs["objects"][: N // 2], obs["objects"][N // 2 :]), "the cue does not tell"
    assert compared == row.delay
    made.close()


def test_the_ball_is_not_perceived_before_the_episode_is_decided() -> None:
    made = make("ShellGameTouch-v0", N, obs_mode="objects")
    obs, _ = made.reset(seed=0)
    for t in range(1, 12):
        view = parts(made, obs)
        assert bool((view[:, 0, 0] == (t <= 5)).all()), t
        assert bool((view[:, 1:, 0] == (t > 5)).all())
        obs = made.step(still_action(made))[0]
    # all mugs are lifted off: only an episode that ends by that shows it
    task = base(made)
    px = task.scene.px
    data = px.cuda_rigid_dynamic_data.torch()
    for mug in task.objects[1:]:
        data[mug._body_data_index[:2], 2] += 0.3
    px.gpu_apply_rigid_dynamic_data()
    px.gpu_fetch_rigid_dynamic_data()
    assert not bool(parts(made, task.get_obs())[:, 0, 0].any())
    obs, _, _, _, info = made.step(still_action(made))
    assert info["fail"].tolist() == [True] * 2 + [False] * 2
    assert parts(made, obs)[:, 0, 0].tolist() == [1.0] * 2 + [0.0] * 2
    made.close()


@pytest.mark.render
@pytest.mark.parametrize("task_id", ["RememberColor3-v0"])
def test_pictures_come_from_both_cameras(task_id: str) -> None:
    made = make(task_id, 2, obs_mode="rgb+depth+segmentation+joints")
    obs, _ = made.reset(seed=0)
    for _ in range(2):
        assert set(obs) == {"rgb", "depth", "segmentation", "joints"}
        assert obs["rgb"].shape == (2, 128, 128, 6)
        assert obs["rgb"].dtype == torch.uint8
        assert obs["depth"].shape == obs["segmentation"].shape == (2, 128, 128, 2)
        for camera in (obs["rgb"][..., :3], obs["rgb"][..., 3:]):
            assert float(camera.float().std()) > 5, "the picture is of one colour"
        for name, value in obs.items():
            assert made.observation_space[name].shape == value.shape
        obs = made.step(made.action_space.sample())[0]
    made.close()


# ---------------------------------------------------------------------- the arm as a memory
HOLDABLE = ("RememberColor3-v0", "ChainOfColors3-v0", "ShellGameTouch-v0")


@pytest.mark.parametrize(
    ("mode", "num_envs"),
    [
        ("pd_joint_delta_pos", 1),
        ("pd_joint_vel", 1),
        ("pd_joint_pos", N),
        ("pd_joint_vel", N),
        ("pd_ee_target_delta_pose", N),
    ],
)
def test_a_held_arm_stays_until_the_response_and_is_free_then(mode: str, num_envs: int) -> None:
    made = make("RememberColor3-v0", num_envs, arm="held", control_mode=mode)
    task, row = base(made), row_of(made)
    made.reset(seed=0)
    robot = task.agent.robot
    start = robot.get_qpos().clone()
    generator = torch.Generator().manual_seed(0)
    for t in range(1, row.cue + row.delay + 6):
        made.step(torch.rand(made.action_space.shape, generator=generator) * 2 - 1)
        moved = (robot.get_qpos() - start).abs().amax(dim=1)
        if t <= row.cue + row.delay:
            assert not bool((moved > 1e-6).any()), (t, moved)
        else:
            assert bool((moved > 1e-3).all())
    made.close()


@pytest.mark.parametrize("task_id", HOLDABLE)
def test_arms_are_held_each_by_its_own_clock_and_leave_no_trace(task_id: str) -> None:
    """Whatever was done before it, the response begins the same; and env i is a single environment's episode."""
    made = make(task_id, N, arm="held", control_mode="pd_joint_target_delta_pos")
    task, row = base(made), row_of(made)
    first = row.cue + row.delay
    made.reset(seed=[5] * N)
    actions = random_actions(made, first + 6, seed=3)
    actions[first:] = actions[first:, :1]  # from the response on all do the same
    for t, action in enumerate(actions):
        obs = made.step(action)[0]
        assert torch.equal(obs, obs[:1].expand_as(obs)), t
    last = obs[0].clone()

    alone = make(task_id, 1, arm="held", control_mode="pd_joint_target_delta_pos")
    alone.reset(seed=5)
    for action in actions:
        obs = alone.step(action[3:4])[0]
    assert torch.equal(obs[0], last)
    alone.close()

    # a new episode in one environment: it alone is held
    made.reset(seed=[6], options={"env_idx": [2]})
    before = task.agent.robot.get_qpos().clone()
    for action in random_actions(made, 3, seed=4):
        made.step(action)
    moved = (task.agent.robot.get_qpos() - before).abs().amax(dim=1)
    assert float(moved[2]) < 1e-6
    assert bool((torch.cat([moved[:2], moved[3:]]) > 1e-3).all())
    made.close()


def test_arm_is_validated() -> None:
    with pytest.raises(ValueError, match=r"arm='stiff'.*'free' or 'held'"):
        gym.make("RememberColor3-v0", arm="stiff")
