"""``gpu_apply_*(index_buffer)`` applies the rows that are named, and only those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import pick_cube
from torch import Tensor

from mikasa_robo.sim.buffers import as_index_buffer
from mikasa_robo.sim.physx import GpuApiMisuse

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

N = 4
ROWS = [1, 3]
OTHERS = [0, 2]


@pytest.fixture(scope="module")
def shared() -> Iterator[BaseEnv]:
    env = pick_cube(num_envs=N)
    yield env
    env.close()


@pytest.fixture(params=[False, True], ids=["loose", "strict"])
def env(request: pytest.FixtureRequest, shared: BaseEnv) -> BaseEnv:
    """A fresh episode, with and without debug mode."""
    shared.scene.px._strictness.debug = shared.scene.px.debug = False
    shared.scene._needs_fetch = False
    shared.reset(seed=1)
    shared.scene.px._strictness.debug = shared.scene.px.debug = request.param
    return shared


def int32(rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


# ---------------------------------------------------------------------- what each call writes, and how it is read back
def write_pose(env: BaseEnv) -> None:
    pose = env.cube.pose.raw_pose.clone()
    pose[:, 2] += 0.5
    env.cube.set_pose(pose)


def write_root_pose(env: BaseEnv) -> None:
    pose = env.agent.robot.pose.raw_pose.clone()
    pose[:, 0] += 0.5
    env.agent.robot.set_pose(pose)


def cube_heights(env: BaseEnv) -> Tensor:
    return torch.tensor([entity.pose.p[2] for entity in env.cube._objs])


def roots(env: BaseEnv) -> Tensor:
    return torch.tensor([a.root_pose.p[0] for a in env.agent.robot._objs])


def joints(name: str) -> Any:
    def read(env: BaseEnv) -> Tensor:
        return torch.stack([torch.from_numpy(np.array(getattr(a, name))) for a in env.agent.robot._objs])

    return read


def targets(name: str) -> Any:
    def read(env: BaseEnv) -> Tensor:
        return torch.tensor([float(getattr(a.active_joints[0], name)[0]) for a in env.agent.robot._objs])

    return read


def add(buffer: str) -> Any:
    def write(env: BaseEnv) -> None:
        getattr(env.scene.px, f"cuda_articulation_{buffer}").torch()[:, 0] += 0.25

    return write


CALLS: dict[str, tuple[Any, Any, bool]] = {
    # call: what is written before it, how the simulation is read, whether rows of articulations are named
    "rigid_dynamic_data": (write_pose, cube_heights, False),
    "articulation_root_pose": (write_root_pose, roots, True),
    "articulation_qpos": (add("qpos"), joints("qpos"), True),
    "articulation_qvel": (add("qvel"), joints("qvel"), True),
    "articulation_qf": (add("qf"), joints("qf"), True),
    "articulation_target_position": (add("target_qpos"), targets("drive_target"), True),
    "articulation_target_velocity": (add("target_qvel"), targets("drive_velocity_target"), True),
}
BY_ROW = ("rigid_dynamic_data", "articulation_root_pose")
"""The calls for which SAPIEN looks into the index buffer; of the others it takes the length only."""


def index_of(env: BaseEnv, call: str, envs: list[int]) -> Tensor:
    rows = env.agent.robot._data_index if CALLS[call][2] else env.cube._body_data_index
    return rows[envs].to(torch.int32)


@pytest.mark.parametrize("call", CALLS)
def test_only_the_named_rows_are_applied(env: BaseEnv, call: str) -> None:
    """The other writes stay pending: a later call applies them, and in debug mode a step raises until then."""
    write, read, _ = CALLS[call]
    apply = getattr(env.scene.px, f"gpu_apply_{call}")
    debug = env.scene.px.debug
    named, others = (ROWS, OTHERS) if call in BY_ROW or not debug else ([0, 1], [2, 3])
    before = read(env)
    write(env)
    apply(as_index_buffer(index_of(env, call, named)))
    now = read(env)
    assert torch.equal(now[others], before[others])
    assert (now[named] != before[named]).reshape(len(named), -1).any(dim=1).all()
    if debug:
        with pytest.raises(GpuApiMisuse, match=r"step while a write to \w+ waits"):
            env.scene.px.step()
    apply()
    after = read(env)
    assert torch.equal(after[named], now[named])
    assert (after[others] != before[others]).reshape(len(others), -1).any(dim=1).all()
    env.scene.px.step()


@pytest.mark.parametrize("call", [call for call in CALLS if call not in BY_ROW])
def test_debug_forbids_joint_rows_that_sapien_would_not_look_at(env: BaseEnv, call: str) -> None:
    apply = getattr(env.scene.px, f"gpu_apply_{call}")
    apply(index_of(env, call, [1, 0, 2]))
    if not env.scene.px.debug:
        apply(index_of(env, call, ROWS))
        return
    with pytest.raises(GpuApiMisuse, match=rf"gpu_apply_{call} with rows \[1, 3\].*first 2 articulations"):
        apply(index_of(env, call, ROWS))


def test_rows_that_were_not_written_are_left_alone(env: BaseEnv) -> None:
    """Naming every row applies those that differ: setting a pose again would cost the last bit."""
    px: Any = env.scene.px
    calls: list[int] = []
    original = px._writer.rigid_data

    def recorded(rows: Any, values: Any, changed: Any) -> None:
        calls.extend(rows.tolist())
        original(rows, values, changed)

    px._writer.rigid_data = recorded
    data = px.cuda_rigid_body_data.torch()
    row = int(env.cube._body_data_index[2])
    data[row, 2] += 0.5
    px.gpu_apply_rigid_dynamic_data(torch.arange(px._layout.num_bodies, dtype=torch.int32))
    del px._writer.rigid_data
    assert calls == [row]


def test_a_stale_buffer_sets_back_only_the_named_rows(env: BaseEnv) -> None:
    px: Any = env.scene.px
    write_pose(env)
    px.gpu_apply_rigid_dynamic_data()
    start = cube_heights(env)
    for _ in range(5):
        px.step()
    if px.debug:
        with pytest.raises(GpuApiMisuse, match="stale after a step"):
            px.gpu_apply_rigid_dynamic_data(index_of(env, "rigid_dynamic_data", ROWS))
        return
    px.gpu_apply_rigid_dynamic_data(index_of(env, "rigid_dynamic_data", ROWS))
    heights = cube_heights(env)
    assert torch.equal(heights[ROWS], start[ROWS])
    assert (heights[OTHERS] != start[OTHERS]).all()


def test_rows_may_be_named_twice_or_not_at_all(env: BaseEnv) -> None:
    px: Any = env.scene.px
    before = cube_heights(env)
    write_pose(env)
    px.gpu_apply_rigid_dynamic_data(int32([]))
    assert torch.equal(cube_heights(env), before)
    index = index_of(env, "rigid_dynamic_data", [3, 1, 3])
    px.gpu_apply_rigid_dynamic_data(index)
    px.gpu_apply_rigid_dynamic_data(index.numpy())
    now = cube_heights(env)
    assert torch.equal(now[OTHERS], before[OTHERS])
    assert (now[ROWS] > before[ROWS] + 0.4).all()
    px.gpu_apply_rigid_dynamic_data()


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (torch.tensor([0, 1]), TypeError, "int32, not int64: use index.to(torch.int32)"),
        (torch.tensor([True, False]), TypeError, "not bool"),
        (torch.tensor([0.0]), TypeError, "not float32"),
        ([0, 1], TypeError, "not list"),
        (torch.zeros(2, 2, dtype=torch.int32), ValueError, "shape (b,), not (2, 2)"),
        (torch.zeros(4, dtype=torch.int32)[::2], ValueError, "contiguous"),
        (torch.tensor([0, 400], dtype=torch.int32), IndexError, "[0, 400]"),
        (torch.tensor([-1], dtype=torch.int32), IndexError, "outside 0…"),
    ],
)
@pytest.mark.parametrize("call", ["rigid_dynamic_data", "articulation_qpos", "articulation_target_position"])
def test_a_bad_index_buffer_is_refused_and_nothing_moves(
    env: BaseEnv, call: str, index: Any, error: type[Exception], words: str
) -> None:
    write, read, _ = CALLS[call]
    before = read(env)
    write(env)
    with pytest.raises(error) as raised:
        getattr(env.scene.px, f"gpu_apply_{call}")(index)
    assert words in str(raised.value)
    assert str(raised.value).startswith(f"gpu_apply_{call}")
    assert torch.equal(read(env), before)
    getattr(env.scene.px, f"gpu_apply_{call}")()
