"""Render materials on machines where SAPIEN has no renderer.

ManiSkill describes what things look like even if nothing is drawn, and SAPIEN cannot make a `RenderMaterial` without a
Vulkan driver ("failed to find a rendering device"). Robots with colours in their URDF or MJCF file, and tasks that describe
their objects, could not be loaded at all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sapien
import sapien.pysapien
import sapien.render
import sapien.wrapper.urdf_loader
from mani_skill.envs.tasks.tabletop import push_t
from mani_skill.utils.building import _mjcf_loader as mjcf_loader
from mani_skill.utils.scene_builder.table import TableSceneBuilder


class UndrawnMaterial:
    """Stands in for a material and holds whatever it is given, by attribute, by ``set_…`` or by keyword."""

    def __init__(self, **properties: Any) -> None:
        self.__dict__.update(properties)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb, _, of = name.partition("_")
        if verb == "set" and hasattr(_DRAWN, name):
            return functools.partial(setattr, self, of)
        if verb == "get" and hasattr(_DRAWN, name):
            return lambda: self.__dict__.get(of)
        raise AttributeError(f"{type(self).__name__} was given no {name!r}")


_DRAWN = sapien.render.RenderMaterial

_STAND_INS: tuple[tuple[Any, str, Any], ...] = (
    # the modules in which builders look the class up
    *((holder, "RenderMaterial", UndrawnMaterial) for holder in (sapien.render, sapien.pysapien.render)),
    *((loader, "RenderMaterial", UndrawnMaterial) for loader in (sapien.wrapper.urdf_loader, mjcf_loader)),
    # PushT-v1 builds a table and then paints the parts that are drawn; there are none.
    (push_t.WhiteTableSceneBuilder, "build", TableSceneBuilder.build),
)
"""Where something is replaced, its name there, and what replaces it."""


@contextlib.contextmanager
def undrawn_materials() -> Iterator[None]:
    """A block in which a scene without a renderer can be built on a machine without Vulkan.

    Also on one with Vulkan no device is opened, which would take time and could fail.
    """
    originals = [getattr(holder, name) for holder, name, _ in _STAND_INS]
    for holder, name, stand_in in _STAND_INS:
        setattr(holder, name, stand_in)
    try:
        yield
    finally:
        for (holder, name, _), original in zip(_STAND_INS, originals, strict=True):
            setattr(holder, name, original)
