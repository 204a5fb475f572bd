"""The rules of MemoryLength, PassiveTMaze, MemoryCards and Numpad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import mikasa_base
from mikasa_base.agents.agent import RandomAgent, play
from mikasa_base.agents.numpad import Planner, neighbors
from mikasa_base.envs.batched import SingleEnv
from mikasa_base.envs.numpad import MOVES, _walks

UP, RIGHT, DOWN, LEFT = range(4)


def make(env_id: str, **kwargs: Any) -> SingleEnv:
    env = gym.make(env_id, **kwargs).unwrapped
    assert isinstance(env, SingleEnv)
    return env


def steps(env: gym.Env[Any, Any], actions: Iterable[Any]) -> list[tuple[Any, float, bool, bool]]:
    return [env.step(action)[:4] for action in actions]  # type: ignore[misc]


def rules(env: SingleEnv) -> Any:
    """The game, whose state these tests look into."""
    return env.game


# --- MemoryLength --------------------------------------------------------------------------------------------------


def test_memory_length_shows_the_bits_twice_and_asks_once() -> None:
    env = make("MemoryLength-v0", memory_length=5, num_bits=4)
    obs, _ = env.reset(seed=2)
    came = [obs, *(part[0] for part in steps(env, [0] * 6))]
    bits, query = came[0][2:], int(rules(env).query[0])
    assert set(bits) <= {-1, 1}
    assert query > 0, "another seed, please: this query looks like none"
    np.testing.assert_allclose([o[0] for o in came], [1, 1, 0.8, 0.6, 0.4, 0.2, 0], atol=1e-6)
    assert [int(o[1]) for o in came] == [0, 0, 0, 0, 0, query, 0]
    assert (came[1][2:] == bits).all()
    assert not np.any([o[2:] for o in came[2:]])


@pytest.mark.parametrize("right", [True, False])
def test_memory_length_pays_for_the_last_answer_alone(right: bool) -> None:
    env = make("MemoryLength-v0", memory_length=7, num_bits=3)
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        rest = steps(env, [seed % 2] * 7)
        assert all(part[1:] == (0.0, False, False) for part in rest)
        bit = int(obs[2 + int(rest[-1][0][1])] > 0)
        assert env.step(bit if right else 1 - bit)[1:4] == (1.0 if right else -1.0, True, False)


def test_memory_length_asks_for_every_bit_and_takes_either_value() -> None:
    envs = gym.make_vec("MemoryLength-v0", 4000, num_bits=4)
    envs.reset(seed=0)
    game = envs.unwrapped.game  # type: ignore[attr-defined]
    assert np.abs(game.bits.mean(axis=0) - 0.5).max() < 4 * 0.5 / 4000**0.5
    for k in range(4):  # which one is asked for has nothing to do with what it is
        counts = np.bincount(2 * game.query + game.bits[:, k], minlength=8)
        assert np.abs(counts - 500).max() < 4 * (4000 * 1 / 8 * 7 / 8) ** 0.5


def test_memory_length_recall_shows_nothing_of_the_bits() -> None:
    """Environments that differ in nothing but the bits look alike when it is time to answer."""
    seen = set()
    for seed in range(40):
        env = make("MemoryLength-v0", num_bits=1)
        first, _ = env.reset(seed=seed)
        seen.add((first.tobytes(), steps(env, [0] * 10)[-1][0].tobytes()))
    assert len({first for first, _ in seen}) == 2
    assert len({last for _, last in seen}) == 1


# --- PassiveTMaze --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_t_maze_shows_the_goal_once(seed: int) -> None:
    env = make("PassiveTMaze-v0", corridor_length=6)
    obs, _ = env.reset(seed=seed)
    assert obs[0] == 0
    assert abs(obs[1]) == 1
    # against the walls, one step ahead, back, and into the end again
    for action in (1, 2, 3, 0, 2, 2):
        assert env.step(action)[0].tolist() == [0, 0]


def test_t_maze_looks_alike_for_both_goals_but_at_the_start() -> None:
    first, later = set(), set()
    for seed in range(8):
        env = make("PassiveTMaze-v0")
        first.add(env.reset(seed=seed)[0].tobytes())
        later.add(b"".join(part[0].tobytes() for part in steps(env, [0] * 10)))
    assert (len(first), len(later)) == (2, 1)


@pytest.mark.parametrize("turn", [1, 3])
def test_t_maze_pays_at_the_goal(turn: int) -> None:
    env = make("PassiveTMaze-v0", corridor_length=4, goal_reward=2.5)
    returns = set()
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        side = 1 if turn == 1 else -1
        *corridor, end = steps(env, [0, 0, 0, 0, turn])
        assert [part[0].tolist() for part in corridor] == [[0, 0]] * 3 + [[1, 0]]
        assert all(part[1:] == (0.0, False, False) for part in corridor)
        assert end[0].tolist() == [1, side]
        assert end[1:] == (2.5 if obs[1] == side else 0.0, True, False)
        returns.add(end[1])
    assert returns == {0.0, 2.5}


def test_t_maze_ends_in_time_wherever_the_agent_is() -> None:
    env = make("PassiveTMaze-v0", corridor_length=3)
    env.reset(seed=0)
    assert [part[1:] for part in steps(env, [2, 2, 2, 2])] == [(0.0, False, False)] * 3 + [(0.0, True, False)]


def test_t_maze_walls() -> None:
    env = make("PassiveTMaze-v0", corridor_length=20)
    env.reset(seed=0)
    game = rules(env)
    end = 20
    for action, place in ((2, 0), (1, 0), (3, 0), (0, 1), (1, 1), (3, 1), (0, 2), (2, 1), (2, 0)):
        env.step(action)
        assert game.place[0] == place
    game.place[:] = end
    ways = ((0, end), (1, game.up), (1, game.up), (0, game.up), (2, game.up), (3, end), (3, game.down))
    for action, place in (*ways, (3, game.down), (0, game.down), (1, end), (2, end - 1)):
        env.step(action)
        assert game.place[0] == place


def test_t_maze_dense_charges_for_lagging_behind() -> None:
    env = make("PassiveTMazeDense-v0")
    env.reset(seed=0)
    on_time = steps(env, [0] * 10)
    assert [part[1] for part in on_time] == [0.0] * 10
    env.reset(seed=0)
    late = steps(env, [1, *[0] * 10])
    assert [part[1] for part in late[:-1]] == [-0.1] * 10
    assert late[-1][1] == 0.0, "the last step pays for the goal alone"
    longer = make("PassiveTMazeDense-v0", corridor_length=50)
    longer.reset(seed=0)
    assert sum(part[1] for part in steps(longer, [2] * 50)) == pytest.approx(-1.0), "for any length"
    env = make("PassiveTMaze-v0", distract_reward=0.3, penalty=-1)
    env.reset(seed=0)
    np.testing.assert_allclose([part[1] for part in steps(env, [2, 0, 2, 0])], [-0.7, -1, -0.7, -1])


# --- MemoryCards ---------------------------------------------------------------------------------------------------


def up_of(obs: Any) -> int:
    (up,) = np.flatnonzero((obs > 0) & (obs <= len(obs) // 2))
    return int(up)


def test_cards_lie_in_pairs_in_random_order() -> None:
    places: Counter[int] = Counter()
    for seed in range(300):
        env = make("MemoryCards-v0", num_pairs=3)
        obs, _ = env.reset(seed=seed)
        faces = rules(env).faces[0]
        assert sorted(faces) == [1, 1, 2, 2, 3, 3]
        assert obs[up_of(obs)] == faces[up_of(obs)]
        places.update(np.flatnonzero(faces == 1).tolist())
        places[100 + up_of(obs)] += 1
    for k in range(6):
        assert abs(places[k] - 100) < 4 * (300 * 1 / 3 * 2 / 3) ** 0.5
        assert abs(places[100 + k] - 50) < 4 * (300 * 1 / 6 * 5 / 6) ** 0.5


def test_the_mate_removes_both_and_any_other_card_neither() -> None:
    """Random picks, among them the card itself and removed ones."""
    env = make("MemoryCards-v0", num_pairs=4)
    obs, _ = env.reset(seed=1)
    faces, left = rules(env).faces[0].copy(), set(range(8))
    outcomes: Counter[str] = Counter()
    for pick in np.random.default_rng(0).integers(8, size=300).tolist():
        up = up_of(obs)
        mate = next(k for k in range(8) if faces[k] == faces[up] and k != up)
        outcomes["mate" if pick == mate else "itself" if pick == up else "other" if pick in left else "removed"] += 1
        obs, reward, terminated, truncated, _ = env.step(pick)
        left -= {up, mate} if pick == mate else set()
        assert reward == (0.0 if pick == mate else -1.0)
        assert set(np.flatnonzero(obs != 5)) == left
        assert terminated == (not left)
        if left:
            assert obs[up_of(obs)] == faces[up_of(obs)]
        if terminated or truncated:
            obs, _ = env.reset()
            faces, left = rules(env).faces[0].copy(), set(range(8))
    assert min(outcomes[what] for what in ("mate", "itself", "other", "removed")) > 10


def test_a_new_card_is_turned_up_at_random_after_every_step() -> None:
    env = make("MemoryCards-v0", num_pairs=3)
    shown: Counter[int] = Counter()
    env.reset(seed=0)
    for _ in range(60):
        obs, _ = env.reset()
        for _ in range(17):
            obs = env.step(up_of(obs))[0]  # itself, in vain
            shown[up_of(obs)] += 1
    assert set(shown) == set(range(6))
    assert np.abs(np.array(list(shown.values())) - 170).max() < 4 * (1020 * 1 / 6 * 5 / 6) ** 0.5


def test_which_card_is_turned_up_says_nothing_of_where_the_faces_lie() -> None:
    envs = gym.make_vec("MemoryCards-v0", 6000, num_pairs=3)
    envs.reset(seed=0)
    game = envs.unwrapped.game  # type: ignore[attr-defined]
    for _ in range(3):
        for card in range(6):
            counts = np.bincount(3 * game.up + game.faces[:, card] - 1, minlength=18)
            assert np.abs(counts - 6000 / 18).max() < 4 * (6000 * 1 / 18 * 17 / 18) ** 0.5
        envs.step(game.up)  # itself, in vain


def test_cards_end_after_2_n_squared_steps() -> None:
    env = make("MemoryCards-v0", num_pairs=3)
    obs, _ = env.reset(seed=0)
    for t in range(1, 19):
        obs, reward, terminated, truncated, _ = env.step(up_of(obs))
        assert (reward, terminated, truncated) == (-1.0, False, t == 18)


def test_clearing_the_table_in_the_last_step_terminates() -> None:
    env = make("MemoryCards-v0", num_pairs=1)
    obs, _ = env.reset(seed=0)
    obs = env.step(up_of(obs))[0]
    assert env.step(1 - up_of(obs))[1:4] == (0.0, True, False)


# --- Numpad --------------------------------------------------------------------------------------------------------


def numpad(sequence: list[int], ball: int, env_id: str = "NumpadDiscrete-v0", **kwargs: Any) -> tuple[SingleEnv, Any]:
    """A 3 x 3 board with this sequence and place of the ball."""
    env = make(env_id, sequence_length=len(sequence), **kwargs)
    env.reset(seed=0)
    game = rules(env)
    walk = next(k for k, walk in enumerate(game.walks.tolist()) if walk == sequence)
    start = ball - (ball > sequence[0])
    game.begin(np.array([0]), np.array([[(walk + 0.5) / len(game.walks), (start + 0.5) / 8]]))
    assert game.sequence[0].tolist() == sequence
    assert game.tile[0] == ball
    return env, game


def lit(obs: Any) -> list[int]:
    return [int(k) for k in np.flatnonzero(obs[0])]


def test_walks_are_all_that_visit_no_tile_twice() -> None:
    walks = _walks(3, 4)
    assert len(set(map(tuple, walks.tolist()))) == len(walks)
    for walk in walks.tolist():
        assert len(set(walk)) == 4
        assert all(b in neighbors(a, 3) for a, b in pairwise(walk))
    assert np.bincount(walks[:, 0]).tolist() == [8, 10, 8, 10, 8, 10, 8, 10, 8], "counted by hand"
    assert len(_walks(2, 4)) == 8, "each of four tiles, either way round"
    assert len(_walks(2, 2)) == 8


def test_the_ball_never_starts_on_the_first_tile() -> None:
    envs = gym.make_vec("NumpadDiscrete-v0", 4000)
    envs.reset(seed=0)
    game = envs.unwrapped.game  # type: ignore[attr-defined]
    assert not (game.tile == game.sequence[:, 0]).any()
    assert np.abs(np.bincount(game.tile, minlength=9) - 4000 / 9).max() < 6 * (4000 / 9) ** 0.5
    used = np.bincount(envs.unwrapped.game.sequence[:, 0], minlength=9)  # type: ignore[attr-defined]
    assert (used > 200).all()


def test_tiles_light_in_order_and_all_lights_show_for_one_step() -> None:
    env, _ = numpad([0, 1, 4, 3], ball=3)
    came = steps(env, [UP, RIGHT, DOWN, LEFT])
    assert [part[1] for part in came] == [1, 1, 1, 1]
    assert [lit(part[0]) for part in came] == [[0], [0, 1], [0, 1, 4], [0, 1, 3, 4]]
    # the first tile lies beside the last one, so the next step begins again
    came = steps(env, [UP, RIGHT, LEFT, RIGHT])
    assert [part[1] for part in came] == [1, 1, 0, 0]
    assert [lit(part[0]) for part in came] == [[0], [0, 1], [0], [0, 1]]


def test_after_all_were_lit_everything_can_be_done_again() -> None:
    env, _ = numpad([0, 1, 2], ball=3)
    came = steps(env, [UP, RIGHT, RIGHT, LEFT, LEFT, RIGHT, RIGHT])
    assert [part[1] for part in came] == [1, 1, 1, 0, 1, 1, 1]
    assert [lit(part[0]) for part in came] == [[0], [0, 1], [0, 1, 2], [], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("mistake", [[DOWN, UP], [UP]])
def test_a_wrong_tile_and_a_bump_put_the_lights_out_and_pay_only_once(mistake: list[int]) -> None:
    env, _ = numpad([0, 1, 2], ball=3)
    steps(env, [UP, RIGHT])
    came = steps(env, mistake)
    assert all(lit(part[0]) == [] and part[1] == 0 for part in came)
    came = steps(env, [LEFT, RIGHT, RIGHT])
    assert [part[1] for part in came] == [0, 0, 1], "only what goes beyond the best so far"
    assert lit(came[-1][0]) == [0, 1, 2]


def test_a_mistake_on_the_first_tile_lights_it_again() -> None:
    env, _ = numpad([0, 1, 2], ball=3)
    steps(env, [UP, RIGHT])
    came = steps(env, [LEFT, UP, LEFT])  # back onto it, and against two walls
    assert [lit(part[0]) for part in came] == [[0], [0], [0]]
    assert [part[1] for part in came] == [0, 0, 0]


def test_the_ball_of_the_observation_rolls_as_told() -> None:
    env, _ = numpad([8, 7, 6], ball=4)
    for action in (UP, LEFT, DOWN, DOWN, RIGHT, RIGHT, UP):
        seen = env.game.observe()
        assert isinstance(seen, np.ndarray)
        before = seen[0][1]
        after = env.step(action)[0][1]
        assert before.sum() == after.sum() == 1
        moved = np.argwhere(after)[0] - np.argwhere(before)[0]
        assert moved.tolist() == MOVES[action].tolist()


@pytest.mark.parametrize(("env_id", "length"), [("NumpadDiscrete-v0", 500), ("NumpadContinuous-v0", 200)])
def test_numpad_truncates(env_id: str, length: int) -> None:
    env = make(env_id)
    played = play(env, RandomAgent(env, np.random.default_rng(0)), 2, seed=0)
    assert played.lengths.tolist() == [length, length]


def test_a_rolling_ball_keeps_its_speed_and_stops_at_walls() -> None:
    env, _ = numpad([0, 1, 2], 4, "NumpadContinuous-v0")
    right = np.array([0, 1], np.float32)
    rest = np.zeros(2, np.float32)
    obs = env.step(right)[0]
    np.testing.assert_allclose(obs[:4], [30 / 60, 31 / 60, 0, 0.2], atol=1e-6)
    came = [part[0] for part in steps(env, [right] * 5)]
    np.testing.assert_allclose([o[3] * 5 for o in came], [2, 3, 4, 5, 5], atol=1e-5)
    np.testing.assert_allclose([o[1] * 60 for o in came], [33, 36, 40, 45, 50], atol=1e-4)
    came = [part[0] for part in steps(env, [rest] * 3)]
    np.testing.assert_allclose([o[1] * 60 for o in came], [55, 60, 60], atol=1e-4)
    np.testing.assert_allclose([o[3] * 5 for o in came], [5, 5, 0], atol=1e-5)


def test_a_ball_that_meets_one_wall_rolls_on_along_it() -> None:
    env, game = numpad([0, 1, 2], 4, "NumpadContinuous-v0")
    game.ball[0], game.velocity[0] = (30, 58), (1, 5)
    came = [part[0] for part in steps(env, [np.zeros(2, np.float32)] * 2)]
    np.testing.assert_allclose([o[:2] * 60 for o in came], [[31, 60], [32, 60]], atol=1e-4)
    np.testing.assert_allclose([o[2:4] * 5 for o in came], [[1, 0], [1, 0]], atol=1e-5)


def test_between_tiles_and_at_walls_nothing_happens() -> None:
    env, game = numpad([0, 1, 2], 3, "NumpadContinuous-v0")
    rest = np.zeros(2, np.float32)

    def roll(y: float, x: float) -> tuple[list[int], float]:
        game.ball[0], game.velocity[0] = (y, x), 0
        obs, reward, *_ = env.step(rest)
        return [int(k) for k in np.flatnonzero(obs[4:])], reward

    assert roll(10, 10) == ([0], 1)
    assert roll(10, 19) == ([0], 0), "between two tiles"
    assert roll(10, 14) == ([0], 0), "back on the tile that it was on"
    assert roll(10, 25) == ([0, 1], 1), "the edge belongs to the tile"
    assert roll(10, 30) == ([0, 1], 0), "still on it"
    assert roll(0, 30) == ([0, 1], 0), "at the wall"
    assert roll(10, 30) == ([0, 1], 0), "back on it"
    assert roll(35, 30) == ([], 0), "a wrong tile"
    assert roll(15, 15) == ([0], 0)


def test_discrete_pushes_are_those_of_the_continuous_form() -> None:
    pushed, _ = numpad([0, 1, 2], 4, "NumpadContinuousDiscreteActions-v0")
    rolled, _ = numpad([0, 1, 2], 4, "NumpadContinuous-v0")
    for action in np.random.default_rng(0).integers(4, size=100).tolist():
        a, b = pushed.step(action), rolled.step(MOVES[action].astype(np.float32))
        assert np.array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]


def test_continuous_actions_beyond_the_bounds_are_brought_to_them() -> None:
    one, _ = numpad([0, 1, 2], 4, "NumpadContinuous-v0")
    two, _ = numpad([0, 1, 2], 4, "NumpadContinuous-v0")
    assert np.array_equal(one.step(np.array([7.0, -9.0]))[0], two.step(np.array([1.0, -1.0]))[0])


def test_the_planner_knows_the_sequence_in_the_end() -> None:
    for seed in range(20):
        env = make("NumpadDiscrete-v0")
        obs, _ = env.reset(seed=seed)
        planner = Planner(3, np.random.default_rng(seed))
        for _ in range(200):
            tile = int(obs[1].argmax())
            obs = env.step(neighbors(tile, 3).index(planner.next_tile(int(obs[0].sum()), tile)))[0]
        assert planner.complete
        assert planner.known == rules(env).sequence[0].tolist()


# --- all of them ---------------------------------------------------------------------------------------------------

HERE = ("MemoryLength", "PassiveTMaze", "MemoryCards", "NumpadDiscrete", "NumpadContinuous")


@pytest.mark.parametrize(
    ("env_id", "name", "value", "hint"),
    [
        ("MemoryLength-v0", "memory_length", 0, "from 1 to"),
        ("MemoryLength-v0", "num_bits", 1.5, "integer"),
        ("MemoryLength-v0", "num_bits", True, "integer"),
        ("PassiveTMaze-v0", "corridor_length", -3, "from 1 to"),
        ("PassiveTMaze-v0", "penalty", 0.5, "at most 0"),
        ("PassiveTMaze-v0", "penalty", "densee", "'dense' or a finite number"),
        ("PassiveTMaze-v0", "goal_reward", float("nan"), "finite"),
        ("MemoryCards-v0", "num_pairs", 51, "from 1 to 50"),
        ("NumpadDiscrete-v0", "size", 1, "from 2 to 6"),
        ("NumpadDiscrete-v0", "sequence_length", 9, "from 2 to 8"),
        ("NumpadContinuous-v0", "max_steps", 0, "from 1"),
        ("MemoryCards-v0", "render_mode", "ascii", "rgb_array"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_bad_values_are_named_with_what_is_allowed(env_id: str, name: str, value: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}={value!r} should be .*{hint}"):
        gym.make(env_id, **{name: value})


@pytest.mark.parametrize("length", [np.int8(127), np.uint8(10)])
def test_a_small_integer_of_numpy_is_an_argument(length: Any) -> None:
    env = gym.make("MemoryLength-v0", memory_length=length)
    env.reset(seed=0)
    for step in range(int(length) + 1):
        *_, terminated, _, _ = env.step(0)
        assert terminated == (step == int(length))


@pytest.mark.parametrize("family", HERE)
def test_no_step_without_an_episode(family: str) -> None:
    env = make(f"{family}-v0")
    action = env.action_space.sample()
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(action)
    play(env, RandomAgent(env, np.random.default_rng(0)), 1, seed=0)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(action)


@pytest.mark.parametrize(("family", "action"), [("MemoryLength", 2), ("PassiveTMaze", -1), ("MemoryCards", 0.5)])
def test_an_action_outside_the_space_is_an_error(family: str, action: Any) -> None:
    env = make(f"{family}-v0")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions=\[.*should be integers from 0 to"):
        env.step(action)


def test_all_presets_are_there() -> None:
    for family in (
        "MemoryLength",
        "PassiveTMaze",
        "MemoryCards",
        *(f"Numpad{form}" for form in ("Discrete", "Continuous")),
    ):
        for preset in ("", "Easy", "Medium", "Hard"):
            assert f"{family}{preset}-v0" in mikasa_base.ENV_IDS
    assert "PassiveTMazeDense-v0" in mikasa_base.ENV_IDS
    assert "NumpadContinuousDiscreteActions-v0" in mikasa_base.ENV_IDS
