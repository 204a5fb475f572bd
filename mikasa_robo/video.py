"""MP4 files, and pictures side by side. Needs the extra ``train``."""

from __future__ import annotations

import errno
import math
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mikasa_robo.partial_files import PartialFile

__all__ = [
    "FPS",
    "FFmpegWriter",
    "Images",
    "VideoError",
    "VideoWriter",
    "tile_images",
    "write_tiled_video",
    "write_video",
]

FPS = 20
"""Frames per second: one for each control step of a robot task, so a video shows the true speed."""

Images = NDArray[np.uint8]


class VideoError(OSError):
    """ffmpeg did not write a whole video; the message names the file."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            errno.EIO,  # what is wrong ffmpeg does not say; mostly it is the disk
            f"the video {path} could not be written: {why}; look whether the disk is full, then write it again",
        )

    def __str__(self) -> str:
        return str(self.strerror)


class FFmpegWriter:
    """Writes an MP4 with ffmpeg, image by image, and makes sure that the file is whole.

    imageio ignores how ffmpeg ends, so a file that a full disk cut off would look like a success.

    Args:
        path: the file to write; one that exists is replaced.
        target: what errors call the file, where it is to be renamed; by default ``path``.
        **options: of imageio's writer, such as ``fps``.
    """

    def __init__(self, path: Path, *, target: Path | None = None, **options: Any) -> None:
        import imageio.v2 as imageio

        self.path, self._target = path, path if target is None else target
        self.frames = 0
        self._writer: Any = imageio.get_writer(path, format="FFMPEG", **options)

    def add(self, image: Images) -> None:
        """Append an image (H, W, 3) uint8. Raises VideoError where ffmpeg takes no more."""
        try:
            self._writer.append_data(image)
        except OSError as error:
            raise VideoError(self._target, f"ffmpeg ended at frame {self.frames}") from error
        self.frames += 1

    def finish(self) -> None:
        """Complete the file. Raises VideoError where it does not hold all images."""
        generator = getattr(self._writer, "_write_gen", None)  # imageio has no public way to the process
        frame = getattr(generator, "gi_frame", None)
        process = None if frame is None else frame.f_locals.get("p")
        self._writer.close()
        if isinstance(process, subprocess.Popen) and process.returncode:
            raise VideoError(self._target, f"ffmpeg ended with the exit code {process.returncode}")
        found = _count_frames(self.path)
        if found != self.frames:
            raise VideoError(self._target, f"the file holds {found} of {self.frames} frames")

    def close(self) -> None:
        """End ffmpeg, without a look at what it wrote. Closing again does nothing."""
        self._writer.close()


def _count_frames(path: Path) -> int:
    """The frames of a video. They are not decoded, so this takes little more than reading the file."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-v", "quiet", "-nostats", "-progress", "-"]
    command += ["-i", str(path), "-map", "0:v:0", "-c", "copy", "-f", "null", "-"]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
    counts = [line.partition("=")[2] for line in told.splitlines() if line.startswith("frame=")]
    return int(counts[-1]) if counts else 0


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
        VideoError: from `add` and `finish`, where the file cannot be written, as on a full disk.
    """

    def __init__(self, path: Path, fps: int = FPS, *, hold: int = 0, overwrite: bool = False) -> None:
        self.path = path
        self._hold, self._overwrite = hold, overwrite
        if path.suffix.lower() != ".mp4":
            raise ValueError(f"the video {path} cannot be written: it is an MP4, so its name has to end with .mp4")
        self._partial = PartialFile(path)
        try:
            self._writer = FFmpegWriter(self._partial.path, target=path, fps=fps, macro_block_size=2)
        except BaseException:
            self._partial.close()
            raise
        self._last: Images | None = None

    def add(self, image: Images) -> None:
        """Append an image (H, W, 3) uint8."""
        self._writer.add(image)
        self._last = image

    def finish(self) -> None:
        """Complete the file and give it its name."""
        if self._last is not None:
            for _ in range(self._hold):
                self._writer.add(self._last)
        self._writer.finish()
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
