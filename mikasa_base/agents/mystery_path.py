"""Agents for MysteryPath and its grid form."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent
from mikasa_base.agents.walking import AHEAD, TURNS, locate, pixels, push, steer
from mikasa_base.envs.drawing import Image
from mikasa_base.envs.mystery_path import ARENA, CROSS, GOAL
from mikasa_base.envs.walking import HEADINGS, Tile

__all__ = ["Memoryless", "PerfectMemory"]

_COST_UNKNOWN = 4.0
"""Cost of a move to a tile that was not tried yet. A move to a tile that is known to be on the path costs 1."""
_AWAY = 0.1
"""Weight of a move that does not lead towards the goal. A move towards the goal has 1 + this weight."""


class PerfectMemory(Agent):
    """Remembers which tiles are on the path and which are not, and takes the cheapest possible way to the goal."""

    def begin(self, obs: Image) -> None:
        """Finds the goal."""
        y, x = pixels(obs, GOAL)
        self._goal = ARENA.tile_at(int(x[0]), int(y[0]))
        self._on: set[Tile] = set()
        self._off: set[Tile] = set()
        self._at: Tile | None = None
        self._next = self._goal

    def act(self, obs: Image, reward: float) -> Any:
        """Towards the next tile of the way."""
        where = locate(obs)
        tile = ARENA.tile_at(*where[:2])
        if tile != self._at:
            fallen = len(pixels(obs, CROSS)[0]) > 0
            (self._off if fallen else self._on).add(tile)
            self._at = tile
            if not fallen:
                self._next = self._plan(tile)
        return steer(ARENA, where, self._next)

    def _plan(self, start: Tile) -> Tile:
        """The first tile of the cheapest way from ``start`` to the goal."""
        come_from: dict[Tile, Tile] = {}
        queue = [(0.0, start, start)]
        while self._goal not in come_from:
            cost, tile, previous = heapq.heappop(queue)
            if tile in come_from:
                continue
            come_from[tile] = previous
            for across, down in HEADINGS:
                then = (tile[0] + across, tile[1] + down)
                if ARENA.contains(then) and then not in self._off:
                    heapq.heappush(queue, (cost + (1.0 if then in self._on else _COST_UNKNOWN), then, tile))
        tile = self._goal
        while come_from[tile] != start:
            tile = come_from[tile]
        return tile


class Memoryless(Agent):
    """Moves randomly along the lines through the centres of tiles, more often towards the goal than away from it."""

    def begin(self, obs: Image) -> None:
        """Nothing to prepare."""

    def act(self, obs: Image, reward: float) -> Any:
        """A random move along the line. The grid form turns or goes ahead, more often if that leads towards the goal."""
        x, y, heading = locate(obs)
        goal_y, goal_x = (pixel.mean() for pixel in pixels(obs, GOAL))
        weights = np.array(
            [_AWAY + (h[0] * (goal_x - x) + h[1] * (goal_y - y) > ARENA.tile_size / 2) for h in HEADINGS]
        )
        if heading is not None:
            return AHEAD if self.rng.random() * weights.sum() < weights[heading] else int(self.rng.choice(TURNS))
        centre_x, centre_y = ARENA.centre(ARENA.tile_at(x, y))
        if x != centre_x:
            weights[[0, 2]] = 0
        elif y != centre_y:
            weights[[1, 3]] = 0
        return push(HEADINGS[self.rng.choice(len(HEADINGS), p=weights / weights.sum())])
