"""Ways through a maze: A* over its cells, away from walls where there is room, pulled straight like a string."""

from __future__ import annotations

import functools
import heapq
import math

import numpy as np

from mikasa_base.envs.batched import Floats
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.nav.kinematics import RADIUS
from mikasa_lifelong.nav.mazes import HEDGE_HEIGHT, Maze

__all__ = ["MAX_DETOUR", "Planner", "length"]

MAX_DETOUR = 1.15
"""A way to one side is taken if it is at most this many times as long as the shortest."""
MARGIN = 0.1
"""Least distance from walls when a way is pulled straight, beside the agent's radius, m."""
NEAR_WALL = 0.5
"""A cell beside a wall costs this much more than another, as a share."""
OFF_SIDE = 0.5
"""Likewise a cell on the side that is not wanted."""
CLIMB = 1.0
"""A step onto a hedge costs this much more, m."""
_STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
_DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))
_STRIDE = 0.1
_Cell = tuple[int, int]  # column, row


def length(points: Floats) -> float:
    """Length of a way, points (M, 2), in metres."""
    return float(np.sqrt((np.diff(points, axis=0) ** 2).sum(axis=1)).sum())


class Planner:
    """Plans ways in one maze. Results are kept, so the same question is answered at once.

    Args:
        maze: The maze.
        clearance: Whether to keep away from walls where there is room, as demonstrators do. Without it, a way is the
            shortest over the cells.
    """

    def __init__(self, maze: Maze, clearance: bool = True) -> None:
        self._heights = maze.heights
        low = (maze.heights > 0) & (maze.heights <= HEDGE_HEIGHT)
        self._free = (maze.heights == 0).tolist()
        self._low = low.tolist()
        blocked = np.pad(maze.heights > 0, 1)
        rows, columns = maze.heights.shape
        near = np.zeros((rows, columns), np.bool_)
        for dx, dy in (*_STRAIGHT, *_DIAGONAL):
            near |= blocked[1 + dy : 1 + dy + rows, 1 + dx : 1 + dx + columns]
        self._cost = np.where(near & clearance, 1 + NEAR_WALL, 1.0)
        self._cells = functools.cache(self._search)

    def way(self, start: Floats, goal: Floats, side: int = 0) -> Floats:
        """Corners (M, 2) of a way from ``start`` (2,) to ``goal`` (2,), both included, in metres.

        Args:
            start: x, y of the start.
            goal: x, y of the goal.
            side: 0 for the best way; 1 or -1 for one to the left or right of the straight line from start to goal, if
                that is at most `MAX_DETOUR` times as long.

        Raises:
            LifelongError: the goal cannot be reached.
        """
        first, last = ((int(x), int(y)) for x, y in (start, goal))
        ways = [self._pulled(start, goal, self._cells(first, last, choice)) for choice in dict.fromkeys((0, side))]
        return ways[-1] if length(ways[-1]) <= MAX_DETOUR * length(ways[0]) else ways[0]

    def cells(self, start: Floats, goal: Floats) -> list[_Cell]:
        """The cells, as (column, row), of the best way from ``start`` (2,) to ``goal`` (2,). Errors as in `way`."""
        return self._cells((int(start[0]), int(start[1])), (int(goal[0]), int(goal[1])), 0)

    def _search(self, start: _Cell, goal: _Cell, side: int) -> list[_Cell]:
        """A*: the cells from ``start`` to ``goal``."""
        cost = self._weights(start, goal, side)
        best = {start: 0.0}
        came: dict[_Cell, _Cell] = {}
        open_cells = [(0.0, start)]
        closed: set[_Cell] = set()
        while open_cells:
            _, cell = heapq.heappop(open_cells)
            if cell == goal:
                break
            if cell in closed:
                continue
            closed.add(cell)
            for other, distance in self._neighbours(cell):
                total = best[cell] + distance * cost[other[1]][other[0]]
                if total < best.get(other, math.inf):
                    best[other], came[other] = total, cell
                    dx, dy = abs(other[0] - goal[0]), abs(other[1] - goal[1])
                    heapq.heappush(open_cells, (total + max(dx, dy) + (math.sqrt(2) - 1) * min(dx, dy), other))
        else:
            raise LifelongError(f"no way leads from cell {start} to cell {goal}; open a door between them")
        way = [goal]
        while way[-1] != start:
            way.append(came[way[-1]])
        return way[::-1]

    def _weights(self, start: _Cell, goal: _Cell, side: int) -> list[list[float]]:
        rows, columns = np.indices(self._cost.shape)
        across = (goal[0] - start[0]) * (rows - start[1]) - (goal[1] - start[1]) * (columns - start[0])
        weights: list[list[float]] = (self._cost + OFF_SIDE * (across * side < 0)).tolist()
        return weights

    def _neighbours(self, cell: _Cell) -> list[tuple[_Cell, float]]:
        x, y = cell
        found = []
        for dx, dy in _STRAIGHT:
            if self._free[y + dy][x + dx]:
                found.append(((x + dx, y + dy), 1.0))
            elif self._low[y + dy][x + dx]:
                found.append(((x + dx, y + dy), 1.0 if self._low[y][x] else 1.0 + CLIMB))
        for dx, dy in _DIAGONAL:
            if self._free[y][x] and self._free[y + dy][x + dx] and self._free[y][x + dx] and self._free[y + dy][x]:
                found.append(((x + dx, y + dy), math.sqrt(2)))
        return found

    def _pulled(self, start: Floats, goal: Floats, cells: list[_Cell]) -> Floats:
        inner = np.array(cells[1:-1], np.float64).reshape(-1, 2) + 0.5
        points = np.concatenate([[start], inner, [goal]])
        kept, i = [0], 0
        while i < len(points) - 1:
            # A hedge is never clear, so the cells of the way onto it and over it are kept, which lead straight across.
            i += 1
            while i + 1 < len(points) and self._clear(points[kept[-1]], points[i + 1]):
                i += 1
            kept.append(i)
        return points[kept]

    def _clear(self, start: Floats, goal: Floats) -> bool:
        """Whether an agent can walk straight from one point to the other without a jump."""
        count = max(2, math.ceil(math.dist(start, goal) / _STRIDE) + 1)
        points = start + np.linspace(0, 1, count)[:, None] * (goal - start)
        reach = RADIUS + MARGIN
        low, high = (points - reach).astype(np.int64), (points + reach).astype(np.int64)
        corners = [self._heights[y[:, 1], x[:, 0]] for x in (low, high) for y in (low, high)]
        return not np.any(corners)
