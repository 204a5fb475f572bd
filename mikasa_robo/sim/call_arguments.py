"""Checks of what ``step`` and ``reset`` are given, before anything changes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["RESET_OPTIONS", "checked_action", "checked_options"]

RESET_OPTIONS = ("env_idx", "reconfigure", "reset_to_env_states")
"""The options of a reset that ManiSkill knows."""


def checked_action(action: Any, shape: tuple[int, ...], num_envs: int) -> Any:
    """An action that can be played, without its gradient.

    Args:
        action: tensor, array or nested sequence of numbers: (N, *shape), or ``shape`` if N is 1. None, and ManiSkill's
            dicts, whose tensors lose their gradients, are returned as they are.
        shape: of one environment's action.
        num_envs: N.

    Returns:
        a tensor or an array (N, *shape), with the dtype that it had; float32 for a sequence and for whole numbers.

    Raises:
        TypeError: not numbers.
        ValueError: another shape.
    """
    if action is None:
        return None
    if isinstance(action, Mapping):
        if not {"action", "control_mode"} <= set(action):
            raise ValueError(
                "the action is a dict without 'action' and 'control_mode': give both, or a tensor or an array"
            )
        return {name: _without_gradient(value) for name, value in action.items()}
    values = _without_gradient(action)
    if not isinstance(values, Tensor | np.ndarray):
        try:
            values = np.asarray(values, dtype=np.float32)
        except (TypeError, ValueError):
            values = np.asarray(None)
    if isinstance(values, np.ndarray) and values.dtype.kind not in "fiub":
        raise TypeError(
            f"the action is a {type(action).__name__} that does not hold numbers only: give a tensor, an array or nested "
            f"lists of shape {(num_envs, *shape)}"
        )
    # Bounds are applied in the dtype of the action, and -1 is no uint8.
    if isinstance(values, Tensor):
        values = values if values.is_floating_point() else values.float()
    elif values.dtype.kind != "f":
        values = values.astype(np.float32)
    batch = (num_envs, *shape)
    if num_envs == 1 and tuple(values.shape) == shape:
        return values.reshape(batch)
    if tuple(values.shape) != batch:
        one = " That is one action: repeat it for each environment." if tuple(values.shape) == shape else ""
        raise ValueError(
            f"the action has the shape {tuple(values.shape)}: give {batch}, a row for each environment.{one}"
        )
    return values


def _without_gradient(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.clone() if value.is_inference() else value.detach()  # controllers keep it, and write into it later


def checked_options(options: Any, known: Collection[str] | None = None) -> dict[str, Any]:
    """A copy of the options of a reset, without those of ManiSkill that are None.

    Args:
        options: what ``reset`` was given: a dict, or None.
        known: the names of the options that it takes; None: any.

    Raises:
        TypeError: not a dict.
        ValueError: an option is not known.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(
            f"options={options!r} is a {type(options).__name__}: give a dict, such as {{'env_idx': [0, 2]}}"
        )
    for name in options:
        if known is None or name in known:
            continue
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if name == "reset_mask":
            hint = "it is for gymnasium.make_vec, and here 'env_idx' takes a mask too; "
        raise ValueError(f"options[{name!r}] is not known: {hint}A reset takes {', '.join(map(repr, known))}")
    states = options.get("reset_to_env_states")
    if states is not None and not (isinstance(states, Mapping) and "env_states" in states):
        raise ValueError(
            f"options['reset_to_env_states']={states!r}: give {{'env_states': what get_state or get_state_dict returned}}"
        )
    return {name: value for name, value in options.items() if value is not None or name not in RESET_OPTIONS}
