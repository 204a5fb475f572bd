"""RLDS: episodes as nested steps in TFRecord files, as TensorFlow Datasets reads them. Written without TensorFlow.

See https://github.com/google-research/rlds for what a step holds. A dataset is a folder ``name/1.0.0`` with
``dataset_info.json``, ``features.json``, ``metadata.json`` and the shards ``name-split.tfrecord-00000-of-00002``.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mikasa_robo.data.episode import Array, DatasetInfo, Episode
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
from mikasa_robo.data.formats.tfrecord import Feature, encode_example, write_record

__all__ = ["RLDSWriter", "dataset_name"]

VERSION = "1.0.0"
SHARD_BYTES = 256 * 2**20
"""A shard that has reached this size is closed."""
_FEATURES = "tensorflow_datasets.core.features."

Tree = dict[str, Any]
"""Nested dicts; a leaf is an array, or a list of strings."""


def dataset_name(env_id: str) -> str:
    """The name of a dataset of this environment, such as "remember_color3_v0"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"\W+", "_", env_id)).lower()


class RLDSWriter:
    """Writes RLDS; see `EpisodeWriter`.

    An episode of L control steps has L + 1 steps. The last one has the last observation alone: its action, reward, discount
    and flags are zeros. Numbers with 64 bits and a fraction are rounded to 32, as ``tf.train.Example`` has no others.
    """

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        self.info = info
        self.name = dataset_name(info.env_id)
        self.folder = out / self.name / VERSION
        self.folder.mkdir(parents=True)
        self._layout = LayoutCheck()
        self._features: dict[str, Any] = {}
        self._shard_lengths: list[int] = []
        self._shard: BinaryIO | None = None
        self._shard_bytes = self._total_bytes = 0

    def add(self, episode: Episode) -> None:
        """See `EpisodeWriter.add`."""
        self._layout.check(episode)
        steps = _steps(episode, self.info)
        metadata: Tree = {
            name: [value] if isinstance(value, str) else np.asarray([value])
            for name, value in episode_facts(episode).items()
        }
        metadata["episode_index"] = np.asarray([episode.index])
        if not self._features:
            dataset = {
                "pythonClassName": f"{_FEATURES}dataset_feature.Dataset",
                "sequence": {"feature": _feature_config(steps), "length": "-1"},
            }
            both = {"steps": dataset, "episode_metadata": _feature_config(metadata)}
            self._features = _features_dict(both)
        example = encode_example(_flatten({"steps": steps, "episode_metadata": metadata}))
        if self._shard is None or self._shard_bytes >= SHARD_BYTES:
            self._open_shard()
        assert self._shard is not None
        written = write_record(self._shard, example)
        self._shard_lengths[-1] += 1
        self._shard_bytes += written
        self._total_bytes += len(example)

    def finish(self) -> None:
        """See `EpisodeWriter.finish`."""
        if self._shard is not None:
            self._shard.close()
        count = len(self._shard_lengths)
        for i in range(count):
            path = self._partial(i)
            path.rename(path.with_name(f"{path.name}-of-{count:05d}"))
        _write_json(self.folder / "features.json", self._features)
        _write_json(self.folder / "metadata.json", info_dict(self.info))
        split = {
            "name": self.info.split,
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "numBytes": str(self._total_bytes),
            "shardLengths": [str(length) for length in self._shard_lengths],
        }
        _write_json(
            self.folder / "dataset_info.json",
            {
                "name": self.name,
                "version": VERSION,
                "description": f"{self.info.env_id}: {self.info.instruction}",
                "fileFormat": "tfrecord",
                "splits": [split],
            },
        )

    def _open_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
        self._shard = self._partial(len(self._shard_lengths)).open("wb")
        self._shard_lengths.append(0)
        self._shard_bytes = 0

    def _partial(self, shard: int) -> Path:
        """A shard while it is not known how many there will be."""
        return self.folder / f"{self.name}-{self.info.split}.tfrecord-{shard:05d}"


# ---------------------------------------------------------------------- steps
def _steps(episode: Episode, info: DatasetInfo) -> Tree:
    count = episode.length + 1
    step = np.arange(count)
    images = {f"{camera}_{part}": values for (camera, part), values in split_images(episode, info).items()}
    discount = np.ones(count, dtype=np.float32)
    discount[-1] = 0.0
    if episode.terminated:
        discount[-2] = 0.0
    return {
        "observation": vectors_of(episode) | images,
        "action": _one_more(episode.actions),
        "reward": _one_more(episode.rewards),
        "discount": discount,
        "is_first": step == 0,
        "is_last": step == count - 1,
        "is_terminal": (step == count - 1) & episode.terminated,
        "language_instruction": [episode.instruction] * count,
        **{name: _one_more(values) for name, values in flags_of(episode).items()},
        "privileged": dict(episode.columns) | {name: _one_more(values) for name, values in labels_of(episode).items()},
    }


def _one_more(values: Array) -> Array:
    """(L, …) as (L + 1, …), with zeros at the end."""
    return np.concatenate([values, np.zeros_like(values[:1])])


# ---------------------------------------------------------------------- features
def _is_image(values: Array) -> bool:
    return values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] in (1, 3)


def _is_compressed(values: Array) -> bool:
    """Depth and segmentation: too large for numbers of variable length."""
    return values.ndim == 4 and not _is_image(values)


def _dtype(values: Array) -> np.dtype[Any]:
    return np.dtype(np.float32) if values.dtype.kind == "f" and not _is_compressed(values) else values.dtype


def _feature_config(value: Any) -> dict[str, Any]:
    """What features.json tells of a leaf (n, …), whose first axis is that of the steps, or of a dict."""
    if isinstance(value, dict):
        filled = {name: item for name, item in value.items() if not isinstance(item, dict) or item}
        return _features_dict({name: _feature_config(item) for name, item in filled.items()})
    if isinstance(value, list):
        return {"pythonClassName": f"{_FEATURES}text_feature.Text", "text": {}}
    config: dict[str, Any] = {"dtype": str(_dtype(value)), "shape": {}}
    if value.ndim > 1:
        config["shape"] = {"dimensions": [str(size) for size in value.shape[1:]]}
    if _is_image(value):
        return {"pythonClassName": f"{_FEATURES}image_feature.Image", "image": config | {"encodingFormat": "png"}}
    config["encoding"] = "zlib" if _is_compressed(value) else "none"
    return {"pythonClassName": f"{_FEATURES}tensor_feature.Tensor", "tensor": config}


def _features_dict(features: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _flatten(tree: Tree, prefix: str = "") -> dict[str, Feature]:
    """The leaves by path, such as "steps/observation/joints", as they are stored."""
    flat: dict[str, Feature] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}/")
        else:
            flat[prefix + name] = _stored(value)
    return flat


def _stored(value: Array | list[str]) -> Feature:
    if isinstance(value, list):
        return [text.encode() for text in value]
    if _is_image(value):
        return [encode_png(image) for image in value]
    if _is_compressed(value):
        return [zlib.compress(np.ascontiguousarray(frame).tobytes(), 1) for frame in value]
    return value


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
