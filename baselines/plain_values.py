"""What a checkpoint can hold besides tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["why_not_plain"]


def why_not_plain(value: Any, where: str) -> str | None:
    """Why a checkpoint cannot hold ``value``, in words that call it ``where``; None if it can.

    It can hold tensors and str, int, float, bool, None, and lists, tuples and mappings of these.
    """
    if value is None or isinstance(value, (str, int, float, bool, torch.Tensor)):
        return None
    if isinstance(value, Mapping):
        parts = [(f"{where}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    else:
        kind = type(value).__name__
        return f"{where} is a {kind}, which a checkpoint cannot hold; make it a tensor or a plain value"
    return next((why for name, item in parts if (why := why_not_plain(item, name)) is not None), None)
