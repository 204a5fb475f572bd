"""Many CPU PhysX scenes behind the tensor API of SAPIEN's GPU system.

ManiSkill's batched code path (and ours) reads and writes the tensors of ``sapien.physx.PhysxGpuSystem`` and calls its
``gpu_apply_*`` and ``gpu_fetch_*``. `BatchedCpuPhysx` offers the same tensors and calls on CPU memory over N ordinary
``PhysxCpuSystem``s, so that this code runs unchanged, N environments at a time, on a machine without a GPU.

It is as strict as the GPU system: a write stays in its buffer until the matching ``gpu_apply_*``; after a step the
buffers keep their old values until the matching ``gpu_fetch_*``; link poses follow a written qpos only after
``gpu_update_articulation_kinematics``. With ``debug=True`` the patterns that are undefined on a GPU raise `GpuApiMisuse`.

Layout of the rows: all rigid dynamic (and kinematic) bodies of scene 0, of scene 1, …, then the links of every
articulation in the same order. A row of body data is position (3, m), quaternion (4, wxyz), linear velocity (3, m/s),
angular velocity (3, rad/s).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sapien
import sapien.physx as physx
import torch
from torch import Tensor

from .stepping import ScenePool, native_step, steppers

logger = logging.getLogger(__name__)

RIGID, LINK_POSE, LINK_VELOCITY = "rigid_dynamic_data", "articulation_link_pose", "articulation_link_velocity"
QPOS, QVEL, QACC, QF = "articulation_qpos", "articulation_qvel", "articulation_qacc", "articulation_qf"
FORCES = "articulation_link_incoming_joint_forces"
TARGET_QPOS, TARGET_QVEL = "articulation_target_qpos", "articulation_target_qvel"

_MOVED_BY_A_STEP = (RIGID, LINK_POSE, LINK_VELOCITY, QPOS, QVEL, QACC, FORCES)
# pack() gives quaternion, position, velocities; the GPU buffer has the position first
_PACKED_TO_ROW = np.array([4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10, 11, 12])


class GpuApiMisuse(RuntimeError):
    """A use of the tensor API that is undefined, or silently wrong, on a GPU."""


class _BodyData(Tensor):
    """``cuda_rigid_body_data``, which reads link velocities from the simulation only when somebody looks at them.

    They are a tenth of the cost of a step (two getters a link, nothing in bulk), and most steps read poses only. Any
    use but ``data[rows, :7]`` brings them up to date first, so no reader can tell.
    """

    system: BatchedCpuPhysx

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads_poses = (
            func is Tensor.__getitem__
            and isinstance(args[1], tuple)
            and len(args[1]) == 2
            # rows, not None or a boolean: those add a dimension, and the slice would then be one of rows
            and (isinstance(args[1][0], slice) or (isinstance(args[1][0], Tensor) and args[1][0].dim() > 0))
            and isinstance(args[1][1], slice)
            and args[1][1].start in (None, *range(7))
            and args[1][1].stop is not None
            and 0 <= args[1][1].stop <= 7
        )
        if not reads_poses:
            for data in _body_data_among((args, kwargs)):
                data.system._read_link_velocities()
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(Tensor) if isinstance(result, cls) else result


def _body_data_among(value: Any) -> Iterator[_BodyData]:
    """The body data in the arguments of a torch function, also inside lists, as in ``torch.cat([data, data])``."""
    if isinstance(value, _BodyData):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _body_data_among(item)
    elif isinstance(value, dict):
        yield from _body_data_among(list(value.values()))


class CpuArray:
    """Stands for SAPIEN's ``CudaArray``: a named buffer whose ``torch()`` is the tensor itself, not a copy."""

    def __init__(self, system: BatchedCpuPhysx, name: str, tensor: Tensor, groups: tuple[str, ...]) -> None:
        self._system, self._name, self._tensor, self._groups = system, name, tensor, groups

    def torch(self) -> Tensor:
        """The buffer. Writing to it has no effect on the simulation before the matching ``gpu_apply_*``."""
        if self._system.debug:
            self._system._forbid_stale(self._name, self._groups)
        return self._tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return tuple(self._tensor.shape)


@dataclass(eq=False)
class ContactQuery:
    """Contact impulses over the last substep, (rows, 3) N·s, filled by the system on request.

    A row is the impulse on one body, from a given partner or (partner None) from all bodies together.
    """

    rows: dict[int, dict[Any, list[tuple[Any, int]]]]  # scene: {body: [(partner or None, row)]}
    cuda_impulses: CpuArray


class BatchedCpuPhysx:
    """N CPU systems with the interface of one GPU system.

    Args:
        scenes: the sub-scenes, each with a ``PhysxCpuSystem`` of its own.
        threads: how many threads step them.
        debug: raise `GpuApiMisuse` on patterns that are undefined on a GPU. Costs a comparison of every buffer a step.
    """

    def __init__(self, scenes: Sequence[sapien.Scene], threads: int, debug: bool) -> None:
        self.debug = debug
        self.threads = threads
        self._scenes = list(scenes)
        self._systems: list[physx.PhysxCpuSystem] = [scene.physx_system for scene in self._scenes]
        self._pool: ScenePool | None = None
        self._pending_substeps = 0
        self._link_velocities_wait = False
        self._rows: dict[Any, int] = {}
        self._forced_scenes: np.ndarray | None = None
        self._stale: set[str] = set()
        self._contacts: list[dict[Any, list[tuple[Any, physx.PhysxContact, int]]] | None] = [None] * len(self._scenes)
        self._watched: set[Any] = set()
        # the bytes of pack() and pack_poses(), until the simulation changes
        self._states: list[bytes] | None = None
        self._poses: list[bytes] | None = None

    # isinstance(px, PhysxGpuSystem) is how ManiSkill asks whether to use the tensor API (see sim/internals.py)
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return physx.PhysxGpuSystem

    # ------------------------------------------------------------------ what both kinds of system have
    @property
    def timestep(self) -> float:
        """Length of one physics substep, s."""
        return float(self._systems[0].timestep)

    @timestep.setter
    def timestep(self, value: float) -> None:
        self._finish_steps()
        for system in self._systems:
            system.timestep = value

    def get_timestep(self) -> float:
        """Length of one physics substep, s."""
        return self.timestep

    def set_timestep(self, timestep: float) -> None:
        """Sets the length of one physics substep, s."""
        self.timestep = timestep

    @property
    def rigid_dynamic_components(self) -> list[physx.PhysxRigidDynamicComponent]:
        """Every rigid dynamic (and kinematic) body, scene by scene."""
        return [body for system in self._systems for body in system.rigid_dynamic_components]

    @property
    def rigid_static_components(self) -> list[physx.PhysxRigidStaticComponent]:
        """Every static body, scene by scene."""
        return [body for system in self._systems for body in system.rigid_static_components]

    @property
    def articulation_link_components(self) -> list[physx.PhysxArticulationLinkComponent]:
        """Every link, scene by scene."""
        return [link for system in self._systems for link in system.articulation_link_components]

    def get_contacts(self) -> list[physx.PhysxContact]:
        """Every contact of the last substep, scene by scene."""
        self._finish_steps()
        return [contact for system in self._systems for contact in system.get_contacts()]

    def get_scene_offset(self, scene: sapien.Scene) -> np.ndarray:
        """Zero: every CPU scene has a world of its own."""
        return np.zeros(3, dtype=np.float32)

    def sync_poses_gpu_to_cpu(self) -> None:
        """Nothing to copy: bodies live on the CPU. Outstanding steps are finished."""
        self._finish_steps()

    # ------------------------------------------------------------------ start and end
    def gpu_init(self) -> None:
        """Allocates the buffers. Bodies added afterwards are not part of them, as on a GPU."""
        if self._pool is not None:
            raise GpuApiMisuse(
                "gpu_init was called twice: a new scene needs a new system (env.reset with reconfigure=True)"
            )
        self._bodies: list[physx.PhysxRigidDynamicComponent] = []
        self._body_scene: list[int] = []
        self._articulations: list[physx.PhysxArticulation] = []
        self._articulation_scene: list[int] = []
        for i, system in enumerate(self._systems):
            for body in system.rigid_dynamic_components:
                self._bodies.append(body)
                self._body_scene.append(i)
            for link in system.articulation_link_components:
                if link.is_root:
                    self._articulations.append(link.articulation)
                    self._articulation_scene.append(i)
        self._dofs = [int(a.dof) for a in self._articulations]
        self._links = [list(a.links) for a in self._articulations]
        self._joints = [list(a.active_joints) for a in self._articulations]
        self._entities = [body.entity for body in self._bodies]
        self._setters = {
            name: [[getattr(joint, name) for joint in joints] for joints in self._joints]
            for name in ("set_drive_target", "set_drive_velocity_target")
        }
        self._all_links = [link for links in self._links for link in links]
        self._is_kinematic = np.array([bool(body.kinematic) for body in self._bodies], dtype=bool)
        n_bodies, n_articulations = len(self._bodies), len(self._articulations)
        self._link_start = np.cumsum([0, *(len(links) for links in self._links)])[:-1] + n_bodies
        n_links = sum(len(links) for links in self._links)
        self._max_dof = max(self._dofs, default=0)
        self._max_links = max((len(links) for links in self._links), default=0)
        self._rows = {body: row for row, body in enumerate(self._bodies)}
        self._rows |= {a: row for row, a in enumerate(self._articulations)}
        for start, links in zip(self._link_start, self._links, strict=True):
            self._rows |= {link: int(start) + k for k, link in enumerate(links)}
        self._scene_of: dict[Any, int] = dict(zip(self._bodies, self._body_scene, strict=True))
        for links, scene in zip(self._links, self._articulation_scene, strict=True):
            self._scene_of |= dict.fromkeys(links, scene)

        self._body_data = torch.zeros(n_bodies + n_links, 13)
        self._force = torch.zeros(n_bodies + n_links, 3)
        self._torque = torch.zeros(n_bodies + n_links, 3)
        self._q = {
            name: torch.zeros(n_articulations, self._max_dof)
            for name in (QPOS, QVEL, QACC, QF, TARGET_QPOS, TARGET_QVEL)
        }
        self._joint_forces = torch.zeros(n_articulations, self._max_links, 6)
        self._n_bodies = n_bodies
        groups = tuple(
            g for g, present in ((RIGID, n_bodies), (LINK_POSE, n_links), (LINK_VELOCITY, n_links)) if present
        )
        body_data = self._body_data.as_subclass(_BodyData)
        body_data.system = weakref.proxy(self)
        self.cuda_rigid_body_data = CpuArray(self, "cuda_rigid_body_data", body_data, groups)
        self.cuda_rigid_dynamic_data = CpuArray(
            self, "cuda_rigid_dynamic_data", self._body_data[:n_bodies], (RIGID,) if n_bodies else ()
        )
        self.cuda_rigid_body_force = CpuArray(self, "cuda_rigid_body_force", self._force, ())
        self.cuda_rigid_body_torque = CpuArray(self, "cuda_rigid_body_torque", self._torque, ())
        self.cuda_rigid_dynamic_force = CpuArray(self, "cuda_rigid_dynamic_force", self._force[:n_bodies], ())
        self.cuda_rigid_dynamic_torque = CpuArray(self, "cuda_rigid_dynamic_torque", self._torque[:n_bodies], ())
        self.cuda_articulation_qpos = CpuArray(self, "cuda_articulation_qpos", self._q[QPOS], (QPOS,))
        self.cuda_articulation_qvel = CpuArray(self, "cuda_articulation_qvel", self._q[QVEL], (QVEL,))
        self.cuda_articulation_qacc = CpuArray(self, "cuda_articulation_qacc", self._q[QACC], (QACC,))
        self.cuda_articulation_qf = CpuArray(self, "cuda_articulation_qf", self._q[QF], ())
        self.cuda_articulation_target_qpos = CpuArray(self, "cuda_articulation_target_qpos", self._q[TARGET_QPOS], ())
        self.cuda_articulation_target_qvel = CpuArray(self, "cuda_articulation_target_qvel", self._q[TARGET_QVEL], ())
        self.cuda_articulation_link_incoming_joint_forces = CpuArray(
            self, "cuda_articulation_link_incoming_joint_forces", self._joint_forces, (FORCES,)
        )
        # what the simulation holds, as far as the buffers know: a row that differs was written and not yet applied
        self._applied_bodies = self._body_data.clone()
        self._applied_q = {name: tensor.clone() for name, tensor in self._q.items()}
        self._kinematics_dirty = np.zeros(n_articulations, dtype=bool)
        self._build_gather()
        self._steppers = steppers(self._systems)
        # under the global lock a second thread only gets in the way
        self._pool = ScenePool(len(self._systems), self.threads if native_step() is not None else 1)
        self.threads = self._pool.threads
        self._stale = set(_MOVED_BY_A_STEP)
        self._fetch_everything()

    def close(self) -> None:
        """Ends the threads and lets go of the scenes. May be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._pending_substeps = 0

    def row_of(self, thing: Any) -> int:
        """The row of a body or link in ``cuda_rigid_body_data``, of an articulation in ``cuda_articulation_*``."""
        try:
            return self._rows[thing]
        except KeyError:
            raise GpuApiMisuse(
                f"{getattr(thing, 'name', thing)!r} was added after gpu_init and is not part of the simulation's buffers: "
                "build it in _load_scene, or reset with options={'reconfigure': True}"
            ) from None

    # ------------------------------------------------------------------ stepping
    def step(self) -> None:
        """One physics substep of every scene.

        Steps are carried out when their result is first asked for, so that the substeps of one control step run without
        a barrier in between. No caller of the tensor API can tell.
        """
        if self._pool is None:
            raise GpuApiMisuse("step was called before gpu_init")
        if self.debug:
            self._forbid_unapplied("step")
        self._pending_substeps += 1
        self._link_velocities_wait = False  # nobody looked
        self._stale.update(_MOVED_BY_A_STEP)
        self._kinematics_dirty[:] = False

    def step_start(self) -> None:
        """Starts a step (CPU: the whole step, see `step`)."""
        self.step()

    def step_finish(self) -> None:
        """Waits for a step."""
        self._finish_steps()

    def _finish_steps(self) -> None:
        """Carries out the steps asked for so far: all substeps of a scene by one thread, then the next scene.

        The threads do nothing but PhysX, which needs no lock; reading a scene's state here too was measured slower,
        since a thread that comes back from PhysX then waits for Python's lock.
        """
        if not self._pending_substeps:
            return
        assert self._pool is not None
        substeps, self._pending_substeps = self._pending_substeps, 0
        steppers = self._steppers

        def job(scene: int) -> None:
            step = steppers[scene]
            for _ in range(substeps):
                step()

        self._pool.run(job)
        self._contacts = [None] * len(self._scenes)
        self._states = self._poses = None

    def _touch_simulation(self) -> None:
        """Before anything but a step changes the simulation: outstanding steps come first, what was read is outdated."""
        self._finish_steps()
        self._read_link_velocities()
        self._states = self._poses = None

    # ------------------------------------------------------------------ misuse
    def _forbid_stale(self, name: str, groups: Iterable[str]) -> None:
        stale = self._stale.intersection(groups)
        if stale:
            calls = ", ".join(f"gpu_fetch_{group}()" for group in sorted(stale))
            raise GpuApiMisuse(f"{name} is stale after a step: call {calls} before reading or writing it")

    def _forbid_unapplied(self, what: str, names: Iterable[str] | None = None) -> None:
        wanted = {RIGID, LINK_POSE, *self._q} if names is None else set(names)
        for group, (now, applied) in self._written().items():
            if group in wanted and group not in self._stale and not torch.equal(now, applied):
                raise GpuApiMisuse(
                    f"{what} while a write to {group} waits for its gpu_apply_*: on a GPU it would be lost. "
                    "Apply it first"
                )

    def _written(self) -> dict[str, tuple[Tensor, Tensor]]:
        n = self._n_bodies
        roots = torch.as_tensor(self._link_start, dtype=torch.int64)
        pairs = {RIGID: (self._body_data[:n], self._applied_bodies[:n])}
        pairs[LINK_POSE] = (self._body_data[roots], self._applied_bodies[roots])
        for name in (QPOS, QVEL, QF, TARGET_QPOS, TARGET_QVEL):
            pairs[name] = (self._q[name], self._applied_q[name])
        return pairs

    def _before_apply(self, group: str) -> bool:
        """Whether every row has to be written: on a GPU a stale buffer overwrites what the step has done."""
        self._finish_steps()
        if group not in self._stale:
            return False
        if self.debug:
            raise GpuApiMisuse(
                f"gpu_apply_{group} while its buffer is stale after a step: on a GPU this sets every environment back "
                f"to where it was before the step. Call gpu_fetch_{group}() first"
            )
        return True

    # ------------------------------------------------------------------ scenes being reset
    def force_scenes(self, scenes: Iterable[int] | None) -> None:
        """Scenes whose rows are all applied, changed or not (None: none).

        A reset sets everything anew, and PhysX does not give the last bit back when a pose is set to what it was, so a
        reset scene matches a single environment's reset only if all its rows are set.
        """
        if scenes is None:
            self._forced_scenes = None
            return
        mask = np.zeros(len(self._scenes), dtype=bool)
        mask[np.asarray(list(scenes), dtype=np.int64)] = True
        self._forced_scenes = mask

    def _forced(self, scene_of_row: Sequence[int]) -> np.ndarray:
        if self._forced_scenes is None or not len(scene_of_row):
            return np.zeros(len(scene_of_row), dtype=bool)
        return self._forced_scenes[np.asarray(scene_of_row, dtype=np.int64)]

    # ------------------------------------------------------------------ apply
    def _changed_rows(self, group: str, now: Tensor, applied: Tensor, scene_of_row: Sequence[int]) -> np.ndarray:
        everything = self._before_apply(group)
        if everything:
            return np.arange(len(now))
        changed = (now != applied).any(dim=1).numpy() | self._forced(scene_of_row)
        return np.flatnonzero(changed)

    def gpu_apply_rigid_dynamic_data(self, index_buffer: Any = None) -> None:
        """Poses of rigid bodies and velocities of the dynamic ones, from the buffer into the simulation."""
        n = self._n_bodies
        rows = self._changed_rows(RIGID, self._body_data[:n], self._applied_bodies[:n], self._body_scene)
        if not len(rows):
            return
        self._touch_simulation()
        forced = self._forced(self._body_scene)
        everything = RIGID in self._stale
        values, before = self._body_data.numpy(), self._applied_bodies.numpy()
        for row in rows:
            value, old = values[row], before[row]
            whole = everything or forced[row]
            if whole or (value[:7] != old[:7]).any():
                self._entities[row].set_pose(sapien.Pose(value[:3], value[3:7]))
            if not self._is_kinematic[row]:
                if whole or (value[7:10] != old[7:10]).any():
                    self._bodies[row].set_linear_velocity(value[7:10])
                if whole or (value[10:13] != old[10:13]).any():
                    self._bodies[row].set_angular_velocity(value[10:13])
        self._applied_bodies[rows] = self._body_data[rows]

    def _apply_q(self, group: str, setter: str, moves_links: bool = False) -> None:
        now, applied = self._q[group], self._applied_q[group]
        rows = self._changed_rows(group, now, applied, self._articulation_scene)
        if not len(rows):
            return
        self._touch_simulation()
        values = now.numpy()
        for row in rows:
            setattr(self._articulations[row], setter, values[row, : self._dofs[row]])
        if moves_links:
            self._kinematics_dirty[rows] = (now[rows] != applied[rows]).any(dim=1).numpy() | self._kinematics_dirty[
                rows
            ]
        applied[rows] = now[rows]

    def gpu_apply_articulation_qpos(self, index_buffer: Any = None) -> None:
        """Joint positions. Link poses follow after `gpu_update_articulation_kinematics`."""
        self._apply_q(QPOS, "qpos", moves_links=True)

    def gpu_apply_articulation_qvel(self, index_buffer: Any = None) -> None:
        """Joint velocities."""
        self._apply_q(QVEL, "qvel")

    def gpu_apply_articulation_qf(self, index_buffer: Any = None) -> None:
        """Joint forces of the next substep."""
        self._apply_q(QF, "qf")

    def _apply_root(self, group: str, columns: slice) -> np.ndarray:
        roots = self._link_start
        everything = self._before_apply(group)
        self._read_link_velocities()
        changed = (self._body_data[roots, columns] != self._applied_bodies[roots, columns]).any(dim=1).numpy()
        whole = everything | self._forced(self._articulation_scene)
        return np.flatnonzero(changed | whole)

    def gpu_apply_articulation_root_pose(self, index_buffer: Any = None) -> None:
        """Poses of the root links. The other links follow after `gpu_update_articulation_kinematics`."""
        if not self._articulations:
            return
        rows = self._apply_root(LINK_POSE, slice(0, 7))
        if not len(rows):
            return
        self._touch_simulation()
        values = self._body_data.numpy()
        for row in rows:
            value = values[self._link_start[row]]
            self._articulations[row].root_pose = sapien.Pose(value[:3], value[3:7])
            if (value[:7] != self._applied_bodies[self._link_start[row], :7].numpy()).any():
                self._kinematics_dirty[row] = True
        self._applied_bodies[self._link_start[rows], :7] = self._body_data[self._link_start[rows], :7]

    def gpu_apply_articulation_root_velocity(self, index_buffer: Any = None) -> None:
        """Linear and angular velocities of the root links."""
        if not self._articulations:
            return
        rows = self._apply_root(LINK_VELOCITY, slice(7, 13))
        if not len(rows):
            return
        self._touch_simulation()
        values = self._body_data.numpy()
        for row in rows:
            value = values[self._link_start[row]]
            self._articulations[row].set_root_linear_velocity(value[7:10])
            self._articulations[row].set_root_angular_velocity(value[10:13])
        self._applied_bodies[self._link_start[rows], 7:] = self._body_data[self._link_start[rows], 7:]

    def _apply_target(self, group: str, setter: str) -> None:
        now, applied = self._q[group], self._applied_q[group]
        self._finish_steps()
        changed = (now != applied).numpy()
        if not changed.any():
            return
        # a drive target is a setting, not a state: setting it again changes nothing, so only changes are sent
        setters = self._setters[setter]
        rows, dofs = np.nonzero(changed)
        for row, dof, value in zip(rows.tolist(), dofs.tolist(), now.numpy()[rows, dofs].tolist(), strict=True):
            if dof < self._dofs[row]:
                setters[row][dof](value)
        applied.copy_(now)

    def gpu_apply_articulation_target_position(self, index_buffer: Any = None) -> None:
        """Drive targets of the joint positions."""
        self._apply_target(TARGET_QPOS, "set_drive_target")

    def gpu_apply_articulation_target_velocity(self, index_buffer: Any = None) -> None:
        """Drive targets of the joint velocities."""
        self._apply_target(TARGET_QVEL, "set_drive_velocity_target")

    def keep_awake(self, rows: Iterable[int]) -> None:
        """Sets one drive target of each of these articulations again, to the value that it has.

        PhysX lets an articulation at rest fall asleep unless somebody sets a drive target, which the controllers of a
        single environment do every control step, changed or not.
        """
        self._finish_steps()
        setters, values = self._setters["set_drive_target"], self._applied_q[TARGET_QPOS].numpy()
        for row in rows:
            if self._dofs[row]:
                setters[row][0](float(values[row, 0]))

    def gpu_apply_rigid_dynamic_force(self) -> None:
        """Forces (N, at the centre of mass) on rigid dynamic bodies during the next substep."""
        self._apply_force(self._force, True)

    def gpu_apply_rigid_dynamic_torque(self) -> None:
        """Torques (N·m) on rigid dynamic bodies during the next substep."""
        self._apply_force(self._torque, False)

    def _apply_force(self, buffer: Tensor, linear: bool) -> None:
        self._finish_steps()
        zero = np.zeros(3, dtype=np.float32)
        values = buffer[: self._n_bodies].numpy()
        for row in np.flatnonzero((values != 0).any(axis=1)):
            if not self._is_kinematic[row]:
                force, torque = (values[row], zero) if linear else (zero, values[row])
                self._bodies[row].add_force_torque(force, torque)

    def gpu_update_articulation_kinematics(self) -> None:
        """Brings link poses up to date with applied joint positions and root poses (still to be fetched)."""
        self._finish_steps()
        self._kinematics_dirty[:] = False
        if self._articulations:
            self._stale.update((LINK_POSE, LINK_VELOCITY))

    # ------------------------------------------------------------------ fetch
    def _build_gather(self) -> None:
        """Where each buffer entry stands in the joined bytes of ``pack()`` and of ``pack_poses()``.

        Both are undocumented, so their layout is compared with the getters here; where it differs, every fetch goes
        through the getters: slower, with the same values.
        """
        self._pack_size = self._poses_size = -1
        self._use_packed = True
        packed = self._packed_state()
        bodies, qpos, qvel, _, _ = self._getters()
        agrees = np.array_equal(packed[self._body_gather], bodies[: self._n_bodies])
        agrees &= np.array_equal(packed[self._qpos_gather], qpos) and np.array_equal(packed[self._qvel_gather], qvel)
        poses = self._packed_poses()
        agrees &= np.array_equal(poses[self._link_gather], bodies[self._n_bodies :, :7])
        if not agrees:
            logger.warning("sapien %s packs its state in another layout: fetching body by body", sapien.__version__)
            self._use_packed = False

    def _packed_state(self) -> np.ndarray:
        if self._states is None:
            self._states = [system.pack() for system in self._systems]
        packed = self._states
        sizes = [len(data) // 4 for data in packed]
        if sum(sizes) != self._pack_size:
            self._pack_size = sum(sizes)
            starts = np.cumsum([0, *sizes])
            zero = self._pack_size  # one entry past the end: what padding reads
            body_gather = np.full((self._n_bodies, 13), zero)
            next_body = starts[:-1].copy()
            for row, scene in enumerate(self._body_scene):
                body_gather[row] = next_body[scene] + _PACKED_TO_ROW
                next_body[scene] += 13
            qpos_gather = np.full((len(self._articulations), self._max_dof), zero)
            qvel_gather = qpos_gather.copy()
            for row, (scene, dof) in enumerate(zip(self._articulation_scene, self._dofs, strict=True)):
                start = next_body[scene] + 13
                qpos_gather[row, :dof] = start + np.arange(dof)
                qvel_gather[row, :dof] = start + dof + np.arange(dof)
                next_body[scene] = start + 4 * dof
            self._body_gather, self._qpos_gather, self._qvel_gather = (
                np.minimum(gather, zero) for gather in (body_gather, qpos_gather, qvel_gather)
            )
        return np.frombuffer(b"".join([*packed, b"\0\0\0\0"]), dtype=np.float32)

    def _packed_poses(self) -> np.ndarray:
        if self._poses is None:
            self._poses = [scene.pack_poses() for scene in self._scenes]
        packed = self._poses
        sizes = [len(data) // 28 for data in packed]
        if sum(sizes) != self._poses_size:
            # cameras are entities too, and may be added at any time
            self._poses_size = sum(sizes)
            starts = np.cumsum([0, *sizes])
            place: dict[Any, int] = {}
            for start, scene in zip(starts, self._scenes, strict=False):
                place |= {entity: start + k for k, entity in enumerate(scene.entities)}
            self._link_gather = np.array(
                [place[link.entity] for links in self._links for link in links], dtype=np.int64
            ).reshape(-1)
        poses = np.frombuffer(b"".join(packed), dtype=np.float32).reshape(-1, 7)
        return poses[:, [4, 5, 6, 0, 1, 2, 3]]

    def _getters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Every value body by body: body data, qpos, qvel, link poses, link velocities."""
        bodies = np.zeros(tuple(self._body_data.shape), dtype=np.float32)
        for row, (body, entity) in enumerate(zip(self._bodies, self._entities, strict=True)):
            pose = entity.pose
            bodies[row] = np.concatenate([pose.p, pose.q, body.linear_velocity, body.angular_velocity])
        row = self._n_bodies
        for links in self._links:
            for link in links:
                pose = link.entity_pose
                bodies[row] = np.concatenate([pose.p, pose.q, link.linear_velocity, link.angular_velocity])
                row += 1
        qpos = np.zeros((len(self._articulations), self._max_dof), dtype=np.float32)
        qvel = qpos.copy()
        for k, (articulation, dof) in enumerate(zip(self._articulations, self._dofs, strict=True)):
            qpos[k, :dof], qvel[k, :dof] = articulation.qpos, articulation.qvel
        return bodies, qpos, qvel, bodies[self._n_bodies :, :7], bodies[self._n_bodies :, 7:]

    def _begin_fetch(self, group: str, written: Iterable[str] = ()) -> None:
        self._finish_steps()
        if self.debug and written and group not in self._stale:
            self._forbid_unapplied(f"gpu_fetch_{group}", written)
        self._stale.discard(group)

    def gpu_fetch_rigid_dynamic_data(self) -> None:
        """Poses and velocities of rigid bodies, from the simulation into the buffer."""
        self._begin_fetch(RIGID, (RIGID,))
        n = self._n_bodies
        if self._use_packed:
            state = self._packed_state()
            self._body_data[:n] = torch.from_numpy(state[self._body_gather])
        else:
            self._body_data[:n] = torch.from_numpy(self._getters()[0][:n])
        self._applied_bodies[:n] = self._body_data[:n]

    def gpu_fetch_articulation_link_pose(self) -> None:
        """Poses of every link."""
        self._begin_fetch(LINK_POSE, (LINK_POSE,))
        if self.debug and self._kinematics_dirty.any():
            raise GpuApiMisuse(
                "gpu_fetch_articulation_link_pose after a new qpos or root pose was applied: on a GPU link poses are "
                "undefined before gpu_update_articulation_kinematics(). Call that first"
            )
        n = self._n_bodies
        if self._use_packed:
            poses = torch.from_numpy(self._packed_poses()[self._link_gather])
        else:
            poses = torch.from_numpy(np.ascontiguousarray(self._getters()[3]))
        if self._kinematics_dirty.any():
            for row in np.flatnonzero(self._kinematics_dirty):
                start = int(self._link_start[row]) - n
                end = start + len(self._links[row])
                poses[start:end] = self._body_data[n + start : n + end, :7]
        self._body_data[n:, :7] = poses
        self._applied_bodies[n:, :7] = poses

    def gpu_fetch_articulation_link_velocity(self) -> None:
        """Linear and angular velocities of every link."""
        self._begin_fetch(LINK_VELOCITY)
        self._link_velocities_wait = bool(self._all_links)

    def _read_link_velocities(self) -> None:
        """Carries out a fetch of link velocities that is still owed (see `_BodyData`)."""
        if not self._link_velocities_wait:
            return
        self._link_velocities_wait = False
        values: list[np.ndarray] = []
        for link in self._all_links:
            values += (link.linear_velocity, link.angular_velocity)
        n = self._n_bodies
        self._body_data[n:, 7:] = torch.from_numpy(np.concatenate(values).reshape(-1, 6))
        self._applied_bodies[n:, 7:] = self._body_data[n:, 7:]

    def gpu_fetch_articulation_qpos(self) -> None:
        """Joint positions."""
        self._begin_fetch(QPOS, (QPOS,))
        values = self._packed_state()[self._qpos_gather] if self._use_packed else self._getters()[1]
        self._q[QPOS].copy_(torch.from_numpy(values))
        self._applied_q[QPOS].copy_(self._q[QPOS])

    def gpu_fetch_articulation_qvel(self) -> None:
        """Joint velocities."""
        self._begin_fetch(QVEL, (QVEL,))
        values = self._packed_state()[self._qvel_gather] if self._use_packed else self._getters()[2]
        self._q[QVEL].copy_(torch.from_numpy(values))
        self._applied_q[QVEL].copy_(self._q[QVEL])

    def gpu_fetch_articulation_qacc(self) -> None:
        """Joint accelerations."""
        self._begin_fetch(QACC)
        values = self._q[QACC].numpy()
        for row, (articulation, dof) in enumerate(zip(self._articulations, self._dofs, strict=True)):
            values[row, :dof] = articulation.qacc

    def gpu_fetch_articulation_link_incoming_joint_forces(self) -> None:
        """Spatial force at each link's incoming joint."""
        self._begin_fetch(FORCES)
        values = self._joint_forces.numpy()
        for row, articulation in enumerate(self._articulations):
            values[row, : len(self._links[row])] = articulation.link_incoming_joint_forces

    def gpu_fetch_articulation_target_qpos(self) -> None:
        """Drive targets: the simulation never changes them, so the buffer gets back what was applied last."""
        if self.debug:
            self._forbid_unapplied("gpu_fetch_articulation_target_qpos", (TARGET_QPOS,))
        self._q[TARGET_QPOS].copy_(self._applied_q[TARGET_QPOS])

    def gpu_fetch_articulation_target_qvel(self) -> None:
        """Drive velocity targets: the buffer gets back what was applied last."""
        if self.debug:
            self._forbid_unapplied("gpu_fetch_articulation_target_qvel", (TARGET_QVEL,))
        self._q[TARGET_QVEL].copy_(self._applied_q[TARGET_QVEL])

    def _fetch_everything(self) -> None:
        self.gpu_fetch_rigid_dynamic_data()
        self.gpu_fetch_articulation_link_pose()
        self.gpu_fetch_articulation_link_velocity()
        self.gpu_fetch_articulation_qpos()
        self.gpu_fetch_articulation_qvel()
        self.gpu_fetch_articulation_qacc()
        self.gpu_fetch_articulation_link_incoming_joint_forces()
        for row, joints in enumerate(self._joints):
            for dof, joint in enumerate(joints):
                self._q[TARGET_QPOS][row, dof] = float(joint.drive_target[0])
                self._q[TARGET_QVEL][row, dof] = float(joint.drive_velocity_target[0])
            self._q[QF][row, : self._dofs[row]] = torch.from_numpy(np.asarray(self._articulations[row].qf))
        for name in (TARGET_QPOS, TARGET_QVEL, QF):
            self._applied_q[name].copy_(self._q[name])

    # ------------------------------------------------------------------ contacts
    def gpu_create_contact_body_impulse_query(self, bodies: Sequence[physx.PhysxRigidBaseComponent]) -> ContactQuery:
        """A query for the net contact impulse of each of ``bodies``."""
        return self._create_query([(body, None) for body in bodies])

    def gpu_create_contact_pair_impulse_query(
        self, body_pairs: Sequence[tuple[physx.PhysxRigidBaseComponent, physx.PhysxRigidBaseComponent]]
    ) -> ContactQuery:
        """A query for the contact impulse on the first body of each pair by the second."""
        return self._create_query(list(body_pairs))

    def _create_query(self, pairs: Sequence[tuple[Any, Any]]) -> ContactQuery:
        rows: dict[int, dict[Any, list[tuple[Any, int]]]] = {}
        for row, (body, partner) in enumerate(pairs):
            rows.setdefault(self._scene_of_body(body), {}).setdefault(body, []).append((partner, row))
            self._watched.add(body)
        self._contacts = [None] * len(self._scenes)
        return ContactQuery(rows, CpuArray(self, "cuda_impulses", torch.zeros(len(pairs), 3), ()))

    def _scene_of_body(self, body: physx.PhysxRigidBaseComponent) -> int:
        known = self._scene_of.get(body)
        if known is None:
            # static bodies have no row: find the scene that holds their entity
            known = self._scenes.index(body.entity.scene)
            self._scene_of[body] = known
        return known

    def _contacts_of(self, scene: int) -> dict[Any, list[tuple[Any, physx.PhysxContact, int]]]:
        """For each body that some query asks about: (other body, contact, sign of the impulse) in the last substep."""
        found = self._contacts[scene]
        if found is None:
            found = {}
            watched = self._watched
            for contact in self._systems[scene].get_contacts():
                first, second = contact.bodies
                # most contacts are of objects with the table, and nobody asks about those
                if first in watched:
                    found.setdefault(first, []).append((second, contact, 1))
                if second in watched:
                    found.setdefault(second, []).append((first, contact, -1))
            self._contacts[scene] = found
        return found

    def _query_contacts(self, query: ContactQuery) -> None:
        self._finish_steps()
        result = query.cuda_impulses._tensor
        result.zero_()
        for scene, asked in query.rows.items():
            for body, contacts in self._contacts_of(scene).items():
                for partner, row in asked.get(body, ()):
                    # summed as ManiSkill sums the contacts of a single environment: to the last bit the same
                    total = np.zeros(3)
                    for other, contact, sign in contacts:
                        if partner is None or other is partner:
                            total += np.sum([point.impulse for point in contact.points], axis=0) * sign
                    result[row] = torch.from_numpy(total)

    def gpu_query_contact_body_impulses(self, query: ContactQuery) -> None:
        """Fills ``query.cuda_impulses`` with the impulses of the last substep."""
        self._query_contacts(query)

    def gpu_query_contact_pair_impulses(self, query: ContactQuery) -> None:
        """Fills ``query.cuda_impulses`` with the impulses of the last substep."""
        self._query_contacts(query)
