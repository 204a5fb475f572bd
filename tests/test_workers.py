"""Batches in worker processes: the same episodes as in one process, and nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
import torch
from gymnasium.error import ResetNeeded
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from task_helpers import Env, Record, compare, flatten, random_actions, step
from train_helpers import assert_same_policy

import mikasa_robo
from benchmarks.sim_speed import Orders, Split, outlook, predict
from mikasa_robo.baselines.command import main as train
from mikasa_robo.catalog import CATALOG, TaskSpec
from mikasa_robo.tasks.remember_color import RememberColor
from mikasa_robo.tools import evaluate
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.plot import read_progress
from mikasa_robo.vector import TaskVectorEnv
from mikasa_robo.workers.env import WorkerEnv, WorkerError
from mikasa_robo.workers.pool import WorkerPool

ID = "RememberColor3-v0"
N = 5
TIMEOUT_S = 60.0
"""Within this time the death of a worker is reported, and all processes are gone."""
Pair = tuple[WorkerEnv, Env]


def make_workers(
    num_envs: int, num_workers: int, env_id: str = ID, render_backend: str = "none", **kwargs: Any
) -> WorkerEnv:
    env = mikasa_robo.make_env(env_id, num_envs, num_workers=num_workers, render_backend=render_backend, **kwargs)
    assert isinstance(env, WorkerEnv)
    return env


@pytest.fixture(scope="module")
def new_pair() -> Iterator[tuple[Pair, list[Record]]]:
    """The same batch in two workers, which have 2 and 3 of the environments, and in one process; and what their first
    resets, without a seed, returned."""
    vec = make_workers(N, 2)
    one = mikasa_robo.make_env(ID, N, sim_backend="physx_cpu", render_backend="none")
    yield (vec, one), [returned(env.reset()) for env in (vec, one)]
    vec.close()
    one.close()


@pytest.fixture
def pair(new_pair: tuple[Pair, list[Record]]) -> Pair:
    return new_pair[0]


def worker_processes(env: WorkerEnv) -> list[psutil.Process]:
    processes = [psutil.Process(member.process.pid) for member in env._pool._handles]
    assert len(processes) == env.num_workers
    return processes


def assert_gone(processes: list[psutil.Process]) -> None:
    """All have ended and were waited for."""
    _, alive = psutil.wait_procs(processes, timeout=TIMEOUT_S)
    assert not alive


def open_logs() -> int:
    """The number of descriptors of this process for what workers print."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "mikasa-worker-log" in os.readlink(path)
    return found


def returned(result: tuple[Any, dict[str, Any]]) -> Record:
    obs, info = result
    return flatten({"obs": obs, "info": info})


def assert_same(a: Record, b: Record, where: str) -> None:
    """To the last bit, and in the same order."""
    assert list(a) == list(b), where
    compare(a, b, range(N), range(N), where)


# ---------------------------------------------------------------------- the same as one process
def test_every_result_is_that_of_one_process(pair: Pair) -> None:
    vec, one = pair
    resets: dict[int, dict[str, Any]] = {
        0: {"seed": 3},
        4: {"options": {"env_idx": [4, 1]}, "seed": [8, 9]},
        6: {"options": {"env_idx": [3]}, "seed": 12},
        9: {"options": {"env_idx": torch.tensor([True, False, False, False, False])}},
        12: {"seed": [5, 4, 3, 2, 2**40]},
        14: {},
    }
    actions = random_actions(one, 16, seed=0)
    steps = 0
    for t, action in enumerate(actions):
        if t in resets:
            a, b = vec.reset(**resets[t]), one.reset(**resets[t])
            assert_same(returned(a), returned(b), f"reset before step {t}")
            assert a[1]["reconfigure"] is b[1]["reconfigure"] is False
        # a tensor or an array: all the same
        assert_same(step(vec, action if t % 2 else action.numpy()), step(one, action), f"step {t}")
        assert torch.equal(vec.elapsed_steps, one.unwrapped.elapsed_steps)
        steps += 1
    assert steps == 16
    results = [flatten(dict(zip("abcd", env.step(None)[:4], strict=True))) for env in pair]
    assert_same(results[0], results[1], "a step without an action")
    assert_same(flatten(vec.get_info()), flatten(one.unwrapped.get_info()), "get_info")
    assert torch.equal(vec.get_obs(), one.unwrapped.get_obs())


def test_the_first_unseeded_episodes_are_those_of_one_process(new_pair: tuple[Pair, list[Record]]) -> None:
    a, b = new_pair[1]
    assert_same(a, b, "the first reset, unseeded")
    assert len(a["obs"].unique(dim=0)) == N, "a worker draws what another one draws"


def test_it_looks_like_one_process(pair: Pair) -> None:
    vec, one = pair
    task = one.unwrapped
    assert vec.unwrapped is vec
    names = (
        "num_envs",
        "device",
        "horizon",
        "instruction",
        "reconfiguration_freq",
        "control_freq",
        "control_mode",
        "obs_layout",
        "arm",
    )
    for name in (*names, "observation_space", "single_observation_space", "action_space", "single_action_space"):
        assert getattr(vec, name) == getattr(task, name), name
    assert vec.num_workers == 2
    assert vec._max_episode_steps == one.get_wrapper_attr("_max_episode_steps")
    assert vec.spec is not None
    assert vec.spec.id == ID


def test_what_was_returned_does_not_change_with_the_next_step(pair: Pair) -> None:
    vec, _ = pair
    vec.reset(seed=0)
    actions = random_actions(vec, 3, seed=6)
    obs, reward, terminated, truncated, info = vec.step(actions[0])
    result = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
    kept = flatten(result)
    vec.step(actions[1])
    vec.reset(seed=99)
    compare(kept, flatten(result), range(N), range(N), "returned values")


def test_maniskill_s_vector_env_takes_it(pair: Pair) -> None:
    """Episodes end, are reset in part by themselves and measured, as those of one process are."""
    vec, one = pair
    assert vec.horizon == 60
    wrapped = [ManiSkillVectorEnv(env, record_metrics=True) for env in (vec, one)]
    for env in wrapped:
        env.reset(seed=1)
        env.reset(seed=[7, 7], options={"env_idx": torch.tensor([1, 3])})
    ended = 0
    for t, action in enumerate(random_actions(one, 64, seed=3)):
        a, b = [env.step(action) for env in wrapped]
        names = ("obs", "reward", "terminated", "truncated", "info")
        records = [flatten(dict(zip(names, result, strict=True))) for result in (a, b)]
        assert_same(records[0], records[1], f"step {t}")
        ended += int((a[2] | a[3]).sum())
        assert ("final_info" in a[4]) is bool((a[2] | a[3]).any())
    assert ended >= N


def test_a_saved_state_is_restored_in_all_or_some(pair: Pair) -> None:
    vec, one = pair
    actions = random_actions(one, 12, seed=4)
    saved: list[dict[str, Any]] = []
    for env in (vec, one.unwrapped):
        env.reset(seed=2)
        for action in actions[:5]:
            env.step(action)
        saved.append(env.get_state_dict())
        for action in actions[5:8]:
            env.step(action)
        env.set_state_dict(saved[-1])
    assert_same(flatten(saved[0]), flatten(saved[1]), "the state")
    assert vec.elapsed_steps.tolist() == [5] * N
    assert_same(flatten(vec.get_state_dict()), flatten(one.unwrapped.get_state_dict()), "restored")
    rows = torch.tensor([4, 0])
    some = {name: {k: v[rows] for k, v in group.items()} for name, group in saved[0].items() if name != "controller"}
    for env in (vec, one.unwrapped):
        for action in actions[8:]:
            env.step(action)
        env.set_state_dict(some, env_idx=rows)
    assert vec.elapsed_steps.tolist() == [5, 9, 9, 9, 5]
    assert_same(flatten(vec.get_state_dict()), flatten(one.unwrapped.get_state_dict()), "restored in part")
    assert_same(step(vec, actions[0]), step(one, actions[0]), "a step from there")
    with pytest.raises(ValueError, match=r"saved task/\w+ has 5 rows for 2 environments: give one for each"):
        vec.set_state_dict({"task": saved[0]["task"]}, env_idx=[1, 2])


def test_workers_make_the_same_vector_env(pair: Pair) -> None:
    """Automatic resets and Gymnasium's form of infos included."""
    vec, one = (TaskVectorEnv(env, autoreset_mode="SameStep", to="torch") for env in pair)
    assert_same(returned(vec.reset(seed=5)), returned(one.reset(seed=5)), "reset")
    ends = 0
    for t, action in enumerate(random_actions(pair[1], vec.env.horizon + 1, seed=0)):
        results = [flatten(dict(zip("abcde", env.step(action), strict=True))) for env in (vec, one)]
        assert_same(results[0], results[1], f"step {t}")
        ends += "e/final_obs" in results[0]
    assert ends


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda env: env.step(torch.full((N, 8), torch.nan)),
            ValueError,
            r"the action of env \[0, 1, 2, 3, 4\] is NaN",
        ),
        (lambda env: env.step(torch.zeros(N, 7)), ValueError, r"shape \(5, 7\): give \(5, 8\)"),
        (lambda env: env.step([0.0] * 8), ValueError, r"shape \(8,\): give \(5, 8\).*one action"),
        (lambda env: env.step([["up"] * 8] * N), TypeError, "the action is a list that does not hold numbers"),
        (lambda env: env.step({"action": torch.zeros(N, 8)}), TypeError, "the action is a dict"),
        (lambda env: env.reset(options={"env_ids": [0]}), ValueError, r"'env_ids'.*did you mean 'env_idx'"),
        (lambda env: env.reset(options={"env_idx": [1, 1]}), ValueError, "names an env twice"),
        (lambda env: env.reset(options={"env_idx": [5]}), IndexError, "outside 0…4"),
        (
            lambda env: env.set_state_dict({"task": task_with(env, N - 1, "elapsed_steps", -1.0)}),
            ValueError,
            "saved task/elapsed_steps holds -1: give whole numbers from 0",
        ),
        (lambda env: env.reset(seed=-1), ValueError, "seed=-1 is negative"),
        (lambda env: env.reset(seed=[1, 2]), ValueError, "2 seeds for 5 environments"),
        (lambda env: env.reset(options={"env_idx": [1], "reconfigure": True}), RuntimeError, "builds all environments"),
        (lambda env: env.set_state_dict({"actors": {"cup": torch.zeros(N, 13)}}), KeyError, r"has \['actors/cup'\]"),
        (
            lambda env: env.set_state_dict({"actors": {"cube_red": torch.zeros(1, 12)}}, env_idx=[4]),
            ValueError,
            r"saved actors/cube_red has the shape \(1, 12\): give \(1, 13\)",
        ),
        (
            lambda env: env.reset(options={"reset_to_env_states": {"env_states": {"task": {}}}}),
            KeyError,
            "the saved state lacks .*'actors/cube_red'.*give what get_state_dict",
        ),
        (
            lambda env: env.reset(options={"reset_to_env_states": {"env_states": torch.zeros(N, 3)}}),
            ValueError,
            "the state has 3 numbers for each environment, this task has",
        ),
        (
            lambda env: env.reset(options={"reset_to_env_states": {"env_states": None}}),
            TypeError,
            "the saved state is None: give a tensor",
        ),
        (lambda env: env.render(), RuntimeError, "render_mode is not set"),
    ],
)
def test_bad_input_harms_no_worker(pair: Pair, call: Any, error: type[Exception], message: str) -> None:
    vec, _ = pair
    obs, _ = vec.reset(seed=0)
    with pytest.raises(error, match=message):
        call(vec)
    assert torch.equal(vec.get_obs(), obs), "nothing was changed"
    assert vec.step(torch.zeros(N, 8))[1].shape == (N,)


def task_with(env: WorkerEnv, row: int, name: str, value: float) -> dict[str, torch.Tensor]:
    """The task's part of the present state, with ``value`` in one place."""
    task: dict[str, torch.Tensor] = env.get_state_dict()["task"]
    task[name][row] = value
    return task


def test_a_reset_of_no_environment_is_that_of_one_process(pair: Pair) -> None:
    results = []
    for env in pair:
        env.reset(seed=4)
        env.step(torch.zeros(N, 8))
        results.append(returned(env.reset(seed=5, options={"env_idx": []})))
    assert_same(results[0], results[1], "a reset of none")
    assert torch.equal(results[0]["info/elapsed_steps"], torch.ones(N))


def test_the_state_as_vectors_is_that_of_one_process(pair: Pair) -> None:
    for env in pair:
        env.reset(seed=4)
    vec, one = pair
    saved = vec.get_state()
    assert torch.equal(saved, one.unwrapped.get_state())
    vec.reset(seed=5)
    vec.set_state(saved[[3]].tolist(), env_idx=[1])
    assert torch.allclose(vec.get_state()[1], saved[3], atol=1e-6)


LIMITS = {None: 60, 20: 20}
"""What max_episode_steps is given as, and what it comes to."""


@pytest.fixture(scope="module")
def spare() -> Iterator[dict[int | None, WorkerEnv]]:
    """Environments in one worker each, by max_episode_steps. Later tests end the workers, which take seconds to start."""
    made = {limit: make_workers(2, 1, max_episode_steps=limit, obs_mode="joints") for limit in LIMITS}
    yield made
    for env in made.values():
        env.close()


@pytest.mark.parametrize("limit", LIMITS)
def test_the_spec_makes_the_same_environment_in_one_process(
    limit: int | None, spare: dict[int | None, WorkerEnv]
) -> None:
    made: Env = spare[limit]
    assert made.spec is not None
    for _ in range(2):  # also from the spec of what it made
        env: Env = gym.make(made.spec)
        assert env.unwrapped.num_envs == 2
        assert (
            env.get_wrapper_attr("_max_episode_steps") == made.get_wrapper_attr("_max_episode_steps") == LIMITS[limit]
        )
        assert env.observation_space == made.observation_space
        if made is not spare[limit]:
            made.close()
        made = env
    made.close()


def test_options_and_saved_states_of_a_reset_are_those_of_one_process(pair: Pair) -> None:
    vec, one = pair
    nothing = dict.fromkeys(("env_idx", "reconfigure", "reset_to_env_states"))
    assert_same(returned(vec.reset(seed=4, options=nothing)), returned(one.reset(seed=4, options=nothing)), "None")
    saved = vec.get_state_dict()
    flat = one.unwrapped.get_state()
    for states in (saved, flat):
        results = []
        for env in pair:
            env.reset(seed=5)
            results.append(returned(env.reset(options={"reset_to_env_states": {"env_states": states}})))
        assert_same(results[0], results[1], "a reset to a saved state")
    rows = {part: {name: value[[3, 1]] for name, value in saved[part].items()} for part in saved}
    results = []
    for env in pair:
        env.reset(seed=6)
        options = {"env_idx": [0, 4], "reset_to_env_states": {"env_states": rows}}
        results.append(returned(env.reset(options=options)))
    assert_same(results[0], results[1], "a partial reset to a saved state")


def test_workers_wait_without_using_a_core(pair: Pair) -> None:
    vec, _ = pair
    vec.reset(seed=0)
    processes = worker_processes(vec)
    before = [process.cpu_times() for process in processes]
    time.sleep(1.0)
    for process, old in zip(processes, before, strict=True):
        new = process.cpu_times()
        assert new.user + new.system - old.user - old.system < 0.2
        assert process.num_threads() > 1, "nobody looks whether the main process still lives"


# ---------------------------------------------------------------------- training and evaluation
TRAIN = (
    f"--env-id {ID} --num-envs 6 --num-steps 32 --total-timesteps 384 --stagger-groups 3 --num-minibatches 2 "
    "--update-epochs 1 --eval-episodes 3 --eval-num-envs 1 --no-video --seed 5 --torch-threads 1"
).split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of the same run in this process and in two workers."""
    one, two = (tmp_path_factory.mktemp("runs") / name for name in ("one", "two"))
    for folder, words in ((one, ["--sim-backend", "physx_cpu"]), (two, ["--num-workers", "2"])):
        assert train("ppo-lstm", [*TRAIN, *words, "--run-dir", str(folder)]) == 0
    return one, two


def test_training_in_workers_gives_the_same_policy(runs: tuple[Path, Path]) -> None:
    """Rollouts of a dict of observations, with episodes that end and are reset in part, and evaluations."""
    assert_same_policy(*runs)
    tables = [read_progress(folder) for folder in runs]
    assert len(tables[0]) == 2
    assert any(row.get("train/return") for row in tables[0]), "no episode has ended"
    for row, other in zip(*tables, strict=True):
        clock = {"wall_time_s", "steps_per_second", "rollout_s", "update_s", "other_s"}
        assert {k: v for k, v in row.items() if k not in clock} == {k: v for k, v in other.items() if k not in clock}
    finals = [json.loads((folder / "final_eval.json").read_text())["final"] for folder in runs]
    assert finals[0] == finals[1]


def test_evaluation_in_workers_gives_the_same_scores(runs: tuple[Path, Path], tmp_path: Path) -> None:
    results = []
    for name, words in (("one", {}), ("two", {"num_workers": 1})):
        checkpoint = (runs[0] / "checkpoint.pt",)
        args = evaluate.Args(checkpoint, episodes=3, num_envs=2, out=tmp_path / f"{name}.json", **words)
        results.append(evaluate.evaluate_checkpoints(args)["runs"][0])
    assert results[0]["episodes"] == results[1]["episodes"]
    assert len(results[0]["episodes"]["returns"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-workers", "0"], "--num-workers 0 cannot be used; use 1 to "),
        (["--num-workers", "7"], "--num-workers 7 cannot be used; use 1 to "),
        (["--num-workers", "2", "--sim-backend", "physx_cuda"], "--sim-backend physx_cuda: on a GPU one process"),
        (["--num-workers", "2", "--env-id", "PickCube-v1"], "for the robot tasks of `mikasa list`, and PickCube-v1"),
        (["--num-workers", "2", "--env-id", "MemoryLength-v0"], "for the robot tasks of `mikasa list`, and MemoryLen"),
    ],
)
def test_workers_that_cannot_train_are_refused_before_there_is_a_run(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert train("ppo-mlp", ["--num-envs", "6", *words, "--run-dir", str(folder)]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("num_workers", [0, 4])
def test_workers_that_cannot_evaluate_are_refused(num_workers: int, tmp_path: Path) -> None:
    args = evaluate.Args((tmp_path / "none.pt",), num_envs=3, num_workers=num_workers)
    with pytest.raises(OptionError, match=rf"--num-workers {num_workers} must be from 1 to --num-envs 3"):
        evaluate.evaluate_checkpoints(args)


# ---------------------------------------------------------------------- before anything starts
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("RememberColour3-v0", 4), {"num_workers": 2}, "did you mean RememberColor3-v0"),
        ((ID, 4), {"num_workers": 5}, r"num_workers=5 is more than num_envs=4.*use num_workers=4 or less"),
        ((ID, 4), {"num_workers": 0}, "num_workers=0 must be a whole number of at least 1"),
        ((ID, 4), {"num_workers": True}, "num_workers=True must"),
        ((ID, 4), {"num_workers": 2.5}, "num_workers=2.5 must"),
        ((ID, 0), {"num_workers": 1}, "num_envs=0 must"),
        ((ID, -3), {"num_workers": 1}, "num_envs=-3 must"),
        (
            (ID, 4),
            {"num_workers": 2, "sim_backend": "physx_cuda:0"},
            "sim_backend='physx_cuda:0' cannot be used with num_workers=2.*on a GPU one process",
        ),
        ((ID, 4), {"num_workers": 2, "sim_backend": "gpux"}, "sim_backend='gpux' is not known"),
        ((ID, 4), {"num_workers": 2, "sim_threads": 0}, "sim_threads=0 must"),
        ((ID, 4), {"num_workers": 2, "render_mode": "human"}, "opens a window for one process"),
        ((ID, 4), {"num_workers": 2, "max_episode_steps": -1}, "max_episode_steps=-1 must be .*; leave it out"),
        ((ID, 4), {"num_workers": 2, "sim_config": lambda: None}, "sim_config=.*cannot be sent to a worker process"),
    ],
)
def test_bad_arguments_start_no_process(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: WorkerPool, shard: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(WorkerPool, "_start", start)
    with pytest.raises((ValueError, TypeError), match=message):
        mikasa_robo.make_env(*args, **kwargs)


def test_make_vec_still_works_and_names_its_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(self: WorkerPool, shard: Any) -> None:
        started.append(shard.num_envs)
        raise InterruptedError

    monkeypatch.setattr(WorkerPool, "_start", start)
    with (
        pytest.warns(DeprecationWarning, match="make_vec is deprecated; use mikasa_robo.make_env with num_workers"),
        pytest.raises(InterruptedError),
    ):
        mikasa_robo.make_vec(ID, 5, 2)
    assert started == [2], "two workers divide five environments into two and three"


# ---------------------------------------------------------------------- ends
class Breaks(RememberColor):
    """Raises after three steps in the worker that has the environment of seed 1 only, and while made if told so."""

    reset_options = (*RememberColor.reset_options, "unlucky")

    def __init__(self, *args: Any, breaks_at_once: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if breaks_at_once:
            raise LookupError("broken from the start")

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        if self.num_envs == options.get("unlucky", 0):
            raise KeyError("no cube is left")
        super()._initialize_episode(env_idx, options)

    def update_state(self, s: Any, data: Any, touching: Any) -> None:
        super().update_state(s, data, touching)
        if int(data.elapsed.max()) >= 3:
            time.sleep(600.0 if self.num_envs > 1 else 0.0)  # the others are busy
            raise ArithmeticError("the cube fell off the world")


@pytest.fixture
def broken_id() -> Iterator[str]:
    """A task of the user's own: its row is known to this process and not to a new one."""
    row = CATALOG[ID]
    fields = {name: getattr(row, name) for name in TaskSpec.__dataclass_fields__}
    mikasa_robo.register_task(
        TaskSpec(**(fields | {"id": "Breaks-v0", "entry_point": "test_workers:Breaks", "kwargs": {"n": 3}}))
    )
    yield "Breaks-v0"
    from mikasa_robo import catalog

    catalog._TABLE.pop("Breaks-v0", None)
    gym.registry.pop("Breaks-v0", None)


def a_reset_that_fails_is_raised_as_it_is_and_ends_none(env: WorkerEnv) -> None:
    obs, _ = env.reset(seed=0)
    processes = worker_processes(env)
    for unlucky in (1, 2):
        with pytest.raises(KeyError, match="no cube is left") as error:
            env.reset(seed=1, options={"unlucky": unlucky})
        told = str(error.value.__cause__)
        assert told.startswith(
            f"worker {unlucky - 1} (environments {unlucky - 1} to {2 * unlucky - 2}) could not do reset"
        )
        assert "in _initialize_episode" in told
        with pytest.raises(ResetNeeded):
            env.step(None)  # the other worker has reset its environments
    assert all(process.is_running() for process in processes)
    assert torch.equal(env.reset(seed=0)[0], obs)
    env.step(None)


def test_an_exception_in_a_reset_ends_none_and_one_in_a_step_is_told_with_its_traceback_and_ends_all(
    broken_id: str,
) -> None:
    """One environment for both, because its workers take seconds to start."""
    env = make_workers(3, 2, broken_id)  # 1 and 2 of them
    a_reset_that_fails_is_raised_as_it_is_and_ends_none(env)
    env.reset(seed=0)
    processes = worker_processes(env)
    env.step(None)
    env.step(None)
    start = time.monotonic()
    with pytest.raises(WorkerError) as error:
        env.step(None)
    assert time.monotonic() - start < TIMEOUT_S, "waited for the worker that was busy"
    message = str(error.value)
    assert message.startswith(
        f"worker 0 (environments 0 to 0, process {processes[0].pid}) died during step: exit code 1"
    )
    assert "in update_state" in message
    assert "ArithmeticError: the cube fell off the world" in message
    assert_gone(processes)
    with pytest.raises(RuntimeError, match=r"closed by an error \(worker 0 .*: exit code 1\): make a new one to go on"):
        env.reset()
    env.close()


def test_an_error_of_the_constructor_is_raised_as_it_is(broken_id: str) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(LookupError, match="broken from the start") as error:
        make_workers(2, 1, broken_id, breaks_at_once=True)
    assert "in __init__" in str(error.value.__cause__)
    assert set(multiprocessing.active_children()) <= set(before), "others may end meanwhile"


@pytest.mark.slow
def test_a_script_without_its_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import mikasa_robo\nmikasa_robo.make_env({ID!r}, 1, num_workers=1)\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Does your script start its work under `if __name__ == '__main__':`?" in done.stderr.splitlines()[-1]


def test_a_killed_worker_is_named_with_its_signal(spare: dict[int | None, WorkerEnv]) -> None:
    env = spare[None]
    processes = worker_processes(env)
    processes[0].kill()
    with pytest.raises(
        WorkerError, match=r"(?s)^worker 0 .* died during reset: exit code -9, killed by SIGKILL .*memory"
    ):
        env.reset(seed=0)
    assert_gone(processes)
    env.close()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT means what it does in a terminal, also where a shell started the tests in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_workers(spare: dict[int | None, WorkerEnv]) -> None:
    env = spare[20]
    env.reset(seed=0)
    processes = worker_processes(env)
    processes[0].send_signal(signal.SIGINT)  # as a terminal does it, to everybody
    env.step(None)
    env.step(None)
    assert processes[0].is_running(), "the main process decides what Ctrl-C means"
    # Between two requests an interrupt leaves the workers as they are, so this one comes while a request waits for a reply.
    processes[0].suspend()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(None)
    assert_gone(processes)
    with pytest.raises(RuntimeError, match=r"closed by an error \(KeyboardInterrupt\)"):
        env.step(None)


def test_workers_end_by_themselves_when_the_main_process_is_killed() -> None:
    """The main process is a copy of this one, which need not import everything anew."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def work() -> None:
        env = make_workers(1, 1)
        there.send(env._pool._handles[0].process.pid)
        time.sleep(100)

    main = context.Process(target=work)
    main.start()
    there.close()
    try:
        assert here.poll(300), "no worker has started"
        processes = [psutil.Process(here.recv())]
    finally:
        main.kill()
        main.join()
    with contextlib.suppress(psutil.NoSuchProcess):
        assert_gone(processes)


def test_close_leaves_nothing_and_whatever_is_called_then_says_so(pair: Pair) -> None:
    """The last test of the pair: a worker takes seconds to start, so this one closes the workers that all have used."""
    env, _ = pair
    processes = worker_processes(env)
    before = open_logs()
    assert before >= len(processes)
    env.close()
    assert_gone(processes)
    assert open_logs() == before - len(processes), "the memory for what a worker prints has no name, but a descriptor"
    env.close()
    for call in (env.reset, env.get_obs, env.render, env.get_state_dict, lambda: env.step(None)):
        with pytest.raises(RuntimeError, match="this environment was closed: make a new one to go on"):
            call()


# ---------------------------------------------------------------------- pictures
@pytest.mark.slow
@pytest.mark.render
def test_pictures_are_those_of_one_process() -> None:
    kwargs: dict[str, Any] = {
        "obs_mode": "rgb+joints",
        "render_mode": "rgb_array",
        "sim_backend": "physx_cpu",
        "sensor_configs": {"width": 32, "height": 32},
        "human_render_camera_configs": {"width": 48, "height": 48},
    }
    vec = make_workers(2, 1, render_backend="auto", **kwargs)
    one = mikasa_robo.make_env(ID, 2, **kwargs)
    for env in (vec, one):
        env.reset(seed=0)
    a, b = step(vec, torch.zeros(2, 8)), step(one, torch.zeros(2, 8))
    assert list(a) == list(b)
    compare(a, b, range(2), range(2), "pictures")
    assert a["obs/rgb"].shape == (2, 32, 32, 6)
    pictures = vec.render()
    assert pictures.shape == (2, 48, 48, 3)
    assert pictures.dtype == torch.uint8
    assert torch.equal(pictures, torch.as_tensor(one.render()))
    vec.close()
    one.close()


# ---------------------------------------------------------------------- what the benchmark concludes
def test_the_benchmark_s_prediction_is_that_of_its_formula() -> None:
    whole, part = Split(64, serial=0.008, shared=0.016), Split(16, serial=0.005, shared=0.004)
    orders = Orders(one=0.0005, further=0.0001)
    threads, workers = predict(whole, part, orders, cores=4)
    assert threads == pytest.approx(64 / (0.008 + 0.016 / 4))
    assert workers == pytest.approx(64 / (0.005 + 0.016 / 4 + 0.0005 + 3 * 0.0001))
    assert predict(whole, part, orders, cores=1)[1] == pytest.approx(64 / (0.024 + 0.0005))
    assert predict(whole, part, orders, cores=1000) == predict(whole, part, orders, cores=64), "no more than envs"
    said = outlook("state", whole, part, orders)
    assert "share 67%, so that they gain at most 3.0 x" in said
    assert said.endswith("Workers should win from 2 to 32 cores.")
    assert outlook("state", whole, part, Orders(1.0, 0.0)).endswith("Workers should not win.")
