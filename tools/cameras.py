"""Where the commands that draw put the camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["VIEWS", "WHOLE_TABLE", "CameraView", "camera_for"]

Point = tuple[float, float, float]


@dataclass(frozen=True)
class CameraView:
    """The camera of a video: its position and the point it looks at, m, and its field of view, rad."""

    eye: Point
    target: Point
    fov: float

    def camera(self, size: int) -> dict[str, Any]:
        """The ``human_render_camera_configs`` of a task, for images (size, size, 3)."""
        from mani_skill.utils import sapien_utils

        return {"width": size, "height": size, "fov": self.fov, "pose": sapien_utils.look_at(self.eye, self.target)}


WHOLE_TABLE = CameraView((0.85, -0.15, 0.75), (-0.1, -0.17, 0.06), 1.05)
"""Shows the whole path of a ball that rolls across the table."""
VIEWS: dict[str, CameraView] = {"Intercept": WHOLE_TABLE, "InterceptGrab": WHOLE_TABLE}
"""Families that the usual view shows only in part."""
USUAL_VIEW = CameraView((0.75, 0.0, 0.75), (-0.12, 0.0, 0.08), 0.9)


def camera_for(family: str | None, size: int) -> dict[str, Any]:
    """The camera of a family's videos, images (size, size, 3). A task without a family keeps its own camera's pose."""
    if family is None:
        return {"width": size, "height": size}
    return VIEWS.get(family, USUAL_VIEW).camera(size)
