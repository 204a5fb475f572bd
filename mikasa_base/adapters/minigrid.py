"""MinigridMemory, on top of Minigrid's own class (extra ``minigrid``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from minigrid.envs.memory import MemoryEnv

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image

__all__ = ["MinigridMemory"]

_TILE = 16


class MinigridMemory(DrawnEnv[Any, Any]):
    """Look at an object in a room, then go to the same object at the far end of a corridor.

    Task: remember one of two objects, a key or a ball, while walking down the corridor. The agent starts at a random place
        in it and has to turn back to see the object. From size 11 on, the object and the two at the end are never visible
        at the same time. Minigrid's smaller sizes, 7 and 9, are left out, as there they are.
    Observation: Dict: "image" uint8 (7, 7, 3), the tiles ahead as (kind, colour, state) with the agent at [3, 6];
        "direction" Discrete(4): 0 right, 1 down, 2 left, 3 up. Minigrid's mission, always the same sentence, is left out.
    Actions: Discrete(7): 0 turn left, 1 turn right, 2 forward; the others are not needed.
    Reward: ``1 - 0.9 t / (5 size^2)`` at the right object, where t is the number of steps; else 0.
    End: terminates at either object, truncates after ``5 size^2`` steps. ``info["success"]`` then tells whether the agent
        reached the right one.
    Source: Chevalier-Boisvert et al. 2023, Minigrid & Miniworld (arXiv 2306.13831), minigrid 3.2.0, MemoryEnv.

    Args:
        size: Tiles on a side, odd, 11 to 101.
        random_length: Whether the length of the corridor differs from episode to episode. All objects may then be
            visible at the same time.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, size: int = 11, random_length: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if checks.integer("size", size, 11, 101) % 2 == 0:
            raise ValueError(f"size={size!r} should be odd")
        checks.choice("random_length", random_length, (False, True))
        self._env = MemoryEnv(size=int(size), random_length=random_length)
        parts = self._env.observation_space
        assert isinstance(parts, spaces.Dict)
        self.observation_space = spaces.Dict({name: parts[name] for name in ("image", "direction")})
        self.action_space = self._env.action_space
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self._env.np_random = self.np_random
        obs, _ = self._env.reset()
        self._over = False
        return _seen(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded("MinigridMemory.step(): no episode is going on; call reset() first")
        obs, reward, terminated, truncated, _ = self._env.step(checks.integer("action", action, 0, 6))
        truncated = truncated and not terminated
        self._over = terminated or truncated
        return _seen(obs), float(reward), terminated, truncated, {"success": reward > 0} if self._over else {}

    def frame(self) -> Image:
        """The whole grid, with what the agent sees highlighted."""
        return np.array(self._env.get_frame(tile_size=_TILE), np.uint8)


def _seen(obs: dict[str, Any]) -> dict[str, Any]:
    return {"image": np.array(obs["image"]), "direction": int(obs["direction"])}
