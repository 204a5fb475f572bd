"""Load the expert's skill that a catalog row names."""

from __future__ import annotations

import importlib
from typing import Any

from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.env import MemoryEnv

from .skill import Skill


def has_skill(env_id: str) -> bool:
    """Whether there is an expert for the task."""
    return env_id in CATALOG and CATALOG[env_id].skill is not None


def make_skill(env_id: str, task: MemoryEnv[Any]) -> Skill:
    """Return the skill for a task. Raises KeyError if the task has none."""
    name = CATALOG[env_id].skill
    if name is None:
        raise KeyError(f"{env_id} has no expert: name the class of its skill in the catalog row, skill='module:Class'")
    module, kind = name.split(":")
    skill: Skill = getattr(importlib.import_module(module), kind)(task)
    return skill
