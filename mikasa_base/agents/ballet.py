"""Agents for Ballet."""

from __future__ import annotations

import numpy as np

from mikasa_base.agents.agent import Agent
from mikasa_base.envs.ballet import DIRECTIONS, HOMES, MOVES, ROOM, START, STEPS, TILE, WATCH, Observation, Place
from mikasa_base.envs.drawing import Image

__all__ = ["Memoryless", "PerfectMemory"]


class PerfectMemory(Agent):
    """Tracks the steps of each dancer in the images, and goes to the one whose steps match the dance."""

    def begin(self, obs: Observation) -> None:
        """Forgets the last episode."""
        self._steps: dict[Place, list[Place]] = {home: [] for home in HOMES}

    def act(self, obs: Observation, reward: float) -> int:
        """Any action while somebody dances, then the direction of the dancer."""
        if obs["instruction"] == WATCH:
            self._watch(obs["image"])
            return 0
        dance = STEPS[obs["instruction"] - 1]
        row, column = next(home for home, steps in self._steps.items() if tuple(steps) == dance)
        return DIRECTIONS.index((int(np.sign(row - START[0])), int(np.sign(column - START[1]))))

    def _watch(self, image: Image) -> None:
        for place in _occupied(image):
            home = min(HOMES, key=lambda home: max(abs(home[0] - place[0]), abs(home[1] - place[1])))
            steps, step = self._steps[home], (place[0] - home[0], place[1] - home[1])
            # a dance begins with a step away from the dancer's place
            if len(steps) < MOVES and (steps or step != (0, 0)):
                steps.append(step)


class Memoryless(Agent):
    """Goes to the nearest dancer. As their order is random, this is as good as any other one."""

    def begin(self, obs: Observation) -> None:
        """Nothing to prepare."""

    def act(self, obs: Observation, reward: float) -> int:
        """The direction of the nearest dancer; of equally near ones, the first."""
        ways = [(row - START[0], column - START[1]) for row, column in _occupied(obs["image"])]
        down, across = min(ways, key=lambda way: max(abs(way[0]), abs(way[1])))
        return DIRECTIONS.index((int(np.sign(down)), int(np.sign(across))))


def _occupied(image: Image) -> list[Place]:
    """Tiles of the image that show neither floor, nor wall, nor the agent."""
    tiles = image.reshape(ROOM, TILE, ROOM, TILE, 3)
    drawn = tiles.any(axis=(1, 3, 4))
    plain = (tiles == tiles[:, :1, :, :1]).all(axis=(1, 3, 4))  # walls and the agent have one colour all over
    return [(int(row), int(column)) for row, column in np.argwhere(drawn & ~plain)]
