"""HDF5 files in the layout of robomimic and LIBERO: ``dataset.hdf5`` with the groups ``data/demo_0``, ``data/demo_1``, …

See https://robomimic.github.io/docs/datasets/overview.html for the layout.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from mikasa_robo.data.episode import DatasetInfo, Episode
from mikasa_robo.data.formats.hdf5 import HDF5Writer
from mikasa_robo.data.formats.parts import (
    LayoutCheck,
    episode_facts,
    flags_of,
    info_dict,
    labels_of,
    split_images,
    vectors_of,
    write_array,
)

__all__ = ["RobomimicWriter"]

_GYM = 2  # robomimic's number for Gym's environments
_IMAGES = {"rgb": "image", "depth": "depth", "segmentation": "segmentation"}
"""The ends of the images' names in robosuite, such as agentview_image."""


class RobomimicWriter:
    """Writes robomimic's HDF5; see `EpisodeWriter`.

    ``obs`` and ``next_obs`` hold the observations before and after each action, so images are stored twice. The filter keys
    ``success`` and ``failure`` under ``mask`` name the episodes with and without a success. What an agent must not see
    stands in a group of its own, ``privileged``.
    """

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        self.info = info
        self._layout = LayoutCheck()
        self._masks: dict[str, list[str]] = {"success": [], "failure": []}
        self._steps = 0
        out.mkdir()
        self._hdf5 = HDF5Writer(out / "dataset.hdf5")
        self._data = self._hdf5.file.create_group("data")

    def add(self, episode: Episode) -> None:
        """See `EpisodeWriter.add`."""
        self._layout.check(episode)
        name = f"demo_{episode.index}"
        group = self._data.create_group(name)
        group["actions"] = episode.actions
        group["rewards"] = episode.rewards
        group["dones"] = (np.arange(1, episode.length + 1) == episode.length).astype(np.int64)
        images = {
            f"{camera}_{_IMAGES[part]}": values for (camera, part), values in split_images(episode, self.info).items()
        }
        for part, values in {**vectors_of(episode), **images}.items():
            write_array(group, f"obs/{part}", values[:-1])
            write_array(group, f"next_obs/{part}", values[1:])
        if episode.states:
            flat = {state: values.reshape(len(values), -1) for state, values in episode.states.items()}
            group["states"] = np.concatenate([values[:-1] for values in flat.values()], axis=1)
            group.attrs["state_widths"] = json.dumps({state: values.shape[1] for state, values in flat.items()})
        for flag, values in flags_of(episode).items():
            group[flag] = values
        for column, values in {**episode.columns, **labels_of(episode)}.items():
            group[f"privileged/{column}"] = values[: episode.length]
        group.attrs["num_samples"] = episode.length
        group.attrs.update(episode_facts(episode))
        self._masks["success" if episode.success else "failure"].append(name)
        self._steps += episode.length
        self._hdf5.check()

    def finish(self) -> None:
        """See `EpisodeWriter.finish`."""
        self._data.attrs["total"] = self._steps
        env_args = {"env_name": self.info.env_id, "type": _GYM, "env_kwargs": dict(self.info.env_kwargs)}
        self._data.attrs["env_args"] = json.dumps(env_args)
        self._data.attrs["mikasa"] = json.dumps(info_dict(self.info))
        for name, demos in self._masks.items():
            if demos:
                self._hdf5.file[f"mask/{name}"] = np.array(demos, dtype=np.bytes_)
        self._hdf5.finish()

    def abort(self) -> None:
        """See `EpisodeWriter.abort`."""
        self._hdf5.abort()
