"""The rules of Ballet, PassiveVisualMatch, MortarMayhem and MysteryPath, and what memory is worth in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from base_helpers import same
from gymnasium.error import ResetNeeded

from mikasa_base.agents import mystery_path as mystery_agents
from mikasa_base.agents import passive_visual_match as match_agents
from mikasa_base.agents.agent import play
from mikasa_base.agents.mortar_mayhem import Memoryless as MortarMemoryless
from mikasa_base.agents.mortar_mayhem import PerfectMemory as MortarPerfect
from mikasa_base.agents.walking import locate, pixels, steer
from mikasa_base.envs import ballet, mortar_mayhem, mystery_path
from mikasa_base.envs import passive_visual_match as match
from mikasa_base.envs.ballet import Ballet, BalletLight
from mikasa_base.envs.mortar_mayhem import MortarMayhem, MortarMayhemGrid
from mikasa_base.envs.mystery_path import MysteryPath, MysteryPathGrid
from mikasa_base.envs.passive_visual_match import PassiveVisualMatch, PassiveVisualMatchVector
from mikasa_base.envs.walking import HEADINGS, Arena, FreeWalker, GridWalker, Tile

Image = npt.NDArray[np.uint8]
NORTH, SOUTH, WEST, EAST = range(4)


def evenly(counts: Counter[Any] | Sequence[int], kinds: int) -> bool:
    """Whether each of so many kinds came equally often, up to four standard deviations."""
    values = np.array(list(counts.values() if isinstance(counts, Counter) else counts))
    n = values.sum()
    return len(values) == kinds and bool((np.abs(values - n / kinds) < 4 * (n * (kinds - 1)) ** 0.5 / kinds).all())


def at(env: Any, tile: Tile) -> Any:
    """The action that brings the walker of an environment towards a tile."""
    arena = mortar_mayhem.ARENA if isinstance(env, MortarMayhem) else mystery_path.ARENA
    heading = env._walker.heading if env.action_space.shape == () else None
    return steer(arena, (env._walker.x, env._walker.y, heading), tile)


# --- all -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "bad"),
    [
        (Ballet(), (8, -1, 1.0, [1], True)),
        (PassiveVisualMatch(), (4, -1, 1.0)),
        (MortarMayhem(), ([0, 3], [-1, 0], 1, [0.0, 1.0], [0, 0, 0])),
        (MortarMayhemGrid(), (4, -1, 1.0, [0, 0])),
        (MysteryPath(), ([3, 0], 0)),
        (MysteryPathGrid(), (4, [0, 0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_misuse_is_named(env: gym.Env[Any, Any], bad: tuple[Any, ...]) -> None:
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(env.action_space.sample())
    env.reset(seed=0)
    for action in bad:
        with pytest.raises(ValueError, match=r"actions?=|actions of shape"):
            env.step(action)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ballet(num_dancers=9), "num_dancers=9 should be an integer from 1 to 8"),
        (lambda: Ballet(dance_delay=0), "dance_delay=0 should be an integer from 1 to 100"),
        (lambda: PassiveVisualMatch(distractor_steps=0), "distractor_steps=0 should be"),
        (lambda: MortarMayhem(num_commands=51), "num_commands=51 should be an integer from 1 to 50"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- walkers -------------------------------------------------------------------------------------------------------


def test_a_free_walker_goes_three_pixels_or_two_along_both_axes_and_stops_at_the_border() -> None:
    walker = FreeWalker(Arena(tiles=5, tile_size=14, margin=7))
    walker.place((2, 2))
    assert (walker.x, walker.y) == (42, 42)
    for action, place in (((2, 0), (45, 42)), ((1, 1), (43, 40)), ((0, 2), (43, 43)), ((0, 0), (43, 43))):
        walker.move(walker.read(np.array(action)))
        assert (walker.x, walker.y) == place
    for _ in range(20):
        walker.move((-1, 1))
    assert (walker.x, walker.y) == (13, 71)
    assert walker.tile == (0, 4)


def test_a_grid_walker_turns_and_goes_ahead_and_stops_at_the_border() -> None:
    walker = GridWalker(Arena(tiles=3, tile_size=12))
    walker.place((0, 0))
    came = []
    for action in (3, 2, 3, 3, 3, 2, 3, 1, 1, 1, 3, 0):
        walker.move(walker.read(action))
        came.append((*walker.tile, walker.heading))
    up, right, down, left = range(4)
    assert came[:7] == [
        (0, 0, up),
        (0, 0, right),
        (1, 0, right),
        (2, 0, right),
        (2, 0, right),
        (2, 0, down),
        (2, 1, down),
    ]
    assert came[7:] == [(2, 1, right), (2, 1, up), (2, 1, left), (1, 1, left), (1, 1, left)]


@pytest.mark.parametrize("kind", [FreeWalker, GridWalker])
def test_agents_see_where_a_walker_is(kind: type[FreeWalker] | type[GridWalker]) -> None:
    walker = kind(Arena(tiles=7, tile_size=12))
    for x, y, heading in ((6, 6, 0), (78, 78, 1), (41, 33, 2), (6, 78, 3)):
        image = np.zeros((84, 84, 3), np.uint8)
        walker.x, walker.y, walker.heading = x, y, heading if kind is GridWalker else 0
        walker.draw(image)
        assert locate(image) == (x, y, heading if kind is GridWalker else None)


# --- Ballet --------------------------------------------------------------------------------------------------------


def drawn(image: Image) -> dict[tuple[int, int], bytes]:
    """What stands on the tiles of a picture but for floor, walls and the agent."""
    tiles = image.reshape(ballet.ROOM, ballet.TILE, ballet.ROOM, ballet.TILE, 3).swapaxes(1, 2)
    return {
        (r, c): tiles[r, c].tobytes()
        for r in range(ballet.ROOM)
        for c in range(ballet.ROOM)
        if len(np.unique(tiles[r, c].reshape(-1, 3), axis=0)) > 1
    }


def to_choice(env: Ballet, seed: int) -> tuple[list[Any], Any]:
    """What was seen while there was dancing, and what is seen then."""
    obs, _ = env.reset(seed=seed)
    watched = []
    while obs["instruction"] == ballet.WATCH:
        watched.append(obs)
        obs, reward, terminated, truncated, info = env.step(0)
        assert (reward, terminated, truncated, info) == (0, False, False, {})
    return watched, obs


def towards(place: tuple[int, int]) -> int:
    """The direction of one of the dancers' places from the middle of the room."""
    return ballet.DIRECTIONS.index((int(np.sign(place[0] - 5)), int(np.sign(place[1] - 5))))


def test_dances_are_distinct_stay_near_and_come_back() -> None:
    assert len(ballet.DANCES) == len(set(ballet.STEPS)) == 13
    for steps in ballet.STEPS:
        assert len(steps) == 16
        assert steps[-1] == (0, 0)
        assert steps[0] != (0, 0)
        assert max(abs(i) for step in steps for i in step) == 1
        assert all(a != b for a, b in pairwise(steps))


def test_shapes_and_colors_are_distinct() -> None:
    assert len({shape.tobytes() for shape in ballet._SHAPES}) == 15
    assert all(shape.any() and not shape.all() for shape in ballet._SHAPES)
    assert len({*ballet._COLORS, ballet._WALL, ballet._FLOOR, ballet._AGENT}) == 19 + 3


@pytest.mark.parametrize(("preset", "dancers", "delay", "steps"), [("", 2, 8, 46), ("Easy", 2, 16, 62)])
def test_one_dancer_after_another_dances(preset: str, dancers: int, delay: int, steps: int) -> None:
    env = gym.make(f"Ballet{preset}-v0").unwrapped
    assert isinstance(env, Ballet)
    for seed in range(4):
        watched, choice = to_choice(env, seed)
        assert len(watched) == steps == dancers * (15 + delay)
        assert choice["instruction"] == env.dances[env.target]
        looks = drawn(choice["image"])
        assert set(looks) == set(env.homes)
        assert len(set(looks.values())) == dancers
        for t, obs in enumerate(watched):
            dancer, move = divmod(t, 15 + delay)
            places = list(env.homes)
            if move < 16:
                row, column = ballet.STEPS[env.dances[dancer] - 1][move]
                places[dancer] = (env.homes[dancer][0] + row, env.homes[dancer][1] + column)
            assert drawn(obs["image"]) == {place: looks[home] for place, home in zip(places, env.homes, strict=True)}, t


@pytest.mark.parametrize(("preset", "steps"), [("Medium", 124), ("Hard", 504)])
def test_the_question_comes_when_all_have_danced(preset: str, steps: int) -> None:
    env = gym.make(f"Ballet{preset}-v0").unwrapped
    assert isinstance(env, Ballet)
    assert len(to_choice(env, 0)[0]) == steps
    assert len(set(env.dances)) == len(set(env.homes)) == env.num_dancers


def test_actions_are_ignored_while_there_is_dancing_and_walls_stop_the_agent() -> None:
    env, other = Ballet(num_dancers=1), Ballet(num_dancers=1)
    env.reset(seed=0)
    other.reset(seed=0)
    for t in range(23):
        assert same(env.step(t % 8)[0], other.step(5)[0]), t
    away = next(d for d in (0, 2, 4, 6) if not np.any(np.sign(np.array(env.homes[0]) - 5) == ballet.DIRECTIONS[d]))
    down, across = ballet.DIRECTIONS[away]
    for _ in range(6):
        obs, *_ = env.step(away)
    assert env._agent == (5 + 4 * down, 5 + 4 * across)
    walls = (obs["image"] == ballet._WALL).all(axis=-1)
    assert walls[(5 + down) * 9 + 4, (5 + across) * 9 + 4], "the wall is right beside the agent"
    assert (obs["image"][45:54, 45:54] == 255).all()
    row, column = env.homes[0]
    assert set(drawn(obs["image"])) <= {(row - 4 * down, column - 4 * across)}, "seen from where the agent is"


@pytest.mark.parametrize("right", [True, False])
def test_a_touch_ends_the_ballet(right: bool) -> None:
    env = Ballet(num_dancers=8, dance_delay=1)
    for seed in range(5):
        to_choice(env, seed)
        direction = towards(env.homes[env.target if right else (env.target + 1) % 8])
        assert env.step(direction)[1:] == (0.0, False, False, {})
        assert env.step(direction)[1:] == (0.0, False, False, {})
        assert env.step(direction)[1:] == (float(right), True, False, {"success": right})


@pytest.mark.parametrize(("delay", "steps"), [(16, 320), (15, 1024), (48, 1024)])
def test_a_ballet_without_a_touch_is_truncated(delay: int, steps: int) -> None:
    env = Ballet(num_dancers=1, dance_delay=delay)
    env.reset(seed=0)
    came = [env.step(0 if t % 2 else 4)[1:] for t in range(steps)]
    assert came[:-1] == [(0.0, False, False, {})] * (steps - 1)
    assert came[-1] == (0.0, False, True, {"success": False})


def test_the_question_looks_alike_whoever_is_the_one() -> None:
    """In BalletLight the cast never changes: what is seen at the choice follows from the dance that is named alone."""
    env = BalletLight()
    seen: dict[int, set[bytes]] = {}
    targets: dict[int, set[int]] = {}
    for seed in range(150):
        choice = to_choice(env, seed)[1]
        dance = int(choice["instruction"])
        seen.setdefault(dance, set()).add(choice["image"].tobytes())
        targets.setdefault(dance, set()).add(env.target)
    assert sum(len(who) == 2 for who in targets.values()) >= 10
    assert len(set.union(*seen.values())) == 1
    assert env.homes == [(2, 2), (2, 5)]


def test_casts_are_evenly_drawn() -> None:
    env = Ballet(num_dancers=4)
    episodes = [(env.reset(seed=seed)[0], env.target, env.homes[env.target], env.dances[0]) for seed in range(800)]
    for k, kinds in ((1, 4), (2, 8), (3, 13)):
        assert evenly(Counter(episode[k] for episode in episodes), kinds)


def test_every_shape_comes_in_every_color() -> None:
    env = Ballet(num_dancers=8)
    shapes: Counter[bytes] = Counter()
    colors: Counter[tuple[int, ...]] = Counter()
    pairs = set()
    for seed in range(400):
        env.reset(seed=seed)
        for tile in env._tiles:
            shape, color = tile.any(axis=-1).tobytes(), tuple(tile.max(axis=(0, 1)).tolist())
            shapes[shape] += 1
            colors[color] += 1
            pairs.add((shape, color))
    assert evenly(shapes, 15)
    assert evenly(colors, 19)
    assert len(pairs) == 15 * 19


# --- PassiveVisualMatch --------------------------------------------------------------------------------------------


def colors_in(view: Image) -> set[tuple[int, int, int]]:
    return {(r, g, b) for r, g, b in view.reshape(-1, 3).tolist()}


@pytest.mark.parametrize(("preset", "apples"), [("", 30), ("Easy", 30), ("Medium", 60), ("Hard", 120)])
def test_phases_of_visual_match(preset: str, apples: int) -> None:
    env = gym.make(f"PassiveVisualMatch{preset}-v0")
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        views, ends, told, won = [obs], [], [], False
        for t in range(apples + 30):
            obs, reward, terminated, truncated, info = env.step(
                NORTH if t >= apples + 15 else env.action_space.sample()
            )
            told.append(info)
            won |= reward == 10
            views.append(obs)
            ends.append((terminated, truncated))
            assert reward == 0 or t >= 15
        assert ends == [(False, False)] * (apples + 29) + [(False, True)]
        assert told == [{}] * (apples + 29) + [{"success": won}]
        assert all(same(view, views[0]) for view in views[:15])
        cue = colors_in(views[0]) & set(match.PADS)
        assert len(cue) == 1
        assert (views[0][1:4, 1:4] == match.WALL).all(axis=-1).sum() == 7
        for t, view in enumerate(views):
            assert tuple(view[2, 2]) == match.PLAYER
            if 15 <= t < 15 + apples:
                assert not colors_in(view) & set(match.PADS)
            elif t >= 15 + apples:
                assert match.APPLE not in colors_in(view)
        assert colors_in(views[15 + apples + 2]) & set(match.PADS), "two steps ahead a pad comes into view"


def test_the_player_is_shut_in_with_the_cue() -> None:
    """The coloured tile is as solid as the wall, and no pad."""
    env = PassiveVisualMatch()
    for seed, action in product(range(16), range(4)):
        first, _ = env.reset(seed=seed)
        for t in range(15):
            obs, reward, *_ = env.step(action)
            assert reward == 0
            assert same(obs, first) == (t < 14)


def game_of(envs: Any) -> Any:
    """The rules, whose state these tests look into."""
    return envs.unwrapped.game


def test_visual_match_is_evenly_drawn() -> None:
    envs = PassiveVisualMatchVector(3000)
    envs.reset(seed=0)
    game = game_of(envs)
    assert evenly(Counter(game.target.tolist()), 3)
    assert evenly(Counter(map(tuple, game.cue_place.tolist())), 8)
    assert evenly(Counter(map(tuple, game.pads.tolist())), 6)
    assert evenly(
        Counter((t, p) for t, p in zip(game.target.tolist(), game.pads.argmin(axis=1).tolist(), strict=True)), 9
    )
    assert evenly(Counter(map(tuple, game.apples.reshape(-1, 2).tolist())), 22)
    assert all(len({tuple(a) for a in apples}) == 10 for apples in game.apples.tolist())


def test_cues_of_visual_match_leave_no_trace() -> None:
    """Three episodes that differ in the colour alone look alike from the apples on, whatever is done; only the pad pays
    one of them."""
    envs = PassiveVisualMatchVector(3)
    envs.reset(seed=0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        uniforms = np.repeat(rng.random((1, game_of(envs).num_uniforms)), 3, axis=0)
        uniforms[:, 1] = (0.1, 0.5, 0.9)
        game_of(envs).begin(np.arange(3), uniforms)
        assert len({obs.tobytes() for obs in game_of(envs).observe()}) == 3
        paid = np.zeros(3)
        for t in range(60):
            action = rng.integers(4) if t < 45 else NORTH
            rewards, *_ = game_of(envs).step(np.full(3, action))
            if t < 59:
                assert len({obs.tobytes() for obs in game_of(envs).observe()}) == (3 if t < 14 else 1), t
            assert len(set(rewards)) == 1 or t >= 45
            paid += rewards * (t >= 45)
        assert sorted(paid) == [0, 0, 10]


def test_apples_are_picked_and_come_back() -> None:
    env = PassiveVisualMatch(distractor_steps=60)
    game = game_of(env)
    for seed in range(5):
        env.reset(seed=seed)
        for _ in range(15):
            env.step(NORTH)

        def there() -> set[tuple[int, int]]:
            return {(r, c) for r, c in (np.argwhere(game.tiles[0] == 3) - 2).tolist()}

        apples = there()
        assert len(apples) == 10
        assert all((r + c) % 2 == 0 and 1 <= r <= 5 and 1 <= c <= 9 and (r, c) != (5, 5) for r, c in apples)
        row, column = goal = min(apples, key=lambda p: abs(p[0] - 5) + abs(p[1] - 5))
        way = [NORTH] * (5 - row) + [WEST if column < 5 else EAST] * abs(column - 5)
        rewards = [env.step(action)[1] for action in way]
        assert rewards[-1] == 1
        assert sum(rewards) == len(apples - there())
        assert goal not in there()
        back = NORTH if row == 5 else SOUTH
        for t in range(1, 21):
            env.step((back, 1 - back)[t % 2])  # to a tile beside it and back; apples lie on every other tile
            assert (goal in there()) == (t == 20), t


@pytest.mark.parametrize("seed", range(6))
def test_the_first_pad_counts_and_hides_the_others(seed: int) -> None:
    env = PassiveVisualMatch(distractor_steps=1)
    env.reset(seed=seed)
    for _ in range(16):
        env.step(SOUTH)
    middle = int(game_of(env).pads[0, 1])
    rewards = [env.step(NORTH)[1] for _ in range(4)]
    assert rewards == [0, 0, 0, 10 if middle == game_of(env).target[0] else 0]
    came = [env.step(action) for action in (WEST, WEST, WEST, EAST, EAST, EAST, EAST, EAST, EAST)]
    assert not any(reward for _, reward, *_ in came)
    assert not any(colors_in(obs) & set(match.PADS) for obs, *_ in came)


def test_the_right_pad_takes_memory() -> None:
    """Perfect memory has every pad and, as found by playing 300 other episodes, 11.1 apples; without, a third of the pads
    within 3.5 standard deviations."""
    env = PassiveVisualMatch()
    perfect = play(env, match_agents.PerfectMemory(env, np.random.default_rng(0)), 100, 0)
    assert perfect.success is not None
    assert perfect.success.all()
    assert perfect.returns.mean() == pytest.approx(10 + 11.1, abs=0.5)
    without = play(env, match_agents.Memoryless(env, np.random.default_rng(0)), 300, 0)
    assert without.success is not None
    assert 0.24 <= without.success.mean() <= 0.43


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(("limit", "ends"), [(None, 4), (30, 0), (31, 4)])
def test_a_batch_tells_of_success_as_single_environments_do(mode: str, limit: int | None, ends: int) -> None:
    """Of those environments alone whose episode is over; and nothing where a step limit cuts it off."""
    made: dict[str, Any] = {
        "vector_entry_point": {"autoreset_mode": mode},
        "sync": {"vector_kwargs": {"autoreset_mode": gym.vector.AutoresetMode(mode)}},
    }
    if limit is not None:
        made = {kind: {**kwargs, "max_episode_steps": limit} for kind, kwargs in made.items()}
    came = []
    north = np.full(12, NORTH)
    for kind, kwargs in made.items():
        envs = gym.make_vec("PassiveVisualMatch-v0", 12, vectorization_mode=kind, distractor_steps=1, **kwargs)
        envs.reset(seed=0)
        infos = [envs.step(north)[4] for _ in range(5)]
        envs.reset(options={"reset_mask": np.arange(12) < 6})  # half of the episodes end later than the others
        infos += [envs.step(north)[4] for _ in range(65)]
        came.append([(i.get("final_info", i).get("success"), i.get("final_info", i).get("_success")) for i in infos])
    assert same(came[0], came[1])
    told = [success for success, _ in came[0] if success is not None]
    assert len(told) == ends
    assert 0 < np.sum(told) < 24 or not ends


# --- MortarMayhem --------------------------------------------------------------------------------------------------


def white(image: Image) -> bool:
    return len(pixels(image, mortar_mayhem.SYMBOL)[0]) > 0


def red(image: Image) -> bool:
    return len(pixels(image, mortar_mayhem.RED)[0]) > 0


@pytest.mark.parametrize(
    ("env", "first", "period", "duration", "steps"),
    [
        (MortarMayhem(), 58, 24, 6, 274),
        (MortarMayhem(4), 34, 24, 6, 106),
        (MortarMayhem(7), 46, 24, 6, 190),
        (MortarMayhemGrid(), 46, 8, 2, 118),
    ],
    ids=["10", "4", "7", "grid"],
)
def test_commands_are_shown_then_verified(
    env: MortarMayhem, first: int, period: int, duration: int, steps: int
) -> None:
    count = env.num_commands
    agent = MortarPerfect(env, np.random.default_rng(0))
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        agent.begin(obs)
        seen, rewards, over = [obs], [0.0], False
        while not over:
            obs, reward, over, truncated, info = env.step(agent.act(obs, rewards[-1]))
            seen.append(obs)
            rewards.append(float(reward))
            assert not truncated
        verified = [first + period * i for i in range(count)]
        assert len(rewards) - 1 == steps == verified[-1]
        assert np.flatnonzero(rewards).tolist() == verified
        assert set(rewards) == {0, 0.1}
        assert info == {"success": True}
        assert [white(o) for o in seen] == [t < 4 * count and t % 4 < 3 for t in range(steps + 1)]
        assert [red(o) for o in seen] == [any(v <= t < v + duration for v in verified) for t in range(steps + 1)]
        for i, command in enumerate(env.commands):
            shown = (seen[4 * i][mortar_mayhem.SYMBOL_PLACE] == 255).all(axis=-1)
            assert same(shown, mortar_mayhem.symbol(command))
            x, y = mortar_mayhem.ARENA.corner(env.targets[i])
            assert tuple(seen[verified[i]][y + 1, x + 1]) == mortar_mayhem.BLUE, "only the right tile stays blue"
            assert len(pixels(seen[verified[i]], mortar_mayhem.BLUE)[0]) < 12 * 12


@pytest.mark.parametrize("env", [MortarMayhem(), MortarMayhemGrid()], ids=["free", "grid"])
def test_the_walker_is_locked_while_commands_are_shown(env: MortarMayhem) -> None:
    env.reset(seed=1)
    env.action_space.seed(1)
    start = (env._walker.x, env._walker.y, env._walker.heading)
    for _ in range(39):
        env.step(env.action_space.sample())
        assert (env._walker.x, env._walker.y, env._walker.heading) == start
    env.step(2 if isinstance(env, MortarMayhemGrid) else np.array([2 if start[0] < 42 else 1, 0]))
    assert (env._walker.x, env._walker.y, env._walker.heading) != start


@pytest.mark.parametrize("env", [MortarMayhem(3), MortarMayhemGrid(3)], ids=["free", "grid"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_mistake_ends_it_even_at_the_last_command(env: MortarMayhem, failing: int) -> None:
    for seed in range(5):
        env.reset(seed=seed)
        came: list[Any] = []
        while not came or not came[-1][2]:
            i = max(env.timing.command(env._step + 1), 0)
            tile = env.targets[i]
            if i == failing:  # somewhere else
                tile = (tile[0] + (1 if tile[0] < 2 else -1), tile[1])
            came.append(env.step(at(env, tile)))
        assert sum(reward for _, reward, *_ in came) == pytest.approx(0.1 * failing)
        assert came[-1][1:] == (0.0, True, False, {"success": False})
        assert len(came) == env.timing.start + env.timing.delay + failing * env.timing.period


def test_to_leave_the_right_tile_while_all_else_is_red_ends_it() -> None:
    env = MortarMayhemGrid(2)
    ended = 0
    for seed in range(20):
        env.reset(seed=seed)
        for _ in range(14):
            _, reward, over, *_ = env.step(at(env, env.targets[0]))
        assert (reward, over) == (0.1, False)
        ahead = tuple(np.add(env._walker.tile, HEADINGS[env._walker.heading]))
        _, reward, over, _, info = env.step(3)
        assert reward == 0
        assert over == mortar_mayhem.ARENA.contains((int(ahead[0]), int(ahead[1])))
        assert info == ({"success": False} if over else {})
        ended += over
    assert 5 < ended < 20, "both came up"


def test_commands_are_evenly_drawn_among_those_that_stay_in_the_arena() -> None:
    for env, kinds in ((MortarMayhem(50), 9), (MortarMayhemGrid(50), 5)):
        inside: Counter[Tile] = Counter()
        starts: Counter[Tile] = Counter()
        for seed in range(150):
            env.reset(seed=seed)
            column, row = start = env._walker.tile
            starts[start] += 1
            for (across, down), target in zip(env.commands, env.targets, strict=True):
                if 1 <= column <= 3 and 1 <= row <= 3:
                    inside[across, down] += 1
                column, row = column + across, row + down
                assert target == (column, row)
                assert 0 <= column < 5 > row >= 0
        assert evenly(inside, kinds)
        assert evenly(starts, 25)
    assert len({mortar_mayhem.symbol(command).tobytes() for command in mortar_mayhem.COMMANDS}) == 9


def test_mortar_mayhem_shows_nothing_of_the_commands_afterwards() -> None:
    """Episodes that begin on the same tile look alike from the last command on to the first verification."""
    env = MortarMayhem(2)
    seen: dict[Tile, set[tuple[bytes, ...]]] = {}
    commands: dict[Tile, set[Any]] = {}
    for seed in range(300):
        env.reset(seed=seed)
        start = env._walker.tile
        views = [env.step(np.zeros(2, int))[0].tobytes() for _ in range(25)]
        seen.setdefault(start, set()).add(tuple(views[6:]))
        commands.setdefault(start, set()).add(tuple(env.commands))
    assert min(len(kinds) for kinds in commands.values()) > 1
    assert {len(kinds) for kinds in seen.values()} == {1}


@pytest.mark.parametrize(("env", "expected"), [(MortarMayhem(), 0.0194), (MortarMayhemGrid(), 0.033)])
def test_commands_take_memory(env: MortarMayhem, expected: float) -> None:
    """To stay earns 0.1 (p + p² + …) on a tile where one of 1 / p commands is right, over all tiles 0.0194 (0.033)."""
    without = play(env, MortarMemoryless(env, np.random.default_rng(0)), 500, 0)
    assert without.returns.mean() == pytest.approx(expected, abs=4 * without.returns.std() / 500**0.5)
    assert without.success is not None
    assert not without.success.any()
    perfect = play(env, MortarPerfect(env, np.random.default_rng(0)), 20, 0)
    np.testing.assert_allclose(perfect.returns, 1)
    assert perfect.success is not None
    assert perfect.success.all()


# --- MysteryPath ---------------------------------------------------------------------------------------------------


def test_paths_lead_across() -> None:
    rng = np.random.default_rng(0)
    paths = [mystery_path.draw_path(rng) for _ in range(1200)]
    lengths = [len(path) for path in paths]
    assert (min(lengths), max(lengths)) == (7, 14)
    assert 10 < np.mean(lengths) < 11
    sides: Counter[str] = Counter()
    for path in paths:
        assert len(set(path)) == len(path)
        assert all(mystery_path.ARENA.contains(tile) for tile in path)
        assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(path))
        (x0, y0), (x1, y1) = path[0], path[-1]
        across, down = abs(x1 - x0) == 6, abs(y1 - y0) == 6
        assert across or down
        if not (across and down):  # from corner to corner it is both
            sides["left" if x0 == 0 else "right"] += across
            sides["top" if y0 == 0 else "bottom"] += down
    assert evenly(sides, 4)


def test_paths_do_not_follow_the_edge() -> None:
    """Of 2,000 paths of memory-gym 1.0.2, 4.3 % are on the border alone; 31 % of the tiles between the ends are on it.

    These two figures were counted once, with a script that is not kept.
    """
    rng = np.random.default_rng(0)
    on_border = [[0 in tile or 6 in tile for tile in mystery_path.draw_path(rng)[1:-1]] for _ in range(1200)]
    assert 0.02 < np.mean([all(path) for path in on_border]) < 0.08
    assert 0.25 < np.mean([np.mean(path) for path in on_border]) < 0.40


def test_start_and_goal_can_be_hidden() -> None:
    pictures = {}
    for shown in (True, False):
        env = gym.make("MysteryPath-v0", show_origin=shown, show_goal=shown)
        pictures[shown], _ = env.reset(seed=0)
    for color in (mystery_path.START, mystery_path.GOAL):
        assert len(pixels(pictures[True], color)[0]) > 0
        assert len(pixels(pictures[False], color)[0]) == 0
    assert pictures[False].any(), "the walker is seen"


def walk(env: MysteryPath, tile: Tile) -> list[Any]:
    """To the next tile, or off the path."""
    came: list[Any] = []
    while env._walker.tile != tile:
        came.append(env.step(at(env, tile)))
    return came


@pytest.mark.parametrize("env", [MysteryPath(), MysteryPathGrid()], ids=["free", "grid"])
def test_who_walks_the_path_is_paid(env: MysteryPath) -> None:
    progress = 0.0 if isinstance(env, MysteryPathGrid) else 0.1
    for seed in range(10):
        env.reset(seed=seed)
        path = env.path
        came = []
        # two tiles ahead, back to the start, and then all the way: what was reached before pays no more
        for tile in (path[1], path[2], path[1], path[0]):
            came += walk(env, tile)
        assert sum(reward for _, reward, *_ in came) == pytest.approx(2 * progress)
        for tile in path[1:]:
            came += walk(env, tile)
        assert sum(reward for _, reward, *_ in came) == pytest.approx(progress * (len(path) - 2) + 1)
        assert [part[2] for part in came] == [False] * (len(came) - 1) + [True]
        assert came[-1][1:] == (1.0, True, False, {"success": True})
        assert not any(len(pixels(part[0], mystery_path.CROSS)[0]) for part in came)


@pytest.mark.parametrize("env", [MysteryPath(), MysteryPathGrid()], ids=["free", "grid"])
def test_who_leaves_the_path_is_sent_back(env: MysteryPath) -> None:
    for seed in range(10):
        env.reset(seed=seed)
        start = env.path[0]
        beside = [(start[0] + across, start[1] + down) for across, down in HEADINGS]
        off = next(tile for tile in beside if mystery_path.ARENA.contains(tile) and tile not in env.path)
        obs, *rest = walk(env, off)[-1]
        assert rest == [0.0, False, False, {}]
        assert len(pixels(obs, mystery_path.CROSS)[0]) > 0
        assert mystery_path.ARENA.tile_at(*locate(obs)[:2]) == off, "it is seen where it left the path"
        heading = env._walker.heading
        obs, *rest = env.step(at(env, env.path[1]))
        assert rest == [0.0, False, False, {}]
        assert len(pixels(obs, mystery_path.CROSS)[0]) == 0
        assert (env._walker.x, env._walker.y, env._walker.heading) == (*mystery_path.ARENA.centre(start), heading)


@pytest.mark.parametrize(("env", "steps"), [(MysteryPath(), 512), (MysteryPathGrid(), 128)], ids=["free", "grid"])
def test_mystery_path_is_truncated(env: MysteryPath, steps: int) -> None:
    env.reset(seed=0)
    nothing: Any = 0 if isinstance(env, MysteryPathGrid) else np.zeros(2, int)
    came = [env.step(nothing)[1:] for _ in range(steps)]
    assert came == [(0.0, False, False, {})] * (steps - 1) + [(0.0, False, True, {"success": False})]


def test_the_path_is_invisible() -> None:
    """Episodes of equal ends begin with equal pictures, whatever the path; and no tile but the ends has a colour."""
    env = MysteryPath()
    seen: dict[tuple[Tile, Tile], set[bytes]] = {}
    paths: dict[tuple[Tile, Tile], set[Any]] = {}
    for seed in range(400):
        obs, _ = env.reset(seed=seed)
        ends = env.path[0], env.path[-1]
        seen.setdefault(ends, set()).add(obs.tobytes())
        paths.setdefault(ends, set()).add(tuple(env.path))
        assert np.any(obs, axis=-1).sum() == 2 * 12 * 12
    assert sum(len(kinds) > 1 for kinds in paths.values()) > 50
    assert {len(kinds) for kinds in seen.values()} == {1}


@pytest.mark.parametrize(
    ("env", "low", "high", "returns"), [(MysteryPath(), 0.17, 0.53, 1.85), (MysteryPathGrid(), 0.08, 0.40, 1)]
)
def test_the_path_takes_memory(env: MysteryPath, low: float, high: float, returns: float) -> None:
    """Of 100 episodes; the one without memory has 35 % and 22 %, here with 3.5 standard deviations to either side."""
    perfect = play(env, mystery_agents.PerfectMemory(env, np.random.default_rng(0)), 100, 0)
    assert perfect.success is not None
    assert perfect.success.mean() >= 0.99
    assert perfect.returns.mean() == pytest.approx(returns, abs=0.08)
    without = play(env, mystery_agents.Memoryless(env, np.random.default_rng(0)), 100, 0)
    assert without.success is not None
    assert low <= without.success.mean() <= high
