"""scripts/fuzz.py: three hundred cases of a fixed seed without a find, and finds that it has to see."""

from __future__ import annotations

import faulthandler
import importlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEED, CASES = 17, 300


@pytest.mark.slow
def test_three_hundred_cases_without_a_find(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--seed", str(SEED), "--cases", str(CASES)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CASES} cases, 0 finds" in done.stdout
    assert not list(tmp_path.iterdir()), "the cases run in folders of their own"


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported as the script is run."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield importlib.import_module("fuzz")
    for name in [name for name in sys.modules if name.startswith("fuzz")]:
        del sys.modules[name]


def test_a_case_is_always_the_same(fuzz: Any) -> None:
    commands = importlib.import_module("fuzz_commands")
    for number in range(30):
        one, two = (fuzz.kind_of(5, number) for _ in range(2))
        assert one[0] == two[0]
        assert commands.command_line(one[1]) == commands.command_line(two[1])
    assert {fuzz.kind_of(5, number)[0] for number in range(100)} == set(fuzz.KINDS)


def test_every_command_is_made(fuzz: Any) -> None:
    commands = importlib.import_module("fuzz_commands")
    from mikasa_robo.tools import cli

    assert set(commands.GOOD) == {"train", "list", "plot", *cli._MODULES}
    made = [commands.command_line(random.Random(number)) for number in range(600)]
    assert set(commands.GOOD) <= {words[0] for words in made if words}


@pytest.mark.parametrize(
    ("status", "err", "problem"),
    [
        (0, "", None),
        (2 << 8, "--seed -1 must be at least 0", None),
        (1 << 8, "", "exit code 1"),
        (2 << 8, "", "exit code 2 without a sentence"),
        (0, "Traceback (most recent call last):\n  …\nValueError: 3", "a traceback: ValueError: 3"),
        (2 << 8, "<Env object at 0x7f> is bad", "the sentence has an address in it"),
        (11, "", "killed by SIGSEGV"),
        (24, "", "killed by SIGXCPU (more than 30 s of CPU time)"),
    ],
)
def test_ends_are_judged(fuzz: Any, status: int, err: str, problem: str | None, tmp_path: Path) -> None:
    assert fuzz.judge("command", "mikasa eval --out x", status, "", err, tmp_path) == problem
    if status == 1 << 8:
        assert fuzz.judge("command", "mikasa report runs", status, "", err, tmp_path) is None
    (tmp_path / "pwned").touch()
    assert fuzz.judge("command", "mikasa eval --out x", status, "", err, tmp_path) == "code in a checkpoint was run"


def test_what_a_case_does_to_its_process_is_seen(
    fuzz: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "case" / "cwd"
    folder.mkdir(parents=True)

    def fail() -> int:
        Path("made-here").touch()
        raise KeyError("lost")

    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # pytest's is not the one that the child has
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    status, _, err, _ = fuzz.fork(folder, fail)
    assert (folder / "made-here").exists()
    assert fuzz.judge("command", "mikasa eval", status, "", err, folder) == "a traceback: KeyError: 'lost'"

    def abort() -> int:
        faulthandler.disable()  # it would write to the output of the tests
        os.abort()

    status, _, _, _ = fuzz.fork(folder, abort)
    assert fuzz.judge("command", "mikasa eval", status, "", "", folder) == "killed by SIGABRT"
    status, out, _, seconds = fuzz.fork(folder, lambda: sys.stdout.write("done\n") and 2)
    assert (os.waitstatus_to_exitcode(status), out) == (2, "done\n")
    assert seconds < 5


def test_exceptions_are_documented_or_finds(fuzz: Any) -> None:
    calls = importlib.import_module("fuzz_calls")

    def refuse(error: Exception) -> Any:
        def call() -> None:
            raise error

        return calls.attempt(call, {"num_envs"})

    assert refuse(ValueError("num_envs=0 must be at least 1")) is None
    for error, words in (
        (ValueError("must be at least 1"), "names none of num_envs"),
        (AttributeError("num_envs"), "AttributeError is not documented"),
        (RuntimeError("num_envs"), "RuntimeError is not documented"),
    ):
        with pytest.raises(calls.FindError, match=words):
            refuse(error)
