"""docs/base.md is what the registry says, and the benchmarks of mikasa_base run from end to end."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from docs.docstrings import arguments_of, docstring_of
from docs.make_base_page import PAGE, PICTURES, main, page, strip
from mikasa_base.env_row import EnvRow
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import ENV_IDS, ROWS

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_that_of_the_registry() -> None:
    assert PAGE.read_text() == page(), "run `python -m docs.make_base_page`"


def test_the_page_names_every_id_and_every_extra() -> None:
    text = PAGE.read_text()
    for env_id in ENV_IDS:
        assert f"| `{env_id}` |" in text
    for row in ROWS:
        part = text.partition(f"### {row.name}\n")[2].partition("\n### ")[0]
        publication = re.search(r"arXiv [\d.]+", row.source)
        assert (publication[0] if publication else row.source.partition(",")[0]) in " ".join(part.split())
        assert row.weak in text
        assert not row.extra or f"pip install 'mikasa-suite[{row.extra}]'" in text


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.tier == "complex"])
def test_every_environment_of_images_has_a_small_picture(name: str) -> None:
    path = PICTURES / f"{name}.png"
    assert path.stat().st_size < 40_000
    with Image.open(path) as picture:
        assert picture.height == 128
        assert len(np.unique(np.asarray(picture))) > 2


def test_a_strip_holds_its_pictures_side_by_side() -> None:
    red, blue = np.zeros((2, 64, 32, 3), np.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    drawn = np.asarray(strip([red, blue]).convert("RGB"))
    assert drawn.shape == (128, 64 + 4 + 64, 3)
    assert (drawn[:, :64] == (255, 0, 0)).all()
    assert (drawn[:, 68:] == (0, 0, 255)).all()


def test_a_family_without_images_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    before = PAGE.read_text()
    assert main(["--families", "MemoryLength"]) == 2
    assert "MemoryLength" in capsys.readouterr().err
    assert PAGE.read_text() == before


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_base_speed_measures_every_form(tmp_path: Path) -> None:
    files = ("--csv", str(tmp_path / "new" / "speed.csv"), "--markdown", str(tmp_path / "speed.md"))
    few = ("--sync", "2", "--async-envs", "1", "--batch", "16", "--rounds", "1", "--seconds", "0.01")
    done = run("benchmarks/base_speed.py", "--env-ids", "MemoryLength-v0", "NumpadDiscrete-v0", *few, *files)
    assert done.returncode == 0, done.stderr[-3000:]
    with (tmp_path / "new" / "speed.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:6] == ["ID", "single", "sync", "async", "batched", "batched / single"]
    assert [row[0] for row in rows] == ["MemoryLength-v0", "NumpadDiscrete-v0"]
    assert all(float(cell) >= 0 for row in rows for cell in row[1:6])
    for text in (done.stdout, (tmp_path / "speed.md").read_text()):
        assert all(any(row[0] in line and row[4] in line for line in text.splitlines()) for row in rows)


def test_base_memory_need_measures_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "need.csv"
    files = ("--csv", str(path), "--markdown", str(tmp_path / "need.md"))
    done = run("benchmarks/base_memory_need.py", "--env-ids", "PassiveTMaze-v0", "--episodes", "20", *files)
    assert done.returncode == 0, done.stderr[-3000:]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == ["perfect memory", "memoryless", "random"]
    assert (rows[0]["mean"], rows[0]["episodes"]) == ("1.0", "20")
    before = path.read_text()
    both = ("PassiveTMaze-v0", "MemoryLength-v0")
    assert run("benchmarks/base_memory_need.py", "--env-ids", *both, "--episodes", "20", *files).returncode == 0
    assert path.read_text().startswith(before), "what was measured stays"
    assert path.read_text().count("PassiveTMaze") == 3
    (line,) = (line for line in (tmp_path / "need.md").read_text().splitlines() if "PassiveTMaze-v0" in line)
    assert "memory pays" in line


@pytest.mark.parametrize("script", ["base_speed", "base_memory_need"])
def test_a_benchmark_names_an_unknown_id(script: str, tmp_path: Path) -> None:
    done = run(f"benchmarks/{script}.py", "--env-ids", "MemoryLenght-v0", "--csv", str(tmp_path / "none.csv"))
    assert done.returncode != 0
    assert "MemoryLenght-v0: no such ID" in done.stderr
    assert not list(tmp_path.iterdir())


UNLIMITED = {"k", "size"}
"""What two numbers do not limit in every environment: `k` by the cards, and `size` of MemoryMaze is one of four."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_docstrings_tell_the_limits_of_the_arguments(row: EnvRow) -> None:
    """A value beyond what the text of an argument says is refused by name."""
    if missing_dependency(row):
        pytest.skip(f"{missing_dependency(row)} is not installed")
    told = {
        name: tuple(int(number.replace(",", "")) for number in found.groups())
        for name, text in arguments_of(docstring_of(row.entry_point))
        if (found := re.search(r"\b(\d[\d,]*) to (\d[\d,]*)\b", text))
    }
    numbers = {name for name, value in row.kwargs.items() if type(value) in (int, float)}
    assert numbers <= told.keys() | UNLIMITED
    for name, (least, most) in told.items():
        for value in (least - 1, most + 1):
            beyond: dict[str, Any] = {name: value}
            with pytest.raises(ValueError, match=name):
                gym.make(f"{row.name}-v0", **beyond)
