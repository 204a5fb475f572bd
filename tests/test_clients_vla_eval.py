"""The tasks as a benchmark of vla-eval, run by its own episode runner. Skipped where vla-eval is not installed."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vla_eval", reason="vla-eval is not installed: pip install vla-eval")

from vla_eval.registry import resolve_import_string
from vla_eval.runners.sync_runner import SyncEpisodeRunner
from vla_eval.specs import check_specs

import mikasa_robo
from mikasa_robo.clients.lerobot import LeRobotVectorEnv
from mikasa_robo.clients.vla_eval import FIRST_SEED, MikasaBenchmark
from mikasa_robo.tools import evaluate

ID = "RememberColor3-v0"
SHORT: dict[str, Any] = {"cue_steps": 2, "delay_steps": 1, "response_steps": 3}
STILL = np.array([0] * 7 + [1], np.float32)


class Model:
    """Stands for the connection to a model server: keeps what it is sent, and answers with the same action."""

    def __init__(self, action: Any = STILL) -> None:
        self.seen: list[dict[str, Any]] = []
        self.action = action

    async def start_episode(self, payload: dict[str, Any]) -> None:
        pass

    async def act(self, obs: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(obs)
        return {"actions": self.action}

    async def end_episode(self, result: dict[str, Any]) -> None:
        pass


def play(benchmark: MikasaBenchmark, model: Model, episode: int) -> dict[str, Any]:
    """One episode, as vla-eval's orchestrator plays it."""
    task = {**benchmark.get_tasks()[0], "episode_idx": episode}
    runner = SyncEpisodeRunner()
    return asyncio.run(runner.run_episode(benchmark, task, model, max_steps=benchmark.get_metadata()["max_steps"]))


def test_its_seeds_and_tasks_are_the_published_ones() -> None:
    assert resolve_import_string("mikasa_robo.clients.vla_eval:MikasaBenchmark") is MikasaBenchmark
    assert FIRST_SEED == evaluate.FIRST_SEED
    assert [task["name"] for task in MikasaBenchmark().get_tasks()] == list(mikasa_robo.TASKS)
    with pytest.raises(ValueError, match="no task with the ID 'RotateLenient-v0'"):
        MikasaBenchmark(["RotateLenient-v0"])
    with pytest.raises(ValueError, match="obs='joints': give 'rgb"):
        MikasaBenchmark([ID], obs="joints")


def test_specs_fit_themselves_and_not_another_robot() -> None:
    from vla_eval.specs import GRIPPER_CLOSE_NEG, POSITION_DELTA

    benchmark = MikasaBenchmark([ID])
    actions, obs = benchmark.get_action_spec(), benchmark.get_observation_spec()
    assert check_specs(actions, actions, obs, obs) == []
    assert sum(spec.dims for spec in actions.values()) == 8
    assert check_specs({"position": POSITION_DELTA, "gripper": GRIPPER_CLOSE_NEG}, actions, {}, obs)


def test_an_action_that_is_none_is_refused() -> None:
    benchmark = MikasaBenchmark([ID])
    for action in ({}, {"actions": np.zeros(7)}, {"actions": np.full(8, np.nan)}, {"actions": np.zeros((2, 8))}):
        with pytest.raises(ValueError, match="must be 'actions', 8 numbers"):
            benchmark.step(action) if benchmark._env else benchmark._checked_action(action)
    assert benchmark.get_hold_action(None)["actions"].tolist() == [0] * 7 + [1]
    moving = {"actions": np.array([0.5] * 7 + [-1])}
    assert benchmark.get_hold_action(moving)["actions"].tolist() == [0] * 7 + [-1]


@pytest.mark.render
def test_an_episode_is_that_of_its_seed() -> None:
    benchmark = MikasaBenchmark([ID], env_kwargs=SHORT)
    firsts = []
    for episode in (0, 3, 0):
        model = Model()
        result = play(benchmark, model, episode)
        assert result["steps"] == len(model.seen) == 6
        assert set(result["metrics"]) == {"success", "success_at_end", "fail", "return"}
        assert result["metrics"]["success"] is False
        firsts.append(model.seen[0])
    env = LeRobotVectorEnv(ID, 1, frames="observation", **SHORT)
    for first, seed in zip(firsts, (2_000_000, 2_000_003, 2_000_000), strict=True):
        obs, _ = env.reset(seed=[seed])
        assert np.array_equal(first["state"], obs["agent_pos"][0])
        for camera in ("base_camera", "hand_camera"):
            assert np.array_equal(first["images"][camera], obs["pixels"][camera][0])
        assert first["task_description"] == mikasa_robo.CATALOG[ID].instruction
    assert not np.array_equal(firsts[0]["state"], firsts[1]["state"])
    env.close()
    benchmark.cleanup()
    assert benchmark.render() is None
