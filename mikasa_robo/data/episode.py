"""What a recorded episode is, and what writes episodes in a file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["IMAGE_PARTS", "Array", "DatasetInfo", "Episode", "EpisodeWriter", "name_simulator", "replay_kwargs"]

Array = NDArray[Any]

IMAGE_PARTS = ("rgb", "depth", "segmentation")
"""The parts of an observation that are images: (L + 1, H, W, channels)."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One recorded episode of L control steps.

    Row t of ``observations``, ``columns`` and ``states`` is what there was before action t; the last row is what there was
    after the last action. Row t of ``actions``, ``rewards`` and ``step_columns`` belongs to action t.
    """

    index: int
    """0, 1, … in the dataset, without gaps."""
    seed: int
    """``env.reset(seed=seed)`` begins this episode again."""
    success: bool
    """There was a success at some step."""
    fail: bool
    """There was a mistake at some step."""
    terminated: bool
    """The last step ended the episode."""
    truncated: bool
    """The last step was the last that the time limit allows."""
    policy: str
    """Who acted: the name of a scripted policy, or the file of a checkpoint."""
    noise: float
    """Standard deviation of the Gaussian noise on the actions of this episode."""
    instruction: str
    """The task in one English sentence."""
    observations: Mapping[str, Array]
    """(L + 1, …) by the parts of ``obs_mode``, such as "joints" (L + 1, 25) float32 or "rgb" (L + 1, H, W, 3 C) uint8 of C
    cameras; see `DatasetInfo.split_cameras`. The mode "state" has the one part "state"."""
    actions: Array
    """(L, A) float32 in [-1, 1], as the environment was given them, with the noise. While ``arm="held"`` holds the arm, they
    have no effect; ``held_steps`` of the task says for how many steps."""
    rewards: Array
    """(L,) float32."""
    columns: Mapping[str, Array]
    """(L + 1, …) by name, beside the observations: "phase" (L + 1,) int64 and "oracle_info" (L + 1, …). They tell what an
    agent has to remember, so a loader must be able to leave them out."""
    step_columns: Mapping[str, Array]
    """(L, …) by name, beside the actions: "success" and "fail" (L,) bool after the step, and for scripted policies
    "expert_action" (L, A) float32, the action without noise."""
    states: Mapping[str, Array]
    """(L + 1, …) float32 by the names of ManiSkill's trajectories, such as "env_states/actors/cube" (L + 1, 13). Empty where
    the states were not recorded."""

    @property
    def length(self) -> int:
        """L, at least 1."""
        return len(self.actions)


@dataclass(frozen=True)
class DatasetInfo:
    """What is the same for all episodes of a dataset. All values can be written as JSON."""

    env_id: str
    """The task, as ``gymnasium.make`` knows it once ``mikasa_robo`` is imported."""
    env_kwargs: Mapping[str, Any]
    """The arguments of ``mikasa_robo.make_env`` besides the ID and the number of environments, ``obs_mode`` and
    ``control_mode`` among them. With them and a seed an episode can be played again."""
    obs_mode: str
    """Such as "rgb+joints"."""
    control_mode: str
    """Such as "pd_joint_delta_pos"."""
    control_freq: int
    """Control steps per second."""
    max_episode_steps: int
    """The time limit, in control steps."""
    robot: str
    """ManiSkill's name of the robot."""
    cameras: tuple[str, ...]
    """The cameras of the images, in the order of their channels; empty where no part of the observation is an image."""
    instruction: str
    """The task in one English sentence."""
    policy: str
    """See `Episode.policy`."""
    noise: float
    """What was asked for with ``--noise``; see `Episode.noise`."""
    split: str
    """"train", "validation" or "test"."""
    first_seed: int
    """Episode 0 was played with this seed, unless only successes are kept."""
    only_success: bool
    """Whether episodes without success were left out."""
    versions: Mapping[str, str]
    """Versions of Python, the packages and the platform, by name."""
    revision: str | None
    """Git revision of MIKASA, with "-dirty-" and a hash of the changes where there were any; None where it is not known."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the entries of the vectors "actions" and "joints"."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images, in pixels; None without images, and in datasets of older versions."""

    @property
    def image_parts(self) -> tuple[str, ...]:
        """The parts of the observations that are images, such as ("rgb", "depth")."""
        return tuple(part for part in self.obs_mode.split("+") if part in IMAGE_PARTS)

    def split_cameras(self, images: Array) -> dict[str, Array]:
        """Images (…, H, W, C channels) as (…, H, W, channels) for each of the C cameras, by name. They are views."""
        return dict(zip(self.cameras, np.split(images, len(self.cameras), axis=-1), strict=True))


class EpisodeWriter(Protocol):
    """Writes a dataset in one file format. The class is named by its `formats.FORMATS` row.

    A writer streams: it holds a few episodes at a time, whatever their number. It writes to ``out`` alone, a folder that it
    makes. The caller renames that folder once `finish` has returned, so no file may hold the path of ``out``. If anything
    fails, the caller removes ``out``.
    """

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        """Begin a dataset in the folder ``out``, which does not exist; its parent does.

        Before episodes are recorded, a writer is made and dropped, to learn whether the format can hold them.

        Raises:
            ValueError: the format cannot hold such data. The message says why and what can.
        """

    def add(self, episode: Episode) -> None:
        """Write the next episode. They come in order, from index 0 on, at least one."""

    def finish(self) -> None:
        """Write what is left and close all files. It is called once, after the last episode.

        Raises:
            OSError: something could not be written.
        """

    def abort(self) -> None:
        """Close all files as they are. It is called when `add` or `finish` failed, before ``out`` is removed.

        A writer need not have this method: without it files are closed when the writer is freed.
        """


def name_simulator(backend: str) -> str:
    """The name of a physics backend in a dataset: the same for one environment on the CPU and for many, as episodes are."""
    return "physx_cpu" if backend == "physx_cpu_batched" else backend  # `mikasa_robo.sim.backend`, which loads torch


def replay_kwargs(info: DatasetInfo) -> dict[str, Any]:
    """The arguments of ``mikasa_robo.make_env`` that simulate as the recording did, also where it was made with "auto"."""
    backend = info.env_kwargs.get("sim_backend", "auto")
    if backend == "auto":
        backend = info.versions.get("simulator", "auto")
    return {**info.env_kwargs, "sim_backend": name_simulator(backend)}
