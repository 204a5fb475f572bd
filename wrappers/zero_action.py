"""Keep the arm still at the beginning of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from mikasa_robo.checks import whole_number
from mikasa_robo.sim.call_arguments import checked_action

from .task_wrapper import TaskWrapper

__all__ = ["InitialZeroActionWrapper"]


class InitialZeroActionWrapper(TaskWrapper):
    """Replaces the first actions of every episode by zeros; each environment counts its own steps.

    With a delta controller, such as the default ``pd_joint_delta_pos``, the arm then keeps still; the gripper, whose
    action is absolute, moves to half open.

    Args:
        env: a task.
        n_initial_steps: number of actions to replace, at least 0.

    Raises:
        ValueError: ``n_initial_steps`` is not such a number.
        TypeError: an action is neither a tensor nor an array.
    """

    def __init__(self, env: gym.Env[Any, Any], n_initial_steps: int = 1) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, n_initial_steps=n_initial_steps)
        self.n_initial_steps = whole_number("n_initial_steps", n_initial_steps)
        super().__init__(env)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not isinstance(action, Tensor | np.ndarray):
            raise TypeError(f"the action is a {type(action).__name__}: use a tensor or an array (N, A)")
        task = self.task
        action = torch.as_tensor(
            checked_action(action, task.single_action_space.shape, task.num_envs), device=task.device
        )
        waiting = task.elapsed_steps < self.n_initial_steps
        return self.env.step(torch.where(waiting[:, None], torch.zeros_like(action), action))
