"""Bodies made of primitives: cube, ball, disc, peg, mug."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sapien
import sapien.physx as physx
import sapien.render
import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets import palette
from mikasa_robo.assets.palette import COLORS

MUG_RADIUS = 0.030
"""Outer radius of the mug, m. Its diameter of 6 cm fits between the Panda's fingers, which open to 8 cm."""
MUG_INNER_RADIUS = 0.025
"""Inner radius of the mug, m. A ball of radius 0.02 m has a clearance of 5 mm."""
MUG_HEIGHT = 0.08
"""m"""
BALL_RADIUS = 0.02
"""m"""
DISC_THICKNESS = 0.001
"""m; a thinner disc would flicker against the table top in images."""
_WALLS = 8
_MAX_DEPENETRATION_SPEED = 5.0
"""m/s. At 2 and below, a closing gripper sinks into objects; above 5, an object that appears inside the hand is ejected."""


def plain_material(scene: ManiSkillScene, rgba: Sequence[float]) -> sapien.render.RenderMaterial | None:
    """A material of one colour; None if the scene is not rendered, as SAPIEN makes materials only on a render device."""
    if not scene.can_render():
        return None
    return sapien.render.RenderMaterial(base_color=list(rgba), roughness=0.6, specular=0.2)


def build_dynamic(builder: ActorBuilder, name: str, parked: int) -> Actor:
    """Builds a dynamic body; for ``parked`` see `build_cube`."""
    # objects must not touch each other where they are built
    builder.initial_pose = sapien.Pose(p=[0, float(parked), 1000.0])
    actor = builder.build_dynamic(name=name)
    for body in actor._bodies:
        body.set_max_depenetration_velocity(_MAX_DEPENETRATION_SPEED)
    return actor


def build_cube(scene: ManiSkillScene, name: str, rgba: Sequence[float], half_size: float, parked: int) -> Actor:
    """A cube of 1000 kg/m³.

    Args:
        scene: where it is built, once in every environment.
        name: name of the actor.
        rgba: colour in [0, 1].
        half_size: half the side, m.
        parked: number of the place far above the table at which it is built. Places are 1 m apart; each object of a task
            needs its own.
    """
    builder = scene.create_actor_builder()
    builder.add_box_collision(half_size=[half_size] * 3)
    material = plain_material(scene, rgba)
    if material is not None:
        builder.add_box_visual(half_size=[half_size] * 3, material=material)
    return build_dynamic(builder, name, parked)


def build_colored_cube(scene: ManiSkillScene, color: int) -> Actor:
    """A cube (half size 0.02 m) in colour number ``color`` of the palette."""
    name = list(COLORS)[color]
    return build_cube(scene, f"cube_{name}", palette.rgba(name), 0.02, parked=color)


def build_ball(
    scene: ManiSkillScene,
    name: str,
    rgba: Sequence[float] | None,
    radius: float,
    parked: int,
    *,
    linear_damping: float = 0.5,
    angular_damping: float = 2.0,
) -> Actor:
    """A ball of 300 kg/m³, which by default comes to rest by itself.

    Dampings are PhysX's, 1/s. Without a colour (``rgba=None``) no camera sees it. Else see `build_cube`.
    """
    builder = scene.create_actor_builder()
    builder.add_sphere_collision(radius=radius, density=300)
    material = None if rgba is None else plain_material(scene, rgba)
    if material is not None:
        builder.add_sphere_visual(radius=radius, material=material)
    actor = build_dynamic(builder, name, parked)
    for body in actor._bodies:
        body.set_linear_damping(linear_damping)
        body.set_angular_damping(angular_damping)
    return actor


def build_ball_image(scene: ManiSkillScene, name: str, rgba: Sequence[float], radius: float, parked: int) -> Actor:
    """What a ball looks like: a kinematic sphere that nothing collides with. See `build_cube` for the arguments."""
    builder = scene.create_actor_builder()
    material = plain_material(scene, rgba)
    if material is not None:
        builder.add_sphere_visual(radius=radius, material=material)
    builder.initial_pose = sapien.Pose(p=[0, float(parked), 1000.0])
    return builder.build_kinematic(name=name)


def build_disc(scene: ManiSkillScene, name: str, rgba: Sequence[float], radius: float, parked: int) -> Actor:
    """A flat kinematic disc that marks a place. Nothing collides with it. Its axis is x; see `disc_pose`."""
    builder = scene.create_actor_builder()
    material = plain_material(scene, rgba)
    if material is not None:
        builder.add_cylinder_visual(radius=radius, half_length=DISC_THICKNESS / 2, material=material)
    builder.initial_pose = sapien.Pose(p=[0, float(parked), 1000.0])
    return builder.build_kinematic(name=name)


def disc_pose(xy: Tensor) -> Tensor:
    """Poses (…, 7) of discs that lie flat on the table at ``xy`` (…, 2), m: their axis, x, points up."""
    pose = torch.zeros(*xy.shape[:-1], 7, dtype=xy.dtype, device=xy.device)
    pose[..., :2] = xy
    pose[..., 2] = DISC_THICKNESS / 2
    pose[..., 3], pose[..., 5] = math.sqrt(0.5), -math.sqrt(0.5)
    return pose


def build_peg(
    scene: ManiSkillScene, name: str, rgba: Sequence[float], half_length: float, half_width: float, parked: int
) -> Actor:
    """A peg: a box of 300 kg/m³ whose long side is x. Sizes in m; else see `build_cube`."""
    builder = scene.create_actor_builder()
    half_size = [half_length, half_width, half_width]
    builder.add_box_collision(half_size=half_size, density=300)
    material = plain_material(scene, rgba)
    if material is not None:
        builder.add_box_visual(half_size=half_size, material=material)
    return build_dynamic(builder, name, parked)


def build_mug(scene: ManiSkillScene, name: str, rgba: Sequence[float], parked: int) -> Actor:
    """A mug upside down: a ring of walls under a lid, open below. Its origin is at half its height.

    Collision and visual shapes are the same boxes, except that the collision shape of every second wall ends 1 mm above
    the table. Fewer contacts keep the simulation fast. Neighbouring walls overlap at their edges, so that no gap shows the
    inside.
    """
    builder = scene.create_actor_builder()
    smooth = physx.PhysxMaterial(static_friction=0.4, dynamic_friction=0.4, restitution=0.0)
    material = plain_material(scene, rgba)
    thickness = (MUG_RADIUS - MUG_INNER_RADIUS) / 2
    middle = (MUG_RADIUS + MUG_INNER_RADIUS) / 2
    half_length = MUG_RADIUS * math.tan(math.pi / _WALLS) * 1.02
    parts = []
    for k in range(_WALLS):
        angle = 2 * math.pi * k / _WALLS
        pose = sapien.Pose(
            p=[middle * math.cos(angle), middle * math.sin(angle), 0],
            q=[math.cos(angle / 2), 0, 0, math.sin(angle / 2)],
        )
        parts.append((pose, [thickness, half_length, MUG_HEIGHT / 2]))
    lid_half = 0.003
    for k in range(_WALLS // 2):
        # a strip from each wall to the opposite one; together they close the polygon
        angle = 2 * math.pi * k / _WALLS
        pose = sapien.Pose(p=[0, 0, MUG_HEIGHT / 2 - lid_half], q=[math.cos(angle / 2), 0, 0, math.sin(angle / 2)])
        parts.append((pose, [MUG_RADIUS, half_length, lid_half]))
    lift = 0.0005
    for k, (pose, half_size) in enumerate(parts):
        collision_pose, collision_half_size = pose, list(half_size)
        if k < _WALLS and k % 2:
            collision_pose = sapien.Pose(p=[pose.p[0], pose.p[1], pose.p[2] + lift], q=pose.q)
            collision_half_size[2] -= lift
        builder.add_box_collision(pose=collision_pose, half_size=collision_half_size, material=smooth, density=300)
        if material is not None:
            builder.add_box_visual(pose=pose, half_size=half_size, material=material)
    return build_dynamic(builder, name, parked)
