"""Which skill does which family."""

from __future__ import annotations

import importlib
from typing import Any

from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.env import MemoryEnv

from .skill import Skill

_HERE = "mikasa_robo.experts"
SKILLS: dict[str, str] = {
    **dict.fromkeys(
        (
            "RememberColor",
            "RememberShape",
            "RememberShapeAndColor",
            "BunchOfColors",
            "SeqOfColors",
            "ChainOfColors",
        ),
        f"{_HERE}.touching:TouchSkill",
    ),
    **dict.fromkeys(("RotateLenient", "RotateStrict"), f"{_HERE}.rotating:RotateSkill"),
    **dict.fromkeys(("Intercept", "InterceptGrab"), f"{_HERE}.intercepting:InterceptSkill"),
    "TakeItBack": f"{_HERE}.taking_back:TakeItBackSkill",
    "ShellGameTouch-v0": f"{_HERE}.shells:ShellTouchSkill",
    "ShellGamePush-v0": f"{_HERE}.shells:ShellPushSkill",
    "ShellGamePick-v0": f"{_HERE}.shells:ShellPickSkill",
}
"""Family or ID to ``"module:Class"``; an ID goes before its family."""


def has_skill(env_id: str) -> bool:
    """Whether there is an expert for the task."""
    return env_id in CATALOG and (env_id in SKILLS or CATALOG[env_id].family in SKILLS)


def make_skill(env_id: str, task: MemoryEnv[Any]) -> Skill:
    """The skill for a task. Raises KeyError where there is none."""
    row = CATALOG[env_id]
    name = SKILLS.get(env_id) or SKILLS.get(row.family)
    if name is None:
        raise KeyError(f"{env_id} has no expert; those that have one: {', '.join(SKILLS)}")
    module, kind = name.split(":")
    skill: Skill = getattr(importlib.import_module(module), kind)(task)
    return skill
