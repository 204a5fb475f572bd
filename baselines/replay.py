"""A replay buffer of transitions, and minibatches from two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .spaces import Obs

__all__ = ["NEXT_OBS", "OBS", "ReplayBuffer", "Transitions", "observation_of", "sample_symmetric", "with_observation"]

Transitions = dict[str, Tensor]
"""M transitions by name: "actions" (M, A), "rewards" (M,) float32, "terminated" (M,) bool, and the parts of the observations
before and after, (M, …) each, under names that begin with `OBS` and `NEXT_OBS`. Where an episode was truncated, "terminated"
is False and the observation after is the last one of the episode."""
OBS, NEXT_OBS = "obs/", "next_obs/"


def with_observation(obs: Obs, prefix: str) -> dict[str, Tensor]:
    """The parts of an observation under names that begin with ``prefix``."""
    parts = obs if isinstance(obs, dict) else {"": obs}
    return {f"{prefix}{name}": value for name, value in parts.items()}


def observation_of(transitions: Mapping[str, Tensor], prefix: str) -> Obs:
    """The observation (M, …) whose parts `with_observation` named."""
    parts = {name.removeprefix(prefix): value for name, value in transitions.items() if name.startswith(prefix)}
    return parts[""] if list(parts) == [""] else parts


class ReplayBuffer:
    """The newest transitions, on the CPU, with the dtypes that they came with.

    Memory is reserved for all of them at the first `add`, and taken by the system as they come.

    Args:
        capacity: most transitions.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._columns: Transitions = {}
        self._size = 0
        self._next = 0  # where the next transition goes

    def __len__(self) -> int:
        return self._size

    def add(self, transitions: Mapping[str, Tensor]) -> None:
        """Keep M transitions, (M, …) by name, in place of the oldest ones where there is no room."""
        count = len(transitions["rewards"])
        if count > self.capacity:
            transitions = {name: value[-self.capacity :] for name, value in transitions.items()}
            count = self.capacity
        if not self._columns:
            self._columns = {
                name: torch.empty((self.capacity, *value.shape[1:]), dtype=value.dtype)
                for name, value in transitions.items()
            }
        rows = (self._next + torch.arange(count)) % self.capacity
        for name, column in self._columns.items():
            column[rows] = transitions[name].cpu()
        self._next = (self._next + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, count: int, generator: torch.Generator) -> Transitions:
        """``count`` transitions, drawn uniformly with replacement."""
        rows = torch.randint(self._size, (count,), generator=generator, device=generator.device).cpu()
        return {name: column[rows] for name, column in self._columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """All transitions, as tensors."""
        columns = {name: column[: self._size].clone() for name, column in self._columns.items()}
        return {"columns": columns, "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the transitions that `state_dict` of a buffer of the same capacity returned."""
        self._columns, self._size, self._next = {}, 0, 0
        if state["columns"]:
            self.add(state["columns"])
        self._next = state["next"]


def sample_symmetric(
    own: ReplayBuffer, expert: ReplayBuffer, count: int, ratio: float, generator: torch.Generator
) -> Transitions:
    """``count`` transitions, the share ``ratio`` of them (rounded) from the expert's buffer, the first ones.

    With ratio 0.5 this is the symmetric sampling of RLPD (Ball et al., 2023, arXiv 2302.02948). Where one buffer is empty,
    all come from the other one.
    """
    of_expert = round(count * ratio) if len(expert) else 0
    if not len(own):
        of_expert = count
    parts = [
        buffer.sample(share, generator) for buffer, share in ((expert, of_expert), (own, count - of_expert)) if share
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
