"""What the tests of wrappers and videos share: pictures without a renderer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

GREY = 120


class Canvas(gym.Wrapper[Any, Any, Any, Any]):
    """Stands for the renderer: ``render`` gives one grey picture for each environment, in the shape asked for."""

    def __init__(
        self, env: gym.Env[Any, Any], height: int = 512, width: int = 512, *, as_array: bool = False, flat: bool = False
    ) -> None:
        super().__init__(env)
        self.shape, self.as_array, self.flat = (height, width, 3), as_array, flat

    def render(self) -> Any:
        task: Any = self.unwrapped
        shape = self.shape if self.flat else (task.num_envs, *self.shape)
        if self.as_array:
            return np.full(shape, GREY, dtype=np.uint8)
        return torch.full(shape, GREY, dtype=torch.uint8, device=task.device)
