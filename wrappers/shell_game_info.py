"""ShellGame on the video."""

from __future__ import annotations

from mikasa_robo.tasks.shell_game import ShellGame, ShellState

from .task_info import TaskInfoWrapper, names_of

__all__ = ["ShellGameRenderCupInfoWrapper"]

MUGS = ("left", "centre", "right")


class ShellGameRenderCupInfoWrapper(TaskInfoWrapper):
    """Shows which mug the ball is under, as the robot sees them: left is +y, at the right of a camera that faces it."""

    task_class = ShellGame

    def facts(self, state: ShellState) -> dict[str, list[str]]:
        return {"ball under": [f"the robot's {mug} mug" for mug in names_of(state.target[:, None], MUGS)]}
