"""What all networks of policies have: an encoder, the distribution of actions, exploration and the scale of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mikasa_robo.deprecation import renamed_attributes

from .arguments import ArgumentError, non_default_options, refuse_options
from .critics import CRITIC_STATE, ValueScale
from .distributed import DistContext
from .distributions import Categoricals, Distribution, Gaussian, StateNoise
from .encoder import JOINED_VECTOR, Encoder
from .exploration import StdHead
from .spaces import ActionLayout, Obs, ObservationLayout

__all__ = [
    "PPO_OPTIONS",
    "TOKEN_OPTIONS",
    "PolicyNetwork",
    "read_ppo_options",
    "refuse_network_kwargs",
]

PPO_OPTIONS = frozenset(
    {
        "--exploration state-dependent",
        "--exploration gsde",
        "--exploration smooth",
        "--normalize-returns",
        "--critic-obs",
    }
)
"""What `PolicyNetwork.ppo_options` may hold. That of a network without memory may hold "--fine-inputs", too."""
TOKEN_OPTIONS = "token_size query_sizes tcp_token sum_token"
"""Fields of the arguments that only a network reads whose objects are tokens, separated by spaces."""
SIZE_OPTIONS = f"hidden_sizes encoder_sizes head_sizes memory_size lstm_size {TOKEN_OPTIONS}"
"""Fields of the arguments that only the package's own networks read, separated by spaces."""


class _CopyOutput:
    """Copies the result of a function recorded as a CUDA graph, which the next call would overwrite."""

    def __init__(self, recorded: Callable[..., Tensor]) -> None:
        self._recorded = recorded

    def __call__(self, *args: Any) -> Tensor:
        return self._recorded(*args).clone()


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
        image_encoder, fine_inputs: as `Encoder`'s.
    """

    recurrent: ClassVar[bool]
    reads_objects: ClassVar[bool] = False
    """Whether the layout of observations has to tell how many objects there are."""
    ppo_options: ClassVar[frozenset[str]] = frozenset({"--exploration smooth"})
    """What it takes beyond PPO's defaults: kinds of exploration and the options of `PPO_OPTIONS`."""
    exploration: str = "gaussian"
    """What `add_log_std` was told: "gaussian", "state-dependent" or "gsde"."""
    actor: nn.Module
    critic: nn.Module
    log_std: nn.Parameter
    """(A,) logarithm of the standard deviation, where actions are continuous; (H, A) with gSDE, of H features."""
    std_head: StdHead
    """In its place where the standard deviation depends on the state."""
    of_the_run: ClassVar[tuple[str, ...]] = ()
    """Names of buffers that belong to a run, not to its policy: ``--init-from`` leaves those of the new run as they are."""
    value_scale: ValueScale | None
    """The unit of the critic's predictions, where values are scaled."""

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        normalize_obs: bool = True,
        image_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        fine_inputs: float = 0.0,
    ) -> None:
        parts = ObservationLayout.from_dict(obs_dim).parts
        seen = tuple(part for part in parts if part.name != CRITIC_STATE)
        super().__init__(ObservationLayout(seen), normalize_obs, image_encoder, fine_inputs)
        hidden = tuple(part for part in parts if part.name == CRITIC_STATE)
        self.critic_encoder = Encoder(ObservationLayout(hidden), normalize_obs) if hidden else None
        self.critic_features = self.critic_encoder.features if self.critic_encoder is not None else 0
        self.value_scale = None
        self.action = ActionLayout.from_dict(action_dim)
        self.action_dim = self.action.dim

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> PolicyNetwork:
        """A new network; ``--network-kwargs`` go to the constructor.

        An ``--init-log-std`` other than the default replaces the ``log_std`` that the constructor chose.

        Raises:
            ArgumentError: the constructor does not take one of the ``--network-kwargs``, or an option is given that sets
                sizes of the package's own networks.
        """
        if args.resume is None:  # a run of an earlier version may have begun with one
            refuse_options(args, " ".join(cls.sizes_left_out()))
        try:
            network = cls(observation, action, normalize_obs=args.normalize_obs, **args.read_network_kwargs())
        except TypeError as error:
            if not args.network_kwargs:
                raise
            raise ArgumentError(f"--network-kwargs {' '.join(args.network_kwargs)}: {error}") from error
        if any(non_default_options(args, "init_log_std")) and isinstance(
            getattr(network, "log_std", None), nn.Parameter
        ):
            nn.init.constant_(network.log_std, args.init_log_std)
        return network

    @classmethod
    def sizes_left_out(cls) -> tuple[str, ...]:
        """Fields of the arguments with sizes of the package's own networks, if this network does not read them."""
        own_way = cls.from_args.__func__ is not PolicyNetwork.from_args.__func__  # type: ignore[attr-defined]
        return () if own_way else tuple(SIZE_OPTIONS.split())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PolicyNetwork:
        """A network of the shape that `to_dict` described, with random weights."""
        return cls(**values)

    @classmethod
    def refuse_algorithm(cls, args: Any) -> None:
        """Raise ArgumentError where the algorithm of these arguments does not train such a network."""

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        hidden = () if self.critic_encoder is None else self.critic_encoder.layout.parts
        values: dict[str, Any] = {
            "obs_dim": ObservationLayout((*self.layout.parts, *hidden)).to_dict(),
            "action_dim": self.action.to_dict(),
            # Images have no normaliser, but the critic's state beside them has.
            "normalize_obs": any(
                part is not None and part.normalizer is not None for part in (self, self.critic_encoder)
            ),
        }
        # Only where they are used, so that the networks of earlier checkpoints describe themselves as before.
        if self.exploration != "gaussian":
            values["exploration"] = self.exploration
        if self.value_scale is not None:
            values["normalize_returns"] = True
        if self.fine_inputs:
            values["fine_inputs"] = self.fine_inputs
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

    def begin_normalizers(self, obs: Obs, dist: DistContext | None = None) -> None:
        """Add raw observations (..., …) to the statistics of a critic's own encoder that has none yet."""
        encoder = self.critic_encoder
        if encoder is not None and encoder.normalizer is not None and not bool(encoder.normalizer.count):
            encoder.update_normalizer(obs, dist)

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
            self.std_head.cap.fill_(maximum)
        elif not self.action.sizes:
            self.log_std.clamp_(max=maximum)


def refuse_network_kwargs(args: Any, options: str) -> None:
    """Raise ArgumentError where ``--network-kwargs`` are given to a network that takes ``options`` in their place."""
    if args.network_kwargs:
        raise ArgumentError(f"--network-kwargs {' '.join(args.network_kwargs)}: this network takes {options} instead")


def read_ppo_options(args: Any) -> dict[str, Any]:
    """The arguments of networks that PPO's options set. Other algorithms do not have them."""
    exploration = getattr(args, "exploration", "gaussian")
    return {
        # Smooth noise is made from independent noise, outside of the network.
        "exploration": "gaussian" if exploration == "smooth" else exploration,
        "normalize_returns": getattr(args, "normalize_returns", False),
    }
