"""Playing a recorded episode again, and comparing what comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

import mikasa_robo

from .episode import Array, DatasetInfo, Episode, replay_kwargs
from .recording import Act, record_episodes

__all__ = ["Difference", "compared_parts", "replay"]

_FLAGS = ("success", "fail", "terminated", "truncated")
_GROUPS = ("observations", "columns", "step_columns", "states")
_LABEL = "expert_action"  # a replay carries actions out and asks nobody for better ones


@dataclass(frozen=True)
class Difference:
    """An array or a flag of an episode that was not the same again."""

    name: str
    first_row: int
    """The first row that differs; for a flag the number of steps of the episode."""
    largest: float
    """The largest difference of two numbers; nan where shapes or lengths differ, or only one has the array."""


def compared_parts(episode: Episode) -> tuple[list[str], list[str]]:
    """What `replay` compares of an episode, and what it cannot, in words."""
    columns = {*episode.columns, *episode.step_columns} - {_LABEL}
    parts = {"flags": _FLAGS, "actions": True, "columns": columns, "states": episode.states}
    parts |= {"observations": episode.observations, "rewards": True}
    compared = [name for name, there in parts.items() if there]
    left_out = ([] if episode.states else ["states, as it has none"]) + [_LABEL] * (_LABEL in episode.step_columns)
    return compared, left_out


def replay(info: DatasetInfo, episode: Episode, *, states: bool = False) -> list[Difference]:
    """Reset an environment with the seed of an episode, carry out its actions, and compare to the bit.

    The flags of the episode and all its arrays are compared, except the column "expert_action". An array that only the
    replay has is a difference too.

    Args:
        info: of the dataset.
        episode: of the dataset.
        states: whether the episode has to have states. Those that it has are always compared.

    Raises:
        ValueError, RuntimeError: the environment cannot be made here.
    """
    env = mikasa_robo.make_env(info.env_id, 1, **replay_kwargs(info))
    try:
        actions = iter(torch.from_numpy(episode.actions))
        still = torch.zeros_like(torch.from_numpy(episode.actions[0]))  # if it does not end where it did

        def start() -> Act:
            return lambda obs, step_info: next(actions, still)[None].to(env.unwrapped.device)  # type: ignore[attr-defined]

        quiet = dataclasses.replace(info, noise=0.0)
        again = next(
            record_episodes(
                env, start, [episode.seed], quiet, indices=[0], states=states or bool(episode.states), labels=False
            )
        )
    finally:
        env.close()
    return _compare(episode, again)


def _compare(episode: Episode, again: Episode) -> list[Difference]:
    found = [
        Difference(name, episode.length, 1.0) for name in _FLAGS if getattr(episode, name) is not getattr(again, name)
    ]
    pairs: list[tuple[str, Array | None, Array | None]] = [
        ("actions", episode.actions, again.actions),
        ("rewards", episode.rewards, again.rewards),
    ]
    for group in _GROUPS:
        before, after = getattr(episode, group), getattr(again, group)
        prefix = "" if group == "states" else f"{group}/"
        pairs += [
            (f"{prefix}{name}", before.get(name), after.get(name)) for name in {**before, **after} if name != _LABEL
        ]
    return found + [each for name, one, other in pairs if (each := _difference(name, one, other)) is not None]


def _difference(name: str, one: Array | None, other: Array | None) -> Difference | None:
    if one is None or other is None:
        return Difference(name, 0, float("nan"))
    rows = min(len(one), len(other))
    if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
        return Difference(name, 0, float("nan"))
    a, b = (np.ascontiguousarray(part[:rows]).reshape(rows, -1) for part in (one, other))
    # bytes, so that -0.0 and 0.0 differ, and nan is equal to itself
    differs = (a.view(np.uint8) != b.view(np.uint8)).any(axis=1)
    if not differs.any():
        return None if len(one) == len(other) else Difference(name, rows, float("nan"))
    largest = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
    return Difference(name, int(differs.argmax()), float(largest))
