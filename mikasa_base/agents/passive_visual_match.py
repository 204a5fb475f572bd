"""Agents for PassiveVisualMatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent
from mikasa_base.envs.drawing import Image
from mikasa_base.envs.passive_visual_match import (
    APPLE,
    APPLE_SLOTS,
    APPLE_START,
    MOVES,
    PADS,
    RESPAWN,
    VIEW,
    WALL,
    Place,
)

__all__ = ["Memoryless", "PerfectMemory"]

_NORTH, _SOUTH, _WEST, _EAST = range(4)
_SEARCH = (_NORTH, _NORTH, _WEST, _EAST, _EAST)  # from the alcove, until the right pad is in view
_CENTRE = VIEW // 2
_FIRST, _LAST = min(APPLE_SLOTS), max(APPLE_SLOTS)  # corners of the room with the apples


class PerfectMemory(Agent):
    """Remembers the colour and the places of apples, and looks for the pad of that colour."""

    def begin(self, obs: Image) -> None:
        """Keeps the colour."""
        self._color = next(color for color in PADS if _places(obs, [color]))
        self._here = APPLE_START
        self._unseen = set(APPLE_SLOTS)
        self._ripe: dict[Place, int] = {}  # where apples were seen, and when the next one is there
        self._time = 0
        self._search: list[int] | None = None

    def act(self, obs: Image, reward: float) -> Any:
        """Towards an apple, or the pad if it is in view, or on in the search for it."""
        pads = _places(obs, [self._color])
        if self._search is None and not _in_alcove(obs):
            return _NORTH if pads else self._gather(obs, reward)
        if self._search is None:
            self._search = list(_SEARCH)
        if pads:
            return _along_row_first(pads[0])
        return self._search.pop(0) if self._search else _NORTH

    def _gather(self, obs: Image, reward: float) -> int:
        """Towards the apple that it can reach first, or a place that it has not seen yet."""
        self._time += 1
        row, column = self._here
        self._unseen -= {(r, c) for r, c in self._unseen if max(abs(r - row), abs(c - column)) <= _CENTRE}
        for down, across in _places(obs, [APPLE]):
            self._ripe[row + down, column + across] = self._time
        if reward:
            self._ripe[self._here] = self._time + RESPAWN
        waits = {place: ripe - self._time for place, ripe in self._ripe.items()} | dict.fromkeys(self._unseen, 0)
        goal = min(waits, key=lambda place: max(abs(place[0] - row) + abs(place[1] - column), waits[place], 1))
        action = _along_row_first((goal[0] - row, goal[1] - column))
        ahead = (row + MOVES[action][0], column + MOVES[action][1])
        if all(low <= i <= high for low, i, high in zip(_FIRST, ahead, _LAST, strict=True)):
            self._here = ahead
        return action


class Memoryless(Agent):
    """Collects the apples that it sees, and goes to the first pad that it sees."""

    def begin(self, obs: Image) -> None:
        """Nothing to prepare."""

    def act(self, obs: Image, reward: float) -> Any:
        """Towards a pad if one is in view, out of the alcove if it is there, or towards an apple."""
        pads = _places(obs, PADS)
        if pads:
            return _along_row_first(pads[0])
        return _NORTH if _in_alcove(obs) else _to_apple(obs, self.rng)


def _places(view: Image, colors: Sequence[tuple[int, int, int]]) -> list[Place]:
    """Tiles of these colours, in rows and columns from the player."""
    there = (view[:, :, None] == np.array(colors)).all(axis=-1).any(axis=-1)
    return [(row - _CENTRE, column - _CENTRE) for row, column in np.argwhere(there).tolist()]


def _in_alcove(view: Image) -> bool:
    """Whether there is a wall on either side of the player, two tiles away: only the alcove is that narrow."""
    return bool((view[_CENTRE, [0, -1]] == WALL).all())


def _along_row_first(way: Place) -> int:
    down, across = way
    if across:
        return _EAST if across > 0 else _WEST
    return _SOUTH if down > 0 else _NORTH


def _to_apple(view: Image, rng: np.random.Generator) -> int:
    apples = _places(view, [APPLE])
    if not apples:
        return int(rng.integers(4))
    return _along_row_first(min(apples, key=lambda way: abs(way[0]) + abs(way[1])))
