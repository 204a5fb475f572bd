"""Agents for MinigridMemory."""

from __future__ import annotations

from typing import Any

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]

_LEFT, _RIGHT, _FORWARD = 0, 1, 2
_WALL, _KEY, _BALL = 2, 5, 6
_WEST = 2


class PerfectMemory(Agent):
    """Turns back until it sees the object, turns around, walks to the end, and goes to the same object."""

    def begin(self, obs: Any) -> None:
        """Starts without having seen the object."""
        self._cue: int | None = None
        self._at_the_end = False

    def act(self, obs: Any, reward: float) -> Any:
        """The next move."""
        image, direction = obs["image"], obs["direction"]
        if self._cue is None:
            if direction != _WEST:
                return _RIGHT
            kinds = image[:, :, 0]
            objects = kinds[(kinds == _KEY) | (kinds == _BALL)]
            if not objects.size:
                return _FORWARD
            self._cue = int(objects[0])
        if direction != 0:
            return _FORWARD if self._at_the_end else _RIGHT
        if image[3, 5, 0] != _WALL:
            return _FORWARD
        self._at_the_end = True
        return _LEFT if self._cue in image[:3, :, 0] else _RIGHT


class Memoryless(Agent):
    """Walks to the end of the corridor and takes either side."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Forward, or to any side if there is a wall."""
        return _FORWARD if obs["image"][3, 5, 0] != _WALL else int(self.rng.integers(2))
