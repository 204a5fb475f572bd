"""Intercept: how the ball rolls, what may be seen of it, and what it takes to have brought it to rest in the disc."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from task_helpers import Env, Record, base, go_to, make, move, paid, random_actions, step, still_action
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS
from mikasa_robo.core import rewards
from mikasa_robo.core.env import StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.tasks.intercept import GOAL_RADIUS, Intercept, InterceptState, sample_ball_and_goal
from mikasa_robo.tasks.rolling_ball import (
    CLOSED,
    DAMPING,
    OPEN,
    SPEEDS,
    RollRanges,
    distance_to_way,
    rolling,
    speed_range_of,
)

MANY = 1000
N = 8
MODES = {"slow": "InterceptSlow-v0", "medium": "InterceptMedium-v0", "fast": "InterceptFast-v0"}
BALL, DISC = range(2)
NO_TOUCH = torch.zeros(MANY, 3, 1, dtype=torch.bool)


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """Eight environments whose hands are moved in space."""
    made = make(MODES["slow"], N, control_mode="pd_ee_delta_pos", obs_mode="state+objects")
    yield made
    made.close()


def task_of(env: Env) -> Intercept:
    return cast(Intercept, base(env))


def lying(xy: Tensor) -> Tensor:
    """(b, 7) poses of balls on the table at ``xy`` (b, 2)."""
    pose = torch.zeros(len(xy), 7)
    pose[:, :2], pose[:, 2], pose[:, 3] = xy, BALL_RADIUS, 1.0
    return pose


# ---------------------------------------------------------------------- by tensors, a thousand at a time
def fresh(speed: str = "slow", count: int = MANY) -> InterceptState:
    values = torch.rand(count, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return sample_ball_and_goal(Uniforms(values), RollRanges(speed=SPEEDS[speed]))


def step_data(ball: Tensor, joint_speed: float = 0.0) -> StepData:
    """The ball at ``ball`` (MANY, 2), at rest; the hand 10 cm above it."""
    objects = torch.zeros(MANY, 2, 13)
    objects[:, BALL, :7] = lying(ball)
    tcp = objects[:, BALL, :7].clone()
    tcp[:, 2] += 0.1
    return StepData(
        elapsed=torch.full((MANY,), 20),
        responding=torch.ones(MANY, dtype=torch.bool),
        objects=objects,
        tcp=tcp,
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.full((MANY,), 0.04),
        speeds=torch.zeros(MANY, 2),
    )


def directions() -> Tensor:
    """(MANY, 2) of length 1, all round."""
    angle = torch.linspace(0, 2 * math.pi, MANY)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def spans(values: Tensor, low: float, high: float) -> bool:
    """Whether values fill the range and do not leave it (float32)."""
    edge = 0.002 * (high - low)
    inside = float(values.min()) >= low - 1e-6 and float(values.max()) <= high + 1e-6
    return inside and float(values.min()) < low + edge and float(values.max()) > high - edge


@pytest.mark.parametrize(("speed", "low", "high"), [("slow", 0.25, 0.5), ("medium", 0.5, 0.75), ("fast", 0.75, 1.0)])
def test_balls_and_discs_are_drawn_as_specified(speed: str, low: float, high: float) -> None:
    s = fresh(speed, count=30_000)
    assert spans(s.start[:, 0], -0.35, -0.05)
    assert spans(s.start[:, 1], -0.9, -0.65)
    assert bool((s.start[:, 2] == BALL_RADIUS).all())
    assert spans(s.velocity[:, 0], 0.0, 0.05)
    assert spans(s.velocity[:, 1], low, high)
    assert not bool(s.velocity[:, 2].any())
    assert torch.allclose(s.goal[:, 0], s.start[:, 0] + 0.2)
    assert spans(s.goal[:, 1], -0.2, 0.2)
    drawn = torch.stack([s.start[:, 0], s.start[:, 1], s.velocity[:, 0], s.velocity[:, 1], s.goal[:, 1]])
    assert float((torch.corrcoef(drawn) - torch.eye(5)).abs().max()) < 0.03, "one number was drawn from another"


def test_a_rolling_ball_stands_still_where_it_touches_the_table() -> None:
    generator = torch.Generator().manual_seed(0)
    velocity = torch.randn(MANY, 3, generator=generator) * torch.tensor([1.0, 1.0, 0.0])
    six = rolling(velocity)
    assert torch.equal(six[:, :3], velocity)
    contact = torch.tensor([0.0, 0.0, -BALL_RADIUS]).expand(MANY, 3)
    assert float((velocity + torch.linalg.cross(six[:, 3:], contact)).abs().max()) < 1e-6
    assert not bool(six[:, 5].any()), "it does not turn about the vertical"


@pytest.mark.parametrize(
    ("distance", "lift", "speed", "success"),
    [
        (0.0, 0.0, 0.0, True),
        (GOAL_RADIUS - 1e-4, 0.0, 0.0, True),
        (GOAL_RADIUS + 1e-4, 0.0, 0.0, False),
        (0.0, 0.0, 0.049, True),
        (0.0, 0.0, 0.051, False),
        (0.05, 0.0, 0.06, False),
        (0.0, 0.009, 0.0, True),
        (0.0, 0.011, 0.0, False),
        (0.0, -0.5, 0.0, False),
    ],
)
def test_success_is_rest_in_the_disc(env: Env, distance: float, lift: float, speed: float, success: bool) -> None:
    """Whether the arm moves or not."""
    task, s = task_of(env), fresh()
    for joint_speed in (0.0, 1.0):
        look = step_data(s.goal + distance * directions(), joint_speed)
        look.objects[:, BALL, 2] += lift
        look.speeds[:, BALL] = speed
        look.objects[:, BALL, 7:10] = 1.0  # what the simulator reports of a ball held tight is no motion
        task.update_state(s, look, NO_TOUCH)
        verdict = task.outcome(s, look)
        assert bool((verdict["success"] == success).all())
        assert bool((verdict["in_goal"] == (distance < GOAL_RADIUS and abs(lift) < 0.01)).all())
        assert bool((verdict["at_rest"] == (speed < 0.05)).all())
        assert not bool(verdict["fail"].any())


@pytest.mark.parametrize("velocity", [(0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, -0.3), (0.0, 0.0, 0.0)])
def test_rest_is_measured_in_all_directions(env: Env, velocity: tuple[float, float, float]) -> None:
    task = task_of(env)
    env.reset(seed=5)
    pose = lying(torch.tensor([0.3, 0.4]).repeat(N, 1))
    pose[:, 2] += -0.5 * velocity[2]  # room to fall
    move(env, task.objects[BALL], range(N), pose, velocity=velocity)
    at_rest = step(env, still_action(env))["info/at_rest"]
    assert bool((at_rest == (not any(velocity))).all())


def test_nothing_seen_at_an_instant_tells_how_fast_the_ball_is(env: Env) -> None:
    task, s = task_of(env), fresh()
    look = step_data(s.start[:, :2])
    seen = task.visible_poses(s, look)
    assert bool(seen[0].all())
    assert torch.equal(seen[1][..., :3], look.objects[..., :3])
    look.objects[:, BALL, 7:] = torch.rand(MANY, 6)
    look.objects[:, BALL, 3:7] = torch.nn.functional.normalize(torch.randn(MANY, 4), dim=1)
    kept = look.objects.clone()
    again = task.visible_poses(s, look)
    assert torch.equal(look.objects, kept), "perception wrote into what it looked at"
    assert torch.equal(again[1], seen[1])
    assert bool((again[1][:, BALL, 3:] == torch.tensor([1.0, 0.0, 0.0, 0.0])).all())


def test_the_oracle_is_the_velocity_at_the_start_and_the_state_tells_the_present_one(env: Env) -> None:
    task, s = task_of(env), fresh()
    look = step_data(s.start[:, :2] + 0.1)
    look.objects[:, BALL, 7:10] = 0.5 * s.velocity
    velocity = s.velocity.clone()
    task.update_state(s, look, NO_TOUCH)
    assert torch.equal(task.oracle(s), velocity)
    features = task.state_features(s, look)
    assert torch.equal(features["start_velocity"], velocity)
    assert torch.equal(features["ball_velocity"], 0.5 * velocity)
    assert torch.allclose(features["tcp_to_ball"], torch.tensor([0.0, 0.0, -0.1]), atol=1e-6)
    assert torch.allclose(features["ball_to_goal"], s.goal - look.objects[:, BALL, :2])


# ---------------------------------------------------------------------- rewards
def test_taking_the_ball_to_the_disc_pays_at_every_step(env: Env) -> None:
    task, s = task_of(env), fresh()
    path = s.start[:, :2] + torch.tensor([0.0, 0.7])  # where the ball may have been caught
    last = torch.full((MANY,), -1.0)
    for k in range(21):
        look = step_data(path + k / 20 * (s.goal - path), joint_speed=0.5)
        look.speeds[:, BALL] = 0.2
        now = paid(task, s, look)
        inside = torch.linalg.norm(look.objects[:, BALL, :2] - s.goal, dim=1) < GOAL_RADIUS
        assert bool((now > last - 1e-6).all())
        assert bool((now > last)[~inside].all())
        last = now
    assert bool(inside.all())
    # to stop on the way, ball and arm, is worth less than the last tenth of the way
    halfway = paid(task, s, step_data(path + 0.5 * (s.goal - path)))
    assert bool((halfway < last).all())
    assert bool((paid(task, s, step_data(s.goal)) == rewards.maximum(task.reward_scales)).all())


def test_rest_and_stillness_pay_in_the_disc(env: Env) -> None:
    task, s = task_of(env), fresh()
    out, into = s.goal + (GOAL_RADIUS + 0.01) * directions(), s.goal + (GOAL_RADIUS - 0.01) * directions()
    assert not bool(task.reward_terms(s, step_data(out))["rest"].any())
    assert not bool(task.reward_terms(s, step_data(out))["still"].any())
    last = torch.zeros(MANY)
    for speed in (1.0, 0.3, 0.1, 0.06):
        look = step_data(into)
        look.speeds[:, BALL] = speed
        terms = task.reward_terms(s, look)
        assert bool((terms["rest"] > last).all()), "slower is better"
        assert bool((terms["still"] == 1).all())
        last = terms["rest"]


def test_a_ball_in_the_grasp_earns_more_than_one_that_is_pushed(env: Env) -> None:
    """PPO stopped the ball with closed fingers, pushed it, and often did not come to the disc."""
    task, s = task_of(env), fresh()
    last = torch.full((MANY,), -1.0)
    # closed fingers beside the ball; open ones there, above it, and around it; the grasp, on the way, and near the disc
    for beside, above, fingers, share in (
        (0.03, 0.0, 0.0, 0.0),
        (0.03, 0.06, OPEN, 0.0),
        (0.0, 0.03, OPEN, 0.0),
        (0.0, 0.0, OPEN, 0.0),
        (0.0, 0.0, CLOSED - 0.001, 0.0),
        (0.0, 0.0, CLOSED - 0.001, 0.2),
        (0.0, 0.0, CLOSED - 0.001, 0.4),
    ):
        look = step_data(s.start[:, :2] + share * (s.goal - s.start[:, :2]), joint_speed=0.5)
        look.tcp[:, 2] = look.objects[:, BALL, 2] + above
        look.tcp[:, 1] += beside
        look.fingers[:] = fingers
        now = paid(task, s, look)
        assert bool((now > last + 0.01).all()), (beside, above, fingers, share)
        last = now
    look.tcp[:, 1] += BALL_RADIUS + 0.01
    assert not bool(task.reward_terms(s, look)["grasp"].any()), "the ball lies against closed fingers"


def test_a_hand_in_the_balls_way_is_near_it_until_the_ball_has_passed() -> None:
    look = step_data(torch.zeros(MANY, 2))
    look.objects[:, BALL, 7:10] = torch.tensor([0.3, 0.4, 0.0])
    ahead = torch.linspace(-1, 1, MANY)  # m along the way, of which 3/5 lead along x
    look.tcp[:, :3] = torch.stack([0.6 * ahead - 0.08, 0.8 * ahead + 0.06, torch.full_like(ahead, BALL_RADIUS)], dim=1)
    expected = torch.where(ahead > 0, 0.1, (ahead**2 + 0.01).sqrt())  # 0.1 m beside the way
    assert torch.allclose(distance_to_way(look), expected, atol=1e-6)
    assert torch.equal(
        distance_to_way(look)[::7], torch.cat([distance_to_way(row(look, k)) for k in range(0, MANY, 7)])
    )
    look.objects[:, BALL, 7:10] = 0.0
    assert torch.allclose(distance_to_way(look), (ahead**2 + 0.01).sqrt(), atol=1e-6), "a ball at rest is where it is"


def row(look: StepData, k: int) -> StepData:
    """One row of all that `step_data` holds."""
    parts = {field.name: getattr(look, field.name) for field in dataclasses.fields(look)}
    return StepData(**{name: part if name == "action" else part[k : k + 1] for name, part in parts.items()})


def test_a_ball_that_rolls_past_the_disc_by_itself_earns_nothing(env: Env) -> None:
    task, s = task_of(env), fresh()
    look = step_data(s.goal + 1.05 * GOAL_RADIUS * directions())
    look.tcp[:, :2] += 2.0  # m away
    terms = task.reward_terms(s, look)
    assert float(terms["place"].max()) < 1e-6
    assert not bool(terms["rest"].any())


# ---------------------------------------------------------------------- arguments
@pytest.mark.parametrize("env_id", ["InterceptSlow-v0", "InterceptGrabSlow-v0"])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"speed": "quick"}, "speed='quick'.*'slow', 'medium' or 'fast'"),
        ({"speed": None}, "speed=None"),
        ({"speed": 0.5}, r"speed=0\.5"),
        ({"speed_range": 0.5}, r"speed_range=0\.5"),
        ({"speed_range": (0.5,)}, r"speed_range=\(0\.5,\)"),
        ({"speed_range": (0.5, 0.4)}, r"speed_range=\(0\.5, 0\.4\).*first <= second"),
        ({"speed_range": (0.1, 0.4)}, r"speed_range=\(0\.1, 0\.4\).*0\.15 <= first"),
        ({"speed_range": (0.5, 2.1)}, r"speed_range=\(0\.5, 2\.1\).*<= 2 m/s"),
        ({"speed_range": (0.5, float("nan"))}, r"speed_range=\(0\.5, nan\)"),
        ({"speed_range": ("0.5", 1)}, r"speed_range=\('0\.5', 1\)"),
        ({"speed_range": (True, True)}, r"speed_range=\(True, True\)"),
        ({"start_y_range": (-0.9, -0.2)}, r"start_y_range=\(-0\.9, -0\.2\).*<= -0\.3 m"),
        ({"start_y_range": -0.5}, r"start_y_range=-0\.5"),
        ({"head_start": 1.1}, r"head_start=1\.1 must be a number from 0 to 1, or two of them"),
        ({"head_start": (0.5, 0.4)}, r"head_start=\(0\.5, 0\.4\)"),
        ({"head_start": (0, 0.5, 1)}, r"head_start=\(0, 0\.5, 1\)"),
        ({"head_start": True}, "head_start=True"),
        ({"head_start": "0.5"}, "head_start='0.5'"),
        ({"head_start": None}, "head_start=None"),
        ({"head_start": float("nan")}, "head_start=nan"),
        ({"cue_steps": 0}, "cue_steps=0"),
        ({"delay_steps": 5}, "delay_steps=5 must be 0"),
        ({"response_steps": 5}, "response_steps=5 must be 0"),
        ({"arm": "held"}, "arm='held'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_arguments_are_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, env_id: str, arguments: dict[str, Any], named: str
) -> None:
    def built(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("building began")

    monkeypatch.setattr(BaseEnv, "__init__", built)
    with pytest.raises(AssertionError, match="building began"):
        gym.make(env_id)
    with pytest.raises(ValueError, match=named):
        gym.make(env_id, **arguments)


def test_a_speed_range_takes_the_place_of_the_named_speed() -> None:
    assert {name: speed_range_of(name, None) for name in SPEEDS} == SPEEDS
    assert speed_range_of("fast", [0.15, 2]) == (0.15, 2.0)
    assert speed_range_of("slow", (0.3, 0.3)) == (0.3, 0.3)


def test_the_dials_reach_the_task() -> None:
    env = make(MODES["fast"], 2, speed_range=(0.3, 0.31), start_y_range=(-0.5, -0.4), cue_steps=4)
    env.reset(seed=0)
    assert task_of(env).horizon == 4
    start = task_of(env).task_state.start[:, 1]
    assert bool(((start >= -0.5) & (start <= -0.4)).all())
    assert torch.allclose(task_of(env).object_layout.read()[:, BALL, 1], start)
    velocity = task_of(env).task_state.velocity[:, 1]
    assert bool(((velocity >= 0.3) & (velocity <= 0.31)).all())
    for k in range(1, 5):
        record = step(env, still_action(env))
        assert record["truncated"].tolist() == [k == 4] * 2
    env.close()


# ---------------------------------------------------------------------- curriculum: a head start
def test_a_ball_with_a_head_start_is_nearer_and_slower_by_the_same_share() -> None:
    values = torch.rand(MANY, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    plain = sample_ball_and_goal(Uniforms(values[:, [0, 1, 2, 3, 5]]), RollRanges())
    drawn = sample_ball_and_goal(Uniforms(values), RollRanges(head_start=(0.25, 0.75)))
    share = 1 - drawn.start[:, 1] / plain.start[:, 1]
    assert torch.allclose(share, 0.25 + 0.5 * values[:, 4].float(), atol=1e-5)
    assert torch.allclose(drawn.velocity, plain.velocity * (1 - share)[:, None], atol=1e-5)
    assert torch.equal(drawn.start[:, [0, 2]], plain.start[:, [0, 2]])
    assert torch.equal(drawn.goal, plain.goal)
    fixed = sample_ball_and_goal(Uniforms(values[:, [0, 1, 2, 3, 5]]), RollRanges(head_start=(0.5, 0.5)))
    assert torch.allclose(fixed.start[:, 1], plain.start[:, 1] / 2)


@pytest.mark.parametrize("env_id", ["InterceptMedium-v0", "InterceptGrabMedium-v0"])
def test_head_starts_reach_the_task(env_id: str) -> None:
    """With the largest one the ball rests where it can be reached, and rest alone is no success; others are all between."""
    rests, mixed, plain = (make(env_id, 64, head_start=given) for given in (1, np.array([0.0, 1.0]), 0.0))
    for env in (rests, mixed, plain):
        env.reset(seed=0)
    before = base(rests).object_layout.read()[:, BALL, :3].clone()
    assert torch.equal(base(rests).task_state.velocity, torch.zeros(64, 3))
    assert torch.allclose(before[:, 1], torch.zeros(64))
    for _ in range(10):
        assert not bool(rests.step(still_action(rests))[-1]["success"].any())
    assert torch.allclose(base(rests).object_layout.read()[:, BALL, :3], before, atol=1e-3)
    share = 1 - base(mixed).task_state.start[:, 1] / base(plain).task_state.start[:, 1]
    assert float(share.min()) < 0.1
    assert float(share.max()) > 0.9
    for env in (rests, mixed, plain):
        env.close()


@pytest.mark.parametrize("share", [1, 0.97])
@pytest.mark.parametrize("env_id", ["InterceptMediumHidden-v0", "InterceptFastHidden-v0"])
def test_a_hidden_ball_with_a_head_start_does_not_begin_in_the_disc(env_id: str, share: float) -> None:
    """The disc of a hidden ball is drawn by itself; a ball that hardly rolls must have to be moved there all the same."""
    env = make(env_id, 64, obs_mode="none", head_start=share)
    env.reset(seed=0)
    for _ in range(10):
        assert not bool(env.step(still_action(env))[-1]["success"].any())
    env.close()


@pytest.mark.parametrize("speed", MODES)
def test_with_a_head_start_the_disc_of_a_hidden_ball_comes_nearer_to_the_balls(speed: str) -> None:
    values = torch.rand(MANY, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    plain, half, whole = (
        sample_ball_and_goal(Uniforms(values), RollRanges(speed=SPEEDS[speed], head_start=(share, share)), hidden=True)
        for share in (0.0, 0.5, 1.0)
    )
    beyond = [s.goal[:, 0] - s.start[:, 0] - 0.2 for s in (plain, half, whole)]
    assert float(beyond[0].abs().max()) > 0.2
    assert torch.allclose(beyond[1], beyond[0] / 2, atol=1e-6)
    assert torch.allclose(beyond[2], torch.zeros(MANY), atol=1e-6)
    assert all(torch.equal(s.goal[:, 1], plain.goal[:, 1]) for s in (half, whole))


# ---------------------------------------------------------------------- the untouched ball
def rolled(s: InterceptState, t: float) -> Tensor:
    """(N, 2) where balls that nobody touches are after ``t`` seconds."""
    return s.start[:, :2] + s.velocity[:, :2] * ((1 - math.exp(-DAMPING * t)) / DAMPING)


@pytest.mark.parametrize("speed", MODES)
def test_an_untouched_ball_crosses_and_never_rests_in_the_disc(speed: str) -> None:
    """100 episodes, half of them to the end."""
    env = make(MODES[speed], 50, obs_mode="none")
    task = task_of(env)
    through = torch.zeros(50, dtype=torch.bool)
    for seed in range(2):
        env.reset(seed=seed)
        s, disc = task.task_state, task.object_layout.read()[:, DISC].clone()
        for t in range(1, task.horizon + 1):
            info = env.step(still_action(env))[-1]
            objects = task.object_layout.read()
            ball, on_table = objects[:, BALL], objects[:, BALL, 1] < 1.15
            assert not bool(info["success"].any() | info["fail"].any())
            assert not bool((info["in_goal"] & info["at_rest"]).any())
            assert torch.allclose(objects[:, DISC], disc, rtol=0, atol=1e-6)
            assert float((ball[on_table, :2] - rolled(s, t * 0.05)[on_table]).abs().max()) < 0.002
            assert float((ball[on_table, 2] - BALL_RADIUS).abs().max()) < 1e-4
            assert bool((ball[on_table, 8] > 0.75 * s.velocity[on_table, 1]).all()), "it hardly slows down"
            slip = ball[:, 7:10] + torch.linalg.cross(ball[:, 10:], ball.new_tensor([[0.0, 0.0, -BALL_RADIUS]]))
            assert float(torch.linalg.norm(slip[on_table], dim=1).max()) < 1e-3, "it rolls from the first step"
            through |= info["in_goal"]
            # the first half to the end, or until all have fallen off; the others until all have left every disc
            if bool((ball[:, 1] > (0.35 if seed else 1.1)).all()):
                break
        # 0.25 m/s are 1.1 m in 90 steps: the slowest are on their way through the workspace at the end
        assert float(ball[:, 1].min()) > (0.09 if speed == "slow" else 0.35)
        assert float((ball[:, 1] > 0.3).float().mean()) > (0.8 if speed == "slow" else 0.99)
    assert bool(through.any()) == (speed == "slow"), "slow balls with much drift roll through the disc"
    env.close()


def test_the_slowest_ball_that_may_be_asked_for_rolls_on_too() -> None:
    """Longer than any mode does: until it is beyond the farthest disc."""
    env = make(MODES["slow"], 16, obs_mode="none", speed_range=(0.15, 0.15), cue_steps=300)
    env.reset(seed=0)
    for _ in range(220):
        info = env.step(still_action(env))[-1]
        assert not bool(info["success"].any())
    assert float(task_of(env).object_layout.read()[:, BALL, 1].min()) > 0.3
    env.close()


# ---------------------------------------------------------------------- in simulation
def put(env: Env, rows: list[int], xy: Tensor, speed: float = 0.0) -> None:
    """Lays the balls of environments ``rows`` at ``xy`` (N, 2), rolling along +y with ``speed``."""
    px = base(env).scene.px
    data = px.cuda_rigid_dynamic_data.torch()
    velocity = torch.tensor([0.0, speed, 0.0]).expand(len(rows), 3)
    index = task_of(env).objects[BALL]._body_data_index[rows]
    data[index] = torch.cat([lying(xy[rows]), rolling(velocity)], dim=1)
    px.gpu_apply_rigid_dynamic_data()
    px.gpu_fetch_rigid_dynamic_data()


def test_new_balls_roll_while_old_ones_roll_on(env: Env) -> None:
    """A partial reset sets those in motion that it names."""
    task = task_of(env)
    env.reset(seed=5)
    for _ in range(10):
        env.step(still_action(env))
    before = task.object_layout.read().clone()
    env.reset(options={"env_idx": [1, 6]})
    now, s = task.object_layout.read(), task.task_state
    others = [i for i in range(N) if i not in (1, 6)]
    assert torch.equal(now[others], before[others])
    assert torch.allclose(now[[1, 6], BALL, :3], s.start[[1, 6]])
    assert torch.allclose(now[[1, 6], BALL, 7:], rolling(s.velocity)[[1, 6]])
    env.step(still_action(env))
    gone = task.object_layout.read()[:, BALL, :2] - now[:, BALL, :2]
    assert torch.allclose(gone, 0.05 * now[:, BALL, 7:9], atol=1e-3)


def test_a_ball_that_rolls_is_not_at_rest_when_an_episode_begins(env: Env) -> None:
    assert not bool(env.reset(seed=5)[1]["at_rest"].any())
    task_of(env)._speeds[:] = 0.0  # as if all had come to rest
    at_rest = env.reset(options={"env_idx": [1, 6]})[1]["at_rest"]
    assert [i for i in range(N) if not at_rest[i]] == [1, 6]


def test_the_observation_of_a_rolling_ball_is_that_of_a_resting_one(env: Env) -> None:
    task = task_of(env)
    env.reset(seed=6)
    for action in random_actions(env, 6, seed=6):
        obs = env.step(action)[0]
    rolling_view = obs["objects"].clone()
    moving = task.object_layout.read()[:, BALL].clone()
    assert float(torch.linalg.norm(moving[:, 7:9], dim=1).min()) > 0.2
    assert float(moving[:, 3].abs().min()) < 0.99, "it has turned"
    move(env, task.objects[BALL], range(N), lying(moving[:, :2]))
    resting = task.get_obs()
    assert torch.allclose(resting["objects"], rolling_view, rtol=0, atol=1e-4)
    assert not torch.allclose(resting["state"], obs["state"], rtol=0, atol=0.1), "the state tells the velocity"


def test_a_stopped_ball_stays_in_the_disc_and_a_slow_one_does_not_count(env: Env) -> None:
    task = task_of(env)
    env.reset(seed=7)
    env.step(still_action(env))
    goal, stopped, slow = task.task_state.goal, [0, 1, 2, 3], [4, 5, 6, 7]
    put(env, stopped, goal)
    put(env, slow, goal, speed=0.06)
    for _ in range(20):
        record = step(env, still_action(env))
        assert bool(record["info/in_goal"].all())
        assert record["info/success"].tolist() == [True] * 4 + [False] * 4
        assert torch.equal(record["terminated"], record["info/success"])
        assert torch.equal(record["reward"] == 1, record["info/success"])
    assert float((task.object_layout.read()[stopped, BALL, :2] - goal[stopped]).abs().max()) < 0.001


def test_a_ball_that_the_hand_blocks_in_the_disc_is_a_success(env: Env) -> None:
    """Rolling straight at the disc, with closed fingers beyond its middle; where the hand stays up it rolls through."""
    task = task_of(env)
    env.reset(seed=8)
    blocked, free = [0, 1, 2, 3], [4, 5, 6, 7]
    goal = task.task_state.goal
    low = torch.cat([goal + torch.tensor([0.0, 0.06]), torch.full((N, 1), 0.02)], dim=1)
    low[free, 2] = 0.2
    high = low.clone()
    high[:, 2] = 0.2
    for target, steps in ((high, 15), (low, 15)):
        for _ in range(steps):
            env.step(go_to(env, target))
    # fast: PhysX's friction throws one slow ball in four back from a finger
    put(env, list(range(N)), goal - torch.tensor([0.0, 0.25]), speed=0.9)
    records: list[Record] = [step(env, go_to(env, low)) for _ in range(20)]
    success = torch.stack([record["info/success"] for record in records])
    assert success.any(dim=0).tolist() == [i in blocked for i in range(N)]
    assert success[-1].tolist() == [i in blocked for i in range(N)], "it stays"
    passed = torch.stack([record["info/in_goal"] for record in records]).any(dim=0)
    assert bool(passed.all())
