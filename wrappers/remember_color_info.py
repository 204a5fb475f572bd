"""RememberColor on the video."""

from __future__ import annotations

from mikasa_robo.core.choice import ChoiceState
from mikasa_robo.tasks.remember_color import RememberColor

from .task_info import COLOR_NAMES, TaskInfoWrapper, names_of

__all__ = ["RememberColorInfoWrapper"]


class RememberColorInfoWrapper(TaskInfoWrapper):
    """Shows the colour of the cube to touch."""

    task_class = RememberColor

    def facts(self, state: ChoiceState) -> dict[str, list[str]]:
        return {"target colour": names_of(state.target, COLOR_NAMES)}
