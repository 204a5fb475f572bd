"""Write text on the images that ``render`` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from .task_wrapper import TaskWrapper
from .text import Place, write_lines

__all__ = ["Overlay"]


class Overlay(TaskWrapper, ABC):
    """Writes each environment's text on its image; changes nothing else.

    Overlays may be stacked, in any order and with other wrappers between them: each writes below (or, at the bottom,
    above) the text of those that it wraps. What ``render`` returns keeps its type, shape, dtype and device.
    ``RecordEpisode`` films the overlays that it wraps; ``ManiSkillVectorEnv.render()`` bypasses all wrappers.
    """

    place: ClassVar[Place] = "top"
    """The edge of the image at which the text begins."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.extents: dict[Place, list[int]] = {}
        """For each edge, how many pixels of each environment's last image are covered by text."""

    @abstractmethod
    def lines(self) -> list[list[str]]:
        """The present lines of text for each of the N environments."""

    def render(self) -> Any:
        """The images (N, H, W, 3), or (H, W, 3) if there is one environment, with the present text."""
        rendered = self.env.render()
        if not isinstance(rendered, Tensor | np.ndarray):
            return rendered  # None, or the window of render_mode="human"
        pictures = np.array(rendered.cpu().numpy() if isinstance(rendered, Tensor) else rendered)
        batch = pictures if pictures.ndim == 4 else pictures[None]
        n = self.task.num_envs
        if len(batch) != n:
            raise ValueError(
                f"{type(self).__name__} got {len(batch)} images for {n} environments: put it inside the "
                "wrapper that tiles them"
            )
        inner = self._inner()
        self.extents = {} if inner is None else dict(inner.extents)
        starts = self.extents.get(self.place, [0] * n)
        self.extents[self.place] = [
            write_lines(picture, lines, self.place, start)
            for picture, lines, start in zip(batch, self.lines(), starts, strict=True)
        ]
        return torch.from_numpy(pictures).to(rendered.device) if isinstance(rendered, Tensor) else pictures

    def _inner(self) -> Overlay | None:
        """The next overlay inside this one."""
        env: Any = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, Overlay):
                return env
            env = env.env
        return None
