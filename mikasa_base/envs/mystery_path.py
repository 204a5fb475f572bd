"""MysteryPath: find an invisible path by trial and error, and remember it."""

from __future__ import annotations

import heapq
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from numpy.lib.stride_tricks import sliding_window_view

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, upscale
from mikasa_base.envs.walking import HEADINGS, Arena, FreeWalker, GridWalker, Tile, Walker

__all__ = ["ARENA", "CROSS", "GOAL", "MAX_NODES", "START", "MysteryPath", "MysteryPathGrid", "draw_path"]

ARENA = Arena(tiles=7, tile_size=12)
MAX_NODES = 14
"""Most tiles of a path, including both ends. The fewest are 7, as it crosses the arena."""
START, GOAL, CROSS = (0, 0, 255), (0, 255, 0), (255, 0, 0)
_WALL_CHANCE = 0.33
_BORDER_WALLS = (4, 8)
_MAX_COST = 8

_CROSS_SIZE = 10
_BAR = np.eye(_CROSS_SIZE) + np.eye(_CROSS_SIZE, k=1) + np.eye(_CROSS_SIZE, k=-1) > 0
_CROSS = (_BAR | _BAR[::-1])[..., None]


def draw_path(rng: np.random.Generator) -> list[Tile]:
    """A path of 7 to 14 neighbouring tiles, from a random tile of one side to a random tile of the opposite side.

    Inside, tiles are walls with probability 0.33. On the border there are 4 or 8 walls, so that paths do not mostly follow
    the edge of the picture; each is beside no wall of the inside, and is no end and beside none. Each move between tiles has
    a random cost from 1 to 8. The path is the cheapest one. If it is too long, or there is none, walls and costs are drawn
    again.
    """
    last = ARENA.tiles - 1
    side, start_at, goal_at = rng.integers((4, ARENA.tiles, ARENA.tiles)).tolist()
    ends = ((0, start_at), (last, goal_at)) if side < 2 else ((start_at, 0), (goal_at, last))
    start, goal = ends[::-1] if side % 2 else ends
    while True:
        walls = _draw_walls(rng, ends)
        costs = rng.integers(1, _MAX_COST + 1, (ARENA.tiles, ARENA.tiles, len(HEADINGS)))
        path = _cheapest(walls.tolist(), costs.tolist(), start, goal)
        if 0 < len(path) <= MAX_NODES:
            return path


def _draw_walls(rng: np.random.Generator, ends: tuple[Tile, Tile]) -> npt.NDArray[np.bool_]:
    """(tiles, tiles) bool: where the walls are; see `draw_path`."""
    tiles = ARENA.tiles
    walls = np.zeros((tiles, tiles), np.bool_)
    inside = slice(1, tiles - 2)  # as in the source: a row and a column beside the border have none
    walls[inside, inside] = rng.random((tiles - 3, tiles - 3)) < _WALL_CHANCE
    beside = sliding_window_view(np.pad(walls, 1), (3, 3)).any(axis=(2, 3))
    free: npt.NDArray[np.bool_] = np.logical_not(beside)
    free[1:-1, 1:-1] = False
    for end in ends:
        for across, down in ((0, 0), *HEADINGS):
            tile = (end[0] + across, end[1] + down)
            if ARENA.contains(tile):
                free[tile] = False
    chosen = rng.permutation(np.argwhere(free))[: rng.choice(_BORDER_WALLS)]
    walls[chosen[:, 0], chosen[:, 1]] = True
    return walls


def _cheapest(walls: list[list[bool]], costs: list[list[list[int]]], start: Tile, goal: Tile) -> list[Tile]:
    come_from: dict[Tile, Tile] = {}
    queue = [(0, start, start)]
    while goal not in come_from:
        if not queue:
            return []
        cost, tile, previous = heapq.heappop(queue)
        if tile in come_from:
            continue
        come_from[tile] = previous
        for way, (across, down) in zip(costs[tile[0]][tile[1]], HEADINGS, strict=True):
            then = (tile[0] + across, tile[1] + down)
            if then not in come_from and ARENA.contains(then) and not walls[then[0]][then[1]]:
                heapq.heappush(queue, (cost + way, then, tile))
    path = [goal]
    while path[-1] != start:
        path.append(come_from[path[-1]])
    return path[::-1]


class MysteryPath(DrawnEnv[Image, Any]):
    """An invisible path leads to the goal. A walker that leaves it returns to the start.

    Task: the arena has 7x7 tiles. Walk from the start, a random tile of one side, to the goal, a random tile of the
    opposite side, along a path of 7 to 14 tiles that has to be found by trial and error. A red cross appears when the
    walker has left it, and the next step only puts the walker back to the start. The path stays the same until the end of
    the episode.
    Observation: uint8 (84, 84, 3): tiles of 12 pixels, the start blue, the goal green (if they are shown), all others black;
        the walker as a disc, with the cross on it when it has left the path.
    Actions: MultiDiscrete([3, 3]), horizontal and vertical: 0 nothing, 1 towards the left or up, 2 towards the right or
        down. A step is 3 pixels, or 2 along both axes.
    Reward: 0.1 for each tile of the path between start and goal that is reached for the first time in the episode, 1 for
        the goal.
    End: terminates at the goal, truncates after 512 steps; ``info["success"]`` then tells whether the goal was reached.
    Source: Pleines et al. 2023, Memory Gym: Partially Observable Challenges to Memory-Based Agents (ICLR 2023), with its
        standard settings and the reward for progress. Here observations are uint8, the path is exactly the cheapest one,
        the walker is visible where it left the path, and so are start and goal. Its versions from 1.0 on do not show these
        two: ``show_origin=False, show_goal=False`` does likewise.

    Args:
        show_origin: Whether the start is blue.
        show_goal: Whether the goal is green.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    max_steps = 512
    _walker_class: type[Walker] = FreeWalker
    _progress_reward = 0.1

    def __init__(self, show_origin: bool = True, show_goal: bool = True, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        checks.choice("show_origin", show_origin, (False, True))
        checks.choice("show_goal", show_goal, (False, True))
        self._shown = (show_origin, show_goal)
        self._walker = self._walker_class(ARENA)
        self.action_space = self._walker.action_space()
        self.observation_space = gym.spaces.Box(0, 255, (ARENA.size, ARENA.size, 3), np.uint8)
        self.path: list[Tile] = []
        self._unvisited: set[Tile] = set()
        self._background = canvas(ARENA.size, ARENA.size)
        self._fallen = False
        self._step = 0
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self.path = draw_path(self.np_random)
        self._unvisited = set(self.path[1:-1])
        self._background = canvas(ARENA.size, ARENA.size)
        for shown, tile, color in zip(self._shown, (self.path[0], self.path[-1]), (START, GOAL), strict=True):
            if shown:
                ARENA.paint(self._background, tile, color)
        self._walker.heading = 0
        self._walker.place(self.path[0])
        self._step, self._fallen, self._over = 0, False, False
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        move = self._walker.read(action)
        self._step += 1
        if self._fallen:
            self._walker.place(self.path[0])
        else:
            self._walker.move(move)
        tile = self._walker.tile
        self._fallen = tile not in self.path
        arrived = tile == self.path[-1]
        reward = float(arrived)
        if tile in self._unvisited:
            self._unvisited.remove(tile)
            reward = self._progress_reward
        truncated = self._step == self.max_steps and not arrived
        self._over = arrived or truncated
        return self._picture(), reward, arrived, truncated, {"success": arrived} if self._over else {}

    def frame(self) -> Image:
        """The observation, enlarged four times."""
        return upscale(self._picture(), 4)

    def _picture(self) -> Image:
        image = self._background.copy()
        self._walker.draw(image)
        if self._fallen:
            x, y = self._walker.x - _CROSS_SIZE // 2, self._walker.y - _CROSS_SIZE // 2
            region = image[y : y + _CROSS_SIZE, x : x + _CROSS_SIZE]
            np.copyto(region, np.array(CROSS, np.uint8), where=_CROSS)
        return image


class MysteryPathGrid(MysteryPath):
    """`MysteryPath` with a walker that moves by whole tiles. It differs in the following.

    Actions: Discrete(4): 0 nothing, 1 turn left, 2 turn right, 3 go one tile ahead, where the dark square on the disc
        points; it points up at the start of an episode, and stays as it is when the walker is sent back.
    Reward: 1 for the goal, nothing for progress.
    End: truncates after 128 steps.
    Source: MysteryPath-Grid of the same.

    Args:
        show_origin: Whether the start is blue.
        show_goal: Whether the goal is green.
        render_mode: None or "rgb_array".
    """

    max_steps = 128
    _walker_class = GridWalker
    _progress_reward = 0.0
