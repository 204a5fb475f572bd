"""scripts/gpu_check.sh on a machine without a GPU, and its table where something fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def run(tmp_path: Path, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT)],
        env=os.environ | {"PYTHON": python, "CUDA_VISIBLE_DEVICES": "", "LOGS": str(tmp_path / "logs")} | environment,
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
  *"import torch, sapien, mikasa_robo"*|*"if torch.version.cuda"*|*"rendering_problem"*) exit 0 ;;
  *gpu_library*) echo /nonexistent/libPhysXGpu_64.so ;;
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
    no_library = [row for row in found if "no PhysX GPU library" in row[1]]
    assert all("`physx_cuda`" in row[0] for row in no_library)
    assert len(no_library) == 2
    failed = [row[1] for row in found[1:] if row not in no_library]
    assert failed == ["**failed** (exit code 3)"] * 6
    assert done.stderr.count("out of memory") == 6


TRAINS = """#!/usr/bin/env bash
# An interpreter that sees a GPU. It trains on the CPU, without torch.compile and without images, and fails at all else.
case "$*" in
  *"import torch, sapien, mikasa_robo"*|*"if torch.version.cuda"*|*"rendering_problem"*) exit 0 ;;
  *gpu_library*) echo /nonexistent/libPhysXGpu_64.so ;;
  *" --compile "*|*"-m pytest"*|*gpu_steps.py*|"-") exit 3 ;;
  *) words=("${{@/#cuda/cpu}}"); exec "{python}" "${{words[@]/#rgb/objects}}" ;;
esac
"""


@pytest.mark.slow
def test_the_trainings_are_commands_that_work(tmp_path: Path) -> None:
    trains = tmp_path / "python"
    trains.write_text(TRAINS.format(python=sys.executable))
    trains.chmod(0o755)
    done = run(tmp_path, str(trains), STEPS="4096")
    trainings = [row for row in rows(done.stdout) if "training" in row[0]]
    assert [row[1] for row in trainings] == ["ok", "ok"], done.stderr
    assert all(re.fullmatch(r"\d+ env-steps/s", row[3]) for row in trainings)


def test_an_interpreter_without_the_project_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "/bin/false")
    assert done.returncode == 2
    assert "run scripts/setup.sh first" in done.stderr
