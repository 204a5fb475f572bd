"""TakeItBack: the goal comes first, the disc tells when, the start is told nowhere; and that a robot can do it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from mani_skill.utils.geometry.rotation_conversions import quaternion_raw_multiply
from task_helpers import (
    HIDDEN_HEIGHT,
    Env,
    base,
    chi_square_p,
    go_to,
    make,
    move,
    paid,
    random_actions,
    stagger,
    step,
    still_action,
)
from torch import Tensor

from mikasa_robo.assets.bodies import DISC_THICKNESS
from mikasa_robo.core import rewards
from mikasa_robo.core.env import STATIC_SPEED, StepData
from mikasa_robo.core.rest import REST_SPEED
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.symmetry import CUBE_ROTATIONS, canonical_rotation
from mikasa_robo.experts.policies import Expert
from mikasa_robo.experts.skill import History, View
from mikasa_robo.experts.taking_back import TakeItBackSkill
from mikasa_robo.tasks.take_it_back import (
    HALF_SIZE,
    LEG,
    TakeItBack,
    TakeItBackState,
    sample_start_and_goal,
)

MANY = 1000
N = 8
ID = "TakeItBack-v0"
GOAL, REGION = 0.05, 0.03  # m, radii
MIDDLE = 0.015  # m, how near the middle of the goal counts
CUBE, RED, MAGENTA = range(3)
NO_TOUCH = torch.zeros(MANY, 3, 1, dtype=torch.bool)


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """Eight environments whose hands are moved in space."""
    made = make(ID, N, control_mode="pd_ee_delta_pose", obs_mode="state+objects+oracle")
    yield made
    made.close()


def task_of(env: Env) -> TakeItBack:
    return cast(TakeItBack, base(env))


def lying(xy: Tensor) -> Tensor:
    """(b, 7) poses of cubes that lie at ``xy`` (b, 2)."""
    pose = torch.zeros(len(xy), 7)
    pose[:, :2], pose[:, 2], pose[:, 3] = xy, HALF_SIZE, 1.0
    return pose


# ---------------------------------------------------------------------- by tensors, a thousand at a time
def fresh(seed: int = 0, count: int = MANY) -> TakeItBackState:
    values = torch.rand(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return sample_start_and_goal(Uniforms(values))


def step_data(cube: Tensor, joint_speed: float = 0.0, elapsed: int = 20) -> StepData:
    """The cube at ``cube`` (MANY, 2 or 3), at rest; the hand 10 cm above it."""
    objects = torch.zeros(MANY, 3, 13)
    objects[:, CUBE, :7] = lying(cube[:, :2])
    if cube.shape[1] == 3:
        objects[:, CUBE, 2] = cube[:, 2]
    tcp = objects[:, CUBE, :7].clone()
    tcp[:, 2] += 0.1
    return StepData(
        elapsed=torch.full((MANY,), elapsed),
        responding=torch.full((MANY,), elapsed >= 1),
        objects=objects,
        tcp=tcp,
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.full((MANY,), 0.04),
        speeds=torch.zeros(MANY, 3),
    )


def directions() -> Tensor:
    """(MANY, 2) of length 1, all round."""
    angle = torch.linspace(0, 2 * math.pi, MANY)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_starts_and_goals_are_where_they_are_said_to_be() -> None:
    s = fresh(count=30_000)
    x, y, z = s.start.T
    assert -0.05 <= float(x.min()) < -0.0499
    assert 0.0499 < float(x.max()) <= 0.05
    lane = (y / 0.1).round().clamp(-1, 1)
    off = y - 0.1 * lane
    assert 0.0199 < float(off.abs().max()) <= 0.02 + 1e-6
    assert chi_square_p(torch.bincount((lane + 1).to(torch.int64), minlength=3)) > 1e-3
    assert bool((z == HALF_SIZE).all())
    assert 0.2 <= float(s.goal[:, 0].min()) < 0.2001
    assert 0.2499 < float(s.goal[:, 0].max()) <= 0.25
    assert bool((s.goal[:, 1] == 0).all()), "the disc would tell in which lane the cube started"
    table = torch.corrcoef(torch.stack([x, lane, off, s.goal[:, 0]]))
    assert float((table - torch.eye(4)).abs().max()) < 0.03, "the goal tells something of the start"
    assert not bool(s.reached.any() | s.grasped.any())


def test_goal_and_region_never_overlap(env: Env) -> None:
    s = fresh()
    assert float(torch.linalg.norm(s.goal - s.start[:, :2], dim=1).min()) > GOAL + REGION
    task = task_of(env)
    assert (task.goal_radius, task.goal_tolerance, task.region_radius) == (GOAL, MIDDLE, REGION)


def test_a_cube_looks_the_same_from_24_sides() -> None:
    assert CUBE_ROTATIONS.shape == (24, 4)
    assert torch.allclose(CUBE_ROTATIONS.norm(dim=1), torch.ones(24))
    apart = (CUBE_ROTATIONS @ CUBE_ROTATIONS.T).abs() - torch.eye(24)
    assert float(apart.max()) < 0.8, "two of them are one rotation"
    generator = torch.Generator().manual_seed(0)
    q = torch.nn.functional.normalize(torch.randn(MANY, 4, generator=generator), dim=1)
    least = canonical_rotation(q, CUBE_ROTATIONS)
    # the farthest a cube's orientation can be from looking unturned is 62.8 degrees
    assert float(least[:, 0].abs().min()) > math.cos(math.radians(62.81) / 2) - 1e-5
    for side in CUBE_ROTATIONS:
        again = canonical_rotation(quaternion_raw_multiply(q, side), CUBE_ROTATIONS)
        assert float((again * least).sum(dim=1).abs().min()) > 1 - 1e-5
    yaw = torch.linspace(-math.pi, math.pi, MANY)
    seen = canonical_rotation(torch.stack([(yaw / 2).cos(), 0 * yaw, 0 * yaw, (yaw / 2).sin()], dim=1), CUBE_ROTATIONS)
    angle = 2 * torch.atan2(seen[:, 3] * seen[:, 0].sign(), seen[:, 0].abs())
    assert float(angle.abs().max()) <= math.pi / 4 + 1e-5
    turns = (yaw - angle) / (math.pi / 2)
    assert torch.allclose(turns, turns.round(), atol=1e-4)


def test_perception_does_not_tell_how_often_the_cube_was_turned(env: Env) -> None:
    task, s = task_of(env), fresh()
    look, seen = step_data(s.start), []
    for degrees in (10, 100, 190, -80):
        half = math.radians(degrees) / 2
        look.objects[:, CUBE, 3:7] = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])
        kept = look.objects.clone()
        _, poses = task.visible_poses(s, look)
        assert torch.equal(look.objects, kept), "perception wrote into what it looked at"
        assert torch.equal(poses[:, RED:], kept[:, RED:, :7])
        seen.append(poses[:, CUBE, 3:] * poses[:, CUBE, 3:4].sign())
    expected = torch.tensor([math.cos(math.radians(5)), 0.0, 0.0, math.sin(math.radians(5))])
    for quaternion in seen:
        assert torch.allclose(quaternion, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("distance", "lift", "speed", "joint_speed", "success"),
    [
        (0.0, 0.0, 0.0, 0.0, True),
        (REGION - 1e-4, 0.0, 0.0, 0.0, True),
        (REGION + 1e-4, 0.0, 0.0, 0.0, False),
        (0.0, 0.009, 0.0, 0.0, True),
        (0.0, 0.011, 0.0, 0.0, False),
        (0.0, 0.0, 0.049, 0.0, True),
        (0.0, 0.0, 0.051, 0.0, False),
        (0.0, 0.0, 0.0, STATIC_SPEED * 0.99, True),
        (0.0, 0.0, 0.0, STATIC_SPEED * 1.01, False),
    ],
)
def test_success(env: Env, distance: float, lift: float, speed: float, joint_speed: float, success: bool) -> None:
    """And never before the goal was reached."""
    task, s = task_of(env), fresh()
    xy = s.start[:, :2] + distance * directions()
    look = step_data(torch.cat([xy, torch.full((MANY, 1), HALF_SIZE + lift)], dim=1), joint_speed)
    look.speeds[:, CUBE] = speed
    look.objects[:, CUBE, 7:10] = 1.0  # what the simulator reports of a cube held tight is no motion
    task.update_state(s, look, NO_TOUCH)
    assert not bool(task.outcome(s, look)["success"].any()), "success without the goal"
    task.update_state(s, step_data(s.goal), NO_TOUCH)
    s.rested[:] = 0
    task.update_state(s, look, NO_TOUCH)
    assert not bool(task.outcome(s, look)["success"].any()), "one step is not set down"
    task.update_state(s, look, NO_TOUCH)
    verdict = task.outcome(s, look)
    assert bool((verdict["success"] == success).all())
    at_rest = speed < 0.05 and joint_speed < STATIC_SPEED and lift < 0.01
    assert bool((verdict["fail"] == (at_rest and not success)).all())


@pytest.mark.parametrize("on_mistake", ["fail", "ignore"])
def test_to_set_the_cube_down_elsewhere_is_a_mistake_for_good(env: Env, on_mistake: str) -> None:
    task, s = task_of(env), fresh()
    task.on_mistake = on_mistake
    elsewhere = s.start[:, :2] + (REGION + 0.01) * directions()

    def rest(xy: Tensor, steps: int = 2) -> dict[str, Tensor]:
        for _ in range(steps):
            task.update_state(s, step_data(xy), NO_TOUCH)
        return task.outcome(s, step_data(xy))

    assert not bool(rest(elsewhere, 5)["mistake"].any()), "nothing is a mistake before the goal was reached"
    assert not bool(rest(s.goal, 5)["mistake"].any()), "on the goal it may rest"
    task.update_state(s, step_data(elsewhere, joint_speed=0.3), NO_TOUCH)
    assert not bool(rest(elsewhere, 1)["mistake"].any())
    task.update_state(s, step_data(elsewhere, joint_speed=0.3), NO_TOUCH)
    assert bool(rest(elsewhere)["mistake"].all())
    verdict = rest(s.start[:, :2])
    assert bool(verdict["mistake"].all())
    assert bool((verdict["fail"] == (on_mistake == "fail")).all())
    assert bool((verdict["success"] == (on_mistake == "ignore")).all())
    task.on_mistake = "fail"


@pytest.mark.parametrize(
    ("distance", "lift", "reached"),
    [(0.0, 0.0, True), (MIDDLE - 1e-4, 0.0, True), (MIDDLE + 1e-4, 0.0, False), (0.0, 0.011, False)],
)
def test_reaching_the_goal_is_for_good(env: Env, distance: float, lift: float, reached: bool) -> None:
    task, s = task_of(env), fresh()
    xy = s.goal + distance * directions()
    task.update_state(s, step_data(torch.cat([xy, torch.full((MANY, 1), HALF_SIZE + lift)], dim=1)), NO_TOUCH)
    for look in (step_data(xy), step_data(s.start)):
        assert bool((s.reached == reached).all())
        assert bool((task.outcome(s, look)["reached"] == reached).all())
        visible, home = task.layout(s, look.elapsed)
        assert visible.tolist() == [[True, not reached, reached]] * MANY
        assert torch.equal(home[:, RED], home[:, MAGENTA])
        if not reached:
            break
        task.update_state(s, step_data(s.start), NO_TOUCH)


def test_only_the_environments_whose_cube_is_there_have_reached_the_goal(env: Env) -> None:
    task, s = task_of(env), fresh()
    there = torch.rand(MANY, generator=torch.Generator().manual_seed(1)) < 0.5
    task.update_state(s, step_data(torch.where(there[:, None], s.goal, s.start[:, :2])), NO_TOUCH)
    assert torch.equal(s.reached, there)
    visible, _ = task.layout(s, torch.full((MANY,), 20))
    assert torch.equal(visible[:, MAGENTA], there)
    assert torch.equal(visible[:, RED], ~there)


def test_nothing_counts_before_the_response(env: Env) -> None:
    task, s = task_of(env), fresh()
    for elapsed in (0, 1):
        task.update_state(s, step_data(s.goal, elapsed=elapsed), NO_TOUCH)
        assert not bool(s.reached.any()), "at its first step the cube is only just put at its start"
    s.reached[:] = True
    for elapsed in (0, 1, 1, 1):
        task.update_state(s, step_data(s.start, elapsed=elapsed), NO_TOUCH)
        assert not bool(task.outcome(s, step_data(s.start, elapsed=elapsed))["success"].any())


def test_a_grasp_takes_both_fingers_and_the_cube_between_them(env: Env) -> None:
    task, s = task_of(env), fresh()
    held, pressed = step_data(s.start), step_data(s.start)
    held.tcp[:, :3] = s.start + 0.01
    pressed.tcp[:, 2] = 2 * HALF_SIZE + 0.005  # closed fingertips on top
    for links, grasped in (((0, 1), False), ((0, 2), False), ((1, 2), True), ((), False)):
        touching = NO_TOUCH.clone()
        touching[:, list(links), 0] = True
        task.update_state(s, held, touching)
        assert bool((s.grasped == grasped).all())
        task.update_state(s, pressed, touching)
        assert not bool(s.grasped.any())


def test_the_oracle_is_the_start_whatever_happens(env: Env) -> None:
    task, s = task_of(env), fresh()
    start = s.start.clone()
    assert torch.equal(task.oracle(s), start)
    task.update_state(s, step_data(s.goal), NO_TOUCH)
    assert torch.equal(task.oracle(s), start)
    features = task.state_features(s, step_data(s.goal))
    assert torch.allclose(features["cube_to_start"][:, :2], start[:, :2] - s.goal, atol=1e-6)
    assert torch.allclose(features["cube_to_goal"], torch.zeros(MANY, 2), atol=1e-6)
    assert bool(features["reached"].all())


# ---------------------------------------------------------------------- rewards
def test_the_reward_rises_along_the_way_there_and_back(env: Env) -> None:
    task, s = task_of(env), fresh()
    start = s.start[:, :2].clone()
    last, part = torch.full((MANY,), -1.0), torch.zeros(MANY, 1)
    for _ in range(60):  # until it is reached towards the goal, then back, 1 / 30 of the way at a time
        look = step_data(start + part * (s.goal - start), joint_speed=0.5)  # in motion: no success
        task.update_state(s, look, NO_TOUCH)
        reward = paid(task, s, look)
        assert bool((reward > last - 1e-6).all()), part
        last, part = reward, (part + torch.where(s.reached[:, None], -1, 1) / 30).clamp(min=0)
    assert bool(s.reached.all())
    assert torch.allclose(task.reward_terms(s, look)["progress"], torch.ones(MANY))
    s.reached[:] = False
    assert torch.allclose(task.reward_terms(s, look)["progress"], torch.tensor(0.1 * LEG)), "the start is the start"
    look.objects[:, CUBE, 0] -= 0.1  # away from the goal
    assert bool((task.reward_terms(s, look)["progress"] < 0.1 * LEG - 0.005).all())
    look.objects[:, CUBE, 0] += 0.1
    s.reached[:] = True
    look.joint_speed[:] = 0
    s.rested[:] = 2
    assert bool((paid(task, s, look) == rewards.maximum(task.reward_scales)).all())


def test_reaching_the_goal_is_never_punished(env: Env) -> None:
    """Wherever in the disc the cube gets there, from whichever state."""
    task, s = task_of(env), fresh()
    generator = torch.Generator().manual_seed(3)
    distance = GOAL * torch.rand(MANY, 1, generator=generator)
    look = step_data(s.goal + distance * directions(), joint_speed=0.3)
    s.grasped[:] = torch.rand(MANY, generator=generator) < 0.5
    before = paid(task, s, look)
    s.reached[:] = True
    assert bool((paid(task, s, look) >= before - 1e-6).all())
    # and being carried over the disc pays less than lying on it
    s.reached[:] = False
    look.objects[:, CUBE, 2] += 0.05
    assert bool((task.reward_terms(s, look)["progress"] < LEG - 0.04).all())


def test_a_cube_that_was_carried_past_the_goal_or_lifted_earns_by_coming_back(env: Env) -> None:
    """A policy that PPO had learnt stayed there: it lost nothing by carrying the cube on."""
    task, s = task_of(env), fresh()
    s.reached[:] = True
    start = s.start[:, :2].clone()
    last = torch.full((MANY,), -1.0)
    for part in torch.linspace(1.5, 0, 16):
        look = step_data(start + part * (s.goal - start), joint_speed=0.5)
        look.objects[:, CUBE, 2] += 0.2 * part  # lifted, and lowered on its way
        reward = paid(task, s, look)
        assert bool((reward > last + 1e-3).all()), part
        last = reward


def test_a_cube_held_above_the_table_beside_the_region_earns_clearly_less_than_one_in_its_middle(env: Env) -> None:
    """A policy that PPO had learnt held it there: no mistake was possible, and there was little to gain by going on."""
    task, s = task_of(env), fresh()
    s.reached[:] = True
    s.grasped[:] = True
    way = (s.goal - s.start[:, :2]) / torch.linalg.norm(s.goal - s.start[:, :2], dim=1, keepdim=True)
    held = step_data(s.start[:, :2] + (REGION + 0.02) * way, joint_speed=0.5)
    held.objects[:, CUBE, 2] += 0.015
    down = step_data(s.start, joint_speed=0.5)
    gain = paid(task, s, down) - paid(task, s, held)
    assert bool((gain > 0.1 * sum(task.reward_scales.values())).all()), gain.min()


def test_standing_still_pays_little_before_the_cube_is_back(env: Env) -> None:
    task, s = task_of(env), fresh()
    s.reached[:] = True
    assert not bool(task.reward_terms(s, step_data(s.goal))["still"].any())
    assert float(task.reward_terms(s, step_data(s.start))["still"].min()) == 1


# ---------------------------------------------------------------------- in simulation
def parts(env: Env, obs: dict[str, Tensor]) -> Tensor:
    """The ``objects`` part, (N, 3, 11)."""
    return obs["objects"].reshape(N, 3, -1)


def settle(env: Env, seed: int, steps: int = 3) -> None:
    """A new episode, a few steps into its response."""
    env.reset(seed=seed)
    for _ in range(steps):
        env.step(still_action(env))


def put(env: Env, rows: list[int], xy: Tensor) -> None:
    """Lays the cubes of environments ``rows`` at ``xy`` (N, 2)."""
    move(env, task_of(env).objects[CUBE], rows, lying(xy[rows]))


def test_the_disc_changes_in_the_same_step_and_stays_so(env: Env) -> None:
    """With environments at different t."""
    task = task_of(env)
    stagger(env, seed=1, scale=0.2)
    env.step(still_action(env))
    env.step(still_action(env))
    assert len(set(task.elapsed_steps.tolist())) >= 3
    s, there = task.task_state, [0, 2, 3, 5]
    reached = torch.zeros(N, dtype=torch.bool)
    assert torch.equal(s.reached, reached)
    put(env, there, s.goal)
    reached[there] = True
    for k in range(4):
        obs, _, _, _, info = env.step(still_action(env))
        assert torch.equal(info["reached"], reached)
        view = parts(env, obs)
        assert bool((view[:, CUBE, 0] == 1).all())
        assert torch.equal(view[:, RED, 0] == 1, ~reached)
        assert torch.equal(view[:, MAGENTA, 0] == 1, reached)
        objects = task.object_layout.read()
        away = objects[..., 2] > HIDDEN_HEIGHT
        assert torch.equal(away[:, RED], reached)
        assert torch.equal(away[:, MAGENTA], ~reached)
        shown = torch.where(reached[:, None], objects[:, MAGENTA, :3], objects[:, RED, :3])
        assert torch.equal(shown[:, :2], s.goal)
        assert torch.allclose(shown[:, 2], torch.tensor(DISC_THICKNESS / 2))
        if k == 0:
            s.rested[:] = 0
            put(env, there, s.goal + torch.tensor([0.0, 0.04]))
    assert not bool(info["success"].any() | info["fail"].any())
    # a new episode begins red again, and its neighbours stay as they are
    env.reset(options={"env_idx": [2, 4]})
    reached[2] = False
    obs = env.step(still_action(env))[0]
    assert torch.equal(parts(env, obs)[:, MAGENTA, 0] == 1, reached)
    assert torch.equal(parts(env, obs)[:, RED, 0] == 1, ~reached)


def test_there_and_back_is_success_and_either_alone_is_not(env: Env) -> None:
    task = task_of(env)
    settle(env, seed=2)
    s, both, back_only, there_only = task.task_state, [0, 1, 2], [3, 4], [5, 6, 7]
    put(env, both + there_only, s.goal)
    put(env, back_only, s.start[:, :2] + torch.tensor([0.06, 0.0]))
    env.step(still_action(env))
    put(env, both + back_only, s.start[:, :2])
    env.step(still_action(env))
    _, reward, terminated, _, info = env.step(still_action(env))
    expected = torch.tensor([i in both for i in range(N)])
    assert torch.equal(info["success"], expected)
    assert torch.equal(terminated, expected)
    assert torch.equal(reward == 1, expected)
    assert info["in_region"].tolist() == [i in both + back_only for i in range(N)]


def test_a_cube_that_slides_through_the_region_is_not_back(env: Env) -> None:
    task = task_of(env)
    settle(env, seed=3)
    s = task.task_state
    s.reached[:] = True
    move(env, task.objects[CUBE], list(range(N)), lying(s.start[:, :2]), velocity=(0.3, 0.0, 0.0))
    first, *later = [step(env, still_action(env)) for _ in range(6)]
    assert bool(first["info/in_region"].all())
    assert not bool(first["info/at_rest"].any() | first["info/success"].any())
    assert bool(later[-1]["info/at_rest"].all())


def test_a_cube_that_a_hand_holds_still_is_back() -> None:
    """Whatever the simulator says: to many a cube between closed fingers it gives speeds above that of rest."""
    with contextlib.closing(make(ID, N, control_mode="pd_ee_delta_pos")) as env:
        task = task_of(env)
        env.reset(seed=4)
        target = task.task_state.start.clone()
        for z, gripper, steps in ((0.15, 1.0, 25), (0.015, 1.0, 25), (0.015, -1.0, 12)):
            target[:, 2] = z
            for _ in range(steps):
                last = step(env, go_to(env, target, gripper))
        assert bool(task.task_state.grasped.all())
        reported = torch.linalg.norm(task.objects[CUBE].linear_velocity, dim=1)
        assert bool((reported > REST_SPEED).any()), "else this shows nothing"
        assert bool(last["info/at_rest"].all())
        task.task_state.reached[:] = True
        assert bool(step(env, go_to(env, target))["info/success"].all())


def hide_start_from(env: Env, seed: int) -> tuple[list[int], list[int]]:
    """Pairs of environments with the same episode and, from the second frame on, another start to be remembered."""
    one, other = list(range(N // 2)), list(range(N // 2, N))
    env.reset(seed=[seed + i for i in one] * 2)
    env.step(still_action(env))
    start = base(env).task_state.start
    start[other] = start[other] * torch.tensor([-1.0, -1.0, 1.0]) + torch.tensor([0.01, 0.1, 0.0])
    return one, other


def test_after_the_first_frame_nothing_but_the_oracle_tells_the_start() -> None:
    """On the way there, at the goal, and back: episodes that differ in the remembered start alone look the same."""
    made = make(ID, N, obs_mode="objects+oracle")
    one, other = hide_start_from(made, seed=4)
    task = task_of(made)
    for t, action in enumerate(random_actions(made, 24, seed=5, num_envs=N // 2).repeat(1, 2, 1)):
        if t in (6, 16):
            put(made, list(range(N)), task.task_state.goal + (0.12 if t == 16 else 0.0))
        obs = made.step(action)[0]
        assert set(obs) == {"objects", "joints", "oracle"}
        for name in ("objects", "joints"):
            assert torch.equal(obs[name][one], obs[name][other]), (name, t)
        assert not bool((obs["oracle"][one] == obs["oracle"][other]).all(dim=1).any())
    assert bool(task.task_state.reached.all())
    made.close()


@pytest.mark.render
def test_no_camera_sees_where_the_cube_started() -> None:
    """The same in pictures, of two environments and of one moment; and the discs are seen in their colours."""
    made = make(ID, 2, obs_mode="rgb+depth+segmentation")
    task = task_of(made)
    made.reset(seed=[6, 6])
    made.step(still_action(made))
    s = task.task_state
    s.start[1, :2] = -s.start[0, :2] + 0.03

    def pixels(obs: dict[str, Tensor], disc: int) -> Tensor:
        """(2,) pixels of a disc in the base camera's picture."""
        index = task.objects[disc].per_scene_id
        return (obs["segmentation"][..., 0] == index[:, None, None]).sum(dim=(1, 2))

    for shown, hidden in ((RED, MAGENTA), (MAGENTA, RED)):
        obs = made.step(still_action(made))[0]
        assert bool((pixels(obs, shown) > 20).all())
        assert not bool(pixels(obs, hidden).any())
        for name in ("rgb", "depth"):
            assert torch.equal(obs[name][0], obs[name][1]), name
        if shown == RED:
            move(made, task.objects[CUBE], [0, 1], lying(s.goal))
            made.step(still_action(made))
            move(made, task.objects[CUBE], [0, 1], lying(s.goal + 0.03))  # off the disc, which it covers
    assert bool(s.reached.all())
    s.start += torch.tensor([0.05, 0.05, 0.0])
    again = task.get_obs()
    for name in ("rgb", "depth", "segmentation"):
        assert torch.equal(obs[name], again[name]), name
    on_disc = obs["segmentation"][0, ..., 0] == int(task.objects[MAGENTA].per_scene_id[0])
    red, green, blue = obs["rgb"][0, ..., :3][on_disc].to(torch.float32).mean(dim=0).tolist()
    assert min(red, blue) > 2 * green
    made.close()


def test_a_robot_can_take_the_cube_there_and_back() -> None:
    """By its own actions, within the time there is. Nothing sinks into the cube."""
    made = make(ID, N, obs_mode="objects", control_mode="pd_joint_delta_pos")
    task = task_of(made)
    expert = Expert(TakeItBackSkill(task))
    obs, info = made.reset(seed=8)
    expert.reset()
    success = torch.zeros(N, dtype=torch.bool)
    carried = 0
    while not bool(success.all()) and int(task.elapsed_steps[0]) < task.horizon:
        obs, _, _, _, info = made.step(expert.act(obs, info))
        success |= info["success"]
        s = task.task_state
        carried += int((s.grasped & s.reached).sum())
        fingers = task._read_sim(task.elapsed_steps).fingers[s.grasped]
        assert not bool((fingers < 0.015).any()), "the fingers have sunk into the cube"
    assert bool(success.all()), success
    assert carried > 10 * N, "nothing was carried back"
    made.close()


# ---------------------------------------------------------------------- the expert's twins
def view_of(cube: Tensor, shown: int | None, joint_speed: float = 0.0) -> View:
    """The cube at ``cube`` (N, 2) and the disc ``shown``; None: the table is empty."""
    visible, position = torch.zeros(N, 3, dtype=torch.bool), torch.zeros(N, 3, 3)
    if shown is not None:
        visible[:, [CUBE, shown]] = True
        position[:, CUBE, :2] = cube
    joints = torch.zeros(N, 25)
    joints[:, 9:16] = joint_speed
    return View(visible, position, torch.zeros(N, 3, 4), joints, None)


def test_what_a_memory_knows_of_the_start_is_its_oldest_view_of_the_red_disc(env: Env) -> None:
    skill = TakeItBackSkill(task_of(env))
    start, later = fresh().start[:N, :2], fresh(1).start[:N, :2]
    views = [
        view_of(later, RED),
        view_of(start, None),
        view_of(start, RED),
        view_of(later, RED),
        view_of(later, MAGENTA),
    ]
    valid = torch.ones(len(views), N, dtype=torch.bool)
    valid[0] = False  # of the episode before
    u = (torch.arange(N)[:, None] + 0.5) / N
    assert torch.equal(skill.from_history(History(views, valid), u), start)
    for blind in (History(views[-1:], valid[-1:]), History(views[:2], valid[:2])):
        guessed = skill.from_history(blind, u)
        assert len(guessed.unique(dim=0)) == skill.candidates, "a guess is one of all places"
        assert bool((torch.cdist(guessed, skill.attempt(torch.arange(skill.candidates))).amin(dim=1) == 0).all())


@pytest.mark.parametrize(
    ("shown", "aside", "joint_speed", "tried"),
    [(MAGENTA, 0.0, 0.0, True), (MAGENTA, 0.0, 0.1, False), (MAGENTA, 0.02, 0.0, False), (RED, 0.0, 0.0, False)],
)
def test_a_place_is_tried_once_the_cube_rests_there(
    env: Env, shown: int, aside: float, joint_speed: float, tried: bool
) -> None:
    skill = TakeItBackSkill(task_of(env))
    content = skill.attempt(torch.arange(N) % skill.candidates)
    found = skill.tried(view_of(content + torch.tensor([aside, 0.0]), shown, joint_speed), content, {})
    assert found.tolist() == [tried] * N


# ---------------------------------------------------------------------- dials
@pytest.mark.parametrize("name", ["goal_radius", "region_radius"])
@pytest.mark.parametrize("value", [0, 0.009, 0.076, -0.05, float("nan"), "0.05", None, True])
def test_bad_radii_are_named_before_anything_is_built(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}={value!r} must be.*0\.01 to 0\.075"):
        gym.make(ID, num_envs=2, **{name: value})


@pytest.mark.parametrize("value", [0, 0.0049, 0.051, float("nan"), "0.01", None, True])
def test_a_bad_tolerance_is_named_before_anything_is_built(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"goal_tolerance={value!r} must be.*from 0\.005 to 0\.05 m"):
        gym.make(ID, num_envs=2, goal_tolerance=value)


def test_radii_and_lengths_can_be_chosen() -> None:
    made = make(
        ID,
        N,
        goal_radius=0.075,
        goal_tolerance=0.074,
        region_radius=0.01,
        cue_steps=3,
        delay_steps=2,
        response_steps=10,
    )
    task = task_of(made)
    assert task.horizon == 15
    made.reset(seed=9)
    start = task.task_state.start.clone()
    for t in range(1, 7):
        put(made, list(range(N)), task.task_state.goal)  # comes to nothing until the response
        made.step(still_action(made))
        objects = task.object_layout.read()
        hidden = objects[..., 2] > HIDDEN_HEIGHT
        assert hidden.tolist() == [[t in (3, 4), t in (3, 4) or t == 6, t < 6]] * N, t
        if t in (1, 2, 5):
            assert torch.equal(objects[:, CUBE, :3], start)
    s, look = fresh(), step_data(fresh().goal)
    for distance, inside in ((0.073, True), (0.075, False)):
        s.reached[:] = False
        look.objects[:, CUBE, :2] = s.goal + distance * directions()
        task.update_state(s, look, NO_TOUCH)
        assert bool((s.reached == inside).all())
    s.reached[:] = True
    for distance, mistake in ((0.0749, False), (0.0751, True)):
        look.objects[:, CUBE, :2] = s.goal + distance * directions()
        s.rested[:] = 2
        task.update_state(s, look, NO_TOUCH)
        assert bool((s.mistaken == mistake).all()), "on the disc it may rest"
    for distance, inside in ((0.0099, True), (0.0101, False)):
        look.objects[:, CUBE, :2] = s.start[:, :2] + distance * directions()
        s.rested[:], s.mistaken[:] = 2, False
        assert bool((task.outcome(s, look)["success"] == inside).all())
    made.close()


# ---------------------------------------------------------------------- a cube that comes back elsewhere
def test_a_cube_that_comes_back_elsewhere_tells_nothing_of_its_start() -> None:
    values = torch.rand(MANY, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = sample_start_and_goal(Uniforms(values), replaced=True)
    paper = sample_start_and_goal(Uniforms(values[:, :4]))
    assert torch.equal(s.start, paper.start)
    assert torch.equal(paper.returned, paper.start)
    table = torch.corrcoef(torch.cat([s.start[:, :2], s.returned[:, :2], s.goal[:, :1]], dim=1).T)
    assert float((table - torch.eye(5)).abs().max()) < 0.11
    assert float(s.returned[:, 0].max()) < float(s.start[:, 0].min()) - REGION, "in the region without a movement"


def test_the_progress_of_a_cube_that_came_back_elsewhere_begins_there(env: Env) -> None:
    values = torch.rand(MANY, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = sample_start_and_goal(Uniforms(values), replaced=True)
    progress = task_of(env).reward_terms(s, step_data(s.returned))["progress"]
    assert torch.allclose(progress, torch.tensor(0.1 * LEG), atol=1e-5)


def test_it_is_shown_hidden_and_put_there_while_the_arm_is_held() -> None:
    made = make("TakeItBackReplaced-v0", N, obs_mode="objects")
    obs, _ = made.reset(seed=1)
    task = task_of(made)
    s, at_start = task.task_state, obs["joints"][:, :9].clone()
    for t in range(1, 11):
        obs = made.step(torch.full((N, 8), 0.9))[0]
        assert torch.allclose(obs["joints"][:, :9], at_start, atol=2e-3), f"the arm moved at t = {t}"
        assert bool(((obs["objects"][:, 0] > 0) == (t < 5 or t == 10)).all())
        if t < 5 or t == 10:
            where = s.start if t < 5 else s.returned
            assert torch.allclose(task.object_layout.read()[:, CUBE, :3], where, atol=1e-5)
    step(made, still_action(made))
    move(made, task.objects[0], range(N), lying(s.goal))
    assert bool(step(made, still_action(made))["info/reached"].all())
    for place, good in ((s.returned, False), (s.start, True)):
        kept = made.unwrapped.get_state_dict()
        for _ in range(3):
            move(made, task.objects[0], range(N), lying(place[:, :2]))
            record = step(made, still_action(made))
        assert bool((record["info/success"] == good).all())
        assert bool((record["info/fail"] != good).all())
        made.unwrapped.set_state_dict(kept)
    made.close()
