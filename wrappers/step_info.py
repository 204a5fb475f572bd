"""Overlay with the control step."""

from __future__ import annotations

from typing import Any, ClassVar

from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.gym_utils import find_max_episode_steps_value

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.phases import PHASES

from .overlay import Overlay

__all__ = ["RenderStepInfoWrapper"]


class RenderStepInfoWrapper(Overlay):
    """Shows each environment's control step t, the length of its episode and, in MIKASA's tasks, the phase.

    It works with every ManiSkill task.
    """

    base_class: ClassVar[type[Any]] = BaseEnv

    def lines(self) -> list[list[str]]:
        task: Any = self.task
        limit = find_max_episode_steps_value(self.env)
        if limit is None and isinstance(task, MemoryEnv):  # made without `BatchedTimeLimit`
            limit = task.horizon
        lines = [f"step {t}" + ("" if limit is None else f" of {limit}") for t in task.elapsed_steps.tolist()]
        if isinstance(task, MemoryEnv):
            phases = task.timeline.phase(task.elapsed_steps).tolist()
            lines = [f"{line} ({PHASES[phase]})" for line, phase in zip(lines, phases, strict=True)]
        return [[line] for line in lines]
