"""Says once per session what this machine can do, and skips the tests that need more."""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

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
    """Return why there is no CUDA device to test with, or None if there is one. Without `-m gpu` there is none."""
    import torch  # here, not above: tests that need no torch should not wait for it

    return None if torch.cuda.is_available() else "torch sees no CUDA device (tests see GPUs only with `-m gpu`)"


@cache
def why_no_gpu_physics() -> str | None:
    """Return why PhysX cannot simulate on a GPU here, or None if it can."""
    if (reason := why_no_gpu()) is not None:
        return reason
    from mikasa_robo.sim.gpu_library import library_file

    library = library_file()
    return None if library.is_file() else f"{library} is missing, and a test downloads nothing"


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """The test's tensors are small: more threads would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forget() -> Iterator[Callable[[], None]]:
    """A function that forgets the modules of a user's own, as a new process does not know them. Called before and after."""
    import gymnasium as gym

    from mikasa_robo import catalog
    from mikasa_robo.baselines.registry import ALGORITHMS, NETWORKS

    def function() -> None:
        for registry in (ALGORITHMS, NETWORKS):
            for name in [name for name in registry if name.startswith("toy-")]:
                del registry[name]
        for name in ("toy_learners", "examples.point_back"):
            sys.modules.pop(name, None)
        gym.registry.pop("PointBack-v0", None)
        catalog._TABLE.pop("PointBack-v0", None)

    function()
    yield function
    function()


# ---------------------------------------------------------------------- several processes
def shares_a_fixture(item: pytest.Function) -> bool:
    """Whether a test uses a fixture that other tests of its module use, too."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(definitions[-1].scope == "module" for definitions in fixtures)


def is_slow_alone(item: pytest.Item) -> bool:
    """Whether a test is slow and needs nothing that other tests have made."""
    if item.get_closest_marker("slow") is None or item.get_closest_marker("render") is not None:
        return False
    return not (isinstance(item, pytest.Function) and shares_a_fixture(item))


def group_of(item: pytest.Item) -> str:
    """The name that a test shares with those that must run in the same process.

    The tests of a module that are about one environment ID stay together, and so do those about none: environments that
    fixtures share are built once, and a long module is spread all the same. All tests that draw are in one process, as the
    first picture of a process takes seconds. A slow test is on its own, unless it shares a fixture.
    """
    if item.get_closest_marker("render") is not None:
        return "render"
    if is_slow_alone(item):
        return item.nodeid
    function = item if isinstance(item, pytest.Function) else None
    params = function.callspec.params.values() if function is not None and hasattr(function, "callspec") else ()
    about = next((value for value in params if isinstance(value, str) and value.endswith("-v0")), "")
    return f"{item.path.name} {about}"


def groups_file(workerinput: dict[str, Any]) -> Path:
    """Where the first process tells the main one the groups: what xdist sends of a test is its ID alone."""
    return Path(tempfile.gettempdir()) / f"mikasa-test-groups-{workerinput['testrunuid']}.json"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=is_slow_alone)  # xdist keeps this order among groups of one test, which come after all others
    workerinput = getattr(config, "workerinput", {})
    if workerinput.get("workerid") == "gw0":
        groups_file(workerinput).write_text(json.dumps({item.nodeid: group_of(item) for item in items}))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule by `group_of` for ``--dist loadgroup``: with pytest 9.2 the groups of xdist 3.8 have no effect."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class GroupScheduling(LoadScopeScheduling):
        @cached_property
        def groups(self) -> dict[str, str]:
            file = groups_file(self.nodes[0].workerinput)
            groups: dict[str, str] = json.loads(file.read_text())
            file.unlink()
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self.groups[nodeid]

    return GroupScheduling(config, log)


MANY_OBJECTS = 10_000
"""With fewer new objects `freeze_objects` is not worth a collection of its own."""


def freeze_objects() -> None:
    """Take what imports made out of the garbage collector's sight. All of it lives as long as the process.

    ManiSkill collects garbage whenever it builds or closes an environment. Without this it would look through a few hundred
    thousand objects of torch and others each time, which takes longer than the rest of the building.
    """
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    freeze_objects()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # Tests import more, such as torch's compiler. Between two files no fixture holds an environment, which could not be
    # collected any more.
    if nextitem is not None and nextitem.path != item.path:
        freeze_objects()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, why_not in (("render", why_no_rendering), ("gpu", why_no_gpu), ("gpu_physics", why_no_gpu_physics)):
        if item.get_closest_marker(mark) is not None and (reason := why_not()) is not None:
            pytest.skip(reason)


# ---------------------------------------------------------------------- what takes how long
def cpu_seconds() -> float:
    """CPU time of this process and of those that it waited for. Wall time says little where cores are shared."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTimes:
    """``--cpu-times``: CPU seconds of each test file, fixtures included, at the end of the session."""

    def __init__(self) -> None:
        self.before = cpu_seconds()
        self.of_file: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self.before = cpu_seconds()  # what the imports took counts for no file

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = cpu_seconds()
        report.cpu_s, self.before = now - self.before, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.of_file[report.location[0]] += getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds of each file")
        for name, seconds in sorted(self.of_file.items(), key=lambda one: -one[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", action="store_true", help="tell the CPU seconds of each test file")


def pytest_configure(config: pytest.Config) -> None:
    # Only tests marked `gpu` use a GPU, and only `-m gpu` runs them. The GPU is hidden from all others, because "auto" would
    # choose it.
    if not (config.getoption("markexpr") or "").lstrip("( ").startswith("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.getoption("--cpu-times"):
        config.pluginmanager.register(CpuTimes())


@pytest.fixture(autouse=True)
def _forget_memories() -> Iterator[None]:
    """Memories of one's own that a test names are registered for the process; the next test does not know them."""
    registry = sys.modules.get("mikasa_robo.baselines.registry")
    before = dict(registry.MEMORIES) if registry else {}
    yield
    if registry:
        registry.MEMORIES.clear()
        registry.MEMORIES.update(before)
