"""ShellGame: the ball stays under its mug; what touching, pushing and picking are; and that a robot can do them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from task_helpers import Env, Record, base, go_to, make, move, step, still_action
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, MUG_HEIGHT, MUG_INNER_RADIUS, MUG_RADIUS
from mikasa_robo.core.env import STATIC_SPEED, TOUCH_LINKS, StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.touch_sensor import FORCE_THRESHOLD
from mikasa_robo.experts.evaluation import evaluate
from mikasa_robo.experts.peeking import Look, Peek
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.tasks.shell_game import (
    ON_TABLE,
    STANDING,
    UNCOVERED,
    ShellGame,
    ShellState,
    highest_rim_point,
    sample_shells,
)
from mikasa_robo.tasks.shell_game import covered as under_a_mug

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


NOTHING = torch.zeros(MANY, len(TOUCH_LINKS), 3, dtype=torch.bool)


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
    wrong, other = (s.target + 1) % 3, (s.target + 2) % 3
    for index in (wrong, s.target, other, s.target):
        task.update_state(s, step_data(s), touch(index, 0))
    verdict = task.outcome(s, step_data(s))
    assert not bool((verdict["fail"] | verdict["success"]).any()), "one tap of each does not count"
    task.update_state(s, step_data(s), touch(wrong, len(TOUCH_LINKS) - 1))
    assert bool(task.outcome(s, step_data(s))["fail"].all()), "taps of the same wrong mug add up"
    for index in (s.target, s.target):
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
        ("push", (0.0, 0.0, 0.019), False),
        ("push", (0.0, 0.0, 0.021), True),
        ("pick", (0.0, 0.0, 0.019), False),
        ("pick", (0.0, 0.0, 0.021), True),
        ("pick", (0.04, 0.0, 0.0), False),
        ("pick", (0.0, -0.06, 0.0), True),
        ("touch", (0.2, 0.0, 0.019), False),
        ("touch", (0.0, 0.0, 0.021), True),
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


def tilted(look: StepData, mug: Tensor, angle: float, lift: float = 0.0, axis: float = 1.0) -> StepData:
    """The same with mug ``mug`` (MANY,) tilted on its edge and its lowest point at ``lift``, m."""
    row = torch.arange(MANY)
    look.objects[row, 1 + mug, 2] = MUG_HEIGHT / 2 * abs(math.cos(angle)) + MUG_RADIUS * abs(math.sin(angle)) + lift
    half = angle / 2
    turn = [math.cos(half), math.sin(half) * math.cos(axis), math.sin(half) * math.sin(axis), 0.0]
    look.objects[row, 1 + mug, 3:7] = torch.tensor(turn)
    return look


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("angle", "lift", "mistake"),
    [
        (0.33, 0.0, False),
        (0.35, 0.0, True),
        (-0.35, 0.0, True),
        (0.33, 0.0175, True),  # a peek that a limit on the lowest point alone would allow
        (0.1, 0.013, False),
        (0.1, 0.015, True),
        (math.pi / 2, 0.0, True),
        (math.pi, 0.0, True),
    ],
)
def test_how_far_a_wrong_mug_may_tilt(
    envs: dict[str, Env], mode: str, angle: float, lift: float, mistake: bool
) -> None:
    task, s = task_of(envs[mode]), fresh()
    task.update_state(s, tilted(step_data(s), (s.target + 2) % 3, angle, lift), NOTHING)
    assert bool((task.outcome(s, step_data(s))["fail"] == mistake).all())
    other = fresh()
    task.update_state(other, tilted(step_data(other), other.target, angle, lift), NOTHING)
    assert not bool(task.outcome(other, step_data(other))["mistake"].any()), "the right mug may be tilted"


def test_a_mug_below_the_threshold_covers_the_centre_of_its_ball() -> None:
    """However it is lifted and tilted, and wherever in it the ball lies."""
    u = torch.rand(MANY, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rim = u[:, 0] * UNCOVERED * 0.999
    angle = (u[:, 1] * rim / (2 * MUG_RADIUS)).asin()
    lift = rim - 2 * MUG_RADIUS * angle.sin()
    pose = torch.zeros(MANY, 7, dtype=torch.float64)
    pose[:, 2] = MUG_HEIGHT / 2 * angle.cos() + MUG_RADIUS * angle.sin() + lift
    axis = u[:, 2] * 2 * math.pi
    pose[:, 3], pose[:, 4] = (angle / 2).cos(), (angle / 2).sin() * axis.cos()
    pose[:, 5] = (angle / 2).sin() * axis.sin()
    assert torch.allclose(highest_rim_point(pose), rim, atol=1e-6)
    play, where = (MUG_INNER_RADIUS - BALL_RADIUS) * u[:, 3], u[:, 4] * 2 * math.pi
    # the ball lies under the middle of the rim, but for its play
    middle = torch.stack([-pose[:, 5], pose[:, 4]], dim=1) * (2 * (angle / 2).cos() * MUG_HEIGHT / 2)[:, None]
    ball = torch.stack([play * where.cos(), play * where.sin(), torch.full_like(play, BALL_RADIUS)], dim=1)
    ball[:, :2] += middle
    assert bool(under_a_mug(ball, pose[:, None])[:, 0].all())


@pytest.mark.parametrize(
    ("angle", "lift", "stands"),
    [
        (0.0, 0.0, True),
        (0.0, ON_TABLE * 0.9, True),
        (0.0, ON_TABLE * 1.1, False),
        (STANDING * 0.9 / (2 * MUG_RADIUS), 0.0, True),
        (STANDING * 1.1 / (2 * MUG_RADIUS), 0.0, False),
        (math.pi / 2, 0.0, False),
        (math.pi, 0.0, False),
    ],
)
def test_the_pushed_mug_stands(envs: dict[str, Env], angle: float, lift: float, stands: bool) -> None:
    task, s = task_of(envs["push"]), fresh()
    look = tilted(shifted(step_data(s), s.target, (0.2, 0.0, 0.0)), s.target, angle, lift)
    task.update_state(s, look, NOTHING)
    verdict = task.outcome(s, look)
    assert bool((verdict["success"] == stands).all())
    assert bool((verdict["in_zone"] == stands).all())
    assert not bool(verdict["fail"].any())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["right", "wrong"])
def test_the_ball_is_hidden_until_the_outcome(envs: dict[str, Env], mode: str, who: str) -> None:
    """A mug is taken off in small and in large steps; only what ends the episode shows the ball, where it lay."""
    task, s = task_of(envs[mode]), fresh()
    mug = s.target if who == "right" else (s.target + 1) % 3
    start, elapsed = s.ball.clone(), torch.full((MANY,), 20)
    for height in (0.01, 0.019, 0.03, 0.06, 0.15):
        look = shifted(step_data(s), mug, (0.0, 0.0, height))
        task.update_state(s, look, NOTHING)
        verdict = task.outcome(s, look)
        visible, home = task.layout(s, elapsed)
        assert torch.equal(visible[:, 0], verdict["success"] | verdict["fail"]), height
        assert torch.equal(home[:, 0, :2], start), "the ball stays where it was uncovered"
    expected = who == "wrong" or mode == "pick"
    assert bool((visible[:, 0] == expected).all())


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


def test_a_grasp_takes_both_fingers_and_a_hand_inside_the_mug(envs: dict[str, Env]) -> None:
    task, s = task_of(envs["pick"]), fresh()
    held, pressed = step_data(s), step_data(s)
    mug = held.objects[torch.arange(MANY), 1 + s.target, :3]
    held.tcp[:, :3] = pressed.tcp[:, :3] = mug
    pressed.tcp[:, 2] = MUG_HEIGHT + 0.005  # closed fingertips on its top
    for look, links, grasped in ((held, (1, 2), True), (held, (1,), False), (pressed, (1, 2), False)):
        task.update_state(s, look, touch(s.target, *links))
        assert bool((s.grasped == grasped).all())
        assert bool((task.reward_terms(s, look)["grasp"] == float(grasped)).all())
    task.update_state(s, held, touch((s.target + 1) % 3, 1, 2))
    assert not bool(s.grasped.any()), "another mug"


# ---------------------------------------------------------------------- by physics
def inside(env: Env) -> Tensor:
    """(N,) bool: the ball is within its mug, and not on the table unless the episode is decided."""
    task = task_of(env)
    s, objects = task.task_state, task.object_layout.read()
    mug = objects[torch.arange(len(objects)), 1 + s.target]
    apart = torch.linalg.norm(s.ball - mug[:, :2], dim=1)
    hidden = task.object_layout.parked(objects)[:, 0]
    there = ~hidden & (torch.linalg.norm(objects[:, 0, :2] - s.ball, dim=1) < 1e-6)
    return (apart < MUG_INNER_RADIUS - BALL_RADIUS) & torch.where(s.decided, there, hidden)


def test_the_ball_is_under_the_right_mug_from_step_five_on(envs: dict[str, Env]) -> None:
    env = envs["touch"]
    task = task_of(env)
    env.reset(seed=11)
    ball = place_of(env, task.task_state.target)
    for t in range(1, 30):
        env.step(still_action(env))
        objects = task.object_layout.read()
        assert torch.allclose(task.task_state.ball, ball, rtol=0, atol=0.001)
        if t >= 5:
            assert bool(inside(env).all()), t
        else:
            assert torch.allclose(objects[:, 0, :2], ball, rtol=0, atol=1e-6)
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
    assert torch.allclose(start[:, 1:, :7], home[:, 1:], rtol=0, atol=1e-6)
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


def test_a_contact_of_the_camera_is_a_touch(envs: dict[str, Env]) -> None:
    env = envs["touch"]
    task = task_of(env)
    covered(env, seed=31)
    (box,) = task.agent.robot.links_map["camera_link"]._bodies[0].collision_shapes
    pose = task.agent.robot.links_map["camera_link"]._bodies[0].entity.pose * box.local_pose
    reach = abs(pose.to_transformation_matrix()[:3, :3]) @ box.half_size
    s, row = task.task_state, torch.arange(N)
    wrong = (s.target + 1) % 3
    # a mug comes down on the first robot's camera, clear of the hand behind it
    x, y, z = (float(value) for value in pose.p)
    there = torch.tensor([[x + 0.02, y, z + float(reach[2]) + MUG_HEIGHT / 2 + 0.002, 1.0, 0.0, 0.0, 0.0]])
    move(env, task.objects[1 + int(wrong[0])], [0], there, (0.0, 0.0, -0.2))
    by_camera = False
    for _ in range(4):
        env.step(still_action(env))
        assert task._touch_sensor is not None
        force = task._touch_sensor.read()[row, :, wrong]
        if bool(force[0, 3] > FORCE_THRESHOLD):
            by_camera = True
            assert int(s.held[0, wrong[0]]) > 0
    assert by_camera, "the camera touches nothing"
    assert not bool(s.held[1:].any())


def test_a_robot_without_a_camera_touches_with_hand_and_fingers() -> None:
    env = make("ShellGameTouch-v0", 1, robot_uids="panda")
    names = [link.name for link in task_of(env)._touch_links()]
    assert [name.rsplit("/")[-1] for name in names] == list(TOUCH_LINKS[:3])
    env.reset(seed=0)
    env.step(still_action(env))
    env.close()


def views(shift: int) -> list[Record]:
    """What is on view from t = 5 on, and the mugs, while the hand pushes the left mug; the ball is ``shift`` places on."""
    env = make("ShellGameTouch-v0", 4, obs_mode="objects", control_mode="pd_ee_delta_pos", on_mistake="ignore")
    task = task_of(env)
    own = task.sample

    def sample(u: Uniforms) -> ShellState:
        s = own(u)
        s.target = (s.target + shift) % 3
        s.ball = s.places[torch.arange(len(s.places)), s.target]
        return s

    task.sample = sample  # type: ignore[method-assign]
    covered(env, seed=41)
    xy = place_of(env, torch.zeros(4, dtype=torch.int64))
    records = []
    for target, steps in ((at(xy, 0.2, dx=-0.1), 12), (at(xy, 0.04, dx=-0.1), 10), (at(xy, 0.04, dx=0.05), 12)):
        for _ in range(steps):
            env.step(go_to(env, target))
            obs = task.get_obs()
            objects = task.object_layout.read()[:, 1:].clone()
            records.append({"objects": obs["objects"].clone(), "joints": obs["joints"].clone(), "mugs": objects})
    env.close()
    return records


def test_the_ball_leaves_no_trace_to_the_last_bit_even_in_a_mug_that_is_pushed() -> None:
    one, two = views(0), views(1)
    assert float((one[-1]["mugs"][:, 0, 0] - one[0]["mugs"][:, 0, 0]).min()) > 0.03, "the mug was not pushed"
    for t, (a, b) in enumerate(zip(one, two, strict=True)):
        for name in a:
            assert torch.equal(a[name], b[name]), (t, name)


# ---------------------------------------------------------------------- those who peek
def test_who_peeks_needs_mugs_and_a_look(envs: dict[str, Env]) -> None:
    with pytest.raises(ValueError, match="ShellGamePush or ShellGamePick, not ShellTouchSkill"):
        Peek(make_skill(MODES["touch"], task_of(envs["touch"])))
    with pytest.raises(ValueError, match="lift"):
        Peek(make_skill(MODES["push"], task_of(envs["push"])), look=Look(-0.1, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["push", "pick"])
def test_a_peek_finds_the_ball_no_more_often_than_a_guess(mode: str) -> None:
    outcome = evaluate(MODES[mode], functools.partial(Peek), episodes=48, num_envs=48, arm="held")
    low, high = outcome.interval(0.999)
    assert low < 1 / 3, outcome.in_percent()
    assert outcome.failures > 24, "a look under a wrong mug does not end the episode"
    assert high > 0.2, "the policy cannot even take a mug"
