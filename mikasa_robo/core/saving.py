"""A task's part of a saved state, and nested dicts of per-environment rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.workers import nested

from . import state

CLOCK, SPEEDS = "elapsed_steps", "object_speeds"
_GIVE = "give what get_state_dict of the same task returned"


Limits = Mapping[str, tuple[int, int]]
"""The lowest and the highest value of each field of whole numbers in a task's part of a saved state."""


def checked_state(
    saved: Any, like: Mapping[str, Any], limits: Limits, num_rows: int, device: torch.device, whole: bool = False
) -> dict[str, Any]:
    """A saved state as a nested dict of tensors (b, …) that can be restored, checked before anything changes.

    Args:
        saved: a dict as ``get_state_dict`` returns it, of which parts may be missing, or a vector of ``get_state``.
        like: a state (N, …) of this environment.
        limits: see `state_limits`.
        num_rows: b.
        device: where the tensors are wanted.
        whole: whether an episode begins with it, so that only the controllers may be missing.

    Raises:
        KeyError: something is missing, or is nothing that this environment has.
        TypeError: something does not hold numbers.
        ValueError: something has another shape or number of rows, or holds what it cannot hold. What is on a GPU is not
            read.
    """
    if not isinstance(saved, Mapping):
        saved = unflatten(like, to_tensors({"state": saved}, num_rows, device)["state"].reshape(num_rows, -1))
    wanted = nested.flatten(like)
    given = {path: leaf for path, leaf in nested.flatten(to_tensors(saved, num_rows, device)).items() if path[1:]}
    missing = {"/".join(path) for path in wanted.keys() - given.keys() if path[0] in _needed(saved, whole)}
    if missing:
        by = "version" if missing & {f"task/{CLOCK}", f"task/{SPEEDS}"} else "task"
        raise KeyError(
            f"the saved state lacks {sorted(missing)}: it is not whole, or was saved by another {by}; {_GIVE}"
        )
    # other versions of a task may save more, and other control modes other targets
    unknown = ["/".join(path) for path in given.keys() - wanted.keys() if path[0] not in ("task", "controller")]
    if unknown:
        raise KeyError(f"the saved state has {sorted(unknown)}, which this environment does not have; {_GIVE}")
    restored = {path: given[path] for path in wanted if path in given}
    for path, leaf in restored.items():
        shape, expected = tuple(leaf.shape[1:]), tuple(wanted[path].shape[1:])
        if shape != expected:
            raise ValueError(
                f"the saved {'/'.join(path)} has the shape {(num_rows, *shape)}: give {(num_rows, *expected)}"
            )
        if not tensors.reads_wait(device):
            _check_numbers(path, leaf, limits)
    return nested.unflatten(restored)


def _check_numbers(path: tuple[str, ...], leaf: Tensor, limits: Limits) -> None:
    """Raises ValueError where a part of a saved state holds what it cannot hold."""
    name = "/".join(path)
    if path[0] != "task":
        if not leaf.isfinite().all():
            raise ValueError(f"the saved {name} holds NaN or infinity: give finite numbers")
    elif path[1] in limits:
        low, high = limits[path[1]]
        values = leaf.to(torch.float64)
        wrong = values[~((values >= low) & (values <= high) & (values == values.round()))]
        if len(wrong):
            raise ValueError(f"the saved {name} holds {wrong[0].item():g}: give whole numbers from {low} to {high}")
    elif leaf.isnan().any():  # a task may say "never" by infinity
        raise ValueError(f"the saved {name} holds NaN: give numbers")


def _needed(saved: Mapping[str, Any], whole: bool) -> set[str]:
    """The parts of a state of which nothing may be missing."""
    given = {"task", "controller"} & set(saved)
    return given | {"actors", "articulations", "task"} if whole else given


def to_tensors(saved: Mapping[str, Any], num_rows: int, device: torch.device, where: str = "") -> dict[str, Any]:
    """A nested dict of tensors, from one of tensors or NumPy arrays.

    Args:
        saved: leaves (b, D), or (D,) for a single environment.
        num_rows: b.
        device: where the tensors are wanted.
        where: path of ``saved``, for messages.

    Raises:
        TypeError: a leaf does not hold numbers.
        ValueError: a leaf has another number of rows.
    """
    made: dict[str, Any] = {}
    for name, value in saved.items():
        path = f"{where}/{name}" if where else name
        if isinstance(value, Mapping):
            made[name] = to_tensors(value, num_rows, device, path)
            continue
        try:
            tensor = torch.atleast_1d(torch.as_tensor(value, device=device))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"the saved {path} is {value!r}: give a tensor or an array of numbers") from error
        tensor = tensor[None] if tensor.ndim == 1 else tensor
        if len(tensor) != num_rows:
            raise ValueError(f"the saved {path} has {len(tensor)} rows for {num_rows} environments: give one for each")
        made[name] = tensor
    return made


def in_order(index: Tensor, rows: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """``index`` (b,) in ascending order, as ManiSkill writes rows through a mask, and ``rows`` (b, …) accordingly."""
    index, order = index.sort()
    return index, tensors.take_rows(rows, order)


def changes(index: Tensor, rows: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Those of ``index`` (b,) and of ``rows`` (b, …) that differ from the same rows of ``now`` (N, …)."""
    chosen = torch.nonzero(_differs(index, rows, now)).flatten()
    return index[chosen], tensors.take_rows(rows, chosen)


def _differs(index: Tensor, rows: Mapping[str, Any], now: Mapping[str, Any]) -> Tensor:
    differs = torch.zeros(len(index), dtype=torch.bool, device=index.device)
    for name, value in rows.items():
        if isinstance(value, Mapping):
            differs |= _differs(index, value, now[name])
        else:
            differs |= (value.reshape(len(index), -1) != now[name][index].reshape(len(index), -1)).any(dim=1)
    return differs


def state_limits(task_state: object) -> dict[str, tuple[int, int]]:
    """The lowest and the highest value of each whole number that `save_task` saves."""
    return {**state.limits(task_state), CLOCK: (0, state.EXACT)}


def save_task(task_state: object, elapsed: Tensor, speeds: Tensor) -> dict[str, Tensor]:
    """Copies of a task's state, each float32 (N, D).

    Args:
        task_state: the task's dataclass of tensors.
        elapsed: (N,) control steps since the reset.
        speeds: (N, K) speeds of the objects over the last control step, m/s.
    """
    return {
        **state.to_flat(task_state),
        CLOCK: elapsed.to(torch.float32, copy=True)[:, None],
        SPEEDS: speeds.clone(),
    }


def load_task(saved: Mapping[str, Tensor], task_state: object, elapsed: Tensor, speeds: Tensor, index: Tensor) -> None:
    """The inverse of `save_task`: writes the rows (b, …) of ``saved`` to the environments ``index`` (b,)."""
    fields = dict(saved)
    elapsed[index] = fields.pop(CLOCK).reshape(-1).to(elapsed)
    speeds[index] = fields.pop(SPEEDS).to(speeds)
    state.load_flat(task_state, fields, index)


def write_rows(into: Mapping[str, Any], rows: Mapping[str, Any], index: Tensor) -> None:
    """Writes the rows (b, …) of a nested dict to the rows ``index`` (b,) of another one of the same structure."""
    for name, value in into.items():
        if isinstance(value, Mapping):
            write_rows(value, rows[name], index)
        else:
            value[index] = rows[name].to(value)


def unflatten(like: Mapping[str, Any], flat: Tensor) -> dict[str, Any]:
    """Splits the vectors (N, D) of ``get_state`` into a nested dict.

    Args:
        like: a nested dict of tensors (N, …) with the wanted structure and widths.
        flat: (N, D).

    Raises:
        ValueError: D is not what ``like`` adds up to.
    """
    parts, end = _split(like, flat, 0)
    if end != flat.shape[1]:
        raise ValueError(f"the state has {flat.shape[1]} numbers for each environment, this task has {end}")
    return parts


def _split(like: Mapping[str, Any], flat: Tensor, start: int) -> tuple[dict[str, Any], int]:
    parts: dict[str, Any] = {}
    for name, value in like.items():
        if isinstance(value, Mapping):
            parts[name], start = _split(value, flat, start)
        else:
            parts[name] = flat[:, start : start + value.shape[-1]]
            start += value.shape[-1]
    return parts, start
