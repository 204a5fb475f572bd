"""Agents for MemoryCards."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]


class PerfectMemory(Agent):
    """Remembers every face that it has seen, and which cards it has tried without success for which face."""

    def begin(self, obs: Any) -> None:
        """Forgets the game before."""
        self._seen: dict[int, int] = {}  # face by card
        self._in_vain: defaultdict[int, set[int]] = defaultdict(set)  # cards by face

    def act(self, obs: Any, reward: float) -> Any:
        """The partner if it was seen, else a random card that may be the partner."""
        up = int(np.flatnonzero((obs > 0) & (obs <= len(obs) // 2))[0])
        face = int(obs[up])
        self._seen[up] = face
        hidden = np.flatnonzero(obs == 0).tolist()
        mates = [card for card in hidden if self._seen.get(card) == face]
        if mates:
            return mates[0]
        pick = int(self.rng.choice([k for k in hidden if k not in self._seen and k not in self._in_vain[face]]))
        self._in_vain[face].add(pick)
        return pick


class Memoryless(Agent):
    """Chooses a random hidden card."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """A random hidden card."""
        return int(self.rng.choice(np.flatnonzero(obs == 0)))
