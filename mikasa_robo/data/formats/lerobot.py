"""LeRobot datasets, version v3.0 of the format, written without LeRobot. LeRobot 0.6.1 reads them.

    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    dataset = LeRobotDataset("mikasa/RememberColor3-v0", root="DIR/lerobot")

See https://huggingface.co/docs/lerobot/lerobot-dataset-v3 for the layout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mikasa_robo.data.episode import Array, DatasetInfo, Episode
from mikasa_robo.data.formats.lerobot_files import (
    FILES_PER_CHUNK,
    ParquetFiles,
    VideoFiles,
    require_video_size,
    write_tasks,
)
from mikasa_robo.data.formats.lerobot_names import image_key, observation_keys
from mikasa_robo.data.formats.lerobot_stats import RunningStats, Stats, image_stats, vector_stats
from mikasa_robo.data.formats.parts import (
    LayoutCheck,
    encode_png,
    episode_facts,
    flags_of,
    info_dict,
    labels_of,
    split_images,
    vectors_of,
)

__all__ = ["LeRobotImageWriter", "LeRobotWriter"]

DATA_MB, VIDEO_MB = 100, 200
"""Sizes after which a new Parquet file is begun, and that no MP4 file reaches, in MB."""
_EPISODES_AT_ONCE = 50  # rows of meta/episodes in one row group


class LeRobotWriter:
    """Writes a LeRobot dataset with the colour images as videos; see `EpisodeWriter`.

    A frame is an observation and the action that follows, so the observation after the last action is left out. Depth and
    segmentation are PNG files with 16 bits inside the Parquet files. Names that policies look for are "observation.state"
    (the joints), "observation.environment_state" (the objects), "observation.images.CAMERA" and "action". What an agent must
    not see begins with "privileged.". Arrays with more than two axes, other than images, are flattened to vectors.

    Raises:
        ValueError: the images have an odd width or height; from `add`, where ``info`` does not tell their size.
    """

    videos = True
    """Whether colour images become videos, which is smaller, but changes them a little."""

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        if self.videos and "rgb" in info.image_parts and info.image_size is not None:
            require_video_size(*info.image_size)
        self.info = info
        self.folder = out
        (out / "meta").mkdir(parents=True)
        self._layout = LayoutCheck()
        self._features: dict[str, dict[str, Any]] = {}
        self._data = ParquetFiles(out / "data", DATA_MB * 10**6)
        self._episode_files = ParquetFiles(out / "meta" / "episodes", DATA_MB * 10**6)
        self._video_files: dict[str, VideoFiles] = {}
        self._rows: list[dict[str, Any]] = []
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, RunningStats] = {}
        self._episodes = self._frames = 0

    def add(self, episode: Episode) -> None:
        """See `EpisodeWriter.add`."""
        self._layout.check(episode)
        task = self._tasks.setdefault(episode.instruction, len(self._tasks))
        vectors = _vectors(episode) | self._counters(episode, task)
        images = _images(episode, self.info)
        if not self._features:
            self._begin(vectors, images)
        chunk, file = self._data.place
        row: dict[str, Any] = {
            "episode_index": self._episodes,
            "tasks": [episode.instruction],
            "length": episode.length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + episode.length,
        }
        stats = {key: vector_stats(values.reshape(episode.length, -1)) for key, values in vectors.items()}
        for key, values in images.items():
            scale = 255.0 if values.dtype == np.uint8 else 1.0
            stats[key] = image_stats(values, scale)
            if key in self._video_files:
                place = self._video_files[key].append(values)
                row |= {f"videos/{key}/{name}": value for name, value in place.items()}
        self._data.append(self._table(vectors, images))
        row |= {name: value for name, value in episode_facts(episode).items() if name != "instruction"}
        self._rows.append(row | self._add_stats(stats))
        self._episodes += 1
        self._frames += episode.length
        if len(self._rows) == _EPISODES_AT_ONCE:
            self._write_rows()

    def finish(self) -> None:
        """See `EpisodeWriter.finish`."""
        self._write_rows()
        self._data.close()
        self._episode_files.close()
        for files in self._video_files.values():
            files.close()
        meta = self.folder / "meta"
        write_tasks(meta / "tasks.parquet", list(self._tasks))
        stats = {key: _lists(running.result()) for key, running in self._stats.items()}
        _write_json(meta / "stats.json", stats)
        _write_json(meta / "mikasa.json", info_dict(self.info))
        chunk_file = "chunk-{chunk_index:03d}/file-{file_index:03d}"
        info = {
            "codebase_version": "v3.0",
            "robot_type": self.info.robot,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": self.info.control_freq,
            "splits": {self.info.split: f"0:{self._episodes}"},
            "data_path": f"data/{chunk_file}.parquet",
            "video_path": f"videos/{{video_key}}/{chunk_file}.mp4" if self._video_files else None,
            "features": self._features,
        }
        _write_json(meta / "info.json", info)

    def abort(self) -> None:
        """See `EpisodeWriter.abort`."""
        for files in self._video_files.values():
            files.abort()

    # ------------------------------------------------------------------ one episode
    def _counters(self, episode: Episode, task: int) -> dict[str, Array]:
        """The columns that every dataset has, (L,) each."""
        frame = np.arange(episode.length)
        return {
            "timestamp": (frame / self.info.control_freq).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(episode.length, self._episodes),
            "index": self._frames + frame,
            "task_index": np.full(episode.length, task),
        }

    def _begin(self, vectors: dict[str, Array], images: dict[str, Array]) -> None:
        """Fix the features by the first episode."""
        features = {key: _image_feature(key, values) for key, values in images.items()}
        for key, values in images.items():
            if self.videos and values.shape[-1] == 3:
                height, width = values.shape[1:3]
                folder = self.folder / "videos" / key
                self._video_files[key] = VideoFiles(folder, self.info.control_freq, height, width)
                features[key] = _video_feature(values, self.info.control_freq)
        names = {"action": self.info.names.get("actions"), "observation.state": self.info.names.get("joints")}
        for key, values in vectors.items():
            width = int(np.prod(values.shape[1:]))
            told = names.get(key)
            same = told is not None and len(told) == width
            features[key] = {
                "dtype": str(values.dtype),
                "shape": [width],
                "names": list(told) if told and same else None,
            }
        self._features = features
        self._stats = {key: RunningStats() for key in features}

    def _table(self, vectors: dict[str, Array], images: dict[str, Array]) -> Any:
        """The frames of an episode as a `pyarrow.Table`, with what the library `datasets` wants to know of its columns."""
        columns: dict[str, Any] = {}
        features: dict[str, Any] = {}
        for key, values in images.items():
            if key not in self._video_files:
                files = [{"bytes": encode_png(image), "path": None} for image in values]
                columns[key] = pa.array(files, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
                features[key] = {"_type": "Image"}
        for key, values in vectors.items():
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            (width,) = self._features[key]["shape"]
            columns[key] = flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
            value = {"dtype": self._features[key]["dtype"], "_type": "Value"}
            features[key] = value if width == 1 else {"feature": value, "length": width, "_type": "Sequence"}
        return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})

    # ------------------------------------------------------------------ meta
    def _add_stats(self, stats: dict[str, Stats]) -> dict[str, Any]:
        """Count the statistics of an episode, and return them as columns of meta/episodes."""
        for key, values in stats.items():
            self._stats[key].add(values)
        return {f"stats/{key}/{name}": value for key, values in stats.items() for name, value in _lists(values).items()}

    def _write_rows(self) -> None:
        """Write the rows of meta/episodes that have gathered."""
        if not self._rows:
            return
        chunk, file = self._episode_files.place
        place = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        self._episode_files.append(pa.Table.from_pylist([row | place for row in self._rows]))
        self._rows.clear()


class LeRobotImageWriter(LeRobotWriter):
    """Writes a LeRobot dataset with the images as PNG files inside the Parquet files, without loss; see `LeRobotWriter`."""

    videos = False


# ---------------------------------------------------------------------- features
def _vectors(episode: Episode) -> dict[str, Array]:
    """What is not an image, by the names of LeRobot, (L, …) each; numbers and booleans of a row may have several axes."""
    parts = vectors_of(episode)
    found: dict[str, Array] = {key: parts[part][:-1] for part, key in observation_keys(parts).items()}
    found["action"] = episode.actions
    found["next.reward"] = episode.rewards
    found["next.done"] = np.arange(1, episode.length + 1) == episode.length
    found |= {f"next.{name}": values for name, values in flags_of(episode).items()}
    found |= {f"privileged.{name}": values[:-1] for name, values in episode.columns.items()}
    found |= {f"privileged.{name}": values for name, values in labels_of(episode).items()}
    return found


def _images(episode: Episode, info: DatasetInfo) -> dict[str, Array]:
    """The images by the names of LeRobot, (L, H, W, channels) each."""
    found = {}
    for (camera, part), values in split_images(episode, info).items():
        found[image_key(camera, part)] = values[:-1]
    return found


def _image_feature(key: str, values: Array) -> dict[str, Any]:
    feature = {"dtype": "image", "shape": list(values.shape[1:]), "names": ["height", "width", "channels"]}
    return feature | {"info": {"is_depth_map": True, "depth_unit": "mm"}} if key.endswith("_depth") else feature


def _video_feature(values: Array, fps: int) -> dict[str, Any]:
    height, width, channels = values.shape[1:]
    info = {"height": height, "width": width, "codec": "h264", "pix_fmt": "yuv420p", "fps": fps, "channels": channels}
    return {
        "dtype": "video",
        "shape": [height, width, channels],
        "names": ["height", "width", "channels"],
        "info": {f"video.{name}": value for name, value in info.items()} | {"has_audio": False, "is_depth_map": False},
    }


def _lists(stats: Stats) -> dict[str, Any]:
    return {name: value.tolist() for name, value in stats.items()}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
