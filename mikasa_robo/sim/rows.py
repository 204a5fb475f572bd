"""Which row of the simulator's buffers belongs to which body, link or articulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import sapien
import sapien.physx as physx

from .strictness import GpuApiMisuse


class RowLayout:
    """The rows of N scenes, fixed when the buffers are allocated.

    ``cuda_rigid_body_data`` holds the rigid dynamic (and kinematic) bodies of scene 0, of scene 1, …, then the links of
    every articulation in the same order. ``cuda_articulation_*`` hold one row per articulation.

    Args:
        scenes: the sub-scenes, complete. The list is kept: a scene in it may be replaced by one with the same bodies.
    """

    def __init__(self, scenes: list[sapien.Scene]) -> None:
        self.scenes = scenes
        self.bodies: list[physx.PhysxRigidDynamicComponent] = []
        self.articulations: list[physx.PhysxArticulation] = []
        body_scene: list[int] = []
        articulation_scene: list[int] = []
        for i, scene in enumerate(self.scenes):
            system = scene.physx_system
            for body in system.rigid_dynamic_components:
                self.bodies.append(body)
                body_scene.append(i)
            for link in system.articulation_link_components:
                if link.is_root:
                    self.articulations.append(link.articulation)
                    articulation_scene.append(i)
        self.body_scene = np.array(body_scene, dtype=np.int64)
        self.articulation_scene = np.array(articulation_scene, dtype=np.int64)
        self.entities = [body.entity for body in self.bodies]
        self.is_kinematic = np.array([bool(body.kinematic) for body in self.bodies], dtype=bool)
        self.dofs = [int(a.dof) for a in self.articulations]
        self.links = [list(a.links) for a in self.articulations]
        self.joints = [list(a.active_joints) for a in self.articulations]
        self.all_links = [link for links in self.links for link in links]
        self.bodies_and_links = [*self.bodies, *self.all_links]
        self.num_bodies, self.num_links = len(self.bodies), len(self.all_links)
        self.num_articulations = len(self.articulations)
        self.max_dof = max(self.dofs, default=0)
        self.max_links = max((len(links) for links in self.links), default=0)
        # row of the root link of each articulation
        self.link_start = np.cumsum([0, *(len(links) for links in self.links)])[:-1] + self.num_bodies

        # scene of each row of body data
        link_scene = np.repeat(self.articulation_scene, [len(links) for links in self.links])
        self.row_scene = np.concatenate([self.body_scene, link_scene])

        self._row: dict[Any, int] = {body: row for row, body in enumerate(self.bodies)}
        self._row |= {articulation: row for row, articulation in enumerate(self.articulations)}
        self._row |= {link: self.num_bodies + k for k, link in enumerate(self.all_links)}
        self._scene: dict[Any, int] = dict(zip(self.bodies, body_scene, strict=True))
        for links, scene_index in zip(self.links, articulation_scene, strict=True):
            self._scene |= dict.fromkeys(links, scene_index)

    def row_of(self, thing: Any) -> int:
        """The row of a body or link in ``cuda_rigid_body_data``, of an articulation in ``cuda_articulation_*``."""
        try:
            return self._row[thing]
        except KeyError:
            raise GpuApiMisuse(
                f"{getattr(thing, 'name', thing)!r} was added after gpu_init and is not part of the simulation's buffers: "
                "build it in _load_scene, or reset with options={'reconfigure': True}"
            ) from None

    def scene_of(self, body: physx.PhysxRigidBaseComponent) -> int:
        """The index of the scene that a body or link is in."""
        known = self._scene.get(body)
        if known is None:
            # static bodies have no row: find the scene that holds their entity
            known = self._scene[body] = self.scenes.index(body.entity.scene)
        return known
