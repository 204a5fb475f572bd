"""Gymnasium wrappers for the MIKASA tasks, one to a file; installed as ``mikasa_robo.utils.wrappers``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from .bunch_of_colors_info import BunchOfColorsInfoWrapper
from .camera_shutdown import CameraShutdownWrapper
from .chain_of_colors_info import ChainOfColorsInfoWrapper
from .intercept_grab_info import InterceptGrabInfoWrapper
from .intercept_info import InterceptInfoWrapper
from .observation_mode import ObservationModeWrapper
from .overlay import Overlay
from .remember_color_info import RememberColorInfoWrapper
from .remember_shape_and_color_info import RememberShapeAndColorInfoWrapper
from .remember_shape_info import RememberShapeInfoWrapper
from .reward_info import RenderRewardInfoWrapper
from .reward_terms import DebugRewardWrapper
from .rotate_lenient_info import RotateLenientInfoWrapper
from .rotate_strict_info import RotateStrictInfoWrapper
from .seq_of_colors_info import SeqOfColorsInfoWrapper
from .shell_game_info import ShellGameRenderCupInfoWrapper
from .state_to_dict import StateOnlyTensorToDictWrapper
from .step_info import RenderStepInfoWrapper
from .take_it_back_info import TakeItBackInfoWrapper
from .task_info import TaskInfoWrapper
from .time_limit import BatchedTimeLimit
from .zero_action import InitialZeroActionWrapper

__all__ = [
    "TASK_INFO_WRAPPERS",
    "BatchedTimeLimit",
    "BunchOfColorsInfoWrapper",
    "CameraShutdownWrapper",
    "ChainOfColorsInfoWrapper",
    "DebugRewardWrapper",
    "InitialZeroActionWrapper",
    "InterceptGrabInfoWrapper",
    "InterceptInfoWrapper",
    "ObservationModeWrapper",
    "Overlay",
    "RememberColorInfoWrapper",
    "RememberShapeAndColorInfoWrapper",
    "RememberShapeInfoWrapper",
    "RenderRewardInfoWrapper",
    "RenderStepInfoWrapper",
    "RotateLenientInfoWrapper",
    "RotateStrictInfoWrapper",
    "SeqOfColorsInfoWrapper",
    "ShellGameRenderCupInfoWrapper",
    "StateOnlyTensorToDictWrapper",
    "TakeItBackInfoWrapper",
    "TaskInfoWrapper",
    "with_task_info",
]

TASK_INFO_WRAPPERS: tuple[type[TaskInfoWrapper], ...] = (
    ShellGameRenderCupInfoWrapper,
    InterceptInfoWrapper,
    InterceptGrabInfoWrapper,
    RotateLenientInfoWrapper,
    RotateStrictInfoWrapper,
    TakeItBackInfoWrapper,
    RememberColorInfoWrapper,
    RememberShapeInfoWrapper,
    RememberShapeAndColorInfoWrapper,
    BunchOfColorsInfoWrapper,
    SeqOfColorsInfoWrapper,
    ChainOfColorsInfoWrapper,
)
"""One for each family, in the order of the catalog."""


def with_task_info(env: gym.Env[Any, Any]) -> TaskInfoWrapper:
    """``env`` in the wrapper that tells most about its task: that of the family, or `TaskInfoWrapper` for any other."""
    for wrapper in TASK_INFO_WRAPPERS:
        if isinstance(env.unwrapped, wrapper.task_class):
            return wrapper(env)
    return TaskInfoWrapper(env)
