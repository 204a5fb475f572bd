"""The robot's visual meshes with about a tenth of their triangles, made on first use and kept on disk.

The cost of a renderer without a GPU grows with the number of vertices. The Panda's 135,548 triangles, and the 425,160 of
the camera on its hand, take most of the time of an image of 128 x 128 pixels. Collision shapes stay as they are.

A mesh file is reduced once. The result is stored in the cache folder as ``<key>-<digest>.glb``. The key identifies the
original file and the recipe. The digest is that of the result, so that a damaged file is detected and made again. Files
are written under a temporary name and then renamed, so any number of processes may start at the same time.
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
"""Increase it when the output of `reduce_mesh` changes, so that old results are not used."""
KEPT_SHARE = 0.1
"""Share of a submesh's triangles that is kept, within the two limits below."""
MIN_TRIANGLES, MAX_TRIANGLES = 400, 1500
"""Limits of the triangles that are kept of a submesh. A submesh with fewer triangles keeps them all."""
CLUSTER_CELL = 0.06
"""Cell size for clustering the vertices of a mesh that cannot be decimated, as a share of its longest side."""
AGGRESSION = 3
"""Aggression of the decimation, 0 to 10. Lower values are better and slower; 1 stops too early."""
CREASE_ANGLE = np.radians(40)
"""Faces that meet at a smaller angle are shaded smoothly, rad."""


def cache_dir() -> Path:
    """The folder of reduced meshes: below $MIKASA_CACHE, or $XDG_CACHE_HOME/mikasa, or ~/.cache/mikasa."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser() / "low_poly"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mikasa" / "low_poly"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _clustered(mesh: trimesh.Trimesh, cell: float) -> trimesh.Trimesh:
    """``mesh`` with all vertices in one cell of a grid of size ``cell`` (m) replaced by their mean."""
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
    # in the file no two triangles share a corner; the decimation needs shared ones to find edges
    joined = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    joined.merge_vertices(merge_tex=True, merge_norm=True)
    target = max(MIN_TRIANGLES, min(int(KEPT_SHARE * len(mesh.faces)), MAX_TRIANGLES))
    reduced = _decimated(joined, target)
    if len(reduced.faces) > 2 * target:
        # the decimation keeps the edges of small parts, and this mesh has many
        reduced = _decimated(_clustered(joined, CLUSTER_CELL * joined.extents.max()), target)
    return trimesh.graph.smooth_shade(reduced, angle=CREASE_ANGLE)


def reduce_mesh(path: Path) -> bytes:
    """The content of a GLB file with the submeshes of the file ``path``, reduced, with their poses and materials.

    Submeshes with a texture are kept as they are, since texture coordinates would be lost.
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
    """The stored result for ``key``, or None. Removes damaged ones."""
    for path in sorted(folder.glob(f"{glob.escape(key)}-*.glb")):
        with contextlib.suppress(OSError):  # another process may have removed it
            if _digest(path.read_bytes()) == path.stem.removeprefix(f"{key}-"):
                return path
            logger.warning("%s is damaged; making it again", path)
            path.unlink()
    return None


@functools.cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mikasa-low-poly-")


def _writable(folder: Path) -> Path:
    """``folder`` if it can be written to, else a temporary folder that lasts as long as this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        logger.warning(
            "cannot store reduced meshes in %s (%s), so every process makes its own: set %s to a folder that can be "
            "written to",
            folder,
            error,
            CACHE_VARIABLE,
        )
        return Path(_process_folder().name)
    return folder


def low_poly_file(path: str | Path) -> Path:
    """The reduced version of the mesh file ``path``. It is made now if the cache does not have it."""
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
    """GLB files contain their material. An STL file does not, and as GLB it would get another default material."""
    suffix = Path(record.filename).suffix.lower()
    return record.type == "file" and (suffix == ".glb" or (suffix == ".stl" and record.material is not None))


@contextlib.contextmanager
def low_poly_robots(scene: ManiSkillScene) -> Iterator[None]:
    """A context in which robots that ``scene`` loads from URDF files get reduced visual meshes."""
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
    """Replaces ManiSkill's ground, a plane of 20,000 triangles, by one of 8 triangles with the same texture."""
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
