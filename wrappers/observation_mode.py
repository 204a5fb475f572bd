"""Choose the observation mode after the environment was made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from mikasa_robo.core.observations import MODES, parse_modes

from .state_to_dict import StateOnlyTensorToDictWrapper
from .task_wrapper import TaskWrapper

__all__ = ["ObservationModeWrapper"]


class ObservationModeWrapper(TaskWrapper):
    """Changes the observation mode that a task was made with. Observations are always a flat dict of tensors.

    Observation: as with ``gymnasium.make(..., obs_mode=obs_mode)``, see `MemoryEnv`; "state" alone is a dict, too. The
    task itself changes its mode (`MemoryEnv.set_obs_mode`), so it renders only what is asked for; the observation spaces
    follow.

    Args:
        env: a task.
        obs_mode: any of "state", "objects", "joints", "time", "oracle", "prompt", "rgb", "depth", "segmentation", joined by
            "+".

    Raises:
        ValueError: a name is not known, the task has no prompt and nothing else was asked for, pictures are asked
            for where the environment was made without a renderer, or it was made with ``obs_layout="maniskill"``.
    """

    def __init__(self, env: gym.Env[Any, Any], obs_mode: str) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, obs_mode=obs_mode)
        super().__init__(env)
        self._require_batched()
        if not parse_modes(obs_mode).parts:
            raise ValueError(
                f"obs_mode={obs_mode!r} is one of ManiSkill's own, which only gymnasium.make can choose; join any of "
                f"{', '.join(MODES)} with '+'"
            )
        if self.task.obs_layout != "flat":
            raise ValueError(f"obs_layout={self.task.obs_layout!r}: make the task with obs_layout='flat' to wrap it")
        self.task.set_obs_mode(obs_mode)
        self.env = StateOnlyTensorToDictWrapper(env)
