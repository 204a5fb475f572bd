"""BunchOfColors, SeqOfColors and ChainOfColors: what is shown, what counts, in which order; and that a hand can do it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from task_helpers import Env, N, base, chi_square_p, go_to, make, step, still_action
from torch import Tensor

from mikasa_robo.catalog import CATALOG
from mikasa_robo.core import choice
from mikasa_robo.core.choice import (
    CUE_SPACING,
    ChoiceState,
    ChoiceTask,
    CueOrder,
    choice_layout,
    draws_of_choice,
    nearest_others,
    next_target,
    sample_choice,
    update_choice,
)
from mikasa_robo.core.env import StepData
from mikasa_robo.core.phases import CUE, DELAY, RESPONSE
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.experts.policies import Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.tasks.colored_cubes import RecallColors

MANY = 1000
IDS = [f"{family}{n}-v0" for family in ("BunchOfColors", "SeqOfColors", "ChainOfColors") for n in (3, 5, 7)]


@pytest.fixture(scope="module", params=["BunchOfColors3-v0", "SeqOfColors3-v0", "ChainOfColors3-v0"])
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    """Eight environments whose hand is moved in space."""
    made = make(str(request.param), N, control_mode="pd_ee_delta_pos")
    yield made
    made.close()


def task_of(env: Env) -> ChoiceTask:
    return cast(ChoiceTask, base(env))


@pytest.mark.parametrize(
    ("candidates", "targets", "named"),
    [
        (3, 5, "num_targets=5 must be a whole number from 1 to 3"),
        (3, 0, "num_targets=0 must be a whole number from 1 to 3"),
        (0, 1, "num_candidates=0 must be a whole number of at least 1"),
        (2.0, 1, r"num_candidates=2\.0 must be a whole number"),
    ],
)
def test_a_task_of_ones_own_offers_what_it_asks_for(candidates: Any, targets: int, named: str) -> None:
    """With no target an episode would be a success at once; with more targets than candidates some would be missing."""

    class Own(ChoiceTask):
        def build_candidate(self, index: int) -> Any:
            raise AssertionError("nothing is built")

    with pytest.raises(ValueError, match=named):
        Own(num_candidates=candidates, num_targets=targets, cue_steps=5, delay_steps=5, response_steps=90)


def fresh(n: int = 3, num_candidates: int = 9) -> ChoiceState:
    generator = torch.Generator().manual_seed(n)
    values = torch.rand(MANY, draws_of_choice(num_candidates, n), dtype=torch.float64, generator=generator)
    u = Uniforms(values)
    s = sample_choice(u, num_candidates, n, torch.full((num_candidates,), 0.02), 0.0283)
    assert u.unused == 0
    return s


def step_data(joint_speed: float = 0.0) -> StepData:
    """A hand that points down, with closed fingers."""
    return StepData(
        elapsed=torch.full((MANY,), 50),
        responding=torch.ones(MANY, dtype=torch.bool),
        objects=torch.zeros(MANY, 9, 13),
        tcp=torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).repeat(MANY, 1),
        joint_speed=torch.full((MANY,), joint_speed),
        fingers=torch.zeros(MANY),
        speeds=torch.zeros(MANY, 9),
    )


def touch(task: ChoiceTask, s: ChoiceState, index: Tensor, steps: int = 2) -> None:
    """Candidate ``index`` (MANY,) is touched for some steps, then let go for two."""
    touching = torch.zeros(MANY, 3, 9, dtype=torch.bool)
    touching[torch.arange(MANY), 1, index] = True
    for k in range(steps + 2):
        task.update_state(s, step_data(), touching if k < steps else torch.zeros_like(touching))


# ---------------------------------------------------------------------- what is shown
@pytest.mark.parametrize("n", [3, 5, 7])
def test_the_true_colours_are_different_and_equally_likely_at_every_place(n: int) -> None:
    s = fresh(n)
    assert s.target.shape == (MANY, n)
    assert bool((s.target.sort(dim=1).values.diff(dim=1) > 0).all())
    stands = s.home[..., 1].argsort(dim=1).argsort(dim=1).gather(1, s.target)  # from the right
    for place in range(n):
        assert chi_square_p(torch.bincount(s.target[:, place], minlength=9)) > 1e-4
        assert chi_square_p(torch.bincount(stands[:, place], minlength=9)) > 1e-4, "the cue tells where it stands"
    assert torch.equal(s.is_target.sum(dim=1), torch.full((MANY,), n))
    assert torch.equal(s.rank.gather(1, s.target), torch.arange(n).expand(MANY, n))


def test_cubes_are_shown_side_by_side_or_one_after_another() -> None:
    n, each = 5, 4
    s = fresh(n)
    elapsed = torch.arange(MANY) % (n * each)
    cue = torch.full((MANY,), CUE)
    visible, poses = choice_layout(s, elapsed, cue, each, "sequential")
    assert torch.equal(visible.sum(dim=1), torch.ones(MANY, dtype=torch.int64))
    shown = visible.to(torch.int64).argmax(dim=1)
    for i in range(MANY):
        assert int(shown[i]) == int(s.target[i, int(elapsed[i]) // each])
    row = torch.arange(MANY)
    assert torch.equal(poses[row, shown], torch.tensor([0.0, 0.0, 0.02, 1, 0, 0, 0]).expand(MANY, 7))

    visible, poses = choice_layout(s, elapsed, cue, each, "simultaneous")
    assert torch.equal(visible, s.is_target)
    y = poses[..., 1].gather(1, s.target)
    expected = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0]) * CUE_SPACING
    assert torch.allclose(y, expected.expand(MANY, n), rtol=0, atol=1e-6)
    assert not bool(poses[..., 0].any())

    orders: tuple[CueOrder, ...] = ("simultaneous", "sequential")
    for order in orders:
        visible, _ = choice_layout(s, elapsed, torch.full((MANY,), DELAY), each, order)
        assert not bool(visible.any())
        visible, poses = choice_layout(s, elapsed, torch.full((MANY,), RESPONSE), each, order)
        assert bool(visible.all())
        assert torch.equal(poses[..., :3], s.home)


@pytest.mark.parametrize("env_id", IDS)
def test_the_episode_has_its_length_and_grows_with_its_cue(env_id: str) -> None:
    n = int(env_id[-4])
    horizon = CATALOG[env_id].horizon
    together = env_id.startswith("Bunch")
    made = gym.make(env_id, num_envs=1)
    assert task_of(made).horizon == horizon
    made.close()
    longer = gym.make(env_id, num_envs=1, cue_steps=7, delay_steps=9)
    assert task_of(longer).horizon == horizon + 2 * (1 if together else n) + 4
    assert task_of(longer).timeline.cue == 7 * (1 if together else n)
    longer.close()
    held = gym.make(env_id, num_envs=1, arm="held")
    assert task_of(held).horizon == CATALOG[env_id].held_horizon == horizon + (0 if together else 5 * n + 5)
    assert task_of(held).timeline.response_start == task_of(made).timeline.response_start
    held.close()


@pytest.mark.parametrize("arm", ["free", "held"])
def test_small_integers_of_numpy_do_not_overflow(arm: str) -> None:
    """Three cues of 100 steps do not fit into 8 bits."""
    small, plain = (
        gym.make("SeqOfColors3-v0", arm=arm, n=number(3), cue_steps=number(100), response_steps=number(100))
        for number in (np.uint8, int)
    )
    assert task_of(small).horizon == task_of(plain).horizon > 400
    assert task_of(small).timeline.response_start == 305
    small.close()
    plain.close()


def test_nine_targets_of_nine_are_refused_where_their_order_does_not_matter() -> None:
    for env_id in ("BunchOfColors3-v0", "SeqOfColors3-v0"):
        with pytest.raises(ValueError, match="n=9: all nine candidates would be targets"):
            gym.make(env_id, n=9)
    gym.make("ChainOfColors3-v0", n=9, response_steps=None).close()


# ---------------------------------------------------------------------- what counts
def test_all_have_to_be_touched_in_any_order_or_in_the_order_shown(env: Env) -> None:
    task = task_of(env)
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        s = fresh()
        for k, place in enumerate(order):
            assert not bool(task.outcome(s, step_data())["success"].any())
            touch(task, s, s.target[:, place])
            in_order = not task.ordered or order[: k + 1] == tuple(range(k + 1))
            assert bool((task.outcome(s, step_data())["mistake"] == (not in_order)).all())
        right = not task.ordered or order == (0, 1, 2)
        verdict = task.outcome(s, step_data())
        assert bool((verdict["success"] == right).all())
        assert bool((verdict["fail"] == (not right)).all())
        assert not bool(task.outcome(s, step_data(joint_speed=0.21))["success"].any())


def test_a_wrong_one_or_one_touched_twice_is_a_mistake_for_good(env: Env) -> None:
    task = task_of(env)
    wrong = (~fresh().is_target).to(torch.int64).argmax(dim=1)
    for second in (wrong, fresh().target[:, 0]):
        s = fresh()
        touch(task, s, s.target[:, 0])
        assert not bool(task.outcome(s, step_data())["fail"].any())
        touch(task, s, second)
        assert bool(task.outcome(s, step_data())["fail"].all())
        for place in (1, 2):
            touch(task, s, s.target[:, place])
        verdict = task.outcome(s, step_data())
        assert not bool(verdict["success"].any())
        assert bool(verdict["fail"].all())
    s = fresh()
    touch(task, s, wrong, steps=1)
    touch(task, s, s.target[:, 0], steps=1)
    verdict = task.outcome(s, step_data())
    assert not bool(verdict["mistake"].any()), "a touch shorter than 0.1 s does not count"
    assert not bool(verdict["touches"].any())


def test_leaving_a_cube_with_a_flickering_contact_is_no_second_touch(env: Env) -> None:
    task, s = task_of(env), fresh()
    on = torch.zeros(MANY, 3, 9, dtype=torch.bool)
    on[torch.arange(MANY), 1, s.target[:, 0]] = True
    for contact in (1, 1, 0, 1, 0, 1, 1, 0, 0):
        task.update_state(s, step_data(), on & bool(contact))
    assert not bool(s.mistaken.any())
    for contact in (1, 1):
        task.update_state(s, step_data(), on & bool(contact))
    assert bool(s.mistaken.all())


def test_the_next_target() -> None:
    s = fresh(5)
    distance = torch.rand(MANY, 9, generator=torch.Generator().manual_seed(0))
    yes = torch.ones(MANY, dtype=torch.bool)
    for place in range(5):
        assert torch.equal(next_target(s, distance, ordered=True), s.target[:, place])
        nearest = next_target(s, distance, ordered=False)
        left = s.is_target & ~s.counted
        assert bool(left.gather(1, nearest[:, None]).all())
        smallest = torch.where(left, distance, torch.inf).amin(dim=1)
        assert torch.equal(distance.gather(1, nearest[:, None])[:, 0], smallest)
        touching = torch.nn.functional.one_hot(s.target[:, place], 9).to(torch.bool)
        for _ in range(2):
            update_choice(s, touching, yes, ordered=True)
    assert bool(s.complete.all())
    assert torch.equal(next_target(s, distance, ordered=True), s.target[:, 4])
    assert bool(s.is_target.gather(1, next_target(s, distance, ordered=False)[:, None]).all())


def test_the_nearest_others_are_sorted_and_leave_out_the_target() -> None:
    distance = torch.tensor([[0.4, 0.1, 0.2, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5]])
    assert nearest_others(distance, torch.tensor([2, 0])).tolist() == [[1, 3, 0], [1, 2, 3]]
    assert nearest_others(distance[:, :3], torch.tensor([2, 0])).tolist() == [[1, 0], [1, 2]], "there are two others"
    assert bool(distance.isfinite().all()), "the distances stay as they were"


def test_the_state_observation_tells_what_is_beside_the_hand(env: Env) -> None:
    task, s = task_of(env), fresh()
    touch(task, s, s.target[:, 0])
    objects = torch.rand(MANY, 9, 13, generator=torch.Generator().manual_seed(0))
    data = dataclasses.replace(step_data(), objects=objects)
    features = task.state_features(s, data)
    target = features["next"].argmax(dim=1)
    for row in range(50):
        ways = {k: objects[row, k, :3] for k in range(9) if k != target[row]}  # the TCP is at (0, 0, 0)
        nearest = sorted(ways, key=lambda k: float(ways[k].norm()))[:3]
        assert torch.equal(features["tcp_to_others"][row], torch.stack([ways[k] for k in nearest]))
        assert features["others_are_targets"][row].tolist() == [bool(s.is_target[row, k]) for k in nearest]
        assert features["others_counted"][row].tolist() == [bool(s.counted[row, k]) for k in nearest]
    assert 0 < int(features["others_counted"].sum()) < int(features["others_are_targets"].sum())
    waiting = dataclasses.replace(data, responding=torch.zeros(MANY, dtype=torch.bool))
    features = task.state_features(s, waiting)
    assert not any(features[name].any() for name in ("tcp_to_others", "others_are_targets", "others_counted"))


def test_a_touch_pays_once_and_more_than_hovering_earns_in_many_steps(env: Env) -> None:
    task, s = task_of(env), fresh()
    near = step_data()
    rows = torch.arange(MANY)

    def reward() -> tuple[Tensor, Tensor]:
        """The weighted sum, and what `progress` pays of it."""
        terms = task.reward_terms(s, near)
        assert set(terms) == set(task.reward_scales)
        for value in terms.values():
            assert bool(((value >= 0) & (value <= 1)).all())
        weighted = {name: task.reward_scales[name] * value for name, value in terms.items()}
        return torch.stack(list(weighted.values())).sum(dim=0), weighted["progress"]

    for place in range(2):
        near.objects[..., :3] = 10.0  # the others are far away
        near.objects[rows, s.target[:, place], :3] = 0.0
        touching = torch.zeros(MANY, 3, 9, dtype=torch.bool)
        touching[rows, 1, s.target[:, place]] = True
        task.update_state(s, near, touching)
        hovering, once = reward()
        assert not bool(once.any())
        task.update_state(s, near, touching)
        touched, once = reward()
        assert bool((once == task.reward_scales["progress"]).all())
        assert bool((touched > 10 * hovering).all())
        for still_touching in (touching, torch.zeros_like(touching), torch.zeros_like(touching), touching, touching):
            task.update_state(s, near, still_touching)
            assert not bool(reward()[1].any()), "not for touching it longer, and not for touching it again"


def test_a_hand_that_does_not_let_go_of_a_target_earns_nothing_for_the_way_to_the_next(env: Env) -> None:
    """PPO pressed on the cube that it had touched, and dragged it along to the next one."""
    task, s = task_of(env), fresh()
    near, none = step_data(), torch.zeros(MANY, 3, 9, dtype=torch.bool)
    near.objects[..., :3] = torch.tensor([0.1, 0.1, -0.1])  # all are equally far from the hand, and below it
    on_first, on_second = none.clone(), none.clone()
    rows = torch.arange(MANY)
    on_first[rows, 1, s.target[:, 0]] = True
    on_second[rows, 1, s.target[:, 1]] = True

    def reach_after(*touches: Tensor) -> Tensor:
        for touching in touches:
            task.update_state(s, near, touching)
        return task.reward_terms(s, near)["reach"]

    on_its_way = reach_after(on_first)
    assert bool((on_its_way > 0).all())
    assert not bool(reach_after(on_first, on_first).any())
    assert torch.equal(reach_after(none), on_its_way), "let go"
    assert not bool(reach_after(on_first).any()), "the same touch goes on"
    assert torch.equal(reach_after(none, none), on_its_way)
    assert not bool(reach_after(on_first).any()), "a second one, which is a tap so far"
    assert torch.equal(reach_after(none, on_second), on_its_way), "the next target may be touched"


def test_a_hand_that_could_touch_other_cubes_earns_less_for_being_near(env: Env) -> None:
    """PPO came down tilted, with the side of the hand on cubes 9 cm beside the target."""
    task, s = task_of(env), fresh()
    angles = torch.deg2rad(torch.linspace(0.0, 70.0, 15))
    earned = []
    for fingers in (0.0, 0.02, 0.04):
        for angle in angles:
            look = step_data()
            look.tcp[:, 2] = s.home[0, 0, 2]  # at the top of the cube
            half = (torch.pi - angle) / 2  # a turn about x from pointing up
            look.tcp[:, 3], look.tcp[:, 4] = half.cos(), half.sin()
            look.fingers[:] = fingers
            earned.append(float(task.reward_terms(s, look)["reach"].unique()))
    by_fingers = torch.tensor(earned).reshape(3, -1)
    assert by_fingers[:, 0].tolist() == pytest.approx([1, 0.75, 0.5])
    assert bool((by_fingers[:, angles < 0.262] == by_fingers[:, :1]).all()), "up to 15 degrees are free"
    slope = by_fingers[:, (angles > 0.262) & (angles < 1.05)].diff(dim=1)
    assert bool((slope < -0.01).all())
    assert not bool(by_fingers[:, angles > 1.05].any())


def test_the_hand_earns_most_on_the_top_of_a_cube(env: Env) -> None:
    """PPO pressed the fingertips down beside the target, where they and the palm touched others."""
    task, s = task_of(env), fresh()
    look = step_data()
    earned = []
    for above_middle in (0.0, 0.01, 0.02, 0.03, 0.04):  # m; a cube's top is 0.02 m above its middle
        look.tcp[:, 2] = above_middle
        earned.append(float(task.reward_terms(s, look)["reach"].unique()))
    below, top, above = earned[:2], earned[2], earned[3:]
    assert top == 1
    assert below == sorted(below)
    assert above == sorted(above, reverse=True)
    assert max(below) < min(above), "to be too low costs more than to be too high"


def test_what_a_touch_paid_is_not_paid_again_after_a_reset_or_in_a_restored_state(env: Env) -> None:
    task = task_of(env)
    for restored in (False, True):
        env.reset(seed=0)
        saved = task.get_state_dict()
        s = task.task_state
        touching = torch.zeros(N, 3, 9, dtype=torch.bool)
        touching[torch.arange(N), 1, s.target[:, 0]] = True
        data = task._read_sim(task.elapsed_steps)
        data.responding = torch.ones(N, dtype=torch.bool)
        for _ in range(2):
            task.update_state(s, data, touching)
        assert bool(task.reward_terms(s, data)["progress"].all())
        if restored:
            task.set_state_dict(saved)
        else:
            env.reset(seed=1)
        assert not bool(task.reward_terms(task.task_state, data)["progress"].any())


@pytest.mark.parametrize("n", [1, 10, 3.0, "3", True])
def test_numbers_of_items_are_checked(n: object) -> None:
    """Nine only where their order counts."""
    for env_id, most in (("BunchOfColors3-v0", 8), ("SeqOfColors3-v0", 8), ("ChainOfColors3-v0", 9)):
        with pytest.raises(ValueError, match=rf"n=.*from 2 to {most}"):
            gym.make(env_id, n=n)


# ---------------------------------------------------------------------- by hand
def test_a_hand_touches_three_cubes_one_after_another() -> None:
    """With the closed fingers from above; in the order shown, and in half of the environments the first two swapped."""
    made = make("ChainOfColors3-v0", N, control_mode="pd_ee_delta_pos", response_steps=160)  # a slow hand
    made.reset(seed=3)
    task = task_of(made)
    for _ in range(task.timeline.response_start):
        step(made, still_action(made, gripper=-1.0))
    target = task.task_state.target.clone()
    target[N // 2 :, :2] = target[N // 2 :, :2].flip(1)
    row = torch.arange(N)
    succeeded = torch.zeros(N, dtype=torch.bool)
    failed = torch.zeros(N, dtype=torch.bool)
    for place in range(3):
        where = task.task_state.home[row, target[:, place]]
        for height, steps in ((0.12, 36), (0.02, 10), (0.12, 5)):
            aim = where.clone()
            aim[:, 2] = height
            for _ in range(steps):
                record = step(made, go_to(made, aim))
                succeeded |= record["info/success"]
                failed |= record["info/fail"]
    for _ in range(4):
        succeeded |= step(made, still_action(made, gripper=-1.0))["info/success"]
    assert succeeded.tolist() == [True] * (N // 2) + [False] * (N // 2)
    assert failed.tolist() == [False] * (N // 2) + [True] * (N // 2)
    made.close()


# ---------------------------------------------------------------------- names of earlier versions
@pytest.mark.parametrize("start_counted", [3, -1, 1.5, True, None, [0, 3], [2, 1], [1], [0.0, 2], "12"])
def test_the_number_of_targets_that_count_from_the_start_is_checked(start_counted: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"start_counted={start_counted!r} must be")):
        gym.make("SeqOfColors3-v0", start_counted=start_counted)


@pytest.mark.parametrize("env_id", ["BunchOfColors3-v0", "ChainOfColors3-v0"])
def test_an_episode_may_begin_with_targets_that_count_already(env_id: str) -> None:
    """All of the episode but the touches is as without them, and the expert has but one cube to touch."""
    env, plain = (make(env_id, 4, obs_mode="objects", start_counted=k) for k in (2, 0))
    task = task_of(env)
    expert = Expert(make_skill(env_id, task))
    (obs, info), (as_ever, whole) = env.reset(seed=3), plain.reset(seed=3)
    s = task.task_state
    assert torch.equal(info["oracle_info"], whole["oracle_info"])
    assert torch.equal(obs["objects"], as_ever["objects"]), "the cue shows all three"
    assert info["touches"].tolist() == [2] * 4
    assert bool(info["counted"].gather(1, info["oracle_info"][:, :2]).all())
    assert not bool(info["touched"].any() | info["success"].any())
    first, second, _ = task.overlay_facts(s)["target colours"][0].split(", ")
    assert task.overlay_facts(s)["touched"][0] in (f"2 of 3 ({first}, {second})", f"2 of 3 ({second}, {first})")
    expert.reset()
    won = torch.zeros(4, dtype=torch.bool)
    for t in range(task.timeline.response_start + 35):
        if t == task.timeline.response_start:
            assert torch.equal(task.object_layout.read(), base(plain).object_layout.read()), "and all nine cubes come"
        obs, _, _, _, info = env.step(expert.act(obs, info))
        if t < task.timeline.response_start:
            plain.step(still_action(plain))
        won |= info["success"]
    assert int(won.sum()) >= 3
    fresh_state = task.sample(Uniforms(torch.rand(MANY, task.draws, dtype=torch.float64)))
    touch(task, fresh_state, fresh_state.target[:, 0])
    assert bool(fresh_state.mistaken.all()), "to touch one again is a mistake"
    fresh_state = task.sample(Uniforms(torch.rand(MANY, task.draws, dtype=torch.float64)))
    touch(task, fresh_state, fresh_state.target[:, 2])
    assert bool((fresh_state.complete & ~fresh_state.mistaken).all())
    for made in (env, plain):
        made.close()


@pytest.mark.parametrize("env_id", ["SeqOfColors3-v0", "ChainOfColors3-v0"])
def test_each_episode_may_draw_how_many_targets_count_already(env_id: str) -> None:
    """A draw of its own, so that the rest of an episode is as it is without a range."""
    env, plain = (make(env_id, 64, start_counted=given) for given in ([0, 2], 0))
    env.reset(seed=5), plain.reset(seed=5)
    s, whole = task_of(env).task_state, task_of(plain).task_state
    assert torch.equal(s.target, whole.target)
    assert torch.equal(s.home, whole.home)
    assert set(s.counted.sum(dim=1).tolist()) == {0, 1, 2}
    assert bool((s.counted == (s.is_target & (s.rank < s.counted.sum(dim=1, keepdim=True)))).all()), "the first ones"
    env.close(), plain.close()


def test_tasks_with_the_earlier_names_go_on_working(env: Env) -> None:
    with pytest.warns(DeprecationWarning, match="rename it to") as caught:

        class Old(RecallColors):
            shown = "in turn"
            block = False

    assert [str(warning.message) for warning in caught] == [
        "Old.shown is deprecated: rename it to cue_order",
        "Old.block is deprecated: rename it to grid",
    ]
    assert (Old.cue_order, Old.grid) == ("sequential", False)
    with pytest.warns(DeprecationWarning, match=r"choice\.RecallTask is deprecated; use .*colored_cubes\.RecallColors"):
        assert choice.RecallTask is RecallColors
    task: Any = task_of(env)
    with pytest.warns(DeprecationWarning, match="wanted is deprecated"):
        assert task.wanted == task.num_targets == 3
    with pytest.warns(DeprecationWarning, match="wanted is deprecated"):
        assert torch.equal(task.task_state.wanted, task.task_state.is_target)
