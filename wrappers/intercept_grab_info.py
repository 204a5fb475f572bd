"""InterceptGrab on the video."""

from __future__ import annotations

from mikasa_robo.tasks.intercept_grab import InterceptGrab

from .intercept_info import InterceptInfoWrapper

__all__ = ["InterceptGrabInfoWrapper"]


class InterceptGrabInfoWrapper(InterceptInfoWrapper):
    """Shows the velocity (x, y) with which the ball began, and how fast it is now."""

    task_class = InterceptGrab
