"""What the parts of training have to offer each other. Classes of your own need not inherit from anything.

- A `Network` maps observations to actions and values. `networks` holds two, and base classes that do most of the work.
- An `Algorithm` trains a network. `ppo_mlp` and `ppo_lstm` are two; `training` runs it and writes its files.
- A `Policy` acts in an evaluation.

Rollouts and updates use the network in train mode, evaluations and videos in eval mode (`torch.nn.Module.train`). PPO's
update compares its log-probabilities with those of the rollout, so what a network for PPO gives must depend on its inputs
alone: without dropout and without batch normalisation.

Options of PPO that a network has to take part in (`policy_network.PPO_OPTIONS`) are refused unless its class names them in
``ppo_options``; `policy_network.PolicyNetwork` says what each asks for.

To add one, write a class and register it, see `registry`. N is the number of environments, S the number of steps of a
rollout, B any batch, A the number of components of an action. Observations and recurrent states are a tensor or a flat dict
of tensors; the leading axis counts environments, so that ``map_tensors(lambda x: x[index], state)`` picks some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.deprecation import renamed_attributes

from .distributed import DistContext
from .distributions import Distribution
from .spaces import ActionLayout, Obs, ObservationLayout, State

if TYPE_CHECKING:
    from .arguments import CommonArgs
    from .loggers import EpisodeStats

__all__ = ["Algorithm", "Batch", "FeedForwardNetwork", "Network", "Policy", "RecurrentNetwork", "Setup"]


class Policy(Protocol):
    """Acts in an evaluation or a video.

    A policy that draws random numbers may also have a method ``seed_episodes(seeds)``. It is called after
    `on_episode_start` with the seeds (N,) of the episodes, so that an episode does not depend on the others of its batch.
    One whose numbers are on a GPU may have a method ``require_no_nan()``, which is called after each batch of episodes and
    raises `networks.NaNPolicyError`.
    """

    def on_episode_start(self) -> None:
        """New episodes begin in all environments."""

    def act(self, obs: Obs) -> Tensor:
        """Actions (N, A), as the environment takes them, for raw observations (N, …) on the policy's device."""


class Network(Protocol):
    """A policy and a value function; a `torch.nn.Module`. See `FeedForwardNetwork` and `RecurrentNetwork` for the rest."""

    recurrent: ClassVar[bool]
    """Which of the two it is."""
    action: ActionLayout
    """What an action is made of."""

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> Network:
        """A new network for these observations and actions.

        Args:
            args: the arguments of the run; ``args.read_network_kwargs()`` gives those that are the network's own.

        Raises:
            ArgumentError: a value cannot be used.
        """

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Network:
        """A network of the shape that `to_dict` described, with any weights."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values (numbers, strings, lists, dicts) that describe the shape, for a checkpoint."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    def normalize(self, obs: Obs) -> Obs:
        """The part of encoding that has no weights: an update does it once and visits the result many times."""

    def update_normalizer(self, obs: Obs, dist: DistContext | None = None) -> None:
        """Add raw observations (…, …) to the running statistics, if there are any."""

    def sample_noise(self, n: int, generator: torch.Generator, dist: DistContext) -> Tensor:
        """Random numbers for `Distribution.sample`: this process's rows of those of all environments.

        (n, A), unless the distributions of the network want another shape (n, …).
        """

    def compile_parts(self, cuda_graphs: bool) -> None:
        """Compile what can be compiled with torch.compile; names in ``state_dict`` stay as they are."""

    def to(self, device: torch.device | str) -> Any:
        """As `torch.nn.Module` has it; likewise the methods below."""

    def eval(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...


class FeedForwardNetwork(Network, Protocol):
    """A network without memory: what `ppo_mlp` trains."""

    def action_distribution(self, normalized_obs: Obs) -> Distribution:
        """The distribution of actions (…, A) for normalised observations (…, …)."""

    def value(self, normalized_obs: Obs) -> Tensor:
        """Values (…) of normalised observations (…, …)."""

    def evaluate(self, normalized_obs: Obs, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of actions (B, A), entropy and value, (B,) each, with gradients."""


class RecurrentNetwork(Network, Protocol):
    """A network with a state that goes from step to step: what `ppo_lstm` trains."""

    def initial_state(self, n: int) -> State:
        """The recurrent state (n, …) at the start of an episode."""

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """One step of B environments, from normalised observations (B, …).

        Args:
            state: (B, …) recurrent state before the step.
            starts: (B,) bool; where True an episode begins with this observation, and the step uses the initial state.

        Returns:
            the distribution of actions (B, A), values (B,) and the new state (B, …).
        """

    def forward_sequence(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """S steps of B environments with gradients, from normalised observations (S, B, …).

        Args:
            state: (B, …) recurrent state before the first step.
            starts: (S, B) bool, as in `step`. No gradient passes the start of an episode.

        Returns:
            the distribution of actions (S, B, A), values (S, B) and the state (B, …) after the last step.
        """


class Batch(Protocol):
    """What a rollout returns; an algorithm adds what its update needs."""

    @property
    def obs(self) -> Obs:
        """(S, N, …) raw observations."""

    @property
    def last_obs(self) -> Obs:
        """(N, …) raw observations that the next rollout starts from."""


@renamed_attributes({"team": "dist"})
@dataclass
class Setup:
    """What an algorithm works with."""

    observation_space: gym.Space[Any]  # of one environment
    action_space: gym.Space[Any]  # of one environment
    num_envs: int  # in this process
    device: torch.device  # of the network
    generator: torch.Generator  # for actions and minibatches
    dist: DistContext  # this process among those that train together
    env: Any = None  # the training environments, for an algorithm that needs to know more about them

    @property
    def num_objects(self) -> int:
        """Number of objects in the part "objects" of a robot task's observation; 0 where that is not known."""
        return len(getattr(getattr(self.env, "unwrapped", None), "objects", ()))


class Algorithm(Protocol):
    """Trains a network.

    `training` calls ``schedule``, ``rollout`` and ``update`` in turn until all steps are done. Each time episodes begin
    anew in all environments it calls ``on_episode_start``. It updates the statistics of the network's normaliser after each
    update, and those of a new network before its first update.

    An algorithm that takes only networks of one class, and of those derived from it, may name it in a class attribute
    ``network_type``. Then ``--init-from`` advises no other. One that learns from a dataset may have ``dataset_digest``, the
    SHA-256 of its episodes (see `dataset.dataset_digest`), which the result of a run records.
    """

    args_type: ClassVar[type[CommonArgs]]
    """Its arguments: a dataclass derived from `arguments.CommonArgs`, with the algorithm's name in ``algorithm``."""
    network: Any
    """The `Network` that it trains, on the device of its `Setup`."""

    def __init__(self, args: Any, setup: Setup) -> None:
        """Raises ArgumentError or ValueError where the spaces or arguments cannot be used."""

    @staticmethod
    def make_policy(network: Any) -> Policy:
        """What plays a trained network in an evaluation.

        An algorithm that learns from actions that its network samples may say so with a class attribute
        ``samples_actions = True``. Then, and if this returns a `networks.NetworkPolicy`, ``mikasa eval --sample-actions``
        can evaluate it.
        """

    def schedule(self, progress: float) -> None:
        """Before each rollout: the share of the training that is done, from 0 to 1. Sets what changes with time."""

    def on_episode_start(self, starts: Tensor) -> None:
        """In the environments where ``starts`` (N,) bool is True an episode begins with the next observation."""

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Any:
        """Play from ``obs`` (N, …) on, pass each step to ``stats.record``, and return a `Batch`."""

    def update(self, batch: Any) -> dict[str, float]:
        """Learn from a batch; returns figures for the log."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the network: tensors and plain values, such as the optimizer's state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""

    def eval_policy(self) -> Policy:
        """The present policy, for an evaluation."""
