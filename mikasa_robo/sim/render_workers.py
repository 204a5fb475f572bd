"""Images that other processes draw if they can, and this process otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import sapien
from torch import Tensor

from .draw_pool import DrawError, DrawPool

logger = logging.getLogger(__name__)


class Drawing:
    """What the cameras see, drawn by ``processes``, which are started for the first image.

    Args:
        scenes: N scenes.
        sensors: ManiSkill's cameras, by name.
        processes: from 1 to N.
    """

    is_outdated = True
    """Whether the scenes may have changed since the last image."""

    def __init__(self, scenes: Sequence[sapien.Scene], sensors: Mapping[str, Any], processes: int) -> None:
        self._pool: DrawPool | None = None
        try:
            packs = {sensor.config.shader_config.shader_pack for sensor in sensors.values()}
            if len(packs) != 1:
                raise DrawError(f"the cameras have different shaders: {', '.join(sorted(packs))}")
            cameras = {name: sensor.camera._render_cameras for name, sensor in sensors.items()}
            self._pool = DrawPool(scenes, cameras, packs.pop(), processes)
        except DrawError as error:
            self._give_up(error)

    def draw(self, camera: str) -> bool:
        """Starts the images of a camera in every scene. Returns False if this process has to draw them."""
        if self._pool is None:
            return False
        try:
            if self.is_outdated:
                self._pool.update()
                self.is_outdated = False
            self._pool.draw(camera)
        except DrawError as error:
            self._give_up(error)
        return self._pool is not None

    def fetch(self, camera: str, texture: str) -> Tensor | None:
        """The images (N, H, W, C) of a camera; None: this process has to draw them."""
        if self._pool is None:
            return None
        try:
            return self._pool.fetch(camera, texture)
        except DrawError as error:
            self._give_up(error)
        return None

    def _give_up(self, error: DrawError) -> None:
        logger.warning("images are drawn in one process from now on: %s", error)
        self.close()

    def close(self) -> None:
        """Ends the processes. May be called twice."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
