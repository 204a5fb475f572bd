"""On a GPU no step and no partial reset waits for the device, or loops over environments, in the code of this package.

Every torch operation is seen by a dispatch mode, together with the line that asked for it. The batched CPU simulator takes
the code path of a GPU, so this needs no GPU; where the code asks `reads_wait`, it is told what it would be on one. What
ManiSkill and the simulator do is not counted.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import MECHANICS, base, random_actions
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mikasa_robo
from mikasa_robo import tensors
from mikasa_robo.core.env import StepData
from mikasa_robo.tasks.remember_color import RememberColor

ROOT = Path(mikasa_robo.__file__).parent.parent
PARTS = ("core", "tasks", "assets", "sim/env.py", "sim/backend.py", "sim/controllers.py")
OWN = (str(ROOT / "wrappers"), *(str(ROOT / "mikasa_robo" / part) for part in PARTS))
"""What is counted; the rest of sim/ is the simulator itself, on CPU."""
ONLY_ON_CPU = {
    ("env.py", "_step_action"): "actions are checked for NaN where physics runs on CPU",
    ("env.py", "_forcing"): "only the batched CPU simulator forces rows",
    ("env.py", "_clear_sim_history"): "only PhysX on CPU forgets what it has simulated",
}
READS = {"_local_scalar_dense", "equal", "is_nonzero"}
UNKNOWN_LENGTH = {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
FROM_HOST = {"lift_fresh"}
BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
METHODS = {"tolist", "numpy", "cpu", "item", "__array__", "__bool__", "__int__", "__float__", "__index__"}


@cache
def kind_of(code: CodeType) -> str:
    """Whether a frame of this code is torch's or the watch's own ("torch"), of the package ("own") or of another."""
    path, function = code.co_filename, code.co_name
    if "/torch/" in path or function.startswith("__torch_") or function in ("own_line", "note"):
        return "torch"
    own = path.startswith((*OWN, __file__)) and (Path(path).name, function) not in ONLY_ON_CPU
    return "own" if own else "other"


def own_line() -> str | None:
    """The innermost line of the package (or of a task in this file) that led here, unless other code is in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and kind_of(frame.f_code) == "torch":
        frame = frame.f_back
    if frame is None or kind_of(frame.f_code) == "other":
        return None
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"


class Watch:
    """Within it, operations asked for by the package are counted, and those that wait for a GPU noted."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.operations: Counter[str] = Counter()
        self._harmless: set[str] = set()

    def note(self, what: str) -> None:
        where = own_line()
        if where is not None:
            self.waits.append(f"{where}: {what}")

    def __enter__(self) -> Watch:
        watch = self

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = getattr(func, "__name__", "")
                if name in METHODS:
                    watch.note(name)
                # what these two do on a CPU only: check the classes, and make a tensor of a number
                harmless = {"one_hot": READS, "__setitem__": FROM_HOST}.get(name, set())
                watch._harmless = set() if name == "one_hot" and len(args) + len(kwargs or {}) == 1 else harmless
                try:
                    return func(*args, **(kwargs or {}))
                finally:
                    watch._harmless = set()

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = func.overloadpacket.__name__
                where = own_line()
                if where is not None:
                    watch.operations[where] += 1
                masks = name in BY_INDEX and any(
                    isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
                )
                if masks or name in (READS | UNKNOWN_LENGTH | FROM_HOST) - watch._harmless:
                    watch.note(f"{name}{' by a mask' if masks else ''}")
                return func(*args, **(kwargs or {}))

        self._modes = (Operations(), Functions())
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exception)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tensors, "reads_wait", lambda device: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def watched(env: Any, steps: int) -> tuple[Watch, Watch]:
    """Some steps and two partial resets of an environment that has done all that is done only once."""
    n = base(env).num_envs
    env.reset(seed=0)
    env.step(torch.zeros(env.action_space.shape))
    env.reset(options={"env_idx": torch.tensor([0])})
    stepping, resetting = Watch(), Watch()
    for action in random_actions(env, steps, seed=1):
        with stepping:
            env.step(action)
    for index in ([n - 1], [0, 1]):
        env_idx = torch.tensor(index)
        with resetting:
            env.reset(options={"env_idx": env_idx})
    return stepping, resetting


@pytest.mark.parametrize("env_id", MECHANICS)
def test_nothing_waits_and_nothing_loops_over_environments(env_id: str) -> None:
    """In a step and a partial reset; the operations are as many for 5 environments as for 3."""
    counts = []
    for n in (3, 5):
        held: Any = {"arm": "held"} if mikasa_robo.CATALOG[env_id].response else {}
        made = gym.make(env_id, num_envs=n, obs_mode="state+objects+oracle", sim_backend="physx_cpu", **held)
        stepping, resetting = watched(made, steps=2)
        assert not Counter(stepping.waits), "in a step"
        assert not Counter(resetting.waits), "in a partial reset"
        assert len(stepping.operations) > 50, "else nothing was watched"
        assert len(resetting.operations) > 50
        counts.append((stepping.operations, resetting.operations))
        made.close()
    assert counts[0] == counts[1]


@pytest.mark.parametrize("env_id", ["RotateLenientPos-v0", "TakeItBack-v0"])
def test_an_episode_that_begins_with_a_grasp_waits_for_nothing(env_id: str) -> None:
    made = gym.make(env_id, num_envs=3, obs_mode="state", sim_backend="physx_cpu", start_grasped=True)
    stepping, resetting = watched(made, steps=2)
    assert not Counter(stepping.waits)
    assert not Counter(resetting.waits)
    made.close()


class Reading(RememberColor):
    """A task that waits in each of the ways that `Watch` has to see."""

    way = ""

    def update_state(self, s: Any, data: StepData, touching: Tensor) -> None:
        super().update_state(s, data, touching)
        flags, values = touching.any(dim=1), data.tcp
        if self.way == "any":
            if touching.any():
                s.mistaken = s.mistaken.clone()
        elif self.way == "item":
            values.sum().item()
        elif self.way == "float":
            float(values[0, 0])
        elif self.way == "tolist":
            values.tolist()
        elif self.way == "numpy":
            values.numpy()
        elif self.way == "cpu":
            values.cpu()
        elif self.way == "mask":
            values[s.mistaken]
        elif self.way == "write by a mask":
            s.held[flags] = torch.zeros_like(s.held[:1, 0])
        elif self.way == "nonzero":
            flags.nonzero()
        elif self.way == "unique":
            s.target.unique()
        elif self.way == "from host":
            torch.tensor([0.1, 0.2], device=values.device)
        elif self.way == "new_tensor":
            values.new_tensor([0.1, 0.2])
        elif self.way == "equal":
            torch.equal(flags, flags)
        elif self.way == "one_hot":
            torch.nn.functional.one_hot(s.target)
        elif self.way == "loop":
            for row in values:
                row.sum()


@pytest.fixture(scope="module")
def reading() -> Iterator[tuple[Reading, Reading]]:
    envs = [Reading(n=3, num_envs=n, cue_steps=2, delay_steps=1, response_steps=50) for n in (3, 5)]
    yield envs[0], envs[1]
    for env in envs:
        env.close()


WAYS = ["any", "item", "float", "tolist", "numpy", "cpu", "mask", "write by a mask", "nonzero", "unique", "from host"]


@pytest.mark.parametrize("way", [*WAYS, "new_tensor", "equal", "one_hot"])
def test_a_task_that_waits_is_found(reading: tuple[Reading, Reading], way: str) -> None:
    env, _ = reading
    env.way = way
    stepping, resetting = watched(env, steps=1)
    assert stepping.waits, way
    assert all("test_host_reads.py" in line and "update_state" in line for line in stepping.waits)
    assert not resetting.waits


def test_a_task_that_loops_is_found(reading: tuple[Reading, Reading]) -> None:
    counts = []
    for env in reading:
        env.way = "loop"
        stepping, _ = watched(env, steps=1)
        assert not stepping.waits
        counts.append(stepping.operations)
    assert counts[0] != counts[1]
