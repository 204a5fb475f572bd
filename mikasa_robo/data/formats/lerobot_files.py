"""The files of a LeRobot dataset: numbered Parquet and MP4 files, each up to a size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mikasa_robo.video import FFmpegWriter

__all__ = ["FILES_PER_CHUNK", "ParquetFiles", "VideoFiles", "write_tasks"]

FILES_PER_CHUNK = 1000
_RAW_VIDEO_BYTES = 2 * 2**30
"""Of the images in one MP4 file, before compression. The size on disk, to be below 200 MB, is known too late."""
_CODEC = ["-g", "2", "-crf", "18", "-preset", "veryfast"]
"""A key frame every second frame, as in LeRobot, so that single frames are found quickly; near to lossless in brightness."""


class ParquetFiles:
    """Appends tables to the files chunk-000/file-000.parquet, file-001.parquet, … of a folder."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._number = 0
        self._sink: Any = None
        self._writer: Any = None

    @property
    def place(self) -> tuple[int, int]:
        """Chunk and file of the next table."""
        if self._sink is not None and self._sink.tell() >= self.limit:
            self.close()
            self._number += 1
        return divmod(self._number, FILES_PER_CHUNK)

    def append(self, table: Any) -> None:
        """Write a `pyarrow.Table` as one row group."""
        chunk, file = self.place
        if self._writer is None:
            path = self.folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pq.ParquetWriter(self._sink, table.schema, compression="snappy")
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
            self._writer = self._sink = None


def require_video_size(height: int, width: int) -> None:
    """Raise ValueError where images of this size, in pixels, cannot be videos."""
    if height % 2 or width % 2:
        raise ValueError(
            f"images of {width}x{height} pixels cannot be videos, which need an even width and height; use the format "
            "lerobot-images"
        )


class VideoFiles:
    """Appends the images of one camera to the files chunk-000/file-000.mp4, … of a folder.

    The videos are H.264, which every player reads. Their colours have half the resolution in each direction.

    Raises:
        ValueError: the codec needs an even height and width.
        VideoError: from `append` and `close`, where a file cannot be written, as on a full disk.
    """

    def __init__(self, folder: Path, fps: int, height: int, width: int) -> None:
        require_video_size(height, width)
        self.folder, self.fps = folder, fps
        self._most_frames = max(1, _RAW_VIDEO_BYTES // (3 * height * width))
        self._number = 0
        self._writer: FFmpegWriter | None = None

    def append(self, images: NDArray[np.uint8]) -> dict[str, Any]:
        """Write an episode (L, H, W, 3), and return where it is: chunk, file, and where it begins and ends, in s."""
        if self._writer is not None and self._writer.frames + len(images) > self._most_frames:
            self.close()
            self._number += 1
        chunk, file = divmod(self._number, FILES_PER_CHUNK)
        if self._writer is None:
            path = self.folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = FFmpegWriter(
                path,
                fps=self.fps,
                codec="libx264",
                pixelformat="yuv420p",
                macro_block_size=1,
                ffmpeg_log_level="error",
                output_params=_CODEC,
            )
        begin = self._writer.frames
        for image in images:
            self._writer.add(np.ascontiguousarray(image))
        return {
            "chunk_index": chunk,
            "file_index": file,
            "from_timestamp": begin / self.fps,
            "to_timestamp": self._writer.frames / self.fps,
        }

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.finish()
            self._writer = None

    def abort(self) -> None:
        """End ffmpeg, which would go on writing. Nothing can be appended afterwards."""
        if self._writer is not None:
            self._writer.close()


def write_tasks(path: Path, tasks: list[str]) -> None:
    """Write tasks.parquet: the numbers of the tasks, with their texts as pandas' index."""

    def column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    index = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(index)}), path)
