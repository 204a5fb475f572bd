"""The batched environments of mikasa_base: each is, to the bit, as many single ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from base_helpers import same
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv
from mikasa_base.envs.drawing import Image, canvas
from mikasa_base.registry import ROWS, VARIANTS

BATCHED = [i for i, variant in VARIANTS.items() if variant.row.vector_entry_point]
FAMILIES = [f"{row.name}-v0" for row in ROWS if row.vector_entry_point]
SHORT = {"max_steps": 40}
"""For Numpad, whose episodes are long."""


def short(env_id: str) -> dict[str, Any]:
    return SHORT if "max_steps" in VARIANTS[env_id].kwargs else {}


def actions_of(env_id: str, num_envs: int, steps: int) -> np.ndarray[Any, Any]:
    """Random ones, (steps, num_envs, ...); mostly ahead in the corridor of PassiveTMaze, which would take long else."""
    space = gym.make(env_id, disable_env_checker=True).action_space
    uniform = np.random.default_rng(0).random((steps, num_envs, *(space.shape or ())))
    if isinstance(space, gym.spaces.Discrete):
        if "TMaze" in env_id:
            return np.where(uniform < 0.8, 0, (20 * uniform).astype(int) % 4)
        return (space.n * uniform).astype(int)
    return (2 * uniform - 1).astype(np.float32)


def run(envs: gym.vector.VectorEnv[Any, Any, Any], actions: np.ndarray[Any, Any], seed: Any = 3) -> list[Any]:
    came: list[Any] = [envs.reset(seed=seed)]
    came.extend(envs.step(action) for action in actions)
    came.append(envs.reset())  # in the middle of episodes, the generators go on
    came.extend(envs.step(action) for action in actions[:5])
    came.append(envs.reset(seed=seed))  # and begin again
    came.extend(envs.step(action) for action in actions[:5])
    return came


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("env_id", BATCHED)
def test_a_batch_is_as_many_single_environments(env_id: str, mode: str) -> None:
    num_envs, steps = 6, 130
    actions = actions_of(env_id, num_envs, steps)
    single = gym.make_vec(
        env_id,
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode(mode)},
        disable_env_checker=True,
        **short(env_id),
    )
    batch = gym.make_vec(
        env_id, num_envs, vectorization_mode="vector_entry_point", autoreset_mode=mode, **short(env_id)
    )
    assert batch.metadata["autoreset_mode"] is AutoresetMode(mode)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(batch, name) == getattr(single, name)
    ours, theirs = run(batch, actions), run(single, actions)
    for t, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        assert same(one[:-1], two[:-1]), t
        assert one[-1].keys() == two[-1].keys()
        for i in np.flatnonzero(one[-1].get("_final_obs", [])):
            assert same(one[-1]["final_obs"][i], two[-1]["final_obs"][i])
        assert batch.observation_space.contains(one[0])
    if VARIANTS[env_id].steps < steps or short(env_id):
        ends = sum(int((part[2] | part[3]).sum()) for part in ours if len(part) == 5)
        assert ends >= num_envs, "no episode was followed by another"
    assert batch.np_random_seed == single.np_random_seed


@pytest.mark.parametrize("env_id", FAMILIES)
def test_the_size_of_a_batch_changes_nothing_for_its_first_environments(env_id: str) -> None:
    actions = actions_of(env_id, 9, 60)
    large = run(gym.make_vec(env_id, 9, **short(env_id)), actions)
    small = run(gym.make_vec(env_id, 4, **short(env_id)), actions[:, :4])
    for one, two in zip(large, small, strict=True):
        assert same([np.asarray(part)[:4] for part in one[:-1]], list(two[:-1]))


@pytest.mark.parametrize("env_id", FAMILIES)
def test_what_was_handed_out_stays_as_it_is(env_id: str) -> None:
    envs = gym.make_vec(env_id, 3)
    actions = actions_of(env_id, 3, 20)
    came: list[Any] = [envs.reset(seed=0)]
    kept: list[Any] = [np.copy(came[0][0])]
    for action in actions:
        untouched = np.copy(action)
        came.append(envs.step(action))
        kept.extend(np.copy(part) for part in came[-1][:4])
        assert np.array_equal(action, untouched)
    assert same([came[0][0], *(part for one in came[1:] for part in one[:4])], kept)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("env_id", FAMILIES)
def test_a_step_limit_truncates_as_in_single_environments(env_id: str, mode: str) -> None:
    kind = {"vector_kwargs": {"autoreset_mode": AutoresetMode(mode)}, "vectorization_mode": "sync"}
    single = gym.make_vec(env_id, 3, max_episode_steps=7, disable_env_checker=True, **kind)  # type: ignore[arg-type]
    batch = gym.make_vec(env_id, 3, max_episode_steps=7, autoreset_mode=mode)
    actions = actions_of(env_id, 3, 40)
    ours, theirs = run(batch, actions), run(single, actions)
    assert same([part[:-1] for part in ours], [part[:-1] for part in theirs])
    assert any(part[3].any() for part in ours if len(part) == 5), "no episode was truncated"


def test_a_step_limit_counts_anew_where_an_episode_is_reset() -> None:
    envs = gym.make_vec("MemoryLength-v0", 2, max_episode_steps=3, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    envs.reset(options={"reset_mask": np.array([False, True])})
    envs.step(np.zeros(2, int))
    assert envs.step(np.zeros(2, int))[3].tolist() == [True, False]
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.step(np.zeros(2, int))[3].tolist() == [False, True]


def test_minus_one_is_no_step_limit() -> None:
    envs = gym.make_vec("MemoryLength-v0", 2, max_episode_steps=-1)
    envs.reset(seed=0)
    ends = [envs.step(np.zeros(2, int))[2:4] for _ in range(11)]
    assert not any(truncated.any() for _, truncated in ends)
    assert ends[-1][0].all(), "the episode ends by itself after memory_length + 1 steps"


def test_disabled_autoreset_and_the_mask_of_a_reset() -> None:
    envs = gym.make_vec("PassiveTMaze-v0", 3, corridor_length=2, autoreset_mode="Disabled")
    envs.reset(seed=[5, None, 7])  # type: ignore[arg-type]
    twin = gym.make("PassiveTMaze-v0", corridor_length=2)
    twin.reset(seed=7)
    ahead = np.zeros(3, int)
    for _ in range(3):
        _, _, terminated, _, _ = envs.step(ahead)
    assert terminated.all()
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\] are over"):
        envs.step(ahead)
    obs, _ = envs.reset(options={"reset_mask": np.array([False, False, True])})
    assert same(obs[2], twin.reset()[0]), "its generator goes on"
    assert obs[:2, 0].all(), "the others stay where they were"
    with pytest.raises(ResetNeeded, match=r"\[0, 1\] are over"):
        envs.step(ahead)


@pytest.mark.parametrize(
    ("mask", "hint"),
    [
        ([True, False], "bool array"),
        (np.ones(2), "bool array"),
        (np.ones(3, bool), "bool array"),
        (np.zeros(2, bool), "no env"),
    ],
)
def test_a_bad_mask_is_named(mask: Any, hint: str) -> None:
    envs = gym.make_vec("MemoryLength-v0", 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=hint):
        envs.reset(options={"reset_mask": mask})


@pytest.mark.parametrize(
    ("env_id", "actions"),
    [
        ("PassiveTMaze-v0", [0]),
        ("PassiveTMaze-v0", [0, 4]),
        ("PassiveTMaze-v0", [-1, 0]),
        ("PassiveTMaze-v0", [0.0, 1.0]),
        ("NumpadContinuous-v0", [[0.0, 0.0]]),
        ("NumpadContinuous-v0", [[0.0, 0.0], [np.nan, 0.0]]),
    ],
)
def test_bad_actions_are_named(env_id: str, actions: list[Any]) -> None:
    envs = gym.make_vec(env_id, 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions.*should"):
        envs.step(np.array(actions))


def test_misuse_of_a_batch_is_named() -> None:
    with pytest.raises(ValueError, match="num_envs=0 should be an integer from 1"):
        gym.make_vec("MemoryLength-v0", 0)
    with pytest.raises(ValueError, match="no_such_thing=1"):
        gym.make_vec("MemoryLength-v0", 2, no_such_thing=1)
    for steps in (0, -2, 2.5, True):
        with pytest.raises(ValueError, match=f"max_episode_steps={steps} should be an integer from"):
            gym.make_vec("MemoryLength-v0", 2, max_episode_steps=steps)
    with pytest.raises(ValueError, match="render_mode='human'"):
        gym.make_vec("MemoryLength-v0", 2, render_mode="human")
    envs = gym.make_vec("MemoryLength-v0", 2)
    with pytest.raises(ResetNeeded, match="call reset"):
        envs.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="3 entries and should have 2"):
        envs.reset(seed=[1, 2, 3])  # type: ignore[arg-type]


def test_a_batch_is_made_again_from_its_spec() -> None:
    envs = gym.make_vec("PassiveTMazeDense-v0", 5, autoreset_mode="SameStep", corridor_length=3)
    assert envs.spec is not None
    again = gym.make_vec(EnvSpec.from_json(envs.spec.to_json()))
    assert again.num_envs == 5
    actions = actions_of("PassiveTMazeDense-v0", 5, 20)
    assert same([part[:-1] for part in run(envs, actions)], [part[:-1] for part in run(again, actions)])


def test_a_picture_of_each_environment() -> None:
    envs = gym.make_vec("NumpadDiscrete-v0", 2, render_mode="rgb_array")
    single = gym.make("NumpadDiscrete-v0", render_mode="rgb_array")
    envs.reset(seed=4)
    pictures = envs.render()
    assert pictures is not None
    assert len(pictures) == 2
    for i, picture in enumerate(pictures):
        single.reset(seed=4 + i)
        assert same(picture, single.render())


def test_gymnasium_wrappers_of_batches_fit() -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec("MemoryLength-v0", 8))
    envs.reset(seed=0)
    returns: list[float] = []
    for _ in range(60):
        *_, infos = envs.step(np.zeros(8, int))
        returns.extend(infos["episode"]["r"][infos["_episode"]] if "episode" in infos else [])
    assert len(returns) == 8 * (60 // 12)
    assert set(np.abs(returns)) == {1}


class Counters(Game):
    """Counts up to 2; its observations are a dict."""

    observation_space = gym.spaces.Dict(
        {"count": gym.spaces.Box(0, 9, (1,), np.float32), "pixels": gym.spaces.Box(0, 255, (2, 2), np.uint8)}
    )
    action_space = gym.spaces.Discrete(2)
    num_uniforms = 1

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.count, self.color = np.zeros(num_envs), np.zeros(num_envs)

    def begin(self, which: Ints, uniforms: Floats) -> None:
        self.count[which], self.color[which] = 0, 256 * uniforms[:, 0]

    def step(self, actions: Any) -> tuple[Floats, Bools, Bools]:
        self.count += actions
        return self.count.copy(), self.count >= 2, np.zeros(self.num_envs, np.bool_)

    def observe(self) -> dict[str, np.ndarray[Any, Any]]:
        pixels = np.broadcast_to(self.color[:, None, None], (self.num_envs, 2, 2)).astype(np.uint8)
        return {"count": self.count[:, None].astype(np.float32), "pixels": pixels}

    def frame(self, i: int) -> Image:
        return canvas(2, 2)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_game_may_return_dicts(mode: str) -> None:
    batch = BatchedEnv(Counters(3), autoreset_mode=mode)
    singles: Any = SyncVectorEnv([lambda: SingleEnv(Counters(1))] * 3, autoreset_mode=AutoresetMode(mode))
    ends = 0
    actions = np.random.default_rng(0).integers(0, 2, (20, 3))
    for one, two in zip(run(batch, actions), run(singles, actions), strict=True):
        assert same(one[:-1], two[:-1])
        assert batch.observation_space.contains(one[0])
        for i in np.flatnonzero(one[-1].get("_final_obs", [])):
            assert same(one[-1]["final_obs"][i], two[-1]["final_obs"][i])
        ends += int(one[2].sum()) if len(one) == 5 else 0
    assert ends > 3
