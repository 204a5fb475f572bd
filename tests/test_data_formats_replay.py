"""ManiSkill's own replay runs on what we write in its format, and sees what was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from format_helpers import make_info
from mani_skill.trajectory import replay_trajectory
from mani_skill.trajectory.dataset import ManiSkillTrajectoryDataset

import mikasa_robo
from mikasa_robo.data.episode import DatasetInfo, Episode
from mikasa_robo.data.formats import FORMATS
from mikasa_robo.data.recording import Act, record_episodes

ENV_ID = "RememberColor3-v0"
STEPS = 8


def record(obs_mode: str, seeds: list[int]) -> tuple[DatasetInfo, list[Episode]]:
    """Episodes of random actions, cut after some steps, as whole ones take long."""
    info = make_info(obs_mode)
    env: Any = mikasa_robo.make_env(ENV_ID, len(seeds), sim_threads=1, **info.env_kwargs)
    rng = torch.Generator().manual_seed(0)

    def start() -> Act:
        width = env.unwrapped.single_action_space.shape[0]
        return lambda obs, _: torch.rand((len(seeds), width), generator=rng) * 2 - 1

    episodes = list(record_episodes(env, start, seeds, info, indices=range(len(seeds)), labels=False))
    env.close()
    return info, [cut(episode, STEPS) for episode in episodes]


def cut(episode: Episode, length: int) -> Episode:
    """The first steps of an episode."""

    def first(arrays: Any, rows: int) -> dict[str, Any]:
        return {name: values[:rows] for name, values in arrays.items()}

    return Episode(
        **{
            **vars(episode),
            "terminated": False,
            "truncated": False,
            "observations": first(episode.observations, length + 1),
            "columns": first(episode.columns, length + 1),
            "states": first(episode.states, length + 1),
            "step_columns": first(episode.step_columns, length),
            "actions": episode.actions[:length],
            "rewards": episode.rewards[:length],
        }
    )


def replayed(path: Path, **kwargs: Any) -> list[dict[str, np.ndarray]]:
    """All arrays of each episode that ManiSkill's replay writes, by path."""
    args = replay_trajectory.Args(str(path), save_traj=True, allow_failure=True, record_rewards=True, **kwargs)
    args.render_mode = None  # nothing is drawn
    replay_trajectory.main(args)
    (made,) = set(path.parent.glob("*.h5")) - {path}
    found = arrays_of(made)
    made.unlink()
    return found


def arrays_of(path: Path) -> list[dict[str, np.ndarray]]:
    with h5py.File(path) as file:
        rows = json.loads(path.with_suffix(".json").read_text())["episodes"]
        groups = [file[f"traj_{row['episode_id']}"] for row in rows]
        found: list[dict[str, np.ndarray]] = [{} for _ in groups]
        for arrays, group in zip(found, groups, strict=True):
            group.visititems(
                lambda name, item, to=arrays: to.update({name: item[()]} if hasattr(item, "shape") else {})
            )
    return found


@pytest.mark.parametrize("obs_mode", ["objects+joints", pytest.param("state", marks=pytest.mark.slow)])
def test_maniskill_replays_what_was_written(obs_mode: str, tmp_path: Path) -> None:
    info, episodes = record(obs_mode, [1000, 1001])
    writer = FORMATS["maniskill"].writer()(tmp_path / "out", info)
    for episode in episodes:
        writer.add(episode)
    writer.finish()
    path = tmp_path / "out" / "trajectory.h5"
    written = arrays_of(path)
    for mode in ({}, {"use_env_states": True}):
        again = replayed(path, **mode)
        assert len(again) == len(written) == 2
        for one, other in zip(written, again, strict=True):
            assert {name for name in one if name not in other} == {
                name for name in one if name.startswith("privileged/")
            }
            for name in other.keys() & one.keys():
                if name == "rewards" or (mode and name.startswith("env_states/")):
                    continue  # of another reward mode; of the step from a state that was set, where contacts begin anew
                assert np.array_equal(one[name], other[name]), (mode, name)
    dataset = ManiSkillTrajectoryDataset(str(path))
    assert np.array_equal(dataset.actions, np.concatenate([episode.actions for episode in episodes]))


def test_minari_makes_the_environment_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="Minari is not installed: pip install 'mikasa-suite[datasets]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    info, episodes = record("joints", [1000])
    writer = FORMATS["minari"].writer()(tmp_path / "out", info)
    writer.add(episodes[0])
    writer.finish()
    dataset = minari.load_dataset(f"mikasa/{ENV_ID}/train-v0")
    env: gym.Env[Any, Any] = dataset.recover_environment()
    obs, _ = env.reset(seed=1000)
    joints = obs["joints"] if isinstance(obs, dict) else obs
    assert np.array_equal(joints, dataset[0].observations[0])
    assert env.action_space.shape == dataset.action_space.shape
    env.close()
