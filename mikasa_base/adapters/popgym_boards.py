"""POPGym's board games and labyrinths."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import popgym.envs as upstream

from mikasa_base import checks

from .popgym_adapter import PopGymEnv

__all__ = [
    "Battleship",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MineSweeper",
]


class Battleship(PopGymEnv):
    """Sink four hidden ships of 2, 3, 3 and 4 tiles.

    Task: remember the tiles that were shot at and which of them were hits.
    Observation: Tuple(Discrete(2), MultiDiscrete([b + 1, b + 1])): whether the shot hit a tile for the first time; the
        tile that was shot at, (b, b) at the reset. POPGym's code returns the first alone, as ``previous_action=False``
        does; its paper describes the tile.
    Actions: MultiDiscrete([b, b]), the tile to shoot at.
    Reward: 1 / 12 for a hit, minus 1 / (b^2 - 12) for anything else.
    End: terminates when all ships are sunk, truncates after ``b^2`` steps.

    Args:
        board_size: b, tiles on a side, 6 to 100.
        previous_action: Whether the observation holds the tile that was shot at.
        render_mode: None or "rgb_array".
    """

    def __init__(self, board_size: int = 8, previous_action: bool = True, render_mode: str | None = None) -> None:
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.Battleship(board_size=checks.integer("board_size", board_size, 6, 100))
        super().__init__(env, render_mode, previous_action)


class MineSweeper(PopGymEnv):
    """Uncover all tiles but the mines; the board is not shown.

    Task: remember what has been uncovered, and infer where the mines are.
    Observation: Tuple(Discrete(M + 1, at most 10), MultiDiscrete([b + 1, b + 1])): mines on the tile and its neighbours;
        the tile, (b, b) at the reset. POPGym's code returns the first alone, as ``previous_action=False`` does; its
        paper describes the tile.
    Actions: MultiDiscrete([b, b]), the tile to uncover.
    Reward: 1 / T for a new tile, -0.5 / (T - 2) for one uncovered before, -0.5 - 1 / T for a mine, where T = b^2 - M.
    End: terminates on a mine and when all is uncovered, truncates after T steps.

    Args:
        difficulty: "easy" (b = 4, M = 2), "medium" (6, 6) or "hard" (8, 10).
        previous_action: Whether the observation holds the tile that was uncovered.
        render_mode: None or "rgb_array".
    """

    def __init__(self, difficulty: str = "easy", previous_action: bool = True, render_mode: str | None = None) -> None:
        checks.choice("difficulty", difficulty, ("easy", "medium", "hard"))
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.MineSweeper(difficulty)
        self.num_mines: int = env.num_mines
        super().__init__(env, render_mode, previous_action)


_LEAST_MAZE = 6
"""The generator of mazes makes none with fewer than three cells on a side, of two tiles each."""


class _Labyrinth(PopGymEnv):
    def __init__(self, env_class: Any, size: int, render_mode: str | None) -> None:
        if checks.integer("size", size, _LEAST_MAZE, 100) % 2:
            raise ValueError(f"size={size!r} should be even")
        with warnings.catch_warnings():
            # POPGym warns that memory helps little here; the table of environments says so, too
            warnings.simplefilter("ignore", DeprecationWarning)
            env = env_class(maze_dims=(size, size))
        super().__init__(env, render_mode)

    def _begin(self) -> Any:
        with _global_generators(int(self.np_random.integers(2**32))):
            return super()._begin()

    def _correct(self, obs: Any, first: bool = False) -> Any:
        env: Any = self._env.unwrapped
        y, x = env.position
        view = np.pad(env.maze.grid, 1, constant_values=1)[y : y + 3, x : x + 3]
        return np.append(view, obs[-1])


class LabyrinthExplore(_Labyrinth):
    """Visit every tile of a maze.

    Task: remember the paths that were not taken. As the mazes have no loops, following the wall works as well.
    Observation: MultiDiscrete([5] * 10): the 3x3 tiles round the agent, row by row (0 free, 1 wall, 2 start, 3 goal);
        the previous action, 4 at the reset. POPGym shifts the tiles by one at the left and upper border; this does not.
    Actions: Discrete(4): left, right, up, down.
    Reward: 1 / (free tiles) for a new tile, else -1/1024.
    End: terminates when all is visited, truncates after 1023 steps.
    Unlike POPGym's, info does not hold the maze and the position.

    Args:
        size: Tiles on a side, even, from 6 to 100; the rim adds one.
        render_mode: None or "rgb_array".
    """

    def __init__(self, size: int = 10, render_mode: str | None = None) -> None:
        super().__init__(upstream.LabyrinthExplore, size, render_mode)


class LabyrinthEscape(_Labyrinth):
    """Find the way out of a maze.

    Task: remember the dead ends. As the mazes have no loops, following the wall works nearly as well.
    Observation, actions: as `LabyrinthExplore`.
    Reward: -1/1024 each step, and 1 at the goal, which is on the side opposite to the start.
    End: terminates at the goal, truncates after 1023 steps.

    Args:
        size: Tiles on a side, even, from 6 to 100; the rim adds one.
        render_mode: None or "rgb_array".
    """

    def __init__(self, size: int = 10, render_mode: str | None = None) -> None:
        super().__init__(upstream.LabyrinthEscape, size, render_mode)


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seeds Python's and numpy's global generators, which mazelib uses, and restores them at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
