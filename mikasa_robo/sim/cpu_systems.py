"""N CPU PhysX systems that are stepped together, with the interface that every PhysX system of SAPIEN has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import sapien
import sapien.physx as physx

from .renewal import SceneRenewal
from .stepping import ScenePool, native_step, steppers
from .strictness import GpuApiMisuse


class CpuSystems:
    """Steps N scenes on several threads.

    Steps are carried out when their result is first asked for, so the substeps of one control step run without a barrier
    in between. What has to be set before them is set by the thread that then steps the scene: it holds Python's global lock
    only for that, while others step.

    Args:
        scenes: the sub-scenes, each with a ``PhysxCpuSystem`` of its own. `renew` changes this list in place.
        threads: how many threads step them.
    """

    def __init__(self, scenes: list[sapien.Scene], threads: int) -> None:
        self.threads = threads
        self._scenes = scenes
        self._systems: list[physx.PhysxCpuSystem] = [scene.physx_system for scene in scenes]
        self._renewal = SceneRenewal(self._scenes, self._systems)
        # scenes in which something was simulated since they were new
        self._simulated = np.zeros(len(scenes), dtype=bool)
        self._offsets: dict[sapien.Scene, np.ndarray] = {}
        self._pool: ScenePool | None = None
        self._pending_substeps = 0
        # what to call before the next substep of a scene
        self._deferred: dict[int, list[Callable[[], None]]] = {}

    # ------------------------------------------------------------------ what is in the scenes
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
        """(3,) m, what `set_scene_offset` was told; zero by default, as every CPU scene has a world of its own."""
        return self._offsets.get(scene, np.zeros(3, dtype=np.float32)).copy()

    def set_scene_offset(self, scene: sapien.Scene, offset: Sequence[float] | np.ndarray) -> None:
        """Remembers where the environment of ``scene`` stands if all are built in one scene. Moves nothing by itself."""
        self._offsets[scene] = np.array(offset, dtype=np.float32)

    def sync_poses_gpu_to_cpu(self) -> None:
        """Finishes outstanding steps. There is nothing to copy, as bodies live on the CPU."""
        self._finish_steps()

    # ------------------------------------------------------------------ stepping
    def _start(self) -> None:
        self._steppers = steppers(self._systems)
        self._simulated[:] = False
        # without the native step threads wait for Python's global lock: a second one only gets in the way
        self._pool = ScenePool(len(self._systems), self.threads if native_step() is not None else 1)
        self.threads = self._pool.threads

    def close(self) -> None:
        """Ends the threads; steps that were not carried out are dropped. May be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._pending_substeps = 0
        self._deferred = {}

    def step(self) -> None:
        """One physics substep of every scene."""
        if self._pool is None:
            raise GpuApiMisuse("step was called before gpu_init")
        self._before_step()
        self._pending_substeps += 1

    def step_start(self) -> None:
        """Starts a step (CPU: the whole step, see `step`)."""
        self.step()

    def step_finish(self) -> None:
        """Waits for a step."""
        self._finish_steps()

    def _defer(self, scene: int, call: Callable[[], None]) -> None:
        """Calls ``call`` before the next substep of ``scene``, or before anything else is read or set in it.

        Steps that were asked for before must have been carried out.
        """
        self._deferred.setdefault(scene, []).append(call)

    def _set_deferred(self) -> None:
        """Makes the deferred calls now, unless they belong to a step that is yet to be carried out."""
        if self._deferred and not self._pending_substeps:
            deferred, self._deferred = self._deferred, {}
            for calls in deferred.values():
                for call in calls:
                    call()

    def _finish_steps(self, read: bool = True) -> None:
        """Carries out the steps asked for so far: one thread takes all substeps of a scene, then the next scene.

        Args:
            read: read the scenes afterwards, as somebody wants to know their state.
        """
        if not self._pending_substeps:
            self._set_deferred()
            return
        assert self._pool is not None
        deferred, self._deferred = self._deferred, {}
        substeps, self._pending_substeps = self._pending_substeps, 0
        stepper_of, read_scene = self._steppers, self._read_scene
        self._forget_scenes()

        def job(scene: int) -> None:
            for call in deferred.get(scene, ()):
                call()
            step = stepper_of[scene]
            for _ in range(substeps):
                step()
            if read:
                read_scene(scene)

        self._simulated[:] = True  # also where this is interrupted
        self._pool.run(job)

    # ------------------------------------------------------------------ a new start
    def renew(self, scenes: Iterable[int]) -> None:
        """Moves the bodies of these scenes to new ones, in which nothing was simulated yet; see `SceneRenewal`.

        Scenes in which nothing was simulated stay as they are.
        """
        self._finish_steps()
        old = [scene for scene in scenes if self._simulated[scene]]
        if not old:
            return
        offsets = {scene: self._offsets.pop(self._scenes[scene], None) for scene in old}
        stayed = self._renewal.renew(old)
        for scene, stepper in zip(old, steppers([self._systems[scene] for scene in old]), strict=True):
            self._steppers[scene] = stepper
            offset = offsets[scene]
            if offset is not None:
                self._offsets[self._scenes[scene]] = offset
        self._simulated[old] = False
        self._after_renewal(old, stayed)

    # ------------------------------------------------------------------ for subclasses
    def _after_renewal(self, scenes: list[int], stayed: list[int]) -> None:
        """Called when ``scenes`` are new; entities of those in ``stayed`` are no longer in them."""

    def _before_step(self) -> None:
        """Called when a step is asked for."""

    def _forget_scenes(self) -> None:
        """Called before outstanding steps are carried out."""

    def _read_scene(self, scene: int) -> None:
        """Called by the thread that has just carried out the steps of a scene."""
