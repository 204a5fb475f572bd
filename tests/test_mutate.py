"""scripts/mutate.py tells caught errors from survivors, and its list fits the code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The modules mutate and mutations, imported as the script imports them."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield importlib.import_module("mutate"), importlib.import_module("mutations").MUTATIONS
    for name in ("mutate", "mutation", "mutations"):
        sys.modules.pop(name)


def test_every_mutation_fits_the_code(scripts: tuple[Any, Any]) -> None:
    mutate, mutations = scripts
    names = [mutation.name for mutation in mutations]
    assert len(names) == len(set(names))
    assert len(names) >= 20
    for mutation in mutations:
        assert not mutate.is_stale(mutation, ROOT), f"{mutation.name}: update its text in scripts/mutations.py"
        assert mutation.old != mutation.new
        for test in mutation.tests:
            file, _, rest = test.partition("::")
            name = rest.split("[")[0]
            assert f"def {name}(" in (ROOT / file).read_text(), f"{mutation.name}: there is no test {test}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of two functions, of which the tests check one."""
    root = tmp_path / "project"
    (root / "tests").mkdir(parents=True)
    (root / "lib.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (root / "tests" / "test_lib.py").write_text("import lib\n\n\ndef test_one():\n    assert lib.one() == 1\n")
    (root / ".gitignore").write_text("ignored.py\n")
    (root / "ignored.py").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_a_skipped_test_catches_nothing(scripts: tuple[Any, Any], project: Path) -> None:
    mutate, _ = scripts
    (project / "tests" / "test_skipped.py").write_text("import pytest\n\n\n@pytest.mark.skip\ndef test_two(): ...\n")
    mutation = mutate.Mutation("m", "lib.py", "return 2", "return 3", ("tests/test_skipped.py::test_two",))
    assert mutate.check(mutation, project) == "BROKEN"


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("return 1", "return 3", "caught"),
        ("return 2", "return 3", "SURVIVED"),
        ("return", "yield", "STALE"),
        ("return 4", "return 5", "STALE"),
        ("def one():", "def one(:", "BROKEN"),
    ],
)
def test_verdicts(scripts: tuple[Any, Any], project: Path, tmp_path: Path, old: str, new: str, verdict: str) -> None:
    mutate, _ = scripts
    copy = tmp_path / "copy"
    mutate.copy_repository(project, copy)
    assert sorted(path.name for path in copy.rglob("*.py")) == ["lib.py", "test_lib.py"]
    before = (copy / "lib.py").read_text()
    mutation = mutate.Mutation("m", "lib.py", old, new, ("tests/test_lib.py::test_one",))
    assert mutate.find_broken([mutation], copy) == {}
    assert mutate.check(mutation, copy) == verdict
    assert (copy / "lib.py").read_text() == before == (project / "lib.py").read_text()


def test_a_mutation_whose_tests_fail_by_themselves_is_broken(scripts: tuple[Any, Any], project: Path) -> None:
    mutate, _ = scripts
    with (project / "tests" / "test_lib.py").open("a") as file:
        file.write("\n\ndef test_two():\n    assert lib.two() == 7\n")
    mutations = [
        mutate.Mutation(f"m{number}", "lib.py", f"return {number}", "return 8", (f"tests/test_lib.py::test_{name}",))
        for number, name in ((1, "one"), (2, "two"))
    ]
    broken = mutate.find_broken(mutations, project)
    assert list(broken) == ["m2"]
    assert "assert 2 == 7" in broken["m2"]
