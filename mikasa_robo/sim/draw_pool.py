"""Several processes that draw the scenes of a batch without a GPU.

SAPIEN has one renderer per process, and with a software renderer one thread of it processes the vertices of all images.
So a process hardly uses two cores. Here each of several processes draws some of the scenes, from copies that
look the same. Images are the same to the bit. Physics stays in the main process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import sapien
import sapien.render as render
import torch
from torch import Tensor

from .draw_process import PICTURE_FORMATS
from .scene_copy import Appearance, CannotCopyError, cameras_of, describe, pack_poses

__all__ = ["ENVS_PER_PROCESS", "DrawError", "DrawPool", "default_processes"]

ENVS_PER_PROCESS = 4
"""By default each process draws at least so many environments: a process takes seconds to start."""
MOST_BY_DEFAULT = 16
"""A process takes about 0.2 GB of memory."""
_START = "import sys; sys.path[:] = {path!r}; from mikasa_robo.sim.draw_process import run; run({descriptor}, {parent})"
"""Does not import the main module of the main process, which therefore needs no ``if __name__ == "__main__":``."""


class DrawError(RuntimeError):
    """The processes cannot draw. The message says why."""


def default_processes(num_envs: int, threads: int) -> int:
    """How many processes draw ``num_envs`` environments on ``threads`` cores; 0: the main process does."""
    processes = min(threads, num_envs // ENVS_PER_PROCESS, MOST_BY_DEFAULT)
    return processes if processes > 1 else 0


class DrawPool:
    """Processes that draw ``scenes``.

    Args:
        scenes: N scenes, all drawn by the CPU. The list is kept: a scene in it may be replaced by one that shares its
            render system.
        cameras: for each name, a camera in every scene.
        shader_pack: the shaders of all these cameras.
        processes: how many processes, 1 to N.

    Raises:
        DrawError: a scene holds something that cannot be copied. No process is left.
    """

    def __init__(
        self,
        scenes: Sequence[sapien.Scene],
        cameras: Mapping[str, Sequence[render.RenderCameraComponent]],
        shader_pack: str,
        processes: int,
    ) -> None:
        self._scenes, self._cameras = scenes, dict(cameras)
        if shader_pack not in PICTURE_FORMATS:
            raise DrawError(f"the shaders {shader_pack!r} are not for CPUs")
        self._shader_pack = shader_pack
        bounds = [len(scenes) * i // processes for i in range(processes + 1)]
        self._shards = [range(*pair) for pair in itertools.pairwise(bounds)]
        self._appearances: list[Appearance | None] = [None] * len(scenes)
        self._handles: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._close = weakref.finalize(self, _end, self._handles, os.getpid())
        self._numbers: dict[str, int] = {}
        first = cameras_of(self._scenes[0])
        wanted = [camera for camera in first if any(camera is group[0] for group in self._cameras.values())]
        for name, group in self._cameras.items():
            self._numbers[name] = wanted.index(group[0])

    # ------------------------------------------------------------------ drawing
    def update(self) -> None:
        """Brings the copies up to date with the scenes.

        Raises:
            DrawError: that is impossible.
        """
        if not self._close.alive:
            raise DrawError("the processes were ended")
        changed = [i for i, known in enumerate(self._appearances) if known is None or known.has_changed()]
        descriptions = {}
        try:
            for i in changed:
                cameras = [group[i] for group in self._cameras.values()]
                descriptions[i] = describe(self._scenes[i], cameras)
                self._appearances[i] = Appearance(self._scenes[i], cameras)
        except CannotCopyError as error:
            self.close()
            raise DrawError(f"this cannot be copied to another process: {error}") from error
        if not self._handles:
            self._start()
        poses = [pack_poses(scene) for scene in self._scenes]
        with self._closing_on_error():
            for shard, (_, connection) in zip(self._shards, self._handles, strict=True):
                if new := {i: descriptions[i] for i in shard if i in descriptions}:
                    connection.send(("build", new))
                connection.send(("pose", {i: poses[i] for i in shard}))

    def draw(self, camera: str) -> None:
        """Starts the images of one camera. Raises DrawError if a process has ended."""
        with self._closing_on_error():
            for _, connection in self._handles:
                connection.send(("draw", self._numbers[camera]))

    def fetch(self, camera: str, texture: str) -> Tensor:
        """The images (N, H, W, C) of one camera, once they are drawn. Raises DrawError if a process failed."""
        with self._closing_on_error():
            for _, connection in self._handles:
                connection.send(("fetch", self._numbers[camera], texture))
            images: Tensor | None = None
            for shard, (_, connection) in zip(self._shards, self._handles, strict=True):
                kind, told = connection.recv()
                if kind == "failed":
                    raise DrawError(_last_line(told))
                shape, dtype = told
                if images is None:
                    images = torch.from_numpy(np.empty((len(self._scenes), *shape[1:]), dtype))
                rows = images[shard.start : shard.stop].numpy()
                connection.recv_bytes_into(rows.data.cast("B"))
        assert images is not None
        return images

    # ------------------------------------------------------------------ processes
    def _start(self) -> None:
        # one thread in each process: there are as many processes as cores
        environment = {"LP_NUM_THREADS": "0", **os.environ}
        with self._closing_on_error():
            for _ in self._shards:
                ours, theirs = socket.socketpair()
                with theirs:
                    code = _START.format(path=sys.path, descriptor=theirs.fileno(), parent=os.getpid())
                    process = subprocess.Popen(
                        [sys.executable, "-W", "ignore", "-c", code],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env=environment,
                    )
                connection = Connection(ours.detach())
                self._handles.append((process, connection))
                connection.send(("use_shaders", self._shader_pack))

    @contextlib.contextmanager
    def _closing_on_error(self) -> Any:
        """Ends all processes on any error: a later reply would be taken for the reply to another request."""
        try:
            yield
        except (EOFError, OSError) as error:
            reason = self._last_words()
            self.close()
            raise DrawError(reason) from error
        except BaseException:
            self.close()
            raise

    def _last_words(self) -> str:
        for process, connection in self._handles:
            with contextlib.suppress(EOFError, OSError):
                while connection.poll():
                    kind, told = connection.recv()
                    if kind == "failed":
                        return _last_line(told)
                    connection.recv_bytes()
            if process.poll() is not None:
                return f"process {process.pid} ended with exit code {process.returncode}"
        return "a process closed its end of the connection"

    def close(self) -> None:
        """Ends the processes. May be called twice."""
        self._close()


def _last_line(report: str) -> str:
    return report.strip().splitlines()[-1]


def _end(handles: list[tuple[subprocess.Popen[bytes], Connection]], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that they belong to
    for process, connection in handles:
        process.kill()
        connection.close()
    for process, _ in handles:
        process.wait()
    handles.clear()
