"""ManiSkill's trajectories: ``trajectory.h5`` and ``trajectory.json``, as its ``RecordEpisode`` writes them.

``python -m mani_skill.trajectory.replay_trajectory --traj-path trajectory.h5`` plays them, once ``mikasa_robo`` is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mikasa_robo.data.episode import Array, DatasetInfo, Episode, replay_kwargs
from mikasa_robo.data.formats.hdf5 import HDF5Writer
from mikasa_robo.data.formats.parts import (
    LayoutCheck,
    episode_facts,
    flags_of,
    info_dict,
    labels_of,
    split_images,
    split_joints,
    vectors_of,
    write_array,
)

__all__ = ["ManiSkillWriter"]


class ManiSkillWriter:
    """Writes ManiSkill's trajectories; see `EpisodeWriter`.

    Observations have the keys of ``obs_layout="maniskill"`` where they include the robot's joints or the state, but no
    parameters of the cameras. What an agent must not see stands in a group of its own, ``privileged``.
    """

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        self.info = info
        self._layout = LayoutCheck()
        self._episodes: list[dict[str, Any]] = []
        self._nested = False
        self._json = out / "trajectory.json"
        out.mkdir()
        self._hdf5 = HDF5Writer(out / "trajectory.h5")

    def add(self, episode: Episode) -> None:
        """See `EpisodeWriter.add`."""
        self._layout.check(episode)
        self._nested = len(episode.observations) > 1 and not episode.observations.keys().isdisjoint(("joints", "state"))
        self._nested |= "joints" in episode.observations
        group = self._hdf5.file.create_group(f"traj_{episode.index}", track_order=True)
        for name, values in _observations(episode, self.info, self._nested).items():
            write_array(group, name, values)
        group["actions"] = episode.actions
        group["terminated"] = _last(episode, episode.terminated)
        group["truncated"] = _last(episode, episode.truncated)
        for name, values in flags_of(episode).items():
            group[name] = values
        group["rewards"] = episode.rewards
        for name, values in episode.states.items():
            group[name] = values
        for name, values in {**episode.columns, **labels_of(episode)}.items():
            group[f"privileged/{name}"] = values
        self._episodes.append(
            {
                "episode_id": episode.index,
                "episode_seed": episode.seed,
                "control_mode": self.info.control_mode,
                "elapsed_steps": episode.length,
                "reset_kwargs": {"seed": episode.seed},
                **{name: bool(values[-1]) for name, values in flags_of(episode).items()},  # at the end, as in ManiSkill
                "mikasa": episode_facts(episode),
            }
        )
        self._hdf5.check()

    def finish(self) -> None:
        """See `EpisodeWriter.finish`."""
        self._hdf5.finish()
        layout = {"obs_layout": "maniskill"} if self._nested else {}
        told = {
            "env_info": {
                "env_id": self.info.env_id,
                "env_kwargs": {**replay_kwargs(self.info), **layout},
                "max_episode_steps": self.info.max_episode_steps,
            },
            "commit_info": None,
            "source_type": self.info.policy,
            "source_desc": f"MIKASA's policy {self.info.policy!r} with action noise {self.info.noise}",
            "mikasa": info_dict(self.info),
            "episodes": self._episodes,
        }
        self._json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    def abort(self) -> None:
        """See `EpisodeWriter.abort`."""
        self._hdf5.abort()


def _observations(episode: Episode, info: DatasetInfo, nested: bool) -> dict[str, Array]:
    """The observations by their paths in the file."""
    if tuple(episode.observations) == ("state",):
        return {"obs": episode.observations["state"]}
    if not nested:
        return {f"obs/{part}": values for part, values in episode.observations.items()}
    found: dict[str, Array] = {}
    for part, values in vectors_of(episode).items():
        if part == "joints":
            joints = split_joints(values)
            found |= {"obs/agent/qpos": joints["qpos"], "obs/agent/qvel": joints["qvel"]}
            found["obs/extra/tcp_pose"] = joints["tcp_pose"]
        else:
            found["obs/state" if part == "state" else f"obs/extra/{part}"] = values
    for (camera, part), images in split_images(episode, info).items():
        found[f"obs/sensor_data/{camera}/{part}"] = images
    return found


def _last(episode: Episode, value: bool) -> Array:
    """(L,) bool: ``value`` at the last step, False before."""
    return np.arange(1, episode.length + 1) == (episode.length if value else 0)
