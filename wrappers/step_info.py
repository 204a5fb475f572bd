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
        if not isinstance(task, MemoryEnv):
            horizon = find_max_episode_steps_value(self.env)
            return [[f"step {t}" + ("" if horizon is None else f" of {horizon}")] for t in task.elapsed_steps.tolist()]
        phases = task.timeline.phase(task.elapsed_steps)
        steps = zip(task.elapsed_steps.tolist(), phases.tolist(), strict=True)
        return [[f"step {t} of {task.horizon} ({PHASES[phase]})"] for t, phase in steps]
