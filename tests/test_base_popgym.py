"""What differs from POPGym in the environments on top of it, fault by fault, and what is the same."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from base_helpers import make, same
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import RecordEpisodeStatistics

from mikasa_base.agents.agent import play
from mikasa_base.agents.control import LeanOnVelocities
from mikasa_base.registry import BY_NAME, VARIANTS, load

FAMILIES = [row.name for row in BY_NAME.values() if row.extra == "popgym"]


def inner(env: gym.Env[Any, Any]) -> Any:
    """POPGym's own environment, for its hidden state."""
    return env.unwrapped._env  # type: ignore[attr-defined]


def test_every_row_of_popgym_is_there() -> None:
    assert len(FAMILIES) == 16
    assert {family for family in FAMILIES if BY_NAME[family].weak} == {
        "HigherLower",
        "VelocityOnlyCartPole",
        "LabyrinthExplore",
        "LabyrinthEscape",
    }


@pytest.mark.filterwarnings("ignore:Maze environments:DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_an_episode_is_that_of_popgym(family: str) -> None:
    """Rewards and ends of the same random actions, on POPGym's class with the same generator."""
    env = make(f"{family}-v0")
    theirs = type(inner(env))(**_upstream_kwargs(family, VARIANTS[f"{family}-v0"].kwargs))
    env.reset(seed=5)
    theirs.np_random = np.random.default_rng()
    # The generator that the adapter handed over has moved on by the reset, so the reset is done over on both sides.
    theirs.np_random.bit_generator.state = env.unwrapped.np_random.bit_generator.state
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - mazelib draws from the global ones
    env.reset()
    if "Labyrinth" in family:
        seed = int(theirs.np_random.integers(2**32))
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
    theirs.reset()
    random.setstate(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    env.action_space.seed(5)
    scale = 2 if "Pendulum" in family else 1
    over = False
    while not over:
        action = env.action_space.sample()
        _, reward, terminated, truncated, info = env.step(action)
        _, their_reward, their_end, their_cut, _ = theirs.step(scale * action)
        assert reward == pytest.approx(their_reward)
        over = terminated or truncated
        assert over == (their_end or their_cut)
        assert not info
    env.close()


def _upstream_kwargs(family: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = {name: value for name, value in kwargs.items() if name != "previous_action"}
    return {"maze_dims": (kwargs["size"], kwargs["size"])} if "Labyrinth" in family else kwargs


@pytest.mark.parametrize(
    "family", ["CountRecall", "MultiarmedBandit", "HigherLower", "LabyrinthExplore", "LabyrinthEscape"]
)
def test_infos_that_gave_the_answer_away_are_empty(family: str) -> None:
    env = make(f"{family}-v0")
    _, info = env.reset(seed=0)
    theirs = inner(env)
    assert theirs.reset()[1], "POPGym tells nothing any more: the docs may be shortened"
    assert info == {}
    assert env.step(env.action_space.sample())[-1] == {}


def test_only_the_first_observation_of_repeat_first_says_so() -> None:
    env = make("RepeatFirst-v0")
    for _ in range(2):
        obs, _ = env.reset(seed=1)
        flags, over = [obs[0]], False
        while not over:
            obs, _, over, _, _ = env.step(0)
            flags.append(obs[0])
        assert flags == [1] + 51 * [0]


@pytest.mark.parametrize("family", ["Battleship", "MineSweeper"])
def test_the_observation_names_the_tile(family: str) -> None:
    env = make(f"{family}-v0")
    size = int(env.action_space.nvec[0])  # type: ignore[attr-defined]
    obs, _ = env.reset(seed=0)
    assert obs[1].tolist() == [size, size]
    action = np.array([1, 2])
    obs, *_ = env.step(action)
    assert obs[1].tolist() == [1, 2]
    action[:] = 0
    assert obs[1].tolist() == [1, 2], "the observation shares its memory with the action"


@pytest.mark.parametrize("family", ["Battleship", "MineSweeper", "MultiarmedBandit", "Concentration"])
def test_the_previous_action_is_shown_if_asked_for(family: str) -> None:
    bare, shown = (make(f"{family}-v0", previous_action=value) for value in (False, True))
    assert bare.observation_space == inner(bare).observation_space
    assert isinstance(shown.observation_space, spaces.Tuple)
    assert shown.observation_space[0] == bare.observation_space
    one, (two, action) = bare.reset(seed=3)[0], shown.reset(seed=3)[0]
    assert same(one, two)
    assert not bare.action_space.contains(action), "at the reset there was none"
    bare.action_space.seed(3)
    for _ in range(5):
        taken = bare.action_space.sample()
        came, (seen, *rest) = bare.step(taken), shown.step(taken)
        assert same(came[0], seen[0])
        assert same(seen[1], taken if isinstance(taken, np.ndarray) else int(taken))
        assert same(list(came[1:4]), rest[:3])
        if came[2]:
            break


def test_velocities_are_shown_from_the_reset_on() -> None:
    env = make("VelocityOnlyCartPole-v0")
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        assert obs == pytest.approx(inner(env).get_state()[[1, 3]])
        obs, *_ = env.step(1)
        assert obs == pytest.approx(inner(env).get_state()[[1, 3]])


@pytest.mark.parametrize("family", ["LabyrinthExplore", "LabyrinthEscape"])
def test_the_agent_is_in_the_middle_of_what_it_sees(family: str) -> None:
    """Also on the rim, where POPGym moves the view."""
    env = make(f"{family}-v0")
    moved = 0
    for seed in range(12):
        obs, _ = env.reset(seed=seed)
        theirs = inner(env)
        y, x = theirs.position
        assert obs[4] == theirs.maze.grid[y, x] == 2, "the start"
        moved += not np.array_equal(obs[:9], theirs.local_view(theirs.maze.grid).ravel())
    assert moved, "POPGym's view is the same: the mending may go"


@pytest.mark.parametrize("family", ["LabyrinthExplore", "LabyrinthEscape"])
def test_mazes_follow_from_the_seed_and_not_from_the_global_generators(family: str) -> None:
    env = make(f"{family}-v0")

    def mazes(seed: int) -> list[Any]:
        env.reset(seed=seed)
        first = inner(env).maze.grid.copy()
        env.reset()
        return [first, inner(env).maze.grid.copy()]

    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    one = mazes(1)
    assert random.getstate() == before[0]
    assert same(np.random.get_state(), before[1])  # noqa: NPY002
    random.random()
    np.random.random()  # noqa: NPY002
    assert same(one, mazes(1))
    assert not same(one[0], one[1])
    assert not same(one, mazes(2))


def test_an_episode_does_not_end_both_ways() -> None:
    """The last of 64 shots at Battleship may sink the last ship."""
    env = make("Battleship-v0")
    for seed in range(4):
        env.reset(seed=seed)
        board = inner(env).board
        empty = np.argwhere(board == 0)
        for tile in [*empty, *np.argwhere(board == 1)]:
            *_, terminated, truncated, _ = env.step(tile)
        assert (terminated, truncated) == (True, False)


def test_torques_are_parts_of_the_greatest() -> None:
    env = make("PositionOnlyPendulum-v0")
    assert env.action_space == spaces.Box(-1, 1, (1,), np.float32)
    env.reset(seed=0)
    env.step(np.array([0.5], np.float32))
    assert inner(env).last_u == pytest.approx(1.0)
    env.step(np.array([7.0], np.float32))
    assert inner(env).last_u == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("family", "action"),
    [
        ("RepeatFirst", 4),
        ("RepeatFirst", -1),
        ("RepeatFirst", 0.5),
        ("Concentration", 52),
        ("Battleship", np.array([0, 8])),
        ("Battleship", 3),
        ("PositionOnlyPendulum", np.array([np.nan], np.float32)),
        ("PositionOnlyPendulum", 0.5),
    ],
)
def test_an_action_outside_the_space_is_named(family: str, action: Any) -> None:
    env = make(f"{family}-v0", disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action=.*should be"):
        env.step(action)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_needs_a_reset(family: str) -> None:
    env = make(f"{family}-v0", disable_env_checker=True).unwrapped
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize(
    ("family", "kwargs", "named"),
    [
        ("RepeatFirst", {"num_decks": 0}, "num_decks=0"),
        ("RepeatPrevious", {"num_decks": 1, "k": 52}, "k=52 should be an integer from 1 to 51"),
        ("CountRecall", {"deck_type": "hearts"}, "deck_type='hearts' should be 'colors', 'suits' or 'ranks'"),
        ("Concentration", {"deck_type": "suits"}, "deck_type='suits'"),
        ("Battleship", {"previous_action": 1}, "previous_action=1 should be False or True"),
        ("MineSweeper", {"difficulty": "Easy"}, "difficulty='Easy'"),
        ("LabyrinthEscape", {"size": 11}, "size=11 should be even"),
        ("LabyrinthExplore", {"size": 4}, "size=4 should be an integer from 6 to 100"),
        ("NoisyPositionOnlyCartPole", {"noise_sigma": -0.1}, "noise_sigma=-0.1"),
        ("PositionOnlyPendulum", {"max_episode_length": 0}, "max_episode_length=0"),
    ],
)
def test_bad_arguments_are_named(family: str, kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        make(f"{family}-v0", **kwargs)


@pytest.mark.parametrize("family", ["LabyrinthExplore", "LabyrinthEscape"])
def test_the_smallest_maze_can_be_played(family: str) -> None:
    env = make(f"{family}-v0", size=6)
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        assert obs.shape == (10,)


@pytest.mark.parametrize("family", ["Battleship", "MineSweeper"])
def test_a_tensor_is_an_action(family: str) -> None:
    env = make(f"{family}-v0")
    env.reset(seed=0)
    expected = env.step(np.array([1, 2]))
    env.reset(seed=0)
    found = env.step(torch.tensor([1, 2]))
    assert found[1:] == expected[1:]
    np.testing.assert_equal(found[0], expected[0])
    with pytest.raises(ValueError, match="should be in MultiDiscrete"):
        env.step(torch.tensor([1, 99]))


def test_without_memory_a_cart_pole_of_velocities_is_as_easy() -> None:
    """So the Easy preset tests no memory: the pole stays up for all of its 200 steps."""
    env = make("VelocityOnlyCartPoleEasy-v0", disable_env_checker=True)
    played = play(env, LeanOnVelocities(env, np.random.default_rng(0)), 20, seed=7)
    assert (played.lengths == 200).all()


def test_noise_is_as_wide_as_asked_for() -> None:
    env = make("NoisyPositionOnlyCartPole-v0", noise_sigma=0.05)
    off = []
    for seed in range(300):
        obs, _ = env.reset(seed=seed)
        off.append(obs - inner(env).get_state()[[0, 2]])
    assert np.std(off, axis=0) == pytest.approx([0.05, 0.05], rel=0.2)
    assert np.mean(off, axis=0) == pytest.approx([0, 0], abs=0.015)


@pytest.mark.parametrize("sigma", [0.0, 0.02])
def test_noise_of_the_pendulum_is_as_wide_as_asked_for(sigma: float) -> None:
    """Where the bounds do not clip it."""
    env = make("NoisyPositionOnlyPendulum-v0", noise_sigma=sigma)
    off = []
    for seed in range(300):
        obs, _ = env.reset(seed=seed)
        angle = inner(env).state[0]
        off += [seen - true for seen, true in zip(obs, (np.cos(angle), np.sin(angle)), strict=True) if abs(true) < 0.9]
    assert np.std(off) == pytest.approx(sigma, rel=0.2, abs=1e-6)


def test_the_previous_action_makes_a_bandit_easy_without_memory() -> None:
    """What the docstring says: stay with an arm while it pays, which takes no memory if the arm is shown."""
    env = RecordEpisodeStatistics(make("MultiarmedBandit-v0", previous_action=True, disable_env_checker=True))
    returns = []
    rng = np.random.default_rng(0)
    for episode in range(40):
        (paid, arm), _ = env.reset(seed=0 if episode == 0 else None)
        total, over = 0.0, False
        while not over:
            action = arm if paid else int(rng.integers(10))
            (paid, arm), reward, _, over, _ = env.step(action)
            total += float(reward)
        returns.append(total)
    assert np.mean(returns) > 0.35


@pytest.mark.parametrize("env_id", ["BattleshipHard-v0", "MineSweeperMedium-v0"])
def test_memory_shows_with_more_episodes(env_id: str) -> None:
    """The scores of the table, closer than the test of all environments has time for."""
    variant = VARIANTS[env_id]
    env = make(env_id, disable_env_checker=True)
    for score, agent in (
        (variant.perfect, variant.row.perfect_agent),
        (variant.memoryless, variant.row.memoryless_agent),
    ):
        assert agent is not None
        returns = play(env, load(agent)(env, np.random.default_rng(1)), 60, seed=2).returns
        assert returns.mean() == pytest.approx(score, abs=4 * returns.std(ddof=1) / 60**0.5)


@pytest.mark.parametrize("name", ["RepeatPrevious-v0", "Autoencode-v0"])
def test_samples_of_actions_do_not_depend_on_those_of_observations(name: str) -> None:
    actions = []
    for also_observations in (False, True):
        env = make(name)
        env.action_space.seed(0)
        drawn = []
        for _ in range(8):
            drawn.append(env.action_space.sample())
            if also_observations:
                env.observation_space.sample()
        actions.append(drawn)
    assert actions[0] == actions[1]
