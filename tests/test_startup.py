"""How soon a command answers: what it loads before it does, and what it says while it works."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from mikasa_robo.baselines.registry import ALGORITHMS
from mikasa_robo.tools import doctor, progress
from mikasa_robo.tools.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
QUICK = [
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "--suite", "base"],
    ["list", "--suite", "lifelong"],
    *(["lifelong", *words] for words in (["--help"], ["run", "--help"], ["report", "--help"], ["sweep", "--help"])),
    *(
        [name, "--help"]
        for name in ("list", "doctor", "eval", "expert", "gallery", "record", "report", "sweep", "train")
    ),
    *(["train", name, "--help"] for name in ALGORITHMS),
]
HEAVY = ("torch", "sapien", "mani_skill", "ray", "matplotlib.pyplot")
"""Each of these takes a second or more to import; what is left takes about a third of a second."""


@pytest.mark.parametrize("argv", QUICK, ids=" ".join)
def test_no_help_loads_what_is_slow(argv: list[str]) -> None:
    code = (
        "import sys\n"
        "import mikasa_suite\n"
        "from mikasa_robo.tools.cli import main\n"
        "try:\n"
        f"    code = main({argv!r})\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        f"assert not code, code\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert done.stderr == ""


def test_the_arguments_of_an_algorithm_are_those_that_help_shows() -> None:
    for spec in ALGORITHMS.values():
        assert spec.load_args_type() is spec.load().args_type


def test_the_entry_point_is_light() -> None:
    """It handles signals, so nothing slow may come before it."""
    code = "import sys, mikasa_suite; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    found = set(done.stdout.split())
    assert not found & {"numpy", "gymnasium", "tyro", "mikasa_robo", "asyncio", "subprocess", "logging"}


def test_the_doctor_loads_torch_once_before_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two quiet cores that takes less than 5 s: 3 s to load, 1 s to step."""
    ran: list[str] = []
    facts: dict[str, Any] = {"cuda_build": None, "cuda": False, "devices": [], "physx": "1", "cores": 2}

    def run(code: str, *args: str) -> tuple[str | None, str]:
        ran.append("torch" if "import torch" in code else code)
        return None, "a library says hello\n" + json.dumps(facts | {"threads_help": True, "cache": "/tmp"}) + "\n"

    def draw(device: str) -> str | None:
        ran.append(f"draw on {device}")
        return None

    monkeypatch.setattr(doctor, "_run", run)
    monkeypatch.setattr(doctor, "rendering_problem", draw)
    checks = doctor.examine()
    names = []
    for check in checks:
        names.append(check.name)
        if check.name == doctor.STATE_MODE:
            assert check.ok
            assert ran == ["torch"]
    assert ran == ["torch", "draw on cpu"]
    assert names[-1] == "rendering on CPU"
    assert names.index(doctor.STATE_MODE) > names.index("cores")
    assert max(map(len, names)) <= doctor.WIDTH


def test_a_result_of_the_doctor_is_shown_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stuck(code: str, *args: str) -> tuple[str | None, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "_run", stuck)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        doctor.main([])
    found = capsys.readouterr()
    assert [line.split()[1] for line in found.out.splitlines() if line.startswith("ok")][:2] == ["Python", "packages"]
    assert found.err == "loading torch and SAPIEN, and stepping a task ...\n"


def test_what_takes_long_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Progress(100, "playing") as steps:
        for _ in range(30):
            now += 0.5
            steps.step()
    assert capsys.readouterr().err.splitlines() == [f"playing: step {k} of at most 100" for k in (10, 20, 30)]


def test_on_a_terminal_there_is_a_bar() -> None:
    code = (
        "from mikasa_robo.tools.progress import Progress\n"
        "with Progress(3, 'playing') as steps:\n"
        "    for _ in range(3):\n"
        "        steps.step()\n"
    )
    terminal, end = os.openpty()
    os.set_blocking(terminal, False)
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    subprocess.run([sys.executable, "-c", code], stderr=end, check=True)
    assert b"playing" in os.read(terminal, 10_000)
    os.close(end)
    os.close(terminal)


# ---------------------------------------------------------------------- versions
def test_the_matrix_says_what_it_would_do(tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "scripts" / "test_matrix.sh")]
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "${FAKE:-3.10}"\n')
    fake.chmod(0o755)
    env = {**os.environ, "PYTHON_3_10": str(fake), "PYTHON_3_12": str(tmp_path / "nothing")}
    done = subprocess.run([*script, "--dry-run"], capture_output=True, text=True, check=True, env=env)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["3.10", "3.11", "3.12", "lerobot"]
    assert rows[0][1] == str(fake)
    assert rows[2][1] == rows[3][1] == "none"
    assert [row[2] for row in rows] == ["constraints.txt"] * 3 + ["constraints-lerobot.txt"]
    assert rows[3][3] == "mikasa-suite[train,report] lerobot==0.6.1"
    wrong = subprocess.run([*script, "2.7"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unknown argument '2.7'" in wrong.stderr
    missing = subprocess.run(
        [*script, "3.12"], capture_output=True, text=True, check=False, env=env | {"WORK": str(tmp_path)}
    )
    assert missing.returncode == 1
    assert "| 3.12 | no interpreter |" in missing.stdout


def test_the_matrix_deletes_only_what_it_has_made(tmp_path: Path) -> None:
    """WORK may be a folder of the user's, also one that is named relative to the folder of the call."""
    fake = tmp_path / "python"  # the row begins, and fails as there is no environment
    fake.write_text("#!/bin/sh\necho 3.12\n")
    fake.chmod(0o755)
    mine = [tmp_path / "work" / name / "mine" for name in ("source", "venv-3.12", "run-3.12")]
    for file in mine:
        file.parent.mkdir(parents=True)
        file.touch()
    env = {**os.environ, "PYTHON_3_12": str(fake), "WORK": "work", "ROOM": "0"}
    env.pop("LOGS", None)
    script = ["bash", str(ROOT / "scripts" / "test_matrix.sh"), "3.12"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert "| 3.12 |" in done.stdout
    assert "**failed**" in done.stdout
    assert all(file.exists() for file in mine)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["logs", "run-3.12", "source", "venv-3.12"]
    assert (tmp_path / "work" / "logs" / "3.12.log").read_text()


def pins(name: str) -> dict[str, str]:
    lines = [line.split("#")[0] for line in (ROOT / name).read_text().splitlines()]
    return dict(line.partition(";")[0].strip().split("==") for line in lines if "==" in line)


def test_the_versions_beside_lerobot_differ_only_where_they_must() -> None:
    ours, beside = pins("constraints.txt"), pins("constraints-lerobot.txt")
    assert {name for name in ours if beside.get(name, ours[name]) != ours[name]} == {
        "torch",
        "numpy",
        "pillow",
        "setuptools",
        "wandb",
        "opencv-python",
    }
    # sapien needs opencv-python, and lerobot opencv-python-headless, which writes the same files
    assert beside["opencv-python"] == beside["opencv-python-headless"]
    assert {
        "mani-skill",
        "sapien",
        "gymnasium",
        "tyro",
        "tensorboard",
        "imageio",
        "rliable",
        "markdown",
    } <= beside.keys()
    assert beside["lerobot"] == "0.6.1"
