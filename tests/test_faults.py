"""Faults from outside: damaged checkpoints, options that cannot be used, folders that cannot be written to, killed writers.

Each ends in one sentence: exit code 2 of a command, or an exception whose message names the argument and its value.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tool_helpers import save_untrained

import mikasa_base  # noqa: F401
import mikasa_robo
from mikasa_robo.baselines.arguments import ArgumentError, nearest_divisor
from mikasa_robo.baselines.checkpoints import CheckpointError, load_network, load_policy, read_policy, save_checkpoint
from mikasa_robo.baselines.files import find_policy_file, why_not_writable, write_atomically
from mikasa_robo.baselines.ppo_mlp import Args
from mikasa_robo.partial_files import PREFIX, PartialFile, remove_leftovers
from mikasa_robo.sim.make_arguments import BYTES_PER_ENV, MOST_ENVS
from mikasa_robo.tools import cli, plot, report
from mikasa_robo.tools.output import FileTakenError, require_new_file, require_new_files

ROBOT = "RememberColor3-v0"
OBS = 65
MAZE = ["--env-id", "PassiveTMaze-v0"]
SMALL = ["--preset", "none", "--num-envs", "2", "--num-steps", "8", "--num-minibatches", "2", "--total-timesteps", "16"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that ends with exit code 2."""
    capsys.readouterr()
    try:
        code = cli.main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert said.strip()
    return said


# ---------------------------------------------------------------------- F4: checkpoints
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """checkpoint.pt in the folder of a run."""
    return save_untrained(tmp_path_factory.mktemp("run") / "checkpoint.pt", ROBOT, OBS, sim_backend="physx_cpu")


def test_the_folder_of_a_run_is_its_checkpoint(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_policy_file(checkpoint.parent) == checkpoint
    assert load_policy(checkpoint.parent).act(torch.zeros(2, OBS)).shape == (2, 8)
    best = tmp_path / "run" / "best.pt"
    best.parent.mkdir()
    best.write_bytes(checkpoint.read_bytes())
    assert find_policy_file(best.parent) == best, "there is no checkpoint.pt"
    out = tmp_path / "eval.json"
    words = ["--episodes", "1", "--num-envs", "1", "--out", str(out)]
    assert cli.main(["eval", "--checkpoint", str(best.parent), *words]) == 0
    assert json.loads(out.read_text())["runs"][0]["checkpoint"] == str(best), "the file says which one it was"


def test_a_run_begins_with_the_policy_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MAZE, *SMALL, "--hidden-sizes", "8", "--eval-episodes", "1", "--eval-num-envs", "1", "--no-video"]
    words += ["--eval-every", "0", "--torch-threads", "1"]
    assert cli.main(["train", "ppo-mlp", *words, "--run-dir", str(tmp_path / "a")]) == 0
    second = [*words, "--init-from", str(tmp_path / "a"), "--run-dir", str(tmp_path / "b")]
    assert cli.main(["train", "ppo-mlp", *second]) == 0
    assert f"starting from the policy of {tmp_path / 'a' / 'checkpoint.pt'}" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, problem in (
        (empty, "holds neither checkpoint.pt nor best.pt"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        said = refused(capsys, "train", "ppo-mlp", *words, "--init-from", str(path), "--run-dir", str(tmp_path / "c"))
        assert f"--init-from {path}" in said
        assert problem in said
    assert not (tmp_path / "c").exists()


def test_no_flipped_bit_changes_a_weight(checkpoint: Path, tmp_path: Path) -> None:
    data, good, rng = checkpoint.read_bytes(), read_policy(checkpoint)["state_dict"], random.Random(0)
    path, found = tmp_path / "flipped.pt", 0
    for _ in range(150):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            loaded = read_policy(path)["state_dict"]
        except CheckpointError:
            found += 1
            continue
        assert all(torch.equal(loaded[name], value) for name, value in good.items())
    assert found > 100, "most bits are those of weights"


def test_a_flipped_bit_of_a_weight_is_found_by_the_checksum(checkpoint: Path, tmp_path: Path) -> None:
    weights = next(iter(read_policy(checkpoint)["state_dict"].values())).numpy().tobytes()
    changed = bytearray(checkpoint.read_bytes())
    changed[changed.index(weights[:64])] ^= 1
    path = tmp_path / "flipped.pt"
    path.write_bytes(changed)
    torch.load(path, weights_only=True)  # torch does not see it
    with pytest.raises(CheckpointError, match=r"the checksum of .* does not fit"):
        read_policy(path)


def _changed(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda payload: payload.update(entries)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda payload: payload.pop("state_dict"), "lacks state_dict"),
        (_changed(state_dict=[1]), "state_dict of type list"),
        (_changed(step="many"), "step of type str"),
        (_changed(step=True), "step of type bool"),
        (_changed(env_id=None), "env_id of type NoneType"),
        (_changed(format="foreign"), "has the format 'foreign'"),
        (lambda p: p["state_dict"].update(log_std=torch.full((8,), float("nan"))), "'log_std' that are not finite"),
        (lambda p: p["state_dict"].update(log_std=torch.zeros(1).expand(10**14)), "'log_std' that overlap"),
        (lambda p: p["state_dict"].update(log_std=torch.zeros(3)), "does not fit the network 'mlp'"),
        (lambda p: p["state_dict"].update(log_std=3), "weights 'log_std' that are no tensor"),
        (lambda p: p["network"].update(hidden_sizes=[30_000] * 9), "and the file holds"),
        (lambda p: p["network"].update(hidden_sizes="x"), "does not fit the network 'mlp'"),
        (lambda p: p["network"].clear(), "does not fit the network 'mlp'"),
    ],
)
def test_entries_that_are_missing_or_wrong_are_named(
    change: Callable[[dict[str, Any]], Any], problem: str, checkpoint: Path, tmp_path: Path
) -> None:
    payload = torch.load(checkpoint, weights_only=True)
    change(payload)
    path = tmp_path / "changed.pt"
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match=re.escape(str(path))) as error:
        load_network(path)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", "x"), ("learning_rate", "x"), ("obs", 5), ("reward_mode", "foo"), ("env_kwargs", ("a", 1))],
)
def test_arguments_of_a_wrong_type_in_a_checkpoint_are_named(
    name: str, value: Any, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = torch.load(checkpoint, weights_only=True)
    payload["args"][name] = value
    path = tmp_path / "changed.pt"
    save_checkpoint(path, payload)
    said = refused(capsys, "eval", "--checkpoint", str(path), "--out", str(tmp_path / "eval.json"))
    assert f"{path}: the argument {name} of ppo-mlp cannot be {value!r}" in said


class Hostile:
    """A pickle that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_files_that_are_no_checkpoints_run_no_code(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = checkpoint.read_bytes()
    inside, packed = io.BytesIO(), io.BytesIO()
    torch.save({**torch.load(checkpoint, weights_only=True), "step": Hostile(tmp_path / "pwned")}, inside)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for content in (
        b"",
        b"date,price\n2024,3\n",
        data[: len(data) // 2],
        data[:-1],
        pickle.dumps(Hostile(tmp_path / "pwned")),
        inside.getvalue(),
        packed.getvalue(),
    ):
        path = tmp_path / "file.pt"
        path.write_bytes(content)
        said = refused(capsys, "eval", "--checkpoint", str(path), "--out", str(tmp_path / "eval.json"))
        assert f"{path} is not a checkpoint" in said.splitlines()[-1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file.pt"]


def test_a_policy_of_other_sizes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_untrained(tmp_path / "old.pt", ROBOT, OBS + 1, sim_backend="physx_cpu")
    words = ["eval", "--checkpoint", str(path), "--episodes", "1", "--out", str(tmp_path / "eval.json")]
    said = refused(capsys, *words)
    assert f"the policy maps {OBS + 1} numbers to actions of 8, and the task needs {OBS} to 8" in said


# ---------------------------------------------------------------------- F5: options
LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train ppo-mlp --seed 99999999999999999999999", "--seed 99999999999999999999999 cannot be used; use 0 to"),
        ("train ppo-mlp --device meta", "--device meta cannot be used"),
        ("train ppo-mlp --learning-rate 1e30", "--learning-rate 1e+30 cannot be used"),
        ("train ppo-mlp --torch-threads 100000000", "--torch-threads 100000000 cannot be used; use 0 to 1024"),
        (
            "train ppo-mlp --num-envs 1000000000 --total-timesteps 1000000000000000",
            "--num-envs 1000000000 cannot be used",
        ),
        ("train ppo-mlp --init-log-std 1000", "--init-log-std 1000.0 cannot be used"),
        ("train ppo-mlp --env-id Blackjack-v1", "Blackjack-v1 has no time limit"),
        ("train ppo-mlp --env-id GymV26Environment-v0", "GymV26Environment-v0"),
        (
            "train ppo-mlp --env-id RememberColor3-v0 --env-kwargs cue_steps=1180591620717411303424",
            "cue_steps=11805916207",
        ),
        ("train ppo-mlp --env-id RememberColor3-v0 --env-kwargs sim_config=5", "sim_config=5 must be a dict"),
        ("train ppo-mlp --env-id RememberColor3-v0 --control-mode foo", "control_mode='foo' is not known: use one of"),
        ("train ppo-mlp --env-id PickCube-v1 --control-mode foo", "control_mode='foo' is not known: use one of"),
        ("train ppo-mlp --env-id CartPole-v1 --env-kwargs foo=3", "--env-kwargs foo"),
        ("train ppo-mlp --run-dir /proc/x", "--run-dir /proc/x: /proc cannot be written to"),
        (f"train ppo-mlp --run-dir {LONG}", "a name of 300 bytes is too long"),
        (f"train ppo-mlp --resume {LONG}", "holds no checkpoint (resume-*.pt)"),
        ("expert --env-id RememberColor3-v0 --seed -1", "--seed -1 must be from 0"),
        ("expert --env-id RememberColor3-v0 --num-envs 1000000000", "--num-envs 1000000000 must be from 1 to 65536"),
        ("expert --env-id RememberColor3-v0 --video /proc/x.mp4", "/proc cannot be written to"),
        ("record --env-id RememberColor3-v0 --out /proc/x", "--out /proc/x: /proc cannot be written to"),
        ("record --env-id RememberColor3-v0 --episodes 1000000000", "--episodes 1000000000 must be from 1 to 10000"),
        (f"gallery --out {LONG}", "a name of 300 bytes is too long"),
        (f"report . --out {LONG}/a", "a name of 300 bytes is too long"),
        (f"report {LONG}", "does not exist"),
        (f"sweep {LONG}", "cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_named_before_anything_is_made(
    words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = words.split()
    if argv[0] == "train":
        argv[2:2] = [word for word in (*MAZE, *SMALL) if "--env-id" not in argv[2:] or word not in MAZE]
    assert hint in refused(capsys, *argv)
    assert not list(tmp_path.iterdir())


def test_output_files_are_tested_before_an_evaluation(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, hint in (("/proc/x.json", "/proc cannot be written to"), (LONG, "300 bytes"), ("/dev/null", "exists")):
        assert hint in refused(capsys, "eval", "--checkpoint", str(checkpoint), "--out", out)


def test_a_report_of_foreign_files_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    good = {
        "env_id": "a$b$c_{-v0", "algorithm": "ppo-$x", "seed": 1, "training_steps": 10, "wall_time_s": 1.0,
        "final": {"episodes": 1, "success_once": 1.0, "success_at_end": 1.0, "return": 1.0, "length": 3.0},
    }  # fmt: skip
    contents: dict[str, Any] = {
        "good": good,
        "infinite": {**good, "final": {**good["final"], "return": float("inf")}},  # type: ignore[dict-item]
        "huge": {**good, "seed": 1e999},
        "list": [1],
    }
    for name, content in contents.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "final_eval.json").write_text(json.dumps(content))
        (runs / name / "progress.csv").write_text("step,eval/return,eval/success_once\n1,2,0\n3,4,1\n")
    (runs / "list" / "progress.csv").write_bytes(b"step\n\0\n")
    (runs / "deep").mkdir()
    (runs / "deep" / "final_eval.json").write_text("[" * 100_000)
    (runs / "foreign").mkdir()
    (runs / "foreign" / "progress.csv").write_text("date,price\nMonday,3\n")
    os.mkfifo(runs / "pipe.json")
    assert cli.main(["report", str(runs), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    for name in ("infinite", "huge", "list", "deep", "foreign"):
        assert f"{runs / name}" in text
    assert (tmp_path / "report" / "curves-return.png").exists()
    for name in ("foreign", "list"):
        with pytest.raises(ValueError, match="is not the progress of a run"):
            plot.read_progress(runs / name)
    assert plot.main([str(runs / "foreign"), "--out", str(tmp_path / "a.png")]) == 2


def test_a_report_skips_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /proc, where folders go while they are read."""
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def vanish(path: Any) -> Any:
        if str(path).endswith("gone"):
            raise FileNotFoundError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    collection = report.collect([tmp_path])
    assert [why for _, why in collection.problems] == ["contains no run and no evaluation"]


def test_divisors_of_large_numbers_are_found_at_once() -> None:
    assert [nearest_divisor(n, wish) for n, wish in ((4096, 10), (12, 5), (7, 3), (1, 9))] == [8, 4, 1, 1]
    assert nearest_divisor(10**12, 7) == 8


def test_defaults_and_extremes_pass() -> None:
    Args().check()
    Args(seed=2**32 - 1, learning_rate=1.0, torch_threads=1024, init_log_std=-20.0, num_envs=MOST_ENVS, num_steps=1,
         num_minibatches=1).check()  # fmt: skip
    with pytest.raises(ArgumentError, match="--num-workers 65536 cannot be used"):
        Args(num_envs=65536, num_workers=65536, total_timesteps=10**9).check()


# ---------------------------------------------------------------------- F5: gym.make
@pytest.mark.parametrize(
    ("kwargs", "hint"),
    [
        ({"robot_uids": "foo"}, "robot_uids='foo' is not known: use 'panda_wristcam' or 'panda'"),
        ({"robot_uids": "fetch"}, "robot_uids='fetch' is not known"),
        ({"robot_uids": None}, "robot_uids=None is not known"),
        ({"render_backend": "foo"}, "render_backend='foo' is not known"),
        ({"render_backend": "cuda:99"}, "render_backend='cuda:99' names no device"),
        ({"parallel_in_single_scene": -1}, "parallel_in_single_scene=-1 must be True or False"),
        ({"num_envs": 10**9}, "num_envs=1000000000 must be a whole number from 1 to 65536"),
        ({"cue_steps": 2**70}, f"cue_steps={2**70} must be a whole number of control steps from 1 to 1000000"),
        ({"sim_config": 5}, "sim_config=5 must be a dict"),
        ({"sim_config": {"foo": 1}}, "sim_config={'foo': 1} cannot be used"),
        ({"sim_config": {"sim_freq": 0}}, "sim_config['sim_freq']=0 must be a whole number of Hz"),
        ({"sim_config": {"sim_freq": 30}}, "sim_freq=30 must be a multiple of control_freq=20"),
        ({"sim_config": {"scene_config": {"gravity": [0, 0]}}}, "gravity=[0, 0] must be three numbers"),
        ({"sim_config": {"gpu_memory_config": {"heap_capacity": 2**40}}}, "heap_capacity"),
        ({"control_mode": "foo"}, "control_mode='foo' is not known: use one of"),
        ({"control_mode": 5}, "control_mode=5 must be a string"),
        ({"reward_mode": "foo"}, "reward_mode='foo' is not known"),
        ({"render_mode": "foo"}, "render_mode='foo' is not known"),
        ({"sim_backend": 5}, "sim_backend=5 must be a string"),
        ({"sim_backend": "physx_cpu:3"}, "sim_backend='physx_cpu:3' is not known"),
        ({"sim_threads": 10**8}, "sim_threads=100000000 must be a whole number from 1 to 1024"),
        ({"sensor_configs": 5}, "sensor_configs=5 must be a dict of camera settings"),
        ({"sensor_configs": {"base_camera": {"width": -1}}}, "sensor_configs['base_camera']['width']=-1"),
        ({"human_render_camera_configs": {"shader_pack": "foo"}}, "['shader_pack']='foo' is not known"),
        ({"enable_shadow": 4}, "enable_shadow=4 must be True or False"),
        ({"reconfiguration_freq": "a"}, "reconfiguration_freq='a' must be a whole number"),
        ({"shader_dir": "foo"}, "shader_dir='foo' is not known"),
    ],
)
def test_arguments_of_robot_tasks_are_named(kwargs: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        gym.make(ROBOT, **kwargs)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay_step", "use delay_steps"),
        ("start_counted", "its arguments are n, "),
        ("num_workers", "it is an argument of gymnasium.make_vec"),
    ],
)
def test_an_argument_that_a_task_does_not_have_is_named(name: str, hint: str) -> None:
    arguments: dict[str, Any] = {name: 2}
    with pytest.raises(
        TypeError, match=rf"__init__\(\) got an unexpected keyword argument '{name}', as {name}=2: {hint}"
    ):
        gym.make(ROBOT, **arguments)


def test_a_cuda_device_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match="sim_backend='physx_cuda:99' needs a CUDA device"):
        gym.make(ROBOT, num_envs=2, sim_backend="physx_cuda:99")


def test_what_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 10 * BYTES_PER_ENV // 4096)
    with pytest.raises(ValueError, match="num_envs=11 needs more memory than this machine has: use at most 10"):
        gym.make(ROBOT, num_envs=11, sim_backend="physx_cpu")


def test_integers_of_numpy_are_accepted() -> None:
    env: Any = gym.make(
        ROBOT, num_envs=np.int64(2), delay_steps=np.int64(3), sim_backend="physx_cpu", sim_threads=np.int32(1)
    )
    assert env.unwrapped.timeline.delay == 3
    env.close()
    single: Any = gym.make(ROBOT, sim_backend="physx_cpu", parallel_in_single_scene=True)
    single.close()
    assert gym.make("PassiveTMaze-v0", corridor_length=np.int64(3)).unwrapped.spec is not None


# ---------------------------------------------------------------------- F7: partial files
HOLD = """
import sys, time
from pathlib import Path
from mikasa_robo.partial_files import PartialFile
partial = PartialFile(Path(sys.argv[1]))
partial.path.write_bytes(b"half")
print(partial.path.name, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    target, mine = tmp_path / "checkpoint.pt", tmp_path / f"{PREFIX}folder"
    target.write_bytes(b"whole")
    mine.mkdir()  # not a file: nobody's business
    writers = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(target)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        names = [writer.stdout.readline().strip() for writer in writers if writer.stdout is not None]
        writers[0].kill()
        writers[0].wait()
        assert remove_leftovers(tmp_path) == [tmp_path / names[0]]
        assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", names[1], mine.name}
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert target.read_bytes() == b"whole"


def leftover(folder: Path) -> Path:
    """A partial file of a process that has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PREFIX}abcdefgh.pt"
    path.write_bytes(b"half")
    return path


def test_commands_remove_leftovers_where_they_write(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [leftover(tmp_path / name) for name in ("run", "videos", "report", "images")]
    words = [*MAZE, *SMALL, "--eval-episodes", "1", "--eval-num-envs", "1", "--no-video", "--hidden-sizes", "8"]
    assert cli.main(["train", "ppo-mlp", *words, "--run-dir", str(tmp_path / "run")]) == 0, "it held nothing else"
    refused(capsys, "record", "--env-id", "Foo-v0", "--out", str(tmp_path / "videos"))
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    refused(capsys, "gallery", "--env-id", "Foo-v0", "--out", str(tmp_path / "images"))
    assert not [path for path in files if path.exists()]


def test_a_partial_file_takes_the_place_of_its_target_or_goes(tmp_path: Path) -> None:
    target = tmp_path / f"{'x' * 250}.json"  # as long as names can be
    write_atomically(target, b"one")
    with pytest.raises(FileExistsError):
        write_atomically(target, b"two", overwrite=False)
    with pytest.raises(KeyError), PartialFile(target):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.read_bytes() == b"one"
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_why_a_folder_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    for folder, name, problem in (
        (tmp_path, "a", None),
        (tmp_path / "a" / "b", "c", None),
        (tmp_path / "file", "", "is a file, not a folder"),
        (tmp_path / "file" / "a", "", "is a file, not a folder"),
        (tmp_path / "link", "", "is a broken link"),
        (Path("/proc/x"), "", "/proc cannot be written to"),
        (tmp_path / LONG, "", "a name of 300 bytes is too long"),
        (tmp_path, LONG, "a name of 300 bytes is too long"),
        (tmp_path / ("a/" * 2500), "", "the path is too long"),
        (tmp_path / "\0", "", "no name can hold a null character"),
    ):
        found = why_not_writable(folder, name)
        assert (found is None) if problem is None else (found is not None and problem in found), (folder, found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"], "nothing is left"


def test_the_read_only_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert why_not_writable(tmp_path) == f"{tmp_path} cannot be written to: Read-only file system"


assert mikasa_robo.TASKS  # registers the tasks


def test_a_reset_of_no_environment_is_named_where_there_is_one() -> None:
    env = gym.make("RememberColor3-v0", sim_backend="physx_cpu")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"env_idx=\[\] names no environment"):
        env.reset(options={"env_idx": []})
    env.step(np.zeros((1, 8)))
    env.close()


def test_arguments_that_are_not_utf_8_are_logged(tmp_path: Path) -> None:
    from mikasa_robo.baselines.loggers import RunLogger

    RunLogger(tmp_path, {"control_mode": "\udc80"}, None).close()
    assert list(tmp_path.glob("events.*"))


def test_a_broken_link_is_not_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    for check in (lambda path: require_new_file(path), lambda path: require_new_files(path.parent, [path])):
        with pytest.raises(FileTakenError, match="link"):
            check(tmp_path / "link")
        check(tmp_path / "new")
