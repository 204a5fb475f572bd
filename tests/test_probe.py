"""`mikasa probe`, on policies whose memory is known."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import odd_memories
import pytest
import torch
from probe_policies import PosturePolicy, SkilledPolicy
from task_helpers import make
from tool_helpers import save_untrained

from mikasa_robo.baselines import ppo_lstm
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.networks import RecurrentActorCritic
from mikasa_robo.baselines.registry import use_memory
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.core.choice import ChoiceState
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.touches import HOLD_STEPS
from mikasa_robo.tasks.rotate import TOLERANCE, RotateState, heading, sample_peg
from mikasa_robo.tasks.shell_game import sample_shells
from mikasa_robo.tasks.take_it_back import sample_start_and_goal
from mikasa_robo.tools import cli
from mikasa_robo.tools import probe as probe_module
from mikasa_robo.tools.probe import PROBE_FORMAT, Subject, _swap_time, describe, probe
from mikasa_robo.tools.probe_cues import CueRule, copy_state, cue_parts, find_cue_rule
from mikasa_robo.tools.probe_figure import draw
from mikasa_robo.tools.probe_play import (
    Batch,
    Player,
    StateSizeError,
    batches,
    flatten_rows,
    freeze_at,
    play_all,
    reset_at,
)
from mikasa_robo.tools.probe_readout import Recorder, _summary, accuracy, r_squared, read_out
from mikasa_robo.tools.probe_swap import ACTED, MEMORY, NEITHER, NEVER, SIGHT, JudgedEnv, Swapped, match, swap

TASK, N = "RememberColor3-v0", 20
CUE_END, RESPONSE = 5, 10


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    env = make(TASK, N, obs_mode="objects")
    yield env
    env.close()


def swapped(env: Any, policy: Any, when: int = 7) -> Swapped:
    task = env.unwrapped
    env.reset(seed=0)
    rule = find_cue_rule(task)
    assert rule is not None
    return swap(env, policy, batches(env, task.num_envs, 100), rule, when)


def successes(env: Any, policy: Any, before: Any = None) -> int:
    played = play_all(env, lambda: Player(policy, before), batches(env, env.unwrapped.num_envs, 100))
    return int(played.success.sum())


def subject(env: Any, make_policy: Callable[[Any], Any]) -> Subject:
    task_id, n = env.unwrapped.spec.id, env.unwrapped.num_envs
    return Subject(
        "scripted",
        env,
        make_policy(env),
        make_arm_env=lambda arm: make(task_id, n, obs_mode="objects", arm=arm),
        remake=make_policy,
    )


# ---------------------------------------------------------------------- a perfect memory
@pytest.fixture(scope="module")
def found(env: Any) -> dict[str, Any]:
    return {"env_id": TASK, **probe(subject(env, SkilledPolicy), episodes=N, every=30)}


def curve(found: dict[str, Any], name: str) -> dict[int, float]:
    return {row["t"]: row["rate"] for row in found["interventions"][name]}


def test_a_perfect_memory_does_the_task_of_the_state_it_is_given(found: dict[str, Any]) -> None:
    assert found["undisturbed"]["successes"] == N
    result = found["swap"]
    assert (result["at"], result["at_rule"]) == (7, "the middle of the delay")
    assert result["followed_memory"]["rate"] == 1.0
    assert result["followed_sight"]["rate"] == result["neither"]["rate"] == 0.0
    assert result["followed_memory"]["low"] == pytest.approx(1 / (1 + 1.96**2 / N), abs=0.01), "Wilson"
    assert sum(result["skipped_episodes"].values()) + len(result["episodes"]) == N
    assert len({row["state_of"] for row in result["episodes"]}) == len(result["episodes"]), "a permutation"


def test_reset_and_freeze_hurt_when_they_should(found: dict[str, Any]) -> None:
    reset, freeze = curve(found, "reset"), curve(found, "freeze")
    assert list(reset) == list(freeze) == [0, CUE_END, RESPONSE]
    assert reset[0] == 1.0, "nothing is lost before anything was seen"
    assert freeze[CUE_END] == freeze[RESPONSE] == 1.0, "all is known from the end of the cue on"
    for t, hurt in ((CUE_END, reset), (RESPONSE, reset), (0, freeze)):
        assert hurt[t] == pytest.approx(1 / 3, abs=0.25), "a guess among three"


def test_the_cue_can_be_read_from_its_end_on(found: dict[str, Any]) -> None:
    (part,) = found["readout"]["parts"]
    assert (part["cue"], part["score"], part["classes"]) == ("oracle", "accuracy", 3)
    assert part["chance"] == pytest.approx(1 / 3)
    rows = {row["t"]: row for row in part["curve"]}
    assert rows[0]["state"] < 0.7
    assert rows[0]["observation"] == 1.0, "the cue is on view"
    for t in (CUE_END, RESPONSE):
        assert rows[t]["state"] == 1.0
        assert rows[t]["episodes"] == N
        assert rows[t]["observation"] < 0.7
        assert rows[t]["shuffled"] < 0.7
        assert 1 / 3 <= rows[t]["majority"] < 0.7
    assert (part["written_at"], part["last"]) == (CUE_END, 1.0)


def test_it_does_as_well_with_a_held_arm(found: dict[str, Any]) -> None:
    arms = found["arms"]
    assert arms["probed"] == "free"
    assert arms["free"]["rate"] == arms["held"]["rate"] == arms["survives"]["rate"] == 1.0


def test_the_result_is_json_a_text_and_a_figure(found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert "follows the memory: 100 % of 20 (95 % interval 84 to 100 %)" in describe(found)
    assert "read-out of oracle: written at t = 5" in describe(found)
    image = draw(found)
    assert image.startswith(b"\x89PNG")
    assert len(image) > 20_000
    skipped = {name: {"skipped": "no state"} for name in ("swap", "interventions", "readout", "arms")}
    assert draw({**found, **skipped}) != image
    assert "swap: left out, no state" in describe({**found, **skipped})


# ---------------------------------------------------------------------- other memories
def test_a_memory_that_is_not_used_can_be_read_and_moves_nothing(env: Any) -> None:
    policy = SkilledPolicy(env, uses_state=False)
    recorder = Recorder(env.unwrapped, [RESPONSE])

    def make_act() -> Player:
        recorder.running(plan[0], torch.ones(N, dtype=torch.bool))
        return Player(policy, after=recorder)

    plan = batches(env, N, 100)
    assert int(play_all(env, make_act, plan).success.sum()) == pytest.approx(N / 3, abs=0.25 * N)
    rows = recorder.at(RESPONSE)
    assert accuracy(rows["state"], rows["cue 0"]) == 1.0
    result = swapped(env, policy)
    assert result.count(MEMORY) < N / 2
    assert result.count(SIGHT) < N / 2
    assert result.count(NEITHER) > 0


def test_what_is_kept_elsewhere_follows_what_was_seen(env: Any) -> None:
    result = swapped(env, SkilledPolicy(env, hides=True))
    assert result.count(SIGHT) == len(result.followed) == N


def test_one_that_forgets_is_at_chance_however_it_is_given_a_state(env: Any) -> None:
    forgets = SkilledPolicy(env, lasts=4)
    assert successes(env, forgets) == pytest.approx(N / 3, abs=0.25 * N)
    # at t = 8 the state of the last step of the cue is 4 steps old, and stays so
    assert successes(env, forgets, freeze_at(8)) == N


@pytest.mark.slow
def test_what_the_wrist_holds_is_lost_with_a_held_arm(env: Any) -> None:
    found = probe(subject(env, PosturePolicy), episodes=N, every=59)
    assert found["swap"]["followed_sight"]["rate"] == 1.0
    assert all(row["rate"] == 1.0 for name in ("reset", "freeze") for row in found["interventions"][name])
    arms = found["arms"]
    assert arms["free"]["rate"] == 1.0
    assert arms["held"]["rate"] == pytest.approx(1 / 3, abs=0.25)
    assert arms["survives"] == arms["held"]
    (part,) = found["readout"]["parts"]
    assert part["written_at"] is None
    # in the joints, of which a linear read-out learns from a few episodes; chance is a third
    assert max(row["observation"] for row in part["curve"] if row["t"] == RESPONSE) >= 0.7


@pytest.mark.slow
def test_the_arm_as_trained_is_the_one_that_is_probed() -> None:
    held = make(TASK, N, obs_mode="objects", arm="held")
    found = probe(subject(held, PosturePolicy), episodes=N, every=59)
    assert found["arm"] == found["arms"]["probed"] == "held"
    assert found["arms"]["free"]["rate"] == 1.0
    assert found["arms"]["held"] == {key: found["undisturbed"][key] for key in found["arms"]["held"]}
    held.close()


# ---------------------------------------------------------------------- other families
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_id", "n", "at"),
    [
        ("ShellGameTouch-v0", 16, CUE_END),
        ("TakeItBack-v0", 8, None),
        ("RotateLenientPos-v0", 12, None),
        ("TakeItBackReplaced-v0", 8, 7),
    ],
)
def test_a_perfect_memory_is_followed_in_every_family(task_id: str, n: int, at: int | None) -> None:
    env = make(task_id, n, obs_mode="objects")
    found = probe(subject(env, SkilledPolicy), episodes=n, every=env.unwrapped.horizon - 1)["swap"]
    env.close()
    took_part = len(found["episodes"])
    assert took_part >= n / 2
    assert found["followed_memory"]["successes"] >= 0.6 * took_part
    assert found["followed_sight"]["successes"] == 0
    if at is None:
        assert found["at_rule"] == "half of the undisturbed episodes no longer show the cue"
    else:
        why = "the middle of the delay" if "Replaced" in task_id else "the first step of the response"
        assert (found["at"], found["at_rule"]) == (at, why)


@pytest.mark.parametrize("task_id", ["TakeItBack", "RotateLenientPos"])
def test_what_comes_back_elsewhere_is_swapped_while_it_is_away(task_id: str) -> None:
    env = make(f"{task_id}Replaced-v0", 2, obs_mode="objects")
    env.reset(seed=0)
    task = env.unwrapped
    rule = find_cue_rule(task)
    assert rule is not None
    at, why = _swap_time(task, rule.is_on_view(task), [])
    assert (at, why) == (task.timeline.cue + task.timeline.delay // 2, "the middle of the delay")
    assert at is not None
    obs = None
    for _ in range(at):
        obs, *_ = env.step(torch.zeros(2, 8))
    assert obs is not None
    assert not obs["objects"][:, 0].any(), "the flag: the object is not on view at that step"
    env.close()


def test_where_the_cue_stays_on_view_there_is_no_swap() -> None:
    env = make("InterceptFast-v0", 10, obs_mode="objects", cue_steps=20)
    env.reset(seed=0)
    assert find_cue_rule(env.unwrapped) is None
    (part,) = cue_parts(env.unwrapped)
    assert not part.discrete

    class Idle(SkilledPolicy):
        def __init__(self, env: Any) -> None:
            self.task, self.device = env.unwrapped, torch.device("cpu")

        def initial_state(self, n: int) -> torch.Tensor:
            return torch.zeros(n, 1)

        def step(self, normalized_obs: Any, state: Any, starts: torch.Tensor) -> Any:
            class Still:
                def mode(self) -> torch.Tensor:
                    return torch.zeros(len(state), 8)

            return Still(), None, state + 1

    found = probe(Subject("idle", env, Idle(env)), episodes=10, every=19)
    env.close()
    assert "has no response phase" in found["swap"]["skipped"]
    assert "has no response phase" in found["arms"]["skipped"]
    assert found["arm"] is None
    assert [row["t"] for row in found["interventions"]["reset"]] == [0, 19]
    assert found["readout"]["parts"][0]["best"] is None, "10 episodes are too few"
    draw({"env_id": "InterceptFast-v0", **found})
    assert "read-out of oracle: too few episodes" in describe({"env_id": "InterceptFast-v0", **found})


def uniforms(n: int, columns: int) -> Uniforms:
    return Uniforms(torch.rand(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def rule_for(state: Any, **facts: Any) -> tuple[CueRule[Any], Any]:
    class Task:
        task_state = state

    task = Task()
    for name, value in facts.items():
        setattr(task, name, value)
    rule = find_cue_rule(task)
    assert rule is not None
    return rule, task


def test_the_cue_of_a_choice_is_a_set_unless_it_has_an_order() -> None:
    none = torch.zeros(3, 4, dtype=torch.int64)
    target = torch.tensor([[0, 1], [1, 0], [0, 2]])
    s = ChoiceState(target, torch.zeros(3, 4, 3), none, none.bool(), torch.tensor([False, False, True]))
    rule, task = rule_for(s, oracle_is_set=True)
    assert rule.differs(task, s).tolist() == [[False, False, True], [False, False, True], [True, True, False]]
    assert rule.parts(task, s)[0].values.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]]
    task.oracle_is_set = False
    assert rule.differs(task, s).tolist() == (~torch.eye(3, dtype=torch.bool)).tolist()
    (other,) = rule.with_cue_of(task, s, torch.tensor([2, 0, 1]))
    assert other.target.tolist() == [[0, 2], [0, 1], [1, 0]]
    other.mistaken[:] = True
    assert s.mistaken.tolist() == [False, False, True], "a copy"
    assert rule.acted(s).tolist() == [False, False, True]
    s.counted[0, 1] = True
    assert rule.acted(s).tolist() == [True, False, True], "who has touched a target has acted"


def test_the_cue_of_a_shell_game_is_a_mug_by_name_and_by_place() -> None:
    s = sample_shells(uniforms(64, 3))
    rule, task = rule_for(s)
    differs = rule.differs(task, s)
    assert bool(differs.any(dim=1).all())
    for i, j in differs.nonzero().tolist():
        ball = s.places[j, s.target[j]]
        distance = torch.linalg.norm(s.places[i] - ball, dim=1)
        assert int(distance.argmin()) == int(s.target[j]) != int(s.target[i])
    s.counted[0, 1] = s.mistaken[2] = True
    assert rule.acted(s).nonzero().flatten().tolist() == [0, 2]


def test_the_cue_of_a_peg_is_how_it_lay() -> None:
    s = sample_peg(uniforms(32, 5), (0.1, math.pi / 2), both_ways=True)
    rule, task = rule_for(s)
    partner = torch.arange(32).roll(1)
    others = rule.with_cue_of(task, s, partner)
    start = heading(s.start[:, 3:])
    for other in others:
        assert isinstance(other, RotateState)
        # where the peg ends up is where the prompted angle from the other start is, either end first
        apart = start + other.goal - (start[partner] + s.goal)
        assert torch.allclose((2 * apart).cos(), torch.ones_like(apart), atol=1e-5)
    differs = rule.differs(task, s)[torch.arange(32), partner]
    for other in others:
        assert bool(((other.goal - s.goal).abs() > 2 * TOLERANCE)[differs].all())
    assert not bool(rule.differs(task, s).diagonal().any())
    turned = replace(s, turned=torch.full((32,), 2 * TOLERANCE))
    assert not bool(rule.gone(s).any())
    assert bool(rule.gone(turned).all())


def test_the_cue_of_take_it_back_is_the_place() -> None:
    s = sample_start_and_goal(uniforms(16, 4))
    rule, task = rule_for(s, region_radius=0.03)
    differs = rule.differs(task, s)
    for i in range(16):
        for j in range(16):
            assert bool(differs[i, j]) == (float(torch.dist(s.start[i], s.start[j])) > 0.06)
    (other,) = rule.with_cue_of(task, s, torch.arange(16).flip(0))
    assert torch.equal(other.start, s.start.flip(0))
    assert torch.equal(other.goal, s.goal)


# ---------------------------------------------------------------------- parts
def test_judging_by_another_cue_changes_nothing(env: Any) -> None:
    """Neither what is observed nor the task's own outcome; afterwards its hooks are its own."""
    task = env.unwrapped

    def run(batch: Any, other: bool) -> list[torch.Tensor]:
        obs, _ = batch.reset(seed=5)
        seen = [obs["objects"]]
        if other:
            rule = find_cue_rule(task)
            assert rule is not None
            states = rule.with_cue_of(task, task.task_state, torch.arange(N).roll(1))
            batch.judge(states, torch.ones(N, dtype=torch.bool))
        for _ in range(12):
            obs, reward, _, _, info = batch.step(torch.full((N, 8), 0.3))
            seen += [obs["objects"], obs["joints"], reward, info["success"], info["oracle_info"]]
        return seen

    alone = run(env, other=False)
    judged = JudgedEnv(env)
    together = run(judged, other=True)
    judged.detach()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert not {"update_state", "outcome"} & set(vars(task))


def test_a_touch_pays_once_whatever_the_copies_have_touched() -> None:
    """`progress` is of the task's own episodes; in the copies all targets were counted before."""
    env = make("SeqOfColors3-v0", 4, obs_mode="objects")
    task: Any = env.unwrapped
    paid = {}
    for other in (False, True):
        judged = JudgedEnv(env)
        judged.reset(seed=5)
        if other:
            copies = copy_state(task.task_state)
            copies.counted = copies.is_target
            judged.judge([copies], torch.ones(4, dtype=torch.bool))
        touching = torch.zeros(4, 2, task.num_candidates, dtype=torch.bool)
        touching[torch.arange(4), :, task.task_state.target[:, 0]] = True
        data = replace(task._read_sim(task.elapsed_steps), responding=torch.ones(4, dtype=torch.bool))
        pays = []
        for _ in range(HOLD_STEPS + 2):
            task.update_state(task.task_state, data, touching)
            pays.append(task.reward_terms(task.task_state, data)["progress"])
        judged.detach()
        paid[other] = torch.stack(pays)
    env.close()
    assert paid[False].sum(dim=0).tolist() == [1.0] * 4
    assert torch.equal(paid[True], paid[False])


def test_who_has_acted_takes_no_part_in_a_swap(env: Any) -> None:
    env.reset(seed=0)
    usual = find_cue_rule(env.unwrapped)

    class Early(type(usual)):  # type: ignore[misc]
        """As if the first five had touched something before their states are exchanged."""

        def acted(self, s: Any) -> torch.Tensor:
            return torch.arange(N) < 5

    result = swap(env, SkilledPolicy(env), batches(env, N, 100), Early(), 7)
    assert {i for i, why in result.skipped.items() if why == ACTED} == set(range(5))
    assert result.partner.keys() == result.followed.keys()
    assert not {*result.partner.keys(), *result.partner.values()} & set(range(5)), "nor is their state given away"
    assert len(result.followed) + len(result.skipped) == N


def test_an_episode_is_judged_by_its_first_success() -> None:
    class Toy(gym.Env[Any, Any]):
        """Episodes whose success at each step (T, N) is all that their state tells."""

        t = 0

        def update_state(self, s: torch.Tensor, data: Any, touching: torch.Tensor) -> None: ...

        def outcome(self, s: torch.Tensor, data: Any) -> dict[str, torch.Tensor]:
            return {"success": s[self.t], "fail": torch.zeros(3, dtype=torch.bool)}

        def reset(self, **kwargs: Any) -> Any:
            self.t = 0
            return None, {}

        def step(self, action: Any) -> Any:
            self.outcome(torch.zeros(5, 3, dtype=torch.bool), None)
            self.t += 1
            return None, torch.zeros(3), torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool), {}

    def succeeds(*steps: tuple[int, ...]) -> torch.Tensor:
        flags = torch.zeros(5, 3, dtype=torch.bool)
        for i, each in enumerate(steps):
            flags[[t - 1 for t in each], i] = True
        return flags

    judged = JudgedEnv(Toy())
    judged.reset()
    own, other = succeeds((1, 4), (3,), ()), succeeds((2, 3), (1, 5), (2,))
    judged.judge([own, other], torch.tensor([True, True, False]))
    over = [judged.step(None)[2].tolist() for _ in range(5)]
    assert judged.success_step.tolist() == [[1, 3, NEVER], [2, 1, NEVER]]
    assert over == [[t >= 2, t >= 3, True] for t in range(1, 6)], "it goes on until it is over by both"


def test_every_row_that_can_have_a_column_gets_its_own() -> None:
    allowed = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    for seed in range(5):
        assert match(allowed, seed).tolist() == [2, 1, 0, -1]
    color = torch.arange(30) % 3
    columns = match(color[:, None] != color, seed=0)
    assert sorted(columns.tolist()) == list(range(30))
    assert bool((color[columns] != color).all())


def test_read_outs_of_known_states() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (80, 2), generator=generator)
    noise = torch.randn(80, 30, generator=generator)
    codes = torch.randn(4, 30, generator=generator)
    assert accuracy(codes[y[:, 0]] + codes[y[:, 1]].flip(1) + 0.1 * noise, y) > 0.95
    assert accuracy(y[:, :1].float(), y[:, :1]) == 1.0, "classes in a row: the middle ones have no side of their own"
    assert accuracy(noise, y) < 0.5
    assert accuracy(torch.zeros(80, 3), y) < 0.5, "a state that does not vary"
    place = torch.rand(80, 3, generator=generator)
    place[:, 2] = 0.02
    assert r_squared(place @ torch.randn(3, 30, generator=generator) + 0.01 * noise, place) > 0.95
    # The penalty is chosen by what is left out of the fit; the least one would fit the noise.
    assert -0.1 < r_squared(noise, place) < 0.1
    assert r_squared(place, torch.ones(80, 1)) == 0.0


def test_a_cue_is_written_once_it_is_known_better_than_the_most_frequent_one() -> None:
    def rows(*states: float, **facts: float) -> list[dict[str, float]]:
        return [{"t": 5 * i, "state": state, "shuffled": 0.3, **facts} for i, state in enumerate(states)]

    assert _summary(rows(0.6, 0.62, 0.58, majority=0.6)) == {"written_at": None, "best": 0.62, "last": 0.58}
    # nine tenths of the way from 0.6 to 1
    assert _summary(rows(0.6, 0.95, 1.0, 0.9, majority=0.6)) == {"written_at": 10, "best": 1.0, "last": 0.9}
    assert _summary(rows(0.3, 0.95, 1.0))["written_at"] == 5, "of numbers there is no most frequent one"


def test_only_episodes_that_run_and_count_are_read(env: Any) -> None:
    obs, _ = env.reset(seed=0)
    recorder = Recorder(env.unwrapped, [4])
    running = torch.ones(N, dtype=torch.bool)
    running[1] = False
    state = torch.arange(N, dtype=torch.float32)[:, None]
    for batch in (Batch(0, [*range(N)], N), Batch(N, [*range(N)], 3)):
        recorder.running(batch, running)
        recorder(4, obs, state)
    rows = recorder.at(4)
    assert rows["state"][:, 0].tolist() == [0, *range(2, N), 0, 2]
    assert {len(value) for value in rows.values()} == {N + 1}


def test_what_was_touched_is_read_out_where_episodes_differ_in_it() -> None:
    n = 40
    env = make("SeqOfColors3-v0", n, obs_mode="objects")
    obs, _ = env.reset(seed=0)
    task: Any = env.unwrapped
    assert [part.name for part in cue_parts(task)] == ["is each candidate a target?", "was each candidate touched?"]
    recorder = Recorder(task, [0, 30])
    recorder.running(Batch(0, [*range(n)], n), torch.ones(n, dtype=torch.bool))
    targets = task.task_state.is_target
    recorder(0, obs, targets.float())
    task.task_state.counted = targets & (torch.rand(targets.shape, generator=torch.Generator().manual_seed(0)) > 0.5)
    recorder(30, obs, torch.cat([targets.float(), task.task_state.counted.float()], dim=1))
    cue, touched = read_out(recorder, [0, 30], task)
    env.close()
    assert [row["t"] for row in cue["curve"]] == [0, 30]
    assert min(row["state"] for row in cue["curve"]) > 0.95
    assert [row["t"] for row in touched["curve"]] == [30], "before, nothing was touched in any episode"
    assert touched["curve"][0]["state"] > 0.95
    assert touched["curve"][0]["majority"] < 0.95
    assert touched["classes"] == 2
    assert (cue["changes"], touched["changes"], touched["written_at"]) == (False, True, None)


def test_episodes_are_played_once_each(env: Any) -> None:
    plan = batches(env, 2 * N + 3, 1000)
    assert [batch.first for batch in plan] == [0, N, 2 * N]
    assert [seed for batch in plan for seed in batch.seeds[: batch.keep]] == [*range(1000, 1000 + 2 * N + 3)]
    played = play_all(env, lambda: Player(SkilledPolicy(env)), plan[-1:])
    assert len(played.success) == len(played.lengths) == 3, "the others fill the batch"


def test_reset_and_freeze_change_the_state_at_their_step(env: Any) -> None:
    policy = SkilledPolicy(env)
    state = {"seen": torch.ones(N, policy.width), "age": torch.ones(N, 1)}
    later = {name: value + 1 for name, value in state.items()}
    reset, freeze = reset_at(policy, 3), freeze_at(3)
    assert reset(2, state) is freeze(2, state) is state
    assert float(reset(3, state)["age"].max()) == -1.0
    assert freeze(3, state) is freeze(4, later) is state
    assert reset(4, later) is later


# ---------------------------------------------------------------------- the command
def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["probe", *words]) == 2
    return capsys.readouterr().err


def test_bad_options_are_refused_before_anything_is_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(save_untrained(tmp_path / "checkpoint.pt", TASK, 58))
    assert "--episodes 3 must be at least 10" in error_of(capsys, "--checkpoint", file, "--episodes", "3")
    assert "--num-envs 1 must be from 2 to 500" in error_of(capsys, "--checkpoint", file, "--num-envs", "1")
    assert "--at 0 must be at least 1" in error_of(capsys, "--checkpoint", file, "--at", "0")
    assert "give it the ending .json" in error_of(capsys, "--checkpoint", file, "--out", str(tmp_path / "a.png"))
    assert "there is no such file" in error_of(capsys, "--checkpoint", str(tmp_path / "none.pt"))
    for option in ("--algorithm", "--network", "--memory"):
        assert f"{option}: " in error_of(capsys, "--checkpoint", file, option, "no_such_module:Mine")
    assert "there is no folder" in error_of(capsys, "--checkpoint", file, "--out", str(tmp_path / "no" / "a.json"))
    (tmp_path / "a.png").write_text("mine")
    assert "already contains a.png" in error_of(capsys, "--checkpoint", file, "--out", str(tmp_path / "a.json"))
    other = str(save_untrained(tmp_path / "other.pt", "MemoryLengthEasy-v0", 3))
    assert "MemoryLengthEasy-v0, which is not one of the tasks" in error_of(capsys, "--checkpoint", other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "checkpoint.pt", "other.pt"]


def test_a_time_beyond_the_episode_is_refused(env: Any) -> None:
    for name in ("at", "every"):
        with pytest.raises(ValueError, match=f"--{name} 60 is not within an episode: it has 60 steps; use 1 to 59"):
            probe(subject(env, SkilledPolicy), episodes=N, **{name: 60})


def save_recurrent(path: Path, env: Any, memory: str = "lstm", **args: Any) -> Path:
    torch.manual_seed(0)
    space = env.unwrapped.single_observation_space
    network = RecurrentActorCritic(ObservationLayout.of(space), ActionLayout(8), (16,), 16, (16,), memory=memory)
    save_policy(path, network, ppo_lstm.Args(env_id=TASK, obs="objects", memory=memory, **args), step=0)
    return path


def test_a_state_that_grows_is_refused_with_the_reason(
    env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is empty at first, and still a state."""
    use_memory("odd_memories:Growing")
    out = tmp_path / "probe.json"
    words = ["--episodes", "10", "--num-envs", "2", "--memory", "odd_memories:Growing", "--out", str(out)]
    file = save_recurrent(tmp_path / "grows.pt", env, "odd_memories:Growing")
    error = error_of(capsys, "--checkpoint", str(file), *words)
    assert error.startswith(
        f"--checkpoint {file} cannot be probed: the part 'h' of the recurrent state has the shape (0, 16)"
    )
    assert "before step 0 and (1, 16) after it" in error
    assert "need a state of one size" in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_state_that_grows_later_is_refused_where_it_does(env: Any) -> None:
    class Grows(SkilledPolicy):
        def step(self, normalized_obs: Any, state: Any, starts: Any) -> Any:
            *others, after = super().step(normalized_obs, state, starts)
            if float(state["age"].max()) >= 0.0:
                after["seen"] = torch.cat([after["seen"], after["seen"]], dim=1)
            return (*others, after)

    with pytest.raises(StateSizeError, match=r"the part 'seen' .* before step \d+ and"):
        successes(env, Grows(env))


def test_a_policy_that_gives_nan_is_refused(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 2)
    use_memory("odd_memories:NaN")
    out, file = tmp_path / "probe.json", save_recurrent(tmp_path / "nan.pt", env, "odd_memories:NaN")
    words = ["--episodes", "10", "--num-envs", "2", "--memory", "odd_memories:NaN", "--out", str(out)]
    error = error_of(capsys, "--checkpoint", str(file), *words)
    assert error.startswith(f"--checkpoint {file}: the network gives NaN at step 2 of the episodes")
    assert error.count("\n") == 1
    assert not out.exists()


def test_complex_states_are_read_with_both_parts() -> None:
    state = {"z": torch.tensor([[1 + 2j], [3 - 4j]]), "n": torch.tensor([[5], [6]])}
    assert flatten_rows(state).tolist() == [[1, 2, 5], [3, -4, 6]]


@pytest.mark.slow
def test_the_command_probes_a_checkpoint(env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_recurrent(tmp_path / "lstm.pt", env, env_kwargs=("arm=held", "response_steps=5"))
    out = tmp_path / "probe.json"
    words = ["--checkpoint", str(file), "--episodes", "24", "--num-envs", "12", "--every", "8", "--out", str(out)]
    assert cli.main(["probe", *words]) == 0
    assert f"written: {out}, {tmp_path / 'probe.png'}" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["format"] == PROBE_FORMAT
    assert content["arm"] == content["arms"]["probed"] == "held"
    assert content["phases"] == {"cue": 5, "delay": 5, "response": 5}
    assert [row["t"] for row in content["interventions"]["freeze"]] == [0, 5, 8, 10]
    assert content["swap"]["neither"]["episodes"] == len(content["swap"]["episodes"]) > 12
    assert content["readout"]["parts"][0]["curve"][-1]["episodes"] == 24
    assert content["arms"]["free"]["episodes"] == content["arms"]["held"]["episodes"] == 24
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert "already contains" in error_of(capsys, *words)


def test_the_file_has_the_hash_of_the_policy_that_was_probed(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_recurrent(tmp_path / "lstm.pt", env, env_kwargs=("response_steps=5",))
    check = probe_module.check

    def check_and_train_on(args: Any) -> Any:
        checkpoint = check(args)
        save_recurrent(file, env, env_kwargs=("response_steps=5",), seed=2)
        return checkpoint

    monkeypatch.setattr(probe_module, "check", check_and_train_on)
    order: list[str] = []

    def provenance(command: Any) -> dict[str, Any]:
        order.append("provenance")
        return {}

    def probe(subject: Any, **options: Any) -> dict[str, Any]:
        order.append("probe")
        return {}

    monkeypatch.setattr("mikasa_robo.baselines.loggers.provenance", provenance)
    monkeypatch.setattr(probe_module, "probe", probe)
    monkeypatch.setattr("mikasa_robo.tools.probe_figure.draw", lambda content: b"")
    args = probe_module.Args(file, episodes=10, num_envs=2, out=tmp_path / "probe.json")
    content = probe_module.probe_checkpoint(args)
    assert content["args"]["seed"] == 2
    assert content["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert order == ["provenance", "probe"], "the code may change while it plays"


@pytest.mark.slow
def test_a_policy_without_a_state_is_told_so(env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = ObservationLayout.of(env.unwrapped.single_observation_space)
    file = save_untrained(tmp_path / "mlp.pt", TASK, layout.to_dict(), obs="objects", env_kwargs=("response_steps=5",))
    out = tmp_path / "probe.json"
    assert cli.main(["probe", "--checkpoint", str(file), "--episodes", "10", "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    for name in ("swap", "interventions", "readout"):
        assert "keeps no recurrent state" in content[name]["skipped"]
    assert content["arms"]["free"]["episodes"] == content["arms"]["held"]["episodes"] == 10
    assert "arm held: 0 % of 10" in capsys.readouterr().out
