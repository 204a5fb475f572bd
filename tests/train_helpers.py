"""What the tests of training runs share: runs that break off, and whether two runs ended with the same policy."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm import tqdm

from mikasa_robo.baselines.checkpoints import read_policy

__all__ = ["assert_same_policy", "break_off", "run_in_two_forks", "run_in_two_processes"]

ROOT = Path(__file__).parents[1]


def break_off(run: Callable[[], Any], owner: Any, name: str, calls: int) -> None:
    """Start a run that ends by an error at the first call of ``owner.name`` after ``calls`` of them."""
    function, done = getattr(owner, name), []

    def breaks(*args: Any) -> Any:
        done.append(1)
        if len(done) > calls:
            raise RuntimeError("the power went out")
        return function(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, breaks)
        with pytest.raises(RuntimeError, match="power"):
            run()


def assert_same_policy(*runs: Path) -> None:
    """The final policies of two runs are the same, bit for bit."""
    one, two = (read_policy(run / "checkpoint.pt")["state_dict"] for run in runs)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(two[name], value), name


def run_in_two_processes(*words: str) -> None:
    """Run a script, or a module after "-m", by torchrun; the modules of the tests can be imported."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def run_in_two_forks(work: Callable[[], None]) -> None:
    """Run ``work`` in two copies of this process, with what torchrun puts into the environment. They import nothing anew."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        tqdm.set_lock(threading.RLock())  # its own is shared with forks
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({name: str(value) for name, value in {**places, "MASTER_PORT": port}.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        work()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run, args=(rank,)) for rank in range(2)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
