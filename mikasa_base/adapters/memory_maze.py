"""MemoryMaze, on top of Memory Maze's own tasks (extra ``memory-maze``).

MuJoCo renders with EGL unless ``MUJOCO_GL`` is set. On Debian and Ubuntu, EGL needs the package libegl1.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import types
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled, ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, upscale

__all__ = ["MemoryMaze"]

_SIZES = (9, 11, 13, 15)
_SIDE, _SCALE = 64, 2


class MemoryMaze(DrawnEnv[npt.NDArray[np.uint8], Any]):
    """Go to the coloured balls of a maze in the order in which the environment asks for them.

    Task: remember the maze and the places of the balls over many visits. Each episode has a new maze.
    Observation: uint8 (64, 64, 3), the view of the rolling agent. Its border has the colour of the ball to go to.
    Actions: Discrete(6): nothing, forward, left, right, forward and left, forward and right. 4 actions a second.
    Reward: 1 for touching the ball that is asked for, after which the environment asks for another one; else 0.
    End: truncates after 1000, 2000, 3000, 4000 steps by size.
    Source: Pasukonis et al. 2022, Evaluating Long-Term Memory in 3D Mazes (arXiv 2210.13383), memory-maze 1.0.3.

    A reset takes one or two seconds. With a seed it builds the whole world anew, as the generators cannot be seeded later.
    A reset without a seed continues with the same generators.

    Args:
        size: 9, 11, 13 or 15 tiles on a side, with 3, 4, 5 or 6 balls.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, size: int = 9, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        checks.choice("size", size, _SIZES)
        self.size = size
        self.observation_space = spaces.Box(0, 255, (_SIDE, _SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(6)
        self._task = getattr(_tasks(), f"memory_maze_{size}x{size}")
        self._env: Any = None
        self._seen: npt.NDArray[np.uint8] = np.zeros((_SIDE, _SIDE, 3), np.uint8)
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        if seed is not None or self._env is None:
            self.close()
            self._env = self._task(image_only_obs=True, seed=int(self.np_random.integers(2**31)))
        self._over = False
        return self._show(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded("MemoryMaze.step(): no episode is going on; call reset() first")
        told = self._env.step(checks.integer("action", action, 0, 5))
        self._over = bool(told.last())
        terminated = self._over and told.discount == 0
        return self._show(told.observation), float(told.reward), terminated, self._over and not terminated, {}

    def frame(self) -> Image:
        """The view of the agent, enlarged twice."""
        return upscale(self._seen, _SCALE)

    def close(self) -> None:
        """Frees MuJoCo's rendering contexts."""
        if self._env is not None:
            self._env.close()
            self._env = None
        self._over = True

    def _show(self, seen: Any) -> npt.NDArray[np.uint8]:
        self._seen = np.array(seen, np.uint8)
        return self._seen.copy()


@cache
def _tasks() -> Any:
    """``memory_maze.tasks``, imported without its package's ``__init__``, which needs the old ``gym`` package."""
    # the package's own default, which has to be set before dm_control is imported
    os.environ.setdefault("MUJOCO_GL", "egl")
    spec = importlib.util.find_spec("memory_maze")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    if "memory_maze" not in sys.modules:
        package = types.ModuleType("memory_maze")
        package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations)
        sys.modules["memory_maze"] = package
    try:
        tasks = importlib.import_module("memory_maze.tasks")
    except (AttributeError, ImportError, RuntimeError) as error:
        raise DependencyNotInstalled(
            f"MemoryMaze cannot draw with MUJOCO_GL={os.environ['MUJOCO_GL']} ({error}): install the package libegl1 "
            "(apt-get install libegl1), or set MUJOCO_GL to osmesa or glfw before the first environment is made"
        ) from error
    # at each reset dm_control warns that the rolling ball has no free joint
    logging.getLogger("absl").addFilter(lambda record: "no free joint" not in record.getMessage())
    return tasks
