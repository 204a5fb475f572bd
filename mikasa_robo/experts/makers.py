"""Scripted policies by their names on the command line. Importing this loads neither torch nor the simulator."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from .evaluation import PolicyMaker

__all__ = ["POLICY_NAMES", "PolicyName", "policy_maker"]

PolicyName = Literal["expert", "forgetful", "memoryless", "sweeper", "embodied", "random"]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)


def policy_maker(name: PolicyName, k: int = 1000) -> PolicyMaker:
    """Return the function that makes the policy ``name`` for a skill.

    Args:
        name: one of `POLICY_NAMES`.
        k: how many earlier views "forgetful" remembers.
    """
    from .policies import Embodied, Expert, Forgetful, Random, Sweeper

    makers: dict[str, Any] = {
        "expert": Expert,
        "forgetful": functools.partial(Forgetful, k=k),
        "memoryless": functools.partial(Forgetful, k=0),
        "sweeper": Sweeper,
        "embodied": Embodied,
        "random": Random,
    }
    maker: PolicyMaker = makers[name]
    return maker
