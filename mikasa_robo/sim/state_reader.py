"""Reads the state of N scenes in bulk."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import sapien

from .rows import RowLayout
from .strictness import QF, TARGET_QPOS, TARGET_QVEL

logger = logging.getLogger(__name__)

# pack() gives quaternion, position, velocities; the GPU buffer has the position first
_PACKED_TO_ROW = np.array([4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10, 11, 12])
_PACKED_POSE_TO_ROW = [4, 5, 6, 0, 1, 2, 3]


class StateReader:
    """Reads through ``PhysxCpuSystem.pack()`` and ``Scene.pack_poses()``, which cost a few microseconds a scene.

    Neither call documents its layout, so their values are compared with those of the getters at the start. Where they
    differ, everything is read with getters: slower, with the same result. What was read is kept until `forget`.

    Args:
        layout: which row belongs to which body.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._scenes = layout.scenes
        self._systems = [scene.physx_system for scene in self._scenes]
        self._states: list[bytes | None] = [None] * len(self._scenes)
        self._poses: list[bytes | None] = [None] * len(self._scenes)
        self._state: np.ndarray | None = None
        self._state_size = self._poses_size = -1
        self.use_packed = True
        bodies, qpos, qvel, link_poses = self._by_getters()
        agrees = np.array_equal(self.rigid_data(), bodies) and np.array_equal(self.link_poses(), link_poses)
        agrees = agrees and np.array_equal(self.qpos(), qpos) and np.array_equal(self.qvel(), qvel)
        if not agrees:
            logger.warning("sapien %s packs its state in another layout: fetching body by body", sapien.__version__)
            self.use_packed = False

    # ------------------------------------------------------------------ what was read
    def read(self, scene: int) -> None:
        """Reads one scene now. Right after it was stepped, when its memory is in the cache, this is several times faster."""
        if self.use_packed:
            self._states[scene] = self._systems[scene].pack()
            self._poses[scene] = self._scenes[scene].pack_poses()

    def forget(self, scenes: Iterable[int] | None = None) -> None:
        """Called when scenes (None: all) change: they are read anew when they are next asked for."""
        self._state = None
        if scenes is None:
            self._states = [None] * len(self._scenes)
            self._poses = [None] * len(self._scenes)
            return
        for scene in scenes:
            self._states[scene] = self._poses[scene] = None

    # ------------------------------------------------------------------ what can be asked for
    def rigid_data(self) -> np.ndarray:
        """(B, 13) pose and velocities of every rigid body."""
        return self._packed_state()[self._body_gather] if self.use_packed else self._by_getters()[0]

    def qpos(self) -> np.ndarray:
        """(A, dofs) joint positions, 0 where an articulation has fewer joints."""
        return self._packed_state()[self._qpos_gather] if self.use_packed else self._by_getters()[1]

    def qvel(self) -> np.ndarray:
        """(A, dofs) joint velocities, 0 where an articulation has fewer joints."""
        return self._packed_state()[self._qvel_gather] if self.use_packed else self._by_getters()[2]

    def link_poses(self) -> np.ndarray:
        """(links, 7) poses of every link."""
        return self._packed_link_poses() if self.use_packed else self._by_getters()[3]

    def link_velocities(self) -> np.ndarray:
        """(links, 6) linear and angular velocities of every link."""
        values: list[np.ndarray] = []
        for link in self._layout.all_links:
            values += (link.linear_velocity, link.angular_velocity)
        return np.concatenate(values).reshape(-1, 6)

    def read_joint_accelerations(self, into: np.ndarray) -> None:
        """Writes joint accelerations into (A, dofs)."""
        for row, (articulation, dof) in enumerate(zip(self._layout.articulations, self._layout.dofs, strict=True)):
            into[row, :dof] = articulation.qacc

    def read_joint_forces(self, into: np.ndarray) -> None:
        """Writes the spatial force at each link's incoming joint into (A, links, 6)."""
        for row, articulation in enumerate(self._layout.articulations):
            into[row, : len(self._layout.links[row])] = articulation.link_incoming_joint_forces

    def settings(self) -> dict[str, np.ndarray]:
        """What a step never changes, joint by joint: drive targets, velocity targets and joint forces, (A, dofs) each."""
        layout = self._layout
        values = {
            group: np.zeros((layout.num_articulations, layout.max_dof), dtype=np.float32)
            for group in (TARGET_QPOS, TARGET_QVEL, QF)
        }
        for row, joints in enumerate(layout.joints):
            for dof, joint in enumerate(joints):
                values[TARGET_QPOS][row, dof] = joint.drive_target[0]
                values[TARGET_QVEL][row, dof] = joint.drive_velocity_target[0]
            values[QF][row, : layout.dofs[row]] = layout.articulations[row].qf
        return values

    # ------------------------------------------------------------------ how
    def _packed_state(self) -> np.ndarray:
        """The bytes of every ``pack()``, joined, and a 0 at the end for padding to point at."""
        if self._state is None:
            packed = [
                system.pack() if state is None else state
                for state, system in zip(self._states, self._systems, strict=True)
            ]
            self._states[:] = packed
            if sum(map(len, packed)) != self._state_size:
                self._state_size = sum(map(len, packed))
                self._find_state(np.array([len(state) // 4 for state in packed], dtype=np.int64))
            self._state = np.frombuffer(b"".join([*packed, b"\0\0\0\0"]), dtype=np.float32)
        return self._state

    def _find_state(self, sizes: np.ndarray) -> None:
        """Where each buffer entry stands in the joined bytes."""
        layout = self._layout
        zero = int(sizes.sum())
        next_entry = np.cumsum([0, *sizes])[:-1]
        bodies = np.full((layout.num_bodies, 13), zero)
        for row, scene in enumerate(layout.body_scene):
            bodies[row] = next_entry[scene] + _PACKED_TO_ROW
            next_entry[scene] += 13
        qpos = np.full((layout.num_articulations, layout.max_dof), zero)
        qvel = qpos.copy()
        for row, (scene, dof) in enumerate(zip(layout.articulation_scene, layout.dofs, strict=True)):
            start = next_entry[scene] + 13
            qpos[row, :dof] = start + np.arange(dof)
            qvel[row, :dof] = start + dof + np.arange(dof)
            next_entry[scene] = start + 4 * dof
        # another layout may be shorter: the comparison with the getters then fails instead of the look-up
        self._body_gather, self._qpos_gather, self._qvel_gather = (np.minimum(x, zero) for x in (bodies, qpos, qvel))

    def _packed_link_poses(self) -> np.ndarray:
        packed = [
            scene.pack_poses() if poses is None else poses
            for poses, scene in zip(self._poses, self._scenes, strict=True)
        ]
        self._poses[:] = packed
        if sum(map(len, packed)) != self._poses_size:
            # cameras are entities too, and may be added at any time
            self._poses_size = sum(map(len, packed))
            starts = np.cumsum([0, *(len(poses) // 28 for poses in packed)])
            place = {
                entity: start + k
                for start, scene in zip(starts, self._scenes, strict=False)
                for k, entity in enumerate(scene.entities)
            }
            rows = np.array([place[link.entity] for link in self._layout.all_links], dtype=np.int64).reshape(-1, 1)
            self._link_gather = rows * 7 + _PACKED_POSE_TO_ROW
        return np.frombuffer(b"".join(packed), dtype=np.float32)[self._link_gather]

    def _by_getters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rigid body data, qpos, qvel and link poses, body by body."""
        layout = self._layout
        bodies = np.zeros((layout.num_bodies, 13), dtype=np.float32)
        for row, (body, entity) in enumerate(zip(layout.bodies, layout.entities, strict=True)):
            pose = entity.pose
            bodies[row] = np.concatenate([pose.p, pose.q, body.linear_velocity, body.angular_velocity])
        poses = np.zeros((layout.num_links, 7), dtype=np.float32)
        for row, link in enumerate(layout.all_links):
            poses[row] = np.concatenate([link.entity_pose.p, link.entity_pose.q])
        qpos = np.zeros((layout.num_articulations, layout.max_dof), dtype=np.float32)
        qvel = qpos.copy()
        for row, (articulation, dof) in enumerate(zip(layout.articulations, layout.dofs, strict=True)):
            qpos[row, :dof], qvel[row, :dof] = articulation.qpos, articulation.qvel
        return bodies, qpos, qvel, poses
