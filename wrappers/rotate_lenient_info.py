"""RotateLenient on the video."""

from __future__ import annotations

from mikasa_robo.tasks.rotate import RotateLenient, RotateState

from .task_info import TaskInfoWrapper

__all__ = ["RotateLenientInfoWrapper"]


class RotateLenientInfoWrapper(TaskInfoWrapper):
    """Shows the angle to turn the peg by, and by how much it has been turned, in degrees, counter-clockwise positive."""

    task_class = RotateLenient

    def facts(self, state: RotateState) -> dict[str, list[str]]:
        return {
            "turn by": [f"{round(angle):+d}°" for angle in state.target.rad2deg().tolist()],
            "turned so far": [f"{round(angle):+d}°" for angle in state.turned.rad2deg().tolist()],
        }
