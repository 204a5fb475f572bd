"""BunchOfColors on the video."""

from __future__ import annotations

from mikasa_robo.tasks.bunch_of_colors import BunchOfColors

from .colors_info import ColorsInfoWrapper

__all__ = ["BunchOfColorsInfoWrapper"]


class BunchOfColorsInfoWrapper(ColorsInfoWrapper):
    """Shows the colours of the cubes to touch, from the robot's left as they were shown, and those touched already."""

    task_class = BunchOfColors
