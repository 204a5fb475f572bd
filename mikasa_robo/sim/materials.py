"""Render materials on machines where SAPIEN has no renderer.

ManiSkill describes what things look like even if nothing is drawn, and SAPIEN cannot make a `RenderMaterial` without a
Vulkan driver ("failed to find a rendering device"). Robots with colours in their URDF file could not be loaded at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sapien
import sapien.pysapien
import sapien.render
import sapien.wrapper.urdf_loader

# the modules in which builders look the class up
_HOLDERS = (sapien.render, sapien.pysapien.render, sapien.wrapper.urdf_loader)


class UndrawnMaterial:
    """Stands in for a material and holds whatever it is given."""

    def __init__(self, **properties: Any) -> None:
        self.__dict__.update(properties)


@contextlib.contextmanager
def undrawn_materials() -> Iterator[None]:
    """A block in which a scene without a renderer can be built on a machine without Vulkan.

    Also on one with Vulkan no device is opened, which would take time and could fail.
    """
    originals = [holder.RenderMaterial for holder in _HOLDERS]
    for holder in _HOLDERS:
        holder.RenderMaterial = UndrawnMaterial
    try:
        yield
    finally:
        for holder, original in zip(_HOLDERS, originals, strict=True):
            holder.RenderMaterial = original
