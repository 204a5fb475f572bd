"""An arm that waits at the beginning."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from .task_wrapper import TaskWrapper

__all__ = ["InitialZeroActionWrapper"]


class InitialZeroActionWrapper(TaskWrapper):
    """Replaces the first actions of every episode by zeros, in each environment by its own count of steps.

    With a controller of differences, such as the default ``pd_joint_delta_pos``, the arm then keeps still; the gripper,
    whose action is absolute, goes to half open.

    Args:
        env: a task.
        n_initial_steps: how many actions, at least 0.

    Raises:
        ValueError: ``n_initial_steps`` is no such number.
        TypeError: an action is no tensor and no array.
    """

    def __init__(self, env: gym.Env[Any, Any], n_initial_steps: int = 1) -> None:
        if not isinstance(n_initial_steps, int) or isinstance(n_initial_steps, bool) or n_initial_steps < 0:
            raise ValueError(f"n_initial_steps={n_initial_steps!r} must be a whole number of at least 0")
        super().__init__(env)
        self.n_initial_steps = n_initial_steps

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not isinstance(action, Tensor | np.ndarray):
            raise TypeError(f"the action is a {type(action).__name__}: use a tensor or an array (N, A)")
        task = self.task
        action = torch.as_tensor(action, device=task.device).reshape(task.num_envs, -1)
        waiting = task.elapsed_steps < self.n_initial_steps
        return self.env.step(torch.where(waiting[:, None], torch.zeros_like(action), action))
