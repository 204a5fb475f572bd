"""The tensor API is as strict as the GPU's: writes wait for apply, reads for fetch, and debug mode says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sapien
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import body_velocities, pick_cube
from torch import Tensor

from mikasa_robo.sim.buffers import BodyData, Buffers
from mikasa_robo.sim.env import DEBUG_VARIABLE
from mikasa_robo.sim.physx import GpuApiMisuse

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

UP = torch.tensor([0.0, 0.0, 0.3])


@pytest.fixture
def loose() -> Iterator[BaseEnv]:
    """An env that does what a GPU would do, without complaint."""
    env = pick_cube(sim_debug=False)
    yield env
    env.close()


@pytest.fixture
def strict() -> Iterator[BaseEnv]:
    """An env that raises on what is undefined on a GPU."""
    env = pick_cube(sim_debug=True)
    yield env
    env.close()


def cube_position(env: BaseEnv) -> Tensor:
    """Where the cubes are in the simulation itself, past every buffer."""
    env.scene.px._finish_steps()
    return torch.stack([torch.from_numpy(np.array(entity.pose.p)) for entity in env.cube._objs])


def joint_positions(env: BaseEnv) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(a.qpos)) for a in env.agent.robot._objs])


def hand_position(env: BaseEnv) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(link.entity_pose.p)) for link in env.agent.tcp._objs])


def raised(env: BaseEnv) -> Tensor:
    """Poses of the cubes, lifted, each by another amount."""
    pose = env.cube.pose.raw_pose.clone()
    pose[:, :3] += UP * torch.arange(1, 1 + env.num_envs)[:, None]
    return pose


# ---------------------------------------------------------------------- writes wait for their apply
def test_a_pose_stays_in_its_buffer_until_it_is_applied(loose: BaseEnv) -> None:
    before, new = cube_position(loose), raised(loose)
    loose.cube.set_pose(new)
    assert torch.equal(loose.cube.pose.raw_pose, new), "the buffer itself shows what was written"
    assert torch.equal(cube_position(loose), before)
    for other in ("articulation_qpos", "articulation_root_pose", "articulation_target_position"):
        getattr(loose.scene.px, f"gpu_apply_{other}")()
    assert torch.equal(cube_position(loose), before), "applied by another buffer's call"
    loose.scene.px.gpu_apply_rigid_dynamic_data()
    assert torch.equal(cube_position(loose), new[:, :3])


def test_a_write_of_one_row_moves_one_env(loose: BaseEnv) -> None:
    before, new = cube_position(loose), raised(loose)
    loose.scene._reset_mask[:] = torch.tensor([False, False, True, False])
    loose.cube.set_pose(new[2:3])
    loose.scene._reset_mask[:] = True
    loose.scene.px.gpu_apply_rigid_dynamic_data()
    assert torch.equal(cube_position(loose)[[0, 1, 3]], before[[0, 1, 3]])
    assert torch.equal(cube_position(loose)[2], new[2, :3])


def test_a_velocity_and_a_joint_position_stay_until_applied(loose: BaseEnv) -> None:
    px, robot = loose.scene.px, loose.agent.robot
    loose.cube.set_linear_velocity(UP.expand(4, 3))
    assert not any(body.linear_velocity.any() for body in loose.cube._bodies)
    before = joint_positions(loose)
    robot.set_qpos(robot.get_qpos() + 0.01)
    assert torch.equal(joint_positions(loose), before)
    robot.set_qvel(torch.full_like(robot.get_qvel(), 0.5))
    px.gpu_apply_articulation_qpos()
    assert torch.equal(joint_positions(loose), before + 0.01)
    assert not any(np.any(a.qvel) for a in robot._objs)
    px.gpu_apply_articulation_qvel()
    assert all((np.asarray(a.qvel) == 0.5).all() for a in robot._objs)
    px.gpu_apply_rigid_dynamic_data()
    assert all(np.allclose(body.linear_velocity, UP) for body in loose.cube._bodies)


def test_a_drive_target_and_a_root_pose_stay_until_applied(loose: BaseEnv) -> None:
    px, robot = loose.scene.px, loose.agent.robot
    target = robot.get_qpos()[:, 0] + 0.1
    joint = robot.active_joints[0]
    before = [float(a.active_joints[0].drive_target[0]) for a in robot._objs]
    joint.set_drive_target(target)
    assert [float(a.active_joints[0].drive_target[0]) for a in robot._objs] == before
    px.gpu_apply_articulation_target_position()
    assert [float(a.active_joints[0].drive_target[0]) for a in robot._objs] == target.tolist()

    root = robot.pose.raw_pose.clone()
    root[:, 0] += 0.25
    was = [a.root_pose.p[0] for a in robot._objs]
    robot.set_pose(root)
    assert [a.root_pose.p[0] for a in robot._objs] == was
    px.gpu_apply_articulation_root_pose()
    assert np.allclose([a.root_pose.p[0] for a in robot._objs], root[:, 0])


# ---------------------------------------------------------------------- reads wait for their fetch
def test_after_a_step_buffers_keep_old_values_until_fetched(loose: BaseEnv) -> None:
    px, robot = loose.scene.px, loose.agent.robot
    loose.cube.set_pose(raised(loose))
    robot.set_qvel(torch.full_like(robot.get_qvel(), 0.5))
    px.gpu_apply_rigid_dynamic_data()
    px.gpu_apply_articulation_qvel()
    old = {"cube": loose.cube.pose.p.clone(), "qpos": robot.get_qpos().clone(), "tcp": loose.agent.tcp.pose.p.clone()}
    for _ in range(5):
        px.step()
    assert torch.equal(loose.cube.pose.p, old["cube"])
    assert torch.equal(robot.get_qpos(), old["qpos"])
    assert torch.equal(loose.agent.tcp.pose.p, old["tcp"])
    px.gpu_fetch_rigid_dynamic_data()
    assert (loose.cube.pose.p[:, 2] < old["cube"][:, 2]).all()
    assert torch.equal(loose.cube.pose.p, cube_position(loose))
    assert torch.equal(robot.get_qpos(), old["qpos"]), "fetched by another buffer's call"
    px.gpu_fetch_articulation_qpos()
    assert torch.equal(robot.get_qpos(), joint_positions(loose))
    assert not torch.equal(robot.get_qpos(), old["qpos"])
    assert torch.equal(loose.agent.tcp.pose.p, old["tcp"])
    px.gpu_fetch_articulation_link_pose()
    assert torch.equal(loose.agent.tcp.pose.p, hand_position(loose))


READS: dict[str, tuple[Callable[[BaseEnv], Any], str]] = {
    "pose": (lambda env: env.cube.pose, "gpu_fetch_rigid_dynamic_data()"),
    "velocity": (lambda env: env.cube.linear_velocity, "gpu_fetch_rigid_dynamic_data()"),
    "link": (lambda env: env.agent.tcp.pose, "gpu_fetch_articulation_link_pose()"),
    "qpos": (lambda env: env.agent.robot.qpos, "gpu_fetch_articulation_qpos()"),
    "qvel": (lambda env: env.agent.robot.qvel, "gpu_fetch_articulation_qvel()"),
    "write": (lambda env: env.cube.set_pose(torch.tensor([[0.0, 0, 1, 1, 0, 0, 0]])), "gpu_fetch_rigid_dynamic_data()"),
    "write qpos": (lambda env: env.agent.robot.set_qpos(torch.zeros(4, 9)), "gpu_fetch_articulation_qpos()"),
}


@pytest.mark.parametrize("read", READS)
def test_debug_names_the_fetch_that_is_missing(strict: BaseEnv, read: str) -> None:
    action, call = READS[read]
    strict.scene.px.step()
    with pytest.raises(GpuApiMisuse, match="stale after a step") as error:
        action(strict)
    assert call in str(error.value)
    strict.scene._gpu_fetch_all()
    action(strict)


# ---------------------------------------------------------------------- link poses follow on request only
def test_link_poses_wait_for_the_kinematics_update(loose: BaseEnv) -> None:
    px, robot, tcp = loose.scene.px, loose.agent.robot, loose.agent.tcp
    before = tcp.pose.p.clone()
    new = robot.get_qpos().clone()
    new[1, 0] += 0.5
    robot.set_qpos(new)
    px.gpu_apply_articulation_qpos()
    px.gpu_fetch_articulation_link_pose()
    assert torch.equal(tcp.pose.p, before), "link poses followed without gpu_update_articulation_kinematics"
    px.gpu_update_articulation_kinematics()
    assert torch.equal(tcp.pose.p, before), "the update alone fetches nothing"
    px.gpu_fetch_articulation_link_pose()
    assert torch.equal(tcp.pose.p[[0, 2, 3]], before[[0, 2, 3]])
    assert (tcp.pose.p[1] - before[1]).norm() > 0.1
    assert torch.equal(tcp.pose.p, hand_position(loose))


@pytest.mark.parametrize("what", ["qpos", "root_pose"])
def test_debug_asks_for_the_kinematics_update(strict: BaseEnv, what: str) -> None:
    px, robot = strict.scene.px, strict.agent.robot
    if what == "qpos":
        robot.set_qpos(robot.get_qpos() + 0.01)
    else:
        pose = robot.pose.raw_pose.clone()
        pose[:, 0] += 0.1
        robot.set_pose(pose)
    getattr(px, f"gpu_apply_articulation_{what}")()
    with pytest.raises(GpuApiMisuse, match=r"gpu_update_articulation_kinematics\(\)"):
        px.gpu_fetch_articulation_link_pose()
    px.gpu_update_articulation_kinematics()
    px.gpu_fetch_articulation_link_pose()
    px.gpu_fetch_articulation_link_velocity()
    assert torch.equal(strict.agent.tcp.pose.p, hand_position(strict))


def test_rows_counted_from_the_end_have_current_velocities() -> None:
    """The bodies' buffer is the start of a longer one, which ends with the links."""
    layout: Any = SimpleNamespace(num_bodies=2, num_links=1, num_articulations=0, max_dof=0, max_links=0)
    buffers = Buffers(layout, False, lambda rows: np.ones((len(rows), 6), dtype=np.float32), lambda into: None)
    buffers.fetch_velocities(slice(0, 2))
    seen = buffers.arrays()["cuda_rigid_dynamic_data"].torch()[torch.tensor([-1])]
    assert seen[0, 7:].tolist() == [1.0] * 6


# ---------------------------------------------------------------------- writes that would be lost
WRITES: dict[str, tuple[Callable[[BaseEnv], Any], str]] = {
    "pose": (lambda env: env.cube.set_pose(raised(env)), "rigid_dynamic_data"),
    "velocity": (lambda env: env.cube.set_linear_velocity(UP.expand(4, 3)), "rigid_dynamic_data"),
    "qpos": (lambda env: env.agent.robot.set_qpos(env.agent.robot.get_qpos() + 0.01), "articulation_qpos"),
    "qvel": (lambda env: env.agent.robot.set_qvel(torch.ones(4, 9)), "articulation_qvel"),
    "target": (
        lambda env: env.agent.robot.active_joints[0].set_drive_target(torch.ones(4)),
        "articulation_target_qpos",
    ),
}


@pytest.mark.parametrize("what", WRITES)
def test_debug_forbids_a_step_that_would_lose_a_write(strict: BaseEnv, what: str) -> None:
    write, group = WRITES[what]
    write(strict)
    with pytest.raises(GpuApiMisuse, match=f"step while a write to {group}"):
        strict.scene.px.step()
    strict.scene._gpu_apply_all()
    strict.scene.px.step()


@pytest.mark.parametrize("what", WRITES)
def test_debug_forbids_a_fetch_that_would_lose_a_write(strict: BaseEnv, what: str) -> None:
    write, group = WRITES[what]
    write(strict)
    with pytest.raises(GpuApiMisuse, match=f"gpu_fetch_{group} while a write"):
        getattr(strict.scene.px, f"gpu_fetch_{group}")()


def test_an_unapplied_write_is_lost_as_on_a_gpu(loose: BaseEnv) -> None:
    before = cube_position(loose)
    loose.cube.set_pose(raised(loose))
    loose.scene.px.gpu_fetch_rigid_dynamic_data()
    assert torch.equal(loose.cube.pose.p, before)


def test_debug_forbids_applying_a_stale_buffer(strict: BaseEnv) -> None:
    data = strict.scene.px.cuda_rigid_body_data.torch()
    strict.scene.px.step()
    data[:, 0] += 1.0
    with pytest.raises(GpuApiMisuse, match=r"Call gpu_fetch_rigid_dynamic_data\(\) first"):
        strict.scene.px.gpu_apply_rigid_dynamic_data()


def test_applying_a_stale_buffer_undoes_the_step_as_on_a_gpu(loose: BaseEnv) -> None:
    px = loose.scene.px
    loose.cube.set_pose(raised(loose))
    px.gpu_apply_rigid_dynamic_data()
    start = cube_position(loose)
    for _ in range(5):
        px.step()
    assert (cube_position(loose)[:, 2] < start[:, 2]).all()
    px.gpu_apply_rigid_dynamic_data()
    assert torch.equal(cube_position(loose), start)


# ---------------------------------------------------------------------- the life of the buffers
def test_gpu_init_twice(strict: BaseEnv) -> None:
    with pytest.raises(GpuApiMisuse, match="gpu_init was called twice"):
        strict.scene.px.gpu_init()


def test_a_body_that_came_after_gpu_init(strict: BaseEnv) -> None:
    builder = strict.scene.create_actor_builder()
    builder.add_box_collision(half_size=[0.02, 0.02, 0.02])
    builder.initial_pose = sapien.Pose([0, 0, 1])
    with pytest.raises(GpuApiMisuse, match=r"late.*added after gpu_init.*_load_scene"):
        _ = builder.build(name="late").pose


def test_the_debug_switch_is_an_environment_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, debug in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(DEBUG_VARIABLE, value)
        env = pick_cube(num_envs=2, sim_debug=None)
        assert env.scene.px.debug is debug
        env.close()


# ---------------------------------------------------------------------- velocities, read when somebody looks
READERS: dict[str, Callable[[Tensor, int], Any]] = {
    # each gives the (links, 6) velocities, or a part that the same function picks out of a plain tensor
    "clone": lambda d, n: d.clone()[n:, 7:],
    "ellipsis": lambda d, n: d[..., 7:][n:],
    "columns": lambda d, n: d[n:, 7:13],
    "linear only": lambda d, n: d[n:, 7:10],
    "one column": lambda d, n: d[n:, 9],
    "across": lambda d, n: d[n:, 5:9],
    "negative slice": lambda d, n: d[n:, -6:],
    "negative start and stop": lambda d, n: d[n:, -3:-1],
    "stride": lambda d, n: d[n:, ::2],
    "row": lambda d, n: d[n + 3],
    "last row": lambda d, n: d[-1],
    "row list": lambda d, n: d[[n, n + 1]],
    "row tensor": lambda d, n: d[torch.tensor([n + 2, n + 5])],
    "row tensor, columns": lambda d, n: d[torch.tensor([n + 2, n + 5]), 7:10],
    "row tensor, column list": lambda d, n: d[torch.tensor([n + 2, n + 5]), [8, 12]],
    "boolean mask": lambda d, n: d[torch.arange(len(d)) >= n],
    "full mask": lambda d, n: d[torch.ones(d.shape, dtype=torch.bool)],
    "new axis": lambda d, n: d[None, : n + 4],
    "new axis, first rows": lambda d, n: d.flip(0)[None, :7],
    "numpy": lambda d, n: torch.from_numpy(d.numpy().copy()),
    "asarray": lambda d, n: torch.from_numpy(np.asarray(d).copy()),
    "dlpack": lambda d, n: torch.utils.dlpack.from_dlpack(d).clone(),
    "list": lambda d, n: torch.tensor(d.tolist()),
    "sum": lambda d, n: d.sum(),
    "transpose": lambda d, n: d.T,
    "iteration": lambda d, n: torch.stack(list(d)),
    "cat": lambda d, n: torch.cat([d, d]),
    "stack in a tuple": lambda d, n: torch.stack((d, d)),
    "keyword": lambda d, n: torch.add(input=d, other=0),
    "where": lambda d, n: torch.where(torch.ones(len(d), 1, dtype=torch.bool), d, torch.zeros(())),
    "gather": lambda d, n: d.gather(1, torch.full((len(d), 1), 8)),
    "index_select": lambda d, n: torch.index_select(d, 0, torch.tensor([n, n + 3])),
    "to": lambda d, n: d.to(torch.float64),
    "arithmetic": lambda d, n: 2 * d,
    "item": lambda d, n: torch.tensor(d[n + 3, 8].item()),
    "view then read": lambda d, n: d.view(-1).clone(),
}


@pytest.fixture(scope="module")
def moving() -> Iterator[BaseEnv]:
    env = pick_cube(sim_debug=False)
    yield env
    env.close()


def owed(env: BaseEnv) -> tuple[Tensor, Tensor]:
    """Steps, so that velocities are still to be read. Returns the buffer, and what SAPIEN's getters say it should hold."""
    px = env.scene.px
    px._buffers._velocities_at_once = False  # as if no memory had left torch in an earlier test
    env.step(torch.rand(env.num_envs, 8) * 2 - 1)
    assert px._buffers.velocities_pending.all(), "nothing is pending: this test would pass whatever the buffer does"
    expected = px._buffers.body_data.detach().clone()
    expected[:, 7:] = body_velocities(env)
    assert not torch.equal(expected, px._buffers.body_data)
    return px.cuda_rigid_body_data.torch(), expected


@pytest.mark.parametrize("reader", READERS)
def test_nobody_sees_old_velocities(moving: BaseEnv, reader: str) -> None:
    data, expected = owed(moving)
    n = moving.scene.px._layout.num_bodies
    result = READERS[reader](data, n)
    assert torch.equal(result, READERS[reader](expected, n))
    is_view = result.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
    assert isinstance(result, BodyData) == is_view, "only views need to be followed"


VIEWS: dict[str, Callable[[Tensor, int], Any]] = {
    # ways to hold on to the memory of the buffer
    "velocity columns": lambda d, n: d[:, 7:10],
    "view of a view": lambda d, n: d[:, 7:][n:],
    "a row": lambda d, n: d[n + 3],
    "one number": lambda d, n: d[n + 3, 8],
    "transpose": lambda d, n: d.T,
    "detached": lambda d, n: d.detach(),
    "flat": lambda d, n: d.view(-1),
    "reshaped": lambda d, n: d.reshape(-1, 13)[:, 7:],
    "split": lambda d, n: d.split([7, 6], dim=1)[1],
    "unbound": lambda d, n: d.unbind(1)[8],
    "iterated": lambda d, n: list(d)[n + 3],
    "as_strided": lambda d, n: d.as_strided((3,), (1,), 13 * (n + 3) + 7),
    "numpy": lambda d, n: d.numpy()[n:, 7:],
    "numpy of a view": lambda d, n: d[n:, 7:].numpy(),
    "asarray": lambda d, n: np.asarray(d),
    "dlpack": lambda d, n: torch.utils.dlpack.from_dlpack(d),
    "storage": lambda d, n: torch.tensor(()).set_(d.untyped_storage(), 0, d.shape, (13, 1)),
}


def snapshot(held: Any) -> Tensor:
    return held.clone() if isinstance(held, Tensor) else torch.from_numpy(held.copy())


@pytest.mark.parametrize("hold", VIEWS)
def test_a_held_view_shows_later_fetches(moving: BaseEnv, hold: str) -> None:
    """On a GPU a view is the buffer's memory, whenever it was made."""
    data, expected = owed(moving)
    n = moving.scene.px._layout.num_bodies
    held = VIEWS[hold](data, n)
    before = snapshot(held)
    assert torch.equal(before, snapshot(VIEWS[hold](expected, n)))
    for _ in range(2):
        moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
        after = moving.scene.px._buffers.body_data.clone()
        after[:, 7:] = body_velocities(moving)
        now = snapshot(held)
        assert torch.equal(now, snapshot(VIEWS[hold](after, n)))
        assert not torch.equal(now, before)


def test_only_the_velocities_of_named_rows_are_read(moving: BaseEnv) -> None:
    data, expected = owed(moving)
    pending = moving.scene.px._buffers.velocities_pending
    last = len(pending) - 1
    rows = torch.tensor([[3, 20], [20, -1]])
    assert torch.equal(data[rows], expected[rows])
    assert np.flatnonzero(~pending).tolist() == [3, 20, last]
    cube = moving.cube._body_data_index
    assert torch.equal(moving.cube.linear_velocity, expected[cube, 7:10])
    assert torch.equal(moving.scene.px.cuda_rigid_dynamic_data.torch()[cube], expected[cube])
    assert int((~pending).sum()) == len({3, 20, last, *cube.tolist()})
    assert torch.equal(data, expected)
    assert not pending.any()


def test_a_fetch_overwrites_a_velocity_that_was_not_applied(moving: BaseEnv) -> None:
    """Also when nobody looks between the fetch and the next apply."""
    px, cube = moving.scene.px, moving.cube
    moving.step(torch.zeros(moving.num_envs, 8))
    before = [np.array(body.linear_velocity) for body in cube._bodies]
    cube.set_linear_velocity(torch.full((moving.num_envs, 3), 5.0))
    px.gpu_fetch_rigid_dynamic_data()
    px.gpu_apply_rigid_dynamic_data()
    assert np.array_equal([np.array(body.linear_velocity) for body in cube._bodies], before)
    assert torch.equal(cube.linear_velocity, torch.from_numpy(np.stack(before)))


@pytest.mark.parametrize("hold", ["velocity columns", "transpose", "a row", "split"])
def test_a_view_costs_nothing_until_it_is_read(moving: BaseEnv, hold: str) -> None:
    data, _ = owed(moving)
    held = VIEWS[hold](data, moving.scene.px._layout.num_bodies)
    moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
    assert moving.scene.px._buffers.velocities_pending.all()
    held.sum()
    assert not moving.scene.px._buffers.velocities_pending.any()


def test_writing_to_a_view_writes_to_the_buffer(moving: BaseEnv) -> None:
    data, expected = owed(moving)
    row = moving.scene.px._layout.num_bodies + 4
    view = data[:, 7:10]
    moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
    expected = moving.scene.px._buffers.body_data.clone()
    expected[:, 7:] = body_velocities(moving)
    view[row] = 2.0
    expected[row, 7:10] = 2.0
    assert torch.equal(data, expected)
    moving.reset(seed=0)


def test_joint_accelerations_are_there_when_they_are_asked_for(moving: BaseEnv) -> None:
    """Also in a tensor that was handed out before, and after the simulation was changed by hand."""
    px, robot = moving.scene.px, moving.agent.robot

    def actual() -> Tensor:
        return torch.stack([torch.from_numpy(np.array(a.qacc)) for a in robot._objs])

    for _ in range(2):
        moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
        accelerations = px.cuda_articulation_qacc.torch()
        assert accelerations.abs().max() > 0.1
        assert torch.equal(accelerations, actual())
    moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
    assert torch.equal(accelerations, actual()), "a held tensor does not show a later fetch"
    px._buffers._joint_accelerations_at_once = False  # as if the buffer had never been asked for
    moving.step(torch.rand(moving.num_envs, 8) * 2 - 1)
    expected = actual()
    robot.set_qvel(torch.zeros(moving.num_envs, 9))
    px.gpu_apply_articulation_qvel()
    assert torch.equal(px.cuda_articulation_qacc.torch(), expected)
    moving.reset(seed=0)


def test_comparing_the_buffer_brings_it_up_to_date(moving: BaseEnv) -> None:
    data, expected = owed(moving)
    assert torch.equal(data, expected)
    data, expected = owed(moving)
    assert torch.equal(expected, data)
    data, expected = owed(moving)
    assert torch.equal(other=expected, input=data)


def test_poses_do_not_pay_for_velocities(moving: BaseEnv) -> None:
    data, expected = owed(moving)
    assert torch.equal(data[torch.tensor([1, 20]), :7], expected[[1, 20], :7])
    assert torch.equal(moving.agent.tcp.pose.raw_pose, expected[moving.agent.tcp._body_data_index, :7])
    assert moving.scene.px._buffers.velocities_pending.all(), "reading poses read every link velocity: slow"


def test_link_velocities_through_maniskill(moving: BaseEnv) -> None:
    owed(moving)
    expected = torch.stack([torch.from_numpy(np.array(link.linear_velocity)) for link in moving.agent.tcp._objs])
    assert expected.any()
    assert torch.equal(moving.agent.tcp.linear_velocity, expected)
    owed(moving)
    expected = torch.stack([torch.from_numpy(np.array(link.angular_velocity)) for link in moving.agent.tcp._objs])
    assert torch.equal(moving.agent.tcp.angular_velocity, expected)


def test_writing_a_velocity_keeps_the_other_links(moving: BaseEnv) -> None:
    data, expected = owed(moving)
    row = moving.scene.px._layout.num_bodies + 4
    data[row, 7:10] = 1.0
    expected[row, 7:10] = 1.0
    assert torch.equal(data, expected)
    moving.reset(seed=0)
