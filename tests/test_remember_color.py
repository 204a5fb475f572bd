"""RememberColor: what a touch is, what it leads to, and that a robot's finger can do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from task_helpers import Env, Record, base, go_to, make, step, still_action
from torch import Tensor

from mikasa_robo.core.choice import ChoiceState, sample_choice
from mikasa_robo.core.env import STATIC_SPEED, StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.touch_sensor import TouchSensor
from mikasa_robo.core.touches import HOLD_STEPS
from mikasa_robo.tasks.remember_color import RememberColor

MANY = 1000
N = 8
ABOVE = 0.12  # m, from where a cube is approached
DEEP = 0.02  # m, aimed at inside the cube: the finger rests on its top


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    """Eight environments whose hand is moved in space."""
    made = make("RememberColor3-v0", N, control_mode="pd_ee_delta_pos")
    yield made
    made.close()


def task_of(env: Env) -> RememberColor:
    return cast(RememberColor, base(env))


def home(env: Env, index: Tensor) -> Tensor:
    """(N, 3) where candidate ``index`` (N,) stands."""
    places = task_of(env).task_state.home
    return places[torch.arange(len(places)), index].clone()


def press(env: Env, place: Tensor, steps_above: int, steps_down: int, steps_after: int = 3) -> list[Record]:
    """Moves over ``place`` (N, 3), down onto it, and waits."""
    records = []
    for phase, steps in ((ABOVE, steps_above), (DEEP, steps_down)):
        target = place.clone()
        target[:, 2] = phase
        records += [step(env, go_to(env, target)) for _ in range(steps)]
    return records + [step(env, still_action(env, gripper=-1.0)) for _ in range(steps_after)]


def over_time(records: list[Record], name: str) -> Tensor:
    """(T, N) of an entry of the records."""
    return torch.stack([record[name] for record in records])


# ---------------------------------------------------------------------- by tensors, a thousand at a time
def step_data(responding: bool = True, joint_speed: float = 0.0) -> StepData:
    return StepData(
        elapsed=torch.full((MANY,), 20 if responding else 3),
        responding=torch.full((MANY,), responding),
        objects=torch.zeros(MANY, 3, 13),
        tcp=torch.zeros(MANY, 7),
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.zeros(MANY),
        speeds=torch.zeros(MANY, 3),
    )


def fresh() -> ChoiceState:
    values = torch.rand(MANY, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return sample_choice(Uniforms(values), 3, 1, torch.full((3,), 0.02), 0.02)


def touch(index: Tensor, link: int) -> Tensor:
    """(MANY, 3 links, 3 objects): one link touches one object of each environment."""
    touching = torch.zeros(MANY, 3, 3, dtype=torch.bool)
    touching[torch.arange(MANY), link, index] = True
    return touching


@pytest.mark.parametrize("link", [0, 1, 2], ids=["hand", "left finger", "right finger"])
def test_a_held_touch_by_any_part_of_the_hand_succeeds_once_the_robot_is_static(env: Env, link: int) -> None:
    task, s = task_of(env), fresh()
    task.update_state(s, step_data(), touch(s.target[:, 0], link))
    verdict = task.outcome(s, step_data())
    assert not bool((verdict["success"] | verdict["touched"] | verdict["fail"]).any()), "one step does not count"
    task.update_state(s, step_data(), touch(s.target[:, 0], link))
    assert bool(task.outcome(s, step_data())["success"].all())
    moving = task.outcome(s, step_data(joint_speed=STATIC_SPEED * 1.01))
    assert not bool(moving["success"].any())
    assert bool(moving["touched"].all())
    assert bool(task.outcome(s, step_data(joint_speed=STATIC_SPEED * 0.99))["success"].all())


def test_a_wrong_touch_fails_and_success_is_impossible_afterwards(env: Env) -> None:
    task, s = task_of(env), fresh()
    wrong = (s.target[:, 0] + 1) % 3
    for index in (wrong, wrong, s.target[:, 0], s.target[:, 0]):
        task.update_state(s, step_data(), touch(index, 1))
    verdict = task.outcome(s, step_data())
    assert bool(verdict["fail"].all())
    assert bool(verdict["mistake"].all())
    assert bool(verdict["touched"].all())
    assert not bool(verdict["success"].any())


def test_touches_of_one_step_never_count(env: Env) -> None:
    task, s = task_of(env), fresh()
    for k in range(12):
        # the target again and again, each wrong cube once
        index = s.target[:, 0] if k % 4 == 0 else (s.target[:, 0] + k // 4 + 1) % 3 if k in (2, 6) else None
        nothing = torch.zeros(MANY, 3, 3, dtype=torch.bool)
        task.update_state(s, step_data(), nothing if index is None else touch(index, 0))
    verdict = task.outcome(s, step_data())
    assert not bool((verdict["success"] | verdict["fail"] | verdict["touched"]).any())


def test_taps_of_a_wrong_cube_add_up_to_a_mistake(env: Env) -> None:
    task, s = task_of(env), fresh()
    wrong = (s.target[:, 0] + 1) % 3
    nothing = torch.zeros(MANY, 3, 3, dtype=torch.bool)
    for touching in (touch(wrong, 0), nothing, nothing, nothing):
        task.update_state(s, step_data(), touching)
    assert not bool(task.outcome(s, step_data())["fail"].any())
    task.update_state(s, step_data(), touch(wrong, 1))
    assert bool(task.outcome(s, step_data())["fail"].all())


def test_touches_before_the_response_never_count(env: Env) -> None:
    task, s = task_of(env), fresh()
    for index in (s.target[:, 0], s.target[:, 0], s.target[:, 0], (s.target[:, 0] + 1) % 3, (s.target[:, 0] + 1) % 3):
        task.update_state(s, step_data(responding=False), touch(index, 1))
    # held across the border: the steps before it do not help
    task.update_state(s, step_data(), touch(s.target[:, 0], 1))
    verdict = task.outcome(s, step_data())
    assert not bool((verdict["success"] | verdict["fail"] | verdict["touched"]).any())


def test_mistakes_are_ignored_where_asked() -> None:
    made = make("RememberColor3-v0", 1, on_mistake="ignore")
    task, s = task_of(made), fresh()
    wrong = (s.target[:, 0] + 1) % 3
    for index in (wrong, wrong):
        task.update_state(s, step_data(), touch(index, 1))
    verdict = task.outcome(s, step_data())
    assert not bool((verdict["fail"] | verdict["success"]).any())
    assert bool(verdict["mistake"].all())
    for index in (s.target[:, 0], s.target[:, 0]):
        task.update_state(s, step_data(), touch(index, 1))
    assert bool(task.outcome(s, step_data())["success"].all())
    made.close()


# ---------------------------------------------------------------------- by the robot
def test_a_finger_on_the_right_cube_succeeds_and_on_a_wrong_one_fails(env: Env) -> None:
    env.reset(seed=3)
    target = task_of(env).task_state.target[:, 0]
    right, wrong = list(range(4)), list(range(4, N))
    first = torch.where(torch.arange(N) < 4, target, (target + 1) % 3)
    records = press(env, home(env, first), 20, 10)
    for name, rows in (("info/success", right), ("info/fail", wrong), ("terminated", right + wrong)):
        assert bool(over_time(records, name)[:, rows].any(dim=0).all()), name
    assert not bool(over_time(records, "info/fail")[:, right].any())
    assert not bool(over_time(records, "info/success")[:, wrong].any())
    fail = over_time(records, "info/fail")[:, wrong]
    assert torch.equal(fail, fail.cummax(dim=0).values), "failing is for good"
    # those that failed now touch the right one
    up = home(env, first)
    up[:, 2] = ABOVE
    records = [step(env, go_to(env, up)) for _ in range(6)] + press(env, home(env, target), 16, 14)
    assert bool(over_time(records, "info/touched")[:, wrong].any(dim=0).all()), "the right one was not touched"
    assert not bool(over_time(records, "info/success")[:, wrong].any())
    assert bool(over_time(records, "info/fail")[:, wrong].all())


@pytest.mark.parametrize(("force", "counts"), [(0.0, False), (0.04, False), (0.06, True)])
def test_a_touch_is_a_contact_force_above_a_twentieth_newton(
    env: Env, force: float, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TouchSensor, "read", lambda self: torch.full((N, 3, 3), force))
    env.reset(seed=0)
    start = task_of(env).timeline.response_start
    for _ in range(start + HOLD_STEPS):
        info = env.step(still_action(env))[-1]
    assert info["mistake"].tolist() == [counts] * N


def test_a_finger_may_try_where_mistakes_are_ignored() -> None:
    made = make("RememberColor3-v0", 4, control_mode="pd_ee_delta_pos", on_mistake="ignore")
    made.reset(seed=3)
    target = task_of(made).task_state.target[:, 0]
    wrong = (target + 1) % 3
    records = press(made, home(made, wrong), 20, 10)
    assert bool(over_time(records, "info/mistake")[-1].all())
    up = home(made, wrong)
    up[:, 2] = ABOVE
    records += [step(made, go_to(made, up)) for _ in range(6)] + press(made, home(made, target), 16, 14)
    assert not bool(over_time(records, "info/fail").any())
    assert bool(over_time(records, "info/success").any(dim=0).all())
    made.close()


def test_a_hand_goes_through_the_cue_and_changes_nothing() -> None:
    """Bodies without contacts are shown as cues: a touch would leave a trace in the simulation."""
    made = make("RememberColor3-v0", 4, control_mode="pd_ee_delta_pos", cue_steps=40, delay_steps=3)
    made.reset(seed=5)
    task = task_of(made)
    middle = torch.tensor([0.0, 0.0, 0.02]).repeat(4, 1)
    forced = torch.zeros(4, dtype=torch.bool)
    fingers = [task.agent.robot.links_map[f"panda_{side}finger"] for side in ("left", "right")]
    for k in range(39):
        target = middle.clone()
        target[:, 2] = ABOVE if k < 12 else DEEP
        record = step(made, go_to(made, target))
        for link in fingers:
            for cube in task.objects:
                forced |= torch.linalg.norm(task.scene.get_pairwise_contact_forces(link, cube), dim=-1) > 5
        assert bool((record["info/phase"] == 0).all())
        assert not bool(task.task_state.held.any())
        assert not bool((record["info/success"] | record["info/fail"] | record["info/touched"]).any())
        # the cue stands where it was shown
        row = torch.arange(4)
        assert torch.allclose(
            task.object_layout.read()[row, task.task_state.target[:, 0], :3], middle, rtol=0, atol=1e-6
        )
    assert not bool(forced.any())
    tips = task.agent.tcp.pose.p
    assert bool(((tips - middle).abs() < 0.02).all()), "the fingers were never where the cue is"
    made.close()


@pytest.mark.parametrize("task_id", ["RememberColor3-v0", "RememberColor9-v0"])
def test_cubes_rest_where_they_appear(task_id: str) -> None:
    """Untouched for 200 steps."""
    made = make(task_id, N, response_steps=250)
    made.reset(seed=7)
    for _ in range(10):
        made.step(still_action(made))
    task = task_of(made)
    places = task.task_state.home.clone()
    assert torch.allclose(task.object_layout.read()[..., :3], places, rtol=0, atol=1e-6)
    for k in range(200):
        made.step(still_action(made))
        objects = task.object_layout.read()
        assert float(torch.linalg.norm(objects[..., :3] - places, dim=-1).max()) < 0.001, k
    assert float(objects[..., 7:].abs().max()) < 0.01
    assert float(objects[..., 3].abs().min()) > 0.9999, "a cube has turned"
    made.close()
