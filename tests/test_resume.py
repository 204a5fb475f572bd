"""Long runs survive: killed at any moment they go on as if nothing had happened, and no file is lost or half written."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import logging
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_helpers import ROOT
from task_helpers import one_id_per_mechanic
from tqdm import tqdm
from train_helpers import assert_same_policy, break_off

from mikasa_robo.baselines import environments, ppo_lstm, ppo_mlp, training
from mikasa_robo.baselines.checkpoints import (
    CheckpointError,
    Checkpoints,
    read_policy,
    save_checkpoint,
    write_atomically,
)
from mikasa_robo.baselines.loggers import ProgressCsv, sole_writer
from mikasa_robo.baselines.registry import use_memory
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.generators import continue_generator

# 20 updates of 64 steps, a checkpoint after each 192 (so after updates 3, 6, ...), evaluations in between
ARGV = shlex.split(
    "--env-id PassiveVisualMatchEasy-v0 --preset none --num-envs 4 --num-steps 16 --total-timesteps 1280 "
    "--num-minibatches 2 --update-epochs 2 --stagger-groups 3 --checkpoint-every 192 --keep-checkpoints 2 "
    "--eval-every 256 --eval-episodes 4 --eval-num-envs 2 --no-video --torch-threads 1 --exact-resume"
)
SIZES = {"ppo_lstm": ["--lstm-size", "16"], "ppo_mlp": ["--hidden-sizes", "16"]}
PAUSED = """
import sys, time
from pathlib import Path
from mikasa_robo.baselines import {module}
update = {module}.update
file = Path({file!r})
def wait_to_be_killed(*args):
    if file.exists() and file.read_text().count("\\n") > {rows}:
        time.sleep(10_000)
    return update(*args)
{module}.update = wait_to_be_killed
sys.exit({module}.main(sys.argv[1:]))
"""


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def rows_of(run_dir: Path) -> list[dict[str, str]]:
    """The learning curve."""
    with (run_dir / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def kill_after(rows: int, module: str, argv: list[str], run_dir: Path) -> None:
    """Runs the command line in a process of its own, which waits once it has written so many rows, and is killed then."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    file = run_dir / "progress.csv"
    code = PAUSED.format(module=module, file=str(file), rows=rows)
    process = subprocess.Popen([sys.executable, "-c", code, *argv], env=environ, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if file.exists() and len(rows_of(run_dir)) >= rows:
                break
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told


def test_killed_and_resumed_a_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ppo_lstm.main([*ARGV, *SIZES["ppo_lstm"], "--run-dir", str(whole)]) == 0
    kill_after(5, "ppo_lstm", [*ARGV, *SIZES["ppo_lstm"], "--run-dir", str(killed)], killed)
    assert not (killed / "final_eval.json").exists()
    assert len(list(killed.glob("resume-*.pt"))) == 2
    kill_fork_after(11, ppo_lstm, ["--resume", str(killed)], killed)  # and once more
    assert ppo_lstm.main(["--resume", str(killed)]) == 0

    assert_same_policy(whole, killed)
    last, other = (Checkpoints.load_newest(path) for path in (whole, killed))
    assert torch.equal(last["generator"], other["generator"])
    for i, moments in last["algorithm_state"]["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(other["algorithm_state"]["optimizer"]["state"][i][name], value), (i, name)
    # The same curve, each step once; only the times differ.
    curves = [[{k: v for k, v in row.items() if k not in TIMES} for row in rows_of(path)] for path in (whole, killed)]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 20
    results = [json.loads((path / "final_eval.json").read_text()) for path in (whole, killed)]
    assert results[0]["final"] == results[1]["final"]
    assert results[0]["best_during_training"] == results[1]["best_during_training"]
    assert ppo_lstm.main(["--resume", str(killed)]) == 2, "it is complete"


def test_a_run_goes_on_where_the_generators_are_of_another_kind_of_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The state of a generator on a GPU has 16 bytes."""
    broken = interrupted(tmp_path, ppo_mlp)
    for file in broken.glob("resume-*.pt"):
        payload = torch.load(file, weights_only=True)
        payload["generator"] = torch.zeros(16, dtype=torch.uint8)
        torch.save(payload, file)
    with caplog.at_level(logging.INFO, "mikasa_robo.baselines"):
        assert ppo_mlp.main(["--resume", str(broken)]) == 0
    assert "another kind of device: random numbers begin anew" in caplog.text
    assert (broken / "final_eval.json").exists()


def test_a_generator_goes_on_or_begins_anew() -> None:
    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.rand(5, generator=one)
    assert continue_generator(two, one.get_state(), otherwise=3)
    assert torch.equal(torch.rand(4, generator=one), torch.rand(4, generator=two))
    assert not continue_generator(two, torch.zeros(16, dtype=torch.uint8), otherwise=3)
    assert torch.equal(torch.rand(4, generator=two), torch.rand(4, generator=torch.Generator().manual_seed(3)))


TIMES = ("wall_time_s", "steps_per_second", "rollout_s", "update_s", "other_s")


def interrupted(tmp_path: Path, module: Any, updates: int = 7) -> Path:
    """The folder of a run that broke off in this process."""
    run_dir = tmp_path / "run"
    sizes = SIZES[module.__name__.rpartition(".")[2]]
    break_off(lambda: module.main([*ARGV, *sizes, "--run-dir", str(run_dir)]), module, "update", updates)
    return run_dir


def test_ppo_mlp_resumes_too(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert ppo_mlp.main([*ARGV, *SIZES["ppo_mlp"], "--run-dir", str(whole)]) == 0
    broken = interrupted(tmp_path, ppo_mlp)
    assert [path.name for path in sorted(broken.glob("resume-*"))] == [
        "resume-000000000192.pt",
        "resume-000000000384.pt",
    ]
    assert ppo_mlp.main(["--resume", str(broken)]) == 0
    assert_same_policy(whole, broken)
    assert (broken / "best.pt").exists()


def test_random_numbers_of_torch_go_on(tmp_path: Path) -> None:
    """Those that a memory draws by itself, as dropout does; a checkpoint of an earlier version has no state of them."""
    use_memory("odd_memories:Random")
    own = ["--memory", "odd_memories:Random", "--lstm-size", "16"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert ppo_lstm.main([*ARGV, *own, "--run-dir", str(whole)]) == 0
    break_off(lambda: ppo_lstm.main([*ARGV, *own, "--run-dir", str(broken)]), ppo_lstm, "update", 7)
    earlier = tmp_path / "earlier"
    shutil.copytree(broken, earlier)
    torch.randn(3)
    assert ppo_lstm.main(["--resume", str(broken), *own[:2]]) == 0
    assert_same_policy(whole, broken)
    for file in earlier.glob("resume-*.pt"):
        payload = torch.load(file, weights_only=True)
        del payload["torch_generators"]
        torch.save(payload, file)
    assert ppo_lstm.main(["--resume", str(earlier), *own[:2]]) == 0


@pytest.mark.parametrize("updates", [7, 14])
def test_a_run_resumes_on_both_sides_of_the_end_of_a_curriculum(updates: int, tmp_path: Path) -> None:
    """It ends after update 10, between two checkpoints; the run breaks off before it or after it."""
    kwargs = ["--env-kwargs", "distractor_steps=10", "--train-env-kwargs", "distractor_steps=2"]
    argv = [*ARGV, *SIZES["ppo_mlp"], *kwargs, "--curriculum-share", "0.5"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert ppo_mlp.main([*argv, "--run-dir", str(whole)]) == 0
    lengths = [float(row["train/length"]) for row in rows_of(whole) if row["train/length"]]
    assert (lengths[0], lengths[-1]) == (32.0, 40.0)
    break_off(lambda: ppo_mlp.main([*argv, "--run-dir", str(broken)]), ppo_mlp, "update", updates)
    assert ppo_mlp.main(["--resume", str(broken)]) == 0
    assert_same_policy(whole, broken)


def test_a_run_resumed_after_its_curriculum_is_evaluated_as_often(tmp_path: Path) -> None:
    """When to evaluate follows from the length of the episodes that the run began with."""
    argv = shlex.split(
        "--env-id RememberColor3-v0 --preset none --num-envs 4 --num-steps 4 --total-timesteps 64 --num-minibatches 1 "
        "--train-env-kwargs delay_steps=9 --curriculum-share 0.5 --checkpoint-every 16 --eval-num-envs 2 --no-video"
    )
    broken = tmp_path / "broken"
    break_off(lambda: ppo_mlp.main([*argv, "--run-dir", str(broken)]), ppo_mlp, "update", 3)
    before = Checkpoints.load_newest(broken)
    assert before["step"] == 48, "after the curriculum, which ends at step 32"
    assert before["horizon"] == 64, "5 + 9 + 50 steps; the task itself has 60"
    break_off(lambda: ppo_mlp.main(["--resume", str(broken)]), training._Run, "evaluate", 0)
    after = Checkpoints.load_newest(broken)
    assert (after["step"], after["horizon"]) == (64, before["horizon"])


def test_a_better_policy_found_after_the_last_checkpoint_stays_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run breaks off at step 512, after the evaluation there and before the checkpoint at 576."""
    scores = itertools.chain([0.5, 0.75], itertools.repeat(0.25))
    monkeypatch.setattr(training.Evaluation, "score", property(lambda _: next(scores)))
    run_dir = interrupted(tmp_path, ppo_mlp, updates=8)
    assert sorted(path.name for path in run_dir.glob("resume-*"))[-1] == "resume-000000000384.pt"
    assert Checkpoints.load_newest(run_dir)["best"]["step"] == 256
    assert ppo_mlp.main(["--resume", str(run_dir)]) == 0
    best = json.loads((run_dir / "final_eval.json").read_text())["best_during_training"]
    assert best["step"] == read_policy(run_dir / "best.pt")["step"] == 512
    assert best.keys() >= {"success_once", "return"}
    assert "score" not in best


def test_among_equals_the_later_policy_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = itertools.chain([0.5, 0.5], itertools.repeat(0.25))
    monkeypatch.setattr(training.Evaluation, "score", property(lambda _: next(scores)))
    assert ppo_mlp.main([*ARGV, *SIZES["ppo_mlp"], "--run-dir", str(tmp_path / "run")]) == 0
    assert read_policy(tmp_path / "run" / "best.pt")["step"] == 512


def contents(folder: Path) -> dict[str, bytes]:
    """All files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_cannot_go_on_says_why_and_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = interrupted(tmp_path, ppo_lstm)
    before = contents(run_dir)

    def refused(module: Any, *argv: str) -> str:
        capsys.readouterr()
        assert module.main(["--resume", *argv]) == 2
        assert contents(run_dir) == before
        return capsys.readouterr().err

    assert "is a run of ppo-lstm, not of ppo-mlp" in refused(ppo_mlp, str(run_dir))
    message = refused(ppo_lstm, str(run_dir), "--gamma", "0.5")
    assert "--gamma 0.5 differs from 0.99" in message
    assert "leave it out" in message
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in refused(ppo_lstm, str(tmp_path / "empty"))
    assert "holds no checkpoint" in refused(ppo_lstm, str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    # another run must not take the folder
    assert ppo_lstm.main([*ARGV, "--run-dir", str(run_dir)]) == 2
    assert contents(run_dir) == before


def test_a_folder_in_which_a_process_trains_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = interrupted(tmp_path, ppo_mlp)
    before = contents(run_dir)
    hold = (
        "import sys, time; from pathlib import Path; from mikasa_robo.baselines.loggers import sole_writer\n"
        "with sole_writer(Path(sys.argv[1])): print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(run_dir)], cwd=ROOT, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"1\n"
            with monkeypatch.context() as patch:
                patch.setattr(
                    environments, "make_gymnasium_env", lambda *_, **__: pytest.fail("an environment was made")
                )
                assert ppo_mlp.main(["--resume", str(run_dir)]) == 2
            assert "another process is training in this folder" in capsys.readouterr().err
            assert contents(run_dir) == before
        finally:
            other.kill()
    assert ppo_mlp.main(["--resume", str(run_dir)]) == 0


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_keeps_its_folder_until_its_last_file_is_written(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def write(path: Path, data: bytes) -> None:
        with pytest.raises(FileExistsError, match="another process is training"), sole_writer(path.parent):
            pass
        written.append(path.name)
        write_atomically(path, data)

    run_dir = interrupted(tmp_path, ppo_mlp) if resumed else tmp_path / "run"
    monkeypatch.setattr(training, "write_atomically", write)
    argv = ["--resume", str(run_dir)] if resumed else [*ARGV, *SIZES["ppo_mlp"], "--run-dir", str(run_dir)]
    assert ppo_mlp.main(argv) == 0
    assert written == ["final_eval.json"]
    with sole_writer(run_dir):  # free again
        pass


@pytest.mark.parametrize("damage", ["cut short", "a policy", "a pickle", "empty", "an entry less"])
def test_a_damaged_checkpoint_is_named_and_an_older_one_can_be_used(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    store = Checkpoints(run_dir, keep=2)
    for step in (1, 2, 3):
        weights = torch.full((1000,), float(step))
        store.save(step, {"weights": weights, "algorithm": "ppo-mlp", "world_size": 1, "args": {}})
    older, newest = sorted(run_dir.iterdir())
    assert Checkpoints.load_newest(run_dir)["step"] == 3
    data = newest.read_bytes()
    if damage == "cut short":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "a policy":
        save_checkpoint(newest, {"format": "mikasa/ppo-lstm/1"})
    elif damage == "a pickle":
        torch.save({"format": "mikasa/run/1", "path": tmp_path}, newest)
    elif damage == "an entry less":
        store.save(3, {"algorithm": "ppo-mlp", "world_size": 1})
    else:
        newest.write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{newest.name}.*move it away to continue from an older one"):
        Checkpoints.load_newest(run_dir)
    newest.unlink()
    assert Checkpoints.load_newest(run_dir)["step"] == 2
    older.write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match=rf"{older.name}.*start a new run"):
        Checkpoints.load_newest(run_dir)


def test_a_full_disk_ends_the_run_with_its_checkpoints_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    assert ppo_lstm.main([*ARGV, *SIZES["ppo_lstm"], "--run-dir", str(whole)]) == 0
    fsync, syncs = os.fsync, []

    def full(handle: int) -> None:
        syncs.append(handle)
        if len(syncs) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert ppo_lstm.main([*ARGV, *SIZES["ppo_lstm"], "--run-dir", str(run_dir)]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert str(run_dir) in message
    assert "--resume" in message
    assert not [path for path in run_dir.iterdir() if path.name.startswith(".")], "no half-written file is left"
    assert ppo_lstm.main(["--resume", str(run_dir)]) == 0
    assert_same_policy(whole, run_dir)


def test_a_full_disk_met_by_the_learning_curve_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: ProgressCsv, row: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "progress.csv")

    monkeypatch.setattr(ProgressCsv, "append", full)
    assert ppo_lstm.main([*ARGV, *SIZES["ppo_lstm"], "--run-dir", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "No space left on device: 'progress.csv'; make room, then continue with --resume" in message


def test_progress_goes_on_after_a_row_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("step,a,b\n1.0,2.0,\n2.0,3.0,4.0\n3.0,4.0,\n1")
    table = ProgressCsv(path)
    table.go_on(2)
    table.append({"step": 3.0, "a": 5.0})
    assert path.read_text().split() == ["step,a,b", "1.0,2.0,", "2.0,3.0,4.0", "3.0,5.0,"]


def test_progress_goes_on_after_a_power_failure(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_bytes(b"step,a\n1.0,2.0\n" + bytes(40) + b"\n3.0,4.0\n")
    table = ProgressCsv(path)
    table.go_on(5)
    table.append({"step": 2.0, "a": 5.0})
    assert path.read_text().split() == ["step,a", "1.0,2.0", "2.0,5.0"]


ROBOT_ARGV = (
    "--preset none --num-envs 2 --num-steps 16 --num-minibatches 1 --update-epochs 1 --stagger-groups 2 --eval-every 0 "
    "--eval-episodes 1 --eval-num-envs 1 --no-video --torch-threads 1 --sim-backend physx_cpu --hidden-sizes 8 "
    "--exact-resume"
)


def kill_fork_after(rows: int, module: Any, argv: list[str], run_dir: Path) -> None:
    """As `kill_after`, in a copy of this process, which has imported everything and simulated other tasks."""
    file = run_dir / "progress.csv"

    def wait_to_be_killed(*args: Any) -> Any:
        if file.exists() and len(rows_of(run_dir)) >= rows:
            time.sleep(10_000)
        return update(*args)

    def run() -> None:
        tqdm.set_lock(threading.RLock())  # its own is shared with forks, and whoever is killed never releases it
        module.update = wait_to_be_killed
        module.main(argv)

    update = module.update
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.is_alive():
        if file.exists() and len(rows_of(run_dir)) >= rows:
            break
        time.sleep(0.02)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("env_id", one_id_per_mechanic())
def test_a_robot_task_resumes_to_the_bit(env_id: str, tmp_path: Path) -> None:
    """Simulated episodes begin alike in a new process and in one that has simulated others before.

    The processes that are killed have seen the cue, the delay and touches at random; so has the one that goes on.
    """
    cue, delay = CATALOG[env_id].cue, CATALOG[env_id].delay
    # the middle of the response is played before the checkpoint, and again after it
    updates = -(-(cue + delay + 10) // 16)
    steps = updates * 32
    argv = shlex.split(
        f"--env-id {env_id} {ROBOT_ARGV} --total-timesteps {2 * steps} --checkpoint-every {steps} "
        "--env-kwargs on_mistake=ignore"
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ppo_mlp.main([*argv, "--run-dir", str(whole)]) == 0
    kill_fork_after(updates + 1, ppo_mlp, [*argv, "--run-dir", str(killed)], killed)
    assert not (killed / "final_eval.json").exists()
    assert ppo_mlp.main(["--resume", str(killed)]) == 0
    assert_same_policy(whole, killed)
