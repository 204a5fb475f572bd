"""RememberShape on the video."""

from __future__ import annotations

from mikasa_robo.assets.shapes import SHAPES
from mikasa_robo.core.choice import ChoiceState
from mikasa_robo.tasks.remember_shape import RememberShape

from .task_info import TaskInfoWrapper, names_of

__all__ = ["RememberShapeInfoWrapper"]


class RememberShapeInfoWrapper(TaskInfoWrapper):
    """Shows the shape of the object to touch."""

    task_class = RememberShape

    def facts(self, state: ChoiceState) -> dict[str, list[str]]:
        return {"target shape": names_of(state.target, SHAPES)}
