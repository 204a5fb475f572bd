"""What the tests of the batched CPU simulator share: comparison to the last bit, actions, and a scene of every kind."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.building.ground import build_ground
from mani_skill.utils.structs import Actor, Articulation, Link, Pose
from torch import Tensor

from mikasa_robo.sim.env import batched, make

ROOT = Path(__file__).resolve().parent.parent
REST_QPOS = torch.tensor([0.0, math.pi / 8, 0.0, -math.pi * 5 / 8, 0.0, math.pi * 3 / 4, math.pi / 4])

# a loader that finds no driver: what a machine without Vulkan looks like
NO_VULKAN = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Paths at which two nested dicts of tensors differ, in structure, dtype, shape or any bit."""
    if isinstance(a, dict) or isinstance(b, dict):
        if not (isinstance(a, dict) and isinstance(b, dict)) or list(a) != list(b):
            return [f"{where}: entries {a} and {b}"]
        return [line for key in a for line in differences(a[key], b[key], f"{where}.{key}")]
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return [f"{where}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"]
    if torch.equal(a, b):
        return []
    worst = (a.double() - b.double()).abs().max().item()
    return [f"{where}: differ by up to {worst:.3g}"]


def assert_identical(a: Any, b: Any, where: str = "") -> None:
    """Fails with the first few differing paths unless both are the same to the last bit."""
    found = differences(a, b, where)
    assert not found, "; ".join(found[:5])


def rows(tree: Any, index: Any) -> Any:
    """The rows ``index`` (a list, or one number, which keeps the batch dimension) of every tensor, copied."""
    if isinstance(tree, dict):
        return {key: rows(value, index) for key, value in tree.items()}
    return tree[[index] if isinstance(index, int) else index].clone()


def copied(tree: Any) -> Any:
    """A deep copy of a nested dict of tensors."""
    return {key: copied(value) for key, value in tree.items()} if isinstance(tree, dict) else tree.clone()


def random_actions(env: BaseEnv, steps: int, seed: int = 0) -> Tensor:
    """(steps, num_envs, actions): uniform; around the rest pose where the action is a joint position."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(steps, env.num_envs, env.single_action_space.shape[0], generator=generator) * 2 - 1
    if env.control_mode == "pd_joint_pos":
        actions[..., :7] = REST_QPOS + 0.3 * actions[..., :7]
    return actions


def step(env: BaseEnv, action: Tensor | None) -> dict[str, Any]:
    """Everything that a step tells, and the state after it."""
    obs, reward, terminated, truncated, info = env.step(action)
    return copied(
        {
            "obs": obs,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
            "state": env.get_state_dict(),
        }
    )


def set_exactly(env: BaseEnv, state: Any) -> None:
    """Sets the whole state and lets the controllers start from it."""
    env.set_state_dict(state)
    env.agent.controller.reset()


def pick_cube(**kwargs: Any) -> BaseEnv:
    """PickCube, strict and on two threads unless told otherwise, already reset."""
    settings: dict[str, Any] = {
        "num_envs": 4,
        "obs_mode": "state",
        "control_mode": "pd_joint_delta_pos",
        "sim_debug": True,
        "sim_threads": 2,
    }
    env = make("PickCube-v1", **{**settings, **kwargs})
    env.reset(seed=1)
    return env


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a new interpreter, with these environment variables as well."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class ZooTask(BaseEnv):
    """A dynamic, a kinematic and a static actor in every env; a merged actor, link and articulation over two kinds.

    Env k has kind ``(first + k) % 2``: kind 0 a box and a one-joint slider, kind 1 a ball and a two-joint arm. A single
    env with ``first=k`` is therefore built like env k of a batch.
    """

    SUPPORTED_REWARD_MODES = ("none",)

    def __init__(self, *args: Any, first: int = 0, robot_uids: str = "panda", **kwargs: Any) -> None:
        self.first = first
        self.spawn: Tensor | None = None
        super().__init__(*args, robot_uids=robot_uids, **kwargs)

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(p=[-1, 0, 0]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        build_ground(self.scene)

        def box(name: str, kind: str, at: tuple[float, float, float]) -> Actor:
            builder = self.scene.create_actor_builder()
            builder.add_box_collision(half_size=[0.05, 0.05, 0.05])
            builder.initial_pose = sapien.Pose(p=at)
            return getattr(builder, f"build_{kind}")(name=name)

        self.box = box("box", "dynamic", (0.0, 0.5, 0.05))
        self.marker = box("marker", "kinematic", (0.0, -0.5, 0.3))
        self.wall = box("wall", "static", (0.5, 0.5, 0.05))
        shapes, articulations = [], []
        for k in range(self.num_envs):
            kind = (self.first + k) % 2
            builder = self.scene.create_actor_builder()
            if kind == 0:
                builder.add_box_collision(half_size=[0.04, 0.04, 0.04])
            else:
                builder.add_sphere_collision(radius=0.04)
            builder.initial_pose = sapien.Pose(p=[0.4, -0.5, 0.1])
            builder.set_scene_idxs([k])
            shapes.append(builder.build(name=f"shape_{k}"))
            articulations.append(self._articulation(k, kind))
        self.shape = Actor.merge(shapes, name="shape")
        self.machine = Articulation.merge(articulations, name="machine")
        self.handle = Link.merge([a.links_map["handle"] for a in articulations], name="handle")
        for part in shapes:
            self.remove_from_state_dict_registry(part)
        for machine in articulations:
            self.remove_from_state_dict_registry(machine)
        self.add_to_state_dict_registry(self.shape)
        self.add_to_state_dict_registry(self.machine)

    def _articulation(self, k: int, kind: int) -> Articulation:
        builder = self.scene.create_articulation_builder()
        builder.set_scene_idxs([k])
        builder.initial_pose = sapien.Pose(p=[1.0, 0.0, 0.5])
        base = builder.create_link_builder()
        base.set_name("base")
        base.add_box_collision(half_size=[0.05, 0.05, 0.05])
        parent = base
        if kind == 1:
            parent = builder.create_link_builder(base)
            parent.set_name("middle")
            parent.add_box_collision(pose=sapien.Pose([0.2, 0, 0]), half_size=[0.05, 0.02, 0.02])
            parent.set_joint_name("middle")
            parent.set_joint_properties("revolute", [[-3.0, 3.0]], sapien.Pose(), sapien.Pose(), damping=0.1)
        handle = builder.create_link_builder(parent)
        handle.set_name("handle")
        handle.add_box_collision(pose=sapien.Pose([0.4, 0, 0]), half_size=[0.05, 0.02, 0.02])
        handle.set_joint_name("handle")
        handle.set_joint_properties(
            ("prismatic", "revolute")[kind], [[-1.0, 1.0]], sapien.Pose(), sapien.Pose(), damping=0.2
        )
        return builder.build(name=f"machine_{k}", fix_root_link=True)

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        # from a table that the test fills, so that env k of a batch and a single env can start alike
        spawn = torch.zeros(self.num_envs, 3) if self.spawn is None else self.spawn
        at = spawn[env_idx]
        self.agent.reset(torch.cat([REST_QPOS, torch.tensor([0.04, 0.04])]).expand(len(at), -1))
        self.agent.robot.set_pose(sapien.Pose(p=[-1, 0, 0]))
        self.box.set_pose(Pose.create_from_pq(at + torch.tensor([0.0, 0.5, 0.2])))
        self.marker.set_pose(Pose.create_from_pq(at + torch.tensor([0.0, -0.5, 0.3])))
        self.shape.set_pose(Pose.create_from_pq(at + torch.tensor([0.4, -0.5, 0.2])))
        self.machine.set_qpos(at[:, :1].expand(-1, int(self.machine.max_dof)))
        self.machine.set_qvel(torch.zeros(len(at), int(self.machine.max_dof)))

    def evaluate(self) -> dict[str, Any]:
        return {}

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, Any]:
        return {
            "box": self.box.pose.raw_pose,
            "marker": self.marker.pose.raw_pose,
            "shape": self.shape.pose.raw_pose,
            "shape_velocity": self.shape.linear_velocity,
            "handle": self.handle.pose.raw_pose,
            "handle_velocity": self.handle.linear_velocity,
        }


def zoo(num_envs: int, **kwargs: Any) -> Any:
    """A `ZooTask` of ``num_envs``, strict."""
    return batched(ZooTask)(
        num_envs=num_envs,
        obs_mode="state",
        control_mode="pd_joint_delta_pos",
        reward_mode="none",
        sim_debug=True,
        **kwargs,
    )


def body_velocities(env: BaseEnv) -> Tensor:
    """(rows, 6) velocities of every body and link, row by row, from SAPIEN's own getters."""
    bodies = env.scene.px._layout.bodies_and_links
    values = [np.concatenate([body.linear_velocity, body.angular_velocity]) for body in bodies]
    return torch.from_numpy(np.stack(values))
