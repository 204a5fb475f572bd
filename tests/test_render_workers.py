"""Processes that draw: the same images to the bit, whatever changes in a scene, and what happens when they fail."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import sapien
import sapien.render
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import copied

import mikasa_robo
from mikasa_robo.sim.draw_pool import default_processes
from mikasa_robo.sim.env import make
from mikasa_robo.sim.scene_copy import CannotCopyError, build, describe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mani_skill")

N, WORKERS = 3, 2
SETTINGS: dict[str, Any] = {
    "obs_mode": "rgb+depth+segmentation",
    "control_mode": "pd_joint_delta_pos",
    "robot_uids": "panda_wristcam",
    "sensor_configs": {"width": 48, "height": 32},
    "robot_visuals": "low_poly",
}


@pytest.mark.parametrize(
    ("num_envs", "threads", "processes"),
    [(1, 8, 0), (7, 8, 0), (8, 8, 2), (16, 1, 0), (16, 2, 2), (64, 8, 8), (512, 128, 16)],
)
def test_the_default_number_of_processes(num_envs: int, threads: int, processes: int) -> None:
    assert default_processes(num_envs, threads) == processes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"render_workers": -1}, "render_workers"),
        ({"render_workers": 4}, r"render_workers=4 is more than num_envs=3"),
        ({"render_workers": 2, "obs_mode": "state"}, r"render_workers=2 is for images in observations"),
        ({"render_workers": 1, "num_envs": 1}, r"render_workers=1 is for images in observations"),
    ],
)
def test_a_number_that_cannot_be_used_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("PickCube-v1", **{"num_envs": N, "render_backend": "none", **arguments})


@pytest.fixture(scope="module")
def env() -> Iterator[BaseEnv]:
    env = make("PickCube-v1", num_envs=N, render_workers=WORKERS, sim_threads=1, **SETTINGS)
    env.reset(seed=2)
    yield env
    env.close()
    assert not processes()


def processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "draw_process" in " ".join(child.cmdline())]


def images(env: BaseEnv) -> dict[str, Any]:
    """What the processes draw."""
    found: dict[str, Any] = copied(env.get_obs()["sensor_data"])
    assert len(processes()) == WORKERS, "this process has drawn"
    return found


@contextlib.contextmanager
def drawing_here(env: BaseEnv) -> Iterator[None]:
    """A block in which this process draws."""
    drawing, env.scene._drawing = env.scene._drawing, None
    groups = [sensor.camera.camera_group for sensor in env.scene.sensors.values()]
    for group in groups:
        group._elsewhere = None
    try:
        yield
    finally:
        env.scene._drawing = drawing
        for group in groups:
            group._elsewhere = drawing


def drawn_here(env: BaseEnv) -> dict[str, Any]:
    """What this process draws of the same state."""
    with drawing_here(env):
        found: dict[str, Any] = copied(env.get_obs()["sensor_data"])
    return found


def assert_equal(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert set(here) == set(there) == {"base_camera", "hand_camera"}
    for camera, pictures in here.items():
        assert set(pictures) == set(there[camera]) == {"rgb", "depth", "segmentation"}
        for kind, picture in pictures.items():
            assert picture.shape[:3] == (N, 32, 48)
            assert picture.dtype == there[camera][kind].dtype
            assert torch.equal(picture, there[camera][kind]), f"{camera}, {kind}"


@pytest.mark.render
def test_processes_draw_the_same_images(env: BaseEnv) -> None:
    seen = []
    for _ in range(2):
        env.step(torch.full((N, 8), 0.7))
        seen.append(images(env))
        assert_equal(drawn_here(env), seen[-1])
    rgb = [pictures["base_camera"]["rgb"] for pictures in seen]
    assert not torch.equal(rgb[0][0], rgb[0][1]), "two environments"
    assert not torch.equal(rgb[0], rgb[1]), "two steps"
    env.reset(seed=5, options={"env_idx": [1]})  # its bodies are in another scene from now on
    after = images(env)
    assert_equal(drawn_here(env), after)
    assert (after["base_camera"]["rgb"] != rgb[1]).flatten(1).any(dim=1).tolist() == [False, True, False]


@pytest.mark.render
def test_what_changes_in_a_scene_is_drawn(env: BaseEnv) -> None:
    """A colour, a camera, then in single environments a body that cannot be seen, a light, an object that was added."""
    before = images(env)["base_camera"]["rgb"]
    cube = env.cube._objs[1].find_component_by_type(sapien.render.RenderBodyComponent)
    cube.render_shapes[0].material.base_color = [0, 0, 1, 1]  # one material for the cubes of all environments
    after = images(env)
    differs = (after["base_camera"]["rgb"] != before).flatten(1).any(dim=1)
    assert differs.all()
    assert_equal(drawn_here(env), after)
    camera = env.scene.sensors["base_camera"].camera
    camera.set_local_pose(sapien.Pose([0.05, 0, 0]) * camera._render_cameras[0].local_pose)
    moved = images(env)
    assert (moved["base_camera"]["rgb"] != after["base_camera"]["rgb"]).flatten(1).any(dim=1).all()
    assert_equal(drawn_here(env), moved)
    after = moved

    cube.visibility = 0.0
    scene = env.scene.sub_scenes[2]
    scene.render_system.ambient_light = [0.9, 0.1, 0.1]
    builder = scene.create_actor_builder()
    builder.add_sphere_visual(radius=0.05, material=sapien.render.RenderMaterial(base_color=[0, 1, 0, 1]))
    builder.initial_pose = sapien.Pose([0, 0.1, 0.1])
    builder.build_kinematic(name="ball")
    changed = images(env)
    differs = (changed["base_camera"]["rgb"] != after["base_camera"]["rgb"]).flatten(1).any(dim=1)
    assert differs.tolist() == [False, True, True]
    assert_equal(drawn_here(env), changed)


@pytest.mark.render
def test_what_cannot_be_copied_is_named(env: BaseEnv) -> None:
    scene = env.scene.sub_scenes[0]
    cameras = [sensor.camera._render_cameras[0] for sensor in env.scene.sensors.values()]
    description = describe(scene.render_system, cameras)
    box = next(e for e in description["entities"] if "cube" in e["name"])["components"][0]["shapes"][0]
    box["half_size"] = (float("nan"), 1.0, 1.0)
    with pytest.raises(CannotCopyError, match=r"cube.* half_size: "):
        build(description, sapien.Device("cpu"))
    entity = sapien.Entity()
    entity.name = "dust"
    entity.add_component(sapien.render.RenderPointCloudComponent(4))
    scene.add_entity(entity)
    try:
        with pytest.raises(CannotCopyError, match=r"the point cloud 'dust'"):
            describe(scene.render_system, cameras)
    finally:
        scene.remove_entity(entity)


@pytest.mark.render
def test_if_a_process_ends_this_one_draws(env: BaseEnv, caplog: pytest.LogCaptureFixture) -> None:
    """Last, as nothing starts the processes again."""
    expected = drawn_here(env)
    killed = processes()[0]
    killed.kill()
    with caplog.at_level(logging.WARNING):
        assert_equal(copied(env.get_obs()["sensor_data"]), expected)
    assert "images are drawn in one process from now on" in caplog.text
    assert not processes()
    env.step(torch.zeros(N, 8))
    assert np.isfinite(env.get_obs()["sensor_data"]["base_camera"]["rgb"].numpy()).all()


@pytest.mark.render
def test_a_task_whose_scenes_were_replaced_is_drawn() -> None:
    """A reset of a task moves its bodies to new scenes; lights and cameras stay in the old ones."""
    settings = SETTINGS | {"obs_mode": "rgb"}
    with contextlib.closing(
        mikasa_robo.make_env("RememberColor3-v0", N, render_workers=WORKERS, sim_threads=1, **settings)
    ) as wrapped:
        env: Any = wrapped.unwrapped
        wrapped.reset(seed=0)
        for options in ({}, {"env_idx": torch.tensor([1])}):
            wrapped.step(torch.full((N, 8), 0.5))
            before = wrapped.step(torch.full((N, 8), 0.5))[0]["rgb"].clone()
            drawn, _ = wrapped.reset(options=options)
            assert env.scene._drawing._pool is not None, "this process has drawn"
            same = [torch.equal(before[i], drawn["rgb"][i]) for i in range(N)]
            assert same == ([False] * N if not options else [True, False, True])
            stepped = wrapped.step(torch.zeros(N, 8))[0]["rgb"].clone()
            assert env.scene._drawing._pool is not None, "this process has drawn"
            with drawing_here(env):
                assert torch.equal(env.get_obs()["rgb"], stepped)
