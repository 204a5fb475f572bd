"""``mikasa doctor`` tells the truth: on a machine without Vulkan, with a driver that crashes, with a GPU."""

from __future__ import annotations

import errno
import importlib.metadata
import inspect
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sapien.physx
from sim_helpers import NO_VULKAN

from mikasa_robo.sim import render
from mikasa_robo.sim.render import ending, rendering_problem
from mikasa_robo.tools import doctor
from mikasa_robo.tools.doctor import Check, examine, main

FACTS = {
    "cuda": True,
    "cuda_build": "12.6",
    "devices": ["NVIDIA H200"],
    "physx": "105.1-test",
    "cores": 8,
    "threads_help": True,
    "cache": "/tmp/mikasa-cache",
}
MakePython = Callable[[str], None]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePython]:
    """Makes a shell script take the place of the Python that the checks are run by, and of the home folder a new one."""

    def make(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(path))

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    rendering_problem.cache_clear()
    yield make
    rendering_problem.cache_clear()


def by_name(checks: list[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    for check in checks:
        assert (check.fix is None) is check.ok, f"{check}: what is missing has one line that fixes it, nothing else"
        assert "\n" not in check.found
        assert check.fix is None or "\n" not in check.fix
    return found


# ---------------------------------------------------------------------- really run
def test_a_machine_without_vulkan_can_do_everything_but_draw() -> None:
    code = (
        "import sys\n"
        "from mikasa_robo.tools.cli import main\n"
        "code = main(['doctor', '--json'])\n"
        "loaded = [name for name in ('torch', 'sapien', 'mani_skill') if name in sys.modules]\n"
        "sys.exit(f'the main process loaded {loaded}' if loaded else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | NO_VULKAN,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["works"] is True
    checks = by_name([Check(**check) for check in report["checks"]])
    assert checks["state mode"].ok
    assert not checks["rendering on CPU"].ok
    assert "vk::" in checks["rendering on CPU"].found
    assert "mesa-vulkan-drivers" in str(checks["rendering on CPU"].fix)
    assert checks["Vulkan drivers"].fix == "unset VK_DRIVER_FILES"
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    assert checks["Python"].found.startswith(version)
    assert "sapien 3." in checks["packages"].found
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert checks["cores"].found.startswith(f"{cores} of ")


@pytest.mark.render
def test_where_sapien_draws_it_says_so() -> None:
    assert doctor._rendering("cpu").ok
    assert doctor._vulkan_drivers(os.environ).ok


# ---------------------------------------------------------------------- machines that are not here
def test_a_crash_is_a_finding(python: MakePython, capsys: pytest.CaptureFixture[str]) -> None:
    python("echo 'driver: about to crash' >&2; kill -SEGV $$")
    assert main([]) == 1
    out = capsys.readouterr().out
    assert out.count("killed by SIGSEGV: driver: about to crash") == 3, out
    assert out.endswith("State mode does NOT work.\n")
    assert main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    checks = by_name([Check(**check) for check in report["checks"]])
    assert report["works"] is False
    assert [checks[name].ok for name in ("torch and SAPIEN", "rendering on CPU", "state mode")] == [False] * 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_files_in_the_current_folder_hide_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json you want')")
    monkeypatch.chdir(tmp_path)
    assert doctor._run("import json; print(json.dumps(1))") == (None, "1\n")


def test_a_check_that_hangs_is_a_finding(python: MakePython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT", 0.3)
    python("exec sleep 30")
    check = doctor._stepping("state mode", "physx_cpu")
    assert not check.ok
    assert "did not finish within 0.3 s" in check.found
    monkeypatch.setattr(render, "_TIMEOUT", 0.3)
    problem = rendering_problem("cpu")
    assert problem == "a test image was not drawn within 0.3 s; if the machine is very busy, try again"


@pytest.mark.parametrize("library", [True, False])
def test_a_gpu_is_used_only_where_nothing_must_be_downloaded(python: MakePython, library: bool) -> None:
    python(f"echo '{json.dumps(FACTS)}'")
    folder = Path.home() / ".sapien" / "physx" / "105.1-test"
    if library:
        folder.mkdir(parents=True)
        (folder / "libPhysXGpu_64.so").touch()
    checks = by_name(list(examine()))
    assert checks["CUDA"].found == "12.6, NVIDIA H200"
    assert checks["rendering on GPU"].ok
    assert checks["PhysX GPU library"].ok is library
    assert ("state mode on GPU" in checks) is library
    assert checks["state mode"].ok
    if not library:
        fix = str(checks["PhysX GPU library"].fix)
        assert "https://github.com/sapien-sim/physx-precompiled/releases/download/105.1-test/linux" in fix
        assert str(folder) in fix
        assert not folder.exists(), "nothing is made"


def test_the_gpu_library_is_looked_for_where_sapien_looks() -> None:
    source = inspect.getsource(sapien.physx.enable_gpu)
    for words in (
        'Path.home() / ".sapien" / "physx" / physx_version',
        'parent / "libPhysXGpu_64.so"',
        "https://github.com/sapien-sim/physx-precompiled/releases/download/{physx_version}/linux-so.zip",
        "/linux-aarch64-so.zip",
    ):
        assert words in source


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"cuda": False, "cuda_build": None}, "built without it"),
        ({"cuda": False, "cuda_build": "12.6"}, "sees no device"),
    ],
)
def test_why_there_is_no_cuda(facts: dict[str, Any], found: str) -> None:
    check = doctor._cuda(facts)
    assert not check.ok
    assert found in check.found
    assert "NVIDIA GPU only" in str(check.fix)


def test_a_sapien_that_cannot_use_threads_is_told() -> None:
    cores, *_ = doctor._hardware(FACTS | {"threads_help": False}, None)
    assert not cores.ok
    assert "one thread only" in cores.found


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.metadata.version

    def version(name: str) -> str:
        if name == "sapien":
            raise importlib.metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    check = doctor._packages()
    assert not check.ok
    assert "sapien is missing" in check.found
    assert str(check.fix).endswith("-m pip install sapien")


def test_the_drivers_are_those_that_the_loader_reads(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.touch()
    two.touch()
    assert doctor._vulkan_drivers({"VK_ICD_FILENAMES": f"{one}:{two}"}).ok
    both = doctor._vulkan_drivers({"VK_DRIVER_FILES": str(tmp_path), "VK_ICD_FILENAMES": "/nonexistent"})
    assert both.ok, "the newer variable counts"
    assert str(two) in both.found
    gone = doctor._vulkan_drivers({"VK_ICD_FILENAMES": "/nonexistent.json"})
    assert not gone.ok
    assert gone.fix == "unset VK_ICD_FILENAMES"


def test_a_cache_that_cannot_be_written_to_is_told_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad = doctor._writable("MIKASA cache", tmp_path / "file" / "deeper", "MIKASA_CACHE")
    assert not bad.ok
    assert bad.fix == "export MIKASA_CACHE=/a/folder/of/yours"
    assert doctor._writable("MIKASA cache", tmp_path / "new" / "deeper", "MIKASA_CACHE").ok
    assert not (tmp_path / "new").exists()


def test_a_folder_that_may_not_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as another user with HOME=/root."""

    private, stat_of = Path("/private of root"), os.stat

    def refuse(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(f"{private}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat_of(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("HOME", str(private))
    assert not doctor._writable("MIKASA cache", private / ".cache" / "mikasa", "MIKASA_CACHE").ok
    assert not doctor._gpu_library({"physx": "105.1-physx-5.3.1.patch0"}).ok
    for drivers in (private / "one.json", private / "drivers"):
        assert not doctor._vulkan_drivers({"VK_ICD_FILENAMES": str(drivers)}).ok
    assert isinstance(doctor._vulkan_drivers({}), Check)


def test_a_home_folder_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.setattr(Path, "expanduser", unknown)
    (caches,) = doctor._caches({})
    for check in (caches, doctor._gpu_library({"physx": "105.1-physx-5.3.1.patch0"})):
        assert (check.ok, check.fix) == (False, "export HOME=/a/folder/of/yours")
    assert isinstance(doctor._vulkan_drivers({}), Check)
    assert isinstance(doctor._vulkan_drivers({"XDG_DATA_HOME": ""}), Check)


@pytest.mark.parametrize(
    ("code", "stderr", "told"),
    [
        (1, "Traceback\n\nRuntimeError: no\n", "RuntimeError: no"),
        (3, "", "it ended with code 3"),
        (-11, "", "killed by SIGSEGV"),
        (-6, "terminate called\n", "killed by SIGABRT: terminate called"),
        (-60, "", "killed by signal 60"),
    ],
)
def test_how_a_check_ended(code: int, stderr: str, told: str) -> None:
    assert ending(code, stderr) == told
