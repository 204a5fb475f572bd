"""The two forms of a task that asks how something lay at the start: it stays there, or it comes back elsewhere."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from mikasa_robo.checks import boolean, one_of

from .phases import CUE

Recall = Literal["in_place", "replaced"]


def is_replaced(recall: Any, response_steps: Any) -> bool:
    """Whether the constructor argument ``recall`` asks for the form in which the object comes back elsewhere.

    Raises:
        ValueError: ``recall`` is unknown, or there is no response phase in which the object could come back.
    """
    replaced = bool(one_of("recall", recall, ("in_place", "replaced")) == "replaced")
    if replaced and response_steps == 0:
        raise ValueError(
            "recall='replaced' with response_steps=0: the object would never come back; use response_steps of at least"
            " 1, or recall='in_place'"
        )
    return replaced


def starts_grasped(start_grasped: Any, recall: Any) -> bool:
    """Whether the constructor argument ``start_grasped`` asks for an object in the hand.

    Raises:
        ValueError: it is no boolean, or the object would come back elsewhere than the hand is.
    """
    grasped = boolean("start_grasped", start_grasped)
    if grasped and recall == "replaced":
        raise ValueError(
            "start_grasped=True with recall='replaced': the object comes back elsewhere than the hand is; use one of them"
        )
    return grasped


def home(phase: Tensor, start: Tensor, returned: Tensor) -> Tensor:
    """Where an object belongs.

    Args:
        phase: (N,) int64, the phase that each environment is in.
        start: (N, D) where it is in the cue.
        returned: (N, D) where it is when acting begins.

    Returns:
        (N, D).
    """
    return torch.where((phase == CUE)[:, None], start, returned)
