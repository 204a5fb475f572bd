"""Agents for POPGym's board games and labyrinths."""

from __future__ import annotations

from collections import deque
from itertools import product
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from mikasa_base.agents.agent import Agent

__all__ = ["Explorer", "MineFinder", "RowByRow", "ShipFinder", "WallFollower"]

Tile = tuple[int, int]
_SHIPS = (2, 3, 3, 4)
_HIT_WEIGHT = 20.0
"""Weight of a ship's place for each hit that it explains; the best of a few values that were tried."""


class RowByRow(Agent):
    """Battleship and MineSweeper without memory: takes the tile after the one in the observation."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The next tile of the row, or the first of the next row."""
        size = int(self.env.action_space.nvec[0])  # type: ignore[attr-defined]
        y, x = obs[1].tolist()
        following = 0 if y == size else (y * size + x + 1) % size**2
        return np.array(divmod(following, size))


class ShipFinder(Agent):
    """Battleship with memory: shoots at the tile of the most ship places that agree with all hits and misses."""

    def begin(self, obs: Any) -> None:
        """Nothing has been shot at."""
        self._size = int(self.env.action_space.nvec[0])  # type: ignore[attr-defined]
        self._known = np.full((self._size, self._size), -1)  # -1 unknown, 0 miss, 1 hit
        self._last: Tile | None = None

    def act(self, obs: Any, reward: float) -> Any:
        """The likeliest tile."""
        if self._last is not None:
            self._known[self._last] = reward > 0
        weights = np.zeros((self._size, self._size))
        for length in _SHIPS:
            for known, into in ((self._known, weights), (self._known.T, weights.T)):
                starts = self._size - length + 1
                hits = sum((known[:, i : i + starts] == 1).astype(int) for i in range(length))
                free = np.all([known[:, i : i + starts] != 0 for i in range(length)], axis=0)
                place = np.where(free & (hits < length), _HIT_WEIGHT**hits, 0.0)
                for i in range(length):
                    into[:, i : i + starts] += place
        weights[self._known != -1] = -1
        best = np.argwhere(weights == weights.max())
        y, x = self.rng.choice(best).tolist()
        self._last = (y, x)
        return np.array(self._last)


class MineFinder(Agent):
    """MineSweeper with memory: takes the tile that is least likely to be a mine, given all counts."""

    def begin(self, obs: Any) -> None:
        """Nothing has been uncovered."""
        self._size = int(self.env.action_space.nvec[0])  # type: ignore[attr-defined]
        self._mines: int = self.env.get_wrapper_attr("num_mines")
        self._counts: dict[Tile, int] = {}
        self._last: Tile | None = None

    def act(self, obs: Any, reward: float) -> Any:
        """The safest tile; a random one if there are several."""
        if self._last is not None:
            self._counts[self._last] = obs[0] if isinstance(obs, tuple) else obs
        risk = self._risks()
        least = min(risk.values())
        safest = [tile for tile, value in risk.items() if value <= least + 1e-12]
        self._last = safest[int(self.rng.integers(len(safest)))]
        return np.array(self._last)

    def _around(self, tile: Tile) -> list[Tile]:
        steps = product((-1, 0, 1), repeat=2)
        places = [(tile[0] + dy, tile[1] + dx) for dy, dx in steps]
        return [(y, x) for y, x in places if 0 <= y < self._size and 0 <= x < self._size]

    def _risks(self) -> dict[Tile, float]:
        """Probability of a mine on each covered tile: all boards that agree with the counts are equally likely."""
        tiles = [(y, x) for y in range(self._size) for x in range(self._size)]
        covered = [tile for tile in tiles if tile not in self._counts]
        rules = [({t for t in self._around(tile) if t not in self._counts}, n) for tile, n in self._counts.items()]
        rules = [(around, n) for around, n in rules if around]
        # For each group of tiles that rules tie together: by number of mines, the boards and those with a mine per tile.
        groups = [_solutions(group, tied) for group, tied in _tied_together(rules)]
        elsewhere = len(covered) - sum(len(group) for group, _ in groups)
        # Ways of all groups together by number of mines, and the same without group k for its tiles.
        everything = _convolved([{m: boards for m, (boards, _) in found.items()} for _, found in groups])
        total = sum(ways * _choose(elsewhere, self._mines - m) for m, ways in everything.items())
        risk: dict[Tile, float] = {}
        for k, (group, found) in enumerate(groups):
            others = _convolved([{m: b for m, (b, _) in f.items()} for j, (_, f) in enumerate(groups) if j != k])
            mined = np.zeros(len(group))
            for m, (_, each) in found.items():
                mined += each * sum(w * _choose(elsewhere, self._mines - m - o) for o, w in others.items())
            risk.update(zip(group, (mined / total).tolist(), strict=True))
        if elsewhere:
            mean = sum(w * _choose(elsewhere, self._mines - m) * (self._mines - m) for m, w in everything.items())
            grouped = set(risk)
            risk.update({tile: mean / total / elsewhere for tile in covered if tile not in grouped})
        return risk


def _choose(n: int, k: int) -> int:
    return comb(n, k) if k >= 0 else 0


def _convolved(parts: list[dict[int, int]]) -> dict[int, int]:
    ways = {0: 1}
    for part in parts:
        longer: dict[int, int] = {}
        for (m, a), (n, b) in product(ways.items(), part.items()):
            longer[m + n] = longer.get(m + n, 0) + a * b
        ways = longer
    return ways


def _tied_together(rules: list[tuple[set[Tile], int]]) -> list[tuple[list[Tile], list[tuple[set[Tile], int]]]]:
    groups: list[tuple[set[Tile], list[tuple[set[Tile], int]]]] = []
    for tiles, n in rules:
        tied = [group for group in groups if group[0] & tiles]
        groups = [group for group in groups if not group[0] & tiles]
        groups.append((tiles.union(*(t for t, _ in tied)), [(tiles, n), *(r for _, rs in tied for r in rs)]))
    return [(sorted(tiles), tied) for tiles, tied in groups]


def _solutions(
    tiles: list[Tile], rules: list[tuple[set[Tile], int]]
) -> tuple[list[Tile], dict[int, tuple[int, npt.NDArray[np.float64]]]]:
    """For each number of mines: the placements on ``tiles`` that obey ``rules``, and how many of them mine each tile."""
    of_tile = [[r for r, (inside, _) in enumerate(rules) if tile in inside] for tile in tiles]
    mines_left = [n for _, n in rules]
    tiles_left = [len(inside) for inside, _ in rules]
    laid = np.zeros(len(tiles))
    found: dict[int, tuple[int, npt.NDArray[np.float64]]] = {}

    def lay(i: int) -> None:
        if i == len(tiles):
            m = int(laid.sum())
            ways, each = found.get(m, (0, np.zeros(len(tiles))))
            found[m] = (ways + 1, each + laid)
            return
        for mine in (0, 1):
            for r in of_tile[i]:
                mines_left[r] -= mine
                tiles_left[r] -= 1
            laid[i] = mine
            if all(0 <= mines_left[r] <= tiles_left[r] for r in of_tile[i]):
                lay(i + 1)
            for r in of_tile[i]:
                mines_left[r] += mine
                tiles_left[r] += 1
        laid[i] = 0

    lay(0)
    return tiles, found


_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # (y, x) of left, right, up, down
_CLOCKWISE = (2, 1, 3, 0)  # up, right, down, left
_WALL, _GOAL, _NOTHING = 1, 3, 4


class Explorer(Agent):
    """Labyrinths with memory: draws a map and goes to the nearest free tile that is new, or to the goal."""

    def begin(self, obs: Any) -> None:
        """The map is empty, and has its origin here."""
        self._map: dict[Tile, int] = {}
        self._place: Tile = (0, 0)
        self._visited = {self._place}
        self._see(obs)

    def act(self, obs: Any, reward: float) -> Any:
        """The first move of the shortest path."""
        move = int(obs[9])
        if move != _NOTHING:
            self._place = (self._place[0] + _MOVES[move][0], self._place[1] + _MOVES[move][1])
            self._visited.add(self._place)
        self._see(obs)
        first: dict[Tile, int] = {self._place: _NOTHING}
        queue, goal_known = deque([self._place]), _GOAL in self._map.values()
        while queue:
            tile = queue.popleft()
            if self._map.get(tile) == _GOAL or (tile not in self._visited and not goal_known):
                return first[tile]
            for action, (dy, dx) in enumerate(_MOVES):
                beside = (tile[0] + dy, tile[1] + dx)
                if beside not in first and self._map.get(beside, _WALL) != _WALL:
                    first[beside] = action if tile == self._place else first[tile]
                    queue.append(beside)
        return 0

    def _see(self, obs: Any) -> None:
        for i in range(9):
            self._map[self._place[0] + i // 3 - 1, self._place[1] + i % 3 - 1] = int(obs[i])


class WallFollower(Agent):
    """Labyrinths without memory: keeps the wall to its right. The observation contains the previous action, so it can."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Right, ahead, left or back, the first that is free."""
        heading = _CLOCKWISE.index(int(obs[9])) if obs[9] != _NOTHING else 0
        for turn in (1, 0, 3, 2):
            action = _CLOCKWISE[(heading + turn) % 4]
            dy, dx = _MOVES[action]
            if obs[3 * (1 + dy) + 1 + dx] != _WALL:
                return action
        raise AssertionError("walled in on all sides")
