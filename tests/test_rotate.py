"""RotateLenient and RotateStrict: how turning is measured, and what else counts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.geometry.rotation_conversions import quaternion_raw_multiply
from task_helpers import Env, N, base, make, move, paid, step, still_action
from torch import Tensor

from mikasa_robo.core import rewards
from mikasa_robo.core.env import STATIC_SPEED, StepData
from mikasa_robo.core.rest import REST_SPEED
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.symmetry import PEG_ROTATIONS, canonical_rotation
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.experts.skill import look
from mikasa_robo.tasks.rotate import (
    FREE,
    HALF_LENGTH,
    HALF_WIDTH,
    LEVEL,
    NEAR,
    REST_TURN,
    TOLERANCE,
    Rotate,
    RotateState,
    folded,
    heading,
    long_axis,
    sample_peg,
    tilt,
    wrapped,
)

IDS = ["RotateLenientPos-v0", "RotateLenientPosNeg-v0", "RotateStrictPos-v0", "RotateStrictPosNeg-v0"]
MANY = 3000


@pytest.fixture(params=["RotateLenientPos-v0", "RotateStrictPosNeg-v0"])
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = make(str(request.param), N, on_mistake="ignore")  # several ends are tried in one episode
    made.reset(seed=3)
    for _ in range(2):  # the peg is its own from t = 2 on
        step(made, still_action(made))
    yield made
    made.close()


def task_of(env: Env) -> Rotate:
    return cast(Rotate, base(env))


def place(env: Env, yaw: Tensor, shift: tuple[float, float] = (0.0, 0.0), z: float = HALF_WIDTH) -> dict[str, Tensor]:
    """Lays the pegs down at ``yaw`` (N,), ``shift`` from their start, and takes a step."""
    s = task_of(env).task_state
    pose = turned_pose(s.start[:, :2] + torch.tensor(shift), yaw, z)
    move(env, base(env).objects[0], range(N), pose)
    return step(env, still_action(env))


def turn_slowly(env: Env, by: Tensor, shift: tuple[float, float] = (0.0, 0.0)) -> dict[str, Tensor]:
    """Turns the pegs by ``by`` (N,) in steps of less than half a radian, then lets them lie."""
    s = task_of(env).task_state
    parts = math.ceil(float(by.abs().max()) / 0.4)
    for k in range(1, parts + 1):
        place(env, start_yaw(s) + by * k / parts, shift)
    place(env, start_yaw(s) + by, shift)
    return place(env, start_yaw(s) + by, shift)


def turned_pose(xy: Tensor, yaw: Tensor, z: float = HALF_WIDTH) -> Tensor:
    """(N, 7) pose of a peg that lies flat at ``xy`` (N, 2) with ``yaw`` (N,)."""
    pose = torch.zeros(len(yaw), 7)
    pose[:, :2], pose[:, 2] = xy, z
    pose[:, 3], pose[:, 6] = (yaw / 2).cos(), (yaw / 2).sin()
    return pose


def start_yaw(s: RotateState) -> Tensor:
    return heading(s.start[:, 3:]).to(torch.float32)


# ---------------------------------------------------------------------- angles, a thousand at a time
def test_angles_wrap() -> None:
    angle = torch.linspace(-20, 20, 1001, dtype=torch.float64)
    result = wrapped(angle)
    assert float(result.min()) > -math.pi
    assert float(result.max()) <= math.pi + 1e-12
    turns = (angle - result) / (2 * math.pi)
    assert torch.allclose(turns, turns.round(), atol=1e-9)


def test_headings_and_tilts_are_read_from_rotations() -> None:
    yaw = torch.linspace(-3.1, 3.1, 1000)
    q = turned_pose(torch.zeros(1000, 2), yaw)[:, 3:]
    assert torch.allclose(heading(q).to(torch.float32), yaw, atol=1e-5)
    assert max(float(angle.abs().max()) for angle in tilt(q)) < 1e-3
    rolled = torch.tensor([[math.cos(0.1), math.sin(0.1), 0, 0], [math.cos(0.15), 0, math.sin(0.15), 0]])
    roll, pitch = tilt(rolled)
    assert torch.allclose(roll.to(torch.float32), torch.tensor([0.2, 0.0]), atol=1e-3)
    assert torch.allclose(pitch.to(torch.float32), torch.tensor([0.0, 0.3]), atol=1e-3)


def test_rotations_that_look_the_same_are_told_as_one() -> None:
    yaw = torch.linspace(-3.1, 3.1, 1000)
    flat = turned_pose(torch.zeros(1000, 2), yaw)[:, 3:]
    turned = turned_pose(torch.zeros(1000, 2), yaw + math.pi)[:, 3:]
    one, other = canonical_rotation(flat, PEG_ROTATIONS), canonical_rotation(turned, PEG_ROTATIONS)
    assert torch.allclose((one * other).sum(dim=1).abs(), torch.ones(1000), atol=1e-5)
    assert float(heading(one).abs().max()) <= math.pi / 2 + 1e-5


@pytest.mark.parametrize("both_ways", [False, True])
def test_episodes_are_drawn_from_their_ranges(both_ways: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    high = math.pi / 4 if both_ways else math.pi / 2
    u = Uniforms(torch.rand(MANY, 5, dtype=torch.float64, generator=generator))
    s = sample_peg(u, (0.1, high), both_ways)
    assert u.unused == 0
    size = s.target.abs()
    assert float(size.min()) > 0.1
    assert float(size.max()) <= high + 1e-6
    assert float(size.mean()) == pytest.approx((0.1 + high) / 2, abs=0.03)
    negative = float((s.target < 0).float().mean())
    assert negative == pytest.approx(0.5 if both_ways else 0.0, abs=0.05)
    assert float(s.start[:, :2].abs().max()) <= 0.1
    assert float(start_yaw(s).min()) < -3
    assert float(start_yaw(s).max()) > 3
    extreme = sample_peg(Uniforms(torch.zeros(1, 5, dtype=torch.float64)), (0.1, high), both_ways)
    assert float(extreme.target.abs()) == pytest.approx(high), "the largest angle is reached, the least is not"


def test_place_yaw_and_angle_are_drawn_independently() -> None:
    u = torch.rand(30_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    s = sample_peg(Uniforms(u), (0.1, math.pi / 4), both_ways=True)
    drawn = torch.stack([*s.start[:, :2].T, start_yaw(s), s.target.abs(), s.target.sign()])
    assert float((torch.corrcoef(drawn) - torch.eye(5)).abs().max()) < 0.03, "one number was drawn from another"


# ---------------------------------------------------------------------- what success is
def test_the_peg_has_to_be_turned_by_the_angle(env: Env) -> None:
    s = task_of(env).task_state
    for off, good in ((-0.9 * TOLERANCE, True), (0.9 * TOLERANCE, True), (-1.2 * TOLERANCE, False), (0.12, False)):
        record = turn_slowly(env, s.target + off)
        assert bool((record["info/success"] == good).all()), off
        assert torch.allclose(record["info/oracle_info"][:, 0], torch.tensor(-off), atol=5e-3)
        turn_slowly(env, torch.zeros(N))


def test_half_turns_are_not_lost(env: Env) -> None:
    """After a half-turn the peg looks the same, and after a whole one it lies the same: neither is the angle."""
    s = task_of(env).task_state
    for extra in (math.pi, 2 * math.pi, -math.pi, -2 * math.pi):
        record = turn_slowly(env, s.target + extra)
        assert not bool(record["info/success"].any())
        assert torch.allclose(s.turned - s.target, torch.full((N,), extra), atol=5e-3)
        record = turn_slowly(env, s.target)
        turn_slowly(env, torch.zeros(N))
        s.turned.zero_()
        s.heading[:] = start_yaw(s)


def test_strictly_the_centre_stays_where_it_was() -> None:
    for env_id, strict in (("RotateLenientPos-v0", False), ("RotateStrictPos-v0", True)):
        made = make(env_id, N, on_mistake="ignore")
        made.reset(seed=3)
        for _ in range(2):
            step(made, still_action(made))
        angle = task_of(made).task_state.target.clone()
        for shift, near in (((0.04, 0.04), True), ((0.06, 0.0), False), ((0.0, -0.06), False)):
            record = turn_slowly(made, angle, shift)
            assert bool((record["info/success"] == (near or not strict)).all()), (env_id, shift)
            assert bool((record["info/in_place"] == near).all())
        made.close()


def test_a_peg_that_moves_has_not_been_put_there(env: Env) -> None:
    task = task_of(env)
    s = task.task_state
    turn_slowly(env, s.target)
    pose = turned_pose(s.start[:, :2], start_yaw(s) + s.target, 0.3)
    move(env, task.objects[0], range(N), pose)
    step(env, still_action(env))
    record = step(env, still_action(env))  # it falls
    assert not bool(record["info/success"].any())
    assert not bool(record["info/at_rest"].any())


def test_nothing_turns_before_the_response() -> None:
    made = make("RotateLenientPos-v0", N, cue_steps=4, delay_steps=3)
    made.reset(seed=1)
    task = task_of(made)
    assert task.horizon == 96
    for _ in range(7):
        place(made, start_yaw(task.task_state) + 1.0)
        assert not bool(task.task_state.turned.any())
        where = task.object_layout.read()[:, 0, :7]
        if int(task.elapsed_steps[0]) not in range(4, 7):
            assert torch.allclose(heading(where[:, 3:]).to(torch.float32), start_yaw(task.task_state), atol=1e-5)
    place(made, start_yaw(task.task_state) + 0.5)
    assert torch.allclose(task.task_state.turned, torch.full((N,), 0.5), atol=5e-3)
    made.close()


# ---------------------------------------------------------------------- what is told and seen
@pytest.mark.parametrize("mode", ["state", "objects", "joints", "oracle", "prompt", "state_dict"])
def test_the_prompt_is_told_in_every_mode_and_stays(mode: str) -> None:
    made = make("RotateStrictPosNeg-v0", 2, obs_mode=mode)
    obs, info = made.reset(seed=0)
    angle = task_of(made).task_state.target.clone()
    for _ in range(3):
        assert torch.equal(info["prompt"][:, 0], angle)
        if mode == "state":
            assert bool((obs == angle[:, None]).any(dim=1).all())
        else:
            told = obs["extra"]["prompt"] if mode == "state_dict" else obs["prompt"]
            assert torch.equal(told[:, 0], angle)
        obs, _, _, _, info = made.step(made.action_space.sample())
    made.close()


def test_the_two_ends_look_alike() -> None:
    made = make("RotateLenientPos-v0", N, obs_mode="objects")
    made.reset(seed=2)
    task = task_of(made)
    for _ in range(2):
        step(made, still_action(made))
    s = task.task_state
    seen = []
    for extra in (0.0, math.pi):
        move(made, task.objects[0], range(N), turned_pose(s.start[:, :2], start_yaw(s) + extra))
        seen.append(task.get_obs()["objects"])
    assert torch.allclose(seen[0], seen[1], atol=1e-5)
    assert float(seen[0][:, 1:3].std()) > 0.01
    made.close()


def test_rewards_rise_with_the_turn(env: Env) -> None:
    task = task_of(env)
    s = task.task_state
    turn = []
    for part in (-0.5, 0.0, 0.5, 0.9):
        record = turn_slowly(env, s.target * part)
        turn.append(record["info/reward_terms/progress"] / task.reward_scales["progress"])
    far = s.target.abs() > 0.25  # half of a small angle is near enough: success pays instead
    assert int(far.sum()) >= 3
    lies = turn[1]
    torch.testing.assert_close(lies, torch.full_like(lies, 0.1), rtol=0, atol=0.02)  # whatever the angle
    assert bool((turn[0] < 0.1)[far].all()), "less for a peg that was turned the wrong way"
    assert bool((turn[2] > turn[1] + 0.3)[far].all())
    assert isinstance(s, RotateState)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"both_ways": 1}, "both_ways=1"),
        ({"angle_range": (0.05, 1.0)}, r"angle_range=\(0\.05, 1\.0\)"),
        ({"angle_range": (1.0, 0.5)}, "first <= second"),
        ({"angle_range": (0.2, 3.5)}, r"<= 3\.14159 rad"),
        ({"angle_range": (0.1, 0.19)}, r"angle_range=\(0\.1, 0\.19\) asks for so little .* at least 0\.2 rad"),
    ],
)
def test_wrong_dials_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        gym.make("RotateLenientPos-v0", **arguments)


def test_the_range_of_angles_is_a_dial() -> None:
    made = make("RotateStrictPosNeg-v0", 64, angle_range=(2.0, 3.0))
    _, info = made.reset(seed=0)
    size = info["prompt"].abs()
    assert float(size.min()) > 2
    assert float(size.max()) <= 3
    assert len(torch.unique(info["prompt"].sign())) == 2
    made.close()


# ---------------------------------------------------------------------- by tensors, a thousand at a time
COUNT = 1000
NO_TOUCH = torch.zeros(COUNT, 3, 1, dtype=torch.bool)
STRICT = pytest.mark.parametrize("kind", ["lenient", "strict"])


@pytest.fixture(scope="module")
def tasks() -> Iterator[dict[str, Rotate]]:
    """One environment of either family: its pure functions take any number of rows."""
    made = {kind: make(f"Rotate{kind.capitalize()}PosNeg-v0", N, on_mistake="ignore") for kind in ("lenient", "strict")}
    yield {kind: task_of(env) for kind, env in made.items()}
    for env in made.values():
        env.close()


def fresh(seed: int = 0, both_ways: bool = True) -> RotateState:
    u = torch.rand(COUNT, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return sample_peg(Uniforms(u), (0.1, math.pi / 2), both_ways)


def about(axis: str, angle: Tensor | float) -> Tensor:
    """(COUNT, 4) quaternions of a turn about one of the axes."""
    half = torch.as_tensor(angle, dtype=torch.float32).expand(COUNT) / 2
    q = torch.zeros(COUNT, 4)
    q[:, 0], q[:, 1 + "xyz".index(axis)] = half.cos(), half.sin()
    return q


def step_data(pose: Tensor, joint_speed: float = 0.0, elapsed: int = 20) -> StepData:
    """The peg at ``pose`` (COUNT, 7), the hand 10 cm over its centre and pointing down."""
    tcp = torch.zeros(COUNT, 7)
    tcp[:, :3], tcp[:, 4] = pose[:, :3] + torch.tensor([0.0, 0.0, 0.1]), 1.0
    return StepData(
        elapsed=torch.full((COUNT,), elapsed),
        responding=torch.full((COUNT,), elapsed >= 1),
        objects=torch.cat([pose, torch.zeros(COUNT, 6)], dim=1)[:, None],
        tcp=tcp,
        joint_speed=torch.full((COUNT,), joint_speed),
        fingers=torch.full((COUNT,), 0.04),
        speeds=torch.zeros(COUNT, 1),
    )


def at(s: RotateState, by: Tensor | float = 0.0, then: Tensor | None = None) -> Tensor:
    """(COUNT, 7) start poses turned by ``by`` rad about the vertical and, before, by ``then`` in the peg's own frame."""
    q = quaternion_raw_multiply(about("z", by), s.start[:, 3:])
    return torch.cat([s.start[:, :3], q if then is None else quaternion_raw_multiply(q, then)], dim=1)


def go(task: Rotate, s: RotateState, *poses: Tensor) -> StepData:
    """Shows the task one pose after another, the last three times, so that the peg has been left there."""
    for pose in (*poses, poses[-1], poses[-1]):
        look_now = step_data(pose)
        task.update_state(s, look_now, NO_TOUCH)
    return look_now


def turn_by(task: Rotate, s: RotateState, by: Tensor, steps: int = 10) -> StepData:
    return go(task, s, *(at(s, by * k / steps) for k in range(1, steps + 1)))


def test_nobody_has_succeeded_at_the_start(tasks: dict[str, Rotate]) -> None:
    low = sample_peg(Uniforms(torch.full((COUNT, 5), 1 - 1e-16, dtype=torch.float64)), (0.1, 0.1), True)
    for s in (fresh(), low):
        for task in tasks.values():
            verdict = task.outcome(s, step_data(s.start))
            assert not bool(verdict["facing"].any() | verdict["success"].any())
            assert bool((verdict["at_rest"] & verdict["in_place"] & verdict["level"]).all())


@STRICT
@pytest.mark.parametrize(
    ("off", "joint_speed", "success"),
    [
        (0.0, 0.0, True),
        (TOLERANCE - 1e-3, 0.0, True),
        (1e-3 - TOLERANCE, 0.0, True),
        (TOLERANCE + 1e-3, 0.0, False),
        (-TOLERANCE - 1e-3, 0.0, False),
        (0.0, STATIC_SPEED * 0.99, True),
        (0.0, STATIC_SPEED * 1.01, False),
    ],
)
def test_angle_and_robot(tasks: dict[str, Rotate], kind: str, off: float, joint_speed: float, success: bool) -> None:
    task, s = tasks[kind], fresh()
    now = turn_by(task, s, s.target + off)
    now.joint_speed[:] = joint_speed
    assert torch.allclose(task.oracle(s)[:, 0], torch.tensor(-off), atol=1e-5)
    verdict = task.outcome(s, now)
    assert bool((verdict["success"] == success).all())
    assert not bool(verdict["fail"].any())
    now.responding[:] = False
    assert not bool(task.outcome(s, now)["success"].any())


@STRICT
@pytest.mark.parametrize(("speed", "spin"), [(0.9, 0.0), (1.1, 0.0), (0.0, 0.9), (0.0, 1.1), (0.0, -0.9), (0.0, -1.1)])
def test_the_peg_is_at_rest(tasks: dict[str, Rotate], kind: str, speed: float, spin: float) -> None:
    """In parts of the speeds below which it is."""
    task, s = tasks[kind], fresh()
    turn_by(task, s, s.target)
    look = step_data(at(s, s.target + spin * REST_TURN * 0.05))
    look.speeds[:, 0] = speed * REST_SPEED
    task.update_state(s, look, NO_TOUCH)
    verdict = task.outcome(s, look)
    assert bool((verdict["at_rest"] == (abs(speed) < 1 and abs(spin) < 1)).all())
    assert torch.equal(verdict["success"], verdict["at_rest"])


@STRICT
@pytest.mark.parametrize(
    ("x", "y", "roll", "pitch", "good"),
    [
        (0.0, 0.0, 0.0, 0.0, True),
        (NEAR - 1e-3, 1e-3 - NEAR, 0.0, 0.0, True),
        (0.06, 0.0, 0.0, 0.0, False),
        (0.0, -0.06, 0.0, 0.0, False),
        (0.0, 0.0, LEVEL - 1e-3, 0.0, True),
        (0.0, 0.0, -LEVEL - 1e-3, 0.0, False),
        (0.0, 0.0, 0.0, LEVEL - 1e-3, True),
        (0.0, 0.0, 0.0, -LEVEL - 1e-3, False),
        (0.0, 0.0, math.pi / 2, 0.0, False),
    ],
)
def test_only_strict_asks_for_place_and_level(
    tasks: dict[str, Rotate], kind: str, x: float, y: float, roll: float, pitch: float, good: bool
) -> None:
    task, s = tasks[kind], fresh()
    turn_by(task, s, s.target)
    pose = at(s, s.target, quaternion_raw_multiply(about("y", pitch), about("x", roll)))
    pose[:, :2] += torch.tensor([x, y])
    now = go(task, s, pose)
    assert torch.allclose(s.turned, s.target, atol=1e-4), "tilting a peg along its own axes does not turn it"
    verdict = task.outcome(s, now)
    assert bool(((verdict["in_place"] & verdict["level"]) == good).all())
    assert bool((verdict["success"] == (good or kind == "lenient")).all())


def test_turns_add_up_whatever_the_start(tasks: dict[str, Rotate]) -> None:
    """Also across ±π, back and forth, and by more than a whole turn."""
    task, s = tasks["lenient"], fresh()
    begin = s.turned.clone()
    for by in (3.5, 9.0, -9.0, 0.0):
        now = by * torch.ones(COUNT)
        go(task, s, *(at(s, begin + (now - begin) * k / 12) for k in range(1, 13)))
        assert torch.allclose(s.turned, now, atol=1e-4)
        assert bool((s.heading.abs() <= math.pi + 1e-6).all())
        begin = now
    # half a turn within a step: one way, never both
    go(task, s, at(s, math.pi))
    assert torch.allclose(s.turned.abs(), torch.full((COUNT,), math.pi), atol=1e-4)


def test_exactly_half_a_turn_is_one_forth() -> None:
    half = torch.tensor([math.pi, -math.pi, 3 * math.pi], dtype=torch.float64)
    assert torch.allclose(wrapped(half), torch.full_like(half, math.pi))


def test_a_peg_that_stands_on_end_keeps_its_angle(tasks: dict[str, Rotate]) -> None:
    """Whichever way it seems to point then; laid down again it goes on from where it was."""
    task, s = tasks["lenient"], fresh()
    turn_by(task, s, torch.full((COUNT,), 0.5))
    tilts = [at(s, 0.5, about("y", -k * math.pi / 20)) for k in range(1, 10)]
    go(task, s, *tilts)
    assert torch.allclose(s.turned, torch.full((COUNT,), 0.5), atol=1e-4)
    for k in range(5):
        wobble = quaternion_raw_multiply(about("z", 2.0 * k), about("y", -math.pi / 2))
        go(task, s, at(s, 0.5, wobble))
        assert torch.allclose(s.turned, torch.full((COUNT,), 0.5), atol=1e-4)
    go(task, s, *reversed(tilts), at(s, 0.5))
    assert torch.allclose(s.turned, torch.full((COUNT,), 0.5), atol=1e-4)


def test_a_grasp_takes_both_fingers_and_the_peg_between_them(tasks: dict[str, Rotate]) -> None:
    task, s = tasks["strict"], fresh()
    held, pressed = step_data(s.start), step_data(s.start)
    held.tcp[:, :3] = s.start[:, :3] + 0.1 * long_axis(s.start[:, 3:])  # near an end
    pressed.tcp[:, 2] = 2 * HALF_WIDTH + 0.005  # closed fingertips on top
    for links, grasped in (((0, 1), False), ((0, 2), False), ((1, 2), True), ((), False)):
        touching = NO_TOUCH.clone()
        touching[:, list(links), 0] = True
        task.update_state(s, held, touching)
        assert bool((s.grasped == grasped).all())
        task.update_state(s, pressed, touching)
        assert not bool(s.grasped.any())
    touching[:] = True
    held.responding[:] = False
    task.update_state(s, held, touching)
    assert not bool(s.grasped.any())


def test_a_peg_looks_the_same_from_8_sides() -> None:
    apart = (PEG_ROTATIONS @ PEG_ROTATIONS.T).abs() - torch.eye(8)
    assert float(apart.max()) < 0.8, "two of them are one rotation"
    q = torch.nn.functional.normalize(torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    corners = torch.tensor([[x, y, z] for x in (-2.0, 2.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    for side in PEG_ROTATIONS:
        w, *v = side.tolist()
        axis = torch.tensor(v).expand(8, 3)
        cross = torch.linalg.cross(axis, corners)
        there = corners + 2 * w * cross + 2 * torch.linalg.cross(axis, cross)
        assert float((there[:, None] - corners).norm(dim=-1).amin(dim=1).max()) < 1e-5, "it does not look the same"
        again = canonical_rotation(quaternion_raw_multiply(q, side), PEG_ROTATIONS)
        assert float((again * canonical_rotation(q, PEG_ROTATIONS)).sum(dim=1).abs().min()) > 1 - 1e-5
    # lying on any of its sides and pointing anywhere: yaw within a right angle, no roll
    for roll in (0.0, 0.5, 1.0, 1.5):
        yaw = torch.linspace(-math.pi, math.pi, COUNT)
        seen = canonical_rotation(quaternion_raw_multiply(about("z", yaw), about("x", roll * math.pi)), PEG_ROTATIONS)
        assert float(heading(seen).abs().max()) <= math.pi / 2 + 1e-4
        assert max(float(angle.abs().max()) for angle in tilt(seen)) < 1e-3


def test_perception_tells_neither_end_nor_side_and_writes_nothing(tasks: dict[str, Rotate]) -> None:
    task, s = tasks["lenient"], fresh()
    seen = []
    for by, roll in ((0.3, 0.0), (0.3 + math.pi, 0.0), (0.3 - math.pi, math.pi / 2), (0.3, math.pi)):
        now = step_data(at(s, by, about("x", roll)))
        kept = now.objects.clone()
        visible, poses = task.visible_poses(s, now)
        assert torch.equal(now.objects, kept)
        assert bool(visible.all())
        assert torch.equal(poses[..., :3], kept[..., :3])
        seen.append(poses[:, 0, 3:])
    away = heading(seen[0]).abs() < math.pi / 2 - 1e-3  # at ±90° two rotations are equally near
    for other in seen[1:]:
        assert float((seen[0] * other).sum(dim=1).abs()[away].min()) > 1 - 1e-5


# ---------------------------------------------------------------------- rewards
@STRICT
def test_the_reward_rises_all_the_way_from_either_side(tasks: dict[str, Rotate], kind: str) -> None:
    task = tasks[kind]
    for side in (-1.0, 1.0):
        s = fresh()
        turn_by(task, s, s.target + 2.5 * side, steps=20)
        last = torch.full((COUNT,), -1.0)
        for part in torch.linspace(2.5, 0.0, 26).tolist():
            now = go(task, s, at(s, s.target + part * side))
            now.tcp[:, 3:] = quaternion_raw_multiply(about("z", s.heading), now.tcp[:, 3:])  # the hand turns along
            now.joint_speed[:] = 0.5  # in motion: no success
            reward = paid(task, s, now)
            # no less than nothing is paid for a peg that is farther from its target than at the start
            assert bool((reward >= last).all()), part
            assert bool((reward > last + 0.01)[s.target.abs() > part + 0.01].all()), part
            last = reward
        now.joint_speed[:] = 0
        assert bool((paid(task, s, now) == rewards.maximum(task.reward_scales)).all())
        assert float(last.max()) < 0.5 * rewards.maximum(task.reward_scales)


def test_a_peg_that_was_turned_too_far_earns_by_being_turned_back(tasks: dict[str, Rotate]) -> None:
    """However small the angle is: where the reward is flat, nothing tells a policy to turn back."""
    task, s = tasks["lenient"], fresh()
    small = s.target.abs() < 0.3
    assert int(small.sum()) >= 20
    last = torch.full((COUNT,), -1.0)
    for extra in (0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0):  # rad beyond the target
        wanted = s.target + extra * s.target.sign()
        progress = task.reward_terms(s, turn_by(task, s, wanted))["progress"]
        assert bool((progress > last + 0.05).all()), extra
        assert bool((progress > 0.1).all()), extra
        last = progress
    assert torch.allclose(last, torch.ones(COUNT), atol=0.02)


def test_strictly_a_peg_pays_less_away_from_its_place_or_on_its_side(tasks: dict[str, Rotate]) -> None:
    task, s = tasks["strict"], fresh()
    now = go(task, s, s.start)
    assert float(task.reward_terms(s, now)["place"].max()) < 1e-5, (
        "a peg that nobody has touched is in place for nothing"
    )
    s.turned[:] = s.target
    place = [task.reward_terms(s, now)["place"]]
    for shift in (0.03, 0.08, 0.2):
        moved = s.start.clone()
        moved[:, :2] += shift * 0.7
        place.append(task.reward_terms(s, go(task, s, moved))["place"])
    for nearer, farther in itertools.pairwise(place):
        assert bool((farther < nearer - 0.05).all())
    assert torch.allclose(place[0], torch.ones(COUNT))
    tipped = task.reward_terms(s, go(task, s, at(s, 0.0, about("x", math.pi / 2))))["place"]
    assert float(tipped.max()) < 0.01
    assert "place" not in tasks["lenient"].reward_scales


def test_fingers_across_the_peg_are_aligned_and_along_it_are_not(tasks: dict[str, Rotate]) -> None:
    """The hand of `data` opens along y: a peg along x fits between the fingers, whichever end is where."""
    task, s = tasks["lenient"], fresh()
    for yaw, align in ((0.0, 1.0), (math.pi, 1.0), (math.pi / 2, 0.0), (-math.pi / 2, 0.0), (math.pi / 4, 0.5)):
        pose = torch.cat([s.start[:, :3], about("z", yaw)], dim=1)
        assert torch.allclose(task.reward_terms(s, step_data(pose))["align"], torch.full((COUNT,), align), atol=1e-5)
        told = task.state_features(s, step_data(pose))["peg_in_hand"]
        # the hand looks down: its x is the world's, its y runs the other way
        expected = torch.tensor([math.cos(2 * yaw), -math.sin(2 * yaw)]).expand(COUNT, 2)
        assert torch.allclose(told, expected, atol=1e-5)


def test_fingers_pay_that_are_open_until_the_peg_is_between_them(tasks: dict[str, Rotate]) -> None:
    task, s = tasks["lenient"], fresh()
    across = quaternion_raw_multiply(about("z", heading(s.start[:, 3:])), about("x", math.pi))
    paid_for = []
    for height, fingers in ((0.1, 0.0), (0.1, 0.02), (0.1, 0.04), (0.0, HALF_WIDTH)):
        look_now = step_data(s.start)
        look_now.tcp[:, 2], look_now.tcp[:, 3:] = HALF_WIDTH + height, across
        look_now.fingers[:] = fingers
        paid_for.append(float(task.reward_terms(s, look_now)["align"].mean()))
    assert paid_for == pytest.approx([0.0, 0.02 / 0.035, 1.0, 1.0], abs=1e-3)


def test_features_tell_where_the_peg_is(tasks: dict[str, Rotate]) -> None:
    task, s = tasks["strict"], fresh()
    turn_by(task, s, s.target / 2)
    moved = at(s, s.target / 2)
    moved[:, 0] += 0.03
    now = go(task, s, moved)
    told = task.state_features(s, now)
    assert torch.allclose(told["turned"] + told["remaining"], s.target, atol=1e-6)
    assert torch.equal(told["remaining"], task.oracle(s)[:, 0])
    assert torch.allclose(told["tcp_to_peg"], torch.tensor([0.0, 0.0, -0.1]).expand(COUNT, 3), atol=1e-6)
    one, other = told["tcp_to_ends"].split(3, dim=1)
    assert torch.allclose((one + other) / 2, told["tcp_to_peg"], atol=1e-6)
    assert torch.allclose((one - other).norm(dim=1), torch.full((COUNT,), 2 * HALF_LENGTH), atol=1e-5)
    assert torch.allclose(torch.atan2((one - other)[:, 1], (one - other)[:, 0]), s.heading, atol=1e-4)
    assert torch.allclose(told["peg_to_start"], torch.tensor([-0.03, 0.0, 0.0]).expand(COUNT, 3), atol=1e-6)
    assert "peg_to_start" not in tasks["lenient"].state_features(s, now)


def test_nothing_but_advance_writes(tasks: dict[str, Rotate]) -> None:
    for task in tasks.values():
        s = fresh()
        now = turn_by(task, s, s.target / 2)
        kept = {name: value.clone() for name, value in vars(s).items()}
        task.outcome(s, now), task.reward_terms(s, now), task.state_features(s, now), task.visible_poses(s, now)
        task.prompt(s).fill_(9)
        task.oracle(s).fill_(9)
        task.layout(s, now.elapsed)[1].fill_(9)
        for name, value in vars(s).items():
            assert torch.equal(value, kept[name]), name


# ---------------------------------------------------------------------- by the robot
@pytest.mark.parametrize("env_id", ["RotateLenientPos-v0", "RotateStrictPosNeg-v0"])
def test_a_robot_can_turn_the_peg(env_id: str) -> None:
    """By its own actions, grasping it in its middle: what has been turned is what the peg's pose says, to the end."""
    made = make(env_id, N, obs_mode="objects")
    task = task_of(made)
    obs, info = made.reset(seed=5)
    skill, target = make_skill(env_id, task), task.task_state.target.clone()
    success = torch.zeros(N, dtype=torch.bool)
    for _ in range(task.horizon):
        obs, _, _, _, info = made.step(skill.act(look(obs, 1), info["oracle_info"], info))
        success |= info["success"]
        assert torch.equal(info["prompt"][:, 0], target), "the prompt changed within an episode"
    s = task.task_state
    assert bool(success.all()), success
    assert bool(s.grasped.all())
    yaw = heading(task.object_layout.read()[:, 0, 3:7]) - heading(s.start[:, 3:])
    assert torch.allclose(wrapped(yaw).to(torch.float32), s.turned, atol=1e-4)
    assert torch.allclose(s.turned, target, atol=TOLERANCE)
    made.close()


@pytest.mark.render
def test_the_prompt_is_told_beside_pictures_which_do_not_tell_the_ends_apart() -> None:
    made = make("RotateStrictPosNeg-v0", 2, obs_mode="rgb+segmentation")
    task = task_of(made)
    made.reset(seed=[3, 3])
    for _ in range(2):
        made.step(still_action(made))
    s = task.task_state
    yaw = start_yaw(s) + torch.tensor([0.0, math.pi])
    move(made, task.objects[0], range(2), turned_pose(s.start[:, :2], yaw))
    obs = task.get_obs()
    assert torch.equal(obs["prompt"][:, 0], s.target)
    on_peg = obs["segmentation"][..., 0] == task.objects[0].per_scene_id[:, None, None]
    assert int(on_peg[0].sum()) > 100
    apart = (obs["rgb"][0].to(torch.float32) - obs["rgb"][1].to(torch.float32)).abs()
    assert float(apart.max()) <= 3
    red, green, blue = obs["rgb"][0, ..., :3][on_peg[0]].to(torch.float32).mean(dim=0).tolist()
    assert blue > 2 * max(red, green)
    made.close()


@pytest.mark.parametrize(
    "value", [(0.05, 1.0), (0.1,), 0.5, "ab", (True, 1.0), (0.2, float("nan")), (None, 1.0), (0.2, 4)]
)
def test_bad_ranges_of_angles_are_named_before_anything_is_built(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    def built(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("building began")

    monkeypatch.setattr(BaseEnv, "__init__", built)
    with pytest.raises(AssertionError, match="building began"):
        gym.make("RotateStrictPos-v0", angle_range=(0.1, math.pi))
    with pytest.raises(ValueError, match=rf"angle_range={re.escape(repr(value))} must be two numbers"):
        gym.make("RotateStrictPos-v0", angle_range=value)


def test_to_leave_the_peg_turned_by_another_angle_is_a_mistake_for_good() -> None:
    for on_mistake in ("fail", "ignore"):
        made = make("RotateLenientPos-v0", N, on_mistake=on_mistake, angle_range=(1.0, 1.5))
        made.reset(seed=4)
        for _ in range(4):
            record = step(made, still_action(made))
        assert not bool(record["info/mistake"].any()), "not to have begun is no mistake"
        s = task_of(made).task_state
        place(made, start_yaw(s) + 0.4)
        record = place(made, start_yaw(s) + 0.4)
        assert not bool(record["info/mistake"].any()), "one step is not left"
        record = place(made, start_yaw(s) + 0.4)
        assert bool(record["info/mistake"].all())
        assert bool((record["info/fail"] == (on_mistake == "fail")).all())
        record = turn_slowly(made, s.target)
        assert bool(record["info/facing"].all())
        assert bool((record["info/success"] == (on_mistake == "ignore")).all())
        made.close()


# ---------------------------------------------------------------------- a peg that comes back elsewhere
REPLACED = "RotateStrictPosReplaced-v0"


def test_what_remains_to_be_turned_is_told_by_nothing_that_is_seen_after_the_cue() -> None:
    for both_ways, high in ((False, math.pi / 2), (True, math.pi / 4)):
        u = Uniforms(torch.rand(MANY, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
        s = sample_peg(u, (0.1, high), both_ways, replaced=True)
        assert u.unused == 0
        back = heading(s.returned[:, 3:]).to(torch.float32)
        goal = wrapped(start_yaw(s) + s.target - back)
        assert float(folded(goal - s.goal).abs().max()) < 1e-5, "the long axis leads from where it points to its goal"
        size = s.goal.abs()
        assert FREE - 1e-6 <= float(size.min()) < FREE + 0.01
        assert math.pi / 2 - 0.01 < float(size.max()) <= math.pi / 2 + 1e-6
        seen = [
            back.sin(),
            back.cos(),
            (2 * back).sin(),
            (2 * back).cos(),
            s.target,
            s.returned[:, 0],
            s.returned[:, 1],
        ]
        for asked in (s.goal.sign(), size, (2 * s.goal).sin()):
            assert float(torch.corrcoef(torch.stack([asked, *seen]))[0, 1:].abs().max()) < 0.08
        places = torch.cat([s.start[:, :2], s.returned[:, :2]], dim=1).T
        assert float((torch.corrcoef(places) - torch.eye(4)).abs().max()) < 0.08


def test_a_peg_that_came_back_elsewhere_is_paid_from_where_it_came_back(tasks: dict[str, Rotate]) -> None:
    u = torch.rand(COUNT, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task, s = tasks["strict"], sample_peg(Uniforms(u), (0.1, math.pi / 4), both_ways=True, replaced=True)
    shown = step_data(s.returned)
    terms = task.reward_terms(s, shown)
    assert torch.allclose(terms["progress"], torch.tensor(0.1), atol=1e-5)
    assert float(terms["place"].max()) < 1e-5
    assert not bool(task.state_features(s, shown)["peg_to_start"].any())
    s.turned[:] = s.goal
    terms = task.reward_terms(s, shown)
    for name in ("progress", "place", "still"):
        assert torch.allclose(terms[name], torch.ones(COUNT), atol=1e-5), name


def test_a_peg_that_comes_back_elsewhere_is_shown_hidden_and_put_there_while_the_arm_is_held() -> None:
    made = make(REPLACED, N, obs_mode="objects", on_mistake="ignore")
    obs, _ = made.reset(seed=1)
    task = task_of(made)
    s = task.task_state
    at_start = obs["joints"][:, :9].clone()
    for t in range(1, 11):
        obs = made.step(torch.full((N, 8), 0.9))[0]
        assert torch.allclose(obs["joints"][:, :9], at_start, atol=2e-3), f"the arm moved at t = {t}"
        assert obs["objects"][:, 0].tolist() == [float(t < 5 or t == 10)] * N
        where = s.start if t < 5 else s.returned
        if obs["objects"][0, 0]:
            assert torch.allclose(task.object_layout.read()[:, 0, :7], where, atol=1e-5)
            assert float(obs["objects"][0, 1]) == pytest.approx(float(where[0, 0]), abs=1e-3)
    made.step(torch.full((N, 8), 0.9))
    obs = made.step(torch.full((N, 8), 0.9))[0]
    assert float((obs["joints"][:, :7] - at_start[:, :7]).abs().amax(dim=1).min()) > 0.01
    for _ in range(3):
        record = step(made, still_action(made))
    assert not bool((record["info/success"] | record["info/mistake"]).any()), "not to have begun is neither"
    assert torch.allclose(record["info/oracle_info"][:, 0], s.goal, atol=1e-3)
    back = heading(s.returned[:, 3:]).to(torch.float32)

    def leave(yaw: Tensor, shift: float = 0.0, steps: int = 3) -> dict[str, Tensor]:
        for _ in range(steps):
            move(made, task.objects[0], range(N), turned_pose(s.returned[:, :2] + shift, yaw))
            record = step(made, still_action(made))
        return record

    # less than the tolerance is free and does not help
    record = leave(back + 0.08 * s.goal.sign())
    assert not bool((record["info/success"] | record["info/mistake"]).any())
    for extra in (0.0, math.pi):  # either end
        record = leave(back + s.goal + extra)
        assert bool(record["info/facing"].all())
        assert bool(record["info/success"].all())
        assert not bool(record["info/mistake"].any())
        assert float(record["info/oracle_info"].abs().max()) < 0.01
    assert not bool(leave(back + s.goal, 0.06)["info/success"].any()), "it has to stay where it came back"
    assert bool(leave(back + s.goal + 0.15)["info/mistake"].all())
    made.close()


def test_a_peg_that_would_never_come_back_is_refused() -> None:
    with pytest.raises(ValueError, match="recall='replaced' with response_steps=0"):
        gym.make("RotateLenientPos-v0", recall="replaced", response_steps=0)
    with pytest.raises(ValueError, match="recall='elsewhere' is not known: use 'in_place' or 'replaced'"):
        gym.make("RotateLenientPos-v0", recall="elsewhere")
