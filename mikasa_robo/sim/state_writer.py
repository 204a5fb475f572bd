"""Sets the state of N scenes, row by row: SAPIEN has no setter for several bodies at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import sapien

from .rows import RowLayout
from .strictness import TARGET_QPOS, TARGET_QVEL


class StateWriter:
    """Sets rows of the buffers in the simulation.

    Args:
        layout: which row belongs to which body.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._target_setters = {
            group: [[getattr(joint, name) for joint in joints] for joints in layout.joints]
            for group, name in ((TARGET_QPOS, "set_drive_target"), (TARGET_QVEL, "set_drive_velocity_target"))
        }

    def rigid_data(self, rows: np.ndarray, values: np.ndarray, changed: np.ndarray) -> None:
        """Sets poses of rigid bodies, and velocities of those that are not kinematic.

        Args:
            rows: (b,) rows of bodies.
            values: (b, 13).
            changed: (b, 3) bool: set the pose, the linear velocity, the angular velocity.
        """
        layout = self._layout
        for row, value, (pose, linear, angular), kinematic in zip(
            rows.tolist(), values, changed.tolist(), layout.is_kinematic[rows].tolist(), strict=True
        ):
            if pose:
                layout.entities[row].set_pose(sapien.Pose(value[:3], value[3:7]))
            if not kinematic:
                if linear:
                    layout.bodies[row].set_linear_velocity(value[7:10])
                if angular:
                    layout.bodies[row].set_angular_velocity(value[10:13])

    def joint_values(self, setter: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets "qpos", "qvel" or "qf" of articulations, (b, dofs)."""
        articulations, dofs = self._layout.articulations, self._layout.dofs
        for row, value in zip(rows.tolist(), values, strict=True):
            setattr(articulations[row], setter, value[: dofs[row]])

    def root_poses(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets the poses of root links, (b, 7)."""
        for row, value in zip(rows.tolist(), values, strict=True):
            self._layout.articulations[row].root_pose = sapien.Pose(value[:3], value[3:7])

    def root_velocities(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets linear and angular velocities of root links, (b, 6)."""
        for row, value in zip(rows.tolist(), values, strict=True):
            articulation = self._layout.articulations[row]
            articulation.set_root_linear_velocity(value[:3])
            articulation.set_root_angular_velocity(value[3:])

    def target_calls(
        self, group: str, rows: np.ndarray, values: np.ndarray, changed: np.ndarray
    ) -> list[Callable[[], None]]:
        """For each row a call that sets drive targets, of the joints for which ``changed`` is true.

        Args:
            group: positions or velocities.
            rows: (b,) rows of articulations.
            values: (b, dofs).
            changed: (b, dofs) bool.
        """
        setters = self._target_setters[group]
        return [
            functools.partial(_set_targets, setters[row], targets, None if all(wanted) else wanted)
            for row, targets, wanted in zip(rows.tolist(), values.tolist(), changed.tolist(), strict=True)
        ]

    def first_target_calls(self, rows: np.ndarray, values: np.ndarray) -> list[Callable[[], None]]:
        """For each row a call that sets the drive target of the first joint, if there is one; ``values`` (b, dofs)."""
        setters = self._target_setters[TARGET_QPOS]
        return [
            functools.partial(_set_targets, setters[row][:1], targets, None)
            for row, targets in zip(rows.tolist(), values.tolist(), strict=True)
        ]

    def forces(self, values: np.ndarray, are_torques: bool) -> None:
        """Adds forces (N) or torques (N·m), (B, 3), to rigid bodies that are not kinematic."""
        zero = np.zeros(3, dtype=np.float32)
        for row in np.flatnonzero((values != 0).any(axis=1)):
            if not self._layout.is_kinematic[row]:
                force, torque = (zero, values[row]) if are_torques else (values[row], zero)
                self._layout.bodies[row].add_force_torque(force, torque)


def _set_targets(
    setters: Sequence[Callable[[float], None]], targets: Sequence[float], wanted: Sequence[bool] | None
) -> None:
    """Sets the targets that are ``wanted``; None: all. Rows are padded where an articulation has fewer joints."""
    if wanted is None:
        for set_target, target in zip(setters, targets, strict=False):
            set_target(target)
        return
    for set_target, target, is_wanted in zip(setters, targets, wanted, strict=False):
        if is_wanted:
            set_target(target)
