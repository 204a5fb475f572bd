"""What BunchOfColors, SeqOfColors and ChainOfColors show on the video."""

from __future__ import annotations

from torch import Tensor

from mikasa_robo.core.choice import ChoiceState

from .task_info import COLOR_NAMES, TaskInfoWrapper, names_of

__all__ = ["ColorsInfoWrapper"]


class ColorsInfoWrapper(TaskInfoWrapper):
    """Shows the colours of the cubes to touch, in the order in which they were shown, and those touched already."""

    def facts(self, state: ChoiceState) -> dict[str, list[str]]:
        return {
            "target colours": names_of(state.target, COLOR_NAMES),
            "touched": [_touched(*row) for row in zip(state.target, state.counted, strict=True)],
        }


def _touched(target: Tensor, counted: Tensor) -> str:
    """Those of the targets (m,) that count (K,) bool, by name."""
    done = target[counted[target]]
    return f"{len(done)} of {len(target)} ({names_of(done[None], COLOR_NAMES)[0] or '-'})"
