"""The only place that hides and shows objects.

A hidden object is parked 1 km above the table: beyond every camera's far plane whatever the camera looks at, in reach of
nothing, and put back there at rest after every control step. Poses are written after physics and before anything is
observed, then applied and fetched; observations, evaluation and rewards never write.
"""

from __future__ import annotations

from collections.abc import Sequence

import sapien
import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.deprecation import deprecated_names, renamed_attributes

PARKING_HEIGHT = 1000.0
"""z of parked objects, m; the cameras' far planes are at 100 m."""


def parking_poses(count: int) -> Tensor:
    """(count, 7) poses of parked objects, 1 m apart."""
    poses = torch.zeros(count, 7)
    poses[:, 1] = torch.arange(count, dtype=torch.float32)
    poses[:, 2] = PARKING_HEIGHT
    poses[:, 3] = 1
    return poses


@renamed_attributes({"arrange": "apply", "set_up": "reset"})
class ObjectLayout:
    """The K objects that a task shows and hides in each of N environments.

    Args:
        scene: the scene they stand in.
        actors: K dynamic or kinematic actors, each in every environment.
    """

    def __init__(self, scene: ManiSkillScene, actors: Sequence[Actor]) -> None:
        self._scene, self._actors = scene, list(actors)
        self._parking = parking_poses(len(actors)).to(scene.device)
        for actor in actors:
            if actor.px_body_type not in ("dynamic", "kinematic"):
                raise ValueError(
                    f"{actor.name} is {actor.px_body_type}: only actors that can move are hidden and shown"
                )
        self._rows: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """(N, K) rows of the objects in the simulator's buffer; known once the simulation has started."""
        if self._rows is None:
            self._rows = torch.stack([actor._body_data_index for actor in self._actors], dim=1)
        return self._rows

    def read(self) -> Tensor:
        """(N, K, 13): position (m), quaternion wxyz, linear (m/s) and angular velocity (rad/s) of every object."""
        if self._scene.gpu_sim_enabled:
            return self._scene.px.cuda_rigid_dynamic_data.torch()[self.rows]
        return torch.stack(
            [torch.cat([a.pose.raw_pose, a.linear_velocity, a.angular_velocity], dim=-1) for a in self._actors], dim=1
        )

    def poses(self, visible: Tensor, home: Tensor) -> Tensor:
        """(N, K, 7) where objects belong: ``home`` (N, K, 7) where ``visible`` (N, K), else their parking place."""
        return torch.where(visible[..., None], home, self._parking.expand_as(home))

    @staticmethod
    def parked(objects: Tensor) -> Tensor:
        """(N, K) bool: the objects that are hidden, of those that `read` gave."""
        return objects[..., 2] > PARKING_HEIGHT / 2

    def reset(self, visible: Tensor, home: Tensor, velocity: Tensor | None = None) -> None:
        """Puts the objects of the environments being reset where they belong; BaseEnv.reset applies it.

        Args:
            visible: (b, K) bool for the b environments that ManiSkill's reset mask names.
            home: (b, K, 7).
            velocity: (b, K, 6) linear (m/s) and angular (rad/s), with which dynamic objects start; None: at rest.
        """
        from mani_skill.utils.structs import Pose

        poses = self.poses(visible, home)
        for k, actor in enumerate(self._actors):
            actor.set_pose(Pose.create(poses[:, k]))
            if velocity is not None and actor.px_body_type == "dynamic":
                actor.set_linear_velocity(velocity[:, k, :3])
                actor.set_angular_velocity(velocity[:, k, 3:])

    def apply(self, put: Tensor, visible: Tensor, home: Tensor) -> None:
        """Puts objects where they belong, at rest, and brings the simulator's buffers up to date.

        Args:
            put: (N, K) bool, which objects; all others are left to physics.
            visible: (N, K) bool.
            home: (N, K, 7).
        """
        if not put.any():
            return
        poses = self.poses(visible, home)
        if not self._scene.gpu_sim_enabled:
            for k in torch.nonzero(put[0]).flatten().tolist():
                actor = self._actors[k]
                pose = poses[0, k].numpy()
                actor.set_pose(sapien.Pose(pose[:3], pose[3:]))
                if actor.px_body_type == "dynamic":
                    actor.set_linear_velocity(torch.zeros(3))
                    actor.set_angular_velocity(torch.zeros(3))
            return
        data = self._scene.px.cuda_rigid_dynamic_data.torch()
        rows = self.rows[put]
        at_rest = torch.zeros(len(rows), 13, device=data.device)
        at_rest[:, :7] = poses[put]
        data[rows] = at_rest
        self._scene.px.gpu_apply_rigid_dynamic_data()
        self._scene.px.gpu_fetch_rigid_dynamic_data()


__getattr__ = deprecated_names(__name__, {"Stage": "ObjectLayout"})
