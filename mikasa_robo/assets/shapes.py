"""Nine shapes that are easy to tell apart in a 128 x 128 image, in the order of the tasks' indices.

Collision and visual shapes are the same: primitives, and convex hulls drawn with the triangles of the physics engine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import sapien
import sapien.physx as physx
import sapien.render
import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_dynamic, plain_material

Array = npt.NDArray[np.float32]

CIRCUMRADIUS = 0.0325
"""Seen from above, every shape fits in a circle of this radius around its origin, m. A diameter of 6.5 cm fits between
the Panda's fingers, which open to 8 cm."""
MASS = 0.035
"""Mass of every shape, kg. Being equal, it does not tell shapes apart; no density is far above that of water."""

_HALF_HEIGHTS = {
    "cube": CIRCUMRADIUS / math.sqrt(2),
    "sphere": 0.026,  # a larger one looks like the cylinder or the torus, a smaller one like the pyramid
    "cylinder": 0.02,
    "cross": 0.0175,
    "torus": 0.015,
    "star": 0.015,
    "pyramid": 0.025,
    "t_shape": 0.0175,
    "crescent": 0.0175,
}
"""In m. For the sphere it is the radius, for the cube half the side."""
SHAPES: tuple[str, ...] = tuple(_HALF_HEIGHTS)
"""The names, in the order of the tasks' indices."""

_CROSS_HALF_WIDTH = 0.0105
_T_HALF_BAR, _T_HALF_WIDTH = 0.0275, 0.007
_STAR_NOTCH = 0.014
"""Distance of the star's notches from its centre, m."""
_TORUS_HOLE = 0.011
"""Radius of the torus's hole, m. A closed hand (18 x 30 mm) does not fit through it."""
_TORUS_PIECES = 8
_MOUTH_PLACE, _MOUTH_RADIUS = 0.017, 0.024
"""The circle that is cut out of the crescent: y of its centre and its radius, m. A hand that comes down on the origin still
touches the crescent."""
_CRESCENT_PIECES = 6


@dataclass(frozen=True)
class _Box:
    half_size: tuple[float, float, float]
    middle: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class _Ball:
    radius: float


@dataclass(frozen=True)
class _Cylinder:
    radius: float
    half_length: float


@dataclass(frozen=True, eq=False)
class _Hull:
    corners: Array  # (V, 3), m


_Part: TypeAlias = _Box | _Ball | _Cylinder | _Hull


def _on_circle(radius: float, angle: float) -> tuple[float, float]:
    return radius * math.cos(angle), radius * math.sin(angle)


def _prism(polygon: Sequence[tuple[float, float]], half_height: float) -> _Hull:
    """A prism whose base is a convex polygon."""
    return _Hull(np.array([(x, y, z) for z in (-half_height, half_height) for x, y in polygon], dtype=np.float32))


def _cross(half_height: float) -> list[_Box]:
    width = _CROSS_HALF_WIDTH
    reach = math.sqrt(CIRCUMRADIUS**2 - width**2)
    arm, middle = (reach - width) / 2, (reach + width) / 2
    return [
        _Box((reach, width, half_height)),
        _Box((width, arm, half_height), (0.0, middle, 0.0)),
        _Box((width, arm, half_height), (0.0, -middle, 0.0)),
    ]


def _t_shape(half_height: float) -> list[_Box]:
    """Upright in the base camera's image. Its origin is the centre of the circle through the bar's ends and the foot."""
    bar, width = _T_HALF_BAR, _T_HALF_WIDTH
    top, foot = -math.sqrt(CIRCUMRADIUS**2 - bar**2), math.sqrt(CIRCUMRADIUS**2 - width**2)
    joint = top + 2 * width
    return [
        _Box((width, bar, half_height), (top + width, 0.0, 0.0)),
        _Box(((foot - joint) / 2, width, half_height), ((foot + joint) / 2, 0.0, 0.0)),
    ]


def _pyramid(half_height: float) -> list[_Hull]:
    base = [(*_on_circle(CIRCUMRADIUS, math.pi * (2 * k + 1) / 4), -half_height) for k in range(4)]
    return [_Hull(np.array([*base, (0.0, 0.0, half_height)], dtype=np.float32))]


def _star(half_height: float) -> list[_Hull]:
    """Upright in the base camera's image: five kites from the centre to the tips."""
    kites = []
    for k in range(5):
        tip = math.pi + 2 * math.pi * k / 5
        notches = [_on_circle(_STAR_NOTCH, tip + side * math.pi / 5) for side in (-1, 1)]
        kites.append(_prism([(0.0, 0.0), notches[0], _on_circle(CIRCUMRADIUS, tip), notches[1]], half_height))
    return kites


def _torus(half_height: float) -> list[_Hull]:
    """A ring of wedges, each with one face towards the hole and two outside."""
    ring, tube = (CIRCUMRADIUS + _TORUS_HOLE) / 2, (CIRCUMRADIUS - _TORUS_HOLE) / 2
    # the section of the tube is an octagon, so the torus stands on a flat ring
    blunt = math.tan(math.pi / 8)
    section = [(a, b) for s in (-1, 1) for t in (-1, 1) for a, b in ((s * blunt, t), (s, t * blunt))]
    wedges = []
    for k in range(_TORUS_PIECES):
        points = [
            (*_on_circle(ring + across * tube, 2 * math.pi * (k + part) / _TORUS_PIECES), up * half_height)
            for part in (0.0, 0.5, 1.0)
            for across, up in section
            if part != 0.5 or across > 0
        ]
        wedges.append(_Hull(np.array(points, dtype=np.float32)))
    return wedges


def _crescent(half_height: float) -> list[_Hull]:
    """A disc from which a smaller disc towards +y is cut out, in slices from tip to tip with one straight inner face."""
    tip_y = (CIRCUMRADIUS**2 - _MOUTH_RADIUS**2 + _MOUTH_PLACE**2) / (2 * _MOUTH_PLACE)
    tip_x = math.sqrt(CIRCUMRADIUS**2 - tip_y**2)
    # angle of the right tip about the centre of each circle; both arcs run clockwise from there
    outer_tip, inner_tip = math.atan2(tip_y, tip_x), math.atan2(tip_y - _MOUTH_PLACE, tip_x)

    def outer(part: float) -> tuple[float, float]:
        return _on_circle(CIRCUMRADIUS, outer_tip - part * (math.pi + 2 * outer_tip))

    def inner(part: float) -> tuple[float, float]:
        x, y = _on_circle(_MOUTH_RADIUS, inner_tip - part * (math.pi + 2 * inner_tip))
        return x, y + _MOUTH_PLACE

    slices = []
    for k in range(_CRESCENT_PIECES):
        along = [(k + step / 4) / _CRESCENT_PIECES for step in range(5)]
        ends = [inner(part) for part in (along[-1], along[0]) if 0 < part < 1]  # at the tips the arcs meet
        slices.append(_prism([*map(outer, along), *ends], half_height))
    return slices


_MAKERS: dict[str, Callable[[float], Sequence[_Part]]] = {
    "cube": lambda half_height: [_Box((half_height, half_height, half_height))],
    "sphere": lambda half_height: [_Ball(half_height)],
    "cylinder": lambda half_height: [_Cylinder(CIRCUMRADIUS, half_height)],
    "cross": _cross,
    "torus": _torus,
    "star": _star,
    "pyramid": _pyramid,
    "t_shape": _t_shape,
    "crescent": _crescent,
}


@functools.cache
def _parts(shape: str) -> tuple[_Part, ...]:
    """The parts of the shape. They do not overlap, so that its mass is distributed evenly."""
    half_height = resting_height(shape)
    return tuple(_MAKERS[shape](half_height))


def _cook(hull: _Hull) -> physx.PhysxCollisionShapeConvexMesh:
    # in units of the circumradius, as PhysX drops corners that stand out by less than about 0.7 mm if the unit is 1 m
    # (it dropped every second corner of a regular polygon of 32)
    return physx.PhysxCollisionShapeConvexMesh(
        vertices=hull.corners / np.float32(CIRCUMRADIUS),
        scale=[CIRCUMRADIUS] * 3,
        material=physx.get_default_material(),
    )


def _drawing(hulls: Sequence[_Hull], material: sapien.render.RenderMaterial) -> sapien.render.RenderShapeTriangleMesh:
    """All hulls as one mesh of the triangles that collide."""
    cooked = [_cook(hull) for hull in hulls]
    triangles = np.concatenate([(shape.vertices * shape.scale)[shape.triangles] for shape in cooked])  # (T, 3, 3)
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    corners = triangles.reshape(-1, 3)  # not shared between triangles, for flat shading
    return sapien.render.RenderShapeTriangleMesh(
        vertices=corners,
        triangles=np.arange(len(corners), dtype=np.uint32).reshape(-1, 3),
        normals=np.repeat(normals, 3, axis=0),
        uvs=np.zeros((len(corners), 2), dtype=np.float32),
        material=material,
    )


class _ShapeBuilder(ActorBuilder):
    """ManiSkill's builder with convex hulls from corners in memory, where its own reads files; the body gets `MASS`."""

    def __init__(self, hulls: Sequence[_Hull], drawing: sapien.render.RenderShapeTriangleMesh | None) -> None:
        super().__init__()
        self._hulls, self._drawing = hulls, drawing

    def build_physx_component(self, link_parent: Any = None) -> Any:
        component = super().build_physx_component(link_parent)
        for hull in self._hulls:
            shape = _cook(hull)
            shape.set_collision_groups(self.collision_groups)
            component.attach(shape)
        component.inertia, component.mass = component.inertia * (MASS / component.mass), MASS
        return component

    def build_entity(self) -> sapien.Entity:
        if self._drawing is not None:
            # a render shape belongs to one entity; clones share its vertices
            self._procedural_shapes = [self._drawing.clone()]
        return super().build_entity()


def build_shape(scene: ManiSkillScene, shape: str, name: str, rgba: Sequence[float], parked: int) -> Actor:
    """One of `SHAPES`. Without rotation it stands on the table, and it comes to rest by itself.

    Its origin is at half its height. Seen from above it fits in a circle of radius `CIRCUMRADIUS` around the origin.

    Args:
        scene: where it is built, once in every environment.
        shape: one of `SHAPES`; raises KeyError with the names that exist.
        name: name of the actor.
        rgba: colour in [0, 1].
        parked: number of the place at which it is built; see `build_cube`.
    """
    parts = _parts(shape)
    hulls = [part for part in parts if isinstance(part, _Hull)]
    material = plain_material(scene, rgba)
    drawing = _drawing(hulls, material) if hulls and material is not None else None
    builder = _ShapeBuilder(hulls, drawing).set_scene(scene)
    for part in parts:
        if isinstance(part, _Box):
            pose = sapien.Pose(p=part.middle)
            builder.add_box_collision(pose=pose, half_size=part.half_size)
            if material is not None:
                builder.add_box_visual(pose=pose, half_size=part.half_size, material=material)
        elif isinstance(part, _Ball):
            builder.add_sphere_collision(radius=part.radius)
            if material is not None:
                builder.add_sphere_visual(radius=part.radius, material=material)
        elif isinstance(part, _Cylinder):
            upright = sapien.Pose(q=[math.sqrt(0.5), 0, math.sqrt(0.5), 0])  # SAPIEN's axis is x
            size = {"radius": part.radius, "half_length": part.half_length}
            builder.add_cylinder_collision(pose=upright, **size)
            if material is not None:
                builder.add_cylinder_visual(pose=upright, material=material, **size)
    actor = build_dynamic(builder, name, parked)
    if shape == "sphere":
        for body in actor._bodies:  # it would never stop rolling
            body.set_linear_damping(0.5)
            body.set_angular_damping(2.0)
    return actor


def resting_height(shape: str) -> float:
    """z of the shape's origin when it stands on a table at z = 0, which is half its height, m.

    Raises KeyError with the names that exist.
    """
    if shape not in _HALF_HEIGHTS:
        raise KeyError(f"no shape {shape!r}: use one of {', '.join(SHAPES)}")
    return _HALF_HEIGHTS[shape]


def shape_codes(indices: Iterable[int]) -> Tensor:
    """One-hot shapes of K objects, (K, 9) float32; part of the ``objects`` observation."""
    return torch.eye(len(SHAPES))[list(indices)]
