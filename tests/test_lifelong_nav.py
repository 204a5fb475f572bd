"""The mazes of mikasa_lifelong: their ways, how agents move, what rays see, and the demonstrators. No torch here."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from base_helpers import same
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import mikasa_lifelong
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.nav import ENV_IDS, drawing
from mikasa_lifelong.nav.demonstrator import STYLES, demonstrate
from mikasa_lifelong.nav.game import EYE_HEIGHT, HALF_HEIGHT, HALF_WIDTH, MAX_STEPS, STATE, NavGame
from mikasa_lifelong.nav.kinematics import APEX, DT, RADIUS, RUN_SPEED, Bodies
from mikasa_lifelong.nav.mazes import CLOSED, DOOR, HEDGE_HEIGHT, MAZES, WALL_HEIGHT, Maze, load_maze
from mikasa_lifelong.nav.planner import MAX_DETOUR, Planner, length
from mikasa_lifelong.nav.rays import REACH, Camera

ROOT = Path(__file__).resolve().parent.parent
TOWN_PAIRS = [(x, y) for x in (4, 10, 15) for y in (4, 10, 15)]
"""Columns of starts and goals of the SimpleTowns that stand for all: at each door."""


def test_the_ids_are_registered_without_torch() -> None:
    code = (
        "import sys, gymnasium, mikasa_lifelong\n"
        "gymnasium.make_vec('AmazeVilleLOOO-v0', 2).reset(seed=0)\n"
        "import mikasa_lifelong.nav.demonstrator\n"
        "print(*(name for name in ('torch', 'sapien', 'mani_skill', 'scipy', 'matplotlib') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""
    assert mikasa_lifelong.STREAMS
    assert len(ENV_IDS) == 16
    assert set(ENV_IDS) <= set(gym.registry)


# ---- mazes
def reachable(maze: Maze) -> np.ndarray[Any, Any]:
    """The cells that can be walked or jumped to from the first start, by flooding."""
    passable = maze.heights < APEX
    reached = np.zeros_like(passable)
    reached[int(maze.starts[0, 1]), int(maze.starts[0, 0])] = True
    while True:
        grown = reached.copy()
        for axis, shift in itertools.product((0, 1), (1, -1)):
            grown |= np.roll(reached, shift, axis) & passable
        if (grown == reached).all():
            return reached
        reached = grown


@pytest.mark.parametrize("name", MAZES)
def test_a_maze(name: str) -> None:
    maze = load_maze(name)
    side = 20 if name.startswith("SimpleTown") else 60
    assert maze.heights.shape == (side, side)
    border = np.concatenate([maze.heights[[0, -1]].ravel(), maze.heights[:, [0, -1]].ravel()])
    assert (border == WALL_HEIGHT).all(), "nobody gets out"
    reached = reachable(maze)
    for x, y in (*maze.starts, *maze.goals):
        assert reached[int(y), int(x)]
    assert maze.has_low_hedges == name.startswith("AmazeVilleL")
    doors = np.count_nonzero(np.isin(maze.kinds, (DOOR, CLOSED)))
    assert (doors == 0) == name.endswith("Base")
    assert (np.count_nonzero(maze.kinds == CLOSED) > 0) == (name[-3:].count("X") > 0)
    with pytest.raises(ValueError, match="read-only"):
        maze.heights[0, 0] = 0


def lengths(name: str) -> np.ndarray[Any, Any]:
    """Lengths of shortest ways: from each start to the goal across from it, or in a town of `TOWN_PAIRS`."""
    maze, planner = load_maze(name), Planner(load_maze(name), clearance=False)
    pairs = list(zip(maze.starts, maze.goals, strict=True))
    if name.startswith("SimpleTown"):
        pairs = [(np.array([x + 0.5, 1.5]), np.array([y + 0.5, 18.5])) for x, y in TOWN_PAIRS]
    return np.array([length(planner.way(start, goal)) for start, goal in pairs])


def test_each_closed_door_lengthens_some_way_by_15_percent_and_hedges_shorten_some() -> None:
    found = {name: lengths(name) for name in MAZES}
    checked = 0
    for name, ways in found.items():
        for i in range(3):
            opened = name[: len(name) - 3 + i] + "O" + name[len(name) - 2 + i :]
            if name[len(name) - 3 + i] == "X" and opened in found:
                assert (ways / found[opened]).max() >= 1.15, (opened, name)
                checked += 1
    assert checked == 3 + 6 + 2 * 4
    for doors in ("OOO", "OOX", "XOO", "XOX"):
        low, high = f"AmazeVilleL{doors}", f"AmazeVilleH{doors}"
        assert (found[high] / found[low]).max() >= 1.1
        maze, planner = load_maze(low), Planner(load_maze(low))
        cells = [planner.cells(start, goal) for start, goal in zip(maze.starts, maze.goals, strict=True)]
        over = [any(maze.heights[y, x] == HEDGE_HEIGHT for x, y in way) for way in cells]
        assert any(over)
        assert not load_maze(high).has_low_hedges, "there the same cells are walls"


def test_a_way_keeps_its_distance_and_a_side_is_not_far_off() -> None:
    maze = load_maze("AmazeVilleHOOO")
    planner = Planner(maze)
    best = [planner.way(start, goal) for start in maze.starts[1:3] for goal in maze.goals]
    pairs = itertools.product(maze.starts[1:3], maze.goals)
    others = 0
    for way, (start, goal) in zip(best, pairs, strict=True):
        assert (way[0] == start).all()
        assert (way[-1] == goal).all()
        for a, b in itertools.pairwise(way):
            for share in np.linspace(0, 1, 50):
                x, y = a + share * (b - a)
                for dx, dy in itertools.product((-RADIUS, RADIUS), repeat=2):
                    assert maze.heights[int(y + dy), int(x + dx)] == 0
        for side in (-1, 1):
            other = planner.way(start, goal, side)
            assert length(other) <= MAX_DETOUR * length(way) + 1e-9
            others += not np.array_equal(other, way)
    assert others > 2
    closed = Maze(
        "closed", "XXX", maze.kinds, np.where(maze.kinds == DOOR, WALL_HEIGHT, maze.heights), maze.starts, maze.goals, 0
    )
    with pytest.raises(LifelongError, match="no way leads from cell"):
        Planner(closed).way(maze.starts[0], maze.goals[0])


# ---- motion
def block(height: float, at: int = 8) -> Maze:
    """A corridor along x, from 1 to 13 m, of 5 m width, with a block of this height at ``at`` … ``at`` + 2 m."""
    heights = np.full((7, 15), WALL_HEIGHT)
    heights[1:-1, 1:-1] = 0
    heights[1:-1, at : at + 2] = height
    place = np.array([[2.5, 3.5]])
    return Maze("block", "", np.zeros((7, 15), np.int8), heights, place, place, 0.0)


def walk(bodies: Bodies, steps: int, ahead: float = 1.0, left: float = 0.0, jump: bool = False) -> np.ndarray[Any, Any]:
    """Positions (steps, 3) of the first agent."""
    n = len(bodies.x)
    came = []
    for _ in range(steps):
        bodies.step(np.full(n, ahead), np.full(n, left), np.full(n, jump), np.zeros(n))
        came.append([bodies.x[0], bodies.y[0], bodies.z[0]])
    return np.array(came)


def placed(maze: Maze, x: float, y: float, heading: float = 0.0) -> Bodies:
    bodies = Bodies(maze, 1)
    bodies.place(np.arange(1), np.array([x]), np.array([y]), np.array([heading]))
    return bodies


def test_an_agent_runs_and_a_diagonal_is_no_faster() -> None:
    came = walk(placed(block(0.0), 2, 3.5), 10)
    speeds = np.diff(came[:, 0], prepend=2) / DT
    assert speeds[:3] == pytest.approx([2, 4, 5])
    assert speeds[-1] == pytest.approx(RUN_SPEED)
    bodies = placed(block(0.0), 2, 1.5, math.pi / 4)
    walk(bodies, 6, 1.0, -1.0)
    assert bodies.vx[0] == pytest.approx(RUN_SPEED)
    assert bodies.vy[0] == pytest.approx(0, abs=1e-9)


def test_a_wall_stops_the_motion_towards_it_alone() -> None:
    bodies = placed(block(WALL_HEIGHT), 6, 1.5, math.pi / 4)
    came = walk(bodies, 8)
    assert bodies.x[0] == pytest.approx(8 - RADIUS, abs=1e-5)
    assert bodies.at_wall[0]
    assert bodies.vx[0] == 0
    assert (np.diff(came[:, 1]) > 0).all(), "it slides on"
    walk(bodies, 10, -1.0)
    assert not bodies.at_wall[0] or bodies.y[0] < 1 + RADIUS + 1e-5


def test_a_jump_reaches_its_height_and_a_top_carries() -> None:
    came = walk(placed(block(0.0), 2, 3.5), 12, 0.0, jump=True)
    assert came[:, 2].max() == pytest.approx(APEX, abs=0.02)
    assert (came[:9, 2] > 0).all()
    assert came[9, 2] == 0, "it lands before it jumps again"
    bodies = placed(block(HEDGE_HEIGHT), 5, 3.5)
    came = walk(bodies, 30, jump=False)
    assert came[-1, 0] == pytest.approx(8 - RADIUS, abs=1e-5), "without a jump it is a wall"
    came = walk(bodies, 8, jump=True)
    came = np.concatenate([came, walk(bodies, 3, 0.0)])
    on_top = (came[:, 0] > 8) & (came[:, 0] < 10)
    assert on_top.any()
    assert (came[on_top, 2] >= HEDGE_HEIGHT).all()
    bodies = placed(block(HEDGE_HEIGHT), 9, 3.5)
    bodies.z[:] = HEDGE_HEIGHT
    assert walk(bodies, 3, 0.0)[:, 2] == pytest.approx(HEDGE_HEIGHT)
    assert walk(bodies, 12)[-1, 2] == 0, "and it falls behind it"
    bodies = placed(block(1.2), 5, 3.5)
    assert walk(bodies, 40, jump=True)[:, 0].max() < 8, "what is higher than a jump stays a wall"


def test_no_agent_is_ever_inside_a_wall() -> None:
    name = "AmazeVilleLXOX"
    maze, game = load_maze(name), NavGame(64, name, "state")
    rng = np.random.default_rng(0)
    game.begin(game.each, rng.random((64, game.num_uniforms)))
    free = np.argwhere(maze.heights == 0)[rng.integers(0, 2000, 64)].astype(np.float64)
    free += np.float64(0.5)
    game.bodies.place(game.each, free[:, 1], free[:, 0], rng.uniform(-3, 3, 64))
    on_hedge = 0
    for _ in range(200):
        game.step(rng.random((64, 6)) * [1.2, 0.7, 1, 1, 1.2, 0.5])
        for dx, dy in itertools.product((-RADIUS, RADIUS), repeat=2):
            ground = maze.heights[(game.bodies.y + dy).astype(int), (game.bodies.x + dx).astype(int)]
            assert (ground <= game.bodies.z).all()
            on_hedge += int((ground == HEDGE_HEIGHT).sum())
    assert on_hedge > 0


# ---- environments
def actions_of(envs: Any, steps: int, num_envs: int) -> np.ndarray[Any, Any]:
    low, high = envs.single_action_space.low, envs.single_action_space.high
    return (low + (high - low) * np.random.default_rng(0).random((steps, num_envs, 6))).astype(np.float32)


@pytest.mark.parametrize("obs", ["depth", "full"])
def test_a_batch_is_as_many_single_environments(obs: str) -> None:
    env_id, modes = "AmazeVilleLOOO-v0", (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    mode = modes[obs == "depth"]
    batch = gym.make_vec(env_id, 4, obs=obs, autoreset_mode=mode)
    small = gym.make_vec(env_id, 3, obs=obs, autoreset_mode=mode)
    single = gym.make_vec(env_id, 4, "sync", {"autoreset_mode": mode}, obs=obs)
    for envs in (batch, small, single):
        assert envs.reset(seed=5) is not None
    assert batch.observation_space == single.observation_space
    actions = actions_of(batch, 12, 4)
    for t, action in enumerate(actions):
        if t == 6:  # soon at the end, and the goal next to one
            singles: Any = single.unwrapped
            for game in (batch.unwrapped.game, small.unwrapped.game, *(e.unwrapped.game for e in singles.envs)):  # type: ignore[attr-defined]
                game.elapsed[:] = MAX_STEPS - 3
            for game, i in ((batch.unwrapped.game, 1), (small.unwrapped.game, 1), (singles.envs[1].unwrapped.game, 0)):  # type: ignore[attr-defined]
                game.goal_x[i], game.goal_y[i] = game.bodies.x[i], game.bodies.y[i]
        one, two, three = batch.step(action), single.step(action), small.step(action[:3])
        assert same(one[:-1], two[:-1]), t
        assert batch.observation_space.contains(one[0])
        first = {k: v[:3] for k, v in one[0].items()} if obs == "full" else one[0][:3]
        assert same(first, three[0])
        assert one[-1].keys() == two[-1].keys()
        for j in np.flatnonzero(one[-1].get("_final_obs", [])):
            assert same(one[-1]["final_obs"][j], two[-1]["final_obs"][j])
        if t == 6:
            assert one[2].tolist() == [False, True, False, False]
            assert one[1].tolist() == [0, 1, 0, 0]
        if t == 8:
            assert one[3].tolist() == [True, False, True, True]


def test_a_reset_of_some_leaves_the_others_alone() -> None:
    envs = gym.make_vec("SimpleTownOXO-v0", 3, autoreset_mode="Disabled")
    envs.reset(seed=1)
    for action in actions_of(envs, 5, 3):
        before, *_ = envs.step(action)
    after, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert same(before[[0, 2]], after[[0, 2]])
    assert after[1, 18] == 0
    assert not same(before[1], after[1])
    assert len(np.unique(envs.reset(seed=9)[0][:, [0, 1, 9, 10]], axis=0)) == 3
    again = gym.make("SimpleTownOXO-v0")
    assert same(again.reset(seed=10)[0], envs.reset(seed=9)[0][1])


def test_observations_and_arguments() -> None:
    env = gym.make("AmazeVilleHOOX-v0", obs="full")
    obs, _ = env.reset(seed=3)
    state = obs["state"]
    starts, goals = load_maze("AmazeVilleHOOX").starts, load_maze("AmazeVilleHOOX").goals
    assert state[STATE["position"]][:2].tolist() in starts.tolist()
    assert state[STATE["goal"]][:2].tolist() in goals.tolist()
    assert np.hypot(*state[STATE["orientation"]][:2]) == pytest.approx(1)
    assert state[STATE["up"]].tolist() == [0, 0, 1]
    assert state[STATE["velocity"]].tolist() == [0, 0, 0]
    assert state[STATE["contacts"]].tolist() == [1, 0, 0]
    assert state[STATE["timestep"]].tolist() == [0]
    assert gym.make("SimpleTownOOO-v0", obs="state").reset(seed=0)[0].shape == (19,)
    check_env(gym.make("SimpleTownOOO-v0").unwrapped, skip_render_check=True)
    with pytest.raises(LifelongError, match="there is no maze 'SimpleTownOO'; did you mean"):
        gym.make("SimpleTownOOO-v0", maze="SimpleTownOO")
    with pytest.raises(ValueError, match="obs='rgb' should be 'state', 'depth' or 'full'"):
        gym.make("SimpleTownOOO-v0", obs="rgb")


# ---- rays
def marched(maze: Maze, x: float, y: float, z: float, heading: float, pitch: float, step: float = 0.004) -> float:
    """The length of a ray by small steps."""
    direction = np.array([math.cos(pitch) * math.cos(heading), math.cos(pitch) * math.sin(heading), math.sin(pitch)])
    at = np.array([x, y, z]) + np.arange(0, REACH, step)[:, None] * direction
    inside = (at[:, :2] >= 0).all(axis=1) & (at[:, 0] < maze.heights.shape[1]) & (at[:, 1] < maze.heights.shape[0])
    cells = at[inside].astype(int)
    hit = at[inside, 2] <= maze.heights[cells[:, 1], cells[:, 0]]
    return float(hit.argmax() * step) if hit.any() else REACH


@pytest.mark.parametrize("name", ["SimpleTownOOX", "AmazeVilleLOOO"])
def test_depth_is_that_of_a_slow_ray(name: str) -> None:
    maze = load_maze(name)
    rng = np.random.default_rng(2)
    free = np.argwhere(maze.heights == (HEDGE_HEIGHT if maze.has_low_hedges else 0))
    cells = np.concatenate(
        [free[rng.integers(0, len(free), 2)], np.argwhere(maze.heights == 0)[rng.integers(0, 300, 4)]]
    )
    x, y = cells[:, 1] + rng.uniform(0.2, 0.8, 6), cells[:, 0] + rng.uniform(0.2, 0.8, 6)
    eye = maze.heights[cells[:, 0], cells[:, 1]] + EYE_HEIGHT + np.array([0, 1, 0, 0, 0.7, 1])
    if maze.has_low_hedges:  # before a hedge: past its side, over it, and onto it
        x, y, eye = (np.append(part, more) for part, more in ((x, [5.5, 29.5]), (y, [12.0, 13.0]), (eye, [0.5, 1.4])))
    heading = np.append(rng.uniform(-3, 3, 6), [math.pi / 2] * (len(x) - 6))
    depth = Camera(maze, 11, HALF_WIDTH, HALF_HEIGHT).depth(x, y, eye, heading)
    assert depth.shape == (len(x), 11, 11)
    slow = np.array(
        [
            [
                [
                    marched(maze, x[i], y[i], eye[i], heading[i] + azimuth, pitch)
                    for azimuth in HALF_WIDTH * np.linspace(1, -1, 11)
                ]
                for pitch in HALF_HEIGHT * np.linspace(1, -1, 11)
            ]
            for i in range(len(x))
        ]
    )
    grazes = np.abs(depth - slow) > 0.01
    assert grazes.mean() < 0.005, "a ray along a corner may pass on either side"
    assert depth.min() > 0
    assert (depth == REACH).any()


# ---- demonstrators
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("SimpleTownOXX", "AmazeVilleLXOX") else [pytest.mark.slow])
        for name in MAZES
    ],
)
def test_demonstrators_reach_the_goal(name: str) -> None:
    shown = demonstrate(name, 100, seed=0, obs="state")
    assert shown.successes.mean() > 0.99
    assert set(shown.styles) == set(range(len(STYLES)))
    assert shown.obs.shape == (shown.lengths.sum(), 19)
    assert (np.diff(shown.obs[:, 18])[np.diff(shown.obs[:, 18]) > 0] == 1).all()
    assert (shown.obs[:, 18] == 0).sum() == 100
    few = demonstrate(name, 3, seed=4, obs="state")
    begins = np.cumsum(shown.lengths)[[3, 6]]
    assert same(few.obs, shown.obs[begins[0] : begins[1]]), "an episode does not depend on its neighbours"
    assert same(few.actions, shown.actions[begins[0] : begins[1]])


def test_arguments_of_a_demonstration() -> None:
    with pytest.raises(ValueError, match="episodes=0 should be an integer from 1"):
        demonstrate("SimpleTownBase", 0, seed=0)
    with pytest.raises(ValueError, match="obs='full' should be"):
        demonstrate("SimpleTownBase", 1, seed=0, obs="full")


# ---- pictures
def test_a_frame_shows_the_agent_the_goal_and_the_doors() -> None:
    env = gym.make("SimpleTownOXO-v0", render_mode="rgb_array", obs="full")
    obs, _ = env.reset(seed=2)
    image: Any = env.render()
    assert image.dtype == np.uint8
    assert image.shape == (480, 746, 3)
    game: NavGame = env.unwrapped.game  # type: ignore[attr-defined]
    scale = 480 // 20

    def pixel(x: float, y: float) -> tuple[int, ...]:
        return tuple(image[int(480 - y * scale), int(x * scale)].tolist())

    assert pixel(game.bodies.x[0], game.bodies.y[0]) == drawing.AGENT
    assert pixel(game.goal_x[0], game.goal_y[0]) == drawing.GOAL
    doors = [pixel(x, 9.9) for x in (4, 10, 15.5)]
    assert doors == [drawing.COLORS[DOOR], drawing.COLORS[CLOSED], drawing.COLORS[DOOR]]
    view = image[:256, -256:]
    assert same(view[::4, ::4].transpose(2, 0, 1), obs["rgb"])


def test_the_view_shows_the_goal_where_it_is() -> None:
    maze = load_maze("SimpleTownBase")
    camera = Camera(maze, 64, HALF_WIDTH, HALF_HEIGHT)

    def red(goal_x: float, goal_y: float) -> Any:
        here = [np.array([value]) for value in (10.0, 2.0, EYE_HEIGHT, math.pi / 2, goal_x, goal_y)]
        image = camera.picture(*here)[0].astype(int)
        return np.argwhere((image[0] > 150) & (image[1] < 120) & (image[2] < 120))

    ahead, left, behind = red(10.0, 8.0), red(8.0, 8.0), red(10.0, 1.5)
    assert ahead[:, 1].mean() == pytest.approx(31.5, abs=1)
    assert 10 < left[:, 1].mean() < 28
    assert len(behind) == 0
    assert len(red(12.0, 8.0)) > 0
    assert len(red(14.0, 8.0)) == 0, "a house hides it"


def test_the_benchmark_writes_a_row_for_each_maze(tmp_path: Path) -> None:
    out = tmp_path / "new" / "speed.md"
    few = ["--num-envs", "4", "--image-envs", "2", "--demonstrations", "2", "--rounds", "1", "--seconds", "0.01"]
    words = ["--mazes", "SimpleTownBase", "SimpleTownOXX", *few, "--markdown", str(out)]
    script = [sys.executable, "benchmarks/lifelong_speed.py"]
    done = subprocess.run([*script, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| SimpleTown")]
    assert len(rows) == 2
    assert all(float(cell) > 0 for row in rows for cell in row[1:5])
