"""`--data`: MNIST and CIFAR-100 from files. The files here are made up, in the published formats."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from mikasa_lifelong import command
from mikasa_lifelong.arguments import RunArgs
from mikasa_lifelong.catalog import STREAMS
from mikasa_lifelong.data_files import read_cifar100, read_mnist
from mikasa_lifelong.digits import _read_once
from mikasa_lifelong.errors import LifelongError
from mikasa_lifelong.record import read_record
from mikasa_lifelong.stream import TaskStream
from mikasa_lifelong.sweep import WORDS, run_command
from mikasa_robo.tools.sweep_plan import SweepError, read_plan

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def idx(array: np.ndarray) -> bytes:
    """In the format of MNIST's files."""
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """40 and 20 pictures of 4 x 3 pixels, whose first pixel is the digit; two files are packed."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count) % 10
        pictures = np.zeros((count, 4, 3), np.uint8)
        pictures[:, 0, 0] = labels
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(pictures))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Two pictures of each of 100 classes; class c is in group c % 20, and its pixels are c."""
    folder = tmp_path / "cifar"
    folder.mkdir()
    fine = np.repeat(np.arange(100, dtype=np.uint8), 2)
    rows = np.concatenate([fine[:, None] % 20, fine[:, None], np.repeat(fine[:, None], 3072, axis=1)], axis=1)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(rows.tobytes())
    return folder


def test_mnist_is_read_as_digits_are(mnist: Path) -> None:
    (x, y), (x_test, _) = read_mnist(mnist)
    assert (x.shape, x_test.shape) == ((40, 12), (20, 12))
    np.testing.assert_array_equal(y, np.arange(40) % 10)
    np.testing.assert_allclose(x[:, 0] * 255, y, rtol=1e-6)
    stream = TaskStream(STREAMS["split-digits"], mnist)
    assert stream.signature.inputs == {"x": (12,)}
    data = stream.dataset(1, seed=1)
    batch = data.draw(np.arange(len(data)), np.random.default_rng(0))
    np.testing.assert_array_equal(np.rint(batch["x"][:, 0] * 255), 2 + batch["label"])
    assert TaskStream(STREAMS["permuted-digits"], mnist).signature.outputs == 10


def test_cifar_has_twenty_tasks_of_five_classes(cifar: Path) -> None:
    stream = TaskStream(STREAMS["split-cifar100"], cifar)
    assert len(stream) == 20
    for k in (0, 7):
        data = stream.dataset(k, seed=1)
        batch = data.draw(np.arange(len(data)), np.random.default_rng(0))
        assert batch["x"].shape == (10, 3072)
        np.testing.assert_array_equal(np.rint(batch["x"][:, 5] * 255), k + 20 * batch["label"])


def test_a_run_on_files_can_be_resumed_and_remembers_them(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = RunArgs(stream="split-digits", data=mnist).completed()
    assert RunArgs.from_dict(args.to_dict()) == args
    monkeypatch.chdir(mnist.parent)
    assert RunArgs(stream="split-digits", data=Path("mnist")).completed() == args, "found again from any folder"
    words = ["run", "--stream", "split-digits", "--steps", "2", "--checkpoints", "1", "--timed-forwards", "2"]
    assert command.main([*words, "--data", str(mnist), "--run-dir", str(tmp_path / "run")]) == 0
    assert command.main(["play", "--run", str(tmp_path / "run"), "--task", "2"]) == 0


def write_labels(folder: Path, part: str, labels: np.ndarray) -> None:
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def test_a_run_on_files_knows_when_they_have_changed(
    mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses to go on, or to be played, with other pictures in the same folder; packed or not is the same."""
    run = tmp_path / "run"
    words = ["run", "--stream", "split-digits", "--steps", "2", "--checkpoints", "1", "--timed-forwards", "2"]
    assert command.main([*words, "--data", str(mnist), "--run-dir", str(run)]) == 0
    record = read_record(run)
    assert re.fullmatch("[0-9a-f]{64}", str(record.data_sha256))
    assert record.data_sha256 == TaskStream(STREAMS["split-digits"], mnist).data_sha256
    assert TaskStream(STREAMS["split-digits"]).data_sha256 is None, "scikit-learn's do not come from files"
    (run / "final_eval.json").unlink()  # as if it had been killed before its end
    packed = mnist / "t10k-labels-idx1-ubyte.gz"
    whole = packed.read_bytes()
    _read_once.cache_clear()
    write_labels(mnist, "t10k", np.arange(20)[::-1] % 10)
    before = (run / "record.json").read_bytes()
    told = f"learnt from other data than there is in {mnist} now (SHA-256 {record.data_sha256}, now "
    for again, named in ((["run", "--resume"], "--resume"), (["play", "--run"], "--run")):
        assert command.main([*again, str(run)]) == 2
        assert f"{named} {run} {told}" in capsys.readouterr().err
    assert (run / "record.json").read_bytes() == before
    _read_once.cache_clear()
    packed.unlink()
    (mnist / "t10k-labels-idx1-ubyte").write_bytes(gzip.decompress(whole))
    assert command.main(["run", "--resume", str(run)]) == 0


def test_sets_without_pictures_of_a_class_are_refused(
    mnist: Path, cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is a folder."""

    def told(stream: str, data: Path) -> str:
        _read_once.cache_clear()
        assert command.main(["run", "--stream", stream, "--data", str(data), "--run-dir", str(tmp_path / "out")]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    write_labels(mnist, "t10k", np.arange(20) % 9)
    assert f"--data {mnist}: there is no test picture of the digit 9; use the four files" in told("split-digits", mnist)
    test = cifar / "test.bin"
    rows = np.frombuffer(test.read_bytes(), np.uint8).reshape(-1, 3074).copy()
    rows[rows[:, 1] == 87, 1] = 88  # of group 7, which has 7, 27, 47, 67 and 87
    test.write_bytes(rows.tobytes())
    assert (
        f"--data {cifar}: the coarse label 7 has the classes [7, 27, 47, 67, 87] in train.bin and [7, 27, 47, 67, 88] in "
        "test.bin"
    ) in told("split-cifar100", cifar)


def test_broken_files_are_refused(mnist: Path, cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = mnist / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    for content, message in (
        (whole[:-1], "is not an idx file of bytes in 3 dimensions"),
        (b"", "is not an idx file of bytes in 3 dimensions"),
        (idx(np.zeros((39, 4, 3))), "39 pictures and 40 labels of train do not fit together"),
        (
            idx(np.zeros((40, 3, 4))),
            "training pictures have 3x4 pixels and test pictures 4x3; use the four files of one",
        ),
    ):
        images.write_bytes(content)
        with pytest.raises(LifelongError, match=message):
            read_mnist(mnist)
    (mnist / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    images.write_bytes(whole)
    with pytest.raises(LifelongError, match=r"t10k-labels-idx1-ubyte.gz cannot be read"):
        read_mnist(mnist)
    test = cifar / "test.bin"
    whole = test.read_bytes()
    for content, message in ((whole[:-1], "no multiple of 3074"), (b"\xff" * 3074, "labels above 19 or 99")):
        test.write_bytes(content)
        with pytest.raises(LifelongError, match=message):
            read_cifar100(cifar)
    for words, message in (
        (f"--stream split-digits --data {tmp_path}", "train-images-idx3-ubyte cannot be read"),
        ("--stream split-cifar100", "--data is missing: split-cifar100 reads files"),
    ):
        assert command.main(["run", *words.split(), "--run-dir", str(tmp_path / "out")]) == 2
        assert re.search(message, capsys.readouterr().err)
        assert not (tmp_path / "out").exists()


def test_a_sweep_names_the_folder_of_files(cifar: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    text = 'out = "runs"\nstreams = ["split-cifar100"]\nlearners = ["er"]\nseeds = [1]\n'
    file.write_text(text)
    with pytest.raises(SweepError, match="--data is missing: split-cifar100 reads files"):
        read_plan(file, WORDS)
    file.write_text(f'{text}[options.er]\ndata = "{cifar}"\n')
    (planned,) = read_plan(file, WORDS).runs
    assert f"--data {cifar}" in " ".join(run_command(planned, Path("/runs/a"), resume=False))
