"""Scripted policies by their names on the command line. Importing this loads neither torch nor the simulator."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from .evaluation import PolicyMaker
    from .policies import Policy
    from .skill import Skill

__all__ = ["POLICY_NAMES", "PolicyName", "policy_maker"]

PolicyName = Literal[
    "expert",
    "window",
    "memoryless",
    "exhaustive",
    "posture",
    "random",
    "peek",
    "servo",
    "mean-velocity",
    "barrier",
    "reward-reader",
    "forgetful",
    "sweeper",
    "embodied",
]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
EARLIER_NAMES = {"forgetful": "window", "sweeper": "exhaustive", "embodied": "posture"}
"""Names of earlier versions, which published commands use: old to new."""


def policy_maker(name: PolicyName, k: int = 1000) -> PolicyMaker:
    """Return the function that makes the policy ``name`` for a skill.

    Args:
        name: one of `POLICY_NAMES`. What the last five of the present names make is written to cheat at some tasks: "peek"
            at ShellGamePush and ShellGamePick, "servo" and "mean-velocity" at Intercept and InterceptGrab, "barrier" at
            those of them that hide the ball, "reward-reader" at the tasks with one object to touch. Making them for
            another task's skill raises UnfitPolicyError.
        k: how many earlier views "window" remembers.
    """
    from .peeking import Peek
    from .policies import ExhaustiveSearch, Expert, Random, WindowMemory
    from .reward_reading import RewardReader
    from .servoing import Barrier, MeanVelocity, Servo

    makers: dict[str, Any] = {
        "expert": Expert,
        "window": functools.partial(WindowMemory, k=k),
        "memoryless": functools.partial(WindowMemory, k=0),
        "exhaustive": ExhaustiveSearch,
        "posture": _posture,
        "random": Random,
        "peek": Peek,
        "servo": Servo,
        "mean-velocity": MeanVelocity,
        "barrier": Barrier,
        "reward-reader": RewardReader,
    }
    maker: PolicyMaker = makers[EARLIER_NAMES.get(name, name)]
    return maker


def _posture(skill: Skill, seed: int = 0) -> Policy:
    """The policy that uses the robot's body as its memory, see `Skill.posture_policy`."""
    module, kind = skill.posture_policy.split(":")
    policy: Policy = getattr(importlib.import_module(module), kind)(skill, seed)
    return policy
