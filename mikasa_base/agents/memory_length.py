"""Agents for MemoryLength."""

from __future__ import annotations

from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]


class PerfectMemory(Agent):
    """Keeps the bits that it was shown first and answers with the one that is named."""

    def begin(self, obs: Any) -> None:
        """Keeps the bits."""
        self._bits = obs[2:] > 0

    def act(self, obs: Any, reward: float) -> Any:
        """The bit that the observation names; only the last answer counts."""
        return int(self._bits[int(obs[1])])


class Memoryless(Agent):
    """Answers with the bit if it can see it, else with any."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The bit on view, or a random one."""
        bit = obs[2 + int(obs[1])]
        return int(bit > 0) if np.any(bit) else int(self.rng.integers(2))
