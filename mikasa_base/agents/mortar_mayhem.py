"""Agents for MortarMayhem and its grid form."""

from __future__ import annotations

from typing import Any

import numpy as np

from mikasa_base.agents.agent import Agent
from mikasa_base.agents.walking import has_heading, locate, pixels, steer
from mikasa_base.envs.drawing import Image
from mikasa_base.envs.mortar_mayhem import ARENA, COMMANDS, RED, SYMBOL, SYMBOL_PLACE, symbol
from mikasa_base.envs.walking import Tile

__all__ = ["Memoryless", "PerfectMemory"]

_READ = {symbol(command).tobytes(): command for command in COMMANDS}


class PerfectMemory(Agent):
    """Reads the commands from the images, and carries out the next one whenever the tiles have turned blue again."""

    def begin(self, obs: Image) -> None:
        """Forgets the last episode."""
        self._commands: list[Tile] = []
        self._goal: Tile | None = None
        self._shown = self._red = False

    def act(self, obs: Image, reward: float) -> Any:
        """Towards the tile of the current command; any action while commands are shown."""
        white = (obs[SYMBOL_PLACE] == SYMBOL).all(axis=-1)
        shown, red = bool(white.any()), len(pixels(obs, RED)[0]) > 0
        if shown and not self._shown:
            self._commands.append(_READ[white.tobytes()])
        was_red, self._shown, self._red = self._red, shown, red
        if shown:
            return _nothing(self.env)
        where = locate(obs)
        if self._goal is None:  # on the tile where it began, as yet
            self._goal = ARENA.tile_at(*where[:2])
            self._advance()
        elif was_red and not red:
            self._advance()
        return steer(ARENA, where, self._goal)

    def _advance(self) -> None:
        assert self._goal is not None
        across, down = self._commands.pop(0)
        self._goal = (self._goal[0] + across, self._goal[1] + down)


class Memoryless(Agent):
    """Stays where it is, as no tile is likelier to be the next one."""

    def begin(self, obs: Image) -> None:
        """Nothing to prepare."""

    def act(self, obs: Image, reward: float) -> Any:
        """Nothing."""
        return _nothing(self.env)


def _nothing(env: Any) -> Any:
    return 0 if has_heading(env) else np.zeros(2, np.int64)
