"""Small episodes with everything that an episode can have, for tests of the file formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mikasa_robo.data.dataset import Dataset
from mikasa_robo.data.episode import DatasetInfo, Episode
from mikasa_robo.data.formats import FORMATS

JOINTS = 2 * 9 + 7
CAMERAS = ("base_camera", "hand_camera")
INSTRUCTIONS = ("touch the red cube", "touch the blue cube")
LENGTHS = (5, 1, 7)


def make_info(obs_mode: str = "joints") -> DatasetInfo:
    return DatasetInfo(
        env_id="RememberColor3-v0",
        env_kwargs={"obs_mode": obs_mode, "control_mode": "pd_joint_delta_pos"},
        obs_mode=obs_mode,
        control_mode="pd_joint_delta_pos",
        control_freq=20,
        max_episode_steps=60,
        robot="panda",
        cameras=CAMERAS if {"rgb", "depth", "segmentation"} & {*obs_mode.split("+")} else (),
        instruction=INSTRUCTIONS[0],
        policy="expert",
        noise=0.1,
        split="train",
        first_seed=1000,
        only_success=False,
        versions={"numpy": np.__version__, "simulator": "physx_cpu"},
        revision=None,
        names={"actions": tuple(f"a{i}" for i in range(8)), "joints": tuple(f"j{i}" for i in range(JOINTS))},
    )


def make_episode(index: int, length: int, obs_mode: str = "joints") -> Episode:
    """An episode whose arrays are random, or smooth where they are colours, as videos change noise most."""
    rng = np.random.default_rng(index)
    rows = length + 1

    def vectors(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    y, x = np.mgrid[0:32, 0:32].astype(np.float64) / 31
    angles = rng.uniform(0, np.pi, (rows, 1, 1, 6)) + x[None, :, :, None] + y[None, :, :, None]
    parts = {
        "state": vectors(rows, 11),
        "objects": vectors(rows, 12),
        "joints": vectors(rows, JOINTS),
        "time": vectors(rows, 1),
        "rgb": (127.5 + 100 * np.sin(angles)).astype(np.uint8),
        "depth": rng.integers(0, 3000, (rows, 32, 32, 2)).astype(np.int16),
    }
    return Episode(
        index=index,
        seed=1000 + index,
        success=index != 1,
        fail=index == 1,
        terminated=index == 0,
        truncated=index != 0,
        policy="expert",
        noise=0.05 * index,
        instruction=INSTRUCTIONS[index % 2],
        observations={part: parts[part] for part in obs_mode.split("+")},
        actions=vectors(length, 8),
        rewards=vectors(length),
        columns={"phase": rng.integers(0, 3, rows), "oracle_info": vectors(rows, 4)},
        step_columns={
            "success": np.arange(length) == length - 1 if index != 1 else np.zeros(length, dtype=bool),
            "fail": np.full(length, index == 1),
            "expert_action": vectors(length, 8),
        },
        states={
            "env_states/actors/cube": vectors(rows, 13),
            "env_states/articulations/panda": vectors(rows, 31),
        },
    )


def write_dataset(
    name: str, out: Path, obs_mode: str = "joints", lengths: Sequence[int] = LENGTHS
) -> tuple[DatasetInfo, list[Episode]]:
    """Write a dataset in a format, and return what went in."""
    info = make_info(obs_mode)
    episodes = [make_episode(index, length, obs_mode) for index, length in enumerate(lengths)]
    writer = FORMATS[name].writer()(out, info)
    for episode in episodes:
        writer.add(episode)
    writer.finish()
    return info, episodes


def make_dataset(folder: Path, obs_mode: str = "joints", lengths: Sequence[int] = LENGTHS) -> Dataset:
    """A complete dataset with native episodes in a new folder."""
    folder.mkdir()
    dataset = Dataset.begin(folder, make_info(obs_mode), {})
    dataset.write(make_episode(index, length, obs_mode) for index, length in enumerate(lengths))
    return dataset.complete(range(len(lengths)), [], {"command": "mikasa collect"}, native=True)
