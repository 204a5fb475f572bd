"""scripts/gpu_check.sh on a machine without a GPU, and its table where something fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def run(tmp_path: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, "PYTHON": python, "CUDA_VISIBLE_DEVICES": "", "LOGS": str(tmp_path / "logs")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(stdout: str) -> list[list[str]]:
    """The cells of the table's lines below its head."""
    table = [line for line in stdout.splitlines() if line.startswith("|")]
    assert table[1].replace("-", "").replace("|", "") == ""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_without_a_gpu_everything_is_skipped_and_nothing_fails(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert len(found) >= 7
    assert all(len(row) == 4 for row in found)
    assert all(row[1].startswith("skipped: no CUDA: ") for row in found)
    names = " ".join(row[0] for row in found)
    for part in ("`gpu`", "CUDA", "`--compile on`", "`--compile cuda-graphs`", "`physx_cuda`"):
        assert part in names
    assert "GPU: none" in done.stdout
    assert "mani_skill" in done.stdout
    assert not list((tmp_path / "logs").iterdir()), "nothing was run"


FAKE = """#!/usr/bin/env bash
# An interpreter that sees a GPU on which everything fails but the tests.
case "$*" in
  *"import torch, mikasa_robo"*|*"if torch.version.cuda"*) exit 0 ;;
  *libPhysXGpu_64.so*) echo /nonexistent/libPhysXGpu_64.so ;;
  *"-m pytest"*) echo "3 passed" ;;
  "-") echo "- GPU: Fake" ;;
  *) echo "out of memory" >&2; exit 3 ;;
esac
"""


def test_what_fails_is_in_the_table_and_in_the_exit_code(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    done = run(tmp_path, str(fake))
    assert done.returncode == 1
    found = rows(done.stdout)
    assert found[0][1:] == ["ok", found[0][2], "3 passed"]
    assert [row[1] for row in found[1:5]] == ["**failed** (exit code 3)"] * 4
    assert all("no PhysX GPU library" in row[1] for row in found[5:])
    assert done.stderr.count("out of memory") == 4


def test_an_interpreter_without_the_project_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "/bin/false")
    assert done.returncode == 2
    assert "run scripts/setup.sh first" in done.stderr
