"""A recorded episode can be played again: by ManiSkill's own recorder and replay, and by the seed that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from mani_skill.trajectory import replay_trajectory
from mani_skill.utils.wrappers.record import RecordEpisode
from task_helpers import flatten, one_id_per_family, random_actions, row_of

import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_robo.core.seeds import NAMED, episode_key, episode_keys, episode_name

RESPONSE_STEPS = 6
MODES: dict[str, dict[str, bool]] = {
    "by actions": {},
    "from the first state": {"use_first_env_state": True},
    "by states": {"use_env_states": True},
}


def recorder(env_id: str, folder: Path, num_envs: int, **kwargs: Any) -> Any:
    env = gym.make(env_id, num_envs=num_envs, on_mistake="ignore", sim_threads=1, **kwargs)
    return RecordEpisode(env, str(folder), trajectory_name="recorded", save_video=False)


def bare(env_id: str, **kwargs: Any) -> Any:
    return gym.make(env_id, **kwargs).unwrapped


def actions_of(env: Any) -> torch.Tensor:
    row = row_of(env)
    steps = row.cue + row.delay + RESPONSE_STEPS if row.response else 20
    return random_actions(env, steps, seed=0)


def episodes(path: Path) -> list[dict[str, Any]]:
    """What the JSON beside an HDF5 file tells of its episodes."""
    found: list[dict[str, Any]] = json.loads(path.with_suffix(".json").read_text())["episodes"]
    return found


def observations(path: Path) -> list[np.ndarray]:
    """(T + 1, D) observations of every episode of an HDF5 file."""
    with h5py.File(path) as file:
        return [file[f"traj_{episode['episode_id']}"]["obs"][:] for episode in episodes(path)]


def replayed(path: Path, **kwargs: Any) -> list[np.ndarray]:
    """The observations that ManiSkill's replay makes from a recording."""
    args = replay_trajectory.Args(str(path), save_traj=True, allow_failure=True, **kwargs)
    args.render_mode = None  # nothing is drawn
    replay_trajectory.main(args)
    (made,) = set(path.parent.glob("*.h5")) - {path}
    found = observations(made)
    made.unlink()
    return found


@pytest.mark.parametrize(
    "modes", [("by actions", "by states"), pytest.param(("from the first state",), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("env_id", one_id_per_family())
def test_maniskills_replay_sees_what_was_recorded(env_id: str, modes: tuple[str, ...], tmp_path: Path) -> None:
    env = recorder(env_id, tmp_path, 1)
    actions = actions_of(env)
    env.reset(seed=5)
    # the second episode goes on without a seed
    for action in actions[:3]:
        env.step(action)
    env.reset()
    for action in actions:
        env.step(action)
    env.close()
    path = tmp_path / "recorded.h5"
    seeds = [episode["episode_seed"] for episode in episodes(path)]
    assert seeds == [5, episode_name((5, 0, 1))]
    recorded = observations(path)
    assert [len(obs) for obs in recorded] == [4, len(actions) + 1]
    for mode in modes:
        for one, other in zip(recorded, replayed(path, **MODES[mode]), strict=True):
            assert np.array_equal(one, other), mode


@pytest.mark.parametrize("env_id", ["ShellGameTouch-v0", "BunchOfColors3-v0"])
def test_episodes_of_a_batch_are_replayed_one_by_one(env_id: str, tmp_path: Path) -> None:
    env = recorder(env_id, tmp_path, 3)
    actions = actions_of(env)
    env.reset(seed=5)
    for t, action in enumerate(actions):
        if t == 4:
            env.reset(options={"env_idx": torch.tensor([1])})
        if t == 7:
            env.reset(seed=[9, (11, 2)], options={"env_idx": torch.tensor([1, 2])})
        env.step(action)
    env.close()
    path = tmp_path / "recorded.h5"
    # in the order in which they ended
    keys = [(5, 1, 0), (5, 1, 1), (5, 2, 0), (5, 0, 0), (9, 0, 0), (11, 2, 0)]
    assert [episode_key(episode["episode_seed"]) for episode in episodes(path)] == keys
    recorded = observations(path)
    for mode in ("by actions", "from the first state"):
        for one, other in zip(recorded, replayed(path, **MODES[mode]), strict=True):
            assert np.array_equal(one, other), mode


# ---------------------------------------------------------------------- names
def test_a_name_is_a_seed_and_a_seed_is_its_own_name() -> None:
    for seed in (0, 5, 2**32 + 1, NAMED - 1):
        assert episode_name((seed, 0, 0)) == seed
        assert episode_key(seed) == (seed, 0, 0)
    for key in ((0, 0, 1), (0, 1, 0), (7, 3, 5), (2**32 - 1, 2**14 - 1, 2**16 - 1)):
        name = episode_name(key)
        assert NAMED <= name < 2**63
        assert episode_key(name) == key
        assert episode_keys([name], [4]) == [key]
    assert episode_keys(episode_name((7, 3, 5)), [0, 2]) == [(7, 3, 5), (7, 5, 5)]
    assert episode_key(2**63) == (2**63, 0, 0)
    for key in ((2**32, 1, 0), (0, 2**14, 0), (0, 0, 2**16), (NAMED, 0, 0)):
        assert episode_name(key) == -1
    with pytest.raises(ValueError, match="seed=-1 is negative"):
        episode_keys(-1, [0])


def test_each_environment_names_its_episode() -> None:
    batch = bare("RememberColor9-v0", num_envs=3, render_backend="none", sim_threads=1)
    single = bare("RememberColor9-v0", num_envs=1, render_backend="none")
    named = []
    for kwargs in (
        {},
        {"seed": 5},
        {"options": {"env_idx": [1]}},
        {"options": {"env_idx": [2, 1]}},
        {"seed": [8], "options": {"env_idx": [2]}},
        {"seed": [3, (4, 4), (6, 1, 2)]},
        {},
    ):
        obs, _ = batch.reset(**kwargs)
        named.append([episode_key(int(seed)) for seed in batch._episode_seed])
        for i, seed in enumerate(batch._episode_seed):
            alone, _ = single.reset(seed=int(seed))
            assert torch.equal(alone[0], obs[i])
            assert single._episode_seed.tolist() == [seed]
    assert named[0] == [(2022, 0, 1), (2023, 0, 1), (2024, 0, 1)]
    assert named[1] == [(5, 0, 0), (5, 1, 0), (5, 2, 0)]
    assert named[3] == [(5, 0, 0), (5, 1, 2), (5, 2, 1)]
    assert named[4] == [(5, 0, 0), (5, 1, 2), (8, 0, 0)]
    assert named[6] == [(3, 0, 1), (4, 4, 1), (6, 1, 3)]
    obs, _ = batch.reset(seed=[int(episode_name(key)) for key in named[3]])
    assert [episode_key(int(seed)) for seed in batch._episode_seed] == named[3]
    batch.close()
    single.close()


# ---------------------------------------------------------------------- states as arrays
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_state_of_arrays_is_set_like_one_of_tensors(num_envs: int) -> None:
    env = bare("ShellGamePush-v0", num_envs=num_envs, render_backend="none", sim_threads=1)
    env.reset(seed=1)
    for action in random_actions(env, 8, seed=1):
        env.step(action)
    saved = env.get_state_dict()
    arrays = to_arrays(saved)
    after: list[dict[str, torch.Tensor]] = []
    for state in (saved, arrays, {name: squeezed(group) for name, group in arrays.items()}):
        if state is not saved and state is not arrays and num_envs > 1:
            with pytest.raises(ValueError, match="has 1 rows for 2 environments"):
                env.set_state_dict(state)
            continue
        env.reset(seed=2)
        env.step(torch.zeros(num_envs, 8))
        env.set_state_dict(state)
        after.append(flatten(env.get_state_dict()))
    for other in after[1:]:
        assert all(torch.equal(value, after[0][name]) for name, value in other.items())
    assert torch.equal(after[0]["task/elapsed_steps"], torch.full((num_envs, 1), 8.0))
    env.close()


def to_arrays(nested: dict[str, Any]) -> dict[str, Any]:
    return {name: to_arrays(value) if isinstance(value, dict) else value.numpy() for name, value in nested.items()}


def squeezed(nested: dict[str, Any]) -> dict[str, Any]:
    """The first row of each array, without the dimension of the batch: what ManiSkill's replay passes."""
    return {name: squeezed(value) if isinstance(value, dict) else value[0] for name, value in nested.items()}


def test_setting_the_state_that_is_there_changes_nothing() -> None:
    env = bare("BunchOfColors3-v0", num_envs=2, render_backend="none", sim_threads=1)
    actions = random_actions(env, 16, seed=1)
    ways = []
    for sets in (False, True):
        env.reset(seed=1)
        way = []
        for action in actions:
            way.append(env.step(action)[0].clone())
            if sets:
                env.set_state_dict(env.get_state_dict())
        ways.append(torch.stack(way))
    assert torch.equal(*ways)
    env.close()
