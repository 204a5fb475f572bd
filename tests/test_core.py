"""The pure functions that decide what an episode means, on tensors of a thousand environments and no simulation."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mani_skill.utils.structs import Actor
from task_helpers import chi_square_p
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, MUG_HEIGHT, MUG_RADIUS
from mikasa_robo.core import rewards, state
from mikasa_robo.core.choice import ChoiceState, choice_layout, sample_choice, update_choice
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.pcg import BatchedPCG64
from mikasa_robo.core.phases import CUE, DELAY, PHASES, RESPONSE, Timeline
from mikasa_robo.core.sampling import (
    FINGER_WIDTH,
    GRID_JITTER,
    ROBOT_BASE_X,
    Uniforms,
    arc_places,
    between,
    grid_places,
    index_below,
    normal,
    permutation,
    upright,
)
from mikasa_robo.core.seeds import _entropy, episode_keys
from mikasa_robo.core.touches import HOLD_STEPS, hold_touches, record_touches
from mikasa_robo.tasks.shell_game import lowest_point, sample_shells, shell_layout
from mikasa_robo.tensors import length

N = 1000
ALMOST_ONE = 1 - 2**-53
REACH = 0.855  # m, of the Panda from its base


def uniforms(rows: int, columns: int, seed: int = 0) -> Tensor:
    """(rows, columns) float64."""
    return torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- phases
@pytest.mark.parametrize(("cue", "delay", "response"), [(5, 5, 50), (5, 0, 85), (1, 0, 1), (35, 5, 80)])
def test_phase_of_each_environment_is_that_of_its_own_t(cue: int, delay: int, response: int) -> None:
    timeline = Timeline(cue, delay, response)
    assert timeline.horizon == cue + delay + response
    assert timeline.response_start == cue + delay
    elapsed = torch.randperm(N, generator=torch.Generator().manual_seed(1)) % (timeline.horizon + 1)
    phase = timeline.phase(elapsed)
    assert phase.shape == (N,)
    assert phase.dtype == torch.int64
    for t, p, responding in zip(elapsed.tolist(), phase.tolist(), timeline.responding(elapsed).tolist(), strict=True):
        assert p == (CUE if t < cue else DELAY if t < cue + delay else RESPONSE)
        assert responding == (t >= cue + delay)
    assert set(phase.tolist()) == ({CUE, DELAY, RESPONSE} if delay else {CUE, RESPONSE})
    assert len(PHASES) == 3


def test_phase_boundaries_with_int32_steps_as_maniskill_counts_them() -> None:
    phase = Timeline(5, 5, 50).phase(torch.tensor([0, 4, 5, 9, 10, 59, 60], dtype=torch.int32))
    assert phase.tolist() == [CUE, CUE, DELAY, DELAY, RESPONSE, RESPONSE, RESPONSE]


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ((0, 5, 50), "cue_steps=0"),
        ((-1, 5, 50), "cue_steps=-1"),
        (("5", 5, 50), "cue_steps='5'"),
        ((True, 5, 50), "cue_steps=True"),
        ((5.0, 5, 50), r"cue_steps=5\.0"),
        ((5, -1, 50), "delay_steps=-1"),
        ((5, 1.5, 50), r"delay_steps=1\.5"),
        ((5, 5, 0), "delay_steps=5 without a response"),
        ((5, 5, None), "response_steps=None"),
    ],
)
def test_bad_lengths_are_named(lengths: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Timeline(*lengths)


# ---------------------------------------------------------------------- seeds
def test_seeds_name_episodes() -> None:
    assert episode_keys(np.int64(7), [0, 3]) == [(7, 0, 0), (7, 3, 0)]  # type: ignore[arg-type]
    assert episode_keys([7, (8, 2)], [0, 3]) == [(7, 0, 0), (8, 2, 0)]
    assert episode_keys(np.array([7, 8]), [0, 3]) == [(7, 0, 0), (8, 0, 0)]  # type: ignore[arg-type]


def test_large_seeds_have_episodes_of_their_own() -> None:
    """numpy takes 2**32 + 5 apart into the words 5 and 1, which are seed 5 and environment 1, too."""
    seeds = [5, 2**32 + 5, 2**33 + 5, 2**64 + 5, 2**96 + 2**32 + 5]
    pairs = [(seed, env) for seed in seeds for env in range(3)]
    generators = BatchedPCG64(len(pairs), torch.device("cpu"))
    generators.seed(torch.arange(len(pairs)), [_entropy(*pair) for pair in pairs])
    assert len(set(generators.random(torch.arange(len(pairs)), 1).flatten().tolist())) == len(pairs)
    assert _entropy(7, 2) == (7, 2), "episodes of smaller seeds stay as they were"


@pytest.mark.parametrize(
    ("seed", "named"),
    [
        (1.5, r"seed=1\.5 is a float"),
        ("12", "seed='12' is a str"),
        ([1, 2.5], r"holds 2\.5"),
        ([1, [2, 3]], r"\[2, 3\]"),
    ],
)
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        episode_keys(seed, [0, 1])


# ---------------------------------------------------------------------- sampling
def test_uniforms_are_handed_out_once_and_not_beyond_what_was_declared() -> None:
    values = uniforms(N, 5)
    u = Uniforms(values)
    assert u.count == N
    first, second = u.take(2), u.take(3)
    assert torch.equal(torch.cat([first, second], dim=1), values)
    assert u.unused == 0
    with pytest.raises(ValueError, match=r"1 more .* 0 are left.*draws"):
        u.take(1)
    assert Uniforms(values[:, :3]).take(0).shape == (N, 0)


def test_between_keeps_its_bounds() -> None:
    values = between(torch.tensor([0.0, 0.5, ALMOST_ONE], dtype=torch.float64), -0.1, 0.3)
    assert torch.allclose(values, torch.tensor([-0.1, 0.1, 0.3], dtype=torch.float64))
    assert float(values.min()) >= -0.1
    assert float(values.max()) <= 0.3


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 15])
def test_index_below_is_uniform_and_in_range(n: int) -> None:
    index = index_below(uniforms(30 * N, 1, seed=n)[:, 0], n)
    assert index.dtype == torch.int64
    counts = torch.bincount(index, minlength=n)
    assert len(counts) == n
    if n > 1:
        assert chi_square_p(counts) > 1e-4
    extremes = index_below(torch.tensor([0.0, ALMOST_ONE], dtype=torch.float64), n)
    assert extremes.tolist() == [0, n - 1]


def test_index_below_stays_in_range_where_rounding_reaches_one() -> None:
    assert index_below(torch.tensor([1 - 2**-25], dtype=torch.float32), 9).tolist() == [8]


def test_normal_has_the_moments_of_a_gaussian() -> None:
    values = normal(uniforms(100 * N, 1)[:, 0], 0.02)
    assert values.dtype == torch.float64
    assert abs(float(values.mean())) < 0.02 * 5 / math.sqrt(len(values))
    assert float(values.std()) == pytest.approx(0.02, rel=0.01)
    z = (values - values.mean()) / values.std()
    assert abs(float((z**3).mean())) < 0.05
    assert float((z**4).mean()) == pytest.approx(3, abs=0.1)


def test_normal_is_finite_at_the_extremes() -> None:
    values = normal(torch.tensor([0.0, 0.5, ALMOST_ONE], dtype=torch.float64), 1.0)
    assert torch.isfinite(values).all()
    assert float(values[1]) == pytest.approx(0, abs=1e-12)
    assert float(values[0]) < -5
    assert float(values[2]) > 5


def test_permutations_are_permutations_and_all_equally_likely() -> None:
    orders = permutation(uniforms(30 * N, 4))
    assert torch.equal(orders.sort(dim=1).values, torch.arange(4).expand(30 * N, 4))
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(dim=1)
    _, counts = torch.unique(codes, return_counts=True)
    assert len(counts) == 24
    assert chi_square_p(counts) > 1e-4


def box_gaps(places: Tensor, half_width: float) -> Tensor:
    """(b, n, n) m between squares that stand parallel to the axes; infinite on the diagonal."""
    difference = (places[:, :, None] - places[:, None]).abs() - 2 * half_width
    gaps = torch.linalg.norm(difference.clamp(min=0), dim=-1)
    return gaps + torch.diag(torch.full((places.shape[1],), torch.inf, dtype=places.dtype))


def arc_inputs(n: int) -> Tensor:
    """Random rows, and rows whose jitter is at its extremes: all low, all high, alternating along the arc."""
    u = uniforms(N, 3 * n, seed=n)
    order = uniforms(N, n, seed=100 + n)
    corners = torch.where(uniforms(N, 2 * n, seed=200 + n) < 0.5, 0.0, ALMOST_ONE).to(torch.float64)
    extreme = torch.cat([order, corners], dim=1)
    extreme[0, n:], extreme[1, n:] = 0.0, ALMOST_ONE
    for row, (even, odd) in enumerate([(0.0, ALMOST_ONE), (ALMOST_ONE, 0.0)]):
        extreme[2 + row, n : 2 * n : 2], extreme[2 + row, n + 1 : 2 * n : 2] = even, odd
    return torch.cat([u, extreme])


@pytest.mark.parametrize("n", range(1, 19))
def test_places_leave_room_for_a_finger_are_in_reach_and_on_the_table(n: int) -> None:
    places = arc_places(arc_inputs(n), n)
    assert places.shape == (2 * N, n, 2)
    if n > 1:
        assert float(box_gaps(places, 0.02).min()) >= FINGER_WIDTH
    x, y = places[..., 0], places[..., 1]
    assert float(torch.hypot(x - ROBOT_BASE_X, y).max()) + 0.02 * math.sqrt(2) < REACH
    # clear of the robot's base, and on ManiSkill's table: x up to 0.48 m, y within 1.2 m
    assert float(torch.hypot(x - ROBOT_BASE_X, y).min()) > 0.3
    assert float(x.max()) < 0.45
    assert float(y.abs().max()) < 1.1


@pytest.mark.parametrize("n", [3, 9, 15])
def test_every_object_is_as_likely_at_every_place(n: int) -> None:
    places = arc_places(uniforms(3 * N, 3 * n), n)
    # in its row every place keeps its order along y, so the place of object 0 is its rank there
    angle = torch.atan2(places[..., 1], places[..., 0] - ROBOT_BASE_X)
    near = torch.hypot(places[..., 0] - ROBOT_BASE_X, places[..., 1]) < 0.56
    rank = torch.argsort(torch.argsort(angle + 10.0 * near, dim=1), dim=1)[:, 0]
    counts = torch.bincount(rank, minlength=n)
    assert len(counts) == n
    assert chi_square_p(counts) > 1e-4


@pytest.mark.parametrize("n", [1, 3, 9, 10, 18])
def test_places_do_not_depend_on_how_many_environments_are_drawn_together(n: int) -> None:
    u = uniforms(N, 3 * n)
    together = arc_places(u, n).to(torch.float32)
    for size in (1, 3, 8, 64):
        for start in (0, 5, 500, N - size):
            alone = arc_places(u[start : start + size], n).to(torch.float32)
            assert torch.equal(alone, together[start : start + size])


@pytest.mark.parametrize("n", [0, 19, -1])
def test_places_refuse_what_the_table_has_no_room_for(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}"):
        arc_places(uniforms(1, 60), n)


@pytest.mark.parametrize(("n", "largest"), [(2, 0.044), (9, 0.03275), (10, 0.034), (18, 0.03275)])
def test_places_refuse_objects_that_would_leave_no_room_for_a_finger(n: int, largest: float) -> None:
    places = arc_places(arc_inputs(n), n, largest - 1e-9)
    centres = torch.cdist(places, places) + torch.eye(n, dtype=torch.float64)
    # along the arc the places are one spacing apart, which is a little more than the straight way
    assert float(centres.min()) > 2 * largest + FINGER_WIDTH - 2e-4
    with pytest.raises(
        ValueError, match=rf"object_radius=0\.0[0-9]+ m is too large for n={n} .* at most {largest:.4f} m"
    ):
        arc_places(uniforms(1, 3 * n), n, largest + 1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 9])
def test_a_block_leaves_room_for_a_finger_and_is_shuffled(n: int) -> None:
    radius = 0.02 * math.sqrt(2)
    places = grid_places(arc_inputs(n), n, radius)
    assert places.shape == (2 * N, n, 2)
    assert float(box_gaps(places, 0.02).min()) >= FINGER_WIDTH
    centres = torch.cdist(places, places) + torch.eye(n, dtype=torch.float64)
    assert float(centres.min()) >= 2 * radius + FINGER_WIDTH - 1e-9, "however the objects are turned"
    assert float(places.abs().max()) < 0.1 + GRID_JITTER
    places = grid_places(uniforms(3 * N, 3 * n), n, radius)
    cell = (places / 0.0906 + (math.ceil(math.sqrt(n)) - 1) / 2).round().to(torch.int64)
    slot = cell[:, 0, 0] * math.ceil(math.sqrt(n)) + cell[:, 0, 1]
    counts = torch.bincount(slot, minlength=n)
    assert len(counts) == n
    assert chi_square_p(counts) > 1e-4


def test_upright_keeps_the_position_and_does_not_turn() -> None:
    xyz = uniforms(N, 6).reshape(N, 2, 3)
    poses = upright(xyz)
    assert torch.equal(poses[..., :3], xyz)
    assert torch.equal(poses[..., 3:], torch.tensor([1.0, 0, 0, 0], dtype=xyz.dtype).expand(N, 2, 4))


# ---------------------------------------------------------------------- the ledger
def hold(pattern: list[list[int]], active: list[bool] | None = None) -> list[list[int]]:
    """Steps in which each object's touch begins to count, for one environment touched as ``pattern`` (T, K) says."""
    held = torch.zeros(1, len(pattern[0]), dtype=torch.int64)
    news: list[list[int]] = [[] for _ in pattern[0]]
    for t, touched in enumerate(pattern):
        on = torch.tensor([True if active is None else active[t]])
        held, new = hold_touches(held, torch.tensor([touched], dtype=torch.bool), on)
        assert int(held.max()) <= HOLD_STEPS
        for k in torch.nonzero(new[0]).flatten().tolist():
            news[k].append(t)
    return news


def test_a_touch_counts_after_two_steps_and_once_per_hold() -> None:
    assert HOLD_STEPS == 2
    assert hold([[1], [0], [1], [0]]) == [[]], "a touch of one step"
    assert hold([[1], [1], [0]]) == [[1]]
    assert hold([[1]] * 10) == [[1]], "a long touch counts once"
    assert hold([[1], [1], [0], [1], [1], [1]]) == [[1]], "a force that is gone for one step ends no touch"
    assert hold([[1], [1], [0], [1], [0], [1], [1]]) == [[1]]
    assert hold([[1], [1], [0], [0], [1], [1], [1]]) == [[1, 5]], "let go and touched anew"
    assert hold([[1], [1], [0], [0], [1], [0], [1]]) == [[1]], "a new touch has to be held again"
    assert hold([[1, 0], [0, 1], [1, 0], [0, 1]]) == [[], []], "two objects' touches do not add up"
    assert hold([[1, 1], [1, 1]]) == [[1], [1]]


def test_taps_add_up_where_asked() -> None:
    def news(pattern: list[int], sums: bool) -> list[int]:
        held, found = torch.zeros(1, 1, dtype=torch.int64), []
        for t, touched in enumerate(pattern):
            one = torch.tensor([[bool(touched)]])
            held, new = hold_touches(held, one, torch.tensor([True]), sums=torch.tensor([[sums]]))
            found += [t] if bool(new) else []
        return found

    assert news([1, 0, 0, 0, 1, 0], sums=True) == [4]
    assert news([1, 0, 0, 0, 1, 0], sums=False) == []
    assert news([0, 1, 0, 0, 0], sums=True) == [], "a single tap"
    assert news([1, 1, 0, 0, 0], sums=True) == news([1, 1, 0, 0, 0], sums=False) == [1]


def test_touches_count_in_the_response_only() -> None:
    assert hold([[1]] * 5, active=[False] * 5) == [[]]
    # a hand that lies on the object when the response begins still has to hold it there for two steps
    assert hold([[1]] * 5, active=[False, False, True, True, True]) == [[3]]
    assert hold([[1]] * 4, active=[True, False, True, True]) == [[3]]


def test_touches_count_by_the_clock_of_each_environment() -> None:
    held, touching = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.bool)
    for _ in range(HOLD_STEPS):
        held, new = hold_touches(held, touching, torch.tensor([True, False, True]))
    assert new.all(dim=1).tolist() == [True, False, True]
    assert held[1].tolist() == [0, 0]


def record(
    new: list[int], counted: list[int], wanted: list[int], rank: list[int] | None = None
) -> tuple[set[int], bool]:
    """Counted objects and whether there was a mistake, for one environment of 5 objects."""
    a, b, c = (torch.tensor([[k in members for k in range(5)]]) for members in (new, counted, wanted))
    after, mistake = record_touches(a, b, c, None if rank is None else torch.tensor([rank]))
    return set(torch.nonzero(after[0]).flatten().tolist()), bool(mistake)


def test_the_ledger_knows_right_wrong_again_and_order() -> None:
    assert record([2], [], [2]) == ({2}, False)
    assert record([1], [], [2]) == (set(), True)
    assert record([], [], [2]) == (set(), False)
    assert record([1, 2], [], [2]) == ({2}, True), "the right one with a wrong one"
    assert record([2], [2], [2, 3]) == ({2}, True), "again, while another is missing"
    assert record([2], [2, 3], [2, 3]) == ({2, 3}, False), "again, when all is done"
    assert record([1], [2, 3], [2, 3]) == ({2, 3}, True), "a wrong one when all is done"
    order = [9, 9, 1, 0, 2]
    assert record([3], [], [2, 3, 4], order) == ({3}, False)
    assert record([2], [], [2, 3, 4], order) == (set(), True)
    assert record([2], [3], [2, 3, 4], order) == ({2, 3}, False)
    assert record([4], [3], [2, 3, 4], order) == ({3}, True)
    assert record([2], [], [2, 3, 4]) == ({2}, False), "any order"


@pytest.mark.parametrize("ordered", [False, True])
def test_the_ledger_agrees_with_a_plain_one(ordered: bool) -> None:
    """A thousand random episodes against loops over Python numbers."""
    k, steps = 4, 40
    generator = torch.Generator().manual_seed(7)
    order = permutation(uniforms(N, k))
    how_many = 1 + torch.randint(3, (N, 1), generator=generator)
    rank = torch.argsort(order, dim=1)
    wanted = rank < how_many
    # objects are touched for a while: pure noise would hardly ever hold one for two steps
    touching = torch.rand(steps, N, k, generator=generator) < 0.12
    touching[1:] |= touching[:-1].clone() & (torch.rand(steps - 1, N, k, generator=generator) < 0.6)
    active = torch.rand(steps, N, generator=generator) < 0.9

    held = torch.zeros(N, k, dtype=torch.int64)
    counted = torch.zeros(N, k, dtype=torch.bool)
    mistaken = torch.zeros(steps, N, dtype=torch.bool)
    for t in range(steps):
        held, new = hold_touches(held, touching[t], active[t])
        counted, mistaken[t] = record_touches(new, counted, wanted, rank if ordered else None)

    finished = 0
    for i in range(N):
        since = [0] * k
        done: list[int] = []
        goal = set(torch.nonzero(wanted[i]).flatten().tolist())
        for t in range(steps):
            begun, mistake, before = [], False, list(done)
            for j in range(k):
                touched = bool(touching[t, i, j]) and bool(active[t, i])
                if touched and since[j] == -1:
                    since[j] = 3
                elif touched:
                    since[j] += 1
                else:
                    since[j] = -1 if since[j] >= 2 else 0
                if since[j] == 2:
                    begun.append(j)
            for j in begun:
                if j not in goal:
                    mistake = True
                elif j in before:
                    mistake |= set(before) != goal
                elif ordered and int(rank[i, j]) != len(before):
                    mistake = True
                else:
                    done.append(j)
            assert bool(mistaken[t, i]) == mistake, (i, t)
        assert set(torch.nonzero(counted[i]).flatten().tolist()) == set(done), i
        finished += set(done) == goal
    assert 50 < finished < N, "the random episodes must hold both"
    assert 0 < int(mistaken.any(dim=0).sum()) < N


# ---------------------------------------------------------------------- rewards
SCALES = {"reach": 1.0, "touch": 2.0, "still": 0.5}


def weighed() -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Weighted terms of random environments, with success, fail, responding and the unweighted terms."""
    values = uniforms(N, 6, seed=3).to(torch.float32)
    terms = {name: values[:, i] for i, name in enumerate(SCALES)}
    success, fail, responding = values[:, 3] < 0.3, values[:, 4] < 0.3, values[:, 5] < 0.6
    success &= ~fail
    return rewards.weigh(terms, SCALES, success, fail, responding), success, fail, responding, terms


def test_reward_terms_pay_when_they_should() -> None:
    weighted, success, fail, responding, terms = weighed()
    total = rewards.total(weighted)
    top = rewards.maximum(SCALES)
    running = ~success & ~fail
    for chosen in (success, fail, running & responding, running & ~responding):
        assert int(chosen.sum()) > 50
    assert set(weighted) == {*SCALES, "success"}
    assert all(term.dtype == torch.float32 and term.shape == (N,) for term in weighted.values())
    assert bool((total[success] == top).all())
    assert bool((total[fail] == 0).all())
    before = running & ~responding
    assert torch.equal(total[before], SCALES["still"] * terms["still"][before])
    now = running & responding
    for name, scale in SCALES.items():
        assert torch.equal(weighted[name][now], scale * terms[name][now])
    assert float(total.min()) >= 0
    assert float(total.max()) <= top


def test_success_dominates_all_other_terms_together() -> None:
    perfect = {name: torch.ones(N) for name in SCALES}
    no, yes = torch.zeros(N, dtype=torch.bool), torch.ones(N, dtype=torch.bool)
    without = rewards.total(rewards.weigh(perfect, SCALES, no, no, yes))
    top = rewards.total(rewards.weigh(perfect, SCALES, yes, no, yes))
    assert float(without.max()) == sum(SCALES.values())
    assert float(top.min()) > 1.5 * sum(SCALES.values())


@pytest.mark.parametrize("terms", [{"reach": 1.0, "still": 1.0}, {**dict.fromkeys(SCALES, 1.0), "extra": 1.0}])
def test_reward_terms_and_scales_must_have_the_same_names(terms: dict[str, float]) -> None:
    flag = torch.zeros(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="same names"):
        rewards.weigh({name: torch.ones(2) for name in terms}, SCALES, flag, flag, flag)


def test_outcomes_and_terms_that_would_give_wrong_rewards_are_refused() -> None:
    """Whole numbers, of which ~ is no negation, and a column, which would be broadcast to a square."""
    terms, flag = dict.fromkeys(SCALES, torch.ones(N)), torch.zeros(N, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"success of `outcome` is torch\.int64: return \(N,\) bool"):
        rewards.weigh(terms, SCALES, flag.to(torch.int64), flag, flag)
    with pytest.raises(TypeError, match=r"fail of `outcome` is torch\.float32"):
        rewards.weigh(terms, SCALES, flag, flag.to(torch.float32), flag)
    with pytest.raises(ValueError, match=rf"'reach' has the shape \({N}, 1\), with success \({N},\)"):
        rewards.weigh({**terms, "reach": torch.ones(N, 1)}, SCALES, flag, flag, flag)
    with pytest.raises(ValueError, match=rf"with success \({N}, 1\)"):
        rewards.weigh(terms, SCALES, flag[:, None], flag, flag)


def test_rewards_write_nothing() -> None:
    values = uniforms(N, 3).to(torch.float32)
    terms = {name: values[:, i].clone() for i, name in enumerate(SCALES)}
    success = values[:, 0] < 0.5
    flags = [success.clone(), ~success, success.clone()]
    rewards.total(rewards.weigh(terms, SCALES, *flags))
    assert all(torch.equal(terms[name], values[:, i]) for i, name in enumerate(SCALES))
    assert torch.equal(flags[0], success)
    assert torch.equal(flags[1], ~success)
    assert torch.equal(flags[2], success)


def test_shaping_terms_fall_from_one_to_zero() -> None:
    at = torch.linspace(0, 2, N)
    for term in (
        rewards.closeness(at),
        rewards.still(at),
        rewards.reach(torch.zeros(N, 3), at[:, None] * torch.eye(3)[0]),
    ):
        assert float(term[0]) == 1
        assert bool((term[1:] < term[:-1]).all() | (term[-1] < 1e-3))
        assert bool((term >= 0).all())
        assert float(term[-1]) < 0.05


def test_the_way_to_one_among_others_leads_over_them() -> None:
    """Pays most where the hand comes down on its target, and beside it for being high enough; elsewhere as `closeness`."""
    across = torch.tensor([0.0, 0.05, 0.2])  # m, from the target as seen from above
    heights = torch.linspace(-0.02, 0.3, 33)  # m, of the TCP above its target
    way = torch.stack(torch.broadcast_tensors(across[:, None], torch.tensor(0.0), -heights), dim=-1)
    paid = rewards.reach_from_above(way.reshape(-1, 3)).reshape(3, -1)
    straight = rewards.closeness(length(way))
    best = heights[paid.argmax(dim=1)]
    assert abs(float(best[0])) < 1e-6
    assert bool((best[1:] > 0.05).all())
    assert bool((best[1:] < 0.1).all())
    high = heights >= rewards.ABOVE
    assert torch.equal(paid[:, high], straight[:, high])
    assert bool((paid[1:, heights < 0.05] < straight[1:, heights < 0.05]).all())
    assert float(rewards.reach_from_above(torch.zeros(1, 3))) == 1
    # 20 cm beside the target the hand should be 8 cm above it; what is missing counts three times
    way = torch.tensor([[0.2, 0.0, 0.0], [0.0, 0.2, -0.05]])
    expected = rewards.closeness(torch.tensor([0.2 + 3 * 0.08, math.hypot(0.2, 0.05) + 3 * 0.03]))
    assert torch.allclose(rewards.reach_from_above(way), expected, atol=1e-6)


def test_a_hand_that_has_touched_something_must_rise_first() -> None:
    """`reach_over` is `closeness` for a hand that is high enough. Below, the way up pays at once, and the way aside not."""
    high = torch.tensor([[0.3, 0.1, -0.08], [0.0, 0.2, -0.3], [0.01, 0.0, -0.01], [0.0, 0.0, 0.0]])
    assert torch.equal(rewards.reach_over(high), rewards.closeness(length(high)))
    low = torch.tensor([[0.12, 0.0, 0.0]])  # as high as its target, 12 cm beside it
    up, aside = torch.tensor([[0.0, 0.0, -0.01]]), torch.tensor([[-0.01, 0.0, 0.0]])

    def gain(change: Tensor, way: Tensor = low) -> float:
        return float(rewards.reach_over(way + change) - rewards.reach_over(way))

    assert gain(up) > 4 * gain(aside) > 0
    rows = [low + k * up for k in range(9)]
    assert all(gain(up, way) > 0 for way in rows[:-1]), "it pays on the whole way up"
    assert gain(up, rows[-1]) < 0, "and not any longer"
    assert float(rewards.reach_over(low - 2.5 * up)) == 0


# ---------------------------------------------------------------------- task state
@dataclass
class Memory:
    """A state with every kind of field."""

    index: Tensor  # (N,) int64
    flag: Tensor  # (N,) bool
    value: Tensor  # (N, 3) float32
    counts: Tensor  # (N, 4) int64
    places: Tensor  # (N, 2, 3) float32
    flags: Tensor  # (N, 5) bool


def memory(rows: int, seed: int) -> Memory:
    u = uniforms(rows, 20, seed)
    return Memory(
        index=(u[:, 0] * 9).to(torch.int64),
        flag=u[:, 1] < 0.5,
        value=u[:, 2:5].to(torch.float32),
        counts=(u[:, 5:9] * 2**24).to(torch.int64),
        places=u[:, 9:15].reshape(rows, 2, 3).to(torch.float32),
        flags=u[:, 15:] < 0.5,
    )


def assert_rows(one: object, rows: Tensor, other: object, other_rows: Tensor) -> None:
    names = [f.name for f in dataclasses.fields(Memory)]
    assert len(names) == 6
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a[rows], b[other_rows]), name


def test_state_is_allocated_once_and_rows_are_scattered() -> None:
    some = memory(3, seed=1)
    whole = state.allocate(some, N)
    for field in dataclasses.fields(Memory):
        tensor, like = getattr(whole, field.name), getattr(some, field.name)
        assert tensor.shape == (N, *like.shape[1:])
        assert tensor.dtype == like.dtype
        assert not bool(tensor.any())
    full = memory(N, seed=2)
    state.scatter(whole, torch.arange(N), full)
    index = torch.tensor([500, 3, 999])
    state.scatter(whole, index, some)
    assert_rows(whole, index, some, torch.arange(3))
    others = torch.ones(N, dtype=torch.bool)
    others[index] = False
    assert_rows(whole, others, full, others)
    some.value[:] = -1  # a copy was stored
    assert float(whole.value.min()) >= 0


def test_state_goes_to_flat_and_back_exactly() -> None:
    saved = memory(N, seed=3)
    flat = state.to_flat(saved)
    assert all(t.dtype == torch.float32 and t.ndim == 2 and len(t) == N for t in flat.values())
    assert flat["index"].shape == (N, 1)
    assert flat["places"].shape == (N, 6)
    target = memory(N, seed=4)
    state.load_flat(target, flat, torch.arange(N))
    assert_rows(target, torch.arange(N), saved, torch.arange(N))
    # a copy: what is loaded or saved does not change with the other
    before = flat["value"].clone()
    saved.value += 1
    target.value += 1
    assert torch.equal(flat["value"], before)


def test_state_is_loaded_for_some_environments_only() -> None:
    whole, untouched, some = memory(N, seed=5), memory(N, seed=5), memory(3, seed=6)
    index = torch.tensor([7, 400, 2])
    state.load_flat(whole, state.to_flat(some), index)
    assert_rows(whole, index, some, torch.arange(3))
    others = torch.ones(N, dtype=torch.bool)
    others[index] = False
    assert_rows(whole, others, untouched, others)
    with pytest.raises(KeyError, match="places"):
        state.load_flat(whole, {k: v for k, v in state.to_flat(some).items() if k != "places"}, index)


# ---------------------------------------------------------------------- RememberColor
@pytest.mark.parametrize("n", [3, 5, 9])
def test_choice_episodes_and_where_things_stand(n: int) -> None:
    u = Uniforms(uniforms(N, 1 + 3 * n))
    s = sample_choice(u, n, 1, torch.full((n,), 0.02), 0.0283)
    assert s.target.shape == (N, 1)
    true = s.target[:, 0]
    assert u.unused == 0
    assert s.home.shape == (N, n, 3)
    assert s.home.dtype == torch.float32
    assert bool((s.home[..., 2] == torch.tensor(0.02)).all())
    assert not bool(s.held.any() | s.counted.any() | s.mistaken[:, None].any())
    assert chi_square_p(torch.bincount(true, minlength=n)) > 1e-4
    # the cue says nothing about where the true one stands
    ranks = torch.argsort(torch.argsort(s.home[..., 1], dim=1), dim=1).gather(1, s.target)[:, 0]
    assert chi_square_p(torch.bincount(ranks, minlength=n)) > 1e-4

    phase = torch.arange(N) % 3
    visible, poses = choice_layout(s, torch.zeros(N, dtype=torch.int64), phase, 5, "simultaneous")
    assert visible.shape == (N, n)
    assert poses.shape == (N, n, 7)
    for i in range(N):
        target = int(s.target[i])
        seen = torch.nonzero(visible[i]).flatten().tolist()
        if phase[i] == CUE:
            assert seen == [target]
            assert torch.equal(poses[i, target], torch.tensor([0.0, 0.0, 0.02, 1, 0, 0, 0]))
        elif phase[i] == DELAY:
            assert seen == []
        else:
            assert seen == list(range(n))
            assert torch.equal(poses[i, :, :3], s.home[i])


def test_choice_ledger_of_a_thousand_environments() -> None:
    def fresh() -> ChoiceState:
        return sample_choice(Uniforms(uniforms(N, 10)), 3, 1, torch.full((3,), 0.02), 0.0283)

    yes = torch.ones(N, dtype=torch.bool)
    wanted = torch.nn.functional.one_hot(fresh().target[:, 0], 3).to(torch.bool)
    wrong = torch.nn.functional.one_hot((fresh().target[:, 0] + 1) % 3, 3).to(torch.bool)
    for touching, counted, mistaken in ((wanted, True, False), (wrong, False, True), (wanted | wrong, True, True)):
        s = fresh()
        update_choice(s, touching, yes, ordered=False)
        assert not bool(s.counted.any() | s.mistaken.any()), "one step does not count"
        update_choice(s, touching, yes, ordered=False)
        assert torch.equal(s.counted, wanted if counted else torch.zeros_like(wanted))
        assert bool((s.mistaken == mistaken).all())
        update_choice(s, torch.zeros_like(touching), yes, ordered=False)
        assert bool((s.mistaken == mistaken).all()), "a mistake is for good"
    s = fresh()
    for _ in range(5):
        update_choice(s, wanted | wrong, ~yes, ordered=False)
    assert not bool(s.counted.any() | s.mistaken.any() | s.held.any()), "touches outside the response never count"


# ---------------------------------------------------------------------- ShellGame
def test_shell_episodes_and_where_things_stand() -> None:
    s = sample_shells(Uniforms(uniforms(3 * N, 3)))
    assert chi_square_p(torch.bincount(s.target, minlength=3)) > 1e-4
    centre = s.places[:, 1]
    low, high = torch.tensor([-0.2, -0.1]), torch.tensor([0.0, 0.1])
    assert bool(((centre >= low - 1e-6) & (centre <= high + 1e-6)).all())
    assert float((centre.amax(dim=0) - centre.amin(dim=0)).min()) > 0.19, "the jitter spans its range"
    drawn = torch.stack([*centre.T, s.target.to(centre.dtype)])
    assert float((torch.corrcoef(drawn) - torch.eye(3)).abs().max()) < 0.08, "one number was drawn from another"
    assert torch.allclose(s.places[:, 0] - centre, torch.tensor([0.0, 0.2]).expand_as(centre), atol=1e-6)
    assert torch.allclose(s.places[:, 2] - centre, torch.tensor([0.0, -0.2]).expand_as(centre), atol=1e-6)

    phase = torch.arange(3 * N) % 3
    visible, poses = shell_layout(s, phase)
    assert poses.shape == (3 * N, 4, 7)
    assert torch.equal(visible[:, 0], phase == CUE), "a covered ball is not there to be seen"
    s.decided[::2] = True
    assert torch.equal(shell_layout(s, phase)[0][:, 0], (phase == CUE) | s.decided)
    assert torch.equal(visible[:, 1:], (phase != CUE)[:, None].expand(-1, 3))
    row = torch.arange(3 * N)
    assert torch.equal(poses[row, 0, :2], s.places[row, s.target])
    assert torch.equal(poses[:, 1:, :2], s.places)
    assert torch.equal(poses[row, 1 + s.target, :2], poses[row, 0, :2]), "the ball is under its mug"
    assert torch.allclose(poses[:, 0, 2], torch.tensor(BALL_RADIUS))
    assert torch.allclose(poses[:, 1:, 2], torch.tensor(MUG_HEIGHT / 2))


def test_lowest_point_agrees_with_the_points_of_the_rims() -> None:
    generator = torch.Generator().manual_seed(5)
    quaternion = torch.nn.functional.normalize(torch.randn(N, 4, generator=generator, dtype=torch.float64), dim=1)
    position = torch.rand(N, 3, generator=generator, dtype=torch.float64) - 0.5
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)[:-1]
    ring = torch.stack([MUG_RADIUS * torch.cos(angle), MUG_RADIUS * torch.sin(angle), torch.zeros_like(angle)], dim=1)
    half = torch.tensor([0, 0, MUG_HEIGHT / 2], dtype=torch.float64)
    points = torch.cat([ring + half, ring - half])  # (P, 3) in the mug's frame
    w, v = quaternion[:, :1], quaternion[:, 1:]
    v, p = v[:, None].expand(-1, len(points), -1), points.expand(N, -1, -1)
    turned = p + 2 * torch.linalg.cross(v, torch.linalg.cross(v, p) + w[:, None] * p)
    brute = (turned[..., 2] + position[:, None, 2]).amin(dim=1)
    found = lowest_point(torch.cat([position, quaternion], dim=1))
    assert torch.allclose(found, brute, atol=1e-6)
    assert float((found - position[:, 2]).max()) < -0.029, "random turns lie between flat and upright"
    standing = lowest_point(torch.tensor([0, 0, 0.04, 1.0, 0, 0, 0], dtype=torch.float64))
    assert float(standing) == pytest.approx(0, abs=1e-9)


def test_a_task_that_lacks_something_is_told_what() -> None:
    class Half(MemoryEnv[ChoiceState]):
        def build(self) -> list[Actor]:
            raise AssertionError("it is told before anything is built")

        def outcome(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
            return {}

    with pytest.raises(TypeError, match=r"Half .* layout, oracle, reward_terms, sample, state_features, update_state$"):
        Half(cue_steps=1, delay_steps=0, response_steps=10)


def test_an_outcome_that_lacks_a_flag_is_told() -> None:
    def outcome(s: Any, data: Any) -> dict[str, Tensor]:
        return {"success": torch.zeros(2, dtype=torch.bool)}

    task: Any = SimpleNamespace(task_state=None, _elapsed_steps=None, _read_sim=lambda elapsed: None, outcome=outcome)
    with pytest.raises(KeyError, match=r"returned \['success'\]: it must have 'success' and 'fail'"):
        MemoryEnv.evaluate(task)
