"""Differential inverse kinematics of the Panda arm for a whole batch, from joint readings alone."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from pathlib import Path

import pytorch_kinematics as pk
import torch
from mani_skill.agents.robots.panda import PandaWristCam
from mani_skill.utils.geometry.rotation_conversions import matrix_to_quaternion
from torch import Tensor

from mikasa_robo.core.env import ARM_JOINTS, START_QPOS
from mikasa_robo.core.sampling import ROBOT_BASE_X

STEP_LIMIT = 0.1
"""What an action of 1 adds to a joint's target in a control step, rad (``pd_joint_delta_pos``)."""
REACHED = 0.4
"""Fraction of a commanded step that a joint has moved when the next command comes: the drive's damping divided by its
stiffness is 0.1 s, two control steps."""


class Arm:
    """Computes actions of ``pd_joint_delta_pos`` that move the tool centre point (TCP) to a given pose.

    Args:
        device: of the tensors.
        damping: of the least-squares inverse; it keeps steps finite near singular postures.
    """

    def __init__(self, device: torch.device | str = "cpu", damping: float = 0.02) -> None:
        text = Path(PandaWristCam.urdf_path).read_bytes()
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            # the parser prints warnings about tags that only simulators need
            tree = pk.build_serial_chain_from_urdf(text, "panda_hand_tcp")
        self._chain = tree.to(device=device)
        self._fixed, self._tool = fixed_transforms(self._chain)
        self._rest = torch.tensor(START_QPOS[:ARM_JOINTS], dtype=torch.float32, device=device)
        self._damping = damping

    def act(
        self,
        joints: Tensor,
        position: Tensor,
        quaternion: Tensor,
        gripper: Tensor,
        gain: float = 1.0,
        wrist: Tensor | None = None,
    ) -> Tensor:
        """One action towards a pose of the TCP, as fast as the joints allow.

        Args:
            joints: (N, 25) the ``joints`` observation: qpos, qvel, TCP pose.
            position: (N, 3) target position, m.
            quaternion: (N, 4) target orientation, wxyz.
            gripper: (N,) 1 open, -1 closed.
            gain: fraction of the remaining distance to move in this step.
            wrist: (N,) target angle of the last joint, rad, which leaves the gripper's yaw free; None: the pose
                determines all joints.

        Returns:
            (N, 8) in [-1, 1].
        """
        q, tcp = joints[:, :ARM_JOINTS], joints[:, -7:]
        error = torch.cat([position - tcp[:, :3], rotation_vector(quaternion, tcp[:, 3:])], dim=1)
        jacobian = self.jacobian(q)  # the robot's base is not rotated
        if wrist is not None:
            jacobian, error = jacobian[:, :5].clone(), error[:, :5]
            jacobian[..., -1] = 0
        square = jacobian @ jacobian.transpose(1, 2)
        square = square + self._damping**2 * torch.eye(square.shape[1], device=q.device)
        inverse = jacobian.transpose(1, 2) @ torch.linalg.inv(square)  # (N, 7, 6 or 5)
        step = (inverse @ error[..., None])[..., 0] * gain
        lean = 0.2 * (self._rest - q)
        step = step + lean - (inverse @ (jacobian @ lean[..., None]))[..., 0]
        action = self.action(step, gripper)
        if wrist is not None:
            action[:, ARM_JOINTS - 1] = self.turn(q[:, -1], wrist)
        return action

    def jacobian(self, q: Tensor) -> Tensor:
        """How the TCP moves with each joint (N, 6, 7), m/rad and rad/rad, in the frame of the robot's base.

        The chain's own function computes the same, joint by joint and ten times as slowly: it took most of an expert's time.

        Args:
            q: (N, 7) joint angles, rad.
        """
        return self._kinematics(q)[1]

    def _kinematics(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Pose of the TCP (N, 4, 4) in the frame of the robot's base, and its `jacobian`, for joint angles (N, 7), rad."""
        # A turn about z mixes the first two columns of what lies before a joint. That is cheaper than a product of matrices.
        x, y, z, origin = self._fixed.expand(len(q), -1, -1, -1).unbind(-1)
        cos, sin = q.cos()[..., None], q.sin()[..., None]
        steps = torch.stack([cos * x + sin * y, cos * y - sin * x, z, origin], dim=-1).unbind(1)
        poses = torch.stack(list(itertools.accumulate(steps, torch.matmul)), dim=1)  # (N, 7, 4, 4)
        axes, origins = poses[..., :3, 2], poses[..., :3, 3]  # joints turn about their z axes
        tip = poses[:, -1] @ self._tool
        lever = tip[:, None, :3, 3] - origins
        return tip, torch.cat([torch.linalg.cross(axes, lever), axes], dim=-1).transpose(1, 2)

    def solve(self, position: Tensor, yaw: Tensor, rounds: int = 40) -> tuple[Tensor, Tensor]:
        """Joint angles for a gripper that points straight down.

        Args:
            position: (M, 3) of the TCP, m.
            yaw: (M,) rad.
            rounds: number of iterations of damped least squares.

        Returns:
            (M, 7) rad and the remaining error (M,), m and rad.
        """
        base = position.new_tensor([ROBOT_BASE_X, 0.0, 0.0])
        wanted = facing_down(yaw)
        q = self._rest.repeat(len(yaw), 1)
        q[:, 0] = torch.atan2(position[:, 1], position[:, 0] - ROBOT_BASE_X)
        q[:, -1] = q[:, -1] + q[:, 0] - yaw
        for _ in range(rounds):
            tip, jacobian = self._kinematics(q)
            present = matrix_to_quaternion(tip[:, :3, :3])
            error = torch.cat([position - base - tip[:, :3, 3], rotation_vector(wanted, present)], dim=1)
            square = jacobian @ jacobian.transpose(1, 2) + 1e-3 * torch.eye(6, device=q.device)
            inverse = jacobian.transpose(1, 2) @ torch.linalg.inv(square)
            step = (inverse @ error[..., None])[..., 0].clamp(-0.3, 0.3)
            lean = 0.05 * (self._rest - q)
            q = q + step + lean - (inverse @ (jacobian @ lean[..., None]))[..., 0]
        return q, torch.linalg.norm(error, dim=1)

    @staticmethod
    def turn(angle: Tensor, wanted: Tensor) -> Tensor:
        """The action (N,) that turns one joint from ``angle`` to ``wanted``, rad."""
        return ((wanted - angle) / (REACHED * STEP_LIMIT)).clamp(-1, 1)

    @staticmethod
    def action(step: Tensor, gripper: Tensor) -> Tensor:
        """The action (N, 8) that moves the joints by ``step`` (N, 7), rad; too long a step keeps its direction."""
        action = step / (REACHED * STEP_LIMIT)
        action = action / action.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
        return torch.cat([action, gripper[:, None].to(action)], dim=1)


def fixed_transforms(chain: pk.SerialChain) -> tuple[Tensor, Tensor]:
    """What lies before each joint of a chain, from the joint before it (J, 4, 4), and from the last joint to the tip (4, 4).

    Raises:
        ValueError: a joint does not turn about its z axis.
    """
    found: list[Tensor] = []
    pose = torch.eye(4, dtype=chain.dtype, device=chain.device)
    for frame in chain._serial_frames:
        pose = pose @ frame.get_transform(torch.zeros(1, dtype=chain.dtype, device=chain.device)).get_matrix()[0]
        if frame.joint.joint_type == "fixed":
            continue
        if frame.joint.joint_type != "revolute" or frame.joint.axis.tolist() != [0.0, 0.0, 1.0]:
            raise ValueError(
                f"the joint {frame.joint.name} does not turn about its z axis; use the chain's own jacobian"
            )
        found.append(pose)
        pose = torch.eye(4, dtype=chain.dtype, device=chain.device)
    return torch.stack(found), pose


def quaternion_product(a: Tensor, b: Tensor) -> Tensor:
    """(…, 4) wxyz, the rotation by ``b`` followed by that by ``a``."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        dim=-1,
    )


def rotation_vector(wanted: Tensor, present: Tensor) -> Tensor:
    """(N, 3) axis times angle, rad, of the shortest rotation from ``present`` to ``wanted`` (N, 4), wxyz, world frame."""
    inverse = present * present.new_tensor([1.0, -1.0, -1.0, -1.0])
    turn = quaternion_product(wanted, inverse)
    turn = turn * torch.where(turn[..., :1] < 0, -1.0, 1.0)
    sine = torch.linalg.norm(turn[..., 1:], dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, turn[..., :1])
    return torch.where(sine > 1e-6, turn[..., 1:] / sine.clamp(min=1e-6) * angle, 2 * turn[..., 1:])


def facing_down(yaw: Tensor) -> Tensor:
    """(N, 4) wxyz of a gripper that points straight down; at ``yaw`` (N,) 0, rad, its fingers open along y."""
    half = yaw / 2
    turn = torch.stack([half.cos(), torch.zeros_like(half), torch.zeros_like(half), half.sin()], dim=-1)
    down = yaw.new_tensor([math.cos(math.pi / 2), math.sin(math.pi / 2), 0.0, 0.0]).expand(len(yaw), 4)
    return quaternion_product(turn, down)
