"""What runs in a process that draws some of a batch's scenes; see `draw_pool`.

It holds copies of these scenes. Before each image it is sent the poses of all their entities.
"""

from __future__ import annotations

import os
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import sapien
import sapien.render as render

from .scene_copy import Description, build, cameras_of

__all__ = ["Artist", "run"]

PICTURE_FORMATS = {
    "minimal": {
        "Color": "r8g8b8a8unorm",
        "ColorRaw": "r8g8b8a8unorm",
        "PositionSegmentation": "r16g16b16a16sint",
    },
    "default": {
        "Color": "r32g32b32a32sfloat",
        "ColorRaw": "r32g32b32a32sfloat",
        "PositionSegmentation": "r32g32b32a32sfloat",
    },
}
"""What ManiSkill's ``set_shader_pack`` sets for each shader pack that needs no ray tracing."""


class Artist:
    """Copies of scenes, by their numbers. Its public methods are the requests; those that return None have no reply."""

    def __init__(self) -> None:
        self._scenes: dict[int, sapien.Scene] = {}
        self._cameras: dict[int, list[render.RenderCameraComponent]] = {}

    def use_shaders(self, pack: str) -> None:
        """Chooses the shaders of the cameras that are built afterwards."""
        render.set_camera_shader_dir(pack)
        for picture, kind in PICTURE_FORMATS[pack].items():
            render.set_picture_format(picture, kind)

    def build(self, descriptions: dict[int, Description]) -> None:
        """Builds scenes, or builds them again."""
        for number, description in descriptions.items():
            self._scenes[number] = scene = build(description, sapien.Device("cpu"))
            self._cameras[number] = cameras_of(scene)

    def pose(self, poses: dict[int, bytes]) -> None:
        """Moves the entities of scenes, as ``Scene.pack_poses()`` has them."""
        for number, packed in poses.items():
            self._scenes[number].unpack_poses(packed)
            self._scenes[number].update_render()

    def draw(self, camera: int) -> None:
        """Starts the images of one camera in every scene."""
        for number in sorted(self._cameras):
            self._cameras[number][camera].take_picture()

    def fetch(self, camera: int, texture: str) -> np.ndarray:
        """The images (n, H, W, C) of one camera in every scene, in the order of their numbers."""
        return np.stack([self._cameras[n][camera].get_picture(texture) for n in sorted(self._cameras)])


def run(descriptor: int, parent: int) -> None:
    """Answers requests until the process ``parent``, at the other end of the socket ``descriptor``, closes it or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes; the main one decides
    connection, artist = Connection(descriptor), Artist()
    render.set_log_level("error")
    try:
        while True:
            # a fork of the main process may hold the other end open for longer than the main process lives
            while not connection.poll(1.0):
                if os.getppid() != parent:
                    return
            name, *arguments = connection.recv()
            _reply(connection, getattr(artist, name)(*arguments))
    except (EOFError, ConnectionError):
        pass
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
    finally:
        os._exit(0)  # a regular exit takes a second, to unload the libraries


def _reply(connection: Connection, images: Any) -> None:
    if images is not None:
        connection.send(("images", (images.shape, images.dtype.str)))
        connection.send_bytes(np.ascontiguousarray(images).data.cast("B"))
