"""TakeItBack on the video."""

from __future__ import annotations

from mikasa_robo.tasks.take_it_back import TakeItBack, TakeItBackState

from .task_info import TaskInfoWrapper

__all__ = ["TakeItBackInfoWrapper"]


class TakeItBackInfoWrapper(TaskInfoWrapper):
    """Shows where the cube started, and which way it has to go."""

    task_class = TakeItBack

    def facts(self, state: TakeItBackState) -> dict[str, list[str]]:
        away = (self.task.object_layout.read()[:, 0, :2] - state.start[:, :2]).norm(dim=-1)
        return {
            "cube started at": [f"({x:.2f}, {y:.2f}) m" for x, y, _ in state.start.tolist()],
            "away from there by": [f"{100 * way:.1f} cm" for way in away.tolist()],
            "next": ["back to the start" if reached else "to the disc" for reached in state.reached.tolist()],
        }
