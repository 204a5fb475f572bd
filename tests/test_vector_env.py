"""``gymnasium.make_vec``: one native batch, held to the same environments one by one."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from gymnasium import wrappers as single
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.sim import render
from mikasa_robo.utils.wrappers import StateOnlyTensorToDictWrapper, UnbatchWrapper
from mikasa_robo.vector import TaskVectorEnv, make_single_env

ID = "RememberColor3-v0"
N = 3
SEEDS = [3, 4, 5]
# the batched simulator in all of them, so that results are equal to the bit
SHORT: dict[str, Any] = {
    "cue_steps": 1,
    "delay_steps": 1,
    "response_steps": 2,
    "sim_backend": "physx_cpu_batched",
    "render_backend": "none",
}


def assert_equal(a: Any, b: Any, path: str = "") -> None:
    """Nested results are the same: names, shapes and numbers."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (path, a.keys() ^ b.keys())
        for name in a:
            assert_equal(a[name], b[name], f"{path}/{name}")
    elif isinstance(a, np.ndarray) and a.dtype.kind == "O":
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None), path
            assert_equal(x, y, path)
    else:
        np.testing.assert_array_equal(a, b, path)


def actions_of(steps: int, scale: float = 1.0) -> list[np.ndarray]:
    return list(np.random.default_rng(0).uniform(-scale, scale, (steps, N, 8)).astype(np.float32))


@pytest.fixture(scope="module")
def one_by_one() -> Iterator[SyncVectorEnv[Any, Any]]:
    """An environment for each seed; each test sets their autoreset mode."""
    envs = gym.make_vec(ID, N, "sync", **SHORT)
    assert isinstance(envs, SyncVectorEnv)
    yield envs
    envs.close()


@pytest.fixture(scope="module")
def task() -> Iterator[gym.Env[Any, Any]]:
    env = gym.make(ID, num_envs=N, **SHORT)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        TaskVectorEnv(env).step(actions_of(1)[0])
    yield env
    env.close()


@pytest.fixture(params=AutoresetMode)
def both(request: Any, task: Any, one_by_one: Any) -> tuple[TaskVectorEnv, SyncVectorEnv[Any, Any]]:
    """The native batch and the environments one by one, in each autoreset mode."""
    one_by_one.autoreset_mode = one_by_one.metadata["autoreset_mode"] = request.param
    return TaskVectorEnv(task, autoreset_mode=request.param), one_by_one


def play(envs: Any, steps: int, scale: float = 1.0, mode: AutoresetMode | None = None) -> list[Any]:
    """What the first reset and ``steps`` steps return; with autoreset disabled, what is over is reset by its mask."""
    results: list[Any] = [envs.reset(seed=SEEDS)]
    for actions in actions_of(steps, scale):
        results.append(envs.step(actions))
        over = results[-1][2] | results[-1][3]
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            # env 2 waits for the others, as a partial reset has to leave it as it was
            for mask in (over & [True, True, False], over & [False, False, True]):
                results += [envs.reset(options={"reset_mask": mask.copy()})] if mask.any() else []
    return results


# ---------------------------------------------------------------------- the same as one by one
def test_results_equal_those_of_environments_one_by_one(both: tuple[Any, Any]) -> None:
    """Observations, rewards, flags and infos of every step, through the ends of episodes, to the bit."""
    native, side_by_side = (play(envs, 12) for envs in both)
    for t, (got, expected) in enumerate(zip(native, side_by_side, strict=True)):
        for part, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert_equal(a, b, f"result {t} part {part} ")
    assert sum(int((r[2] | r[3]).sum()) for r in native if len(r) == 5) >= 2 * N, "episodes ended"
    obs, reward, terminated, truncated, _ = native[-1] if len(native[-1]) == 5 else native[-3]
    assert obs in both[0].observation_space
    assert obs[0] in both[0].single_observation_space
    assert reward.dtype == np.float32
    assert terminated.dtype == truncated.dtype == np.bool_


def test_results_are_not_written_to_later(task: Any) -> None:
    envs = TaskVectorEnv(task)
    kept = play(envs, 3)
    before = copy.deepcopy(kept)
    for actions in actions_of(6):
        envs.step(actions)
    assert_equal(
        {str(i): dict(enumerate(r)) for i, r in enumerate(kept)},
        {str(i): dict(enumerate(r)) for i, r in enumerate(before)},
    )


def test_tensors_stay_tensors(task: Any) -> None:
    """The numbers of ``to="numpy"``; final observations as one batch."""
    arrays, tensors = (TaskVectorEnv(task, autoreset_mode="SameStep", to=to) for to in ("numpy", "torch"))
    assert tensors.device == task.unwrapped.device
    as_arrays, as_tensors = play(arrays, 5), play(Arrays(tensors), 5)
    for got, expected in zip(as_tensors, as_arrays, strict=True):
        for a, b in zip(got, expected, strict=True):
            if isinstance(a, dict) and "final_obs" in a:
                final, ends = b.pop("final_obs"), b["_final_obs"]
                assert ends.any()
                assert_equal(np.stack(final[ends]), a.pop("final_obs")[ends])
            assert_equal(a, b)


class Arrays(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Results as arrays, actions as tensors with a gradient."""

    def __init__(self, env: TaskVectorEnv, device: str = "cpu") -> None:
        super().__init__(env)
        self.device = device

    def reset(self, **kwargs: Any) -> Any:
        return tuple(map(self.arrays_of, self.env.reset(**kwargs)))

    def step(self, actions: Any) -> Any:
        results = self.env.step(torch.tensor(actions, requires_grad=True, device=self.device))
        assert not any(value.requires_grad for value in results[:4])
        return tuple(map(self.arrays_of, results))

    def arrays_of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.arrays_of(child) for name, child in value.items()}
        assert isinstance(value, torch.Tensor)
        assert value.device.type == self.device
        return value.cpu().numpy()


def test_dict_observations(task: Any) -> None:
    envs = TaskVectorEnv(StateOnlyTensorToDictWrapper(task), autoreset_mode="SameStep")
    *_, last = play(envs, 4)
    final = last[4]["final_obs"][0]
    assert set(final) == set(last[0]) == {"state"}
    assert final in envs.single_observation_space
    assert last[0] in envs.observation_space
    task.unwrapped.set_obs_mode("state")


def test_an_entry_of_an_info_that_is_no_number(task: Any) -> None:
    """Each environment that has it gets it, as an object."""

    class Named(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            obs, info = self.env.reset(**kwargs)
            return obs, info | {"name": "new", "weight": 0.5}

    *_, last = play(TaskVectorEnv(Named(task), autoreset_mode="SameStep"), 4)
    over = last[2] | last[3]
    assert over.any()
    assert last[4]["name"].tolist() == ["new" if ended else None for ended in over]
    assert last[4]["weight"].tolist() == [0.5 if ended else 0.0 for ended in over]
    assert last[4]["_name"].tolist() == last[4]["_weight"].tolist() == over.tolist()


@pytest.mark.gpu
@pytest.mark.gpu_physics
def test_a_batch_on_a_gpu() -> None:
    options = {name: value for name, value in SHORT.items() if name != "sim_backend"}
    env = gym.make(ID, num_envs=N, sim_backend="physx_cuda", **options)
    tensors = play(Arrays(TaskVectorEnv(env, to="torch"), "cuda"), 6)
    arrays = play(TaskVectorEnv(env), 6)
    for got, expected in zip(tensors, arrays, strict=True):
        assert got[0].shape == expected[0].shape
        assert_equal(got[1], expected[1]) if len(got) == 2 else np.testing.assert_allclose(
            got[1], expected[1], atol=1e-3
        )
    env.close()


# ---------------------------------------------------------------------- seeds and options
def test_an_int_seeds_the_episodes_of_the_batch(task: Any) -> None:
    envs = TaskVectorEnv(task, autoreset_mode="Disabled")
    obs, _ = envs.reset(seed=7)
    assert np.array_equal(obs, task.reset(seed=7)[0])
    assert np.array_equal(obs, envs.reset(seed=[(7, i) for i in range(N)])[0]), "episode i of the seed"
    options = {"reset_mask": np.array([False, True, False])}
    again, infos = envs.reset(seed=8, options=options)
    assert list(options) == ["reset_mask"], "Gymnasium's wrappers read it afterwards"
    assert np.array_equal(again[[0, 2]], obs[[0, 2]])
    assert infos["_success"].tolist() == [False, True, False]
    assert np.array_equal(again[1], envs.reset(seed=8)[0][1])
    listed, _ = envs.reset(seed=[1, 2, 3], options={"env_idx": [2]})
    assert np.array_equal(listed[2], envs.reset(seed=[9, 9, 3])[0][2]), "a seed for each env, reset or not"


def test_seeds_may_be_a_tensor_also_for_some_environments(task: Any) -> None:
    envs = TaskVectorEnv(task, autoreset_mode="Disabled")
    wanted, _ = envs.reset(seed=[1, 2, 3])
    seeds: Any = torch.tensor([1, 2, 3])
    assert np.array_equal(envs.reset(seed=seeds)[0], wanted)
    envs.reset(seed=9)
    found, _ = envs.reset(seed=seeds, options={"reset_mask": np.array([True, False, True])})
    assert np.array_equal(found[[0, 2]], wanted[[0, 2]])


def test_the_first_reset_without_a_seed_draws_one(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise copies, and runs, would play the episodes of ManiSkill's own first seed."""
    drawn: list[int] = []

    def fresh() -> int:
        drawn.append(70 + len(drawn))
        return drawn[-1]

    monkeypatch.setattr("mikasa_robo.vector.fresh_seed", fresh)
    envs = TaskVectorEnv(task)
    first, _ = envs.reset()
    second, _ = envs.reset()
    assert drawn == [70], "then each environment goes on"
    assert np.array_equal(first, envs.reset(seed=70)[0])
    assert np.array_equal(second, envs.reset()[0])
    told = TaskVectorEnv(task)
    told.reset(seed=3)
    told.reset()
    assert drawn == [70]

    single_env = gym.make(ID, obs_mode="oracle", **SHORT)
    monkeypatch.setattr("mikasa_robo.utils.wrappers.unbatch.fresh_seed", fresh)
    one, other = UnbatchWrapper(single_env), UnbatchWrapper(single_env)
    for env, seed in ((one, 71), (other, 72)):
        start = env.reset()[0]["oracle"]
        assert drawn[-1] == seed
        assert np.array_equal(start, env.reset(seed=seed)[0]["oracle"])
    single_env.close()


def test_every_environment_begins_with_a_seed_drawn_at_random(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first reset fails, or names only some of them; those that were told a seed go on from it."""
    drawn = iter(range(70, 90))
    monkeypatch.setattr("mikasa_robo.vector.fresh_seed", lambda: next(drawn))
    envs = TaskVectorEnv(task)
    with pytest.raises(ValueError, match="typo"):
        envs.reset(options={"typo": 1})
    first, _ = envs.reset()
    assert np.array_equal(first, envs.reset(seed=71)[0])

    envs = TaskVectorEnv(task, autoreset_mode="Disabled")
    envs.reset(seed=[5, 6, 7], options={"reset_mask": np.array([True, False, False])})
    found, infos = envs.reset()
    assert infos["_success"].all()
    envs.reset(seed=[5, 6, 7])
    assert np.array_equal(found[0], envs.reset()[0][0]), "it goes on from the seed that it was told"
    envs.reset(seed=72)
    assert np.array_equal(found[1:], envs.reset()[0][1:]), "the others begin with one that was drawn"

    monkeypatch.setattr("mikasa_robo.utils.wrappers.unbatch.fresh_seed", lambda: next(drawn))
    single_env = gym.make(ID, obs_mode="oracle", **SHORT)
    one = UnbatchWrapper(single_env)
    with pytest.raises(ValueError, match="typo"):
        one.reset(options={"typo": 1})
    start = one.reset()[0]["oracle"]
    assert next(drawn) == 75, "the second draw was used"
    assert np.array_equal(start, one.reset(seed=74)[0]["oracle"])
    single_env.close()


def test_seeds_of_some_environments_may_be_numbers_and_pairs(task: Any) -> None:
    envs = TaskVectorEnv(task, autoreset_mode="Disabled")
    seeds: Any = [7, (7, 1), 8]
    wanted, _ = envs.reset(seed=seeds)
    envs.reset(seed=9)
    found, _ = envs.reset(seed=seeds, options={"reset_mask": np.array([True, True, False])})
    assert np.array_equal(found[:2], wanted[:2])


@pytest.mark.parametrize("index", [(0, 2), np.array([0, 2], np.uint8), torch.tensor([2, 0], dtype=torch.uint8)])
def test_a_state_is_restored_in_environments_however_they_are_named(task: Any, index: Any) -> None:
    task.reset(seed=1)
    saved = task.unwrapped.get_state()
    wanted = saved[[0, 2] if index[0] == 0 else [2, 0]].clone()
    for _ in range(2):
        task.step(torch.zeros(N, 8))
    task.unwrapped.set_state(wanted, index)
    assert task.unwrapped.elapsed_steps.tolist() == [0, 2, 0]


def test_saved_states_go_to_the_environments_in_the_order_in_which_they_are_named(task: Any) -> None:
    envs = TaskVectorEnv(task, autoreset_mode="Disabled")
    task.reset(seed=1)
    saved = task.unwrapped.get_state()
    wanted = task.unwrapped.get_state_dict()["actors"]
    envs.reset(seed=2)
    envs.reset(options={"env_idx": [2, 0], "reset_to_env_states": {"env_states": saved[:2]}})
    for name, poses in task.unwrapped.get_state_dict()["actors"].items():
        assert torch.allclose(poses[[2, 0]], wanted[name][:2], atol=1e-6), name
    envs.reset(seed=[4, 5, 6], options={"env_idx": [2, 0]})
    named = task.unwrapped.get_state()
    envs.reset(seed=[4, 5, 6])
    assert torch.allclose(named[[0, 2]], task.unwrapped.get_state()[[0, 2]], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.reset(seed=[1, 2], options={"env_idx": [0]}), ValueError, "2 seeds for 3 environments"),
        (lambda e: e.reset(seed=[1.5] * 3), TypeError, r"holds 1\.5"),
        (lambda e: e.reset(seed=1.5), TypeError, r"seed=1\.5 is a float: give an int"),
        (lambda e: e.reset(options={"reset_mask": np.array([1, 0, 0])}), ValueError, r"give \(3,\) bool"),
        (lambda e: e.reset(options={"reset_mask": np.array([True])}), ValueError, r"shape \(1,\): give \(3,\)"),
        (lambda e: e.reset(options={"reset_mask": np.zeros(3, bool)}), ValueError, "names no environment"),
        (lambda e: e.reset(options={"env_idx": [1.5]}), TypeError, r"env_idx=\[1\.5\].*whole numbers"),
        (lambda e: e.reset(options={"env_idx": [0], "reset_mask": np.ones(3, bool)}), ValueError, "one of them"),
        (lambda e: e.reset(options={"env_ids": [0]}), ValueError, r"options\['env_ids'\].*did you mean 'env_idx'"),
        (lambda e: e.env.reset(options={"env_ids": [0]}), ValueError, r"options\['env_ids'\].*did you mean 'env_idx'"),
        (lambda e: e.env.reset(options={"env_idx": "all"}), TypeError, "env_idx='all'"),
        (
            lambda e: e.env.reset(options={"reset_mask": [True] * 3}),
            ValueError,
            r"'reset_mask'.*'env_idx' takes a mask",
        ),
        (lambda e: e.env.reset(seed=5, options=[0]), TypeError, r"options=\[0\] is a list: give a dict"),
        (lambda e: e.step([0.0] * 8), ValueError, r"shape \(8,\): give \(3, 8\).*repeat it for each"),
        (lambda e: e.step(np.zeros((2, 8))), ValueError, r"shape \(2, 8\): give \(3, 8\)"),
        (lambda e: e.step([["up"] * 8] * 3), TypeError, "a list that does not hold numbers"),
        (lambda e: e.step(np.full((3, 8), None)), TypeError, "a ndarray that does not hold numbers"),
    ],
)
def test_bad_input_changes_nothing(task: Any, call: Any, error: type[Exception], message: str) -> None:
    envs = TaskVectorEnv(task)
    obs, _ = envs.reset(seed=1)
    following = task.unwrapped._generators
    before = copy.deepcopy(vars(following))
    with pytest.raises(error, match=message):
        call(envs)
    assert np.array_equal(task.unwrapped.get_obs(), obs)
    after = vars(following)
    assert all(torch.equal(before[k], after[k]) for k in before if isinstance(before[k], torch.Tensor))
    assert task.unwrapped.elapsed_steps.tolist() == [0] * N


def test_an_action_with_a_gradient_is_played_without_it(task: Any) -> None:
    plain: list[torch.Tensor] = []
    learning: list[torch.Tensor] = []
    for results, grad in ((plain, False), (learning, True)):
        results.append(task.reset(seed=2)[0])
        for actions in actions_of(3):
            # nested lists, too
            given: Any = torch.tensor(actions, requires_grad=grad) if grad else actions.tolist()
            results.append(task.step(given)[0])
    for a, b in zip(plain, learning, strict=True):
        assert torch.equal(a, b)
        assert not b.requires_grad
    assert torch.isfinite(task.reset()[0]).all(), "it could never be reset or stepped again"


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("form", ["none", "dict"])
def test_a_step_without_an_action_starts_episodes_too(task: Any, mode: str, form: str) -> None:
    """Also where only some of them are over; and so does ManiSkill's dict of an action and its control mode."""
    envs = TaskVectorEnv(task, autoreset_mode=mode)
    actions = {"action": np.full((N, 8), 0.5, np.float32), "control_mode": "pd_joint_delta_pos"}
    envs.reset(seed=SEEDS)
    task.unwrapped._elapsed_steps[1] = 2  # ends first
    ended, elapsed = [], []
    for _ in range(6):
        _, reward, terminated, truncated, infos = envs.step(actions if form == "dict" else None)
        ended.append((terminated | truncated).tolist())
        elapsed.append(infos["elapsed_steps"].tolist())
        assert np.isfinite(reward).all()
    assert [False, True, False] in ended
    if mode == "NextStep":
        after = elapsed[ended.index([False, True, False]) + 1]
        assert after[1] == 0
        assert after[0] > 0
    np.testing.assert_array_equal(actions["action"], 0.5)


def test_disabled_autoreset_waits_for_the_caller(task: Any) -> None:
    envs = TaskVectorEnv(task, autoreset_mode=AutoresetMode.DISABLED)
    play(envs, 3)
    for actions in actions_of(1):
        _, _, terminated, truncated, _ = envs.step(actions)
    assert (terminated | truncated).any()
    with pytest.raises(ResetNeeded, match=r"envs \[.*reset_mask"):
        envs.step(actions)


# ---------------------------------------------------------------------- gymnasium.make_vec
def test_every_id_is_made_as_one_batch(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    """With its own arguments and any of `gymnasium.make`; without building all of them."""
    calls: dict[str, Any] = {}

    def make_env(env_id: str, num_envs: int, **kwargs: Any) -> Any:
        calls[env_id] = num_envs, kwargs
        return task

    monkeypatch.setattr(mikasa_robo, "make_env", make_env)
    for row in CATALOG.values():
        envs = gym.make_vec(
            row.id, N, arm="held", num_workers=2, max_episode_steps=5, autoreset_mode="SameStep", to="torch"
        )
        assert isinstance(envs, TaskVectorEnv)
        assert (envs.to, envs.metadata["autoreset_mode"]) == ("torch", AutoresetMode.SAME_STEP)
        assert calls[row.id] == (N, row.make_kwargs | {"arm": "held", "num_workers": 2, "max_episode_steps": 5})
        assert repr(envs) == f"TaskVectorEnv({row.id}, num_envs={N})"
        assert envs.spec is not None
        again = gym.make_vec(envs.spec)
        assert isinstance(again, TaskVectorEnv)
        assert (again.num_envs, again.to) == (N, "torch"), "its own spec makes it again"
        assert gym.spec(row.id).additional_wrappers, "gymnasium.make still adds the time limit"
    assert len(calls) >= 32


def test_a_task_of_ones_own_is_made_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(CATALOG[ID], id="MyColor-v0", kwargs={"n": 5})
    try:
        mikasa_robo.register_task(row)
        envs = gym.make_vec(f"mikasa_robo:{row.id}", 2, obs_mode="joints+oracle", **SHORT)
        assert isinstance(envs, TaskVectorEnv)
        obs, _ = envs.reset(seed=0)
        assert obs in envs.observation_space
        assert set(obs) == {"joints", "oracle"}
        assert envs.spec is not None
        json.loads(envs.spec.to_json())
        envs.close()
        with pytest.raises(RuntimeError, match="closed"):
            envs.reset()
    finally:
        monkeypatch.undo()
        gym.registry.pop(row.id)
        mikasa_robo.catalog._TABLE.pop(row.id)


def test_an_id_may_name_the_module() -> None:
    """In a process that has not imported it."""
    code = "import gymnasium as gym; gym.make_vec('mikasa_robo:RememberColor3-v0', vectorization_mode='none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Invalid vectorization mode" in done.stderr, "the ID was not found"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"autoreset_mode": "Never"}, "autoreset_mode='Never' is not known: use 'NextStep', 'SameStep' or 'Disabled'"),
        ({"to": "jax"}, "to='jax' is not known: use 'numpy' or 'torch'"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], message: str, task: Any) -> None:
    with pytest.raises(TypeError, match=r"a batched task, such as gymnasium\.make"):
        TaskVectorEnv(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match=message):
        TaskVectorEnv(task, **kwargs)


def test_environments_in_processes() -> None:
    """``async``: no batch axis, one seed each."""
    envs = gym.make_vec(ID, 1, "async", **SHORT)
    try:
        obs, infos = envs.reset(seed=[SEEDS[0]])  # type: ignore[arg-type]
        assert obs.shape == (1, 65)
        assert infos["success"].tolist() == [False]
        assert envs.step(actions_of(1)[0][:1])[1].shape == (1,)
    finally:
        envs.close()


def test_arguments_of_the_batch_are_refused_one_by_one() -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode: .*vector_kwargs=\{'autoreset_mode'"):
        gym.make_vec(ID, 1, "sync", autoreset_mode="SameStep")
    with pytest.raises(ValueError, match="num_envs"):
        make_single_env(env_id=ID, task=CATALOG[ID].entry_point, num_envs=2)


def test_a_fork_that_would_draw_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_drawing_process", None)
    render.refuse_fork("obs_mode='rgb'")
    render.refuse_fork("obs_mode='rgb'")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match=r"obs_mode='rgb' needs pictures.*'context': 'spawn'"):
        render.refuse_fork("obs_mode='rgb'")


# ---------------------------------------------------------------------- Gymnasium's wrappers
def test_episode_statistics(both: tuple[Any, Any]) -> None:
    """Return and length of every episode, and where they are in the infos."""
    native, side_by_side = (vector.RecordEpisodeStatistics(envs) for envs in both)
    got, expected = play(native, 9), play(side_by_side, 9)
    episodes = [r[4]["episode"] for r in got if len(r) == 5 and "episode" in r[4]]
    assert len(episodes) >= 2
    if native.metadata["autoreset_mode"] is not AutoresetMode.DISABLED:  # there SyncVectorEnv hides the mask from it
        others = [r[4]["episode"] for r in expected if len(r) == 5 and "episode" in r[4]]
        for a, b in zip(episodes, others, strict=True):
            assert_equal(a["l"], b["l"])
            np.testing.assert_allclose(a["r"], b["r"], rtol=1e-7)
    # the first episodes by hand
    rewards = np.stack([r[1] for r in got[1:] if len(r) == 5][:4]).astype(np.float64)
    np.testing.assert_allclose(episodes[0]["r"], rewards.sum(axis=0), rtol=1e-7)
    assert episodes[0]["l"].tolist() == [4] * N


@pytest.mark.parametrize("both", [AutoresetMode.NEXT_STEP], indirect=True)
@pytest.mark.parametrize(
    "wrap",
    [
        vector.NormalizeObservation,
        vector.NormalizeReward,
        vector.ClipAction,
        lambda e: vector.RescaleAction(e, np.full(8, -2.0, np.float32), np.full(8, 2.0, np.float32)),
        lambda e: vector.ClipAction(
            vector.NormalizeReward(vector.NormalizeObservation(vector.RecordEpisodeStatistics(e)))
        ),
    ],
)
def test_gymnasiums_vector_wrappers(both: tuple[Any, Any], wrap: Callable[[Any], Any]) -> None:
    """The same numbers as around environments one by one. Actions leave the box."""
    native, side_by_side = (play(wrap(envs), 9, scale=2.0) for envs in both)
    plain = play(both[0], 9, scale=2.0)
    differs = False
    for got, expected, raw in zip(native, side_by_side, plain, strict=True):
        for a, b, c in zip(got[:4], expected[:4], raw[:4], strict=True):
            if isinstance(a, np.ndarray):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
                differs |= not np.array_equal(a, c)
    assert differs or wrap is vector.ClipAction, "the wrapper did something"


@pytest.mark.parametrize("both", [AutoresetMode.SAME_STEP], indirect=True)
def test_normalised_rewards_of_same_step_autoreset(both: tuple[Any, Any]) -> None:
    native, side_by_side = (play(vector.NormalizeReward(envs), 9) for envs in both)
    for got, expected in zip(native[1:], side_by_side[1:], strict=True):
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-5)


def test_single_wrappers_go_around_an_unbatched_environment(one_by_one: Any) -> None:
    """An environment of the batch by itself: same numbers through Gymnasium's wrappers for single environments."""
    one_by_one.autoreset_mode = AutoresetMode.NEXT_STEP
    expected = play(one_by_one, 4)
    env = single.FlattenObservation(single.RecordEpisodeStatistics(one_by_one.envs[1]))
    obs, _ = env.reset(seed=SEEDS[1])
    assert_equal(obs, expected[0][0][1])
    for actions, result in zip(actions_of(4), expected[1:], strict=True):
        obs, reward, terminated, truncated, info = env.step(actions[1])
        assert obs in env.observation_space
        assert_equal(obs, result[0][1])
        assert (reward, terminated, truncated) == tuple(result[k][1] for k in (1, 2, 3))
        assert [type(value) for value in (reward, terminated, truncated, info["success"])] == [float, bool, bool, bool]
    assert info["episode"]["l"] == 4
    assert info["episode"]["r"] == pytest.approx(sum(result[1][1] for result in expected[1:]))


def test_what_is_unbatched_is_no_batch() -> None:
    env = UnbatchWrapper(gym.make(ID, **SHORT))
    with pytest.raises(
        TypeError, match="TaskVectorEnv takes a batched task, and UnbatchWrapper takes the batch axis off"
    ):
        TaskVectorEnv(env)
    env.close()


def test_a_deep_copy_of_a_spec_is_named_as_one() -> None:
    spec = copy.deepcopy(gym.spec(ID))
    with pytest.raises(
        ValueError, match=r"For gymnasium.make use gymnasium.spec\('RememberColor3-v0'\) itself, no deep copy"
    ):
        gym.make(spec, num_envs=2)


def test_a_batch_is_not_unbatched(task: Any) -> None:
    with pytest.raises(ValueError, match=r"num_envs=1, and this task has 3: use gymnasium\.make_vec"):
        UnbatchWrapper(task)


@pytest.fixture
def moviepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's `RecordVideo` writes with moviepy. Where it is not installed, imageio stands in for its one call."""
    if importlib.util.find_spec("moviepy") is not None:
        return

    class ImageSequenceClip:
        def __init__(self, frames: list[np.ndarray], fps: float) -> None:
            self.frames, self.fps = frames, fps

        def write_videofile(self, path: str, logger: Any) -> None:
            iio.imwrite(path, np.stack(self.frames), fps=self.fps)

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].ImageSequenceClip = ImageSequenceClip  # type: ignore[attr-defined]


@pytest.mark.render
@pytest.mark.usefixtures("moviepy")
def test_a_video_has_the_frames_of_every_environment(tmp_path: Path) -> None:
    """Those of the same episodes in one environment; and what moviepy wrote is as long."""
    small = SHORT | {"render_backend": "auto", "render_mode": "rgb_array"}
    small["human_render_camera_configs"] = {"width": 64, "height": 64}
    env = gym.make_vec(ID, 2, **small)
    assert env.render_mode == "rgb_array"
    film = vector.RecordVideo(env, str(tmp_path / "batch"), video_aspect_ratio=(2, 1))
    film.reset(seed=SEEDS[:2])  # type: ignore[arg-type]
    steps = [actions[:2] for actions in actions_of(4)]
    for actions in steps:
        film.step(actions)
    frames = list(film.recorded_frames)
    film.close()
    assert [frame.shape for frame in frames] == [(64, 128, 3)] * 5
    one = UnbatchWrapper(gym.make(ID, num_envs=1, **small))
    alone = single.RecordVideo(one, str(tmp_path / "one"))
    for i, seed in enumerate(SEEDS[:2]):
        alone.reset(seed=seed)
        pictures = [one.render(), *(alone.step(actions[i]) and one.render() for actions in steps)]
        for frame, picture in zip(frames, pictures, strict=True):
            assert picture.std() > 5, "a picture shows something"
            np.testing.assert_allclose(frame[:, 64 * i : 64 * (i + 1)], picture, atol=2)
    alone.close()
    for path in (tmp_path / "batch" / "rl-video-episode-0.mp4", tmp_path / "one" / "rl-video-episode-0.mp4"):
        assert len(iio.imread(path)) == 5
