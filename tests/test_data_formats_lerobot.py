"""LeRobot datasets: every array comes out again, by PyArrow and ffmpeg, and by LeRobot where it is installed."""

from __future__ import annotations

import io
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
from format_helpers import CAMERAS, INSTRUCTIONS, LENGTHS, make_episode, make_info, write_dataset
from PIL import Image

from mikasa_robo.data.episode import Episode
from mikasa_robo.data.formats import FORMATS
from mikasa_robo.data.formats.lerobot_stats import QUANTILES, RunningStats, image_stats, sampled_indices, vector_stats
from mikasa_robo.video import VideoError

pq = pytest.importorskip("pyarrow.parquet", reason="PyArrow is not installed: pip install 'mikasa-suite[datasets]'")

OBS_MODE = "objects+joints+time+rgb+depth"
FRAMES = sum(LENGTHS)
VIDEO_ERROR = 3.0
"""Mean difference of a colour (0 to 255) from what it was before it became a video."""


def vectors_of(episode: Episode) -> dict[str, Any]:
    """The frames of an episode by the names of LeRobot, without images."""
    flags = episode.step_columns
    return {
        "observation.state": episode.observations["joints"][:-1],
        "observation.environment_state": episode.observations["objects"][:-1],
        "observation.time": episode.observations["time"][:-1, 0],
        "action": episode.actions,
        "next.reward": episode.rewards,
        "next.done": np.arange(episode.length) == episode.length - 1,
        "next.success": flags["success"],
        "next.fail": flags["fail"],
        "privileged.phase": episode.columns["phase"][:-1],
        "privileged.oracle_info": episode.columns["oracle_info"][:-1],
        "privileged.expert_action": flags["expert_action"],
    }


def frames_of(episodes: list[Episode]) -> dict[str, Any]:
    """The frames of all episodes."""
    vectors = [vectors_of(episode) for episode in episodes]
    return {name: np.concatenate([one[name] for one in vectors]) for name in vectors[0]}


def images_of(episodes: list[Episode], part: str, camera: int, channels: int) -> Any:
    chosen = slice(camera * channels, (camera + 1) * channels)
    return np.concatenate([episode.observations[part][:-1, ..., chosen] for episode in episodes])


@pytest.mark.parametrize("name", ["lerobot", "lerobot-images"])
def test_lerobots_files_hold_every_array(name: str, tmp_path: Path) -> None:
    info, episodes = write_dataset(name, tmp_path / "out", OBS_MODE)
    meta = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (meta["codebase_version"], meta["fps"], meta["robot_type"]) == ("v3.0", 20, "panda")
    assert (meta["total_episodes"], meta["total_frames"], meta["total_tasks"]) == (len(LENGTHS), FRAMES, 2)
    assert meta["splits"] == {"train": f"0:{len(LENGTHS)}"}
    assert meta["features"]["action"] == {"dtype": "float32", "shape": [8], "names": list(info.names["actions"])}
    assert meta["features"]["observation.state"]["names"] == list(info.names["joints"])
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    table = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")
    frames = frames_of(episodes)
    for key, values in frames.items():
        column = table[key].combine_chunks()
        read = (column.flatten() if values.ndim > 1 else column).to_numpy(zero_copy_only=False)
        assert read.dtype == values.dtype
        assert np.array_equal(read.reshape(values.shape), values), key
        assert meta["features"][key]["dtype"] == str(values.dtype)
        assert meta["features"][key]["shape"] == list(values.shape[1:] or (1,))
    assert table["index"].to_pylist() == list(range(FRAMES))
    assert table["episode_index"].to_pylist() == [0] * 5 + [1] + [2] * 7
    assert table["frame_index"].to_pylist() == [*range(5), 0, *range(7)]
    assert table["task_index"].to_pylist() == [0] * 5 + [1] + [0] * 7
    assert np.allclose(table["timestamp"].to_numpy(), [t / 20 for t in (*range(5), 0, *range(7))])
    for camera, called in enumerate(CAMERAS):
        key = f"observation.images.{called}"
        depth = [Image.open(io.BytesIO(row["bytes"])) for row in table[f"{key}_depth"].to_pylist()]
        assert np.array_equal(
            np.stack([np.asarray(image) for image in depth])[..., None], images_of(episodes, "depth", camera, 1)
        )
        assert meta["features"][f"{key}_depth"]["info"] == {"is_depth_map": True, "depth_unit": "mm"}
        millimetres = images_of(episodes, "depth", camera, 1)
        assert np.allclose(np.ravel(stats[f"{key}_depth"]["mean"]), millimetres.mean()), "not divided by 255"
        assert np.ravel(stats[f"{key}_depth"]["max"]) == millimetres.max()
        images = images_of(episodes, "rgb", camera, 3)
        if name == "lerobot-images":
            assert meta["features"][key]["dtype"] == "image"
            read = np.stack([np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in table[key].to_pylist()])
            assert np.array_equal(read, images)
        else:
            assert meta["features"][key]["dtype"] == "video"
            assert meta["features"][key]["info"]["video.fps"] == meta["fps"]
            read = np.stack(imageio.mimread(tmp_path / f"out/videos/{key}/chunk-000/file-000.mp4"))
            assert read.shape == images.shape
            assert np.abs(read.astype(float) - images).mean() < VIDEO_ERROR


def test_lerobots_meta_data(tmp_path: Path) -> None:
    _, episodes = write_dataset("lerobot", tmp_path / "out", "joints+rgb")
    rows = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["tasks"] for row in rows] == [[INSTRUCTIONS[i]] for i in (0, 1, 0)]
    assert [row["length"] for row in rows] == list(LENGTHS)
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [(0, 5), (5, 6), (6, 13)]
    assert [row["seed"] for row in rows] == [1000, 1001, 1002]
    assert [row["success"] for row in rows] == [True, False, True]
    key = f"videos/observation.images.{CAMERAS[0]}"
    assert [row[f"{key}/from_timestamp"] for row in rows] == [0.0, 0.25, 0.3]
    assert [row[f"{key}/to_timestamp"] for row in rows] == [0.25, 0.3, 0.65]
    assert np.allclose(rows[2]["stats/action/mean"], episodes[2].actions.mean(axis=0), atol=1e-6)
    pandas = pytest.importorskip("pandas")
    tasks = pandas.read_parquet(tmp_path / "out/meta/tasks.parquet")
    assert tasks.index.name == "task"
    assert tasks["task_index"].to_dict() == {INSTRUCTIONS[0]: 0, INSTRUCTIONS[1]: 1}
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    actions = np.concatenate([episode.actions for episode in episodes])
    assert np.allclose(stats["action"]["mean"], actions.mean(axis=0), atol=1e-6)
    assert np.allclose(stats["action"]["std"], actions.std(axis=0), atol=1e-6)
    assert np.array_equal(stats["action"]["max"], actions.max(axis=0).astype(float))
    assert stats["action"]["count"] == [FRAMES]
    image = stats[f"observation.images.{CAMERAS[0]}"]
    assert np.shape(image["mean"]) == (3, 1, 1)
    pixels = images_of(episodes, "rgb", 0, 3) / 255
    assert np.allclose(np.ravel(image["mean"]), pixels.mean(axis=(0, 1, 2)))
    assert np.allclose(np.ravel(image["std"]), pixels.std(axis=(0, 1, 2)))


def test_each_episode_is_listed_once_however_many_are_written_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mikasa_robo.data.formats.lerobot._EPISODES_AT_ONCE", 2)
    write_dataset("lerobot-images", tmp_path / "out", "joints", [3, 1, 4, 1, 5])
    rows = pq.read_table(tmp_path / "out/meta/episodes").to_pylist()
    assert [row["episode_index"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["length"] for row in rows] == [3, 1, 4, 1, 5]
    assert {(row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) for row in rows} == {(0, 0)}
    monkeypatch.setattr("mikasa_robo.data.formats.lerobot.DATA_MB", 0)  # a file for each of these groups
    write_dataset("lerobot-images", tmp_path / "more", "joints", [3, 1, 4, 1, 5])
    for number, group in enumerate(([0, 1], [2, 3], [4])):
        rows = pq.read_table(tmp_path / f"more/meta/episodes/chunk-000/file-{number:03d}.parquet").to_pylist()
        assert [row["episode_index"] for row in rows] == group
        assert {(row["meta/episodes/chunk_index"], row["meta/episodes/file_index"]) for row in rows} == {(0, number)}


def test_files_are_cut_at_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mikasa_robo.data.formats.lerobot.DATA_MB", 0)
    monkeypatch.setattr("mikasa_robo.data.formats.lerobot_files.FILES_PER_CHUNK", 2)
    monkeypatch.setattr("mikasa_robo.data.formats.lerobot_files._RAW_VIDEO_BYTES", 6 * 3 * 32 * 32)
    _, episodes = write_dataset("lerobot", tmp_path / "out", "joints+rgb")
    rows = pq.read_table(tmp_path / "out/meta/episodes").to_pylist()
    assert [(row["data/chunk_index"], row["data/file_index"]) for row in rows] == [(0, 0), (0, 1), (1, 0)]
    for row, episode in zip(rows, episodes, strict=True):
        path = f"out/data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        assert pq.read_table(tmp_path / path)["next.reward"].to_pylist() == episode.rewards.tolist()
    key = f"videos/observation.images.{CAMERAS[0]}"
    places = [(row[f"{key}/chunk_index"], row[f"{key}/file_index"], row[f"{key}/from_timestamp"]) for row in rows]
    assert places == [(0, 0, 0.0), (0, 0, 0.25), (0, 1, 0.0)]


def test_a_video_that_the_disk_has_no_room_for_is_an_error(tmp_path: Path) -> None:
    from mikasa_robo.data.formats.lerobot_files import VideoFiles

    files = VideoFiles(tmp_path, 20, 64, 96)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # of ffmpeg, which begins in here
    try:
        files.append(np.random.default_rng(0).integers(0, 256, (10, 64, 96, 3), dtype=np.uint8))
        with pytest.raises(VideoError, match=r"the video .*/file-000\.mp4 could not be written: .* disk is full"):
            files.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_videos_need_even_images(tmp_path: Path) -> None:
    episode = make_episode(0, 2, "joints+rgb")
    odd = replace(episode, observations={**episode.observations, "rgb": episode.observations["rgb"][:, :31]})
    with pytest.raises(ValueError, match=r"images of 32x31 pixels cannot be videos.*lerobot-images"):
        FORMATS["lerobot"].writer()(tmp_path / "out", make_info("joints+rgb")).add(odd)


def test_videos_need_even_images_before_anything_is_recorded(tmp_path: Path) -> None:
    odd = replace(make_info("joints+rgb"), image_size=(31, 32))
    with pytest.raises(ValueError, match=r"images of 32x31 pixels cannot be videos.*lerobot-images"):
        FORMATS["lerobot"].writer()(tmp_path / "out", odd)
    assert not list(tmp_path.iterdir())
    FORMATS["lerobot-images"].writer()(tmp_path / "images", odd)
    FORMATS["lerobot"].writer()(tmp_path / "depth", replace(make_info("joints+depth"), image_size=(31, 32)))
    FORMATS["lerobot"].writer()(tmp_path / "even", replace(odd, image_size=(30, 32)))


# ---------------------------------------------------------------------- statistics
def test_statistics_of_many_episodes_are_those_of_all_frames() -> None:
    rng = np.random.default_rng(0)
    episodes = [100.0 + rng.standard_normal((length, 3)) * 2.0 for length in (5, 1, 40)]
    running = RunningStats()
    for episode in episodes:
        running.add(vector_stats(episode))
    found, everything = running.result(), np.concatenate(episodes)
    for name, wanted in {
        "min": everything.min(axis=0),
        "max": everything.max(axis=0),
        "mean": everything.mean(axis=0),
        "std": everything.std(axis=0),
    }.items():
        assert np.allclose(found[name], wanted, rtol=1e-12), name
    for name, q in QUANTILES.items():  # LeRobot's mean of the episodes' quantiles
        each = [np.quantile(episode, q, axis=0, method="inverted_cdf") for episode in episodes]
        assert np.allclose(found[name], np.average(each, axis=0, weights=[5, 1, 40])), name


def test_statistics_of_images_are_those_of_their_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (150, 4, 6, 3)).astype(np.uint8)
    indices = sampled_indices(150)
    assert len(indices) == 100
    assert (indices[0], indices[-1]) == (0, 149)
    pixels = images[indices].reshape(-1, 3)
    found, wanted = image_stats(images, 255.0), vector_stats(pixels)
    assert found["count"].tolist() == [100]
    for name in ("min", "max", "mean", "std", *QUANTILES):
        assert found[name].shape == (3, 1, 1)
        assert np.allclose(found[name].reshape(3) * 255, wanted[name]), name


def test_images_are_sampled_as_by_lerobot() -> None:
    """As its functions `sample_indices` and `auto_downsample_height_width` do."""
    for length, count in ((7, 7), (100, 100), (150, 100), (10_000, 1000), (10**6, 10_000)):
        indices = sampled_indices(length)
        assert len(indices) == count
        assert (indices[0], indices[-1]) == (0, length - 1)
    large = np.full((1, 400, 320, 1), 100, np.uint8)
    large[:, ::2, ::2] = 0  # every second row and column of the pixels
    found = image_stats(large, 1.0)
    assert np.ravel(found["mean"]) == np.ravel(found["max"]) == 0.0
    assert np.ravel(image_stats(large[:, :299, :299], 1.0)["max"]) == 100.0, "smaller ones are taken whole"


# ---------------------------------------------------------------------- LeRobot
@pytest.fixture
def lerobot() -> Any:
    """The class LeRobotDataset."""
    reason = "LeRobot is not installed; see docs/data-formats.md"
    return pytest.importorskip("lerobot.datasets.lerobot_dataset", reason=reason).LeRobotDataset


@pytest.mark.parametrize("name", ["lerobot", "lerobot-images"])
def test_lerobot_loads_every_array(name: str, lerobot: Any, tmp_path: Path) -> None:
    _, episodes = write_dataset(name, tmp_path / "out", OBS_MODE)
    dataset = lerobot("mikasa/RememberColor3-v0", root=tmp_path / "out")
    assert (dataset.num_episodes, dataset.num_frames) == (len(LENGTHS), FRAMES)
    read = [dataset[i] for i in range(FRAMES)]
    for key, values in frames_of(episodes).items():
        found = np.stack([item[key].numpy() for item in read])
        assert found.dtype == values.dtype
        assert np.array_equal(found.reshape(values.shape), values), key
    assert [item["task"] for item in read] == [INSTRUCTIONS[i] for i in (0,) * 5 + (1,) + (0,) * 7]
    for camera, called in enumerate(CAMERAS):
        key = f"observation.images.{called}"
        images = images_of(episodes, "rgb", camera, 3).transpose(0, 3, 1, 2)
        found = np.stack([item[key].numpy() for item in read]) * 255
        assert np.abs(found - images).mean() < (VIDEO_ERROR if name == "lerobot" else 1e-3)
        depth = np.stack([item[f"{key}_depth"].numpy() for item in read]).astype(np.int16)
        assert np.array_equal(depth, images_of(episodes, "depth", camera, 1).transpose(0, 3, 1, 2))
    second = lerobot("mikasa/RememberColor3-v0", root=tmp_path / "out", episodes=[2])
    assert np.array_equal(second[6]["action"].numpy(), episodes[2].actions[6])
    window = lerobot("mikasa/RememberColor3-v0", root=tmp_path / "out", delta_timestamps={"action": [0.0, 0.05]})
    assert np.array_equal(window[1]["action"].numpy(), episodes[0].actions[1:3])


def test_statistics_are_those_of_lerobot(lerobot: Any, tmp_path: Path) -> None:
    from lerobot.datasets.compute_stats import aggregate_stats, get_feature_stats

    _, episodes = write_dataset("lerobot-images", tmp_path / "out", "joints+rgb")
    wanted = []
    for episode in episodes:
        images = images_of([episode], "rgb", 0, 3).transpose(0, 3, 1, 2).astype(np.float32)
        image = get_feature_stats(images, axis=(0, 2, 3), keepdims=True)
        scaled = {name: value if name == "count" else np.squeeze(value / 255, axis=0) for name, value in image.items()}
        actions = get_feature_stats(episode.actions, axis=0, keepdims=False)
        wanted.append({"action": actions, "observation.images.base_camera": scaled})
    dataset = lerobot("mikasa/RememberColor3-v0", root=tmp_path / "out")
    bins = 5000
    for key, stats in aggregate_stats(wanted).items():
        width = np.max(stats["max"] - stats["min"]) / bins
        for name, value in stats.items():
            found = dataset.meta.stats[key][name]
            assert found.shape == value.shape, (key, name)
            assert np.allclose(found, value, atol=1.01 * width if name in QUANTILES else 1e-4), (
                key,
                name,
            )  # LeRobot: float32
