"""RotateLenient and RotateStrict: how turning is measured, and what else counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from task_helpers import Env, N, base, make, move, step, still_action
from torch import Tensor

from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.tasks.rotate import (
    HALF_WIDTH,
    TOLERANCE,
    Rotate,
    RotateState,
    folded,
    heading,
    sample_peg,
    tilt,
    wrapped,
)

IDS = ["RotateLenientPos-v0", "RotateLenientPosNeg-v0", "RotateStrictPos-v0", "RotateStrictPosNeg-v0"]
MANY = 3000


@pytest.fixture(params=["RotateLenientPos-v0", "RotateStrictPosNeg-v0"])
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = make(str(request.param), N)
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
    one, other = folded(flat), folded(turned)
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
        made = make(env_id, N)
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
        where = task.stage.read()[:, 0, :7]
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
        turn.append(record["info/reward_terms/progress"])
    far = s.target.abs() > 0.25  # half of a small angle is near enough: success pays instead
    assert int(far.sum()) >= 3
    assert bool((turn[1] > turn[0])[far].all())
    assert bool((turn[2] > turn[1])[far].all())
    assert isinstance(s, RotateState)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"both_ways": 1}, "both_ways=1"),
        ({"angle_range": (0.05, 1.0)}, r"angle_range=\(0\.05, 1\.0\)"),
        ({"angle_range": (1.0, 0.5)}, "low <= high"),
        ({"angle_range": (0.2, 3.5)}, "<= pi"),
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
