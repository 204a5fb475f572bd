"""A PhysX scene without a past, for bodies that have been simulated before.

What PhysX computes depends on more than poses and velocities. The solver treats contacts one after another, and four at a
time where it can. Their order comes from numbers that PhysX gives to contacts and takes back when they end, so it depends
on every contact that the scene has ever had; contacts also keep points and friction anchors from earlier steps. The
difference is in the last bits at first, and grows where objects collide. SAPIEN has no call that undoes this, and removing
all bodies from a scene and adding them again does not either. A new scene does, at a fraction of the cost of new bodies.

A body takes one thing of its past along: the time until it may fall asleep. It can be longer for one that was held at the
end of an episode than for a new one, and a reset does not make it shorter. Waking the body sets it to that of a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sapien
import sapien.physx as physx

_PHYSICAL = (
    physx.PhysxRigidDynamicComponent,
    physx.PhysxRigidStaticComponent,
    physx.PhysxArticulationLinkComponent,
)


@dataclass
class _Content:
    """What moves from scene to scene."""

    entities: list[sapien.Entity]
    """The entities with a body, in the order in which they were built."""
    numbers: list[int]
    """Their ``per_scene_id``, which segmentation images show."""
    others: list[sapien.System]
    """The systems of the scene but PhysX."""


class SceneRenewal:
    """Moves the bodies of CPU scenes to new scenes, in the order in which they were built.

    Entities without a body, such as lights and cameras that hang on nothing, stay in the old scene. Both scenes share the
    render system, so the same things are drawn.

    Args:
        scenes: the scenes. This list is changed in place, and nothing else may hold its scenes: PhysX gives the memory of
            an old scene to the new one only if it is gone by then.
        systems: their PhysX systems; changed in place too.
    """

    def __init__(self, scenes: list[sapien.Scene], systems: list[physx.PhysxCpuSystem]) -> None:
        self._scenes: list[Any] = scenes
        self.systems: list[Any] = systems
        self._contents: list[_Content | None] = [None] * len(scenes)
        self._left: list[sapien.Scene] = []

    def renew(self, index: Iterable[int]) -> list[int]:
        """Renews these scenes. Returns those of which entities stayed behind."""
        before = physx.get_scene_config()
        try:
            return [i for i in index if self._renew(i)]
        finally:
            physx.set_scene_config(before)

    def _renew(self, i: int) -> bool:
        scene, system = self._scenes[i], self.systems[i]
        content = self._contents[i]
        if content is None:
            content = self._contents[i] = _content(scene)
        for entity in content.entities:
            scene.remove_entity(entity)
        stayed = bool(scene.entities)
        if stayed:
            self._left.append(scene)
        timestep, config = system.timestep, system.config
        self._scenes[i] = self.systems[i] = None
        del scene, system
        physx.set_scene_config(config)
        system = physx.PhysxCpuSystem()
        system.timestep = timestep
        scene = sapien.Scene([system, *content.others])
        _add(scene, content)
        self._scenes[i], self.systems[i] = scene, system
        return stayed


def _content(scene: sapien.Scene) -> _Content:
    entities = [
        entity for entity in scene.entities if any(isinstance(component, _PHYSICAL) for component in entity.components)
    ]
    try:
        others = [scene.render_system]
    except RuntimeError:  # it has none
        others = []
    return _Content(entities, [entity.per_scene_id for entity in entities], others)


def _add(scene: sapien.Scene, content: _Content) -> None:
    """Adds the entities, each with its number."""
    following = 1
    for entity, number in zip(content.entities, content.numbers, strict=True):
        while following < number:  # the number of one that stayed behind
            gap = sapien.Entity()
            scene.add_entity(gap)
            scene.remove_entity(gap)
            following += 1
        scene.add_entity(entity)
        following += 1
        for component in entity.components:
            if isinstance(component, physx.PhysxRigidDynamicComponent) and not component.kinematic:
                component.wake_up()
