"""Copies what is drawn of a SAPIEN scene into another process.

`describe` turns a scene into plain data that can be pickled, and `build` makes a scene of it that has the same entities,
shapes, materials and lights, and no physics. Imports SAPIEN and numpy only, so a process that draws starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import sapien
import sapien.render as render

__all__ = ["Appearance", "CannotCopyError", "Description", "build", "cameras_of", "describe", "pack_poses"]

_MATERIAL = (
    *("base_color", "emission", "specular", "roughness", "metallic", "transmission", "ior"),
    "transmission_roughness",
)
_TEXTURES = (
    *("base_color_texture", "roughness_texture", "normal_texture", "metallic_texture", "emission_texture"),
    "transmission_texture",
)
_TEXTURE = ("filename", "width", "height", "channels", "format", "mipmap_levels", "filter_mode", "address_mode")
_LIGHT = ("color", "shadow", "shadow_near", "shadow_far", "shadow_map_size")
_LIGHTS: dict[type, tuple[str, ...]] = {
    render.RenderDirectionalLightComponent: ("shadow_half_size",),
    render.RenderPointLightComponent: (),
    render.RenderSpotLightComponent: ("inner_fov", "outer_fov"),
}
_PRIMITIVES: dict[type, tuple[str, ...]] = {
    render.RenderShapeBox: ("half_size",),
    render.RenderShapeSphere: ("radius",),
    render.RenderShapeCapsule: ("radius", "half_length"),
    render.RenderShapeCylinder: ("radius", "half_length"),
    render.RenderShapePlane: ("scale",),
}
_BODY = ("visibility", "shading_mode")
_CAMERA = ("width", "height", "near", "far", "fx", "fy", "cx", "cy", "skew")

Description = dict[str, Any]
"""Plain values, tuples, lists, dicts and numpy arrays."""


class CannotCopyError(ValueError):
    """A scene holds something that `describe` or `build` does not know. The message names it."""


def _plain(value: Any) -> Any:
    """A value of SAPIEN as one that can be pickled and compared."""
    if isinstance(value, sapien.Pose):
        return (*value.p.tolist(), *value.q.tolist())
    return (
        tuple(value.tolist()) if isinstance(value, np.ndarray) else tuple(value) if isinstance(value, list) else value
    )


def _read(thing: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: _plain(getattr(thing, name)) for name in names}


def _pose(values: Sequence[float]) -> sapien.Pose:
    return sapien.Pose(values[:3], values[3:])


# ---------------------------------------------------------------------- from a scene
def describe(scene: sapien.Scene, wanted: Collection[render.RenderCameraComponent] = ()) -> Description:
    """What is drawn of ``scene``, by the cameras ``wanted``.

    Raises:
        CannotCopyError: there is something else in it than rigid bodies, lights and perspective cameras.
    """
    system = scene.render_system
    if system.cubemap is not None:
        raise CannotCopyError("an environment map")
    return {
        "ambient_light": _plain(system.ambient_light),
        "entities": [
            {
                "name": entity.name,
                "id": entity.per_scene_id,
                "pose": _plain(entity.pose),
                "components": [_component(c, wanted) for c in entity.components if _is_drawn(c, wanted)],
            }
            for entity in _entities(scene)
        ],
    }


def _is_drawn(component: Any, wanted: Collection[render.RenderCameraComponent]) -> bool:
    if isinstance(component, render.RenderCameraComponent):
        return component in wanted
    return not isinstance(component, sapien.physx.PhysxBaseComponent)


def _parts(scene: sapien.Scene) -> list[sapien.Scene]:
    """``scene``, and the scenes in which lights and cameras that it is drawn with stayed when it was renewed."""
    system = scene.render_system
    parts = [scene]
    for component in (*system.lights, *system.cameras):
        if component.entity.scene not in parts:
            parts.append(component.entity.scene)
    return parts


def _entities(scene: sapien.Scene) -> list[sapien.Entity]:
    """All that is drawn together with ``scene``, by number."""
    entities = (entity for part in _parts(scene) for entity in part.entities)
    return sorted(entities, key=lambda entity: entity.per_scene_id)


def pack_poses(scene: sapien.Scene) -> bytes:
    """The poses of all that is drawn together with ``scene``, as ``Scene.unpack_poses`` of its copy reads them."""
    parts = _parts(scene)
    if len(parts) == 1:
        packed: bytes = scene.pack_poses()
        return packed
    numbers = [entity.per_scene_id for part in parts for entity in part.entities]
    poses = np.frombuffer(b"".join(part.pack_poses() for part in parts), np.uint8)
    return poses.reshape(len(numbers), -1)[np.argsort(numbers)].tobytes()


def cameras_of(scene: sapien.Scene) -> list[render.RenderCameraComponent]:
    """The cameras of ``scene``, in the order of its entities."""
    components = (component for entity in _entities(scene) for component in entity.components)
    return [component for component in components if isinstance(component, render.RenderCameraComponent)]


def _component(component: Any, wanted: Collection[render.RenderCameraComponent]) -> Description:
    kind = type(component)
    told: Description = {"kind": kind.__name__, "name": component.name, "enabled": component.is_enabled}
    if kind is render.RenderBodyComponent:
        shapes = [_shape(shape) for shape in component.render_shapes]
        return told | _read(component, (*_BODY, "is_render_id_disabled")) | {"shapes": shapes}
    if kind in _LIGHTS:
        return told | _read(component, (*_LIGHT, *_LIGHTS[kind], "local_pose"))
    if kind is render.RenderCameraComponent:
        if component.mode != "perspective":
            raise CannotCopyError(f"the {component.mode} camera {component.name!r}")
        return told | _read(component, (*_CAMERA, "local_pose"))
    raise CannotCopyError(f"a {kind.__name__} of {component.entity.name!r}")


def _shape(shape: Any) -> Description:
    kind = type(shape)
    told: Description = {"kind": kind.__name__, **_read(shape, ("name", "front_face", "local_pose"))}
    if kind in _PRIMITIVES:
        return told | _read(shape, _PRIMITIVES[kind]) | {"materials": [_material(shape.material)]}
    if kind is not render.RenderShapeTriangleMesh:
        raise CannotCopyError(f"a {kind.__name__}")
    told |= _read(shape, ("filename", "scale")) | {"materials": [_material(part.material) for part in shape.parts]}
    if not shape.filename:
        if len(shape.parts) != 1:
            raise CannotCopyError("a mesh of several parts without a file")
        (part,) = shape.parts
        told["arrays"] = (part.vertices, part.triangles, part.get_vertex_normal(), part.get_vertex_uv())
    return told


def _material(material: render.RenderMaterial) -> Description:
    textures = {name: getattr(material, name) for name in _TEXTURES}
    return _read(material, _MATERIAL) | {
        name: None if texture is None else _read(texture, (*_TEXTURE, "is_srgb")) for name, texture in textures.items()
    }


# ---------------------------------------------------------------------- to a scene
def build(description: Description, device: sapien.Device) -> sapien.Scene:
    """A scene without physics that looks as described.

    Raises:
        CannotCopyError: it does not, for example because a file has changed.
    """
    scene = sapien.Scene([render.RenderSystem(device)])
    scene.render_system.ambient_light = description["ambient_light"]
    for told in description["entities"]:
        entity = sapien.Entity()
        entity.name = told["name"]
        for component in told["components"]:
            entity.add_component(_MAKERS[component["kind"]](component))
        entity.pose = _pose(told["pose"])
        scene.add_entity(entity)
        _require_equal(entity.per_scene_id, told["id"], f"the number of {entity.name!r}")
    made = describe(scene, cameras_of(scene))
    for here, there in zip(made["entities"], description["entities"], strict=True):
        _require_equal(here, there, f"{there['name']!r}")
    return scene


def _require_equal(here: Any, there: Any, what: str) -> None:
    """Raises CannotCopyError unless the two are equal to the last bit."""
    if isinstance(there, dict):
        for name, value in there.items():
            _require_equal(here[name], value, f"{what}, {name}")
    elif isinstance(there, list) or (isinstance(there, tuple) and any(isinstance(v, np.ndarray) for v in there)):
        if len(here) != len(there):
            raise CannotCopyError(f"{what}: {len(here)} instead of {len(there)}")
        for i, (own, value) in enumerate(zip(here, there, strict=True)):
            _require_equal(own, value, f"{what} {i}")
    elif not np.array_equal(here, there):
        raise CannotCopyError(f"{what}: {here} instead of {there}")


def _named(component: Any, told: Description) -> Any:
    component.name = told["name"]
    if not told["enabled"]:
        component.disable()
    return component


def _make_body(told: Description) -> render.RenderBodyComponent:
    body = render.RenderBodyComponent()
    for shape in told["shapes"]:
        body.attach(_make_shape(shape))
    for name in _BODY:
        setattr(body, name, told[name])
    if told["is_render_id_disabled"]:
        body.disable_render_id()
    return _named(body, told)


def _make_shape(told: Description) -> Any:
    kind = getattr(render, told["kind"])
    if kind in _PRIMITIVES:
        values = [told[name] for name in _PRIMITIVES[kind]]
        shape = kind(*values, _make_material(told["materials"][0]))
    elif not told["filename"]:
        shape = render.RenderShapeTriangleMesh(*told["arrays"], _make_material(told["materials"][0]))
        shape.scale = told["scale"]
    else:
        shape = render.RenderShapeTriangleMesh(told["filename"], told["scale"])
        found = [_material(part.material) for part in shape.parts]
        if found != told["materials"] and all(other == told["materials"][0] for other in told["materials"]):
            # a material of its own, given when the file was loaded
            material = _make_material(told["materials"][0])
            shape = render.RenderShapeTriangleMesh(told["filename"], told["scale"], material)
    shape.name, shape.local_pose, shape.front_face = told["name"], _pose(told["local_pose"]), told["front_face"]
    return shape


def _make_material(told: Description) -> render.RenderMaterial:
    material = render.RenderMaterial()
    for name in _MATERIAL:
        setattr(material, name, told[name])
    for name in _TEXTURES:
        texture = told[name]
        if texture is None:
            continue
        if not texture["filename"]:
            raise CannotCopyError(f"a {name} that comes from no file")
        made = render.RenderTexture2D(
            texture["filename"],
            texture["mipmap_levels"],
            texture["filter_mode"],
            texture["address_mode"],
            texture["is_srgb"],
        )
        setattr(material, name, made)
    return material


def _make_light(told: Description) -> Any:
    light = getattr(render, told["kind"])()
    for name in (*_LIGHT, *_LIGHTS[type(light)]):
        setattr(light, name, told[name])
    light.local_pose = _pose(told["local_pose"])
    return _named(light, told)


def _make_camera(told: Description) -> render.RenderCameraComponent:
    camera = render.RenderCameraComponent(told["width"], told["height"])
    names = ("near", "far", "fx", "fy", "cx", "cy", "skew")
    camera.set_perspective_parameters(*(told[name] for name in names))
    camera.local_pose = _pose(told["local_pose"])
    return _named(camera, told)


_MAKERS: dict[str, Callable[[Description], Any]] = {
    "RenderBodyComponent": _make_body,
    "RenderCameraComponent": _make_camera,
    **{kind.__name__: _make_light for kind in _LIGHTS},
}


# ---------------------------------------------------------------------- what changes
class Appearance:
    """Notices what a task or a user changes in a scene between two images, apart from poses.

    That is: entities that come or go, the visibility of bodies, base colours, lights, and the cameras' parameters.
    Comparing all that `describe` tells would take a good part of the time of an image.

    Args:
        scene: the scene, as it is now.
        cameras: the cameras that draw it.
    """

    def __init__(self, scene: sapien.Scene, cameras: Sequence[render.RenderCameraComponent]) -> None:
        # not the scene itself: another one with the same render system may take its place
        self._system, self._cameras, system = scene.render_system, cameras, scene.render_system
        self._bodies, self._lights = system.render_bodies, system.lights
        shapes = [shape for body in self._bodies for shape in body.render_shapes]
        self._materials = [part.material for shape in shapes for part in shape.parts]
        self._was = self._now()

    def _now(self) -> tuple[Any, ...]:
        system = self._system
        drawn = (*system.render_bodies, *system.lights, *system.cameras)
        return (
            [component.entity.per_scene_id for component in drawn],
            [body.visibility for body in self._bodies],
            [body.is_enabled for body in self._bodies],
            [material.base_color for material in self._materials],
            [(light.color.tolist(), _plain(light.local_pose)) for light in self._lights],
            [_read(camera, (*_CAMERA, "local_pose")) for camera in self._cameras],
            system.ambient_light.tolist(),
        )

    def has_changed(self) -> bool:
        """Whether the scene looks different from how it did at the start."""
        return self._now() != self._was
