"""A checkpoint's policy as a policy server wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mikasa_robo.baselines.networks import NetworkPolicy
from mikasa_robo.baselines.spaces import Obs, ObservationLayout
from mikasa_robo.remote.messages import Array, MessageError, Observation

from .checkpoint import Checkpoint, make_policy

__all__ = ["CheckpointPolicy"]

MOST_LETTERS, MOST_PARTS = 80, 20
"""Of the observations of a client in a message."""


class CheckpointPolicy:
    """A `remote.server.BatchPolicy`; it has a recurrent state of its own, and shares the weights.

    Args:
        checkpoint: what the policy's file says.
        network: the weights.
    """

    def __init__(self, checkpoint: Checkpoint, network: Any) -> None:
        self._policy = make_policy(checkpoint, network)
        self._layout: ObservationLayout | None = getattr(network, "layout", None)  # one of somebody's own may have none
        self._device = network.device
        self._num_envs = 0

    def act(self, observation: Observation, episode_start: NDArray[np.bool_]) -> Array:
        """See `remote.server.BatchPolicy`."""
        obs = self._tensors(observation)
        if episode_start.all():
            self._policy.on_episode_start()
            self._num_envs = len(episode_start)
            actions = self._policy.act(obs)
        elif len(episode_start) != self._num_envs:
            raise MessageError(
                f"episode_start has {len(episode_start)} entries after {self._num_envs}; let all episodes start anew where "
                "the number of environments changes"
            )
        elif not episode_start.any():
            actions = self._policy.act(obs)
        elif isinstance(self._policy, NetworkPolicy):
            actions = self._policy.act(obs, torch.from_numpy(episode_start).to(self._device))
        else:
            raise MessageError("episode_start is True for some: this policy can only start all episodes at once")
        return actions.cpu().numpy()

    def _tensors(self, observation: Observation) -> Obs:
        arrays = observation if isinstance(observation, dict) else {"": observation}
        if self._layout is not None:
            wanted = {part.name: part.shape for part in self._layout.parts}
            found = {name: array.shape[1:] for name, array in arrays.items()}
            if found != wanted:
                raise MessageError(f"the observations are {_describe(found)}; the policy wants {_describe(wanted)}")
        tensors = {name: _tensor(name, array).to(self._device) for name, array in arrays.items()}
        return tensors if isinstance(observation, dict) else tensors[""]


def _tensor(name: str, array: Array) -> Tensor:
    if array.dtype.kind != "f":
        return torch.from_numpy(array)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():  # they are finite as they came
        path = f"observation {name!r:.80}" if name else "observation"
        raise MessageError(f"{path} has numbers that float32 cannot hold; send float32")
    return torch.from_numpy(numbers)


def _describe(shapes: dict[str, tuple[int, ...]]) -> str:
    # A client chooses the names, and the server's terminal shows them: they must not control it.
    names = [repr(name[:MOST_LETTERS]) if name else "an array" for name in shapes]
    told = [f"{name} (N, {', '.join(map(str, shape))})" for name, shape in zip(names, shapes.values(), strict=True)]
    return ", ".join(told[:MOST_PARTS]) + (f" and {len(told) - MOST_PARTS} more" if len(told) > MOST_PARTS else "")
