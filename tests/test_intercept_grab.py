"""InterceptGrab: what it takes to have caught the ball, and that a robot can lift it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from task_helpers import Env, base, go_to, make, move, paid, step, still_action
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS
from mikasa_robo.core import rewards
from mikasa_robo.core.env import STATIC_SPEED, StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.tasks.intercept import sample_ball_and_goal
from mikasa_robo.tasks.intercept_grab import LIFT_HEIGHT, InterceptGrab, InterceptGrabState, sample_ball
from mikasa_robo.tasks.rolling_ball import OPEN, SPEEDS, RollRanges, rolling

MANY = 1000
N = 8
MODES = {"slow": "InterceptGrabSlow-v0", "medium": "InterceptGrabMedium-v0", "fast": "InterceptGrabFast-v0"}
HAND, LEFT, RIGHT = range(3)
BOTH = (LEFT, RIGHT)


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """Eight environments whose hands are moved in space."""
    made = make(MODES["slow"], N, control_mode="pd_ee_delta_pos", obs_mode="state+objects")
    yield made
    made.close()


def task_of(env: Env) -> InterceptGrab:
    return cast(InterceptGrab, base(env))


# ---------------------------------------------------------------------- by tensors, a thousand at a time
def fresh(speed: str = "slow") -> InterceptGrabState:
    values = torch.rand(MANY, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return sample_ball(Uniforms(values), RollRanges(speed=SPEEDS[speed]))


def step_data(s: InterceptGrabState, height: float = 0.0, joint_speed: float = 0.0) -> StepData:
    """The ball at rest, its lowest point ``height`` above the table; the hand at its centre."""
    objects = torch.zeros(MANY, 1, 13)
    objects[:, 0, :3], objects[:, 0, 3] = s.start, 1.0
    objects[:, 0, 2] += height
    return StepData(
        elapsed=torch.full((MANY,), 20),
        responding=torch.ones(MANY, dtype=torch.bool),
        objects=objects,
        tcp=objects[:, 0, :7].clone(),
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.full((MANY,), BALL_RADIUS),
        speeds=torch.zeros(MANY, 1),
    )


def touch(*links: int) -> Tensor:
    touching = torch.zeros(MANY, 3, 1, dtype=torch.bool)
    touching[:, list(links)] = True
    return touching


@pytest.mark.parametrize("speed", MODES)
def test_the_ball_is_that_of_intercept(speed: str) -> None:
    values = torch.rand(MANY, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one = sample_ball_and_goal(Uniforms(values), RollRanges(speed=SPEEDS[speed]))
    other = sample_ball(Uniforms(values[:, :4]), RollRanges(speed=SPEEDS[speed]))
    assert torch.equal(one.start, other.start)
    assert torch.equal(one.velocity, other.velocity)
    assert not bool(other.grasped.any())


@pytest.mark.parametrize(
    ("links", "height", "speed", "joint_speed", "success"),
    [
        (BOTH, 0.05, 0.0, 0.0, True),
        ((HAND, LEFT, RIGHT), 0.05, 0.0, 0.0, True),
        (BOTH, LIFT_HEIGHT + 1e-3, 0.049, STATIC_SPEED * 0.99, True),
        ((), 0.05, 0.0, 0.0, False),
        ((LEFT,), 0.05, 0.0, 0.0, False),
        ((RIGHT,), 0.05, 0.0, 0.0, False),
        ((HAND, LEFT), 0.05, 0.0, 0.0, False),
        (BOTH, LIFT_HEIGHT - 1e-3, 0.0, 0.0, False),
        (BOTH, 0.0, 0.0, 0.0, False),
        (BOTH, 0.05, 0.051, 0.0, False),  # lifting without rest
        (BOTH, 0.05, 0.3, 0.0, False),
        (BOTH, 0.05, 0.0, STATIC_SPEED * 1.01, False),
    ],
)
def test_success(
    env: Env, links: tuple[int, ...], height: float, speed: float, joint_speed: float, success: bool
) -> None:
    task = task_of(env)
    s = fresh()
    look = step_data(s, height, joint_speed)
    look.speeds[:, 0] = speed
    look.objects[:, 0, 7:10] = 1.0  # what the simulator reports of a ball held tight is no motion
    task.update_state(s, look, touch(*links))
    verdict = task.outcome(s, look)
    assert bool((verdict["success"] == success).all())
    assert bool((verdict["grasped"] == (set(links) >= set(BOTH))).all())
    assert bool((verdict["lifted"] == (height > LIFT_HEIGHT)).all())
    assert bool((verdict["at_rest"] == (speed < 0.05)).all())
    assert not bool(verdict["fail"].any())


def test_a_grasp_is_of_this_step_only(env: Env) -> None:
    task, s = task_of(env), fresh()
    look = step_data(s, 0.05)
    for links, grasped in ((BOTH, True), ((LEFT,), False), ((), False), (BOTH, True)):
        task.update_state(s, look, touch(*links))
        assert bool((s.grasped == grasped).all())
        assert bool((task.outcome(s, look)["success"] == grasped).all())
    # each environment by itself
    some = torch.arange(MANY) % 3 == 0
    task.update_state(s, look, touch(*BOTH) & some[:, None, None])
    assert torch.equal(task.outcome(s, look)["success"], some)


def test_what_is_observed(env: Env) -> None:
    task, s = task_of(env), fresh()
    look = step_data(s)
    seen = task.visible_poses(s, look)
    look.objects[:, 0, 3:] = torch.rand(MANY, 10)
    assert torch.equal(task.visible_poses(s, look)[1], seen[1]), "neither its turning nor its speed is to be seen"
    assert torch.equal(task.oracle(s), s.velocity)
    task.update_state(s, look, touch(*BOTH))
    features = task.state_features(s, look)
    assert torch.equal(features["ball_velocity"], look.objects[:, 0, 7:10])
    assert torch.equal(features["start_velocity"], s.velocity)
    assert bool(features["grasped"].all())
    assert not bool(features["tcp_to_ball"].any())


# ---------------------------------------------------------------------- rewards
def test_the_reward_rises_from_reaching_to_success(env: Env) -> None:
    task, s = task_of(env), fresh()
    last = torch.full((MANY,), -1.0)
    stages = [(0.5, (), 0.0), (0.1, (), 0.0), (0.0, (), 0.0), (0.0, BOTH, 0.0), (0.0, BOTH, 0.01), (0.0, BOTH, 0.05)]
    for away, links, height in stages:
        look = step_data(s, height, joint_speed=0.5)  # in motion: no success
        look.tcp[:, 0] += away
        task.update_state(s, look, touch(*links))
        now = paid(task, s, look)
        assert bool((now > last + 0.05).all()), (away, links, height)
        last = now
    calmer = step_data(s, 0.05, joint_speed=0.25)
    assert bool((paid(task, s, calmer) > last + 0.05).all()), "to calm down pays once it is held up"
    assert bool((paid(task, s, step_data(s, 0.05)) == rewards.maximum(task.reward_scales)).all())


def test_a_ball_that_lies_against_closed_fingers_is_not_paid_as_a_grasp(env: Env) -> None:
    task, s = task_of(env), fresh()
    held, against = step_data(s), step_data(s)
    against.tcp[:, 1] += BALL_RADIUS + 0.01  # the fingertips, next to each other, stop the ball
    for look, paid_for in ((held, 1.0), (against, 0.0)):
        task.update_state(s, look, touch(*BOTH))
        assert bool((task.reward_terms(s, look)["grasp"] == paid_for).all())
        assert bool((task.state_features(s, look)["grasped"] == bool(paid_for)).all())
    assert bool(s.grasped.all()), "success asks for the touch of both fingers, as before"


def test_closed_fingers_that_stop_the_ball_earn_nothing_for_it(env: Env) -> None:
    """PPO stayed with them where they earned what open ones do, and never grasped the ball."""
    task, s = task_of(env), fresh()
    earned = []
    for fingers in (0.0, OPEN / 2, OPEN, 0.04):
        look = step_data(s)
        look.fingers[:] = fingers
        task.update_state(s, look, touch())
        earned.append(float(task.reward_terms(s, look)["stop"].mean()))
    assert earned == pytest.approx([0, 0.5, 1, 1])
    closing = step_data(s)  # around the ball
    task.update_state(s, closing, touch(*BOTH))
    assert float(task.reward_terms(s, closing)["stop"].min()) == 1


def test_over_a_ball_that_was_stopped_beside_the_hand_the_reward_rises_with_the_hand(env: Env) -> None:
    """PPO learnt to stop the ball with the outside of an open finger, and stayed there. To grasp it: up, over, down."""
    task, s = task_of(env), fresh()
    last = torch.full((MANY,), -1.0)
    for beside, height in (
        (0.07, 0.0),
        (0.07, 0.04),
        (0.07, 0.08),
        (0.05, 0.08),
        (0.02, 0.06),
        (0.0, 0.03),
        (0.0, 0.0),
    ):
        look = step_data(s, joint_speed=0.5)
        look.fingers[:] = 0.04
        look.tcp[:, 1] += beside
        look.tcp[:, 2] += height
        task.update_state(s, look, touch())
        now = paid(task, s, look)
        assert bool((now > last + 0.02).all()), (beside, height)
        last = now


def test_standing_still_pays_nothing_before_the_ball_is_held_up(env: Env) -> None:
    task, s = task_of(env), fresh()
    for links, height in (((), 0.0), ((), 0.05), (BOTH, 0.0)):
        look = step_data(s, height)
        task.update_state(s, look, touch(*links))
        assert not bool(task.reward_terms(s, look)["still"].any())
    look = step_data(s, 0.05)
    task.update_state(s, look, touch(*BOTH))
    assert float(task.reward_terms(s, look)["still"].min()) == 1
    task.update_state(s, look, touch(LEFT))
    assert not bool(task.reward_terms(s, look)["lift"].any()), "a ball thrown up is not lifted"


# ---------------------------------------------------------------------- in simulation
@pytest.mark.parametrize("speed", MODES)
def test_balls_roll_from_the_start(speed: str) -> None:
    env = make(MODES[speed], N, obs_mode="none")
    task = task_of(env)
    env.reset(seed=3)
    s = task.task_state
    low, high = SPEEDS[speed]
    assert bool(((s.velocity[:, 1] >= low) & (s.velocity[:, 1] < high)).all())
    assert torch.allclose(task.object_layout.read()[:, 0, 7:], rolling(s.velocity))
    for _ in range(10):
        info = env.step(still_action(env))[-1]
        assert not bool(info["success"].any() | info["fail"].any() | info["grasped"].any() | info["lifted"].any())
    gone = task.object_layout.read()[:, 0, :3] - s.start
    assert torch.allclose(gone, 0.5 * s.velocity, rtol=0.03, atol=1e-3)
    env.close()


def test_a_ball_is_caught_once_it_is_up_and_everything_is_at_rest(env: Env) -> None:
    """The hand goes down to where the ball will be put; in half of the environments it shuts beside the ball."""
    task = task_of(env)
    env.reset(seed=4)
    caught, missed = [0, 1, 2, 3], [4, 5, 6, 7]
    xy = torch.stack([torch.linspace(-0.2, 0.05, N), torch.linspace(-0.2, 0.2, N)], dim=1)

    def at(z: float) -> Tensor:
        return torch.cat([xy, torch.full((N, 1), z)], dim=1)

    for target, steps in ((at(0.15), 12), (at(BALL_RADIUS), 14)):
        for _ in range(steps):
            env.step(go_to(env, target, gripper=1.0))
    pose = torch.cat([at(BALL_RADIUS), torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(N, 4)], dim=1)
    pose[missed, 0] += 0.08
    move(env, task.objects[0], range(N), pose)
    for _ in range(6):
        shut = step(env, go_to(env, at(BALL_RADIUS)))
    assert shut["info/grasped"].tolist() == [i in caught for i in range(N)]
    assert not bool(shut["info/lifted"].any() | shut["info/success"].any()), "held, and still on the table"
    lifting = [step(env, go_to(env, at(0.12))) for _ in range(6)]
    for record in lifting:
        assert not bool(record["info/success"][missed].any())
        fast = ~(record["info/at_rest"] & record["info/static"])
        assert not bool((record["info/success"] & fast).any())
    up = torch.stack([r["info/lifted"] & r["info/grasped"] & ~r["info/at_rest"] for r in lifting])
    assert bool(up.any(dim=0)[caught].all()), "on its way up it is lifted, held and not at rest"
    last = [step(env, still_action(env, gripper=-1.0)) for _ in range(8)][-1]
    assert last["info/success"].tolist() == [i in caught for i in range(N)]
    assert torch.equal(last["terminated"], last["info/success"])
    assert torch.equal(last["reward"] == 1, last["info/success"])
    # let go, it falls
    for _ in range(6):
        record = step(env, still_action(env, gripper=1.0))
    assert not bool(record["info/success"].any() | record["info/grasped"].any())
