"""The terms of the dense reward on the video."""

from __future__ import annotations

from .overlay import Overlay

__all__ = ["DebugRewardWrapper"]


class DebugRewardWrapper(Overlay):
    """Shows every weighted term of the dense reward of this moment, and what each can pay at most."""

    place = "bottom"

    def lines(self) -> list[list[str]]:
        terms = self.task.evaluate()["reward_terms"]
        scales = self.task.reward_scales
        names = [f"{name}: %.2f" + (f" of {scales[name]:g}" if name in scales else "") for name in terms]
        values = zip(*(term.tolist() for term in terms.values()), strict=True)
        return [[text % value for text, value in zip(names, row, strict=True)] for row in values]
