"""The controllers of a robot, and what they remember of each environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.agents.controllers.base_controller import DictController
from mani_skill.agents.multi_agent import MultiAgent
from torch import Tensor

_PER_ENV = ("_start_qpos", "_target_qpos", "_target_qvel", "_target_pose")
"""Attributes of ManiSkill's controllers that hold a row for each environment."""


def single_agents(agent: Any) -> list[BaseAgent]:
    """The robots that ``agent`` (a robot, several, or None) consists of."""
    if agent is None:
        return []
    return list(agent.agents) if isinstance(agent, MultiAgent) else [agent]


def leaf_controllers(controllers: Iterable[Any]) -> list[Any]:
    """The controllers that move joints, out of the nested ones that only combine them."""
    leaves = []
    for controller in controllers:
        if isinstance(controller, dict):
            leaves += leaf_controllers(controller.values())
        elif isinstance(controller, DictController):
            leaves += leaf_controllers(controller.controllers.values())
        else:
            leaves.append(controller)
    return leaves


def controller_tensors(agent: Any, num_envs: int) -> list[tuple[Any, str, Tensor]]:
    """The tensors in which the controllers of ``agent`` remember something of each environment.

    Returns:
        (controller, attribute, tensor (num_envs, …)) of every controller of every control mode.
    """
    found = []
    for controller in leaf_controllers(c for one in single_agents(agent) for c in one.controllers.values()):
        for name in _PER_ENV:
            value = getattr(controller, name, None)
            tensor = getattr(value, "raw_pose", value)
            if isinstance(tensor, Tensor) and tensor.shape[:1] == (num_envs,):
                found.append((controller, name, tensor))
    return found


class SavedControllers:
    """What the controllers of a robot remember at one moment.

    Args:
        agent: the robot, several robots, or None.
        num_envs: number of environments.
    """

    def __init__(self, agent: Any, num_envs: int) -> None:
        self._saved = [(holder, name, tensor.clone()) for holder, name, tensor in controller_tensors(agent, num_envs)]

    def restore(self, envs: Tensor) -> None:
        """Restores the environments in ``envs``, (N,) bool."""
        for holder, name, old in self._saved:
            now = getattr(holder, name)
            now = now.raw_pose if hasattr(now, "raw_pose") else now
            chosen = envs.reshape(-1, *[1] * (now.ndim - 1))
            now.copy_(torch.where(chosen, old, now))
