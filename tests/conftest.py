"""Says once per session what this machine can do, and skips the tests that need more."""

import gc
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@cache
def why_no_rendering() -> str | None:
    """Return why SAPIEN cannot draw here, or None if it can. Asked in another process: a bad driver may crash it.

    scripts/test.sh has just asked, and says by MIKASA_RENDERING if it works.
    """
    if os.environ.get("MIKASA_RENDERING") == "works":
        return None
    check = subprocess.run(
        ["bash", str(ROOT / "scripts" / "setup.sh"), "--check-rendering"],
        env={**os.environ, "PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return None if check.returncode == 0 else (check.stdout + check.stderr).strip()


@cache
def why_no_gpu() -> str | None:
    """Return why there is no CUDA device to test with, or None if there is one."""
    import torch  # here, not above: tests that need no torch should not wait for it

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of a module that are about one environment ID stay together.

    So do those about none. Environments that fixtures share are built once, and a long module is spread all the same.
    All tests that draw are in one process, as the first picture of a process takes seconds.
    """
    for item in items:
        if item.get_closest_marker("render") is not None:
            item.add_marker(pytest.mark.xdist_group("render"))
            continue
        params = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        about = next((value for value in params if isinstance(value, str) and value.endswith("-v0")), "")
        item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {about}"))


def pytest_collection_finish() -> None:
    """Take what the imports made out of the garbage collector's sight. All of it lives as long as the process.

    ManiSkill collects garbage whenever it builds or closes an environment. Without this it would look through a few hundred
    thousand objects of torch and others each time, which takes longer than the rest of the building.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, why_not in (("render", why_no_rendering), ("gpu", why_no_gpu)):
        if item.get_closest_marker(mark) is not None and (reason := why_not()) is not None:
            pytest.skip(reason)
