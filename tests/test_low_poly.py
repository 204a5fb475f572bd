"""Low-poly robots: what the reduced meshes keep, their cache, and how far the pictures are from those of the stock robot."""

from __future__ import annotations

import csv
import importlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import sapien.render
import torch
import trimesh
from task_helpers import Env, base, make
from torch import Tensor

import mikasa_robo.core.tabletop
from mikasa_robo.assets import low_poly
from mikasa_robo.assets.low_poly import CACHE_VARIABLE, low_poly_file, reduce_mesh, thin_out_ground
from mikasa_robo.core.env import START_QPOS, MemoryEnv
from mikasa_robo.core.observations import parse_modes
from mikasa_robo.sim.scene import CpuCameraGroup

ROOT = Path(__file__).resolve().parent.parent
TASK = "RememberColor3-v0"
LEAST_PSNR = 30.0
RED, GREEN = [200, 10, 20, 255], [10, 200, 20, 255]


# ---------------------------------------------------------------------- meshes
@pytest.fixture
def mesh_file(tmp_path: Path) -> Path:
    """A red ball of 5120 triangles, moved aside, and a green cube of 12, as a robot's files are: no edge is shared."""
    ball = trimesh.creation.icosphere(subdivisions=4, radius=0.1)
    cube = trimesh.creation.box(extents=[0.1, 0.1, 0.1])
    scene = trimesh.Scene()
    for mesh, name, color in ((ball, "ball", RED), (cube, "cube", GREEN)):
        mesh.unmerge_vertices()
        material = trimesh.visual.material.PBRMaterial(
            name=name, baseColorFactor=color, metallicFactor=0.25, roughnessFactor=0.5
        )
        mesh.visual = trimesh.visual.TextureVisuals(material=material)
        transform = np.eye(4)
        transform[0, 3] = 0.3 if name == "ball" else 0.0
        scene.add_geometry(mesh, geom_name=name, node_name=name, transform=transform)
    path = tmp_path / "ball and cube.glb"
    path.write_bytes(scene.export(file_type="glb"))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "low_poly"


def no_more_work(path: Path) -> bytes:
    raise AssertionError(f"{path} was reduced once more")


def loaded(content: bytes) -> trimesh.Scene:
    return trimesh.load_scene(trimesh.util.wrap_as_stream(content), file_type="glb", process=False)


def test_a_reduced_mesh_keeps_form_place_and_material_of_each_part(mesh_file: Path) -> None:
    scene = loaded(reduce_mesh(mesh_file))
    assert set(scene.geometry) == {"ball", "cube"}
    ball, cube = scene.geometry["ball"], scene.geometry["cube"]
    assert len(ball.faces) == 0.1 * 5120
    assert len(cube.faces) == 12
    assert np.allclose(np.linalg.norm(ball.vertices, axis=1), 0.1, atol=0.003)
    # smooth where the ball is round, sharp at the cube's edges
    outward = ball.vertices / np.linalg.norm(ball.vertices, axis=1, keepdims=True)
    assert float((ball.vertex_normals * outward).sum(axis=1).min()) > 0.98
    assert np.allclose(np.abs(cube.vertex_normals).max(axis=1), 1)
    assert np.allclose(scene.bounds, [[-0.05, -0.1, -0.1], [0.4, 0.1, 0.1]], atol=0.003)
    for mesh, color in ((ball, RED), (cube, GREEN)):
        material = mesh.visual.material
        assert list(material.baseColorFactor) == color
        assert (material.metallicFactor, material.roughnessFactor) == (0.25, 0.5)


def test_a_part_with_a_texture_stays_as_it_is(tmp_path: Path) -> None:
    from PIL import Image

    ball = trimesh.creation.icosphere(subdivisions=4)
    texture = trimesh.visual.material.PBRMaterial(baseColorTexture=Image.new("RGB", (4, 4), (255, 0, 0)))
    ball.visual = trimesh.visual.TextureVisuals(
        uv=np.random.default_rng(0).random((len(ball.vertices), 2)), material=texture
    )
    path = tmp_path / "textured.glb"
    path.write_bytes(ball.export(file_type="glb"))
    (kept,) = loaded(reduce_mesh(path)).geometry.values()
    assert len(kept.faces) == 5120
    assert kept.visual.uv is not None


def test_many_loose_triangles_are_drawn_together(tmp_path: Path) -> None:
    """A soup of triangles that share no edge cannot be decimated as it is: so is the camera on the robot's hand."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(-0.05, 0.05, (6000, 1, 3)) + rng.uniform(-0.004, 0.004, (6000, 3, 3))
    soup = trimesh.Trimesh(corners.reshape(-1, 3), np.arange(18000).reshape(-1, 3), process=False)
    path = tmp_path / "soup.stl"
    soup.export(path)
    scene = loaded(reduce_mesh(path))
    (left,) = scene.geometry.values()
    assert 0 < len(left.faces) < 2000
    assert np.allclose(scene.bounds, soup.bounds, atol=low_poly.CLUSTER_CELL * 0.11)


# ---------------------------------------------------------------------- cache
def test_a_mesh_is_reduced_once_for_each_content_and_recipe(
    mesh_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = low_poly_file(mesh_file)
    assert first.parent == cache
    assert first.read_bytes() == reduce_mesh(mesh_file)
    with monkeypatch.context() as patched:
        patched.setattr(low_poly, "reduce_mesh", no_more_work)
        assert low_poly_file(str(mesh_file)) == first
        patched.setattr(low_poly, "RECIPE", low_poly.RECIPE + 1)
        with pytest.raises(AssertionError, match="once more"):
            low_poly_file(mesh_file)
    scene = trimesh.load_scene(mesh_file, process=False)
    scene.delete_geometry("cube")
    mesh_file.write_bytes(scene.export(file_type="glb"))
    second = low_poly_file(mesh_file)
    assert set(loaded(second.read_bytes()).geometry) == {"ball"}
    assert sorted(cache.iterdir()) == sorted([first, second]), "something else was left behind"


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_file_is_made_anew(
    mesh_file: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = low_poly_file(mesh_file)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {"cut": whole[:-100], "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]}.get(
            damage, b""
        )
    )
    with caplog.at_level(logging.WARNING):
        assert low_poly_file(mesh_file) == path
    assert path.read_bytes() == whole
    assert f"{path} is damaged" in caplog.text


def test_what_another_process_finishes_meanwhile_does_no_harm(
    mesh_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: list[Path] = []

    def slow(path: Path) -> bytes:
        content = reduce_mesh(path)
        with monkeypatch.context() as patched:
            patched.setattr(low_poly, "reduce_mesh", reduce_mesh)
            other.append(low_poly_file(path))
        return content

    monkeypatch.setattr(low_poly, "reduce_mesh", slow)
    assert [low_poly_file(mesh_file)] == other == list(cache.iterdir())


def test_processes_that_start_at_once_share_one_result(mesh_file: Path, cache: Path) -> None:
    # the module alone: the whole package takes seconds to import
    code = "import sys; sys.path.insert(0, sys.argv[1]); import low_poly; print(low_poly.low_poly_file(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(ROOT / "mikasa_robo" / "assets"), str(mesh_file)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {child.communicate(timeout=300)[0].strip().splitlines()[-1] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert said == {str(path) for path in cache.iterdir()}
    (path,) = cache.iterdir()
    assert path.read_bytes() == reduce_mesh(mesh_file)


def test_without_a_folder_to_write_to_the_process_keeps_its_own(
    mesh_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a file"))
    with caplog.at_level(logging.WARNING):
        path = low_poly_file(mesh_file)
    assert CACHE_VARIABLE in caplog.text
    assert path.read_bytes() == reduce_mesh(mesh_file)
    monkeypatch.setattr(low_poly, "reduce_mesh", no_more_work)
    assert low_poly_file(mesh_file) == path


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert low_poly.cache_dir() == Path.home() / ".cache" / "mikasa" / "low_poly"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert low_poly.cache_dir() == tmp_path / "mikasa" / "low_poly"
    monkeypatch.setenv(CACHE_VARIABLE, "~/elsewhere")
    assert low_poly.cache_dir() == Path.home() / "elsewhere" / "low_poly"


# ---------------------------------------------------------------------- the option
@pytest.mark.parametrize("value", ["low-poly", None, True])
def test_robot_visuals_are_checked(value: Any) -> None:
    with pytest.raises(ValueError, match=r"robot_visuals=.*is not known: use 'auto', 'stock' or 'low_poly'"):
        gym.make(TASK, num_envs=2, robot_visuals=value)


def test_without_pictures_no_mesh_is_reduced(cache: Path) -> None:
    made = make(TASK, 2, robot_visuals="low_poly")
    made.reset(seed=0)
    made.close()
    assert not cache.exists()


# ---------------------------------------------------------------------- pictures
@pytest.fixture(scope="module")
def stock() -> Iterator[MemoryEnv[Any]]:
    """Robot and ground as ManiSkill draws them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mikasa_robo.core.tabletop, "thin_out_ground", lambda ground: None)
        made = make(TASK, 1, obs_mode="rgb+depth+segmentation", robot_visuals="stock")
    made.reset(seed=0)
    yield base(made)
    made.close()


@pytest.fixture(scope="module")
def fast() -> Iterator[MemoryEnv[Any]]:
    """As it is by default where the CPU draws."""
    made = make(TASK, 1, obs_mode="rgb+depth+segmentation", render_backend="cpu")
    made.reset(seed=0)
    yield base(made)
    made.close()


def triangles(env: MemoryEnv[Any], names: tuple[str, ...]) -> int:
    """How many triangles the entities whose name holds one of ``names`` are drawn with."""
    bodies = [
        entity.find_component_by_type(sapien.render.RenderBodyComponent)
        for entity in env.scene.sub_scenes[0].entities
        if any(name in entity.name for name in names)
    ]
    return sum(len(part.triangles) for body in bodies if body for shape in body.render_shapes for part in shape.parts)


ROBOT = ("panda_", "camera_link")


def arm_poses() -> Tensor:
    """(6, 9): the start, and up to 0.5 rad from it in every joint."""
    shift = torch.rand(6, 9, generator=torch.Generator().manual_seed(0)) - 0.5
    shift[0], shift[:, 7:] = 0, 0
    return torch.tensor(START_QPOS, dtype=torch.float32) + shift


def seen(env: MemoryEnv[Any], qpos: Tensor) -> dict[str, Tensor]:
    """A copy of the observation with the arms at ``qpos`` (N, 9)."""
    env.agent.robot.set_qpos(qpos)
    if env.gpu_sim_enabled:
        env.scene._gpu_apply_all()
        env.scene.px.gpu_update_articulation_kinematics()
        env.scene._gpu_fetch_all()
    return {name: value.clone() for name, value in env.get_obs().items()}


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio of pictures in 0…255, dB."""
    error = float((a.float() - b.float()).pow(2).mean())
    return 10 * np.log10(255**2 / error) if error else float("inf")


@pytest.mark.render
def test_pictures_are_those_of_the_stock_robot_within_30_db(stock: MemoryEnv[Any], fast: MemoryEnv[Any]) -> None:
    assert (stock.robot_visuals, fast.robot_visuals) == ("stock", "low_poly")
    assert triangles(stock, ROBOT) == 560_708
    assert triangles(fast, ROBOT) < 0.13 * 135_548, "the camera on the hand included"
    for qpos in arm_poses():
        expected, got = seen(stock, qpos[None]), seen(fast, qpos[None])
        for camera, channels in (("base", slice(0, 3)), ("hand", slice(3, 6))):
            quality = psnr(expected["rgb"][..., channels], got["rgb"][..., channels])
            assert quality >= LEAST_PSNR, (camera, qpos.tolist(), quality)
        same = (expected["segmentation"] == got["segmentation"]).float().mean()
        assert float(same) > 0.99
        near = ((expected["depth"] - got["depth"]).abs() <= 10).float().mean()
        assert float(near) > 0.97, "1 cm"


@pytest.mark.render
def test_the_ground_looks_the_same_with_a_few_triangles(stock: MemoryEnv[Any]) -> None:
    assert triangles(stock, ("ground",)) == 20_000
    before = [seen(stock, qpos[None]) for qpos in arm_poses()[:3]]
    thin_out_ground(stock.table_scene.ground)
    assert triangles(stock, ("ground",)) == 8
    for qpos, expected in zip(arm_poses(), before, strict=False):
        got = seen(stock, qpos[None])
        assert psnr(expected["rgb"], got["rgb"]) > 60
        assert torch.equal(expected["segmentation"], got["segmentation"])
        # rounded to mm, which is a matter of luck for a pixel in a thousand
        difference = (expected["depth"] - got["depth"]).abs()
        assert float((difference > 0).float().mean()) < 1e-3


@pytest.mark.render
def test_physics_does_not_notice_what_is_drawn(stock: MemoryEnv[Any], fast: MemoryEnv[Any]) -> None:
    action = torch.full((1, 8), 0.7)
    for env in (stock, fast):
        env.reset(seed=3)
        for _ in range(5):
            env.step(action)
    assert torch.equal(stock.agent.robot.get_qpos(), fast.agent.robot.get_qpos())
    assert torch.equal(stock.object_layout.read(), fast.object_layout.read())


@pytest.mark.render
def test_pictures_of_a_batch_are_those_of_single_environments(fast: MemoryEnv[Any]) -> None:
    """Each to the bit, with an arm of its own: no neighbour is seen."""
    batch = make(TASK, 3, obs_mode="rgb+depth+segmentation", render_backend="cpu")
    batch.reset(seed=[5, 6, 7])
    got = seen(base(batch), arm_poses()[:3])
    assert not torch.equal(got["rgb"][0], got["rgb"][1])
    for i in range(3):
        fast.reset(seed=[5 + i])
        for name, value in seen(fast, arm_poses()[[i]]).items():
            assert torch.equal(value[0], got[name][i]), (i, name)
    batch.close()


@pytest.mark.render
def test_the_robot_is_the_stock_one_in_videos_and_wherever_it_is_asked_for() -> None:
    made = make(TASK, 1, render_mode="rgb_array", render_backend="cpu")
    assert triangles(base(made), ROBOT) == 560_708
    assert triangles(base(made), ("ground",)) == 8
    made.close()
    made = make(TASK, 1, render_mode="rgb_array", render_backend="cpu", robot_visuals="low_poly")
    assert triangles(base(made), ROBOT) < 20_000
    made.close()


@pytest.mark.render
def test_images_cannot_be_chosen_later_where_they_would_show_another_robot() -> None:
    """Made for images, the environment would have the low-poly robot."""
    made = make(TASK, 1, render_mode="rgb_array", render_backend="cpu")
    task = base(made)
    made.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"obs_mode='rgb' needs images.*give gymnasium.make that obs_mode, or robot_vis"
    ):
        task.set_obs_mode("rgb")
    assert task.obs_mode == "state"
    task.set_obs_mode("joints")
    made.close()
    made = make(TASK, 1, render_mode="rgb_array", render_backend="cpu", robot_visuals="stock")
    base(made).set_obs_mode("rgb")
    assert base(made).robot_visuals == "stock"
    made.close()
    made = make(TASK, 1, obs_mode="rgb", render_backend="cpu")
    for mode in ("state", "rgb"):
        base(made).set_obs_mode(mode)
        assert triangles(base(made), ROBOT) < 20_000
    made.close()


# ---------------------------------------------------------------------- physics on the CPU, pictures on a GPU
@pytest.mark.parametrize("drawn_on_cpu", [True, False])
def test_the_robot_in_images_is_the_same_whatever_draws(drawn_on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that learnt from images on a GPU is evaluated on a laptop, too."""
    made = base(make(TASK, 1))
    monkeypatch.setattr(type(made), "drawn_on_cpu", property(lambda self: drawn_on_cpu))
    for pictures, visuals in ((True, "low_poly"), (False, "stock")):
        monkeypatch.setattr(made, "_observes_pictures", pictures)
        assert made.robot_visuals == visuals
        assert made.robot_looks_otherwise_in_images is not pictures
    made.close()


class GpuCamera:
    """Stands for a camera whose pictures stay on the GPU: torch's meta device holds them, and no number can be read."""

    def __init__(self) -> None:
        self.taken = 0

    def take_picture(self) -> None:
        self.taken += 1

    def get_picture_cuda(self, name: str) -> Any:
        assert self.taken == 1, "asked for before it was taken"
        return SimpleNamespace(torch=lambda: torch.zeros(128, 128, 4, dtype=torch.uint8, device="meta"))

    def get_picture(self, name: str) -> Any:
        raise AssertionError("the picture was copied to the CPU")


def test_pictures_that_a_gpu_draws_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cameras = [GpuCamera() for _ in range(2)]
    group = CpuCameraGroup(cast(Any, cameras), on_gpu=True)
    group.take_picture()
    pictures = group.get_picture_cuda("Color").torch()
    assert (pictures.shape, pictures.device.type) == ((2, 128, 128, 4), "meta")

    made: Env = make(TASK, 2, obs_mode="state+joints+oracle")
    task = base(made)
    made.reset(seed=0)
    rgb = {"rgb": pictures[..., :3]}
    monkeypatch.setattr(task, "_get_obs_sensor_data", lambda: {"base_camera": rgb, "hand_camera": rgb})
    monkeypatch.setattr(task, "_modes", parse_modes("rgb+joints"))
    obs = task.step(torch.zeros(2, 8))[0]
    assert obs["rgb"].shape == (2, 128, 128, 6)
    assert (obs["rgb"].device.type, obs["joints"].device.type) == ("meta", "cpu")
    made.close()


# ---------------------------------------------------------------------- the benchmark
@pytest.mark.render
def test_render_speed_runs_and_compares_with_plain_maniskill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    render_speed: Any = importlib.import_module("render_speed")
    threads = torch.get_num_threads()
    where = ["--csv", str(tmp_path / "new" / "speed.csv"), "--markdown", str(tmp_path / "speed.md")]
    render_speed.main(["--num-envs", "1", "3", "--rounds", "1", "--seconds", "0.01", *where])
    torch.set_num_threads(threads)
    with (tmp_path / "new" / "speed.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == render_speed.HEADER
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("ManiSkill", "1", "the same scene, no task"),
        (TASK, "1", "stock robot"),
        (TASK, "1", "low-poly robot"),
        (TASK, "3", "low-poly robot"),
    ]
    assert float(rows[0][5]) == 1
    printed = capsys.readouterr().out
    for text in (printed, (tmp_path / "speed.md").read_text()):
        assert all(any(all(cell in line for cell in row) for line in text.splitlines()) for row in rows)
    with pytest.raises(ValueError, match="--rounds 0: use at least 1"):
        render_speed.main(["--rounds", "0"])
