"""The robot held where it is, so that a policy cannot store the cue in its posture."""

from __future__ import annotations

import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.envs.scene import ManiSkillScene
from torch import Tensor

from mikasa_robo.sim.controllers import SavedControllers


class ArmHold:
    """Holds the robots of some environments for one control step, whatever action they are given.

    Args:
        scene: the scene they are in.
        agent: the robot of every environment and its controllers.
        held: (N,) bool, the environments whose robot stays where it is.
    """

    def __init__(self, scene: ManiSkillScene, agent: BaseAgent, held: Tensor) -> None:
        self._scene, self._robot, self._held = scene, agent.robot, held
        self._qpos = agent.robot.get_qpos().clone()
        self._controllers = SavedControllers(agent, len(held))

    def apply(self) -> None:
        """Sets the drive targets. To be called before every substep: some controllers move their targets in between."""
        if not self._scene.gpu_sim_enabled:
            # a single environment; the caller makes no hold for one that is free
            self._robot.set_joint_drive_targets(self._qpos, self._robot.active_joints)
            self._robot.set_joint_drive_velocity_targets(torch.zeros_like(self._qpos), self._robot.active_joints)
            return
        px, rows, dof = self._scene.px, self._robot._data_index, self._qpos.shape[1]
        for buffer, target in (
            (px.cuda_articulation_target_qpos.torch(), self._qpos),
            (px.cuda_articulation_target_qvel.torch(), torch.zeros_like(self._qpos)),
        ):
            buffer[rows, :dof] = torch.where(self._held[:, None], target, buffer[rows, :dof])
        px.gpu_apply_articulation_target_position()
        px.gpu_apply_articulation_target_velocity()

    def restore_controllers(self) -> None:
        """Restores the controllers, so that an action that was not carried out does not affect later ones."""
        self._controllers.restore(self._held)
