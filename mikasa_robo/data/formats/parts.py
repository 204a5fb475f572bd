"""What the writers share: the parts of an observation, PNG files, and a check that all episodes look alike."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mikasa_robo.data.episode import IMAGE_PARTS, Array, DatasetInfo, Episode

__all__ = [
    "LayoutCheck",
    "arrays_of",
    "encode_png",
    "episode_facts",
    "flags_of",
    "info_dict",
    "labels_of",
    "split_images",
    "split_joints",
    "vectors_of",
    "write_array",
]

FACTS = ("seed", "success", "fail", "terminated", "truncated", "policy", "noise", "instruction")
"""What is one value for an episode, beside its arrays."""
FLAGS = ("success", "fail")
_TCP = 7  # numbers in the pose of the tool centre point


def vectors_of(episode: Episode) -> dict[str, Array]:
    """The parts of the observations that are not images, (L + 1, …) each."""
    return {part: values for part, values in episode.observations.items() if part not in IMAGE_PARTS}


def split_images(episode: Episode, info: DatasetInfo) -> dict[tuple[str, str], Array]:
    """The images by camera and part, such as ("base_camera", "rgb"): (L + 1, H, W, channels) each."""
    return {
        (camera, part): images
        for part, values in episode.observations.items()
        if part in IMAGE_PARTS
        for camera, images in info.split_cameras(values).items()
    }


def split_joints(joints: Array) -> dict[str, Array]:
    """The part "joints" (L + 1, 2 J + 7) by ManiSkill's names: qpos and qvel (L + 1, J), tcp_pose (L + 1, 7).

    Raises:
        ValueError: it has another width.
    """
    count, odd = divmod(joints.shape[1] - _TCP, 2)
    if odd or count < 1:
        raise ValueError(
            f"the observation's part 'joints' has {joints.shape[1]} numbers, where 2 J + {_TCP} are expected for J joints: "
            "positions, velocities, then the pose of the tool"
        )
    return {"qpos": joints[:, :count], "qvel": joints[:, count : 2 * count], "tcp_pose": joints[:, 2 * count :]}


def flags_of(episode: Episode) -> dict[str, Array]:
    """Which steps were a success or a mistake: "success" and "fail" (L,) bool, as far as they were recorded."""
    return {name: values for name, values in episode.step_columns.items() if name in FLAGS}


def labels_of(episode: Episode) -> dict[str, Array]:
    """The other columns beside the actions (L, …). Like ``episode.columns`` they may tell what an agent has to remember."""
    return {name: values for name, values in episode.step_columns.items() if name not in FLAGS}


def episode_facts(episode: Episode) -> dict[str, Any]:
    """What is one value for the episode, beside its arrays, by name."""
    return {name: getattr(episode, name) for name in FACTS}


def info_dict(info: DatasetInfo) -> dict[str, Any]:
    """``info`` as a dict that JSON can hold."""
    values = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def encode_png(image: Array) -> bytes:
    """An image as a PNG file, without loss.

    Args:
        image: (H, W, 3) or (H, W, 1) uint8, or (H, W, 1) integers from 0 to 65535.

    Raises:
        ValueError: a number is negative.
    """
    from PIL import Image

    pixels = image[..., 0] if image.shape[-1] == 1 else image
    if pixels.dtype != np.uint8:
        if pixels.min() < 0:
            raise ValueError(f"an image has the value {pixels.min()}; a PNG file holds numbers from 0 to 65535")
        pixels = pixels.astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", compress_level=1)  # the quickest
    return file.getvalue()


def arrays_of(episode: Episode) -> Iterator[tuple[str, Array]]:
    """All arrays of an episode by name, such as "observations/joints"."""
    for group in ("observations", "columns", "step_columns", "states"):
        for name, values in getattr(episode, group).items():
            yield f"{group}/{name}", values
    yield "actions", episode.actions
    yield "rewards", episode.rewards


def write_array(group: Any, name: str, values: Array) -> None:
    """Write an array into an open HDF5 group; images are compressed one by one, without loss."""
    if values.ndim >= 4:
        group.create_dataset(name, data=values, chunks=(1, *values.shape[1:]), compression="gzip", compression_opts=4)
    else:
        group.create_dataset(name, data=values)


class LayoutCheck:
    """Holds every episode to the names, dtypes and shapes of the first one."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, tuple[int, ...]]] = {}

    def check(self, episode: Episode) -> None:
        """Raise ValueError if the episode has other arrays than the first one."""
        layout = {name: (str(values.dtype), values.shape[1:]) for name, values in arrays_of(episode)}
        self._first = self._first or layout
        for name in {**self._first, **layout}:
            first, here = self._first.get(name), layout.get(name)
            if first != here:
                raise ValueError(
                    f"episode {episode.index}: {name} is {_told(here)}, but {_told(first)} in episode 0; "
                    "the episodes of a dataset have the same arrays"
                )


def _told(layout: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if layout is None else f"{layout[0]} {layout[1]}"
