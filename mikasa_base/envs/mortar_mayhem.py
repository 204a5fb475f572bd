"""MortarMayhem: remember a list of commands, then carry them out one by one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, upscale
from mikasa_base.envs.walking import Arena, FreeWalker, GridWalker, Tile, Walker

__all__ = [
    "ARENA",
    "BLUE",
    "COMMANDS",
    "RED",
    "SYMBOL",
    "SYMBOL_PLACE",
    "MortarMayhem",
    "MortarMayhemGrid",
    "Timing",
    "symbol",
]

ARENA = Arena(tiles=5, tile_size=14, margin=7)
COMMANDS: tuple[Tile, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1), (0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
"""Columns and rows of each command's move."""
SYMBOL = (255, 255, 255)
_SYMBOL_SIZE = 22
_PLACE = slice((ARENA.size - _SYMBOL_SIZE) // 2, (ARENA.size + _SYMBOL_SIZE) // 2)
SYMBOL_PLACE = (_PLACE, _PLACE)
"""Rows and columns of the image that show a command."""
_SHOWN, _SHOW_PERIOD = 3, 4  # frames of a command, and frames from one to the next

BLUE, _LIGHT_BLUE = (21, 43, 77), (29, 60, 107)
RED, _LIGHT_RED = (81, 18, 26), (112, 24, 36)


class Timing:
    """The steps at which commands are shown, carried out and verified. Steps count from 1; the reset is step 0.

    Args:
        num_commands: Number of commands.
        delay: Steps that the walker has for a command, before the step of its verification.
        duration: Steps for which the other tiles are red, including that of the verification.
    """

    def __init__(self, num_commands: int, delay: int, duration: int) -> None:
        self.num_commands, self.delay, self.period = num_commands, delay, delay + duration
        self.start = _SHOW_PERIOD * num_commands
        """The first step in which the walker can move."""

    def shown(self, step: int) -> int | None:
        """Index of the command that the observation after ``step`` shows; None if it shows none."""
        command, frame = divmod(step, _SHOW_PERIOD)
        return command if command < self.num_commands and frame < _SHOWN else None

    def command(self, step: int) -> int:
        """Index of the command that is carried out or verified in ``step``, from `start` on."""
        return (step - self.start) // self.period

    def red_for(self, step: int) -> int:
        """Number of steps for which the tiles have been red: 0 if they are not, 1 in the step of the verification."""
        return max((step - self.start) % self.period - self.delay + 1, 0) if step >= self.start else 0


def symbol(command: Tile) -> npt.NDArray[np.bool_]:
    """The pixels (22, 22) of a command's symbol: an arrow, or a barred ring for "stay"."""
    half = _SYMBOL_SIZE / 2
    y, x = np.mgrid[:_SYMBOL_SIZE, :_SYMBOL_SIZE] + 0.5 - half
    if command == (0, 0):
        radius = np.hypot(x, y)
        return (np.abs(radius - half + 2) < 1.2) | ((np.abs(y) < 1.2) & (radius < half - 2))
    length = np.hypot(*command)
    along, across = (x * command[0] + y * command[1]) / length, np.abs(x * command[1] - y * command[0]) / length
    shaft = (across < 1.2) & (np.abs(along) < half - 1)
    head = (np.abs(along + across - (half - 2)) < 1.5) & (across < half - 3)
    return shaft | head


def _arena(tile: tuple[int, int, int], border: tuple[int, int, int]) -> Image:
    image = canvas(ARENA.size, ARENA.size)
    for column in range(ARENA.tiles):
        for row in range(ARENA.tiles):
            ARENA.paint(image, (column, row), border)
            ARENA.paint(image, (column, row), tile, inset=1)
    return image


_SAFE, _DEADLY = _arena(BLUE, _LIGHT_BLUE), _arena(RED, _LIGHT_RED)
_SYMBOLS = tuple(symbol(command)[..., None] for command in COMMANDS)


class MortarMayhem(DrawnEnv[Image, Any]):
    """The episode shows a list of commands, which the agent then has to carry out in order, without a mistake.

    Task: the arena has 5x5 tiles. Each command is shown for three frames, followed by an empty one: an arrow in one of
    eight directions, or a barred ring for "stay". The walker cannot move meanwhile. Then it has 18 steps to carry out each
    command, starting from the tile of the previous one, before all tiles except the right one turn red for 6 steps. It
    starts on a random tile, and no command leads out of the arena.
    Observation: uint8 (84, 84, 3): tiles of 14 pixels in the middle, blue, or red where it is deadly; the walker as a
        disc; a command in white in the centre.
    Actions: MultiDiscrete([3, 3]), horizontal and vertical: 0 nothing, 1 towards the left or up, 2 towards the right or
        down. A step is 3 pixels, or 2 along both axes. Actions have no effect while commands are shown, but must be valid.
    Reward: 0.1 for each command that is verified.
    End: with N commands, command i (from 0) is verified at step 4 N + 18 + 24 i. Terminates with the last one (step 274
        for 10) with ``info["success"]`` True, and as soon as the walker is on a red tile, with False.
    Source: Pleines et al. 2023, Memory Gym: Partially Observable Challenges to Memory-Based Agents (ICLR 2023), with its
        standard settings. Here observations are uint8, and a mistake at the last command is not a success.

    Args:
        num_commands: N, 1 to 50.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012
    _walker_class: type[Walker] = FreeWalker
    _delay, _duration = 18, 6
    _allowed = COMMANDS

    def __init__(self, num_commands: int = 10, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.num_commands = checks.integer("num_commands", num_commands, 1, 50)
        self.timing = Timing(self.num_commands, self._delay, self._duration)
        self._walker = self._walker_class(ARENA)
        self.action_space = self._walker.action_space()
        self.observation_space = gym.spaces.Box(0, 255, (ARENA.size, ARENA.size, 3), np.uint8)
        self.commands: list[Tile] = []
        self.targets: list[Tile] = []
        """The tile that each command leads to."""
        self._step = 0
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        column, row = self.np_random.integers(ARENA.tiles, size=2).tolist()
        self._walker.heading = 0
        self._walker.place((column, row))
        self.commands, self.targets = [], []
        for _ in range(self.num_commands):
            possible = [c for c in self._allowed if ARENA.contains((column + c[0], row + c[1]))]
            command = possible[self.np_random.integers(len(possible))]
            column, row = column + command[0], row + command[1]
            self.commands.append(command)
            self.targets.append((column, row))
        self._step, self._over = 0, False
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        move = self._walker.read(action)
        self._step += 1
        reward, info = 0.0, {}
        if self._step >= self.timing.start:
            self._walker.move(move)
            red_for, i = self.timing.red_for(self._step), self.timing.command(self._step)
            if red_for:
                failed = self._walker.tile != self.targets[i]
                if red_for == 1 and not failed:
                    reward = 0.1
                self._over = failed or i == self.num_commands - 1
                if self._over:
                    info = {"success": not failed}
        return self._picture(), reward, self._over, False, info

    def frame(self) -> Image:
        """The observation, enlarged four times."""
        return upscale(self._picture(), 4)

    def _picture(self) -> Image:
        if self.timing.red_for(self._step):
            image = _DEADLY.copy()
            x, y = ARENA.corner(self.targets[self.timing.command(self._step)])
            tile = slice(y, y + ARENA.tile_size), slice(x, x + ARENA.tile_size)
            image[tile] = _SAFE[tile]
        else:
            image = _SAFE.copy()
        self._walker.draw(image)
        shown = self.timing.shown(self._step)
        if shown is not None:
            np.copyto(image[SYMBOL_PLACE], np.uint8(255), where=_SYMBOLS[COMMANDS.index(self.commands[shown])])
        return image


class MortarMayhemGrid(MortarMayhem):
    """`MortarMayhem` with a walker that moves by whole tiles. It differs in the following.

    Task: the commands are right, down, left, up and "stay"; the walker has 6 steps for each, and the tiles turn red for
    2. It heads up at the start.
    Actions: Discrete(4): 0 nothing, 1 turn left, 2 turn right, 3 go one tile ahead, where the dark square on the disc
        points.
    End: command i is verified at step 4 N + 6 + 8 i, the last of 10 at step 118.
    Source: MortarMayhem-Grid of the same.

    Args:
        num_commands: N, 1 to 50.
        render_mode: None or "rgb_array".
    """

    _walker_class = GridWalker
    _delay, _duration = 6, 2
    _allowed = COMMANDS[:5]
