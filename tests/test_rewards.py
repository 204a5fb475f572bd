"""What a user may change in a reward: its weights and terms that see the action; and that resting pays where it should."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from mani_skill.utils.structs import Actor
from task_helpers import (
    FAMILIES,
    MECHANICS,
    Record,
    base,
    bring_success,
    compare_runs,
    make,
    random_actions,
    rollout,
    row_of,
    still_action,
)
from torch import Tensor

import mikasa_robo
from baselines.arguments import read_env_kwargs
from mikasa_robo.core import rewards
from mikasa_robo.core.choice import ChoiceTask
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.step_data import action_rows
from mikasa_robo.tasks.remember_color import RememberColor
from mikasa_robo.tasks.rotate import RotateState

N = 4
SCALES = {"reach": 1.0, "touch": 2.0, "still": 0.5}
PHASES: dict[str, Any] = {"cue_steps": 5, "delay_steps": 5, "response_steps": 50}


# ---------------------------------------------------------------------- weights, as pure functions
def test_some_weights_are_replaced_and_the_others_kept() -> None:
    declared = dict(SCALES)
    assert rewards.override_scales(declared, None) == SCALES
    assert rewards.override_scales(declared, None) is not declared
    assert rewards.override_scales(declared, {"touch": 0, "reach": cast(float, np.float32(3))}) == {
        "reach": 3.0,
        "touch": 0.0,
        "still": 0.5,
    }
    assert declared == SCALES, "what a class declares is never changed"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"rech": 1.0}, "'rech' is not a term"),
        ({"reach": "2"}, r"reward_scales\['reach'\]='2'"),
        ({"reach": True}, r"reward_scales\['reach'\]=True"),
        ({"reach": -1.0}, r"reward_scales\['reach'\]=-1\.0"),
        ({"reach": math.nan}, r"reward_scales\['reach'\]=nan"),
        ({"reach": math.inf}, r"reward_scales\['reach'\]=inf"),
        ({"reach": 1e30}, r"reward_scales\['reach'\]=1e\+30"),
        ({"reach": None}, r"reward_scales\['reach'\]=None"),
        (dict.fromkeys(SCALES, 0), "leaves no term with a weight"),
        ([1.0, 2.0, 0.5], "must map names of terms"),
        ("reach", "must map names of terms"),
    ],
)
def test_bad_weights_are_named_with_the_terms_that_there_are(override: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        rewards.override_scales(SCALES, override)
    assert "reach, touch, still" in str(error.value)


@pytest.mark.parametrize("scales", [SCALES, {"reach": 1e-6}, {"reach": 1e6, "still": 0.0}, {"reach": 49.0 / 3}])
def test_the_normalized_reward_is_in_bounds_and_one_at_success(scales: Mapping[str, float]) -> None:
    flags = torch.arange(8)
    success, fail, responding = flags % 2 == 1, flags // 2 % 2 == 1, flags // 4 == 1
    success = success & ~fail
    terms = {name: torch.ones(8) for name in scales}
    reward = rewards.total(rewards.weigh(terms, scales, success, fail, responding))
    normalized = rewards.normalized(reward, scales)
    assert bool((normalized[success] == 1).all()), "exactly"
    assert bool(((normalized >= 0) & (normalized <= 1)).all())
    assert bool((normalized[~success] <= 0.5).all())


def test_still_pays_only_where_success_wants_rest() -> None:
    speed, flags = torch.linspace(0, 2, 100), torch.arange(100)
    wanted, responding = flags % 2 == 0, flags // 2 % 2 == 0
    full = rewards.still(speed)
    assert torch.equal(rewards.still_when(wanted, speed), full * wanted)
    term = rewards.still_when(wanted, speed, responding)
    assert torch.equal(term[responding], (full * wanted)[responding])
    assert torch.allclose(term[~responding], 0.2 * full[~responding]), "a fifth before the response phase"


# ---------------------------------------------------------------------- idling, in a task of every family
@pytest.mark.parametrize("env_id", MECHANICS)
def test_idling_in_the_response_never_pays_the_still_term(env_id: str) -> None:
    """An arm that does nothing, with everything as the response phase begins: nothing; before it, a fifth of the term."""
    env = gym.make(env_id, num_envs=N, sim_debug=True)
    task = base(env)
    env.reset(seed=0)
    s, read = task.task_state, task._read_sim(task.elapsed_steps)

    def idle(elapsed: int) -> StepData:
        t = torch.full((N,), elapsed)
        objects = torch.cat([task.layout(s, t)[1], torch.zeros(N, len(task.objects), 6)], dim=-1)
        return dataclasses.replace(
            read,
            elapsed=t,
            responding=task.timeline.responding(t),
            objects=objects,
            joint_speed=torch.zeros(N),
            speeds=torch.zeros_like(read.speeds),
        )

    start = task.timeline.response_start
    for t in (start, start + 5, task.horizon - 1):
        data = idle(t)
        assert not bool(task.outcome(s, data)["success"].any())
        assert not bool(task.reward_terms(s, data)["still"].any()), t
    if start:
        assert torch.allclose(task.reward_terms(s, idle(start - 1))["still"], torch.tensor(0.2))
    if isinstance(task, ChoiceTask):
        s.counted.scatter_(1, s.target, True)
        assert bool((task.reward_terms(s, idle(start + 5))["still"] == 1).all()), "done: nothing is left but to rest"
    if env_id == "ShellGameTouch-v0":
        s.counted.scatter_(1, s.target[:, None], True)
        assert bool((task.reward_terms(s, idle(start + 5))["still"] == 1).all())
    if env_id.startswith("Rotate"):
        state = cast(RotateState, s)
        state.turned[:] = state.target
        data = idle(start + 5)
        assert bool((task.reward_terms(s, data)["still"] == 1).all())
        data.objects[:2, 0, 0] += 0.06  # off the spot
        data.objects[2, 0, 3:7] = torch.tensor([0.98, 0.2, 0.0, 0.0]) / math.hypot(0.98, 0.2)  # not level
        expected = [0.0, 0.0, 0.0, 1.0] if "Strict" in env_id else [1.0] * 4
        assert torch.allclose(task.reward_terms(s, data)["still"], torch.tensor(expected))
    env.close()


# ---------------------------------------------------------------------- the action
def test_the_action_is_copied_as_it_came() -> None:
    like = torch.zeros(3, 8)
    given = torch.full((3, 4), 2.0, dtype=torch.float64)
    rows = action_rows(given, like)
    assert rows.dtype == torch.float32
    assert rows.shape == (3, 4)
    given[:] = 0
    assert bool((rows == 2).all()), "a copy, not clipped"
    assert torch.equal(action_rows(None, like), like)
    assert action_rows(torch.ones(8), torch.zeros(1, 8)).shape == (1, 8)


@pytest.mark.parametrize("of", [torch.full, np.full])
def test_a_reset_leaves_the_callers_action_as_it_is(of: Any) -> None:
    """ManiSkill's pd_joint_pos_vel keeps the action that it is given, and writes into it at a reset."""
    env = make("RememberColor3-v0", 2, control_mode="pd_joint_pos_vel")
    env.reset(seed=0)
    given = of((2, env.action_space.shape[-1]), 0.25)
    for _ in range(2):
        env.step(given)
        env.reset(seed=0)
    env.close()
    assert bool((given == 0.25).all())


class Economical(RememberColor):
    """RememberColor with a term of the user's own."""

    def reward_terms(self, s: Any, data: StepData) -> dict[str, Tensor]:
        return {**super().reward_terms(s, data), "still": 1 - data.action.abs().amax(dim=1).clamp(max=1)}


@pytest.fixture(scope="module")
def economical() -> Iterator[MemoryEnv[Any]]:
    env = Economical(n=3, num_envs=N, sim_debug=True, reward_scales={"still": 4.0}, **PHASES)
    yield env
    env.close()


def test_terms_see_the_action_of_the_step(economical: MemoryEnv[Any]) -> None:
    env = economical
    _, info = env.reset(seed=0)
    assert torch.equal(info["reward_terms"]["still"], torch.full((N,), 4.0)), "zeros after a reset"
    action = torch.zeros(N, 8)
    action[:, 2] = torch.tensor([0.25, -0.5, 0.75, 3.0])
    info = env.step(action)[-1]
    expected = torch.tensor([3.0, 2.0, 1.0, 0.0])
    assert torch.equal(info["reward_terms"]["still"], expected)
    action[:] = 9.0  # a caller may reuse its buffer
    assert torch.equal(env.evaluate()["reward_terms"]["still"], expected), "outside a step it is the last one"
    # a partial reset clears the rows it names
    info = env.reset(seed=[1], options={"env_idx": [1]})[1]
    expected[1] = 4.0
    assert torch.equal(info["reward_terms"]["still"], expected)
    state = env.get_state_dict()
    env.step(torch.ones(N, 8))
    env.set_state_dict(state)
    assert torch.equal(env.evaluate()["reward_terms"]["still"], torch.full((N,), 4.0)), "as after a reset"
    info = env.step(None)[-1]
    assert torch.equal(info["reward_terms"]["still"], torch.full((N,), 4.0)), "no action is zeros"
    info = env.step({"control_mode": "pd_joint_delta_pos", "action": np.full((N, 8), 0.5, np.float32)})[-1]
    assert torch.equal(info["reward_terms"]["still"], torch.full((N,), 2.0)), "the tensor in a dict"


def test_a_single_environment_sees_its_unbatched_action() -> None:
    env = Economical(n=3, num_envs=1, **PHASES)
    env.reset(seed=0)
    info = env.step(np.full(8, 0.5, np.float32))[-1]
    assert info["reward_terms"]["still"].tolist() == [0.25]
    env.close()


# ---------------------------------------------------------------------- weights of a real task
@pytest.mark.parametrize("maker", [gym.make, mikasa_robo.make_env])
def test_reward_scales_is_an_argument_of_make(maker: Any) -> None:
    env = maker("ShellGameTouch-v0", num_envs=N, reward_scales={"reach": 5.0, "touch": 0.0}, response_steps=20)
    task = base(env)
    assert task.reward_scales == {"reach": 5.0, "touch": 0.0, "still": 0.5}
    from mikasa_robo.tasks.shell_game import SCALES as DECLARED

    assert DECLARED["touch"] == {"reach": 1.0, "touch": 1.0, "still": 0.5}, "the class keeps its own"
    env.reset(seed=0)
    for _ in range(6):
        _, reward, _, _, info = env.step(still_action(env))
    terms = task.reward_terms(task.task_state, task._read_sim(task.elapsed_steps))
    assert torch.equal(info["reward_terms"]["reach"], 5 * terms["reach"])
    assert not bool(info["reward_terms"]["touch"].any())
    assert torch.allclose(reward, sum(info["reward_terms"].values()) / 11)
    bring_success(env, [0, 2])
    _, reward, terminated, _, info = env.step(still_action(env))
    assert terminated.tolist() == info["success"].tolist() == [True, False, True, False]
    assert bool((reward[[0, 2]] == 1).all())
    env.close()


def test_reward_scales_come_from_the_command_line() -> None:
    """``--env-kwargs reward_scales='{"reach": 2}'``, as `mikasa train` reads it."""
    env = mikasa_robo.make_env("RememberColor3-v0", **read_env_kwargs(['reward_scales={"reach": 2}']))
    assert base(env).reward_scales["reach"] == 2
    env.close()


def test_bad_reward_scales_are_named_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: object) -> list[Actor]:
        raise AssertionError("something was built")

    monkeypatch.setattr(RememberColor, "build", build)
    with pytest.raises(ValueError, match=r"'grasp' is not a term .*reach, touch, still"):
        gym.make("RememberColor3-v0", reward_scales={"grasp": 1.0})


# ---------------------------------------------------------------------- to the last bit, at any number of environments
def test_closeness_is_one_less_tanh() -> None:
    x = torch.linspace(0, 12, 100_001)
    near = rewards.closeness(x, 1.0)
    assert float((near.double() - (1 - torch.tanh(x.double()))).abs().max()) < 2e-7
    assert float(near[0]) == 1.0
    assert float(near[-1]) == 0.0
    assert bool((near.diff() <= 0).all()), "nearer is never worse"
    assert rewards.closeness(torch.tensor([torch.nan, torch.inf])).tolist() == [0.0, 0.0]
    assert rewards.closeness(x.double()).dtype == torch.float64


def test_progress_is_flat_nowhere() -> None:
    left = torch.linspace(0, 5, 51)
    for start in (0.1, 0.6):
        value = rewards.progress(left, start)
        assert bool((value.diff() < 0).all())
        assert value[[0, 10]].tolist() == pytest.approx([1.0, start])
        assert float(value.min()) > 0


def test_terms_do_not_depend_on_the_number_of_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.rand(2, 1000, 3, generator=generator)
    terms = {str(k): torch.rand(1000, generator=generator) for k in range(7)}
    for count in (1, 3, 8, 17, 64):
        rows = slice(5, 5 + count)
        assert torch.equal(rewards.reach(one[rows], other[rows]), rewards.reach(one, other)[rows])
        assert torch.equal(rewards.reach_from_above(one[rows] / 9), rewards.reach_from_above(one / 9)[rows])
        ways = one * 0.1 - other * 0.1
        assert torch.equal(rewards.reach_over(ways[rows]), rewards.reach_over(ways)[rows])
        pose = torch.cat([one, one, one], dim=1)[:, :7]
        assert torch.equal(rewards.pointing_down(pose[rows]), rewards.pointing_down(pose)[rows])
        assert torch.equal(rewards.still(one[rows, 0]), rewards.still(one[:, 0])[rows])
        few = {name: term[rows] for name, term in terms.items()}
        assert torch.equal(rewards.total(few), rewards.total(terms)[rows])


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(i, marks=[] if i in ("RotateStrictPos-v0", "ChainOfColors3-v0") else pytest.mark.slow)
        for i in FAMILIES
    ],
)
def test_an_episode_is_the_same_at_any_number_of_environments(env_id: str, request: pytest.FixtureRequest) -> None:
    """Observations, rewards and reward terms of each environment, with the hand moving and, mostly, hitting things."""
    slow = request.node.get_closest_marker("slow") is not None
    runs: dict[int, list[Record]] = {}
    for count in (1, 3, 8, 64) if slow else (1, 3, 8):
        env = make(env_id, count, obs_mode="state+objects", sim_backend="physx_cpu_batched", on_mistake="ignore")
        row = row_of(env)
        moves = random_actions(env, min(row.cue + row.delay, 20) + 6, 3, num_envs=64)
        env.reset(seed=[(3, i) for i in range(count)])
        runs[count] = rollout(env, moves[:, :count])
        env.close()
    largest = max(runs)
    assert any(name.startswith("info/reward_terms/") for name in runs[largest][0])
    for count, run in runs.items():
        rows = list(range(count))
        compare_runs(run, runs[largest], rows, rows)
