"""scripts/test.sh: which tests its two rounds run, and its exit code. Nothing is set up, and no test is run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PASSED, FAILED, INTERRUPTED, NO_TESTS = 0, 1, 2, 5


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the script, and with stand-ins for what it calls: pytest writes down its options."""
    for path, code in {
        "scripts/setup.sh": "exit 0",
        ".venv/bin/ruff": "exit 0",
        ".venv/bin/mypy": "exit 0",
        ".venv/bin/python": 'printf "%s|" "$@" >>calls; echo >>calls; exit "$(sed -n "$(wc -l <calls)p" codes)"',
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{code}\n")
        file.chmod(0o755)
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    return tmp_path


def rounds(checkout: Path, codes: tuple[int, int], *words: str) -> tuple[int, list[list[str]]]:
    """The exit code of the script where pytest's are ``codes``, and pytest's options from -m on in each round."""
    (checkout / "codes").write_text("".join(f"{code}\n" for code in codes))
    done = subprocess.run(["bash", "scripts/test.sh", *words], cwd=checkout, check=False)
    calls = [line.rstrip("|").split("|") for line in (checkout / "calls").read_text().splitlines()]
    return done.returncode, [call[call.index("-m", 2) :] for call in calls]


@pytest.mark.parametrize(
    ("words", "fast", "slow"),
    [
        ((), ["-m", "not slow"], ["-m", "slow"]),
        (("-k", "a b", "-x"), ["-m", "not slow", "-k", "a b", "-x"], ["-m", "slow", "-k", "a b", "-x"]),
        (
            ("-m", "not slow", "-k", "catalog"),
            ["-m", "(not slow) and not slow", "-k", "catalog"],
            ["-m", "(not slow) and slow", "-k", "catalog"],
        ),
        (("-q", "-mgpu"), ["-m", "(gpu) and not slow", "-q"], ["-m", "(gpu) and slow", "-q"]),
    ],
)
def test_the_slow_tests_come_last_whatever_is_asked_for(
    checkout: Path, words: tuple[str, ...], fast: list[str], slow: list[str]
) -> None:
    assert rounds(checkout, (PASSED, PASSED), *words) == (0, [fast, slow])


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((PASSED, FAILED), FAILED),
        ((FAILED, PASSED), FAILED),
        ((PASSED, NO_TESTS), PASSED),
        ((NO_TESTS, PASSED), PASSED),
        ((NO_TESTS, FAILED), FAILED),
        ((FAILED, NO_TESTS), FAILED),
        ((NO_TESTS, NO_TESTS), NO_TESTS),
    ],
)
def test_a_failure_of_either_round_counts(checkout: Path, codes: tuple[int, int], code: int) -> None:
    assert rounds(checkout, codes)[0] == code


def test_an_interrupted_round_is_the_last(checkout: Path) -> None:
    code, called = rounds(checkout, (INTERRUPTED, PASSED))
    assert (code, len(called)) == (INTERRUPTED, 1)
