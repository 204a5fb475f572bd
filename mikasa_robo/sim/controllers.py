"""The controllers of a robot, and what they remember of each environment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.agents.controllers.base_controller import DictController
from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController
from mani_skill.agents.multi_agent import MultiAgent
from torch import Tensor

from .kinematics import BatchedCpuKinematics

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


def batch_kinematics(agent: BaseAgent) -> None:
    """Replaces the kinematics of new controllers. ManiSkill makes controllers when their mode is first chosen."""
    for controller in leaf_controllers(agent.controllers.values()):
        if isinstance(controller, PDEEPosController) and not isinstance(controller.kinematics, BatchedCpuKinematics):
            controller.kinematics = BatchedCpuKinematics(controller)


@dataclass(frozen=True)
class DrivenRobots:
    """Facts about the robots that every control step needs, looked up once for a control mode."""

    modes: list[str]
    """The control mode of each robot. The other fields hold as long as it is the same."""
    rows: np.ndarray
    """Rows of the articulations whose drive targets a controller sets."""
    targets_move: bool
    """Whether a controller moves its targets within a control step."""


def find_driven_robots(agent: Any, known: DrivenRobots | None) -> DrivenRobots:
    """Looks it up, where it is not what is ``known`` because a control mode is new."""
    modes = [one.control_mode for one in single_agents(agent)]
    if known is not None and known.modes == modes:
        return known
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    interpolates = False
    for one in single_agents(agent):
        controllers = leaf_controllers([one.controller])
        if any(c.sets_target_qpos or c.sets_target_qvel for c in controllers):
            rows.append(one.robot._data_index.numpy().astype(np.int64))
        interpolates |= any(getattr(c.config, "interpolate", False) for c in controllers)
    return DrivenRobots(modes, np.concatenate(rows), interpolates)
