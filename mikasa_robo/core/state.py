"""The state of a task: a dataclass of tensors with one row per environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")

EXACT = 2**24
"""Whole numbers of up to this size are exact in float32, as which a state is saved."""
_INDEXES = "indexes"


def index_into(name: str) -> dict[str, str]:
    """Metadata of a field that holds indices into the second axis of the field ``name`` (N, K, …)."""
    return {_INDEXES: name}


def limits(state: object) -> dict[str, tuple[int, int]]:
    """The lowest and the highest value that each field of whole numbers or bools can have."""
    found = {}
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        tensor: Tensor = getattr(state, field.name)
        if _INDEXES in field.metadata:
            found[field.name] = (0, getattr(state, field.metadata[_INDEXES]).shape[1] - 1)
        elif tensor.dtype == torch.bool:
            found[field.name] = (0, 1)
        elif not tensor.is_floating_point():
            found[field.name] = (-EXACT, EXACT)
    return found


def _fields(state: object) -> list[str]:
    return [field.name for field in dataclasses.fields(state)]  # type: ignore[arg-type]


def allocate(like: State, num_envs: int) -> State:
    """A state of ``num_envs`` rows of zeros, with the shapes and dtypes of ``like``."""
    tensors = {name: getattr(like, name) for name in _fields(like)}
    return type(like)(**{name: t.new_zeros(num_envs, *t.shape[1:]) for name, t in tensors.items()})


def scatter(state: State, env_idx: Tensor, rows: State) -> None:
    """Writes the rows (b, …) of ``rows`` to the environments ``env_idx`` (b,) of ``state``."""
    for name in _fields(state):
        getattr(state, name)[env_idx] = getattr(rows, name).to(getattr(state, name).dtype)


def to_flat(state: object) -> dict[str, Tensor]:
    """Each field as a float32 copy (N, D); exact for bools and for whole numbers below 2**24."""
    flat = {}
    for name in _fields(state):
        tensor: Tensor = getattr(state, name)
        flat[name] = tensor.to(torch.float32, copy=True).reshape(len(tensor), -1)
    return flat


def check_flat(state: object, flat: Mapping[str, Tensor]) -> None:
    """Raises KeyError where ``flat`` lacks fields of ``state``; the message names them."""
    missing = set(_fields(state)) - set(flat)
    if missing:
        raise KeyError(f"the saved task state lacks {sorted(missing)}: it was saved by another task")


def load_flat(state: object, flat: Mapping[str, Tensor], env_idx: Tensor) -> None:
    """The inverse of `to_flat`: writes rows (b, …) to the environments ``env_idx`` (b,).

    Raises:
        KeyError: fields are missing; the message names them.
    """
    check_flat(state, flat)
    for name in _fields(state):
        tensor: Tensor = getattr(state, name)
        tensor[env_idx] = flat[name].to(tensor.device).reshape(len(env_idx), *tensor.shape[1:]).to(tensor.dtype)
