"""On a CUDA device: tasks on PhysX's GPU simulation, and that their code never waits for it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import Env, base

import mikasa_robo
from mikasa_robo.core import state
from mikasa_robo.core.env import ARM_JOINTS

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_physics]
N = 16
PACKAGE = str(Path(mikasa_robo.__file__).parent)


@contextlib.contextmanager
def waiting(mode: str) -> Iterator[None]:
    """Within it, torch raises ("error") or warns ("warn") where Python waits for the GPU."""
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module", params=["RememberColor3-v0", "ShellGamePush-v0", "RotateStrictPos-v0", "TakeItBack-v0"])
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = gym.make(request.param, num_envs=N, sim_backend="physx_cuda", obs_mode="state+objects+oracle")
    made.reset(seed=0)
    made.step(actions(made)[0])  # constants and contact queries are made at the first step
    yield made
    made.close()


def actions(env: Env, steps: int = 4) -> torch.Tensor:
    """(steps, N, A) on the environment's device."""
    generator = torch.Generator("cuda").manual_seed(0)
    size = env.action_space.shape[-1]
    return torch.rand(steps, N, size, generator=generator, device="cuda") * 2 - 1


def test_the_hooks_and_the_layout_do_not_wait(env: Env) -> None:
    task: Any = base(env)
    index = torch.arange(0, N, 3, device="cuda")
    touching = torch.zeros(N, 3, len(task.touchable(task.objects)), dtype=torch.bool, device="cuda")
    task.sample(task._draw(index, ARM_JOINTS + task.draws))  # constants of a first reset
    with waiting("error"):
        data = task._read_sim(task._elapsed_steps)
        s = task.task_state
        task.update_state(s, data, touching)
        visible, home = task.layout(s, data.elapsed)
        task.object_layout.apply(~visible, visible, home)
        task.evaluate()
        task.visible_poses(s, data)
        task.state_features(s, data)
        u = task._draw(index, ARM_JOINTS + task.draws)
        u.take(ARM_JOINTS)
        rows = task.sample(u)
        state.scatter(s, index, rows)
        visible, home = task.layout(rows, torch.zeros(len(index), dtype=torch.int64, device="cuda"))
        task.object_layout.reset(visible, home, task.initial_velocities(rows), index)
    env.reset(seed=0)


def test_no_line_of_the_package_waits_in_a_step_or_a_partial_reset(env: Env) -> None:
    """Of all that waits, only lines of ManiSkill's own are left."""
    index = torch.arange(0, N, 3, device="cuda")
    env.reset(options={"env_idx": index})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with waiting("warn"):
            for action in actions(env):
                env.step(action)
            env.reset(options={"env_idx": index})
    own = [f"{w.filename}:{w.lineno}" for w in caught if w.filename.startswith(PACKAGE)]
    assert not own


def test_episodes_are_those_of_the_cpu(env: Env) -> None:
    assert env.spec is not None
    single = gym.make(env.spec.id, num_envs=N, sim_backend="physx_cpu")
    seeds: tuple[Any, ...] = (3, list(range(10, 10 + N)))
    for seed in seeds:
        on_gpu, on_cpu = (made.reset(seed=seed)[1] for made in (env, single))
        assert torch.equal(on_gpu["oracle_info"].cpu(), on_cpu["oracle_info"])
        assert torch.allclose(base(env).object_layout.read().cpu(), base(single).object_layout.read(), atol=1e-4)
    single.close()


def test_hidden_objects_are_away_and_rewards_are_in_bounds(env: Env) -> None:
    task = base(env)
    env.reset(seed=0)
    for action in actions(env, steps=20):
        reward, info = env.step(action)[1::3]
        visible, _ = task.layout(task.task_state, task.elapsed_steps)
        assert torch.equal(task.object_layout.parked(task.object_layout.read()), ~visible)
        assert bool(((reward >= 0) & (reward <= 1)).all())
        assert bool((reward[info["success"]] == 1).all())
        assert torch.equal(task._action, action)
