"""Ctrl-C and SIGTERM end a command soon, with one line and the exit code that shells expect. Real processes and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SECONDS = 3.0
"""From the signal to the end of the process."""

TRAIN = ("train", "ppo-mlp", "--env-id", "MemoryLengthEasy-v0", "--total-timesteps", "10000000", "--no-video")
SMALL = ("--num-envs", "4", "--num-steps", "8", "--eval-num-envs", "2", "--run-dir", "run")

# As the console script begins in a terminal, but with a moment at which the process stops until the signal is there. A shell
# that started the tests in the background has let this process ignore SIGINT.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import mikasa_suite
{hook}
sys.exit(mikasa_suite.main())
"""
PAUSE = "print('now', file=sys.stderr, flush=True); time.sleep(60)"
WHILE_IMPORTING = """
import importlib.abc, time
class Pause(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            {pause}
sys.meta_path.insert(0, Pause())
"""


@dataclass
class Ending:
    """How a process ended."""

    seconds: float
    code: int
    lines: list[str]  # of stderr, after the signal


def ending(
    folder: Path, argv: tuple[str, ...], moment: str, signum: int = signal.SIGINT, hook: str = "", group: bool = False
) -> Ending:
    """Run ``mikasa`` and send ``signum`` once a line of its output contains ``moment``."""
    command = [sys.executable, "-c", PROGRAM.format(hook=hook), *argv]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    lines: list[tuple[float, str]] = []
    reached = threading.Event()
    assert process.stdout is not None
    with process.stdout as output:

        def read() -> None:
            for line in output:
                lines.append((time.monotonic(), line.rstrip()))
                if moment in line:
                    reached.set()
            reached.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            reached.wait(120)
            sent = time.monotonic()
            (os.killpg if group else os.kill)(process.pid, signum)
            code = process.wait(60)
            seconds = time.monotonic() - sent
        finally:
            process.kill()
            reader.join()
    assert moment in "\n".join(line for _, line in lines), lines
    return Ending(seconds, code, [line for when, line in lines if when > sent])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("list",), "gymnasium"),
        (("list",), "mikasa_robo.tools.cli"),
        (("record", "--env-id", "RememberColor3-v0"), "torch"),
        (("eval", "--checkpoint", "x.pt"), "torch"),
        (("report", "runs"), "mikasa_robo.tools.report"),
        (TRAIN, "mikasa_robo.baselines.training"),
    ],
)
def test_ctrl_c_while_imports_run(argv: tuple[str, ...], name: str, tmp_path: Path) -> None:
    found = ending(tmp_path, argv, "now", hook=WHILE_IMPORTING.format(name=name, pause=PAUSE))
    assert (found.code, found.lines) == (130, ["interrupted"])
    assert found.seconds < SECONDS
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("signum", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")], ids=["SIGINT", "SIGTERM"]
)
def test_a_training_saves_its_policy_and_ends(signum: signal.Signals, word: str, tmp_path: Path) -> None:
    found = ending(tmp_path, (*TRAIN, *SMALL), "INFO step ", signum, hook=FREQUENT_LINES)
    assert found.code == 128 + signum
    (line,) = (line for line in found.lines if " INFO " not in line)
    assert line == f"{word}; run keeps what was written so far, and --resume run continues it"
    assert found.seconds < SECONDS
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert not (tmp_path / "run" / "final_eval.json").exists()


FREQUENT_LINES = """
import mikasa_robo.baselines.loggers as loggers
loggers.ProgressBar.__init__.__defaults__ = (0.1,)
"""


def test_ctrl_c_ends_worker_processes_and_the_writing_of_a_video(tmp_path: Path) -> None:
    """A terminal sends it to the helper processes too: workers of the simulator, ffmpeg."""
    found = ending(tmp_path, ("record",), "now", hook=WORKERS_AND_VIDEO, group=True)
    assert (found.code, found.lines) == (130, ["interrupted"])
    assert found.seconds < SECONDS
    assert not list(tmp_path.iterdir()), "an incomplete video is removed"
    deadline = time.monotonic() + 30
    while (left := processes_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


WORKERS_AND_VIDEO = """
import time
import mikasa_robo.tools.record as record
def main(argv):
    from pathlib import Path
    import numpy as np
    import mikasa_robo
    from mikasa_robo.video import VideoWriter
    env = mikasa_robo.make_env("RememberColor3-v0", 2, num_workers=1, sim_backend="physx_cpu", render_backend="none")
    env.reset(seed=0)
    with VideoWriter(Path("video.mp4")) as video:
        frame = np.zeros((64, 64, 3), np.uint8)
        video.add(frame)
        print("now", file=sys.stderr, flush=True)
        while True:
            env.step(None)
            video.add(frame)
if __name__ == "__main__":
    record.main = main
"""


def processes_in(folder: Path) -> list[str]:
    """The processes that work in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


STUCK = """
import ctypes
import mikasa_robo.tools.record as record
def main(argv):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    print("now", file=sys.stderr, flush=True)
    libc.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
record.main = main
"""


def test_a_library_that_does_not_return_is_not_waited_for(tmp_path: Path) -> None:
    found = ending(tmp_path, ("record",), "now", hook=STUCK)
    assert (found.code, found.lines) == (130, ["interrupted"])
    assert found.seconds < SECONDS


DROPPED = """
import os, signal, time
import mikasa_robo.tools.record as record
class Careless:
    def __del__(self):
        print("now", file=sys.stderr, flush=True)
        time.sleep(60)
def main(argv):
    Careless()
    time.sleep(60)
record.main = main
"""


def test_an_interrupt_in_a_destructor_is_not_lost(tmp_path: Path) -> None:
    """Python prints such an exception and goes on."""
    found = ending(tmp_path, ("record",), "now", hook=DROPPED)
    assert (found.code, found.lines) == (130, ["interrupted"])
    assert found.seconds < 1.5, "not left to the deadline"


def test_warnings_of_torch_are_not_shown() -> None:
    hook = (
        "import warnings\n"
        "import mikasa_robo.tools.record as record\n"
        "def main(argv):\n"
        "    for module in ('torch.serialization', 'torchlike', 'my_task'):\n"
        "        warnings.warn_explicit(f'from {module}', UserWarning, 'file.py', 1, module=module)\n"
        "record.main = main"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(hook=hook), "record"], capture_output=True, text=True, check=True
    )
    assert "from torchlike" in done.stderr
    assert "from my_task" in done.stderr
    assert "from torch.serialization" not in done.stderr


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As under nohup, and in the background of a shell script."""
    code = (
        "import os, signal, mikasa_suite\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "def command():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 3\n"
        "raise SystemExit(mikasa_suite.run(command))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_terminal_that_is_not_utf_8_shows_a_question_mark() -> None:
    """Where a report has ±, the command would end with a traceback after it has done its work."""
    code = "import mikasa_suite; raise SystemExit(mikasa_suite.run(lambda: print('80', chr(177), '2')))"
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ascii_only)
    assert (done.returncode, done.stdout, done.stderr) == (0, "80 ? 2\n", "")
