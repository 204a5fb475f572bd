"""The only place that hides and shows objects.

A hidden object is parked 1 km above the table. There it is beyond the far plane of every camera and nothing can touch it.
It is put back there at rest after every control step. Poses are written after the physics of a step and before anything
is observed. Observations, evaluation and rewards never write.

What PhysX computes depends on contacts of the past, in the last bits. If an object stood on the table during the cue, its
contacts would show in the poses of all objects in the response phase. So the objects of a task with ``cue_bodies`` stay
parked until then, and bodies that look like them but touch nothing are shown in their place (`assets.cue_bodies`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import sapien
import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.structs import Actor, Pose
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.assets.cue_bodies import build_cue_bodies
from mikasa_robo.deprecation import deprecated_names, renamed_attributes
from mikasa_robo.sim.buffers import as_index_buffer

PARKING_HEIGHT = 1000.0
"""z of parked objects, m. The cameras' far planes are at 100 m."""


def parking_poses(count: int, compact: bool = False) -> Tensor:
    """(count, 7) poses of parked objects.

    Args:
        count: number of objects.
        compact: in a square grid, 0.5 m apart, for environments that share a world (`in_one_world`): the row would reach
            into the next environment. Otherwise in a row along y, 1 m apart.
    """
    place = torch.arange(count)
    poses = torch.zeros(count, 7)
    if compact:
        side = math.ceil(math.sqrt(count))
        poses[:, 0], poses[:, 1] = place % side / 2, torch.div(place, side, rounding_mode="floor") / 2
    else:
        poses[:, 1] = place.to(torch.float32)
    poses[:, 2] = PARKING_HEIGHT
    poses[:, 3] = 1
    return poses


def in_one_world(scene: ManiSkillScene) -> bool:
    """Whether objects of different environments can touch: on a GPU, or with ``parallel_in_single_scene``.

    The environments then stand in a grid, 5 m apart. The batched CPU simulation has a world for each.
    """
    on_gpu = scene.gpu_sim_enabled and not getattr(scene, "is_batched_cpu", False)
    return bool(on_gpu or scene.parallel_in_single_scene)


@renamed_attributes({"arrange": "apply", "set_up": "reset"})
class ObjectLayout:
    """The K objects that a task shows and hides, in each of N environments.

    Args:
        scene: the scene that they are in.
        actors: K dynamic or kinematic actors, each of them in every environment.
        cue_bodies: whether to build bodies without contacts that can be shown in place of the actors. If nothing is drawn,
            none are built, and only `read` tells where they would be.

    Raises:
        ValueError: an actor is static.
    """

    def __init__(self, scene: ManiSkillScene, actors: Sequence[Actor], cue_bodies: bool = False) -> None:
        self._scene, self._actors = scene, list(actors)
        for actor in actors:
            if actor.px_body_type not in ("dynamic", "kinematic"):
                raise ValueError(
                    f"{actor.name} is {actor.px_body_type}: only actors that can move are hidden and shown"
                )
        places = parking_poses(2 * len(actors), compact=in_one_world(scene)).to(scene.device)
        self._parking, self._cue_parking = places.split(len(actors))
        self._cue_actors = build_cue_bodies(scene, actors, PARKING_HEIGHT) if cue_bodies else []
        # (N, K, 7) where the cue bodies are; None: the task has none
        self._cues = self._cue_parking.repeat(scene.num_envs, 1, 1) if cue_bodies else None

    @functools.cached_property
    def rows(self) -> Tensor:
        """(N, K) rows of the objects in the simulator's buffer, which are known once the simulation has started."""
        return torch.stack([actor._body_data_index for actor in self._actors], dim=1)

    @functools.cached_property
    def _cue_rows(self) -> Tensor:
        """(N, K) rows of the cue bodies; (N, 0) if none were built."""
        if not self._cue_actors:
            return self.rows[:, :0]
        return torch.stack([actor._body_data_index for actor in self._cue_actors], dim=1)

    @functools.cached_property
    def _all_rows(self) -> Tensor:
        """(N, K or 2 K) `rows` and `_cue_rows`."""
        return torch.cat([self.rows, self._cue_rows], dim=1)

    @functools.cached_property
    def _index_buffer(self) -> Tensor:
        """(N * ·,) int32, `_all_rows` in one dimension. Kept here because SAPIEN's index buffer does not keep it alive."""
        return self._all_rows.flatten().to(torch.int32)

    @functools.cached_property
    def _offsets(self) -> Tensor | None:
        """(N, 13) what the simulator's buffer adds to the state of an object; None: nothing.

        With ``parallel_in_single_scene`` the environments stand side by side in one world.
        """
        if not self._scene.parallel_in_single_scene:
            return None
        return torch.nn.functional.pad(self._scene.scene_offsets, (0, 10))

    def read(self) -> Tensor:
        """(N, K, 13): position (m), quaternion wxyz, linear (m/s) and angular velocity (rad/s) of every object.

        Positions are relative to each environment's own origin. An object that a cue body is shown for is where that is.
        """
        if self._cues is None:
            return self._read_objects()
        return torch.where(self._cues_shown(), torch.nn.functional.pad(self._cues, (0, 6)), self._read_objects())

    def _cues_shown(self) -> Tensor:
        """(N, K, 1) bool: the cue bodies that are on view."""
        assert self._cues is not None
        return ~self.parked(self._cues)[..., None]

    def _read_objects(self) -> Tensor:
        """`read`, whatever cue bodies are shown."""
        if self._scene.gpu_sim_enabled:
            data = self._scene.px.cuda_rigid_dynamic_data.torch()[self.rows]
            return data if self._offsets is None else data - self._offsets[:, None]
        return torch.stack(
            [torch.cat([a.pose.raw_pose, a.linear_velocity, a.angular_velocity], dim=-1) for a in self._actors], dim=1
        )

    def _in_world(self, state: Tensor, envs: Tensor | None = None) -> Tensor:
        """What the simulator's buffer holds for objects with ``state`` (b, …, 13) relative to each environment's origin.

        Args:
            state: of the objects.
            envs: (b,) their environments; None: all, b = N.
        """
        if self._offsets is None:
            return state
        offsets = self._offsets if envs is None else self._offsets[envs]
        return state + (offsets if state.ndim == 2 else offsets[:, None])

    def poses(self, visible: Tensor, home: Tensor) -> Tensor:
        """(N, K, 7) where objects belong: at ``home`` (N, K, 7) if ``visible`` (N, K), else at their parking place."""
        return torch.where(visible[..., None], home, self._parking.expand_as(home))

    @staticmethod
    def parked(objects: Tensor) -> Tensor:
        """(N, K) bool: the objects that are hidden, from what `read` returned."""
        return objects[..., 2] > PARKING_HEIGHT / 2

    def _split(self, visible: Tensor, home: Tensor, in_cue: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(b, K) which objects are themselves visible; (b, K, 7) where cue bodies belong, None for a task without."""
        if self._cues is None:
            return visible, None
        cue = torch.zeros_like(visible) if in_cue is None else visible & in_cue[:, None]
        return visible & ~cue, torch.where(cue[..., None], home, self._cue_parking.expand_as(home))

    def reset(
        self,
        visible: Tensor,
        home: Tensor,
        velocity: Tensor | None = None,
        env_idx: Tensor | None = None,
        in_cue: Tensor | None = None,
    ) -> None:
        """Puts the objects of b environments where they belong. BaseEnv.reset applies what is written here.

        Args:
            visible: (b, K) bool.
            home: (b, K, 7).
            velocity: (b, K, 6) linear (m/s) and angular (rad/s) velocity of dynamic objects; None: at rest.
            env_idx: (b,) the environments; None: all.
            in_cue: (b,) bool, show cue bodies, if the task has them, in place of the objects; None: nowhere.
        """
        visible, cues = self._split(visible, home, in_cue)
        poses, shown = self.poses(visible, home), slice(None) if env_idx is None else env_idx
        if cues is not None and self._cues is not None:
            self._cues[shown] = cues
        if self._scene.gpu_sim_enabled:
            # not by ManiSkill's setters, which take a mask of the environments and so wait for a GPU
            velocity = torch.zeros_like(poses[..., :6]) if velocity is None else velocity * self._is_dynamic
            state = self._in_world(torch.cat([poses, velocity.to(poses)], dim=-1), env_idx)
            data = self._scene.px.cuda_rigid_dynamic_data.torch()
            data[self.rows[shown]] = state
            if cues is not None and self._cue_actors:
                data[self._cue_rows[shown]] = self._in_world(torch.nn.functional.pad(cues, (0, 6)), env_idx)
            return
        for k, actor in enumerate(self._actors):
            actor.set_pose(Pose.create(poses[:, k]))
            if velocity is not None and actor.px_body_type == "dynamic":
                actor.set_linear_velocity(velocity[:, k, :3])
                actor.set_angular_velocity(velocity[:, k, 3:])
        if cues is not None:
            for k, actor in enumerate(self._cue_actors):
                actor.set_pose(Pose.create(cues[:, k]))

    @functools.cached_property
    def _is_dynamic(self) -> Tensor:
        """(K, 1) bool."""
        dynamic = [[actor.px_body_type == "dynamic"] for actor in self._actors]
        return torch.tensor(dynamic, device=self._scene.device)

    def apply(self, put: Tensor, visible: Tensor, home: Tensor, in_cue: Tensor | None = None) -> None:
        """Puts objects where they belong, at rest, and brings the simulator's buffers up to date.

        Args:
            put: (N, K) bool, the objects to put; physics moves the others.
            visible: (N, K) bool.
            home: (N, K, 7).
            in_cue: (N,) bool, show cue bodies, if the task has them, in place of the objects; None: nowhere.
        """
        visible, cues = self._split(visible, home, in_cue)
        poses = self.poses(visible, home)
        if cues is not None and self._cues is not None:
            if self._cue_actors:
                put = torch.cat([put, (cues != self._cues).any(dim=-1)], dim=1)
                poses = torch.cat([poses, cues], dim=1)
            self._cues = cues
        self._write(put, poses)

    def _write(self, put: Tensor, poses: Tensor) -> None:
        """Writes ``poses`` (N, ·, 7) of the bodies ``put`` (N, ·) bool, of those in `_all_rows`, at rest."""
        px = self._scene.px
        if tensors.reads_wait(put.device):
            # how many objects are put is unknown here, so all rows are written, most of them with what they hold
            data, state = px.cuda_rigid_dynamic_data.torch(), self._in_world(torch.nn.functional.pad(poses, (0, 6)))
            data[self._all_rows] = torch.where(put[..., None], state, data[self._all_rows])
            px.gpu_apply_rigid_dynamic_data(as_index_buffer(self._index_buffer))
            px.gpu_fetch_rigid_dynamic_data()
            return
        if not put.any():
            return
        if self._scene.gpu_sim_enabled:
            rows, envs = self._all_rows[put], torch.nonzero(put)[:, 0]
            state = self._in_world(torch.nn.functional.pad(poses[put], (0, 6)), envs)
            px.cuda_rigid_dynamic_data.torch()[rows] = state
            px.gpu_apply_rigid_dynamic_data(as_index_buffer(rows.to(torch.int32)))
            px.gpu_fetch_rigid_dynamic_data()
            return
        bodies = [*self._actors, *self._cue_actors]
        for k in torch.nonzero(put[0]).flatten().tolist():
            actor, pose = bodies[k], poses[0, k].numpy()
            actor.set_pose(sapien.Pose(pose[:3], pose[3:]))
            if actor.px_body_type == "dynamic":
                actor.set_linear_velocity(torch.zeros(3))
                actor.set_angular_velocity(torch.zeros(3))

    # ------------------------------------------------------------------ segmentation images
    @functools.cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        """(N, 1) number of the first cue body; (N, K + 2) object's number less its cue body's, between two zeros."""
        cues = torch.stack([actor.per_scene_id for actor in self._cue_actors], dim=1)
        if not bool((cues.diff(dim=1) == 1).all()):
            raise RuntimeError("cue bodies must be numbered one after another: build nothing in between")
        objects = torch.stack([actor.per_scene_id for actor in self._actors], dim=1)
        return cues[:, :1], torch.nn.functional.pad(objects - cues, (1, 1))

    def renumber(self, image: Tensor) -> Tensor:
        """A segmentation image (N, H, W, C) in which cue bodies have the numbers of the objects that they look like."""
        if not self._cue_actors:
            return image
        first, change = (numbers.to(image.device) for numbers in self._numbers)  # a GPU may draw what the CPU simulates
        numbers = image.flatten(1)
        place = (numbers - (first - 1)).clamp(0, change.shape[1] - 1)
        return (numbers + change.gather(1, place.to(torch.int64))).reshape(image.shape).to(image.dtype)


__getattr__ = deprecated_names(__name__, {"Stage": "ObjectLayout"})
