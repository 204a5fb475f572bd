"""Bodies that look like others and touch nothing: what is seen of them leaves no trace in the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sapien
import sapien.render
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs import Actor

SUFFIX = "_cue"


class _LookAlikeBuilder(ActorBuilder):
    """ManiSkill's builder of a body with the visual shapes of another one."""

    def __init__(self, shapes: Sequence[Any]) -> None:
        super().__init__()
        self._shapes = shapes

    def build_entity(self) -> sapien.Entity:
        # a render shape belongs to one entity; clones share its vertices and its material
        self._procedural_shapes = [_clone(shape) for shape in self._shapes]
        return super().build_entity()


def _clone(shape: Any) -> Any:
    clone = shape.clone()
    clone.local_pose, clone.name = shape.local_pose, shape.name
    return clone


def build_cue_bodies(scene: ManiSkillScene, actors: Sequence[Actor], height: float) -> list[Actor]:
    """A kinematic body without collision shapes for each actor, which looks like it; none if nothing is drawn.

    They are not part of saved states: where they belong follows from the task's state.

    Args:
        scene: where they are built, once in every environment.
        actors: K actors, built by now.
        height: z at which the bodies are built, beyond the actors' own parking places, 1 m apart, m.

    Returns:
        K actors, named after the others with `SUFFIX`, or none.
    """
    if not scene.can_render():
        return []
    bodies = []
    for k, actor in enumerate(actors):
        component = actor._objs[0].find_component_by_type(sapien.render.RenderBodyComponent)
        builder = _LookAlikeBuilder([] if component is None else component.render_shapes).set_scene(scene)
        builder.initial_pose = sapien.Pose(p=[0, float(len(actors) + k), height])
        body = builder.build_kinematic(actor.name + SUFFIX)
        scene.remove_from_state_dict_registry(body)
        bodies.append(body)
    return bodies
