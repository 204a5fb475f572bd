"""The robot's visual meshes with about a tenth of their triangles, made on first use and kept on disk.

A renderer without a GPU pays for every vertex: the Panda's 135,548 triangles, and the 425,160 of the camera on its hand,
are most of the time of a picture of 128 x 128 pixels. What collides is left as it is; only what is drawn changes.

A mesh file is reduced once. The result lies in the cache folder as ``<key>-<digest>.glb``: the key names the file's content
and the recipe, the digest the result's own content, so that a damaged file is noticed and made anew. Files come into
being under another name and are then moved, whole, to their place: any number of processes may start at once.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sapien.render
import trimesh

if TYPE_CHECKING:
    from mani_skill.envs.scene import ManiSkillScene
    from mani_skill.utils.structs import Actor
    from sapien.wrapper.actor_builder import VisualShapeRecord

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "MIKASA_CACHE"
"""Environment variable that names the cache folder."""
RECIPE = 1
"""To be raised with every change of what `reduce_mesh` makes: old results are then left unread."""
KEPT = 0.1
"""Share of a submesh's triangles that is kept."""
FEWEST, MOST = 400, 1500
"""As few and as many triangles as are kept of a submesh; one that has fewer keeps them all."""
CELL = 0.06
"""Size of the cells of a mesh that cannot be decimated, as a share of its longest side."""
AGGRESSION = 3
"""Of the decimation, 0 to 10: less is better and slower; with 1 it stops early."""
CREASE = np.radians(40)
"""Faces that meet at a smaller angle are shaded as one smooth surface, rad."""


def cache_dir() -> Path:
    """The folder of reduced meshes: in $MIKASA_CACHE, else in $XDG_CACHE_HOME/mikasa, else in ~/.cache/mikasa."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser() / "low_poly"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mikasa" / "low_poly"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _clustered(mesh: trimesh.Trimesh, cell: float) -> trimesh.Trimesh:
    """``mesh`` with all vertices in one cell of a grid of ``cell`` (m) drawn together to their mean."""
    _, cluster = np.unique(np.round(mesh.vertices / cell).astype(np.int64), axis=0, return_inverse=True)
    cluster = cluster.reshape(-1)
    count = np.bincount(cluster)
    vertices = np.stack([np.bincount(cluster, mesh.vertices[:, axis]) / count for axis in range(3)], axis=1)
    clustered = trimesh.Trimesh(vertices, cluster[mesh.faces], process=False)
    clustered.update_faces(clustered.nondegenerate_faces() & clustered.unique_faces())
    return clustered


def _decimated(mesh: trimesh.Trimesh, target: int) -> trimesh.Trimesh:
    if len(mesh.faces) <= target:
        return mesh
    return mesh.simplify_quadric_decimation(face_count=target, aggression=AGGRESSION)


def _reduced(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    # in the file every triangle has corners of its own: edges are found only where these are joined
    joined = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    joined.merge_vertices(merge_tex=True, merge_norm=True)
    target = max(FEWEST, min(int(KEPT * len(mesh.faces)), MOST))
    reduced = _decimated(joined, target)
    if len(reduced.faces) > 2 * target:
        # many small parts, whose edges the decimation will not break
        reduced = _decimated(_clustered(joined, CELL * joined.extents.max()), target)
    return trimesh.graph.smooth_shade(reduced, angle=CREASE)


def reduce_mesh(path: Path) -> bytes:
    """The content of a GLB file with the submeshes of the file ``path``, each reduced, with its own place and material.

    Submeshes with a texture are kept as they are: it would lose its place.
    """
    scene = trimesh.load_scene(path, process=False)
    for name, mesh in list(scene.geometry.items()):
        material = getattr(mesh.visual, "material", None)
        if getattr(material, "baseColorTexture", None) is None:
            reduced = _reduced(mesh)
            reduced.visual = trimesh.visual.TextureVisuals(material=material)
            scene.geometry[name] = reduced
    return bytes(scene.export(file_type="glb", include_normals=True))


def _intact(folder: Path, key: str) -> Path | None:
    """The kept result for ``key``; damaged ones are removed."""
    for path in sorted(folder.glob(f"{glob.escape(key)}-*.glb")):
        with contextlib.suppress(OSError):  # another process may have removed it
            if _digest(path.read_bytes()) == path.stem.removeprefix(f"{key}-"):
                return path
            logger.warning("%s is damaged and is made anew", path)
            path.unlink()
    return None


@functools.cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mikasa-low-poly-")


def _writable(folder: Path) -> Path:
    """``folder``; where nothing can be written there, one that lasts as long as this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        logger.warning(
            "reduced meshes cannot be kept in %s (%s), so every process makes its own: set %s to a folder that can be "
            "written to",
            folder,
            error,
            CACHE_VARIABLE,
        )
        return Path(_process_folder().name)
    return folder


def low_poly_file(path: str | Path) -> Path:
    """The reduced version of the mesh file ``path``, made now if it is not in the cache."""
    path = Path(path)
    key = f"{path.stem}-{RECIPE}-{_digest(path.read_bytes())}"
    found = _intact(cache_dir(), key)
    if found is not None:
        return found
    folder = _writable(cache_dir())
    found = _intact(folder, key)
    if found is not None:
        return found
    content = reduce_mesh(path)
    target = folder / f"{key}-{_digest(content)}.glb"
    with tempfile.TemporaryDirectory(dir=folder) as private:
        whole = Path(private) / target.name
        whole.write_bytes(content)
        whole.replace(target)
    return target


def _reducible(record: VisualShapeRecord) -> bool:
    """GLB files hold their material; an STL file has none, and a default one would be another in a GLB file."""
    suffix = Path(record.filename).suffix.lower()
    return record.type == "file" and (suffix == ".glb" or (suffix == ".stl" and record.material is not None))


@contextlib.contextmanager
def low_poly_robots(scene: ManiSkillScene) -> Iterator[None]:
    """Within it, robots that ``scene`` loads from URDF files get reduced visual meshes."""
    original = scene.create_urdf_loader

    def create_urdf_loader() -> Any:
        loader = original()
        parse = loader.parse

        def parse_and_reduce(*args: Any, **kwargs: Any) -> Any:
            parsed = parse(*args, **kwargs)
            for builder in parsed["articulation_builders"]:
                for link in builder.link_builders:
                    for record in link.visual_records:
                        if _reducible(record):
                            record.filename = str(low_poly_file(record.filename))
            return parsed

        loader.parse = parse_and_reduce
        return loader

    scene.create_urdf_loader = create_urdf_loader
    try:
        yield
    finally:
        del scene.create_urdf_loader


def thin_out_ground(ground: Actor) -> None:
    """Gives ManiSkill's ground, 20,000 triangles in one plane, the same plane of 8 triangles with the same texture."""
    (stock,) = ground._objs[0].find_component_by_type(sapien.render.RenderBodyComponent).render_shapes
    (part,) = stock.parts
    side = round(len(part.vertices) ** 0.5)  # the vertices are a square grid, row by row
    few = np.linspace(0, side - 1, 3).round().astype(int)
    kept = (few[:, None] * side + few).reshape(-1)
    corners = np.array([[0, 3, 1], [3, 4, 1]])  # of the first of four squares
    shape = sapien.render.RenderShapeTriangleMesh(
        vertices=part.vertices[kept],
        triangles=np.concatenate([corners + first for first in (0, 1, 3, 4)]),
        normals=part.get_vertex_normal()[kept],
        uvs=part.get_vertex_uv()[kept],
        material=part.material,
    )
    for entity in ground._objs:
        entity.remove_component(entity.find_component_by_type(sapien.render.RenderBodyComponent))
        body = sapien.render.RenderBodyComponent()
        body.attach(shape)
        entity.add_component(body)
