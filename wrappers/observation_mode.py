"""The observation mode, chosen after the environment was made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from mani_skill.envs.utils.observations import parse_obs_mode_to_struct
from mani_skill.utils import common

from mikasa_robo.core.observations import MODES, parse_modes

from .state_to_dict import StateOnlyTensorToDictWrapper
from .task_wrapper import TaskWrapper

__all__ = ["ObservationModeWrapper"]


class ObservationModeWrapper(TaskWrapper):
    """Lets a task observe in another mode than the one it was made with, always as a flat dict of tensors.

    Observation: as with ``gymnasium.make(..., obs_mode=obs_mode)``, see `MemoryEnv`; "state" alone is a dict, too. The
    task itself changes its mode, so it draws no more pictures than are asked for; the observation spaces follow.

    Args:
        env: a task.
        obs_mode: any of "state", "objects", "joints", "oracle", "prompt", "rgb", "depth", "segmentation", joined by "+".

    Raises:
        ValueError: a name is not known, the task has no prompt and nothing else was asked for, or pictures are asked
            for where the environment was made without a renderer.
    """

    def __init__(self, env: gym.Env[Any, Any], obs_mode: str) -> None:
        super().__init__(env)
        self._choose(obs_mode)
        self.env = StateOnlyTensorToDictWrapper(env)

    def _choose(self, obs_mode: str) -> None:
        modes, task = parse_modes(obs_mode), self.task
        if not modes.parts:
            raise ValueError(
                f"obs_mode={obs_mode!r} is one of ManiSkill's own, which only gymnasium.make can choose; join any of "
                f"{', '.join(MODES)} with '+'"
            )
        if modes.images and not task.scene.can_render():
            raise ValueError(
                f"obs_mode={obs_mode!r} needs pictures, but the environment was made without a renderer: give "
                f"gymnasium.make that obs_mode, or render_backend={'gpu' if task.device.type == 'cuda' else 'cpu'!r}"
            )
        before = task._modes, task._obs_mode, task.obs_mode_struct
        task._modes, task._obs_mode = modes, modes.maniskill
        task.obs_mode_struct = parse_obs_mode_to_struct(modes.maniskill)
        try:
            obs = task.get_obs()
        except ValueError:
            task._modes, task._obs_mode, task.obs_mode_struct = before
            raise
        task.update_obs_space(common.to_cpu_tensor(obs))
