"""What holds for every task: one ID for each mechanic, with environments at different t; and a smoke test of all IDs."""

from __future__ import annotations

import functools
import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from task_helpers import (
    HIDDEN_HEIGHT,
    MECHANICS,
    Env,
    N,
    Record,
    base,
    bring_failure,
    bring_success,
    can_fail,
    chi_square_p,
    compare,
    compare_runs,
    difference,
    flatten,
    make,
    plain_phase,
    random_actions,
    rollout,
    row_of,
    simulation,
    stagger,
    step,
    still_action,
)
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG, TaskSpec
from mikasa_robo.core import rewards, state
from mikasa_robo.core.env import ARM_JOINTS, StepData
from mikasa_robo.core.phases import CUE
from mikasa_robo.core.seeds import episode_keys
from mikasa_robo.sim.env import BatchedSimMixin
from mikasa_robo.tensors import length
from mikasa_robo.tensors import total as sum_in_order

SEEDS = [11, 5, 2**31 + 7, 0, 123456, 42, 77, 8]


@pytest.fixture(scope="module", params=MECHANICS)
def task_id(request: pytest.FixtureRequest) -> str:
    """One ID for each mechanic; tests of the same ID share its environments."""
    return str(request.param)


def closing(env: Env) -> Iterator[Env]:
    yield env
    env.close()


@pytest.fixture(scope="module")
def batch(task_id: str) -> Iterator[Env]:
    """N environments."""
    yield from closing(make(task_id, N))


@pytest.fixture(scope="module")
def twin(task_id: str) -> Iterator[Env]:
    """Another N, for comparisons with the first."""
    yield from closing(make(task_id, N))


@pytest.fixture(scope="module")
def single(task_id: str) -> Iterator[Env]:
    """One environment, on ManiSkill's own single-env path."""
    env = make(task_id, 1)
    assert not base(env).gpu_sim_enabled
    yield from closing(env)


@pytest.fixture(scope="module")
def big(task_id: str) -> Iterator[Env]:
    """64 environments."""
    yield from closing(make(task_id, 64))


FEW = MECHANICS[2], MECHANICS[5], MECHANICS[-1]
"""IDs for what depends on the engine more than on the task: with contacts, with a prompt, with a sequence of cues."""


def skip_unless_few(task_id: str, needed: bool = False) -> None:
    """Skips a test of the package's own tasks, unless it is `needed` or the task is one of `FEW`."""
    if not needed and task_id in MECHANICS and task_id not in FEW:
        pytest.skip("a few IDs are enough")


def step_data_of(env: Env) -> StepData:
    """What the task looks at now."""
    return base(env)._read_sim(base(env).elapsed_steps)


def first_response(row: TaskSpec) -> int:
    """The first t at which acting counts."""
    return row.cue + row.delay if row.response else 0


def stepped_phases(row: TaskSpec) -> set[int]:
    """The phases in which a step can end: a cue of one step is over after the first."""
    return {plain_phase(row, t) for t in range(1, row.horizon + 1)}


def test_how_fast_objects_are_is_measured_by_how_far_they_come_in_a_step(batch: Env) -> None:
    """And it is saved, restored and reset with the episodes."""
    task = base(batch)
    batch.reset(seed=1)
    started = task.task_state
    velocities = task.initial_velocities(started)
    expected = torch.zeros(N, len(task.objects)) if velocities is None else length(velocities[..., :3])
    assert torch.equal(step_data_of(batch).speeds, expected)
    moved = 0
    for action in random_actions(batch, first_response(row_of(batch)) + 10, seed=2):
        before = task.object_layout.read()[..., :3].clone()
        batch.step(action)
        now, look = task.object_layout.read()[..., :3], step_data_of(batch)
        # nothing was put anywhere after the step
        free = (task.elapsed_steps > task.timeline.response_start)[:, None] & ~task.object_layout.parked(
            task.object_layout.read()
        )
        covered = (now - before).norm(dim=-1) * task.control_freq
        assert torch.allclose(look.speeds[free], covered[free], rtol=0, atol=1e-5)
        moved += int((look.speeds[free] > 0.01).sum())
    if row_of(batch).family.startswith("Intercept"):
        assert moved > 0
    speeds, saved = step_data_of(batch).speeds.clone(), task.get_state_dict()
    batch.reset(options={"env_idx": [1]})
    others = [i for i in range(N) if i != 1]
    assert torch.equal(step_data_of(batch).speeds[others], speeds[others])
    task.set_state_dict(saved)
    assert torch.equal(step_data_of(batch).speeds, speeds)
    batch.step(torch.zeros(batch.action_space.shape))
    unchanged = flatten(task.get_state_dict())
    of_the_task = next(name for name in saved["task"] if name not in ("object_speeds", "elapsed_steps"))
    for lost, reason in (("object_speeds", "another version"), (of_the_task, "another task")):
        poorer = saved | {"task": {name: value for name, value in saved["task"].items() if name != lost}}
        with pytest.raises(KeyError, match=f"{lost}.*{reason}"):
            task.set_state_dict(poorer)
        assert all(torch.equal(value, unchanged[name]) for name, value in flatten(task.get_state_dict()).items())


# ---------------------------------------------------------------------- 1: hiding and showing; who writes
def test_hidden_objects_are_away_at_rest_and_untouched_and_come_back_exactly(batch: Env) -> None:
    env, row = base(batch), row_of(batch)
    stagger(batch, seed=1)
    steps = min(first_response(row), row.horizon) + 4
    before = torch.ones(N, len(env.objects), dtype=torch.bool)
    checked_hidden = checked_back = 0
    for action in [None, *random_actions(batch, steps, seed=2)]:
        if action is not None:
            batch.step(action)
        visible, home = env.layout(env.task_state, env.elapsed_steps)
        objects = env.object_layout.read()
        force = torch.stack([actor.get_net_contact_forces() for actor in env.objects], dim=1)
        assert force.shape == (N, len(env.objects), 3)
        away = torch.linalg.norm(objects[..., :3], dim=-1) > HIDDEN_HEIGHT
        assert torch.equal(away, ~visible), "an object is away exactly while it is hidden"
        assert not bool(objects[~visible][:, 7:].any()), "a hidden object moves"
        # an object that was on view until now had contacts during the step
        still_hidden = ~visible & ~before
        assert not bool(force[still_hidden].any()), "a hidden object touches something"
        back = visible & ~before
        assert torch.allclose(objects[back][:, :7], home[back], rtol=0, atol=1e-6), "not where the layout says"
        assert not bool(objects[back][:, 7:].any()), "an object comes back moving"
        checked_hidden += int(still_hidden.sum())
        checked_back += int(back.sum())
        before = visible
    if row.delay or row.family == "ShellGame":
        assert checked_hidden > 20
        assert checked_back >= N // 2


def test_in_the_delay_nothing_is_on_view(batch: Env) -> None:
    env, row = base(batch), row_of(batch)
    if not row.delay:
        pytest.skip("the task has no delay")
    stagger(batch, seed=3)
    in_delay = torch.tensor([plain_phase(row, int(t)) == 1 for t in env.elapsed_steps])
    assert int(in_delay.sum()) == N // 4
    away = torch.linalg.norm(env.object_layout.read()[..., :3], dim=-1) > HIDDEN_HEIGHT
    assert bool(away[in_delay].all())
    assert bool((~away[~in_delay]).any(dim=1).all())


def everything(env: Env) -> list[Any]:
    """All that an observation must not change: the simulation's bytes, its buffers, task, clock and generators."""
    task = base(env)
    systems = [scene.physx_system.pack() for scene in task.scene.sub_scenes]
    generators = task._generators.state.tolist()
    record = simulation(env) | {f"task/{k}": v for k, v in flatten(vars(task.task_state)).items()}
    record |= {f"control/{k}": v for k, v in flatten(task.agent.get_controller_state()).items()}
    record["elapsed"] = task.elapsed_steps.clone()
    return [systems, generators, record]


def assert_unchanged(one: list[Any], other: list[Any], what: str) -> None:
    assert one[0] == other[0], f"{what} changed the simulation"
    assert one[1] == other[1], f"{what} drew random numbers"
    compare(one[2], other[2], range(len(one[0])), range(len(one[0])), what)


@pytest.mark.parametrize("which", ["batch", "single"])
def test_looking_changes_nothing(request: pytest.FixtureRequest, task_id: str, which: str) -> None:
    skip_unless_few(task_id, which == "batch")
    env: Env = request.getfixturevalue(which)
    task, row = base(env), row_of(env)
    if which == "batch":
        stagger(env, seed=4)
    else:
        env.reset(seed=4)
    for action in random_actions(env, 6, seed=5):
        env.step(action)
        before = everything(env)
        info = task.get_info()
        obs = task.get_obs(info)
        looks: list[tuple[str, Callable[[], Any]]] = [
            ("evaluate", task.evaluate),
            ("get_obs", functools.partial(task.get_obs, info)),
            ("get_reward", functools.partial(task.get_reward, obs, action, info)),
            ("dense reward", functools.partial(task.compute_dense_reward, obs, action, info)),
            ("get_state_dict", task.get_state_dict),
        ]
        for name, look in looks:
            kept = flatten(info, "info/")
            first = look()
            for _ in range(2):
                again = look()
                record = [flatten({"it": r}) for r in (first, again)]
                compare(record[0], record[1], range(task.num_envs), range(task.num_envs), f"{name} of {row.id}")
            assert_unchanged(before, everything(env), name)
            compare(kept, flatten(info, "info/"), range(task.num_envs), range(task.num_envs), f"info after {name}")


def test_what_was_saved_does_not_change_with_the_episode(batch: Env) -> None:
    """Also through a reset, which writes into the same rows."""
    stagger(batch, seed=6)
    saved = base(batch).get_state_dict()
    kept = flatten(saved)
    batch.step(still_action(batch))
    compare(kept, flatten(saved), range(N), range(N), "after a step")
    batch.reset(seed=99)
    compare(kept, flatten(saved), range(N), range(N), "after a reset")


def test_what_was_returned_does_not_change_with_the_next_step(batch: Env) -> None:
    stagger(batch, seed=6)
    actions = random_actions(batch, 3, seed=6)
    obs, reward, terminated, truncated, info = batch.step(actions[0])
    returned = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
    kept = flatten(returned)
    batch.step(actions[1])
    batch.reset(seed=99)
    compare(kept, flatten(returned), range(N), range(N), "returned values")


# ---------------------------------------------------------------------- 2: partial resets
MEMBERS = [1, 4, 6]
OTHERS = [i for i in range(N) if i not in MEMBERS]


def new_pair(task_id: str, **kwargs: Any) -> tuple[Env, Env]:
    """Two new batches: PhysX remembers contacts of earlier episodes, so only equal histories give equal last bits."""
    return make(task_id, N, **kwargs), make(task_id, N, **kwargs)


@pytest.mark.parametrize("seeds", [None, [1, 2, 3]], ids=["unseeded", "seeded"])
def test_a_partial_reset_changes_only_the_environments_it_names(task_id: str, seeds: list[int] | None) -> None:
    skip_unless_few(task_id, seeds is None)
    partial_reset_is_nobody_elses_business(task_id, "pd_joint_delta_pos", seeds)


@pytest.mark.parametrize("mode", ["pd_joint_target_delta_pos", "pd_ee_target_delta_pose"])
def test_a_partial_reset_leaves_other_controllers_targets_alone(mode: str) -> None:
    partial_reset_is_nobody_elses_business(MECHANICS[0], mode, None)


def partial_reset_is_nobody_elses_business(task_id: str, mode: str, seeds: list[int] | None) -> None:
    """Two runs, one with a partial reset in the middle: for the others they are the same."""
    one, other = new_pair(task_id, control_mode=mode)
    actions = random_actions(one, 8, seed=8)
    for env in (one, other):
        stagger(env, seed=7)
    compare(simulation(one), simulation(other), range(N), range(N), "before the partial reset")
    before, drawn = simulation(one), {"oracle": base(one).evaluate()["oracle_info"].clone()}
    info = one.reset(seed=seeds, options={"env_idx": MEMBERS})[1]
    after = simulation(one)
    compare(before, after, OTHERS, OTHERS, "the partial reset")
    compare(drawn, {"oracle": info["oracle_info"]}, OTHERS, OTHERS, "the cue")
    assert base(one).elapsed_steps[MEMBERS].tolist() == [0] * len(MEMBERS)
    robot = next(name for name in after if name.startswith("articulations/"))
    assert not bool((before[robot][MEMBERS] == after[robot][MEMBERS]).all(dim=1).any()), "nothing was reset"
    compare_runs(rollout(one, actions), rollout(other, actions), OTHERS)
    compare(simulation(one), simulation(other), OTHERS, OTHERS, "8 steps later")
    one.close()
    other.close()


def test_the_observation_of_a_partial_reset_is_right_for_the_others(batch: Env) -> None:
    observations_of_others_stay(batch)


def test_the_observation_of_a_partial_reset_has_the_others_targets() -> None:
    env = make(MECHANICS[0], N, control_mode="pd_joint_target_delta_pos")
    observations_of_others_stay(env)
    env.close()


def observations_of_others_stay(env: Env) -> None:
    """They did not move, so they see what they saw."""
    stagger(env, seed=7)
    seen = env.step(random_actions(env, 1, seed=8)[0])[0].clone()
    obs = env.reset(options={"env_idx": MEMBERS})[0]
    assert torch.equal(obs[OTHERS], seen[OTHERS]), difference(obs[OTHERS], seen[OTHERS])
    assert not bool((obs[MEMBERS] == seen[MEMBERS]).all(dim=1).any())


def test_the_order_in_which_env_idx_names_environments_does_not_matter(batch: Env) -> None:
    """Seeds go with the environments beside which they stand."""
    batch.reset(seed=1)
    obs, _ = batch.reset(seed=[7, 9, 8], options={"env_idx": [1, 3, 5]})
    expected = start(batch) | {"obs": obs}
    batch.reset(seed=1)
    obs, _ = batch.reset(seed=[8, 7, 9], options={"env_idx": [5, 1, 3]})
    compare(start(batch) | {"obs": obs}, expected, range(N), range(N), "another order of env_idx")


def test_a_partial_reset_takes_a_mask_and_gives_new_episodes(batch: Env) -> None:
    stagger(batch, seed=9)
    env = base(batch)
    before = simulation(batch)
    mask = torch.zeros(N, dtype=torch.bool)
    mask[2] = True
    batch.reset(options={"env_idx": mask})
    assert env.elapsed_steps[2] == 0
    after = simulation(batch)
    others = [i for i in range(N) if i != 2]
    compare(before, after, others, others, "reset by mask")
    assert not torch.equal(before["articulations/panda_wristcam"][2], after["articulations/panda_wristcam"][2])


# ---------------------------------------------------------------------- 3: phases
def test_each_environment_is_in_the_phase_of_its_own_t(batch: Env) -> None:
    env, row = base(batch), row_of(batch)
    stagger(batch, seed=10)
    seen: set[int] = set()
    for action in random_actions(batch, 8, seed=11):
        _, _, _, _, info = batch.step(action)
        t = env.elapsed_steps.tolist()
        expected = [plain_phase(row, k) if row.response else CUE for k in t]
        assert len(set(t)) >= 3
        assert info["phase"].tolist() == expected
        assert info["elapsed_steps"].tolist() == t
        seen |= set(expected)
        away = torch.linalg.norm(env.object_layout.read()[..., :3], dim=-1) > HIDDEN_HEIGHT
        for i in range(N):
            alone, _ = env.layout(env.task_state, torch.full((N,), t[i]))
            assert torch.equal(~away[i], alone[i]), f"env {i} at t = {t[i]} shows what another t shows"
    assert seen == (stepped_phases(row) if row.response else {CUE})


# ---------------------------------------------------------------------- 4: seeds
def start(env: Env) -> Record:
    """What an episode begins with."""
    task = base(env)
    return simulation(env) | {
        "objects": task.object_layout.read().clone(),
        "qpos": task.agent.robot.get_qpos().clone(),
        "oracle": task.evaluate()["oracle_info"].clone(),
    }


def test_a_seed_gives_env_i_the_same_episode_in_any_batch(single: Env, batch: Env, big: Env) -> None:
    records = []
    for env in (single, batch, big):
        env.reset(seed=20)
        env.step(random_actions(env, 1, seed=0)[0])  # something is left over to be cleared
        obs, _ = env.reset(seed=21)
        records.append(start(env) | {"obs": obs})
    compare(records[0], records[1], [0], [0], "1 and 8")
    compare(records[1], records[2], range(N), range(N), "8 and 64")
    arms = records[2]["qpos"][:, :7]
    assert len(torch.unique(arms, dim=0)) == 64, "every environment has noise of its own"
    assert float(arms.std(dim=0).mean()) == pytest.approx(0.02, rel=0.25)
    assert torch.unique(records[2]["oracle"], dim=0).shape[0] > 1
    big.reset(seed=22)
    other = start(big)["qpos"][:, :7]
    # also between neighbouring seeds no episode comes twice
    assert len(torch.unique(torch.cat([arms, other]), dim=0)) == 128


def test_a_list_of_seeds_gives_each_env_what_it_would_get_alone(single: Env, batch: Env) -> None:
    together = batch.reset(seed=SEEDS)[0]
    expected = start(batch) | {"obs": together}
    for i, seed in enumerate(SEEDS):
        for given in (seed, [seed]):
            obs, _ = single.reset(seed=given)
            compare(start(single) | {"obs": obs}, expected, [0], [i], f"seed {given}")
    # and for other environments, in a partial reset
    batch.reset(seed=1)
    obs, _ = batch.reset(seed=[SEEDS[5], SEEDS[2]], options={"env_idx": [0, 3]})
    compare(start(batch) | {"obs": obs}, expected, [0, 3], [5, 2], "partial reset")


def test_unseeded_resets_go_on_with_each_env_s_own_generator(batch: Env, twin: Env) -> None:
    """The second episode of a seed is fixed too, and does not depend on when the others were reset."""
    batch.reset(seed=31)
    batch.reset()
    second = start(batch)
    twin.reset(seed=31)
    for i in (5, 0, 7, 2, 1, 3, 6, 4):
        twin.reset(options={"env_idx": [i]})
    compare(second, start(twin), range(N), range(N), "second episode")
    batch.reset(seed=31)
    assert not torch.equal(second["qpos"], start(batch)["qpos"])


def global_generators() -> list[Any]:
    kind, keys, position, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return [torch.get_rng_state().tolist(), str(kind), np.asarray(keys).tolist(), position, rest, random.getstate()]


def test_global_generators_are_neither_read_nor_changed(batch: Env, single: Env) -> None:
    for env in (batch, single):
        episodes = []
        for given in (1, 2):
            torch.manual_seed(given)
            np.random.seed(given)  # noqa: NPY002
            random.seed(given)
            before = global_generators()
            env.reset(seed=41)
            env.step(random_actions(env, 1, seed=1)[0])
            env.reset(options={"env_idx": [0]})
            env.reset()
            assert global_generators() == before
            episodes.append(start(env))
        compare(episodes[0], episodes[1], range(base(env).num_envs), range(base(env).num_envs), "global seeds")


# ---------------------------------------------------------------------- 5, 6: rewards
MODES = ("sparse", "dense", "normalized_dense", "none")
SUCCEEDING, FAILING = [0, 3], [1, 6]


def eventful_run(env: Env) -> list[Record]:
    """An episode's response with random moves in which some environments succeed and others fail."""
    env.reset(seed=51)
    row = row_of(env)
    records = rollout(env, random_actions(env, first_response(row) + 4, seed=52))
    records += [step(env, still_action(env)) for _ in range(12)]
    bring_success(env, SUCCEEDING)
    if can_fail(env):
        bring_failure(env, FAILING)
    records += [step(env, still_action(env)) for _ in range(2)]
    return records + rollout(env, random_actions(env, 4, seed=53))


@pytest.fixture(scope="module")
def runs(task_id: str) -> dict[str, list[Record]]:
    """`eventful_run` under two reward modes, for a few tasks under all of them."""
    found = {}
    for mode in MODES if task_id in FEW else ("sparse", "dense"):
        env = make(task_id, N, reward_mode=mode)
        found[mode] = eventful_run(env)
        env.close()
    return found


def test_success_does_not_depend_on_the_reward_mode(task_id: str, runs: dict[str, list[Record]]) -> None:
    names = ["obs", "terminated", "truncated", *(n for n in runs["sparse"][0] if n.startswith("info/"))]
    assert {"info/success", "info/fail"} <= set(names)
    chosen = {mode: [{n: record[n] for n in names} for record in run] for mode, run in runs.items()}
    for mode in list(runs)[1:]:
        compare_runs(chosen["sparse"], chosen[mode], range(N))
    success = torch.stack([record["info/success"] for record in runs["sparse"]])
    fail = torch.stack([record["info/fail"] for record in runs["sparse"]])
    assert bool(success[:, SUCCEEDING].any(dim=0).all()), "nobody succeeded: nothing was tested"
    assert not bool((success & fail).any())
    terminated = torch.stack([record["terminated"] for record in runs["sparse"]])
    assert torch.equal(terminated, success | fail)


def test_the_reward_is_the_sum_of_the_terms_of_the_same_step(batch: Env, runs: dict[str, list[Record]]) -> None:
    successes = 0
    scales = base(batch).reward_scales
    top = rewards.maximum(scales)
    for t, (sparse, dense) in enumerate(zip(runs["sparse"], runs["dense"], strict=True)):
        terms = {n.rsplit("/", 1)[1]: v for n, v in dense.items() if n.startswith("info/reward_terms/")}
        assert set(terms) == {*scales, "success"}
        total = sum_in_order(list(terms.values()))
        assert torch.equal(dense["reward"], total)
        success = dense["info/success"]
        assert bool(((total >= 0) & (total <= top)).all())
        assert torch.equal(total == top, success)
        assert torch.equal(sparse["reward"], success.to(torch.float32))
        if "none" in runs:
            assert torch.equal(runs["normalized_dense"][t]["reward"], total / top)
            assert not bool(runs["none"][t]["reward"].any())
        for record in (run[t] for run in runs.values()):
            assert record["reward"].dtype == torch.float32
            assert record["reward"].shape == (N,)
        successes += int(success.sum())
    assert successes >= len(SUCCEEDING)


def test_before_the_response_only_being_still_pays(task_id: str, runs: dict[str, list[Record]]) -> None:
    if not CATALOG[task_id].response:
        pytest.skip("the task is acted in from its first step")
    checked = 0
    for record in runs["dense"]:
        early = record["info/phase"] != 2
        assert torch.equal(record["reward"][early], record["info/reward_terms/still"][early])
        checked += int(early.sum())
    assert checked >= (N if {0, 1} & stepped_phases(CATALOG[task_id]) else 0)


def test_a_mistake_is_for_good(task_id: str, batch: Env) -> None:
    batch.reset(seed=54)
    if not can_fail(batch):
        pytest.skip("the task knows no mistakes")
    for _ in range(first_response(row_of(batch)) + 8):
        batch.step(still_action(batch))
    bring_failure(batch, FAILING)
    bring_success(batch, [*FAILING, *SUCCEEDING])
    succeeded = torch.zeros(N, dtype=torch.bool)
    for _ in range(6):
        record = step(batch, still_action(batch))
        assert bool(record["info/fail"][FAILING].all())
        assert not bool(record["info/success"][FAILING].any())
        assert not bool(record["reward"][FAILING].any()), "nothing pays after a failure"
        succeeded |= record["info/success"]
    assert bool(succeeded[SUCCEEDING].all())


# ---------------------------------------------------------------------- 7: spaces
@pytest.mark.parametrize("which", ["batch", "single"])
def test_spaces_agree_with_what_is_returned(request: pytest.FixtureRequest, task_id: str, which: str) -> None:
    env: Env = request.getfixturevalue(which)
    task = base(env)
    n = task.num_envs
    obs, info = env.reset(seed=61)
    assert env.observation_space.shape == (n, *task.single_observation_space.shape)
    assert env.action_space.dtype == np.float32
    assert task.single_action_space.shape == (8,)
    for _ in range(3):
        assert obs.dtype == torch.float32
        assert env.observation_space.dtype == np.float32
        assert obs.shape == env.observation_space.shape
        assert bool(torch.isfinite(obs).all())
        assert env.observation_space.contains(obs.numpy())
        assert task.single_observation_space.contains(obs[0].numpy())
        action = env.action_space.sample()
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, info = env.step(action)
        assert reward.shape == terminated.shape == truncated.shape == (n,)
        assert terminated.dtype == truncated.dtype == torch.bool
        row = row_of(env)
        assert info["oracle_info"].shape == (n, *row.oracle_shape)
        assert ("prompt" in info) == (row.prompt is not None)
        assert info["success"].dtype == info["fail"].dtype == torch.bool
        assert info["phase"].dtype == torch.int64
        for name, value in flatten(info).items():
            assert len(value) == n, name


@pytest.mark.parametrize("task_id", ["RotateLenientPos-v0", "RememberColor3-v0"])
def test_maniskill_s_own_modes_hold_no_oracle(task_id: str) -> None:
    """What is beside the pictures is the pose of the hand and the prompt. Our own modes: test_observations.py."""
    env = make(task_id, 2, obs_mode="none")
    env.reset(seed=0)
    task = base(env)
    extra = task._get_obs_extra(task.get_info())
    assert set(extra) == {"tcp_pose"} | ({"prompt"} if row_of(env).prompt else set())
    assert torch.equal(extra["tcp_pose"], task.agent.tcp.pose.raw_pose)
    env.close()


# ---------------------------------------------------------------------- 8: whole episodes
def test_catalog_and_task_agree(task_id: str, batch: Env) -> None:
    env, row = base(batch), CATALOG[task_id]
    assert env.horizon == row.horizon
    if row.response:
        assert (env.timeline.cue, env.timeline.delay, env.timeline.response) == (row.cue, row.delay, row.response)
    _, info = batch.reset(seed=71)
    assert info["oracle_info"].shape == (N, *row.oracle_shape)
    assert env.instruction == row.instruction
    assert env.control_mode == "pd_joint_delta_pos"
    assert env.reward_mode == "normalized_dense"
    assert env.obs_mode == "state"
    assert env.control_freq == 20
    assert env.sim_freq == 100
    assert env.on_mistake == "fail"


def test_whole_episodes_run_through_all_phases_to_the_end(batch: Env) -> None:
    env, row = base(batch), row_of(batch)
    stagger(batch, seed=72)
    phases: list[list[int]] = [[] for _ in range(N)]
    truncated_at: list[int | None] = [None] * N
    cue = env.evaluate()["oracle_info"].clone()
    static_cue = not cue.dtype.is_floating_point  # angles still to turn change as the peg turns
    for action in random_actions(batch, row.horizon, seed=73):
        record = step(batch, action)
        t = env.elapsed_steps.tolist()
        assert not bool((record["info/success"] & record["info/fail"]).any())
        if static_cue:
            assert torch.equal(record["info/oracle_info"], cue), "the cue changed within an episode"
        for i in range(N):
            phases[i].append(int(record["info/phase"][i]))
            assert bool(record["truncated"][i]) == (t[i] >= row.horizon)
            if record["truncated"][i] and truncated_at[i] is None:
                truncated_at[i] = t[i]
    assert truncated_at == [row.horizon] * N
    assert all(later >= earlier for p in phases for earlier, later in itertools.pairwise(p))
    if row.response:
        assert set(phases[3]) == stepped_phases(row)


# ---------------------------------------------------------------------- 9: saving and restoring
CALM = 0.4
"""An arm that presses on something does not go on to the bit: what PhysX remembers of a contact is in no state."""


def clone_state(env: Env) -> dict[str, Any]:
    """`get_state_dict`, copied."""
    return {kind: {n: v.clone() for n, v in group.items()} for kind, group in base(env).get_state_dict().items()}


def check_restored(env: Env, restore: Callable[[], None], saved: Record, actions: Tensor, went: list[Record]) -> None:
    """After ``restore`` the state is ``saved`` and ``actions`` lead to what they led to before."""
    n = base(env).num_envs
    restore()
    compare_closely(saved, simulation(env), n, "the restored state")
    assert base(env).elapsed_steps.to(torch.float32).tolist() == saved["task/elapsed_steps"][:, 0].tolist()
    for t, (a, b) in enumerate(zip(went, rollout(env, actions), strict=True)):
        compare_closely(a, b, n, f"step {t + 1} after restoring")


def compare_closely(one: Record, other: Record, n: int, where: str) -> None:
    """Physics within 0.1 mm, all else to the last bit.

    PhysX gives a set root pose back with an error of 1e-8 m and remembers contacts that are no part of any state.
    """
    assert one.keys() == other.keys()
    for name, value in one.items():
        if value.dtype.is_floating_point and not name.startswith("task/"):
            assert torch.allclose(value, other[name], rtol=0, atol=1e-4), (where, name, difference(value, other[name]))
        else:
            compare({name: value}, {name: other[name]}, range(n), range(n), where)


def test_a_saved_state_can_be_set_as_it_is(batch: Env, single: Env) -> None:
    for env in (batch, single):
        env.reset(seed=80)
        saved = simulation(env)
        base(env).set_state_dict(base(env).get_state_dict())
        task = {name: value for name, value in simulation(env).items() if name.startswith("task/")}
        assert len(task) > 1
        n = base(env).num_envs
        compare(task, {name: saved[name] for name in task}, range(n), range(n), "set as it was")


def set_anew(env: Env) -> None:
    """Sets the present state once more after a reset: contacts that PhysX remembers are no part of a state."""
    present = clone_state(env)
    env.reset(seed=0)
    base(env).set_state_dict(present)


def test_a_restored_state_goes_on_identically(batch: Env) -> None:
    """Saved with environments in the first frame, the cue, the delay and the response at once."""
    env = base(batch)
    stagger(batch, seed=81, scale=CALM)
    set_anew(batch)
    nested, flat, saved = clone_state(batch), env.get_state().clone(), simulation(batch)
    assert flat.shape[0] == N
    actions = random_actions(batch, 15, seed=82) * CALM
    went = rollout(batch, actions)
    for reset_between in (False, True):
        for restore in (lambda: env.set_state_dict(nested), lambda: env.set_state(flat)):
            if reset_between:
                batch.reset(seed=1)
            check_restored(batch, restore, saved, actions, went)


def test_a_state_goes_into_a_new_environment(task_id: str, batch: Env) -> None:
    skip_unless_few(task_id)
    stagger(batch, seed=83, scale=CALM)
    set_anew(batch)
    nested, saved = clone_state(batch), simulation(batch)
    actions = random_actions(batch, 15, seed=84) * CALM
    went = rollout(batch, actions)
    new = make(task_id, N)
    new.reset(seed=0)
    check_restored(new, lambda: base(new).set_state_dict(nested), saved, actions, went)
    new.close()


def test_a_single_environment_is_restored_too(task_id: str, single: Env) -> None:
    skip_unless_few(task_id)
    env, row = base(single), row_of(single)
    moments = (2, row.cue + row.delay // 2, row.cue + row.delay + 3) if row.response else (2, 20)
    for t in moments:
        single.reset(seed=85)
        rollout(single, random_actions(single, t, seed=86) * CALM)
        set_anew(single)
        nested, flat, saved = clone_state(single), env.get_state().clone(), simulation(single)
        actions = random_actions(single, 15, seed=87) * CALM
        went = rollout(single, actions)
        single.reset(seed=0)
        for given in (nested, flat):
            restore = env.set_state_dict if given is nested else env.set_state
            check_restored(single, functools.partial(restore, given), saved, actions, went)


def test_some_environments_are_restored_and_others_left_alone(batch: Env) -> None:
    env = base(batch)
    stagger(batch, seed=88, scale=CALM)
    nested, saved = clone_state(batch), simulation(batch)
    some, others = [2, 5], [0, 1, 3, 4, 6, 7]
    rows = {k: {n: v[some].clone() for n, v in group.items()} for k, group in nested.items()}
    rollout(batch, random_actions(batch, 6, seed=89))
    now = simulation(batch)
    env.set_state_dict(rows, torch.tensor(some))
    for name, value in simulation(batch).items():
        assert torch.allclose(value[some], saved[name][some], rtol=0, atol=1e-6), name
    compare(simulation(batch), now, others, others, "other rows")


# ---------------------------------------------------------------------- 10: conformance
def test_env_i_of_a_batch_equals_a_single_environment_for_a_whole_episode(task_id: str) -> None:
    """To the last bit, with new environments: PhysX remembers contacts of earlier episodes."""
    compared = (0, 3, 7) if task_id == FEW[0] else (3,)
    batch = make(task_id, N)
    batch.reset(seed=SEEDS)
    actions = random_actions(batch, row_of(batch).horizon, seed=91)
    together = rollout(batch, actions)
    batch.close()
    for i in compared:
        single = make(task_id, 1)
        single.reset(seed=SEEDS[i])
        alone = rollout(single, actions[:, i : i + 1])
        single.close()
        compare_runs(alone, together, [0], [i])
        moved = alone[-1]["obs"] - alone[0]["obs"]
        assert float(moved.abs().max()) > 0.3, "the arm went nowhere"


# ---------------------------------------------------------------------- 11: cues
def categories(row: TaskSpec, oracle: Tensor) -> Tensor | None:
    """How often each cue was drawn; None where cues are no categories."""
    if oracle.dtype.is_floating_point:
        return None
    if row.family == "RememberShapeAndColor":
        shapes, colors = int(row.kwargs["shapes"]), int(row.kwargs["colors"])
        return torch.bincount(oracle[:, 0] * colors + oracle[:, 1], minlength=shapes * colors)
    sizes = {"ShellGame": 3, "BunchOfColors": 9, "SeqOfColors": 9, "ChainOfColors": 9}
    size = sizes.get(row.family, row.kwargs.get("n"))
    if size is None:
        return None
    return torch.bincount(oracle.flatten(), minlength=size)


def test_cues_are_uniform(big: Env) -> None:
    row = row_of(big)
    task = base(big)
    everybody = torch.arange(64)
    drawn = []
    for k in range(48):
        # both kinds of seeds; seeding and drawing as a reset does it, without the simulation
        seed: int | list[int] = k if k % 2 else list(range(10_000 + 64 * k, 10_064 + 64 * k))
        task._generators.seed(everybody, [key[:2] for key in episode_keys(seed, everybody.tolist())])
        u = task._draw(everybody, ARM_JOINTS + task.draws)
        u.take(ARM_JOINTS)
        drawn.append(task.oracle(task.sample(u)))
        assert u.unused == 0, "`draws` is more than is drawn"
        if k < 2:
            assert torch.equal(big.reset(seed=seed)[1]["oracle_info"], drawn[-1])
    oracle = torch.cat(drawn)
    assert len(oracle) >= 3000
    counts = categories(row, oracle)
    if counts is None:
        assert max(len(torch.unique(column)) for column in oracle.T) > 2900
        return
    sizes = {"RememberShapeAndColor": lambda: row.kwargs["shapes"] * row.kwargs["colors"]}
    expected = sizes.get(row.family, lambda: len(counts))()
    assert len(counts) == expected, "a cue outside its range was drawn"
    assert chi_square_p(counts) > 1e-4, counts


# ---------------------------------------------------------------------- 12: around the tasks
def test_maniskill_s_vector_env_resets_by_itself() -> None:
    env = make(MECHANICS[0], N)
    vector = ManiSkillVectorEnv(env, auto_reset=True, record_metrics=True)
    horizon = base(env).horizon
    vector.reset(seed=101)
    vector.reset(options={"env_idx": torch.tensor([0, 1])})
    for action in random_actions(env, 20, seed=1) * 0.1:
        vector.step(action)
    vector.reset(options={"env_idx": torch.tensor([0, 1])})
    finished: dict[int, int] = {}
    for t, action in enumerate(random_actions(env, horizon, seed=102) * 0.1):
        before = base(env).elapsed_steps.clone()
        obs, _, terminated, truncated, info = vector.step(action)
        done = terminated | truncated
        assert torch.equal(truncated, before + 1 >= horizon)
        for i in torch.nonzero(done).flatten().tolist():
            finished.setdefault(i, t)
            assert int(base(env).elapsed_steps[i]) == 0
            assert int(info["final_info"]["elapsed_steps"][i]) == int(before[i]) + 1
            assert not torch.equal(info["final_observation"][i], obs[i])
        assert torch.equal(base(env).elapsed_steps[~done], before[~done] + 1)
    assert len(finished) == N
    assert len(set(finished.values())) > 1, "all ended at once: environments were to be at different t"
    vector.close()


def test_a_given_limit_truncates_each_environment_after_its_own_steps() -> None:
    env = make(MECHANICS[0], N, max_episode_steps=7)
    env.reset(seed=0)
    rollout(env, random_actions(env, 3, seed=0))
    env.reset(options={"env_idx": [0, 5]})
    for k in range(1, 8):
        truncated = step(env, still_action(env))["truncated"]
        assert truncated.dtype == torch.bool
        assert truncated.tolist() == [k + (0 if i in (0, 5) else 3) >= 7 for i in range(N)]
    env.close()


@pytest.mark.parametrize(
    ("seed", "env_idx", "error", "named"),
    [
        (-1, None, ValueError, r"-1.*negative"),
        ([1, 2, 3, 4, 5, 6, 7, -8], None, ValueError, r"-8.*negative"),
        ([1, 2, 3], None, ValueError, "3 seeds for 8"),
        ([1, 2, 3], [0, 1], ValueError, "3 seeds for 2"),
        (None, [8], IndexError, r"env_idx=\[8\].*0…7"),
        (None, [-1], IndexError, r"env_idx=\[-1\].*0…7"),
        (1, torch.tensor([0, 100]), IndexError, "100"),
    ],
)
def test_wrong_resets_are_refused_and_change_nothing(
    batch: Env, seed: int | Sequence[int] | None, env_idx: Any, error: type[Exception], named: str
) -> None:
    batch.reset(seed=1)
    before = everything(batch)
    with pytest.raises(error, match=named):
        batch.reset(seed=seed, options=None if env_idx is None else {"env_idx": env_idx})
    assert_unchanged(before, everything(batch), "a refused reset")


BAD_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("RememberColor3-v0", {"n": 1}, "n=1 must be a whole number from 2 to 9"),
    ("RememberColor3-v0", {"n": 10}, "n=10 must"),
    ("RememberColor3-v0", {"n": "3"}, "n='3'"),
    ("RememberColor3-v0", {"n": 3.0}, r"n=3\.0"),
    ("RememberColor3-v0", {"n": True}, "n=True"),
    ("RememberColor3-v0", {"cue_steps": 0}, "cue.*=0"),
    ("RememberColor3-v0", {"delay_steps": -1}, "delay.*=-1"),
    ("RememberColor3-v0", {"response_steps": 2.5}, r"response.*=2\.5"),
    ("RememberColor3-v0", {"response_steps": 0, "delay_steps": 0}, "response_steps=0: acting counts"),
    ("ShellGameTouch-v0", {"response_steps": 0}, "response_steps=0: .* at least 45 steps"),
    ("RotateStrictPos-v0", {"response_steps": 0}, "response_steps=0: "),
    ("TakeItBack-v0", {"response_steps": 0}, "response_steps=0: "),
    ("RememberColor3-v0", {"on_mistake": "x"}, "on_mistake='x'"),
    ("RememberColor3-v0", {"robot_init_qpos_noise": -0.1}, r"robot_init_qpos_noise=-0\.1"),
    ("RememberColor3-v0", {"robot_init_qpos_noise": float("nan")}, "robot_init_qpos_noise=nan"),
    ("RememberShapeAndColor3x2-v0", {"shapes": 6}, "shapes=6 must be a whole number from 2 to 5"),
    ("RememberShapeAndColor3x2-v0", {"colors": 1}, "colors=1 must be a whole number from 2 to 3"),
    ("ChainOfColors3-v0", {"n": 10}, "n=10 must be a whole number from 2 to 9"),
    ("ChainOfColors3-v0", {"cue_steps": 2.5}, r"cue_steps=2\.5"),
    ("BunchOfColors3-v0", {"response_steps": None}, "response.*=None"),
    ("ShellGameTouch-v0", {"mode": "grab"}, "mode='grab'.*'touch', 'push' or 'pick'"),
    ("ShellGameTouch-v0", {"mode": None}, "mode=None"),
    ("ShellGameTouch-v0", {"cue_steps": 0}, "cue.*=0"),
    ("ShellGameTouch-v0", {"on_mistake": None}, "on_mistake=None"),
    ("ShellGameTouch-v0", {"num_envs": 0}, "num_envs=0"),
    ("ShellGameTouch-v0", {"num_envs": 2.5}, r"num_envs=2\.5"),
    ("ShellGameTouch-v0", {"sim_threads": 0}, "sim_threads=0"),
    ("ShellGameTouch-v0", {"sim_backend": "tpu"}, "sim_backend='tpu'"),
]


@pytest.mark.parametrize(
    ("env_id", "arguments", "named"),
    [
        ("InterceptFast-v0", {"speed_range": (2, 2)}, r"speed_range=\(2, 2\) is hard"),
        ("RotateLenientPos-v0", {"angle_range": (3, 3.14)}, r"angle_range=\(3, 3\.14\) is hard"),
        ("RememberColor3-v0", {"response_steps": 10}, "response_steps=10 is hard: .* about 25"),
        ("RotateStrictPos-v0", {"response_steps": 10}, "response_steps=10 is hard"),
    ],
)
def test_what_no_expert_copes_with_is_warned_about(env_id: str, arguments: dict[str, Any], named: str) -> None:
    with pytest.warns(UserWarning, match=named):
        gym.make(env_id, num_envs=2, **arguments).close()


@pytest.mark.parametrize(("env_id", "arguments", "named"), BAD_ARGUMENTS, ids=lambda value: str(value)[:40])
def test_bad_arguments_are_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, env_id: str, arguments: dict[str, Any], named: str
) -> None:
    def built(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("building began")

    monkeypatch.setattr(BaseEnv, "__init__", built)
    with pytest.raises(AssertionError, match="building began"):
        gym.make(env_id, num_envs=2)
    with pytest.raises(ValueError, match=named):
        gym.make(env_id, **{"num_envs": 2} | arguments)


def test_tasks_put_the_batched_simulation_before_maniskill_s(task_id: str, batch: Env) -> None:
    kinds = type(base(batch)).__mro__
    assert kinds.index(BatchedSimMixin) < kinds.index(BaseEnv)
    names = set(vars(base(batch).task_state))
    assert names == set(state.to_flat(base(batch).task_state))


# ---------------------------------------------------------------------- 13: every ID, without any download
SMOKE = """
import builtins, socket, sys, urllib.request
def refuse(*args, **kwargs):
    raise AssertionError(f"something reached for the network or asked a question: {args!r}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
urllib.request.urlopen = urllib.request.urlretrieve = builtins.input = refuse
import gc, gymnasium, mani_skill.envs, mikasa_robo, torch
gc.freeze()  # else each environment's collection of garbage looks through all that was imported
for row in list(mikasa_robo.CATALOG.values()):
    for num_envs in (1, 2) if row.gallery else (2,):
        env = gymnasium.make(row.id, num_envs=num_envs, sim_debug=True, obs_mode="state+objects")
        task = env.unwrapped
        assert task.horizon == row.horizon, row.id
        if row.response:
            lengths = task.timeline.cue, task.timeline.delay, task.timeline.response
            assert lengths == (row.cue, row.delay, row.response), (row.id, lengths)
        obs, info = env.reset(seed=0)
        for _ in range(3):
            assert info["oracle_info"].shape == (num_envs, *row.oracle_shape), row.id
            assert info["success"].shape == info["fail"].shape == (num_envs,)
            assert not info["success"].any()
            assert ("prompt" in info) == (row.prompt is not None), row.id
            assert all(env.observation_space[name].contains(value.numpy()) for name, value in obs.items()), row.id
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            assert ((reward >= 0) & (reward <= 1)).all(), row.id
        env.close()
    print("made", row.id)
"""


def test_every_id_can_be_made_without_network_or_downloaded_assets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own whose home and asset folders are empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path / "assets"))
    monkeypatch.delenv("MS_SKIP_ASSET_DOWNLOAD_PROMPT", raising=False)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SMOKE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[1::2] == list(mikasa_robo.TASKS)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".zip", ".glb", ".urdf", ".obj", ".stl")]
