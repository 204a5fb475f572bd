"""Every array that goes into a file format comes out again, read by another reader than what wrote it.

The formats' own loaders are asked where they are installed: `minari` in CI; LeRobot, TensorFlow Datasets and robomimic where
somebody has them beside MIKASA.
"""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from format_helpers import CAMERAS, LENGTHS, make_dataset, make_episode, make_info, write_dataset
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image
from tensorboard.compat.tensorflow_stub import errors, pywrap_tensorflow

from mikasa_robo.data.dataset import export
from mikasa_robo.data.episode import DatasetInfo, Episode
from mikasa_robo.data.formats import FORMATS, find_format
from mikasa_robo.data.formats.parts import split_images
from mikasa_robo.data.formats.tfrecord import crc32c, encode_example, masked_crc32c, write_record


def equal(one: Any, other: Any) -> bool:
    """Whether two arrays have the same dtype, shape and numbers; NaN is equal to itself."""
    one, other = np.asarray(one), np.asarray(other)
    exact = one.dtype.kind != "f"
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=not exact)


# ---------------------------------------------------------------------- all of them
@pytest.mark.parametrize("name", FORMATS)
def test_episodes_must_look_alike(name: str, tmp_path: Path) -> None:
    writer = FORMATS[name].writer()(tmp_path / "out", make_info())
    writer.add(make_episode(0, 3))
    with pytest.raises(
        ValueError, match=r"episode 1: observations/joints is missing, but float32 \(25,\) in episode 0"
    ):
        writer.add(make_episode(1, 3, "state"))


def with_booleans() -> Episode:
    """An episode with booleans in every group of arrays."""
    episode = make_episode(0, 3, "objects+time")
    flags = np.array([[True, False], [False, False], [True, True], [False, True]])
    return dataclasses.replace(
        episode,
        observations={**episode.observations, "time": flags},
        columns={**episode.columns, "seen": flags},
        step_columns={**episode.step_columns, "touched": flags[1:]},
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_booleans(name: str, tmp_path: Path) -> None:
    writer = FORMATS[name].writer()(tmp_path / "out", make_info("objects+time"))
    writer.add(with_booleans())
    writer.finish()


# ---------------------------------------------------------------------- HDF5
FULL_DISK = """
import resource, signal, sys
from mikasa_robo.tools import data
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(data.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("name", "size"), [("maniskill", 20_000), ("minari", 0), ("minari", 20_000), ("robomimic", 20_000)]
)
def test_a_full_disk_ends_an_export_without_a_crash(name: str, size: int, tmp_path: Path) -> None:
    """HDF5 tries to write at the end of the interpreter what it could not write before, and crashes."""
    folder = tmp_path / "a"
    make_dataset(folder)
    before = sorted(folder.rglob("*"))
    words = ["-c", FULL_DISK, str(size), "export", str(folder), "--format", name]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "[Errno 27] File too large\n")
    assert sorted(folder.rglob("*")) == before


def test_the_end_of_a_full_hdf5_file_is_an_error(tmp_path: Path) -> None:
    """What HDF5 writes when it closes the file counts too."""
    writer = FORMATS["maniskill"].writer()(tmp_path / "out", make_info())
    writer.add(make_episode(0, 3))
    disk: Any = writer._hdf5._disk  # type: ignore[attr-defined]
    error = OSError(28, "No space left on device")
    disk.error = error
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    writer.abort()
    assert not (tmp_path / "out" / "trajectory.json").exists()


class Fails:
    """A writer of a user, without `abort`."""

    def __init__(self, out: Path, info: DatasetInfo) -> None:
        out.mkdir()

    def add(self, episode: Episode) -> None:
        raise ValueError("no room")

    def finish(self) -> None:
        raise AssertionError


class FailsTwice(Fails):
    aborted = 0

    def abort(self) -> None:
        FailsTwice.aborted += 1
        raise OSError("nor can it be closed")


@pytest.mark.parametrize("name", ["Fails", "FailsTwice"])
def test_a_writer_that_fails_is_aborted_if_it_can_be(name: str, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "a")
    with pytest.raises(ValueError, match="no room"):
        export(dataset, find_format(f"{__name__}:{name}"), [0])
    assert name == "Fails" or FailsTwice.aborted == 1
    assert {path.name for path in dataset.folder.iterdir()} == {"manifest.json", "episodes"}


def test_maniskills_files_hold_every_array(tmp_path: Path) -> None:
    info, episodes = write_dataset("maniskill", tmp_path / "out", "objects+joints+rgb+depth")
    told = json.loads((tmp_path / "out" / "trajectory.json").read_text())
    assert told["env_info"]["env_id"] == info.env_id
    assert told["env_info"]["env_kwargs"] == {**info.env_kwargs, "obs_layout": "maniskill", "sim_backend": "physx_cpu"}
    assert [row["episode_seed"] for row in told["episodes"]] == [1000, 1001, 1002]
    assert [row["success"] for row in told["episodes"]] == [True, False, True]
    assert [row["fail"] for row in told["episodes"]] == [False, True, False]
    assert [row["elapsed_steps"] for row in told["episodes"]] == list(LENGTHS)
    assert [row["reset_kwargs"] for row in told["episodes"]] == [{"seed": 1000}, {"seed": 1001}, {"seed": 1002}]
    with h5py.File(tmp_path / "out" / "trajectory.h5") as file:
        assert len(file) == len(episodes)
        for episode in episodes:
            group = file[f"traj_{episode.index}"]
            joints = [group[f"obs/{path}"][:] for path in ("agent/qpos", "agent/qvel", "extra/tcp_pose")]
            assert equal(np.concatenate(joints, axis=1), episode.observations["joints"])
            assert equal(group["obs/extra/objects"], episode.observations["objects"])
            for (camera, part), images in split_images(episode, info).items():
                assert equal(group[f"obs/sensor_data/{camera}/{part}"], images)
            assert equal(group["actions"], episode.actions)
            assert equal(group["rewards"], episode.rewards)
            assert group["terminated"][:].tolist() == [False] * (episode.length - 1) + [episode.terminated]
            assert group["truncated"][:].tolist() == [False] * (episode.length - 1) + [episode.truncated]
            for name in ("success", "fail"):
                assert equal(group[name], episode.step_columns[name])
            for name, values in episode.states.items():
                assert equal(group[name], values)
            for name, values in {**episode.columns, "expert_action": episode.step_columns["expert_action"]}.items():
                assert equal(group[f"privileged/{name}"], values)


def test_maniskills_flags_of_an_episode_are_those_of_its_end(tmp_path: Path) -> None:
    """Here a success and a mistake are lost again; the facts of MIKASA tell of both."""
    episode = make_episode(0, 3)
    early = {name: np.array([True, False, False]) for name in ("success", "fail")}
    writer = FORMATS["maniskill"].writer()(tmp_path / "out", make_info())
    writer.add(dataclasses.replace(episode, fail=True, step_columns={**episode.step_columns, **early}))
    writer.finish()
    (row,) = json.loads((tmp_path / "out" / "trajectory.json").read_text())["episodes"]
    assert (row["success"], row["fail"]) == (False, False)
    assert (row["mikasa"]["success"], row["mikasa"]["fail"]) == (True, True)


def test_maniskills_replay_is_told_the_simulator_that_auto_stood_for(tmp_path: Path) -> None:
    info = make_info("objects+joints")
    info = dataclasses.replace(
        info, env_kwargs={**info.env_kwargs, "sim_backend": "auto"}, versions={"simulator": "physx_cuda"}
    )
    writer = FORMATS["maniskill"].writer()(tmp_path / "out", info)
    writer.add(make_episode(0, 3, "objects+joints"))
    writer.finish()
    told = json.loads((tmp_path / "out" / "trajectory.json").read_text())
    assert told["env_info"]["env_kwargs"]["sim_backend"] == "physx_cuda"


def test_maniskills_other_layouts(tmp_path: Path) -> None:
    """The state alone is an array; where there are no joints, the layout is the flat one."""
    for obs_mode, paths in {"state": ["obs"], "objects+time": ["obs/objects", "obs/time"]}.items():
        _, episodes = write_dataset("maniskill", tmp_path / obs_mode, obs_mode, [2])
        told = json.loads((tmp_path / obs_mode / "trajectory.json").read_text())
        assert "obs_layout" not in told["env_info"]["env_kwargs"]
        with h5py.File(tmp_path / obs_mode / "trajectory.h5") as file:
            for path, values in zip(paths, episodes[0].observations.values(), strict=True):
                assert equal(file[f"traj_0/{path}"], values)


def test_robomimics_file_holds_every_array(tmp_path: Path) -> None:
    info, episodes = write_dataset("robomimic", tmp_path / "out", "joints+rgb+depth")
    with h5py.File(tmp_path / "out" / "dataset.hdf5") as file:
        data = file["data"]
        assert data.attrs["total"] == sum(LENGTHS)
        assert json.loads(data.attrs["env_args"]) == {"env_name": info.env_id, "type": 2, "env_kwargs": info.env_kwargs}
        assert file["mask/success"][:].tolist() == [b"demo_0", b"demo_2"]
        assert file["mask/failure"][:].tolist() == [b"demo_1"]
        for episode in episodes:
            demo = data[f"demo_{episode.index}"]
            assert demo.attrs["num_samples"] == episode.length
            assert demo.attrs["seed"] == episode.seed
            assert demo.attrs["instruction"] == episode.instruction
            assert equal(demo["actions"], episode.actions)
            assert equal(demo["rewards"], episode.rewards)
            assert demo["dones"][:].tolist() == [0] * (episode.length - 1) + [1]
            images = {("joints", ""): episode.observations["joints"], **split_images(episode, info)}
            for (name, part), values in images.items():
                key = {"rgb": f"{name}_image", "depth": f"{name}_depth", "": name}[part]
                assert equal(demo[f"obs/{key}"], values[:-1])
                assert equal(demo[f"next_obs/{key}"], values[1:])
            widths = json.loads(demo.attrs["state_widths"])
            begins = np.cumsum([0, *widths.values()])
            for name, begin, end in zip(widths, begins, begins[1:], strict=False):
                assert equal(demo["states"][:, begin:end], episode.states[name][:-1])
            for name, values in {**episode.columns, **episode.step_columns}.items():
                path = name if name in ("success", "fail") else f"privileged/{name}"
                assert equal(demo[path], values[: episode.length])


def test_minari_loads_every_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="Minari is not installed: pip install 'mikasa-suite[datasets]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    info, episodes = write_dataset("minari", tmp_path / "out", "objects+joints")
    assert list(minari.list_local_datasets()) == ["mikasa/RememberColor3-v0/train-v0"]
    dataset = minari.load_dataset("mikasa/RememberColor3-v0/train-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (len(LENGTHS), sum(LENGTHS))
    assert dataset.action_space.shape == (8,)
    assert (dataset.action_space.low == -1.0).all()
    assert (dataset.action_space.high == 1.0).all()
    assert dataset.env_spec.kwargs["obs_mode"] == info.obs_mode
    facts = list(dataset.storage.get_episode_metadata(range(len(LENGTHS))))
    for episode, read, fact in zip(episodes, dataset.iterate_episodes(), facts, strict=True):
        assert (fact["seed"], fact["success"], fact["instruction"]) == (
            episode.seed,
            episode.success,
            episode.instruction,
        )
        assert read.observations.keys() == episode.observations.keys()
        for part, values in episode.observations.items():
            assert equal(read.observations[part], values)
            assert dataset.observation_space[part].contains(values[0])
        assert equal(read.actions, episode.actions)
        assert equal(read.rewards, episode.rewards)
        assert read.terminations.tolist() == [False] * (episode.length - 1) + [episode.terminated]
        assert read.truncations.tolist() == [False] * (episode.length - 1) + [episode.truncated]
        for name, values in episode.columns.items():
            assert equal(read.infos[name], values)
        for name in ("success", "fail"):
            assert equal(read.infos[name][1:], episode.step_columns[name])
            assert not read.infos[name][0]
        assert equal(read.infos["expert_action"][:-1], episode.step_columns["expert_action"])
        assert np.isnan(read.infos["expert_action"][-1]).all()


def test_minari_observes_one_part_as_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="Minari is not installed: pip install 'mikasa-suite[datasets]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    _, episodes = write_dataset("minari", tmp_path / "out", "state", [3])
    read = minari.load_dataset("mikasa/RememberColor3-v0/train-v0")[0]
    assert equal(read.observations, episodes[0].observations["state"])


def test_minari_loads_booleans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="Minari is not installed: pip install 'mikasa-suite[datasets]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    test_every_format_takes_booleans("minari", tmp_path)
    dataset, episode = minari.load_dataset("mikasa/RememberColor3-v0/train-v0"), with_booleans()
    read, space = dataset[0], dataset.observation_space["time"]
    assert equal(read.observations["time"], episode.observations["time"])
    assert equal(read.infos["seen"], episode.columns["seen"])
    assert equal(read.infos["touched"][:-1], episode.step_columns["touched"])
    assert (space.dtype, space.low.tolist(), space.high.tolist()) == (np.bool_, [False, False], [True, True])
    assert space.contains(read.observations["time"][0])


def test_minari_has_no_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="obs_mode='joints\\+rgb'; leave out 'rgb', or use another format"):
        FORMATS["minari"].writer()(tmp_path / "out", make_info("joints+rgb"))
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- TFRecord
def example_class() -> Any:
    """``tf.train.Example``, declared here, so that Google's protobuf decodes what was encoded by hand."""
    file = descriptor_pb2.FileDescriptorProto(name="example_for_tests.proto", package="tests", syntax="proto3")
    Field = descriptor_pb2.FieldDescriptorProto
    for name, kind in (
        ("BytesList", Field.TYPE_BYTES),
        ("FloatList", Field.TYPE_FLOAT),
        ("Int64List", Field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        feature.field.add(name=name, number=number, type=Field.TYPE_MESSAGE, type_name=f".tests.{name}", label=1)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=Field.TYPE_MESSAGE, type_name=".tests.Feature", label=1)
    features.field.add(
        name="feature", number=1, type=Field.TYPE_MESSAGE, type_name=".tests.Features.FeatureEntry", label=3
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=Field.TYPE_MESSAGE, type_name=".tests.Features", label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Example"))


def decode(data: bytes) -> dict[str, Any]:
    """The features of an Example: arrays of int64 or float32, or lists of bytes."""
    found: dict[str, Any] = {}
    for name, feature in example_class().FromString(data).features.feature.items():
        if feature.HasField("BytesList"):
            found[name] = list(feature.BytesList.value)
        elif feature.HasField("FloatList"):
            found[name] = np.array(feature.FloatList.value, dtype=np.float32)
        else:
            found[name] = np.array(feature.Int64List.value, dtype=np.int64)
    return found


def records(path: Path) -> list[bytes]:
    """The records of a TFRecord file by TensorBoard's reader, which checks the checksums."""
    reader = pywrap_tensorflow.PyRecordReader_New(str(path))
    found: list[bytes] = []
    while True:
        try:
            reader.GetNext()
        except errors.OutOfRangeError:
            return found
        found.append(reader.record())


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    data = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
    for length in (0, 1, 255, 256, 257, 1023, 1024, 1025, 32_768, 40_000):
        assert crc32c(data[:length]) == pywrap_tensorflow.crc32c(data[:length]), length
        assert masked_crc32c(data[:length]) == pywrap_tensorflow.masked_crc32c(data[:length])


def test_examples_are_what_protobuf_reads() -> None:
    features: dict[str, Any] = {
        "floats": np.linspace(-1, 1, 7),
        "flags": np.array([True, False]),
        "integers": np.array([0, 1, 127, 128, -1, 2**63 - 1, -(2**63)]),
        "large": np.arange(300, dtype=np.uint16).reshape(3, 100),
        "texts": [b"", b"ab", bytes(200)],
        "empty": np.zeros(0, dtype=np.float32),
    }
    read = decode(encode_example(features))
    assert read.keys() == features.keys()
    assert equal(read["floats"], features["floats"].astype(np.float32))
    assert read["flags"].tolist() == [1, 0]
    assert equal(read["integers"], features["integers"])
    assert equal(read["large"], np.arange(300))
    assert read["texts"] == features["texts"]
    assert len(read["empty"]) == 0
    with pytest.raises(TypeError, match="name has dtype complex128"):
        encode_example({"name": np.zeros(1, dtype=np.complex128)})


def test_records_are_what_tensorboard_reads(tmp_path: Path) -> None:
    written = [b"", b"a" * 10, bytes(range(256)) * 20]
    with (tmp_path / "file").open("wb") as file:
        sizes = [write_record(file, data) for data in written]
    assert (tmp_path / "file").stat().st_size == sum(sizes)
    assert records(tmp_path / "file") == written


def steps_of(episode: Episode) -> dict[str, Any]:
    """What the steps of RLDS hold, by path."""
    last = np.arange(episode.length + 1) == episode.length
    ended = np.arange(episode.length + 1) >= episode.length - int(episode.terminated)

    def one_more(values: Any) -> Any:
        return np.concatenate([values, np.zeros_like(values[:1])])

    return {
        "action": one_more(episode.actions),
        "reward": one_more(episode.rewards),
        "discount": (~ended).astype(np.float32),
        "is_first": np.arange(episode.length + 1) == 0,
        "is_last": last,
        "is_terminal": last & episode.terminated,
        **{f"observation/{part}": episode.observations[part] for part in ("objects", "joints")},
        **{f"privileged/{name}": values for name, values in episode.columns.items()},
        "privileged/expert_action": one_more(episode.step_columns["expert_action"]),
        **{name: one_more(episode.step_columns[name]) for name in ("success", "fail")},
    }


def test_rlds_holds_every_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mikasa_robo.data.formats.rlds.SHARD_BYTES", 1)  # an episode each
    info, episodes = write_dataset("rlds", tmp_path / "out", "objects+joints+rgb+depth")
    folder = tmp_path / "out" / "remember_color3_v0" / "1.0.0"
    told = json.loads((folder / "dataset_info.json").read_text())
    assert told["splits"][0]["shardLengths"] == ["1", "1", "1"]
    shards = sorted(folder.glob("*.tfrecord-*"))
    assert [path.name for path in shards] == [f"remember_color3_v0-train.tfrecord-{i:05d}-of-00003" for i in range(3)]
    examples = [decode(record) for path in shards for record in records(path)]
    assert int(told["splits"][0]["numBytes"]) == sum(path.stat().st_size - 16 for path in shards)
    for episode, example in zip(episodes, examples, strict=True):
        steps = steps_of(episode)
        for path, values in steps.items():
            kept = values.astype(np.float32 if values.dtype.kind == "f" else np.int64).reshape(-1)
            assert equal(example[f"steps/{path}"], kept), path
        assert example["steps/language_instruction"] == [episode.instruction.encode()] * (episode.length + 1)
        for (camera, part), images in split_images(episode, info).items():
            stored = example[f"steps/observation/{camera}_{part}"]
            if part == "rgb":
                assert equal(np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in stored]), images)
            else:
                numbers = np.frombuffer(b"".join(map(zlib.decompress, stored)), images.dtype)
                assert equal(numbers.reshape(images.shape), images)
        assert example["episode_metadata/seed"].tolist() == [episode.seed]
        assert example["episode_metadata/success"].tolist() == [episode.success]
        assert example["episode_metadata/policy"] == [b"expert"]
        shown = {f"steps/observation/{camera}_{part}" for camera in CAMERAS for part in ("rgb", "depth")}
        named = {f"steps/{path}" for path in steps} | shown | {"steps/language_instruction"}
        assert {name for name in example if name.startswith("steps/")} == named


def test_tensorflow_datasets_loads_rlds(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets", reason="TensorFlow Datasets and TensorFlow are not installed")
    info, episodes = write_dataset("rlds", tmp_path / "out", "objects+joints+rgb+depth")
    builder = tfds.builder_from_directory(str(tmp_path / "out" / "remember_color3_v0" / "1.0.0"))
    assert builder.info.splits["train"].num_examples == len(episodes)
    assert builder.info.metadata["env_id"] == info.env_id
    loaded = tfds.load("remember_color3_v0", data_dir=str(tmp_path / "out"), split="train")
    for dataset in (builder.as_dataset(split="train"), loaded):
        for episode, read in zip(episodes, dataset, strict=True):
            assert int(read["episode_metadata"]["seed"]) == episode.seed
            assert bool(read["episode_metadata"]["success"]) == episode.success
            steps = list(read["steps"].as_numpy_iterator())
            wanted = steps_of(episode)
            wanted |= {f"observation/{camera}_{part}": v for (camera, part), v in split_images(episode, info).items()}
            for path, values in wanted.items():
                rows: list[Any] = steps
                for key in path.split("/"):
                    rows = [row[key] for row in rows]
                assert equal(np.stack(rows), values), path
            assert {step["language_instruction"] for step in steps} == {episode.instruction.encode()}
