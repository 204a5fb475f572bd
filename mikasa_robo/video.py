"""MP4 files, and pictures side by side. Needs the extra ``train``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mikasa_robo.partial_files import PartialFile

__all__ = ["FPS", "Images", "VideoWriter", "tile_images", "write_tiled_video", "write_video"]

FPS = 20
"""Frames per second: one for each control step of a robot task, so a video shows the true speed."""

Images = NDArray[np.uint8]


class VideoWriter:
    """Writes an MP4 image by image. The file gets its name once it is complete.

    As a context manager it finishes the file at the end of the block, or discards it if the block raises.

    Args:
        path: the file to write.
        fps: frames per second.
        hold: how many more frames the last image stays.
        overwrite: replace a file that exists; otherwise `finish` raises FileExistsError.

    Raises:
        ValueError: the name of the file does not end with .mp4.
    """

    def __init__(self, path: Path, fps: int = FPS, *, hold: int = 0, overwrite: bool = False) -> None:
        import imageio.v2 as imageio

        self.path = path
        self._hold, self._overwrite = hold, overwrite
        if path.suffix.lower() != ".mp4":
            raise ValueError(f"the video {path} cannot be written: it is an MP4, so its name has to end with .mp4")
        self._partial = PartialFile(path)
        try:
            self._writer: Any = imageio.get_writer(self._partial.path, format="FFMPEG", fps=fps, macro_block_size=2)
        except BaseException:
            self._partial.close()
            raise
        self._last: Images | None = None

    def add(self, image: Images) -> None:
        """Append an image (H, W, 3) uint8."""
        self._writer.append_data(image)
        self._last = image

    def finish(self) -> None:
        """Complete the file and give it its name."""
        if self._last is not None:
            for _ in range(self._hold):
                self._writer.append_data(self._last)
        self._writer.close()
        self._partial.replace(self._overwrite)

    def discard(self) -> None:
        """Remove the incomplete file. Does nothing after `finish`."""
        self._writer.close()
        self._partial.close()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()


def write_video(path: Path, frames: Iterable[Images], fps: int = FPS, *, overwrite: bool = True) -> None:
    """Write images (H, W, 3) uint8 as an MP4; see `VideoWriter`."""
    with VideoWriter(path, fps, overwrite=overwrite) as video:
        for frame in frames:
            video.add(frame)


def write_tiled_video(
    path: Path,
    frames: Iterable[tuple[Images, NDArray[np.bool_]]],
    fps: int = FPS,
    *,
    hold: int = 0,
    overwrite: bool = False,
) -> None:
    """Write the images of N environments side by side as an MP4; see `VideoWriter`.

    Args:
        path, fps, hold, overwrite: see `VideoWriter`.
        frames: images (N, H, W, 3) uint8, and (N,) bool: which of them to show. An environment whose image is not shown
            keeps its last one.
    """
    shown: Images | None = None
    with VideoWriter(path, fps, hold=hold, overwrite=overwrite) as video:
        for images, show in frames:
            shown = images if shown is None else np.where(show[:, None, None, None], images, shown)
            video.add(tile_images(shown))


def tile_images(images: Images) -> Images:
    """Put images (N, H, W, 3) side by side, row by row: (rows * H, columns * W, 3), black where there are none left."""
    n, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    grid = np.zeros((rows * columns, height, width, channels), dtype=images.dtype)
    grid[:n] = images
    return (
        grid.reshape(rows, columns, height, width, channels)
        .transpose(0, 2, 1, 3, 4)
        .reshape(rows * height, columns * width, channels)
    )
