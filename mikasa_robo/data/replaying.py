"""Playing a recorded episode again, and comparing what comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

import mikasa_robo

from .episode import Array, DatasetInfo, Episode, replay_kwargs
from .recording import Act, record_episodes

__all__ = ["Difference", "replay"]


@dataclass(frozen=True)
class Difference:
    """An array of an episode that was not the same again."""

    name: str
    first_row: int
    """The first row that differs."""
    largest: float
    """The largest difference of two numbers; nan where shapes or lengths differ."""


def replay(info: DatasetInfo, episode: Episode) -> list[Difference]:
    """Reset an environment with the seed of an episode, carry out its actions, and compare to the bit.

    Observations, rewards, columns and, where the episode has them, states are compared.

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
            record_episodes(env, start, [episode.seed], quiet, indices=[0], states=bool(episode.states), labels=False)
        )
    finally:
        env.close()
    return _compare(episode, again)


def _compare(episode: Episode, again: Episode) -> list[Difference]:
    pairs: list[tuple[str, Array, Array | None]] = [
        ("actions", episode.actions, again.actions),
        ("rewards", episode.rewards, again.rewards),
    ]
    for group in ("observations", "columns", "step_columns", "states"):
        before, after = getattr(episode, group), getattr(again, group)
        prefix = "" if group == "states" else f"{group}/"
        pairs += [
            (f"{prefix}{name}", array, after.get(name)) for name, array in before.items() if name != "expert_action"
        ]
    return [difference for name, one, other in pairs if (difference := _difference(name, one, other)) is not None]


def _difference(name: str, one: Array, other: Array | None) -> Difference | None:
    if other is None:
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
