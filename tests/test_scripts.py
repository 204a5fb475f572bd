"""scripts/test.sh: what pytest is told, and its exit code, without setup or tests; which tests run together, and when."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
PASSED, FAILED, INTERRUPTED, NO_TESTS = 0, 1, 2, 5


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the script, and with stand-ins for what it calls: pytest writes down its options."""
    for path, code in {
        "scripts/setup.sh": "exit 0",
        ".venv/bin/ruff": "exit 0",
        ".venv/bin/python": "[[ $1 != -c ]] || exit $(cat old 2>/dev/null || echo 0)\n"
        "[[ $2 != mypy ]] || { echo typed >types; exit 0; }\n"
        'printf "%s|" "$@" >>calls; echo >>calls; exit "$(cat code)"',
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{code}\n")
        file.chmod(0o755)
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    return tmp_path


def run_script(checkout: Path, code: int, *words: str) -> tuple[int, list[str]]:
    """The exit code of the script where pytest's is ``code``, and the options that pytest gets once."""
    (checkout / "code").write_text(f"{code}\n")
    done = subprocess.run(["bash", "scripts/test.sh", *words], cwd=checkout, check=False)
    (call,) = (checkout / "calls").read_text().splitlines()
    return done.returncode, call.rstrip("|").split("|")


@pytest.mark.parametrize(
    "words", [(), ("-k", "a b", "-x"), ("-m", "not slow", "-k", "catalog"), ("-q", "-mgpu"), ("tests/test_core.py",)]
)
def test_pytest_gets_the_words_as_they_are(checkout: Path, words: tuple[str, ...]) -> None:
    code, call = run_script(checkout, PASSED, *words)
    assert code == PASSED
    assert call[:2] == ["-m", "pytest"]
    assert call[len(call) - len(words) :] == list(words)
    assert call[call.index("--dist") + 1] == "loadgroup", "the groups and the order of conftest.py"


@pytest.mark.parametrize("code", [PASSED, FAILED, INTERRUPTED, NO_TESTS])
def test_the_exit_code_is_that_of_pytest(checkout: Path, code: int) -> None:
    assert run_script(checkout, code)[0] == code
    assert (checkout / "types").read_text() == "typed\n", (
        "mypy was called, by the interpreter and not by its own first line"
    )


def test_types_are_not_checked_with_an_old_python(checkout: Path) -> None:
    (checkout / "old").write_text("1")  # what the interpreter answers to the question whether it is new enough
    assert run_script(checkout, PASSED)[0] == PASSED
    assert not (checkout / "types").exists()


def set_up(folder: Path, venv_python: str, python: str) -> subprocess.CompletedProcess[str]:
    """Run the setup in a new checkout, with shell code in place of the Python of .venv and of the one in PYTHON."""
    for path in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        (folder / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    for path, code in {".venv/bin/python": venv_python, "python": python}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"#!/bin/bash\n{code}\n")
        (folder / path).chmod(0o755)
    environ = {**os.environ, "PYTHON": str(folder / "python")}
    return subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_a_half_made_environment_is_completed(tmp_path: Path) -> None:
    """Without pip it is what remains where python3-venv was missing, or where somebody pressed Ctrl-C."""
    done = set_up(tmp_path, 'echo "No module named $2" >&2; exit 1', 'echo "$@" >>calls; [[ $2 != venv ]]')
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stdout + done.stderr
    assert f"-m venv {tmp_path}/.venv" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(("made_with", "asked_for"), [("3.13", "3.12"), ("3.11", "3.12"), ("3.13", "3.13")])
def test_an_environment_of_another_python_is_named_and_kept(tmp_path: Path, made_with: str, asked_for: str) -> None:
    says = 'echo "$@" >>calls; [[ $1 != -c ]] || echo '
    done = set_up(tmp_path, says + made_with, says + asked_for)
    assert done.returncode == 1
    assert f"{tmp_path}/.venv is of Python {made_with}" in done.stderr
    assert "move" in done.stderr
    assert "pip" not in (tmp_path / "calls").read_text()


def test_what_is_pinned_can_be_installed_with_every_python_that_we_support() -> None:
    """A pin without a marker holds for Python 3.10 too."""
    checked = 0
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line.partition("#")[0].strip())
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        if installed not in requirement.specifier:
            continue  # a pin for other Pythons than this one
        asked = metadata.metadata(requirement.name)["Requires-Python"]
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.10"}):
            assert asked is None or "3.10.13" in SpecifierSet(asked), line
            checked += 1
    assert checked > 30


TESTS = """
import os
from pathlib import Path
import pytest

@pytest.fixture(autouse=True)
def note(request):
    with (Path(__file__).parent / os.environ["PYTEST_XDIST_WORKER"]).open("a") as file:
        print(Path(__file__).stem, request.node.name, file=file)

@pytest.mark.parametrize("env_id", [f"{x}-v0" for x in "ABCDEF"])
@pytest.mark.parametrize("number", range(4))
def test_of_an_id(env_id, number): pass

@pytest.mark.render
def test_that_draws(): pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_that_is_slow(number): pass

@pytest.mark.slow
@pytest.mark.render
def test_that_draws_slowly(): pass

def test_about_none(): pass
"""
# xdist begins with the largest groups. If a slow process began with the tests that draw, the other would do all the rest.


def test_tests_of_one_id_and_those_that_draw_run_in_one_process_and_slow_ones_last(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "loadgroup",
            "-W",
            "ignore",
            "-p",
            "no:cacheprovider",
        ],
        cwd=tmp_path,
        env={**os.environ, "MIKASA_RENDERING": "works", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    in_order = [path.read_text().splitlines() for path in (tmp_path / "gw0", tmp_path / "gw1")]
    for lines in in_order:
        slow = ["is_slow" in line for line in lines]
        assert slow == sorted(slow), "a test came after a slow one"
    ran = [set(lines) for lines in in_order]
    assert sum(map(len, ran)) == 2 * (6 * 4 + 6)
    drawn = [{line for line in lines if "draws" in line} for lines in ran]
    assert sorted(map(len, drawn)) == [0, 4], "a picture is drawn in both processes"
    groups = [{(line.split()[0], line[-5:-1]) for line in lines if "of_an_id" in line} for lines in ran]
    assert all(groups), "one process does everything"
    assert not groups[0] & groups[1], "an ID is in both processes"
    assert not list(tmp_path.glob("mikasa-test-groups*"))
