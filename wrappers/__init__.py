"""Gymnasium wrappers for the MIKASA tasks; installed as ``mikasa_robo.utils.wrappers``.

The wrappers that the paper names after the families, such as ``RememberColorInfoWrapper``, are made from the catalog, see
`task_info`.
"""

from __future__ import annotations

from .camera_shutdown import CameraShutdownWrapper
from .observation_mode import ObservationModeWrapper
from .overlay import Overlay
from .reward_info import RenderRewardInfoWrapper
from .reward_terms import DebugRewardWrapper
from .state_to_dict import StateOnlyTensorToDictWrapper
from .step_info import RenderStepInfoWrapper
from .task_info import TASK_INFO_WRAPPERS, TaskInfoWrapper, with_task_info
from .time_limit import BatchedTimeLimit
from .unbatch import UnbatchWrapper
from .zero_action import InitialZeroActionWrapper

_FAMILY_WRAPPERS = {wrapper.__name__: wrapper for wrapper in TASK_INFO_WRAPPERS}
globals().update(_FAMILY_WRAPPERS)

__all__ = [
    "TASK_INFO_WRAPPERS",
    "BatchedTimeLimit",
    "CameraShutdownWrapper",
    "DebugRewardWrapper",
    "InitialZeroActionWrapper",
    "ObservationModeWrapper",
    "Overlay",
    "RenderRewardInfoWrapper",
    "RenderStepInfoWrapper",
    "StateOnlyTensorToDictWrapper",
    "TaskInfoWrapper",
    "UnbatchWrapper",
    "with_task_info",
    *_FAMILY_WRAPPERS,
]
