"""ChainOfColors on the video."""

from __future__ import annotations

from mikasa_robo.tasks.chain_of_colors import ChainOfColors

from .colors_info import ColorsInfoWrapper

__all__ = ["ChainOfColorsInfoWrapper"]


class ChainOfColorsInfoWrapper(ColorsInfoWrapper):
    """Shows the colours of the cubes to touch, in the order in which they have to be touched, and those touched already."""

    task_class = ChainOfColors
