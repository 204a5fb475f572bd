"""Agents for the three forms of Numpad.

`Planner` finds the sequence from what it sees and says which tile comes next; the agents bring the ball there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mikasa_base.agents.agent import Agent
from mikasa_base.envs.numpad import MAX_SPEED, MOVES, PITCH, TILE

__all__ = ["Planner", "RollingMemoryless", "RollingPerfectMemory", "TileMemoryless", "TilePerfectMemory"]

Vector = npt.NDArray[np.float64]


def neighbors(tile: int, size: int) -> list[int]:
    """The neighbour of ``tile`` for each action; ``tile`` itself at the border of the board."""
    places = MOVES + divmod(tile, size)
    return [int(row) * size + int(column) if 0 <= row < size and 0 <= column < size else tile for row, column in places]


class Planner:
    """Learns the sequence by trial and error.

    Args:
        size: Tiles along each side of the board.
        rng: Chooses among tiles that are equally good to try.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.known: list[int] = []
        """The sequence as far as it is known."""
        self.complete = False
        """Whether the known sequence is all of it."""
        self._wrong: defaultdict[int, set[int]] = defaultdict(set)  # tiles that did not come next, by the number lit
        self._lit, self._tile = 0, -1

    def next_tile(self, lit: int, tile: int) -> int:
        """The neighbour to go to now that ``lit`` tiles are lit and the ball has come to ``tile``."""
        if lit > len(self.known):
            self.known.append(tile)
        elif self._lit == len(self.known) and not self.complete:
            if tile == self._tile and lit < self._lit:
                self.complete = True  # the lights went out by themselves
            elif self._tile >= 0 or lit == 0:
                self._wrong[self._lit].add(tile)
        self._lit, self._tile = lit, tile
        if lit < len(self.known):
            return self._towards(tile, [self.known[lit]])
        if not self.known:
            return self._towards(tile, [t for t in range(self.size**2) if t not in self._wrong[0]])
        fresh = set(neighbors(tile, self.size)) - set(self.known) - self._wrong[lit]
        if fresh and not self.complete:
            return int(self.rng.choice(sorted(fresh)))
        self.complete = True
        return self._towards(tile, [self.known[0]])

    def _towards(self, tile: int, goals: list[int]) -> int:
        """A neighbour on a shortest way to the nearest of ``goals``."""

        def distance(start: int) -> int:
            row, column = divmod(start, self.size)
            return min(abs(row - goal // self.size) + abs(column - goal % self.size) for goal in goals)

        nearest = {k: distance(k) for k in neighbors(tile, self.size) if k != tile}
        return int(self.rng.choice([k for k, d in nearest.items() if d == min(nearest.values())]))


class TilePerfectMemory(Agent):
    """Plans with the tiles that it has seen, one tile per step."""

    def begin(self, obs: Any) -> None:
        """Forgets the sequence before."""
        self._planner = Planner(obs.shape[1], self.rng)

    def act(self, obs: Any, reward: float) -> Any:
        """The step to the tile that the plan names."""
        tile = int(obs[1].argmax())
        return neighbors(tile, obs.shape[1]).index(self._planner.next_tile(int(obs[0].sum()), tile))


def _round_trip(tile: int, size: int) -> int:
    """The action that goes round the border of the board, clockwise; from within it goes up."""
    row, column = divmod(tile, size)
    last = size - 1
    up, right, down, left = range(4)
    if row == 0 and column < last:
        return right
    if column == last and row < last:
        return down
    if row == last and column > 0:
        return left
    return up


class TileMemoryless(Agent):
    """Goes to any neighbour that is not lit, if there is one; while all are dark, it goes round the board.

    With a round trip it meets the first tile of the sequence sooner than with random steps.
    """

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """A step on the round trip, or a random one, not against the wall, onto a tile that is out if there is one."""
        tile, lit = int(obs[1].argmax()), obs[0].ravel()
        if not lit.any():
            return _round_trip(tile, obs.shape[1])
        inside = [(action, k) for action, k in enumerate(neighbors(tile, obs.shape[1])) if k != tile]
        out = [action for action, k in inside if not lit[k]]
        return int(self.rng.choice(out or [action for action, _ in inside]))


class _Rolling(Agent):
    """Reads the observation of a ball that rolls, and drives it."""

    def __init__(self, env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
        super().__init__(env, rng)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self._size = int(np.sqrt(space.shape[0] - 4))
        self._discrete = isinstance(env.action_space, gym.spaces.Discrete)

    def _read(self, obs: Any) -> tuple[Vector, Vector, npt.NDArray[np.bool_]]:
        """Position and velocity of the ball, in px and px per step, and which tiles are lit."""
        return obs[:2].astype(np.float64) * PITCH * self._size, obs[2:4].astype(np.float64) * MAX_SPEED, obs[4:] > 0.5

    def _middle(self, tile: int) -> Vector:
        return PITCH * (np.array(divmod(tile, self._size)) + 0.5)

    def _tile_at(self, ball: Vector) -> int | None:
        """The tile that the ball is on, if any."""
        row, column = np.minimum(ball // PITCH, self._size - 1).astype(int).tolist()
        tile = row * self._size + column
        return tile if (np.abs(ball - self._middle(tile)) <= TILE / 2).all() else None

    def _drive(self, way: Vector, velocity: Vector) -> Any:
        """The action that rolls the ball by ``way`` and lets it rest there."""
        # with 1 px less speed each step, a ball of speed v comes to rest after v (v - 1) / 2 px
        wanted = np.sign(way) * np.minimum(MAX_SPEED, (1 + np.sqrt(1 + 8 * np.abs(way))) / 2 - 0.5)
        push = np.clip(wanted - velocity, -1, 1)
        if not self._discrete:
            return push.astype(np.float32)
        axis = int(np.abs(wanted - velocity).argmax())
        return int(np.flatnonzero(MOVES[:, axis] == (1 if push[axis] > 0 else -1))[0])


class RollingPerfectMemory(_Rolling):
    """Plans with the tiles that it has seen and drives the ball from the centre of one tile to that of the next."""

    def begin(self, obs: Any) -> None:
        """Forgets the sequence before."""
        self._planner = Planner(self._size, self.rng)
        self._tile = self._tile_at(self._read(obs)[0])
        self._lit, self._goal = -1, -1

    def act(self, obs: Any, reward: float) -> Any:
        """The push towards the tile that the plan names."""
        ball, velocity, lights = self._read(obs)
        tile, lit = self._tile_at(ball), int(lights.sum())
        if lit != self._lit or tile not in (None, self._tile):
            self._tile = self._tile if tile is None else tile
            assert self._tile is not None, "the ball starts on a tile"
            self._lit = lit
            self._goal = self._planner.next_tile(lit, self._tile)
        return self._drive(self._middle(self._goal) - ball, velocity)


class RollingMemoryless(_Rolling):
    """Keeps the direction of the ball; when it is slow, goes to a random neighbour that is not lit."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The push towards the tile ahead, or towards a random one."""
        ball, velocity, lights = self._read(obs)
        row, column = np.minimum(ball // PITCH, self._size - 1).astype(int).tolist()
        cell = row * self._size + column
        beside = [k for k in neighbors(cell, self._size) if k != cell]
        ways = [self._middle(k) - self._middle(cell) for k in beside]
        ahead = [k for k, way in zip(beside, ways, strict=True) if way @ velocity > PITCH]
        goal = int(self.rng.choice(ahead or [k for k in beside if not lights[k]] or beside))
        return self._drive(self._middle(goal) - ball, velocity)
