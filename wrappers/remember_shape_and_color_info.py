"""RememberShapeAndColor on the video."""

from __future__ import annotations

from mikasa_robo.core.choice import ChoiceState
from mikasa_robo.tasks.remember_shape_and_color import THESE_COLORS, THESE_SHAPES, RememberShapeAndColor

from .task_info import TaskInfoWrapper, names_of

__all__ = ["RememberShapeAndColorInfoWrapper"]


class RememberShapeAndColorInfoWrapper(TaskInfoWrapper):
    """Shows the shape and the colour of the object to touch."""

    task_class = RememberShapeAndColor

    def facts(self, state: ChoiceState) -> dict[str, list[str]]:
        oracle = self.task.oracle(state)
        return {
            "target shape": names_of(oracle[:, :1], THESE_SHAPES),
            "target colour": names_of(oracle[:, 1:], THESE_COLORS),
        }
