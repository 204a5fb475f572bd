"""SeqOfColors on the video."""

from __future__ import annotations

from mikasa_robo.tasks.seq_of_colors import SeqOfColors

from .colors_info import ColorsInfoWrapper

__all__ = ["SeqOfColorsInfoWrapper"]


class SeqOfColorsInfoWrapper(ColorsInfoWrapper):
    """Shows the colours of the cubes to touch, in the order shown, and those touched already."""

    task_class = SeqOfColors
