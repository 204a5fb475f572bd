"""Overlays that tell what has to be remembered and how the episode stands."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.phases import PHASES

from .overlay import Overlay

__all__ = ["TASK_INFO_WRAPPERS", "TaskInfoWrapper", "with_task_info"]


class TaskInfoWrapper(Overlay):
    """Shows what a memory has to hold, the phase, the task's own flags that are set, mistakes and the outcome.

    It fits every task: what it shows of the task's state comes from `MemoryEnv.overlay_facts`.

    Raises:
        TypeError: ``env`` is not a task of the class `task_class`.
    """

    task_class: ClassVar[type[Any]] = MemoryEnv
    """The tasks that the wrapper accepts; a family's own wrapper accepts that family only."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(self.task, self.task_class):
            raise TypeError(
                f"{type(self).__name__} is for {self.task_class.__name__}, not for {type(self.task).__name__}: use "
                "TaskInfoWrapper, or the wrapper of that family"
            )

    def facts(self, state: Any) -> dict[str, list[str]]:
        """What is shown of the task's state: under each name one text for each of the N environments."""
        return self.task.overlay_facts(state)

    def lines(self) -> list[list[str]]:
        info = self.task.evaluate()
        n = self.task.num_envs
        texts_by_name = {
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
        return [[f"{name}: {texts[i]}" for name, texts in texts_by_name.items()] for i in range(n)]


def _flags(info: dict[str, Any], n: int) -> list[str]:
    """For each environment the names of the flags (N,) bool that are set."""
    flags = {
        name.replace("_", " "): value.tolist()
        for name, value in info.items()
        if name not in ("success", "fail", "mistake")
        and isinstance(value, Tensor)
        and value.dtype == torch.bool
        and value.shape == (n,)
    }
    return [", ".join(name for name, values in flags.items() if values[i]) or "-" for i in range(n)]


PAPER_NAMES = {"ShellGame": "ShellGameRenderCupInfoWrapper"}
"""What the paper calls the wrapper of a family, if it is not the family's name followed by "InfoWrapper"."""


def _family_wrappers() -> tuple[type[TaskInfoWrapper], ...]:
    """A wrapper for each family of the catalog, which accepts that family only."""
    rows = {CATALOG[env_id].family: CATALOG[env_id] for env_id in mikasa_robo.TASKS}
    wrappers = []
    for family, row in rows.items():
        module, kind = row.entry_point.split(":")
        namespace = {
            "__doc__": f"`TaskInfoWrapper` for {family}.",
            "__module__": __package__,
            "task_class": getattr(importlib.import_module(module), kind),
        }
        wrappers.append(type(PAPER_NAMES.get(family, f"{family}InfoWrapper"), (TaskInfoWrapper,), namespace))
    return tuple(wrappers)


TASK_INFO_WRAPPERS: tuple[type[TaskInfoWrapper], ...] = _family_wrappers()
"""One for each family, in the order of the catalog, under the paper's names."""


def with_task_info(env: gym.Env[Any, Any]) -> TaskInfoWrapper:
    """Wrap ``env`` in the wrapper of its family, or in `TaskInfoWrapper` if it belongs to none."""
    for wrapper in TASK_INFO_WRAPPERS:
        if isinstance(env.unwrapped, wrapper.task_class):
            return wrapper(env)
    return TaskInfoWrapper(env)
