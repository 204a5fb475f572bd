"""``mikasa doctor``: what this machine has, and the one line that fixes each thing that is missing.

Everything that could crash on a broken driver runs in a process of its own, so that a crash is a result like any other.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from mikasa_robo.catalog import CATALOG
from mikasa_robo.sim.gpu_library import download_url, library_file
from mikasa_robo.sim.render import FIX, ending, rendering_problem

from .extras import TRAIN_MODULES
from .progress import say

__all__ = ["Check", "examine", "main"]

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 12)
PACKAGES = ("mikasa-suite", "mani-skill", "sapien", "torch", "gymnasium", "numpy", "pytorch-kinematics", "tyro")
ICD_FOLDERS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
"""Where the Vulkan loader looks for drivers, besides the user's own folders."""
STATE_MODE = "state mode"
GPU_LIBRARY = "PhysX GPU library"
NO_HOME, HOME_FIX = "HOME is not set, and this user has no entry in /etc/passwd", "export HOME=/a/folder/of/yours"
WIDTH = 17
"""Of the column of names."""
_TIMEOUT = 300.0

_FACTS = """
import json, os
import torch
facts = {"cuda_build": torch.version.cuda, "cuda": torch.cuda.is_available(), "devices": []}
if facts["cuda"]:
    facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
import sapien.physx
facts["physx"] = sapien.physx.version()
from mikasa_robo.assets.low_poly import cache_dir
from mikasa_robo.sim.stepping import default_threads, native_step
facts |= {"cores": default_threads(), "threads_help": native_step() is not None, "cache": str(cache_dir())}
print(json.dumps(facts), flush=True)
"""

_STEP = """
import sys
import torch
import mikasa_robo
env = mikasa_robo.make_env(sys.argv[1], 2, obs_mode="state", sim_backend=sys.argv[2])
obs, _ = env.reset(seed=0)
after, reward, terminated, truncated, info = env.step(torch.as_tensor(env.action_space.sample()))
assert after.shape == obs.shape and len(after) == 2, f"observations of the shape {tuple(after.shape)}"
assert bool(after.isfinite().all() and reward.isfinite().all()), "numbers that are not finite"
env.close()
"""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    """What there is, or what is wrong, in one line."""
    fix: str | None = None
    """The command that fixes it; None if nothing is wrong."""


@dataclass
class Options:
    """Show what this machine has, and for each thing that is missing the one line that fixes it. The exit code is 0 if
    state observations work, else 1. Drawing comes last, because it takes longest."""

    json: bool = False
    """Print JSON instead of lines."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa doctor")
    checks = []
    for check in examine():
        checks.append(check)
        if not options.json:
            print(f"{'ok' if check.ok else '--'}  {check.name.ljust(WIDTH)}  {check.found}", flush=True)
            if check.fix is not None:
                print(f"    {''.ljust(WIDTH)}  -> {check.fix}", flush=True)
    works = next(check.ok for check in checks if check.name == STATE_MODE)
    if options.json:
        print(json.dumps({"works": works, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        print("\nState mode works." if works else "\nState mode does NOT work.")
    return 0 if works else 1


def examine() -> Iterator[Check]:
    """Check everything, each thing after those that it needs, and yield each result at once."""
    yield from (_python(), _packages(), _train_extra())
    say("loading torch and SAPIEN, and stepping a task")
    env_id = next(iter(CATALOG))
    problem, said = _run(_FACTS + _STEP, env_id, "physx_cpu")  # one process, since loading takes longest
    facts: dict[str, Any] = next((json.loads(line) for line in said.splitlines() if line.startswith("{")), {})
    hardware = _hardware(facts, problem)
    yield from (*hardware, *_caches(facts), _stepping_result(STATE_MODE, env_id, "physx_cpu", problem))
    if facts.get("cuda") and any(check.ok for check in hardware if check.name == GPU_LIBRARY):
        say("stepping a task on the GPU")
        yield _stepping("state mode on GPU", "physx_cuda")  # without the library, SAPIEN would download it
    yield _vulkan_drivers(os.environ)
    say("drawing")
    yield _rendering("cpu")
    if facts.get("cuda"):
        yield _rendering("cuda")


def _run(code: str, *args: str) -> tuple[str | None, str]:
    """Run a program; return what went wrong, or None, and what it printed.

    PYTHONSAFEPATH keeps files of the current folder from hiding installed packages; before Python 3.11 it does nothing.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            env=os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONSAFEPATH": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:  # its own message would show the whole program
        return f"the check did not finish within {_TIMEOUT:g} s; if the machine is very busy, try again", ""
    except OSError as error:
        return f"the check did not start: {error}", ""
    return (None if done.returncode == 0 else ending(done.returncode, done.stderr)), done.stdout


def _python() -> Check:
    ok = OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST_PYTHON, NEWEST_PYTHON))
    fix = None if ok else f"PYTHON=python{newest} bash scripts/setup.sh  # any Python from {oldest} to {newest}"
    return Check("Python", ok, f"{platform.python_version()} at {sys.executable}", fix)


def _packages() -> Check:
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version or 'is missing'}" for name, version in versions.items())
    fix = f"{sys.executable} -m pip install {' '.join(missing)}"
    if "mikasa-suite" in missing:
        fix = "bash scripts/setup.sh  # in the checkout"
    return Check("packages", not missing, found, fix if missing else None)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _train_extra() -> Check:
    missing = [name for name in TRAIN_MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return Check("packages to train", True, ", ".join(TRAIN_MODULES))
    return Check("packages to train", False, f"{', '.join(missing)} not installed", "pip install 'mikasa-suite[train]'")


def _hardware(facts: Mapping[str, Any], problem: str | None) -> list[Check]:
    if not facts:
        why = f"torch and SAPIEN cannot be loaded: {problem}"
        fix = f"{sys.executable} -m pip install --force-reinstall torch sapien mani-skill"
        return [Check("torch and SAPIEN", False, why, fix)]
    cores = f"{facts['cores']} of {os.cpu_count()} may be used"
    checks = [Check("cores", True, cores)]
    if not facts["threads_help"]:
        checks[0] = Check(
            "cores",
            False,
            f"{cores}, but this version of sapien steps on one thread only",
            f"{sys.executable} -m pip install 'sapien>=3.0.1,<3.1'  # or use processes: make_env(…, num_workers=…)",
        )
    return [*checks, _cuda(facts), _gpu_library(facts)]


def _cuda(facts: Mapping[str, Any]) -> Check:
    if facts["cuda"]:
        return Check("CUDA", True, f"{facts['cuda_build']}, {', '.join(facts['devices'])}")
    if facts["cuda_build"] is None:
        fix = f"{sys.executable} -m pip install --force-reinstall torch  # with an NVIDIA GPU only: PyPI's brings CUDA"
        return Check("CUDA", False, "this torch was built without it, so physics runs on CPU", fix)
    return Check(
        "CUDA",
        False,
        f"torch was built for CUDA {facts['cuda_build']} and sees no device, so physics runs on CPU",
        "nvidia-smi  # with an NVIDIA GPU only: must list it, else install NVIDIA's driver",
    )


def _gpu_library(facts: Mapping[str, Any]) -> Check:
    """The library that SAPIEN 3.0 loads, or first downloads, for a GPU simulation."""
    version = facts["physx"]
    if _home() is None:
        return Check(GPU_LIBRARY, False, NO_HOME, HOME_FIX)
    library = library_file(version)
    if os.path.isfile(library):
        return Check(GPU_LIBRARY, True, str(library))
    url = download_url(version)
    file = Path("/tmp") / url.rpartition("/")[2]
    found = f"{library} is missing; SAPIEN downloads it with sim_backend='physx_cuda'; 'auto' uses the CPU until then"
    fix = f"curl -L {url} -o {file} && {sys.executable} -m zipfile -e {file} {library.parent}  # for GPU physics only"
    return Check(GPU_LIBRARY, False, found, fix)


def _vulkan_drivers(environ: Mapping[str, str]) -> Check:
    """The driver manifests that the Vulkan loader would read."""
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if variable in environ:
            named = [Path(path) for path in environ[variable].split(os.pathsep) if path]
            files = [file for path in named for file in (_manifests(path) if os.path.isdir(path) else [path])]
            missing = [str(file) for file in files if not os.path.isfile(file)]
            if missing or not files:
                return Check(
                    "Vulkan drivers",
                    False,
                    f"{variable}={environ[variable]} names no driver that exists",
                    f"unset {variable}",
                )
            return Check("Vulkan drivers", True, f"{', '.join(map(str, files))} (by {variable})")
    folders, home = list(map(Path, ICD_FOLDERS)), _home()
    if data := environ.get("XDG_DATA_HOME") or (home and home / ".local/share"):
        folders.append(Path(data, "vulkan/icd.d"))
    files = [file for folder in folders for file in _manifests(folder)]
    if not files:
        return Check("Vulkan drivers", False, f"none in {', '.join(map(str, folders))}", FIX)
    return Check("Vulkan drivers", True, ", ".join(map(str, files)))


def _manifests(folder: Path) -> list[Path]:
    """The JSON files in a folder; none where it cannot be read."""
    return [folder / name for name in sorted(glob.glob("*.json", root_dir=folder))]


def _rendering(device: str) -> Check:
    name = "rendering on CPU" if device == "cpu" else "rendering on GPU"
    problem = rendering_problem(device)
    if problem is None:
        return Check(name, True, "SAPIEN renders a test image correctly")
    return Check(name, False, f"SAPIEN cannot render: {problem}", FIX)


def _home() -> Path | None:
    """The user's home folder; None if it is unknown, as in a container that runs as a user without a name."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _caches(facts: Mapping[str, Any]) -> list[Check]:
    home = _home()
    if home is None:
        return [Check("caches", False, NO_HOME, HOME_FIX)]
    return [
        _writable("MIKASA cache", Path(facts.get("cache", home / ".cache" / "mikasa")), "MIKASA_CACHE"),
        _writable("SAPIEN cache", home / ".sapien", "HOME"),
        _writable("ManiSkill cache", Path(os.environ.get("MS_ASSET_DIR") or home / ".maniskill"), "MS_ASSET_DIR"),
    ]


def _writable(name: str, folder: Path, variable: str) -> Check:
    """Whether ``folder`` can be written to, or created. Creates nothing."""
    # os.path: where a folder above it may not be read, Path.exists raises before Python 3.12.
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check(name, True, str(folder) if existing == folder else f"{folder}, created when it is needed")
    return Check(name, False, f"{folder} cannot be written to", f"export {variable}=/a/folder/of/yours")


def _stepping(name: str, sim_backend: str) -> Check:
    env_id = next(iter(CATALOG))
    problem, _ = _run(_STEP, env_id, sim_backend)
    return _stepping_result(name, env_id, sim_backend, problem)


def _stepping_result(name: str, env_id: str, sim_backend: str, problem: str | None) -> Check:
    if problem is None:
        return Check(name, True, f"{env_id} was made and stepped on {sim_backend}")
    fix = "bash scripts/setup.sh  # in the checkout; the lines above say what is wrong"
    return Check(name, False, f"{env_id} cannot be stepped on {sim_backend}: {problem}", fix)
