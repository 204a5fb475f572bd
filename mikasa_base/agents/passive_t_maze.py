"""Agents for PassiveTMaze."""

from __future__ import annotations

from typing import Any

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]

_AHEAD, _UP, _DOWN = 0, 1, 3


class PerfectMemory(Agent):
    """Remembers the side of the goal, walks to the junction and turns to that side."""

    def begin(self, obs: Any) -> None:
        """Keeps the side of the goal."""
        self._goal = float(obs[1])

    def act(self, obs: Any, reward: float) -> Any:
        """Ahead in the corridor, to the goal at its end."""
        if obs[0] == 0:
            return _AHEAD
        return _UP if self._goal > 0 else _DOWN


class Memoryless(Agent):
    """Walks to the junction and turns to either side."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Ahead in the corridor, to a random side at its end."""
        return _AHEAD if obs[0] == 0 else int(self.rng.choice((_UP, _DOWN)))
