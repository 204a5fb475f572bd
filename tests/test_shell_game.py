"""ShellGame: the ball stays under its mug; what touching, pushing and picking are; and that a robot can do them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from task_helpers import Env, Record, base, go_to, make, move, step, still_action
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, MUG_HEIGHT, MUG_INNER_RADIUS, MUG_RADIUS
from mikasa_robo.core.env import STATIC_SPEED, StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.tasks.shell_game import ShellGame, ShellState, sample_shells

MANY = 1000
N = 8
MODES = {"touch": "ShellGameTouch-v0", "push": "ShellGamePush-v0", "pick": "ShellGamePick-v0"}


@pytest.fixture(scope="module")
def envs() -> Iterator[dict[str, Env]]:
    """Eight environments of each mode, whose hands are moved in space."""
    made = {mode: make(task_id, N, control_mode="pd_ee_delta_pos") for mode, task_id in MODES.items()}
    yield made
    for env in made.values():
        env.close()


def task_of(env: Env) -> ShellGame:
    return cast(ShellGame, base(env))


def over_time(records: list[Record], name: str) -> Tensor:
    """(T, N) of an entry of the records."""
    return torch.stack([record[name] for record in records])


def covered(env: Env, seed: int) -> None:
    """A new episode, up to t = 6: the mugs stand there."""
    env.reset(seed=seed)
    for _ in range(6):
        env.step(still_action(env))


def place_of(env: Env, index: Tensor) -> Tensor:
    """(N, 2) where mug ``index`` (N,) was put."""
    places = task_of(env).task_state.places
    return places[torch.arange(len(places)), index].clone()


def at(xy: Tensor, z: float, dx: float = 0.0) -> Tensor:
    """(N, 3)"""
    return torch.cat([xy + torch.tensor([dx, 0.0]), torch.full((len(xy), 1), z)], dim=1)


def follow(env: Env, way: list[tuple[Tensor, int]], gripper: float = -1.0, speed: float = 0.5) -> list[Record]:
    """Moves the hand towards each target (N, 3) for a number of steps."""
    return [step(env, go_to(env, target, gripper, speed=speed)) for target, steps in way for _ in range(steps)]


# ---------------------------------------------------------------------- by tensors, a thousand at a time
def fresh() -> ShellState:
    values = torch.rand(MANY, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return sample_shells(Uniforms(values))


def step_data(s: ShellState, joint_speed: float = 0.0, responding: bool = True, elapsed: int = 20) -> StepData:
    """Everything where it was put, at rest."""
    objects = torch.zeros(MANY, 4, 13)
    objects[:, 1:, :2] = s.places
    objects[:, 0, :2] = s.places[torch.arange(MANY), s.target]
    objects[:, 1:, 2], objects[:, 0, 2], objects[..., 3] = MUG_HEIGHT / 2, BALL_RADIUS, 1.0
    return StepData(
        elapsed=torch.full((MANY,), elapsed),
        responding=torch.full((MANY,), responding),
        objects=objects,
        tcp=torch.zeros(MANY, 7),
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.full((MANY,), 0.04),
        speeds=torch.zeros(MANY, 4),
    )


NOTHING = torch.zeros(MANY, 3, 3, dtype=torch.bool)


def touch(index: Tensor, *links: int) -> Tensor:
    touching = NOTHING.clone()
    for link in links:
        touching[torch.arange(MANY), link, index] = True
    return touching


def shifted(look: StepData, mug: Tensor, by: tuple[float, float, float]) -> StepData:
    """The same with mug ``mug`` (MANY,) of each environment moved, m."""
    look.objects[torch.arange(MANY), 1 + mug, :3] += torch.tensor(by)
    return look


def test_touch_the_right_mug_is_touched_for_two_steps(envs: dict[str, Env]) -> None:
    task, s = task_of(envs["touch"]), fresh()
    task.update_state(s, step_data(s), touch(s.target, 1))
    assert not bool(task.outcome(s, step_data(s))["success"].any()), "one step does not count"
    task.update_state(s, step_data(s), touch(s.target, 1))
    assert bool(task.outcome(s, step_data(s))["success"].all())
    assert not bool(task.outcome(s, step_data(s, joint_speed=STATIC_SPEED * 1.01))["success"].any())


def test_touch_a_wrong_mug_fails_for_good(envs: dict[str, Env]) -> None:
    task, s = task_of(envs["touch"]), fresh()
    wrong = (s.target + 1) % 3
    for index in (wrong, s.target, wrong, s.target):
        task.update_state(s, step_data(s), touch(index, 0))
    assert not bool(task.outcome(s, step_data(s))["fail"].any()), "touches of one step do not count"
    for index in (wrong, wrong, s.target, s.target):
        task.update_state(s, step_data(s), touch(index, 0))
    verdict = task.outcome(s, step_data(s))
    assert bool(verdict["fail"].all())
    assert not bool(verdict["success"].any())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_counts_before_the_response(envs: dict[str, Env], mode: str) -> None:
    task, s = task_of(envs[mode]), fresh()
    wrong = (s.target + 2) % 3
    for index in (s.target, s.target, wrong, wrong):
        look = shifted(step_data(s, responding=False, elapsed=3), wrong, (0.3, 0.0, 0.3))
        task.update_state(s, look, touch(index, 0, 1, 2))
        verdict = task.outcome(s, shifted(look, s.target, (0.2, 0, 0.2)))
        for name in ("success", "fail", "touched", "in_zone", "lifted", "mistake"):
            assert not bool(verdict[name].any()), name


@pytest.mark.parametrize("mode", ["push", "pick"])
def test_touching_a_wrong_mug_is_no_mistake_where_it_is_not_the_task(envs: dict[str, Env], mode: str) -> None:
    task, s = task_of(envs[mode]), fresh()
    for _ in range(4):
        task.update_state(s, step_data(s), touch((s.target + 1) % 3, 0, 1))
    assert not bool(task.outcome(s, step_data(s))["fail"].any())


@pytest.mark.parametrize(
    ("mode", "by", "mistake"),
    [
        ("push", (0.04, 0.0, 0.0), False),
        ("push", (0.06, 0.0, 0.0), True),
        ("push", (-0.06, 0.0, 0.0), True),
        ("push", (0.0, 0.06, 0.0), True),
        ("push", (0.03, 0.03, 0.0), False),
        ("push", (0.04, 0.04, 0.0), True),
        ("pick", (0.0, 0.0, 0.01), False),
        ("pick", (0.0, 0.0, 0.03), True),
        ("pick", (0.2, 0.0, 0.0), False),
        ("touch", (0.2, 0.0, 0.1), False),
    ],
)
def test_how_far_a_wrong_mug_may_go(
    envs: dict[str, Env], mode: str, by: tuple[float, float, float], mistake: bool
) -> None:
    task, s = task_of(envs[mode]), fresh()
    wrong = (s.target + 1) % 3
    task.update_state(s, shifted(step_data(s), wrong, by), NOTHING)
    assert bool((task.outcome(s, step_data(s))["fail"] == mistake).all())
    # for good, and the right one may go anywhere
    for _ in range(2):
        task.update_state(s, shifted(step_data(s), s.target, by), NOTHING)
    assert bool((task.outcome(s, step_data(s))["mistake"] == mistake).all())


@pytest.mark.parametrize(
    ("by", "speed", "success"),
    [
        ((0.2, 0.0), 0.0, True),
        ((0.11, 0.0), 0.0, True),
        ((0.09, 0.0), 0.0, False),
        ((0.29, 0.0), 0.0, True),
        ((0.31, 0.0), 0.0, False),
        ((0.2, 0.09), 0.0, True),
        ((0.2, -0.11), 0.0, False),
        ((0.0, 0.0), 0.0, False),
        ((0.2, 0.0), 0.04, True),
        ((0.2, 0.0), 0.06, False),
    ],
)
def test_push_zone_and_rest(envs: dict[str, Env], by: tuple[float, float], speed: float, success: bool) -> None:
    task, s = task_of(envs["push"]), fresh()
    look = shifted(step_data(s), s.target, (*by, 0.0))
    look.speeds[torch.arange(MANY), 1 + s.target] = speed
    task.update_state(s, look, NOTHING)
    assert bool((task.outcome(s, look)["success"] == success).all())
    look.joint_speed += 1
    assert not bool(task.outcome(s, look)["success"].any())
    s.mistaken[:] = True
    look.joint_speed -= 1
    assert not bool(task.outcome(s, look)["success"].any())


@pytest.mark.parametrize(("height", "success"), [(0.09, False), (0.11, True)])
def test_pick_height_is_that_of_the_lowest_point(envs: dict[str, Env], height: float, success: bool) -> None:
    task, s = task_of(envs["pick"]), fresh()
    look = shifted(step_data(s), s.target, (0.0, 0.0, height))
    task.update_state(s, look, NOTHING)
    assert bool((task.outcome(s, look)["success"] == success).all())
    # lying on its side it is as low as its radius
    lying = shifted(step_data(s), s.target, (0.0, 0.0, height - MUG_HEIGHT / 2 + MUG_RADIUS))
    half = 0.5**0.5
    lying.objects[torch.arange(MANY), 1 + s.target, 3:7] = torch.tensor([half, half, 0.0, 0.0])
    assert bool((task.outcome(s, lying)["success"] == success).all())


# ---------------------------------------------------------------------- by physics
def inside(env: Env) -> Tensor:
    """(N,) bool: the ball is within its mug, seen in the mug's plane, and on the table."""
    task = task_of(env)
    objects = task.object_layout.read()
    mug = objects[torch.arange(len(objects)), 1 + task.task_state.target]
    apart = torch.linalg.norm(objects[:, 0, :2] - mug[:, :2], dim=1)
    # the walls are flat: at a corner the ball's centre may be a little farther out than the walls' distance allows
    return (apart < MUG_INNER_RADIUS - BALL_RADIUS + 0.002) & ((objects[:, 0, 2] - BALL_RADIUS).abs() < 0.005)


def test_the_ball_is_under_the_right_mug_from_step_five_on(envs: dict[str, Env]) -> None:
    env = envs["touch"]
    task = task_of(env)
    env.reset(seed=11)
    ball = place_of(env, task.task_state.target)
    for t in range(1, 30):
        env.step(still_action(env))
        objects = task.object_layout.read()
        assert torch.allclose(objects[:, 0, :2], ball, rtol=0, atol=0.001)
        if t >= 5:
            assert bool(inside(env).all()), t
        else:
            assert float(objects[:, 1:, 2].min()) > 100


def test_the_ball_stays_inside_a_mug_that_is_pushed(envs: dict[str, Env]) -> None:
    """By 0.2 m, at 0.3 m/s, in eight directions."""
    env = envs["touch"]
    task = task_of(env)
    covered(env, seed=12)
    start = task.object_layout.read()[torch.arange(N), 1 + task.task_state.target, :2].clone()
    angle = torch.arange(N) * (2 * torch.pi / N)
    for _ in range(16):
        objects = task.object_layout.read()
        for i in range(N):
            k = 1 + int(task.task_state.target[i])
            speed = (0.3 * float(torch.cos(angle[i])), 0.3 * float(torch.sin(angle[i])), 0.0)
            move(env, task.objects[k], [i], objects[i : i + 1, k, :7], speed)
        env.step(still_action(env))
        assert bool(inside(env).all())
    way = task.object_layout.read()[torch.arange(N), 1 + task.task_state.target, :2] - start
    # not into each other: mugs pushed along y may meet their neighbours
    assert float(torch.linalg.norm(way, dim=1)[[0, 4]].min()) > 0.15
    for _ in range(20):
        env.step(still_action(env))
    assert bool(inside(env).all())


def test_everything_rests_where_it_appears() -> None:
    """Untouched for 200 steps."""
    env = make("ShellGameTouch-v0", N, response_steps=250)
    env.reset(seed=13)
    for _ in range(5):
        env.step(still_action(env))
    task = task_of(env)
    start = task.object_layout.read().clone()
    _, home = task.layout(task.task_state, task.elapsed_steps)
    assert torch.allclose(start[..., :7], home, rtol=0, atol=1e-6)
    for k in range(200):
        env.step(still_action(env))
        objects = task.object_layout.read()
        assert float(torch.linalg.norm(objects[..., :3] - start[..., :3], dim=-1).max()) < 0.001, k
    assert float(objects[..., 7:].abs().max()) < 0.01
    assert float(objects[:, 1:, 3].abs().min()) > 0.9999, "a mug has turned"
    env.close()


# ---------------------------------------------------------------------- by the robot
def test_a_finger_on_the_right_mug_succeeds_and_on_a_wrong_one_fails(envs: dict[str, Env]) -> None:
    env = envs["touch"]
    covered(env, seed=21)
    target = task_of(env).task_state.target
    right, wrong = list(range(4)), list(range(4, N))
    xy = place_of(env, torch.where(torch.arange(N) < 4, target, (target + 1) % 3))
    records = follow(env, [(at(xy, 0.18), 20), (at(xy, 0.07), 10)])
    records += [step(env, still_action(env, gripper=-1.0)) for _ in range(3)]
    assert bool(over_time(records, "info/success")[:, right].any(dim=0).all())
    assert not bool(over_time(records, "info/fail")[:, right].any())
    assert bool(over_time(records, "info/fail")[:, wrong].any(dim=0).all())
    assert not bool(over_time(records, "info/success")[:, wrong].any())


def test_the_arm_pushes_the_right_mug_into_the_zone_and_fails_with_a_wrong_one(envs: dict[str, Env]) -> None:
    env = envs["push"]
    covered(env, seed=22)
    target = task_of(env).task_state.target
    right, wrong = list(range(4)), list(range(4, N))
    xy = place_of(env, torch.where(torch.arange(N) < 4, target, (target + 1) % 3))
    records = follow(env, [(at(xy, 0.2, dx=-0.1), 18), (at(xy, 0.04, dx=-0.1), 12)])
    records += follow(env, [(at(xy, 0.04, dx=0.15), 30)], speed=0.15)
    records += [step(env, still_action(env, gripper=-1.0)) for _ in range(6)]
    assert bool(over_time(records, "info/success")[:, right].any(dim=0).all())
    assert not bool(over_time(records, "info/fail")[:, right].any())
    assert bool(inside(env)[right].all()), "the ball got out on the way"
    assert bool(over_time(records, "info/fail")[:, wrong].any(dim=0).all())
    assert not bool(over_time(records, "info/success")[:, wrong].any())


def test_the_hand_picks_the_right_mug_and_fails_with_a_wrong_one(envs: dict[str, Env]) -> None:
    env = envs["pick"]
    covered(env, seed=23)
    target = task_of(env).task_state.target
    right, wrong = list(range(4)), list(range(4, N))
    xy = place_of(env, torch.where(torch.arange(N) < 4, target, (target + 1) % 3))
    records = follow(env, [(at(xy, 0.2), 18), (at(xy, 0.045), 14)], gripper=1.0)
    records += follow(env, [(at(xy, 0.045), 8), (at(xy, 0.2), 20)])
    records += [step(env, still_action(env, gripper=-1.0)) for _ in range(4)]
    assert bool(over_time(records, "info/success")[:, right].any(dim=0).all())
    assert not bool(over_time(records, "info/fail")[:, right].any())
    assert bool(over_time(records, "info/fail")[:, wrong].any(dim=0).all())
    assert not bool(over_time(records, "info/success")[:, wrong].any())


def test_a_wrong_touch_is_forgiven_where_mistakes_are_ignored() -> None:
    env = make("ShellGameTouch-v0", 2, control_mode="pd_ee_delta_pos", on_mistake="ignore")
    covered(env, seed=24)
    target = task_of(env).task_state.target
    first, second = place_of(env, (target + 1) % 3), place_of(env, target)
    records = follow(env, [(at(first, 0.18), 18), (at(first, 0.07), 8), (at(first, 0.18), 6)])
    records += follow(env, [(at(second, 0.18), 16), (at(second, 0.07), 8)])
    records += [step(env, still_action(env, gripper=-1.0)) for _ in range(3)]
    assert bool(over_time(records, "info/mistake")[-1].all())
    assert not bool(over_time(records, "info/fail").any())
    assert bool(over_time(records, "info/success").any(dim=0).all())
    env.close()
