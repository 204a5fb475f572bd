"""Agents for MemoryLength."""

from __future__ import annotations

from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]


class PerfectMemory(Agent):
    """Remembers the bits of the first observation and answers with the one that is asked for."""

    def begin(self, obs: Any) -> None:
        """Keeps the bits."""
        self._bits = obs[2:] > 0

    def act(self, obs: Any, reward: float) -> Any:
        """The bit that the observation asks for. Only the last answer counts."""
        return int(self._bits[int(obs[1])])


class Memoryless(Agent):
    """Answers with the bit if the observation contains it, else with a random one."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The visible bit, or a random one."""
        bit = obs[2 + int(obs[1])]
        return int(bit > 0) if np.any(bit) else int(self.rng.integers(2))
