"""Many CPU PhysX scenes behind the tensor API of SAPIEN's GPU system.

ManiSkill's batched code path (and ours) reads and writes the tensors of ``sapien.physx.PhysxGpuSystem`` and calls its
``gpu_apply_*`` and ``gpu_fetch_*``. `BatchedCpuPhysx` offers the same tensors and calls on CPU memory over N ordinary
``PhysxCpuSystem``s, so this code runs unchanged, N environments at a time, on a machine without a GPU.

It is as strict as the GPU system: a write stays in its buffer until the matching ``gpu_apply_*``; after a step the
buffers keep their old values until the matching ``gpu_fetch_*``; link poses follow a written qpos only after
``gpu_update_articulation_kinematics``. With ``debug=True`` the patterns that are undefined on a GPU raise `GpuApiMisuse`.

`RowLayout` says which row of a buffer belongs to which body. A row of body data is position (3, m), quaternion (4, wxyz),
linear velocity (3, m/s), angular velocity (3, rad/s).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sapien
import sapien.physx as physx

from .buffers import Buffers, CpuArray, rows_in
from .contacts import ContactQuery, ContactReader
from .cpu_systems import CpuSystems
from .forcing import ForcedRows
from .rows import RowLayout
from .state_reader import StateReader
from .state_writer import StateWriter
from .strictness import (
    FORCES,
    LINK_POSE,
    LINK_VELOCITY,
    MOVED_BY_A_STEP,
    QACC,
    QF,
    QPOS,
    QVEL,
    RIGID,
    TARGET_QPOS,
    TARGET_QVEL,
    GpuApiMisuse,
)

__all__ = ["BatchedCpuPhysx", "ContactQuery", "CpuArray", "GpuApiMisuse"]


class BatchedCpuPhysx(CpuSystems):
    """N CPU systems with the interface of one GPU system.

    ``gpu_apply_*(index_buffer)`` applies only the rows that the buffer names, (b,) int32, contiguous. All other rows keep
    their pending writes. As in SAPIEN 3.0, the buffer names rows for rigid bodies and for root poses and velocities; for
    qpos, qvel, qf and targets a GPU uses only its length, so debug mode raises unless it names the first b articulations.

    Args:
        scenes: the sub-scenes, each with a ``PhysxCpuSystem`` of its own.
        threads: how many threads step them.
        debug: raise `GpuApiMisuse` on patterns that are undefined on a GPU. Costs a comparison of every buffer a step.
    """

    cuda_rigid_body_data: CpuArray
    cuda_rigid_body_force: CpuArray
    cuda_rigid_body_torque: CpuArray
    cuda_rigid_dynamic_data: CpuArray
    cuda_rigid_dynamic_force: CpuArray
    cuda_rigid_dynamic_torque: CpuArray
    cuda_articulation_qpos: CpuArray
    cuda_articulation_qvel: CpuArray
    cuda_articulation_qacc: CpuArray
    cuda_articulation_qf: CpuArray
    cuda_articulation_target_qpos: CpuArray
    cuda_articulation_target_qvel: CpuArray
    cuda_articulation_link_incoming_joint_forces: CpuArray

    def __init__(self, scenes: list[sapien.Scene], threads: int, debug: bool) -> None:
        super().__init__(scenes, threads)
        self.debug = debug

    # isinstance(px, PhysxGpuSystem) is how ManiSkill asks whether to use the tensor API (see sim/internals.py)
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return physx.PhysxGpuSystem

    # ------------------------------------------------------------------ start and end
    def gpu_init(self) -> None:
        """Allocates the buffers. Bodies added afterwards are not part of them, as on a GPU."""
        if self._pool is not None:
            raise GpuApiMisuse(
                "gpu_init was called twice: a new scene needs a new system (env.reset with reconfigure=True)"
            )
        self._layout = RowLayout(self._scenes)
        self._reader, self._writer = StateReader(self._layout), StateWriter(self._layout)
        self._buffers = Buffers(
            self._layout, self.debug, self._reader.velocities, self._reader.read_joint_accelerations
        )
        self._strictness = self._buffers.strictness
        self._contacts = ContactReader(self._layout, self._systems, self._strictness)
        of_articulation = self._layout.articulation_scene
        self._forced = ForcedRows(
            {RIGID: self._layout.body_scene}
            | dict.fromkeys((QPOS, QVEL, QF, LINK_POSE, LINK_VELOCITY), of_articulation),
            len(self._scenes),
        )
        for name, array in self._buffers.arrays().items():
            setattr(self, name, array)
        self._kinematics_outdated = np.zeros(self._layout.num_articulations, dtype=bool)
        # articulations of which a drive target was set since the last step
        self._woken = np.zeros(self._layout.num_articulations, dtype=bool)
        self._start()
        self._fetch_everything()

    def row_of(self, thing: Any) -> int:
        """The row of a body or link in ``cuda_rigid_body_data``, of an articulation in ``cuda_articulation_*``."""
        return self._layout.row_of(thing)

    # ------------------------------------------------------------------ stepping
    def _before_step(self) -> None:
        self._strictness.before_step()
        self._buffers.forget_delayed_fetches()
        self._kinematics_outdated[:] = False
        self._woken[:] = False

    def _forget_scenes(self) -> None:
        self._reader.forget()
        self._contacts.forget()

    def _read_scene(self, scene: int) -> None:
        # now, as the scene is in the cache: once other scenes have pushed it out, this takes several times as long
        self._contacts.read(scene)

    def stop(self, scenes: Iterable[int]) -> None:
        """Sets all velocities of these scenes to zero in the buffers. They wait for their ``gpu_apply_*``."""
        self._finish_steps()
        stopped = np.zeros(len(self._scenes), dtype=bool)
        stopped[list(scenes)] = True
        self._buffers.stop(stopped[self._layout.row_scene], stopped[self._layout.articulation_scene])

    def _after_renewal(self, scenes: list[int], stayed: list[int]) -> None:
        self._reader.forget(scenes)
        if stayed:
            self._reader.forget_layout()
        self._contacts.forget(scenes)

    def forcing(self, scenes: Iterable[int]) -> contextlib.AbstractContextManager[None]:
        """A block in which every row of these scenes is applied, changed or not; see `ForcedRows`."""
        return self._forced.scenes(scenes)

    # ------------------------------------------------------------------ apply
    def _rows_to_apply(
        self, group: str, changed: np.ndarray, index: Any, first_only: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that a ``gpu_apply_*`` sets, and for each whether all its parts are set, changed or not."""
        named = None if index is None else rows_in(index, len(changed), f"gpu_apply_{group}", first_only and self.debug)
        self._finish_steps()
        # on a GPU a stale buffer overwrites what the step has done
        stale = self._strictness.before_apply(group)
        whole = np.ones(len(changed), dtype=bool) if stale else self._forced.mask(group)
        wanted = changed | whole
        rows = np.flatnonzero(wanted) if named is None else named[wanted[named]]
        whole = whole[rows]
        self._forced.applied(group, rows[whole])
        return rows, whole

    def gpu_apply_rigid_dynamic_data(self, index_buffer: Any = None) -> None:
        """Poses of rigid bodies and velocities of the dynamic ones, from the buffer into the simulation."""
        layout, n = self._layout, self._layout.num_bodies
        now, applied = self._buffers.body_data[:n].numpy(), self._buffers.applied_bodies[:n].numpy()
        differs = now != applied
        rows, whole = self._rows_to_apply(RIGID, differs.any(axis=1), index_buffer)
        if not len(rows):
            return
        self._buffers.read_velocities(rows[whole])
        parts = np.logical_or.reduceat(differs[rows], (0, 7, 10), axis=1) | whole[:, None]
        self._writer.rigid_data(rows, now[rows], parts)
        applied[rows] = now[rows]
        self._reader.forget(set(layout.body_scene[rows].tolist()))

    def _apply_joints(self, group: str, setter: str, index: Any) -> np.ndarray:
        now, applied = self._buffers.q[group].numpy(), self._buffers.applied_q[group].numpy()
        differs = (now != applied).any(axis=1)
        rows, _ = self._rows_to_apply(group, differs, index, first_only=True)
        if len(rows):
            self._before_articulations_change(rows)
            self._writer.joint_values(setter, rows, now[rows])
            applied[rows] = now[rows]
        return rows[differs[rows]]

    def _before_articulations_change(self, rows: np.ndarray) -> None:
        starts, links = self._layout.link_start, self._layout.links
        self._buffers.read_velocities(np.concatenate([np.arange(starts[r], starts[r] + len(links[r])) for r in rows]))
        self._buffers.read_joint_accelerations()
        self._reader.forget(self._layout.articulation_scene[rows].tolist())

    def gpu_apply_articulation_qpos(self, index_buffer: Any = None) -> None:
        """Joint positions. Link poses follow after `gpu_update_articulation_kinematics`."""
        moved = self._apply_joints(QPOS, "qpos", index_buffer)
        self._kinematics_outdated[moved] = True

    def gpu_apply_articulation_qvel(self, index_buffer: Any = None) -> None:
        """Joint velocities."""
        self._apply_joints(QVEL, "qvel", index_buffer)

    def gpu_apply_articulation_qf(self, index_buffer: Any = None) -> None:
        """Joint forces of the next substep."""
        self._apply_joints(QF, "qf", index_buffer)

    def _apply_roots(self, group: str, columns: slice, index: Any) -> np.ndarray:
        """Applies part of the root links' rows. Returns the articulations whose values differed."""
        layout = self._layout
        if not layout.num_articulations:
            return np.zeros(0, dtype=np.int64)
        now, applied = self._buffers.body_data.numpy(), self._buffers.applied_bodies.numpy()
        differs = (now[layout.link_start, columns] != applied[layout.link_start, columns]).any(axis=1)
        rows, _ = self._rows_to_apply(group, differs, index)
        if len(rows):
            self._before_articulations_change(rows)
            roots = layout.link_start[rows]
            write = self._writer.root_poses if group == LINK_POSE else self._writer.root_velocities
            write(rows, now[roots, columns])
            applied[roots, columns] = now[roots, columns]
        return rows[differs[rows]]

    def gpu_apply_articulation_root_pose(self, index_buffer: Any = None) -> None:
        """Poses of the root links. The other links follow after `gpu_update_articulation_kinematics`."""
        moved = self._apply_roots(LINK_POSE, slice(0, 7), index_buffer)
        self._kinematics_outdated[moved] = True

    def gpu_apply_articulation_root_velocity(self, index_buffer: Any = None) -> None:
        """Linear and angular velocities of the root links."""
        self._apply_roots(LINK_VELOCITY, slice(7, 13), index_buffer)

    def _apply_targets(self, group: str, index: Any) -> None:
        now, applied = self._buffers.q[group].numpy(), self._buffers.applied_q[group].numpy()
        changed = now != applied
        wanted = changed.any(axis=1)
        if index is not None:
            call = "gpu_apply_articulation_target_" + ("position" if group == TARGET_QPOS else "velocity")
            named = rows_in(index, len(now), call, first_only=self.debug)
            rows = named[wanted[named]]
        else:
            rows = np.flatnonzero(wanted)
        if not len(rows):
            return
        # a drive target is a setting, not a state: setting it again changes nothing, so forced rows are not set
        self._finish_steps()
        self._writer.targets(group, rows, now[rows], changed[rows])
        applied[rows] = now[rows]
        if group == TARGET_QPOS:
            self._woken[rows] = True

    def gpu_apply_articulation_target_position(self, index_buffer: Any = None) -> None:
        """Drive targets of the joint positions."""
        self._apply_targets(TARGET_QPOS, index_buffer)

    def gpu_apply_articulation_target_velocity(self, index_buffer: Any = None) -> None:
        """Drive targets of the joint velocities."""
        self._apply_targets(TARGET_QVEL, index_buffer)

    def keep_awake(self, rows: np.ndarray) -> None:
        """Sets one drive target of these articulations again, to the value that it has, unless one was set since the step.

        PhysX lets an articulation at rest fall asleep unless somebody sets a drive target, which the controllers of a
        single environment do every control step, changed or not.
        """
        rows = rows[~self._woken[rows]]
        if not len(rows):
            return
        self._finish_steps()
        values = self._buffers.applied_q[TARGET_QPOS].numpy()
        self._writer.first_targets(rows, values)
        self._woken[rows] = True

    def gpu_apply_rigid_dynamic_force(self) -> None:
        """Forces (N, at the centre of mass) on rigid dynamic bodies during the next substep."""
        self._finish_steps()
        self._writer.forces(self._buffers.force[: self._layout.num_bodies].numpy(), are_torques=False)

    def gpu_apply_rigid_dynamic_torque(self) -> None:
        """Torques (N·m) on rigid dynamic bodies during the next substep."""
        self._finish_steps()
        self._writer.forces(self._buffers.torque[: self._layout.num_bodies].numpy(), are_torques=True)

    def gpu_update_articulation_kinematics(self) -> None:
        """Brings link poses up to date with applied joint positions and root poses (still to be fetched)."""
        self._finish_steps()
        self._kinematics_outdated[:] = False
        if self._layout.num_articulations:
            self._strictness.stale.update((LINK_POSE, LINK_VELOCITY))

    # ------------------------------------------------------------------ fetch
    def _before_fetch(self, group: str) -> None:
        self._finish_steps()
        self._strictness.before_fetch(group)

    def gpu_fetch_rigid_dynamic_data(self) -> None:
        """Poses and velocities of rigid bodies, from the simulation into the buffer."""
        self._before_fetch(RIGID)
        bodies = slice(0, self._layout.num_bodies)
        self._fetch_poses(bodies, self._reader.poses()[bodies])
        self._buffers.fetch_velocities(bodies)

    def _fetch_poses(self, rows: slice, poses: np.ndarray) -> None:
        self._buffers.body_data.numpy()[rows, :7] = poses
        self._buffers.applied_bodies.numpy()[rows, :7] = poses

    def gpu_fetch_articulation_link_pose(self) -> None:
        """Poses of every link."""
        self._before_fetch(LINK_POSE)
        self._strictness.before_link_pose_fetch(self._kinematics_outdated)
        n, poses = self._layout.num_bodies, self._reader.poses()
        if self._kinematics_outdated.any():
            poses = poses.copy()
            for row in np.flatnonzero(self._kinematics_outdated):
                start = int(self._layout.link_start[row])
                links = slice(start, start + len(self._layout.links[row]))
                poses[links] = self._buffers.body_data[links, :7].numpy()
        self._fetch_poses(slice(n, None), poses[n:])

    def gpu_fetch_articulation_link_velocity(self) -> None:
        """Linear and angular velocities of every link."""
        self._before_fetch(LINK_VELOCITY)
        self._buffers.fetch_velocities(slice(self._layout.num_bodies, None))

    def _fetch_joints(self, group: str, values: np.ndarray) -> None:
        self._buffers.q[group].numpy()[:] = values
        self._buffers.applied_q[group].numpy()[:] = values

    def gpu_fetch_articulation_qpos(self) -> None:
        """Joint positions."""
        self._before_fetch(QPOS)
        self._fetch_joints(QPOS, self._reader.qpos())

    def gpu_fetch_articulation_qvel(self) -> None:
        """Joint velocities."""
        self._before_fetch(QVEL)
        self._fetch_joints(QVEL, self._reader.qvel())

    def gpu_fetch_articulation_qacc(self) -> None:
        """Joint accelerations."""
        self._before_fetch(QACC)
        self._buffers.fetch_joint_accelerations()

    def gpu_fetch_articulation_link_incoming_joint_forces(self) -> None:
        """Spatial force at each link's incoming joint."""
        self._before_fetch(FORCES)
        self._reader.read_joint_forces(self._buffers.joint_forces.numpy())

    def gpu_fetch_articulation_target_qpos(self) -> None:
        """Drive targets: the simulation never changes them, so the buffer gets back what was applied last."""
        self._strictness.before_fetch(TARGET_QPOS)
        self._buffers.q[TARGET_QPOS].copy_(self._buffers.applied_q[TARGET_QPOS])

    def gpu_fetch_articulation_target_qvel(self) -> None:
        """Drive velocity targets: the buffer gets back what was applied last."""
        self._strictness.before_fetch(TARGET_QVEL)
        self._buffers.q[TARGET_QVEL].copy_(self._buffers.applied_q[TARGET_QVEL])

    def _fetch_everything(self) -> None:
        # nothing was fetched yet, so nothing can be lost
        self._strictness.stale.update(MOVED_BY_A_STEP)
        self.gpu_fetch_rigid_dynamic_data()
        self.gpu_fetch_articulation_link_pose()
        self.gpu_fetch_articulation_link_velocity()
        self.gpu_fetch_articulation_qpos()
        self.gpu_fetch_articulation_qvel()
        self.gpu_fetch_articulation_qacc()
        self.gpu_fetch_articulation_link_incoming_joint_forces()
        for group, values in self._reader.settings().items():
            self._fetch_joints(group, values)

    # ------------------------------------------------------------------ contacts
    def gpu_create_contact_body_impulse_query(self, bodies: Sequence[physx.PhysxRigidBaseComponent]) -> ContactQuery:
        """A query for the net contact impulse of each of ``bodies``."""
        return self._contacts.create_query([(body, None) for body in bodies])

    def gpu_create_contact_pair_impulse_query(
        self, body_pairs: Sequence[tuple[physx.PhysxRigidBaseComponent, physx.PhysxRigidBaseComponent]]
    ) -> ContactQuery:
        """A query for the contact impulse on the first body of each pair by the second."""
        return self._contacts.create_query(list(body_pairs))

    def gpu_query_contact_body_impulses(self, query: ContactQuery) -> None:
        """Fills ``query.cuda_impulses`` with the impulses of the last substep."""
        self._finish_steps()
        self._contacts.fill(query)

    def gpu_query_contact_pair_impulses(self, query: ContactQuery) -> None:
        """Fills ``query.cuda_impulses`` with the impulses of the last substep."""
        self._finish_steps()
        self._contacts.fill(query)
