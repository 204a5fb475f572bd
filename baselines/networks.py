"""The networks of the baselines: actors and critics with and without memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mikasa_robo.deprecation import deprecated_names, renamed_attributes

from .arguments import ArgumentError
from .critics import CRITIC_STATE, ValueScale
from .distributed import DistContext
from .distributions import Categoricals, Distribution, Gaussian, StateNoise
from .encoder import JOINED_VECTOR, Encoder, mlp
from .exploration import StdHead
from .memory import make_memory
from .memory_arguments import named_memory_errors
from .protocol import Network, Setup
from .registry import get_memory, get_network
from .spaces import ActionLayout, Obs, ObservationLayout, State, batch_size

__all__ = [
    "ActorCritic",
    "FeedForwardPolicyNetwork",
    "NetworkPolicy",
    "PolicyNetwork",
    "RecurrentActorCritic",
    "make_network",
    "read_ppo_options",
]

__getattr__ = deprecated_names(__name__, {"ObservationNormalizer": f"{__package__}.encoder:ObservationNormalizer"})


PPO_OPTIONS = frozenset(
    {
        "--exploration state-dependent",
        "--exploration gsde",
        "--exploration smooth",
        "--normalize-returns",
        "--critic-obs",
    }
)
"""All that `PolicyNetwork.ppo_options` may hold."""


class _CopyOutput:
    """Copies the result of a function recorded as a CUDA graph, which the next call would overwrite."""

    def __init__(self, recorded: Callable[[Tensor], Tensor]) -> None:
        self._recorded = recorded

    def __call__(self, x: Tensor) -> Tensor:
        return self._recorded(x).clone()


@renamed_attributes({"plain": "to_dict"})
class PolicyNetwork(Encoder):
    """Base class of networks: an encoder of observations, and the distribution of actions.

    A subclass makes the modules ``actor`` and ``critic`` and calls `add_log_std`. Its constructor takes ``obs_dim`` and
    ``action_dim`` as given here, and plain values besides, which `to_dict` returns.

    Args:
        obs_dim: size D of an observation, or the layout of one that is more than a vector. A part `critics.CRITIC_STATE` is
            for the critic alone: `layout` is without it, and so are the observations that `act` needs.
        action_dim: number A of continuous components of an action, each in [-1, 1], or the sizes of discrete ones.
        normalize_obs: whether vectors are normalised by their running statistics.
        image_encoder: as `Encoder`'s.
    """

    recurrent: ClassVar[bool]
    reads_objects: ClassVar[bool] = False
    """Whether the layout of observations has to tell how many objects there are."""
    ppo_options: ClassVar[frozenset[str]] = frozenset({"--exploration smooth"})
    """What it takes beyond PPO's defaults: kinds of exploration, ``--normalize-returns`` and ``--critic-obs``."""
    exploration: str = "gaussian"
    """What `add_log_std` was told: "gaussian", "state-dependent" or "gsde"."""
    actor: nn.Module
    critic: nn.Module
    log_std: nn.Parameter
    """(A,) logarithm of the standard deviation, where actions are continuous; (H, A) with gSDE, of H features."""
    std_head: StdHead
    """In its place where the standard deviation depends on the state."""
    value_scale: ValueScale | None
    """The unit of the critic's predictions, where values are scaled."""

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        normalize_obs: bool = True,
        image_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
    ) -> None:
        parts = ObservationLayout.from_dict(obs_dim).parts
        seen = tuple(part for part in parts if part.name != CRITIC_STATE)
        super().__init__(ObservationLayout(seen), normalize_obs, image_encoder)
        hidden = tuple(part for part in parts if part.name == CRITIC_STATE)
        self.critic_encoder = Encoder(ObservationLayout(hidden), normalize_obs) if hidden else None
        self.critic_features = self.critic_encoder.features if self.critic_encoder is not None else 0
        self.value_scale = None
        self.action = ActionLayout.from_dict(action_dim)
        self.action_dim = self.action.dim

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> PolicyNetwork:
        """A new network; ``--network-kwargs`` go to the constructor."""
        try:
            network = cls(observation, action, normalize_obs=args.normalize_obs, **args.read_network_kwargs())
        except TypeError as error:
            if not args.network_kwargs:
                raise
            raise ArgumentError(f"--network-kwargs {' '.join(args.network_kwargs)}: {error}") from error
        return network

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PolicyNetwork:
        """A network of the shape that `to_dict` described, with random weights."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        hidden = () if self.critic_encoder is None else self.critic_encoder.layout.parts
        values: dict[str, Any] = {
            "obs_dim": ObservationLayout((*self.layout.parts, *hidden)).to_dict(),
            "action_dim": self.action.to_dict(),
            "normalize_obs": self.normalizer is not None,
        }
        # Only where they are used, so that the networks of earlier checkpoints describe themselves as before.
        if self.exploration != "gaussian":
            values["exploration"] = self.exploration
        if self.value_scale is not None:
            values["normalize_returns"] = True
        return values

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def compile_parts(self, cuda_graphs: bool) -> None:
        """Compile the parts that have weights with torch.compile at their first use; `state_dict` keeps its names.

        An LSTM stays torch's own implementation, which is a single call already.
        """
        # Each part is compiled several times: in training and evaluation, for one observation and for batches. That is
        # more often than torch's limit of 8, beyond which it would silently stop compiling.
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(torch._dynamo.config, limit, max(64, getattr(torch._dynamo.config, limit)))
        mode = "reduce-overhead" if cuda_graphs else None
        parts = [module for name, module in self.named_children() if name in ("actor", "critic", "trunk")]
        for module in [*parts, *self.images]:
            compiled = torch.compile(module.forward, mode=mode)
            module.forward = _CopyOutput(compiled) if cuda_graphs else compiled

    def make_distribution(self, parameters: Tensor) -> Distribution:
        """The distribution of actions from means or logits (..., P)."""
        return Categoricals(parameters, self.action.sizes) if self.action.sizes else Gaussian(parameters, self.log_std)

    def distribution_of(self, x: Tensor) -> Distribution:
        """The distribution of actions (..., A) for inputs x (..., I) of the actor."""
        if self.exploration == "gaussian":
            return self.make_distribution(self.actor(x))
        assert isinstance(self.actor, nn.Sequential)
        features = self.actor[:-1](x)
        mean = self.actor[-1](features)
        if self.exploration == "gsde":
            return StateNoise(mean, features.detach(), self.log_std)
        return Gaussian(mean, self.std_head(features))

    def value_of(self, x: Tensor, normalized_obs: Obs) -> Tensor:
        """Values (...) for inputs x (..., I) of the critic; NaN where it also needs the state and that is not there."""
        if self.critic_encoder is not None:
            if not isinstance(normalized_obs, dict) or CRITIC_STATE not in normalized_obs:
                return x.new_full(x.shape[:-1], math.nan)  # in an evaluation, which reads no value
            x = torch.cat([x, normalized_obs[CRITIC_STATE]], dim=-1)
        value: Tensor = self.critic(x).squeeze(-1)
        return value if self.value_scale is None else self.value_scale(value)

    def normalize(self, obs: Obs) -> Obs:
        """As `Encoder.normalize`, with the state of the critic where there is one."""
        normalized = super().normalize(obs)
        if self.critic_encoder is None or not isinstance(obs, dict) or CRITIC_STATE not in obs:
            return normalized
        normalized = normalized if isinstance(normalized, dict) else {JOINED_VECTOR: normalized}
        state = self.critic_encoder.normalize(obs)
        assert isinstance(state, Tensor)
        return {**normalized, CRITIC_STATE: state}

    def update_normalizer(self, obs: Obs, dist: DistContext | None = None) -> None:
        """Add raw observations (..., …) to the running statistics, if there are any."""
        super().update_normalizer(obs, dist)
        if self.critic_encoder is not None:
            self.critic_encoder.update_normalizer(obs, dist)

    def sample_noise(self, n: int, generator: torch.Generator, dist: DistContext) -> Tensor:
        """Random numbers to sample actions from: this process's rows of those of all environments.

        (n, A), or (n, H, A) with gSDE, of H features.
        """
        draw = torch.rand if self.action.sizes else torch.randn
        shape = self.log_std.shape if self.exploration == "gsde" else (self.action.dim,)
        return draw((n * dist.size, *shape), generator=generator, device=self.device)[dist.own(n)]

    def add_log_std(self, initial: float, exploration: str = "gaussian") -> None:
        """Make the parameters of the noise, where actions are continuous.

        Args:
            initial: logarithm of the standard deviation of a component.
            exploration: "gaussian", "state-dependent" or "gsde"; the last two need an actor that ends with a linear layer.
        """
        self.exploration = exploration
        if self.action.sizes:
            return
        if exploration == "gaussian":
            self.log_std = nn.Parameter(torch.full((self.action.dim,), initial))
            return
        assert isinstance(self.actor, nn.Sequential)
        last = self.actor[-1]
        assert isinstance(last, nn.Linear)
        features = last.in_features
        if exploration == "gsde":
            self.log_std = nn.Parameter(torch.full((features, self.action.dim), initial))
        else:
            self.std_head = StdHead(features, self.action.dim, initial)

    @torch.no_grad()
    def limit_log_std(self, maximum: float) -> None:
        """Lower ``log_std`` to ``maximum`` where it is above; nothing happens where actions are discrete."""
        if self.exploration == "state-dependent":
            self.std_head.cap = maximum
        elif not self.action.sizes:
            self.log_std.clamp_(max=maximum)


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
    """

    ppo_options = PPO_OPTIONS - {"--critic-obs"}

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
        exploration: str = "gaussian",
        normalize_returns: bool = False,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.hidden_sizes = tuple(hidden_sizes)
        # A small last layer starts the policy near zero motion: with delta control the arm then stays where it is.
        self.actor = mlp(self.features, self.hidden_sizes, self.action.parameters, output_gain=0.01)
        self.critic = mlp(self.features, self.hidden_sizes, 1, output_gain=1.0)
        self.add_log_std(init_log_std, exploration)
        self.value_scale = ValueScale() if normalize_returns else None

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> ActorCritic:
        """From ``--hidden-sizes``, ``--normalize-obs`` and ``--init-log-std``."""
        _refuse_network_kwargs(args, "--hidden-sizes")
        sizes = args.hidden_sizes, args.normalize_obs, args.init_log_std
        return cls(observation, action, *sizes, **read_ppo_options(args))

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
        self.memory = make_memory(memory, width, **{"hidden_size": memory_size, **(memory_kwargs or {})})
        joined = width + self.memory.output_size
        self.actor = mlp(joined, self.head_sizes, self.action.parameters, output_gain=0.01)
        self.critic = mlp(joined + self.critic_features, self.head_sizes, 1, output_gain=1.0)
        self.add_log_std(init_log_std, exploration)
        self.value_scale = ValueScale() if normalize_returns else None

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> RecurrentActorCritic:
        """From ``--encoder-sizes``, ``--memory``, ``--memory-size`` (``--lstm-size``), ``--memory-kwargs`` and so on."""
        _refuse_network_kwargs(args, "--encoder-sizes, --memory, --memory-kwargs and --head-sizes")
        sizes = args.encoder_sizes, args.hidden_size, args.head_sizes
        options = args.normalize_obs, args.init_log_std, args.memory, args.read_memory_kwargs()
        with named_memory_errors(args):
            return cls(observation, action, *sizes, *options, **read_ppo_options(args))

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
        return self._forward(self.memory.step, normalized_obs, state, starts)

    def forward_sequence(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """S steps of B environments, with gradients through time that stop where episodes begin.

        Args:
            normalized_obs: (S, B, …) as `normalize` returns it.
            state: (B, …) each, before the first step.
            starts: (S, B) bool, an episode begins with that observation.

        Returns:
            the distribution of actions (S, B, A), values (S, B) and the state after the last step, (B, …) each.
        """
        return self._forward(self.memory.forward_sequence, normalized_obs, state, starts)

    def _forward(
        self, run: Callable[..., Any], normalized_obs: Obs, state: State, starts: Tensor
    ) -> tuple[Distribution, Tensor, State]:
        inputs = self.trunk(self.encode(normalized_obs))  # (…, B, W)
        outputs, state = run(inputs, state, starts)
        joined = torch.cat([inputs, outputs], dim=-1)
        return self.distribution_of(joined), self.value_of(joined, normalized_obs), state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The LSTM's weights were the network's own before there were other memories.
        old = f"{prefix}lstm."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[f"{prefix}memory.lstm.{name.removeprefix(old)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def read_ppo_options(args: Any) -> dict[str, Any]:
    """The arguments of networks that PPO's options set. Other algorithms do not have them."""
    exploration = getattr(args, "exploration", "gaussian")
    return {
        # Smooth noise is made from independent noise, outside of the network.
        "exploration": "gaussian" if exploration == "smooth" else exploration,
        "normalize_returns": getattr(args, "normalize_returns", False),
    }


def _refuse_network_kwargs(args: Any, options: str) -> None:
    if args.network_kwargs:
        raise ArgumentError(f"--network-kwargs {' '.join(args.network_kwargs)}: this network takes {options} instead")


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
    return placed


class NetworkPolicy:
    """A network that acts by its most likely actions, and keeps its recurrent state from step to step."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self._state: State | None = None

    def on_episode_start(self) -> None:
        """Reset the recurrent state: new episodes begin in all environments."""
        self._state = None

    @torch.no_grad()
    def act(self, obs: Obs, starts: Tensor | None = None) -> Tensor:
        """Actions (N, A), as an environment takes them, for raw observations (N, …).

        Args:
            obs: raw observations.
            starts: (N,) bool, where an episode begins with this observation; None where none does.
        """
        network = self.network
        normalized = network.normalize(obs)
        if not network.recurrent:
            distribution: Distribution = network.action_distribution(normalized)
        else:
            n = batch_size(obs)
            state = network.initial_state(n) if self._state is None else self._state
            if starts is None:
                starts = torch.zeros(n, dtype=torch.bool, device=network.device)
            distribution, _, self._state = network.step(normalized, state, starts)
        action: Tensor = network.action.to_env(distribution.mode())
        return action

    def __getattr__(self, name: str) -> Any:
        # A policy was the network itself.
        if name.startswith("_") or name == "network" or not hasattr(self.network, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(f"policy.{name} is deprecated; use policy.network.{name}", DeprecationWarning, stacklevel=2)
        return getattr(self.network, name)
