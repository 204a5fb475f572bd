"""Where the commands that draw put the camera."""

from __future__ import annotations

from typing import Any

from mikasa_robo.catalog import CameraView, TaskSpec

__all__ = ["camera_config", "camera_for"]


def camera_config(view: CameraView, size: int) -> dict[str, Any]:
    """The ``human_render_camera_configs`` of a task, for images (size, size, 3)."""
    from mani_skill.utils import sapien_utils

    return {"width": size, "height": size, "fov": view.fov, "pose": sapien_utils.look_at(view.eye, view.target)}


def camera_for(row: TaskSpec | None, size: int) -> dict[str, Any]:
    """The camera of a task's videos, images (size, size, 3). A task without a row keeps its own camera's pose."""
    return {"width": size, "height": size} if row is None else camera_config(row.view, size)
