"""Overlay with the terms of the dense reward."""

from __future__ import annotations

from .overlay import Overlay

__all__ = ["DebugRewardWrapper"]


class DebugRewardWrapper(Overlay):
    """Shows each weighted term of the present dense reward and the most that it can pay."""

    place = "bottom"

    def lines(self) -> list[list[str]]:
        terms = self.task.evaluate()["reward_terms"]
        scales = self.task.reward_scales
        names = [f"{name}: %.2f" + (f" of {scales[name]:g}" if name in scales else "") for name in terms]
        values = zip(*(term.tolist() for term in terms.values()), strict=True)
        return [[text % value for text, value in zip(names, row, strict=True)] for row in values]
