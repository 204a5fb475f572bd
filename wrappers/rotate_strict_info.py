"""RotateStrict on the video."""

from __future__ import annotations

from mikasa_robo.tasks.rotate import RotateState, RotateStrict

from .rotate_lenient_info import RotateLenientInfoWrapper

__all__ = ["RotateStrictInfoWrapper"]


class RotateStrictInfoWrapper(RotateLenientInfoWrapper):
    """Shows the angles as well as how far the peg's centre has been moved from where it was."""

    task_class = RotateStrict

    def facts(self, state: RotateState) -> dict[str, list[str]]:
        moved = (self.task.object_layout.read()[:, 0, :2] - state.start[:, :2]).norm(dim=-1)
        return super().facts(state) | {"centre moved by": [f"{100 * way:.1f} cm" for way in moved.tolist()]}
