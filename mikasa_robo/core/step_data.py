"""The state of the simulation that a task sees at each control step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

STATIC_SPEED = 0.2
"""A robot whose arm joints all move slower than this is static, rad/s."""


@dataclass
class StepData:
    """The state of the simulation after a control step. A task reads it and never writes to it."""

    elapsed: Tensor  # (N,) int, control steps since the reset
    responding: Tensor  # (N,) bool, in the response phase
    objects: Tensor  # (N, K, 13) position, quaternion wxyz, linear and angular velocity
    tcp: Tensor  # (N, 7) pose of the tool centre point
    joint_speed: Tensor  # (N,) largest speed of an arm joint, rad/s
    fingers: Tensor  # (N,) distance of each finger from closed, m
    # (N, K) m/s, how far each object's centre moved in the last control step, per second. Rest is judged by this: PhysX
    # reports up to 0.2 m/s for an object that closed fingers hold still.
    speeds: Tensor
    # (N, A) float32, the action of the last control step as `step` received it: not clipped, not scaled; zeros after a
    # reset and after a step with the action None. Of shape (1, 0), which broadcasts, if no action was given.
    action: Tensor = field(default_factory=lambda: torch.zeros(1, 0))

    @property
    def static(self) -> Tensor:
        """(N,) bool: the robot is static."""
        return self.joint_speed < STATIC_SPEED


def copied(action: Any) -> Any:
    """A copy of an action, a tensor or an array; None and numbers as they are."""
    return action.clone() if isinstance(action, Tensor) else copy.copy(action)


def action_rows(action: Any, like: Tensor) -> Tensor:
    """A copy of the action that a step received, (N, A) float32; zeros for None.

    Args:
        action: what ManiSkill's step returned: a tensor (N, A), or None.
        like: (N, ·) on the environment's device.
    """
    if action is None:
        return torch.zeros_like(like)
    return torch.as_tensor(action, device=like.device).to(torch.float32, copy=True).reshape(len(like), -1)
