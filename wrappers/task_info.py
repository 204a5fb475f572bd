"""What is to be remembered, and how the episode stands, on the video."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.assets.palette import COLORS
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.phases import PHASES

from .overlay import Overlay

__all__ = ["COLOR_NAMES", "TaskInfoWrapper", "names_of"]

COLOR_NAMES = tuple("olive (orange)" if name == "olive" else name for name in COLORS)
"""The nine colours, as a spectator knows them."""


class TaskInfoWrapper(Overlay):
    """Shows what a memory has to hold, the phase, which of the task's own flags are up, mistakes and the outcome.

    This one fits every task and shows the oracle's numbers; a family's own says in words what they mean. It declares
    the class of its tasks and gives `facts`.

    Raises:
        TypeError: ``env`` is another task.
    """

    task_class: ClassVar[type[Any]] = MemoryEnv

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(self.task, self.task_class):
            raise TypeError(
                f"{type(self).__name__} is for {self.task_class.__name__}, not for {type(self.task).__name__}: use "
                "TaskInfoWrapper, or the wrapper of that family"
            )

    def facts(self, state: Any) -> dict[str, list[str]]:
        """What is shown of the task's state, under a name each: one text for each of the N environments."""
        numbers = self.task.oracle(state).tolist()
        return {"oracle": [" ".join(f"{number:.3g}" for number in row) for row in numbers]}

    def lines(self) -> list[list[str]]:
        info = self.task.evaluate()
        n = self.task.num_envs
        shown = {
            **self.facts(self.task.task_state),
            "phase": [PHASES[phase] for phase in info["phase"].tolist()],
            "flags": _flags(info, n),
            **(
                {"mistake": ["yes" if made else "no" for made in info["mistake"].tolist()]} if "mistake" in info else {}
            ),
            "outcome": [
                "success" if success else "failure" if fail else "-"
                for success, fail in zip(info["success"].tolist(), info["fail"].tolist(), strict=True)
            ],
        }
        return [[f"{name}: {texts[i]}" for name, texts in shown.items()] for i in range(n)]


def _flags(info: dict[str, Any], n: int) -> list[str]:
    """For each environment the names of the flags (N,) bool that are up."""
    flags = {
        name.replace("_", " "): value.tolist()
        for name, value in info.items()
        if name not in ("success", "fail", "mistake")
        and isinstance(value, Tensor)
        and value.dtype == torch.bool
        and value.shape == (n,)
    }
    return [", ".join(name for name, up in flags.items() if up[i]) or "-" for i in range(n)]


def names_of(indices: Tensor, names: tuple[str, ...]) -> list[str]:
    """The names that the indices (N, m) stand for, for each environment."""
    return [", ".join(names[index] for index in row) for row in indices.tolist()]
