"""The networks of the baselines: actors and critics with and without memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mikasa_robo import tensors
from mikasa_robo.deprecation import deprecated_names

from .arguments import ArgumentError, refuse_options
from .critics import ValueScale, output_gain
from .distributed import DistContext
from .distributions import Distribution
from .encoder import mlp
from .memory import Memory, make_memory
from .memory.contract import check_memory, check_state_device
from .memory_arguments import named_memory_errors
from .policy_network import (
    PPO_OPTIONS,
    TOKEN_OPTIONS,
    PolicyNetwork,
    read_ppo_options,
    refuse_network_kwargs,
)
from .protocol import Network, Setup
from .registry import get_memory, get_network
from .spaces import ActionLayout, Obs, ObservationLayout, State, batch_size

__all__ = [
    "ActorCritic",
    "FeedForwardPolicyNetwork",
    "NaNPolicyError",
    "NetworkPolicy",
    "RecurrentActorCritic",
    "gives_nan",
    "make_network",
]

__getattr__ = deprecated_names(__name__, {"ObservationNormalizer": f"{__package__}.encoder:ObservationNormalizer"})


NOISE_STREAM = 1
"""Joined with the seed of an episode, it seeds the noise of that episode's sampled actions."""


class FeedForwardPolicyNetwork(PolicyNetwork):
    """Base class of networks without memory, from an ``actor`` and a ``critic`` of the encoded observation."""

    recurrent = False

    def action_distribution(self, normalized_obs: Obs) -> Distribution:
        """The distribution of actions (..., A) for normalised observations (..., …)."""
        return self.distribution_of(self.encode(normalized_obs))

    def value(self, normalized_obs: Obs) -> Tensor:
        """V (...) of normalised observations (..., …)."""
        return self.value_of(self.encode(normalized_obs), normalized_obs)

    def evaluate(
        self,
        normalized_obs: Obs,
        action: Tensor,
        condition: Callable[[Distribution], Distribution] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of actions (B, A), entropy and value, (B,) each, with gradients.

        Args:
            normalized_obs: (B, …).
            action: (B, A).
            condition: turns the distribution into that from which the actions were sampled, where it is another.
        """
        features = self.encode(normalized_obs)
        distribution = self.distribution_of(features)
        distribution = distribution if condition is None else condition(distribution)
        return distribution.log_prob(action), distribution.entropy(), self.value_of(features, normalized_obs)

    def on_episode_start(self) -> None:
        """Without memory there is nothing to reset."""

    @torch.no_grad()
    def act(self, obs: Obs) -> Tensor:
        """The most likely actions (B, A), as an environment takes them, for raw observations (B, …)."""
        return self.action.to_env(self.action_distribution(self.normalize(obs)).mode())


class ActorCritic(FeedForwardPolicyNetwork):
    """Separate tanh MLPs for policy and value function, on top of the same encoder.

    Args:
        obs_dim, action_dim, normalize_obs: see `PolicyNetwork`.
        hidden_sizes: widths of the hidden layers, the same in both MLPs.
        init_log_std: logarithm of the initial standard deviation of every continuous component.
        exploration: "gaussian", "state-dependent" or "gsde", see `exploration`.
        normalize_returns: whether values have a running scale, see `critics.ValueScale`.
        fine_inputs: as `encoder.Encoder`'s.
    """

    ppo_options = PPO_OPTIONS - {"--critic-obs"} | {"--fine-inputs"}

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
        exploration: str = "gaussian",
        normalize_returns: bool = False,
        fine_inputs: float = 0.0,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs, fine_inputs=fine_inputs)
        self.hidden_sizes = tuple(hidden_sizes)
        # A small last layer starts the policy near zero motion: with delta control the arm then stays where it is.
        self.actor = mlp(self.features, self.hidden_sizes, self.action.parameters, output_gain=0.01)
        self.critic = mlp(self.features, self.hidden_sizes, 1, output_gain=output_gain(normalize_returns))
        self.add_log_std(init_log_std, exploration)
        self.value_scale = ValueScale() if normalize_returns else None

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> ActorCritic:
        """From ``--hidden-sizes``, ``--fine-inputs``, ``--normalize-obs`` and ``--init-log-std``."""
        refuse_network_kwargs(args, "--hidden-sizes")
        sizes = args.hidden_sizes, args.normalize_obs, args.init_log_std
        fine_inputs = getattr(args, "fine_inputs", 0.0)  # an algorithm from elsewhere may be older than this option
        return cls(observation, action, *sizes, **read_ppo_options(args), fine_inputs=fine_inputs)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        return {**super().to_dict(), "hidden_sizes": list(self.hidden_sizes)}


class RecurrentActorCritic(PolicyNetwork):
    """A policy and a value function that share a memory.

    Features pass through a tanh MLP and the memory. Actor and critic are MLPs of the outputs of both, so that what can be
    seen now need not pass through the memory. The recurrent state is the memory's.

    Args:
        obs_dim, action_dim, normalize_obs: see `PolicyNetwork`.
        encoder_sizes: widths of the layers before the memory.
        memory_size: width of the memory.
        head_sizes: widths of the hidden layers of actor and critic.
        init_log_std: as `ActorCritic`'s.
        memory: its name, see `memory.make_memory`.
        memory_kwargs: its other options.
        exploration, normalize_returns: as `ActorCritic`'s.
    """

    recurrent = True
    ppo_options = PPO_OPTIONS

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        encoder_sizes: Sequence[int] = (128,),
        memory_size: int = 128,
        head_sizes: Sequence[int] = (128,),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
        memory: str = "lstm",
        memory_kwargs: Mapping[str, Any] | None = None,
        exploration: str = "gaussian",
        normalize_returns: bool = False,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.encoder_sizes, self.head_sizes = tuple(encoder_sizes), tuple(head_sizes)
        *hidden, width = self.encoder_sizes
        self.trunk = nn.Sequential(mlp(self.features, hidden, width, output_gain=math.sqrt(2.0)), nn.Tanh())
        self.memory = make_memory(memory, width, hidden_size=memory_size, **(memory_kwargs or {}))
        joined = width + self.memory.output_size
        self.actor = mlp(joined, self.head_sizes, self.action.parameters, output_gain=0.01)
        self.critic = mlp(joined + self.critic_features, self.head_sizes, 1, output_gain=output_gain(normalize_returns))
        self.add_log_std(init_log_std, exploration)
        self.value_scale = ValueScale() if normalize_returns else None

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> RecurrentActorCritic:
        """From ``--encoder-sizes``, ``--memory``, ``--memory-size`` (``--lstm-size``), ``--memory-kwargs`` and so on."""
        refuse_network_kwargs(args, "--encoder-sizes, --memory, --memory-kwargs and --head-sizes")
        refuse_options(args, TOKEN_OPTIONS)
        sizes = args.encoder_sizes, args.hidden_size, args.head_sizes
        options = args.normalize_obs, args.init_log_std, args.memory, args.read_memory_kwargs()
        with named_memory_errors(args):
            network = cls(observation, action, *sizes, *options, **read_ppo_options(args))
            check_memory(network.memory, args.read_memory_kwargs())
        return network

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RecurrentActorCritic:
        """A network of the shape that `to_dict` described, with random weights.

        Raises:
            RegistryError: its memory is not registered. Nothing is imported because a checkpoint names it.
        """
        values = dict(values)
        if "lstm_size" in values:  # there was no other memory then
            values["memory_size"] = values.pop("lstm_size")
        get_memory(values.get("memory", "lstm"))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        options = self.memory.to_dict()
        del options["input_size"]
        return {
            **super().to_dict(),
            "encoder_sizes": list(self.encoder_sizes),
            "memory": options.pop("name"),
            "memory_size": options.pop("hidden_size"),
            "memory_kwargs": options,
            "head_sizes": list(self.head_sizes),
        }

    def initial_state(self, n: int) -> State:
        """The recurrent state at the start of an episode, (n, …) each."""
        return self.memory.initial_state(n)

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """One step of B environments.

        Args:
            normalized_obs: (B, …) as `normalize` returns it.
            state: (B, …) each, before the step.
            starts: (B,) bool, an episode begins with this observation: the state is reset first.

        Returns:
            the distribution of actions, values (B,) and the new state, (B, …) each.
        """
        return self._forward(self.memory.step, normalized_obs, state, starts)[:3]

    def forward_sequence(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """S steps of B environments, with gradients through time that stop where episodes begin.

        Args:
            normalized_obs: (S, B, …) as `normalize` returns it.
            state: (B, …) each, before the first step.
            starts: (S, B) bool, an episode begins with that observation.

        Returns:
            the distribution of actions (S, B, A), values (S, B) and the state after the last step, (B, …) each.
        """
        return self.forward_memory(normalized_obs, state, starts)[:3]

    def forward_memory(
        self, normalized_obs: Obs, state: State, starts: Tensor
    ) -> tuple[Distribution, Tensor, State, Tensor]:
        """As `forward_sequence`; and the outputs of the memory (S, B, H)."""
        return self._forward(self.memory.forward_sequence, normalized_obs, state, starts)

    def _forward(
        self, run: Callable[..., Any], normalized_obs: Obs, state: State, starts: Tensor
    ) -> tuple[Distribution, Tensor, State, Tensor]:
        inputs = self.trunk(self.encode(normalized_obs))  # (…, B, W)
        outputs, state = run(inputs, state, starts)
        joined = torch.cat([inputs, outputs], dim=-1)
        return self.distribution_of(joined), self.value_of(joined, normalized_obs), state, outputs

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The LSTM's weights were the network's own before there were other memories.
        old = f"{prefix}lstm."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[f"{prefix}memory.lstm.{name.removeprefix(old)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def make_network(args: Any, setup: Setup, recurrent: bool) -> Network:
    """The network that a run asks for, on its device.

    Raises:
        ArgumentError: it is of the other kind than the algorithm needs, or refuses its arguments.
        RegistryError: it is not registered.
        ValueError: no encoder takes the observations, or the actions are of an unknown kind.
    """
    network_class = get_network(args.network_name).load()
    if network_class.recurrent != recurrent:
        found, needed = (
            ("recurrent", "one without memory") if network_class.recurrent else ("not recurrent", "a recurrent one")
        )
        raise ArgumentError(f"--network {args.network_name} is {found}, and {args.algorithm} needs {needed}")
    num_objects = setup.num_objects if getattr(network_class, "reads_objects", False) else 0
    observation = ObservationLayout.of(setup.observation_space, num_objects)
    network = network_class.from_args(observation, ActionLayout.of(setup.action_space), args)
    placed: Network = network.to(setup.device)
    if isinstance(memory := getattr(placed, "memory", None), Memory):
        check_state_device(memory)
    return placed


class NaNPolicyError(FloatingPointError):
    """A policy's network gave NaN, so that its actions mean nothing.

    Args:
        source: where the network comes from.
        step: of the episodes; None where they did not begin together.
    """

    def __init__(self, source: str, step: int | None) -> None:
        self.step = step
        when = "" if step is None else f" at step {step} of the episodes"
        super().__init__(
            f"{source}: the network gives NaN{when}, so its actions mean nothing; use an earlier checkpoint, train with a "
            "smaller --learning-rate, or look for 0/0 in a network or memory of your own"
        )


def gives_nan(distribution: Any, action: Tensor) -> Tensor:
    """() bool, whether a distribution is of NaNs. Where actions are discrete, ``action`` does not show it.

    Args:
        distribution: a `Distribution`.
        action: (..., A) its most likely action, or a sampled one.
    """
    return getattr(distribution, "logits", action).isnan().any()


class NetworkPolicy:
    """A network that acts, and keeps its recurrent state from step to step.

    Args:
        network: the network.
        sampled: whether actions are sampled, as in training, instead of being the most likely ones. Each step has noise of
            its own, also where training used noise that goes on from step to step.
        source: where the network comes from, for errors.
    """

    def __init__(self, network: Any, *, sampled: bool = False, source: str = "the policy") -> None:
        self.network, self.sampled, self.source = network, sampled, source
        self._state: State | None = None
        self._generators: list[torch.Generator] = []  # one for each environment
        self._steps = 0
        self._nan_at: Tensor | None = None  # () int64, step of the first NaN or -1, where reading would wait

    def on_episode_start(self) -> None:
        """Reset the recurrent state: new episodes begin in all environments."""
        self._state, self._steps, self._nan_at = None, 0, None

    def seed_episodes(self, seeds: Sequence[int]) -> None:
        """Seed the noise of sampled actions: seeds (N,), one for each environment."""
        if not self.sampled:
            return
        # Not the seed itself: an environment may draw its objects from a generator with that seed.
        states = [int(np.random.SeedSequence((seed, NOISE_STREAM)).generate_state(1, np.uint64)[0]) for seed in seeds]
        self._generators = [torch.Generator(self.network.device).manual_seed(state) for state in states]

    @torch.no_grad()
    def act(self, obs: Obs, starts: Tensor | None = None) -> Tensor:
        """Actions (N, A), as an environment takes them, for raw observations (N, …).

        Args:
            obs: raw observations.
            starts: (N,) bool, where an episode begins with this observation; None where none does.

        Raises:
            NaNPolicyError: the network gives NaN. On a GPU only `require_no_nan` finds it, as reading would wait.
            RuntimeError: actions are sampled, and `seed_episodes` was not called with N seeds.
        """
        network = self.network
        normalized = network.normalize(obs)
        if not network.recurrent:
            distribution: Distribution = network.action_distribution(normalized)
        else:
            n = batch_size(obs)
            state = network.initial_state(n) if self._state is None else self._state
            begun = torch.zeros(n, dtype=torch.bool, device=network.device) if starts is None else starts
            distribution, _, self._state = network.step(normalized, state, begun)
        chosen = self._sample(distribution, batch_size(obs)) if self.sampled else distribution.mode()
        self._watch(gives_nan(distribution, chosen), shared_steps=starts is None)
        action: Tensor = network.action.to_env(chosen)
        return action

    def _watch(self, nan: Tensor, shared_steps: bool) -> None:
        """Raise NaNPolicyError where ``nan`` () is True, or note the step where reading it would wait."""
        step, self._steps = self._steps, self._steps + 1
        if tensors.reads_wait(nan.device):
            before = torch.full((), -1, device=nan.device) if self._nan_at is None else self._nan_at
            self._nan_at = torch.where((before < 0) & nan, step, before)
        elif nan:
            raise NaNPolicyError(self.source, step if shared_steps else None)

    def require_no_nan(self) -> None:
        """Raise NaNPolicyError where the network gave NaN in these episodes. It waits for a GPU, so call it at their end."""
        if self._nan_at is not None and (step := int(self._nan_at)) >= 0:
            raise NaNPolicyError(self.source, step)

    def _sample(self, distribution: Distribution, n: int) -> Tensor:
        if len(self._generators) != n:
            raise RuntimeError(f"there are {n} environments and seeds for {len(self._generators)}; call seed_episodes")
        alone = DistContext()
        noise = [self.network.sample_noise(1, generator, alone) for generator in self._generators]
        return distribution.sample(torch.cat(noise))

    def __getattr__(self, name: str) -> Any:
        # A policy was the network itself.
        if name.startswith("_") or name == "network" or not hasattr(self.network, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"policy.{name} is deprecated; use policy.network.{name}", DeprecationWarning, stacklevel=2)
        return getattr(self.network, name)
