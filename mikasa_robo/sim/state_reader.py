"""Reads the state of N scenes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import sapien

from .rows import RowLayout
from .strictness import QF, TARGET_QPOS, TARGET_QVEL

logger = logging.getLogger(__name__)

# pack_poses() gives the quaternion first, the GPU buffer the position
_PACKED_TO_ROW = [4, 5, 6, 0, 1, 2, 3]


class StateReader:
    """Reads poses through ``Scene.pack_poses()``, in a microsecond a scene, and everything else with getters.

    The layout of what ``pack_poses()`` gives is not documented, so its values are compared with those of the getters at
    the start. Where they differ, poses are read with getters too: slower, with the same result. Poses that were read are
    kept until `forget`.

    Args:
        layout: which row belongs to which body.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._scenes = layout.scenes
        self._packed: list[bytes | None] = [None] * len(self._scenes)
        self._poses: np.ndarray | None = None
        self._packed_size = -1
        self.use_packed = True
        if not np.array_equal(self.poses(), self._poses_by_getters()):
            logger.warning("sapien %s packs poses in another layout: fetching body by body", sapien.__version__)
            self.use_packed = False

    def forget(self, scenes: Iterable[int] | None = None) -> None:
        """Called when poses in these scenes (None: all) change: they are read anew when they are next asked for."""
        self._poses = None
        if scenes is None:
            self._packed = [None] * len(self._scenes)
            return
        for scene in scenes:
            self._packed[scene] = None

    def forget_layout(self) -> None:
        """Called when entities that have no body have left a scene."""
        self._packed_size = -1

    def poses(self) -> np.ndarray:
        """(rows, 7) poses of every rigid body and then of every link."""
        if self._poses is None:
            self._poses = self._packed_poses() if self.use_packed else self._poses_by_getters()
        return self._poses

    def velocities(self, rows: np.ndarray) -> np.ndarray:
        """(b, 6) linear and angular velocities of the bodies and links in these rows."""
        bodies = self._layout.bodies_and_links
        values: list[np.ndarray] = []
        for row in rows.tolist():
            body = bodies[row]
            values += (body.linear_velocity, body.angular_velocity)
        return np.concatenate(values).reshape(-1, 6)

    def qpos(self) -> np.ndarray:
        """(A, dofs) joint positions, 0 where an articulation has fewer joints."""
        return self._padded([articulation.qpos for articulation in self._layout.articulations])

    def qvel(self) -> np.ndarray:
        """(A, dofs) joint velocities, 0 where an articulation has fewer joints."""
        return self._padded([articulation.qvel for articulation in self._layout.articulations])

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

    def _padded(self, values: list[np.ndarray]) -> np.ndarray:
        layout = self._layout
        if values and min(layout.dofs) == layout.max_dof:
            return np.concatenate(values).reshape(len(values), layout.max_dof)
        padded = np.zeros((len(values), layout.max_dof), dtype=np.float32)
        for row, value in enumerate(values):
            padded[row, : layout.dofs[row]] = value
        return padded

    def _packed_poses(self) -> np.ndarray:
        packed = [
            scene.pack_poses() if poses is None else poses
            for poses, scene in zip(self._packed, self._scenes, strict=True)
        ]
        self._packed[:] = packed
        size = sum(map(len, packed))
        if size != self._packed_size:
            # cameras are entities too, and may be added at any time
            self._packed_size = size
            starts = np.cumsum([0, *(len(poses) // 28 for poses in packed)])
            place = {
                entity: start + k
                for start, scene in zip(starts, self._scenes, strict=False)
                for k, entity in enumerate(scene.entities)
            }
            rows = np.array([place[body.entity] for body in self._layout.bodies_and_links], dtype=np.int64)
            # another layout may be shorter: the comparison with the getters then fails instead of the look-up
            gather = np.minimum(rows.reshape(-1, 1) * 7 + _PACKED_TO_ROW, max(size // 4 - 1, 0))
            self._gather = gather
        return np.frombuffer(b"".join(packed), dtype=np.float32)[self._gather]

    def _poses_by_getters(self) -> np.ndarray:
        poses = np.zeros((self._layout.num_bodies + self._layout.num_links, 7), dtype=np.float32)
        for row, body in enumerate(self._layout.bodies_and_links):
            pose = body.entity.pose
            poses[row] = np.concatenate([pose.p, pose.q])
        return poses
