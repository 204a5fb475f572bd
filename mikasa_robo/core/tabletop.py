"""The Panda at its table: robot, cameras, simulation settings."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import sapien
import torch
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs import Link, Pose
from mani_skill.utils.structs.types import GPUMemoryConfig, SimConfig
from torch import Tensor

from mikasa_robo.assets.low_poly import thin_out_ground
from mikasa_robo.catalog import DEFAULT_VIEW
from mikasa_robo.tensors import constant

from .sampling import ROBOT_BASE_X
from .seeds import SeededEnv

FINGER_OPEN = 0.04
"""Joint position of an open finger, m."""
START_QPOS = (0.0, 0.0, 0.0, -2 * np.pi / 3, 0.0, 2 * np.pi / 3, np.pi / 4, FINGER_OPEN, FINGER_OPEN)
"""Joint positions at the start of an episode before noise: rad, and m for the two fingers."""
ARM_JOINTS = 7
TOUCH_LINKS = ("panda_hand", "panda_leftfinger", "panda_rightfinger", "camera_link")
"""Links whose contact with an object is a touch, in the order of the rows of ``touching``: all links beyond the wrist that
collide with anything. The robot "panda" has no camera."""
FINGERS = slice(1, 3)
"""The rows of the left and the right finger in ``touching`` (N, L, K)."""


class TabletopEnv(SeededEnv):
    """An empty table with a Panda, a base camera and 20 control steps a second."""

    SUPPORTED_ROBOTS: ClassVar = ["panda_wristcam", "panda"]

    @property
    def _default_sim_config(self) -> SimConfig:
        return SimConfig(
            sim_freq=100,
            control_freq=20,
            gpu_memory_config=GPUMemoryConfig(found_lost_pairs_capacity=2**25, max_rigid_patch_count=2**18),
        )

    @property
    def _default_sensor_configs(self) -> list[CameraConfig]:
        pose = sapien_utils.look_at(eye=[0.3, 0, 0.6], target=[-0.1, 0, 0.1])
        return [CameraConfig("base_camera", pose=pose, width=128, height=128, fov=np.pi / 2, near=0.01, far=100)]

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        pose = sapien_utils.look_at(DEFAULT_VIEW.eye, DEFAULT_VIEW.target)
        return CameraConfig("render_camera", pose=pose, width=512, height=512, fov=DEFAULT_VIEW.fov, near=0.01, far=100)

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(p=[ROBOT_BASE_X, 0, 0]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        self.table_scene = TableSceneBuilder(self)
        self.table_scene.build()
        if self.drawn_on_cpu:
            thin_out_ground(self.table_scene.ground)

    def _touch_links(self) -> list[Link]:
        """The links of `TOUCH_LINKS` that the robot has. All robots have a hand and two fingers."""
        links = self.agent.robot.links_map
        return [links[name] for name in TOUCH_LINKS if name in links or name != "camera_link"]

    def _reset_table_and_robot(self, env_idx: Tensor, noise: Tensor, qpos: Tensor | None = None) -> None:
        """Puts table and robot of the environments being reset where they start.

        Args:
            env_idx: (b,) the environments.
            noise: (b, 7) of the arm at its usual start, rad.
            qpos: (b, 9) another start, without noise.
        """
        if qpos is None:
            qpos = constant(START_QPOS, noise.dtype, noise.device).repeat(len(noise), 1)
            qpos[:, :ARM_JOINTS] += noise
        self.table_scene.table.set_pose(self.table_scene.table.initial_pose)
        qpos = qpos.to(torch.float32)
        self.agent.reset(qpos)
        self._set_drive_targets(env_idx, qpos)
        base = (ROBOT_BASE_X, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
        self.agent.robot.set_pose(Pose.create(constant(base, torch.float32, self.device)))

    def _set_drive_targets(self, env_idx: Tensor, qpos: Tensor) -> None:
        """Lets the motors of the robots in ``env_idx`` (b,) drive to ``qpos`` (b, 9), at rest.

        ManiSkill's resets leave the targets of the last action, to which a step without an action would go on.
        """
        robot = self.agent.robot
        if not self.scene.gpu_sim_enabled:  # a single environment
            robot.set_joint_drive_targets(qpos, robot.active_joints)
            robot.set_joint_drive_velocity_targets(torch.zeros_like(qpos), robot.active_joints)
            return
        px, rows, dof = self.scene.px, robot._data_index[env_idx], qpos.shape[1]
        px.cuda_articulation_target_qpos.torch()[rows, :dof] = qpos
        px.cuda_articulation_target_qvel.torch()[rows, :dof] = 0.0
        # a reset applies everything at its end, motors last: PhysX's last bits depend on the order in which bodies wake up
        if not self._resetting:
            px.gpu_apply_articulation_target_position()
            px.gpu_apply_articulation_target_velocity()
