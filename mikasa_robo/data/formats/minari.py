"""Minari datasets in HDF5, for observations without images.

With ``MINARI_DATASETS_PATH`` set to the folder of the format, ``minari.load_dataset("mikasa/RememberColor3-v0/train-v0")``
reads them. See https://minari.farama.org/content/dataset_standards for the layout.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from mikasa_robo.data.episode import Array, DatasetInfo, Episode
from mikasa_robo.data.formats.hdf5 import HDF5Writer
from mikasa_robo.data.formats.parts import LayoutCheck, episode_facts, flags_of, info_dict, labels_of

__all__ = ["MinariWriter", "dataset_id"]

MINARI_VERSION = "0.5.0"
"""The oldest version of Minari whose files are laid out like this; later ones read them."""


def dataset_id(info: DatasetInfo) -> str:
    """What ``minari.load_dataset`` calls the dataset, such as "mikasa/RememberColor3-v0/train-v0"."""
    return f"mikasa/{info.env_id}/{info.split}-v0"


class MinariWriter:
    """Writes a Minari dataset; see `EpisodeWriter`.

    An observation of one part is an array, one of several parts a dict. ``infos`` holds what an agent must not see, L + 1
    rows each: the columns; ``success`` and ``fail`` after the step that led to the row, False at the reset; and labels of
    the actions, such as ``expert_action``, whose last row is NaN or zero, as no action follows the last observation.

    Raises:
        ValueError: the observations have images, which Minari stores as JPEG, with loss.
    """

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        if info.image_parts:
            raise ValueError(
                f"Minari stores images as JPEG, which changes them, so it cannot hold obs_mode={info.obs_mode!r}; "
                f"leave out {' and '.join(map(repr, info.image_parts))}, or use another format, such as lerobot or rlds"
            )
        self.info = info
        self.folder = out / dataset_id(info) / "data"
        self.folder.mkdir(parents=True)
        self._layout = LayoutCheck()
        self._spaces: dict[str, str] = {}
        self._episodes = self._steps = 0
        self._hdf5 = HDF5Writer(self.folder / "main_data.hdf5", track_order=True)

    def add(self, episode: Episode) -> None:
        """See `EpisodeWriter.add`."""
        self._layout.check(episode)
        group = self._hdf5.file.create_group(f"episode_{episode.index}")
        group.attrs.update(id=episode.index, total_steps=episode.length, **episode_facts(episode))
        observations = episode.observations
        if len(observations) == 1:
            (group["observations"],) = observations.values()
        else:
            for part, values in observations.items():
                group[f"observations/{part}"] = values
        group["actions"] = episode.actions
        group["rewards"] = episode.rewards
        last = np.arange(1, episode.length + 1) == episode.length
        group["terminations"] = last & episode.terminated
        group["truncations"] = last & episode.truncated
        for name, values in _infos(episode).items():
            group[f"infos/{name}"] = values
        if not self._spaces:
            boxes = {part: _box(values) for part, values in observations.items()}
            space = next(iter(boxes.values())) if len(boxes) == 1 else {"type": "Dict", "subspaces": boxes}
            actions = _box(episode.actions, -1.0, 1.0)
            self._spaces = {"observation_space": json.dumps(space), "action_space": json.dumps(actions)}
        self._episodes += 1
        self._steps += episode.length
        self._hdf5.check()

    def finish(self) -> None:
        """See `EpisodeWriter.finish`."""
        self._hdf5.finish()
        size = (self.folder / "main_data.hdf5").stat().st_size
        info = self.info
        metadata = {
            "dataset_id": dataset_id(info),
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "data_format": "hdf5",
            **self._spaces,
            "minari_version": MINARI_VERSION,
            "dataset_size": round(size / 1e6, 1),
            "algorithm_name": info.policy,
            "description": f"{info.env_id}: {info.instruction}",
            "mikasa": info_dict(info),
        }
        spec = _env_spec(info)
        if spec is not None:
            metadata["env_spec"] = spec
        (self.folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")

    def abort(self) -> None:
        """See `EpisodeWriter.abort`."""
        self._hdf5.abort()


def _infos(episode: Episode) -> dict[str, Array]:
    """By name, (L + 1, …) each."""
    infos = dict(episode.columns)
    for name, values in flags_of(episode).items():
        infos[name] = np.concatenate([np.zeros_like(values[:1]), values])
    for name, values in labels_of(episode).items():
        none = np.full_like(values[:1], np.nan if values.dtype.kind == "f" else 0)
        infos[name] = np.concatenate([values, none])
    return infos


def _box(values: Array, low: float = -np.inf, high: float = np.inf) -> dict[str, Any]:
    """A Box space of rows of ``values``, as Minari writes it."""
    shape = values.shape[1:]
    if values.dtype.kind == "b":  # `np.iinfo` knows no booleans
        low, high = False, True
    elif values.dtype.kind != "f":
        kind = np.iinfo(values.dtype)
        low, high = kind.min, kind.max
    bounds = {"low": np.full(shape, low).tolist(), "high": np.full(shape, high).tolist()}
    return {"type": "Box", "dtype": str(values.dtype), "shape": list(shape), **bounds}


def _env_spec(info: DatasetInfo) -> str | None:
    """What ``MinariDataset.recover_environment`` makes the task from; None where the task is not registered."""
    import gymnasium

    import mikasa_robo  # noqa: F401  (registers the tasks)

    registered = gymnasium.registry.get(info.env_id)
    if registered is None or not isinstance(registered.entry_point, str):
        return None
    spec = copy.deepcopy(registered)  # of a single environment, see `mikasa_robo.env_spec`
    spec.kwargs.update(info.env_kwargs)
    return spec.to_json()
