"""N CPU scenes that ManiSkill drives as it drives N scenes on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.envs.utils.system.backend import BackendInfo
from mani_skill.sensors.base_sensor import BaseSensor
from mani_skill.sensors.camera import Camera
from mani_skill.utils import common
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs.render_camera import RenderCamera
from mani_skill.utils.structs.types import SimConfig
from torch import Tensor

from .internals import install_row_lookup
from .physx import BatchedCpuPhysx
from .render_workers import Drawing


def grid_offsets(count: int, spacing: float) -> np.ndarray:
    """(count, 3) where ManiSkill puts environments that share a world: a square grid, ``spacing`` m apart."""
    length = int(np.ceil(np.sqrt(count)))
    x, y = np.arange(count) % length - length // 2, np.arange(count) // length - length // 2
    return np.stack([x * spacing, y * spacing, np.zeros(count)], axis=1).astype(np.float32)


class _Picture:
    """What ``get_picture_cuda`` returns: an object with a ``torch()``."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def torch(self) -> Tensor:
        return self._tensor


class CpuCameraGroup:
    """One camera in each of N scenes, with the interface of SAPIEN's GPU camera group.

    Pictures are requested in all scenes before the first one is waited for, so the renderer can work on several.

    Args:
        cameras: the camera of each scene.
        on_gpu: whether pictures are on a GPU.
        name: the camera's name.
        elsewhere: the processes that draw; None: this process draws.
    """

    def __init__(
        self,
        cameras: list[sapien.render.RenderCameraComponent],
        on_gpu: bool,
        name: str = "",
        elsewhere: Drawing | None = None,
    ) -> None:
        self._name, self._cameras, self._on_gpu, self._elsewhere = name, cameras, on_gpu, elsewhere
        self._is_elsewhere = False

    def take_picture(self) -> None:
        """Starts drawing in every scene."""
        self._is_elsewhere = self._elsewhere is not None and self._elsewhere.draw(self._name)
        if not self._is_elsewhere:
            for camera in self._cameras:
                camera.take_picture()

    def get_picture_cuda(self, name: str) -> _Picture:
        """The texture ``name`` of every camera, (N, H, W, C)."""
        if self._is_elsewhere and self._elsewhere is not None:
            pictures = self._elsewhere.fetch(self._name, name)
            if pictures is not None:
                return _Picture(pictures)
            self.take_picture()  # here: the processes have failed
        if self._on_gpu:
            return _Picture(torch.stack([camera.get_picture_cuda(name).torch() for camera in self._cameras]))
        return _Picture(torch.stack([common.to_tensor(camera.get_picture(name)) for camera in self._cameras]))


class BatchedCpuScene(ManiSkillScene):
    """A `ManiSkillScene` over N CPU sub-scenes.

    Args:
        sub_scenes: one `sapien.Scene` per environment, each with a ``PhysxCpuSystem`` of its own.
        threads: threads that step them.
        debug: see `BatchedCpuPhysx`.
        parallel_in_single_scene: ManiSkill builds every environment in the first sub-scene, in a grid. As on a GPU, the
            simulator's buffers then hold positions that include ``scene_offsets``, and ManiSkill's poses do not.
        render_workers: processes that draw what the sensors see; 0: this process draws.
    """

    is_batched_cpu = True
    _sensors_initialized: bool
    _human_render_cameras_initialized: bool

    def __init__(
        self,
        sub_scenes: list[sapien.Scene],
        *,
        sim_config: SimConfig,
        device: torch.device,
        backend: BackendInfo,
        threads: int,
        debug: bool,
        parallel_in_single_scene: bool = False,
        render_workers: int = 0,
    ) -> None:
        install_row_lookup()
        super().__init__(
            sub_scenes,
            sim_config=sim_config,
            device=device,
            backend=backend,
            parallel_in_single_scene=parallel_in_single_scene,
        )
        self.px = BatchedCpuPhysx(sub_scenes, threads=threads, debug=debug)
        if parallel_in_single_scene:
            for scene, offset in zip(sub_scenes, grid_offsets(len(sub_scenes), sim_config.spacing), strict=True):
                self.px.set_scene_offset(scene, offset)
        self.gpu_sim_enabled = True  # take the tensor code path everywhere
        self._render_workers = render_workers
        self._drawing: Drawing | None = None

    def close(self) -> None:
        """Ends the simulation's threads, and the processes that draw."""
        self.px.close()
        if self._drawing is not None:
            self._drawing.close()

    def create_actor_builder(self) -> ActorBuilder:
        """An actor builder that gives every scene its own collision planes.

        On a GPU all scenes share one world, and ManiSkill builds a ground plane in the first one only. Here the objects of
        all other scenes would fall through it.
        """
        return super().create_actor_builder().set_allow_overlapping_plane_collisions(True)

    def add_camera(self, *args: Any, **kwargs: Any) -> RenderCamera:
        """Adds a (mounted) camera to every scene."""
        # only the GPU path links a mounted camera to a row of GPU memory
        self.gpu_sim_enabled = False
        try:
            return super().add_camera(*args, **kwargs)
        finally:
            self.gpu_sim_enabled = True

    def update_render(self, update_sensors: bool = True, update_human_render_cameras: bool = True) -> None:
        """Brings what the cameras see up to date with the simulation."""
        self.px.sync_poses_gpu_to_cpu()
        if update_sensors and not self._sensors_initialized:
            if self._render_workers and self.sensors:
                self._drawing = Drawing(self.sub_scenes, self.sensors, self._render_workers)
            self._gpu_setup_sensors(self.sensors, self._drawing)
            self._sensors_initialized = True
        if update_human_render_cameras and not self._human_render_cameras_initialized:
            self._gpu_setup_sensors(self.human_render_cameras)
            self._human_render_cameras_initialized = True
        for scene in self.sub_scenes:
            scene.update_render()
        if self._drawing is not None and update_sensors:
            self._drawing.is_outdated = True

    def _gpu_setup_sensors(self, sensors: dict[str, BaseSensor], elsewhere: Drawing | None = None) -> None:
        on_gpu = self.backend.render_backend == "sapien_cuda"
        for name, sensor in sensors.items():
            if not isinstance(sensor, Camera):
                raise NotImplementedError(
                    f"sensor {name!r} is a {type(sensor).__name__}: only cameras can be drawn in batched CPU simulation; "
                    "use sim_backend='physx_cuda' or num_envs=1"
                )
            group = CpuCameraGroup(sensor.camera._render_cameras, on_gpu, name, elsewhere)
            sensor.camera.camera_group = group
            self.camera_groups[name] = group
