"""Overlay with the control step."""

from __future__ import annotations

from mikasa_robo.core.phases import PHASES

from .overlay import Overlay

__all__ = ["RenderStepInfoWrapper"]


class RenderStepInfoWrapper(Overlay):
    """Shows each environment's control step t, the length of its episode and the phase."""

    def lines(self) -> list[list[str]]:
        task = self.task
        phases = task.timeline.phase(task.elapsed_steps)
        steps = zip(task.elapsed_steps.tolist(), phases.tolist(), strict=True)
        return [[f"step {t} of {task.horizon} ({PHASES[phase]})"] for t, phase in steps]
