"""End-effector control of many robots on CPU, with the results of a single environment."""

from __future__ import annotations

from typing import Any

import torch
from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController, PDEEPosControllerConfig
from mani_skill.utils.structs import Pose
from torch import Tensor


class BatchedCpuKinematics:
    """Inverse kinematics for every row of a batch through ManiSkill's own CPU solver.

    On CPU, ManiSkill solves for one target pose with pinocchio. On a GPU, it takes one differential step for the whole
    batch. Here each environment of a batch on CPU gets what it would get alone: its target pose, solved by pinocchio.

    Args:
        controller: the controller whose kinematics are replaced.
    """

    def __init__(self, controller: PDEEPosController) -> None:
        self._single = controller.kinematics
        self._controller = controller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._single, name)

    def compute_ik(self, pose: Pose | Tensor, q0: Tensor, current_pose: Pose | None = None, **unused: Any) -> Tensor:
        """Joint targets (N, controlled joints), rad, for target poses in the root's frame.

        If the solver does not converge, the joint positions stay as they are, as in a single environment.
        """
        controller, single = self._controller, self._single
        if isinstance(pose, Tensor):
            # the GPU path hands over the raw action; a single CPU environment turns it into a pose first
            action = pose[:, :3] if type(controller.config) is PDEEPosControllerConfig else pose
            pose = controller.compute_target_pose(current_pose, action)
        result = controller.qpos.clone()
        start = q0[:, single.pmodel_active_joint_indices].numpy()
        chosen = single.pmodel_controlled_joint_indices.numpy()
        for row in range(len(result)):
            solution, success, _ = single.pmodel.compute_inverse_kinematics(
                single.end_link_idx,
                pose[row].sp,
                initial_qpos=start[row],
                active_qmask=single.qmask,
                max_iterations=100,
            )
            if success:
                result[row] = torch.as_tensor(solution[chosen], dtype=result.dtype)
        return result
