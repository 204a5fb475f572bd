"""Text on the pictures of ``render``."""

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
    """Writes text on the pictures that ``render`` returns, to each environment's picture its own; changes nothing else.

    Overlays may be stacked, in any order and with other wrappers between them: each writes below (or, at the bottom,
    above) what those it wraps have written. What ``render`` returns keeps its type, shape, dtype and device.
    ``RecordEpisode`` films the overlays that it wraps; ``ManiSkillVectorEnv.render()`` goes past every wrapper by itself.
    """

    place: ClassVar[Place] = "top"
    """The edge of the picture at which the text begins."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.extents: dict[Place, list[int]] = {}
        """For each edge, how many pixels of each environment's last picture are taken by text."""

    @abstractmethod
    def lines(self) -> list[list[str]]:
        """The lines of text of this moment, for each of the N environments."""

    def render(self) -> Any:
        """The picture (N, H, W, 3) or, where there is one environment, also (H, W, 3), with the text of this moment."""
        rendered = self.env.render()
        if not isinstance(rendered, Tensor | np.ndarray):
            return rendered  # nothing, or the window of render_mode="human"
        pictures = np.array(rendered.cpu().numpy() if isinstance(rendered, Tensor) else rendered)
        batch = pictures if pictures.ndim == 4 else pictures[None]
        n = self.task.num_envs
        if len(batch) != n:
            raise ValueError(
                f"{type(self).__name__} got {len(batch)} pictures for {n} environments: put it inside of what tiles them"
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
        """The next overlay that this one wraps."""
        env: Any = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, Overlay):
                return env
            env = env.env
        return None
