"""A policy with a memory of any kind, for sets of objects, images and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .arguments import ArgumentError, refuse_options
from .critics import ValueScale, output_gain
from .distributions import Distribution
from .encoder import IMAGE_FEATURES, JOINED_VECTOR
from .encoders import (
    POSE_SIZE,
    ImpalaEncoder,
    TokenEncoder,
    TokenPooling,
    TokenReading,
    relu_mlp,
    token_at_tcp,
    token_features,
    token_sum,
)
from .memory import Memory, make_memory
from .memory.contract import check_memory
from .memory_arguments import named_memory_errors
from .policy_network import (
    PPO_OPTIONS,
    TOKEN_OPTIONS,
    PolicyNetwork,
    read_ppo_options,
    refuse_network_kwargs,
)
from .registry import get_memory
from .spaces import OBJECTS, ActionLayout, Obs, ObservationLayout, State

__all__ = ["Embedded", "TokenPolicy"]

Embedded: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]
"""What `TokenPolicy.embed` returns."""
TOKENS = "tokens"
"""Key of the objects (..., K, 16 + C) in a normalised observation, see `encoders.token_features`."""
JOINTS = "joints"
"""The part of an observation whose last 7 numbers are the pose of the TCP."""


class TokenPolicy(PolicyNetwork):
    """A policy and a value function around a memory, whose objects are tokens; see `encoders`.

    What is written: learned queries pool the tokens of a step, and with the other parts of the observation they become
    x_t, from which the memory computes y_t. What is read: a query from y_t and the other parts attends to the tokens of the
    same step. Actor and critic see y_t, what was read and the other parts. So the memory decides which object to act on,
    wherever that object is now, and every memory that computes whole sequences at once still can.

    Permuting the objects of an observation changes nothing. Without objects, images and numbers take this way alone.

    Args:
        obs_dim: the layout of observations. A part "objects" needs the number of its objects, and a part "joints" beside it.
        action_dim: as `PolicyNetwork`'s.
        normalize_obs: whether numbers other than those of objects are normalised by their running statistics.
        memory: name of the memory, see `memory`.
        memory_size: its width.
        memory_kwargs: its other options.
        token_size: E, size of a token.
        head_sizes: widths of the hidden layers of actor and critic.
        query_sizes: widths of the hidden layers of what makes the queries to the objects; none: the queries are linear.
        init_log_std, exploration, normalize_returns: as `networks.ActorCritic`'s.
        tcp_token: whether the token of what is at the tool centre point, see `encoders.token_at_tcp`, counts among the other
            parts of the observation. Nothing changes without objects.
        sum_token: whether the memory is given the sum of the visible tokens, too. Nothing changes without objects.
    """

    recurrent = True
    ppo_options = PPO_OPTIONS
    reads_objects = True

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        normalize_obs: bool = True,
        memory: str = "gru",
        memory_size: int = 128,
        memory_kwargs: Mapping[str, Any] | None = None,
        token_size: int = 64,
        head_sizes: Sequence[int] = (256, 256),
        init_log_std: float = -0.5,
        exploration: str = "gaussian",
        normalize_returns: bool = False,
        query_sizes: Sequence[int] = (),
        tcp_token: bool = False,
        sum_token: bool = False,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs, image_encoder=_image_encoder)
        self.token_size, self.head_sizes, self.query_sizes = token_size, tuple(head_sizes), tuple(query_sizes)
        objects = [part for part in self.layout.parts if part.items]
        self.num_objects = objects[0].items if objects else 0
        self.tcp_token, self.sum_token = tcp_token, sum_token
        others = self.features + (token_size if tcp_token and objects else 0)
        written = read = others  # sizes
        if objects:
            features = objects[0].width // self.num_objects - POSE_SIZE
            self.tokens = TokenEncoder(features, token_size)
            self.pooling = TokenPooling(token_size)
            written += self.pooling.outputs + (token_size if sum_token else 0)
        self.trunk = relu_mlp(written, (memory_size,))
        self.memory = self.make_memory(memory, memory_size, hidden_size=memory_size, **(memory_kwargs or {}))
        if objects:
            looking = self.memory.output_size + others
            self.reading = TokenReading(looking, token_size, hidden=self.query_sizes)
            read += self.reading.outputs
        self.head_inputs = self.memory.output_size + read
        self.actor = relu_mlp(self.head_inputs, self.head_sizes, self.action.parameters)
        self.critic = relu_mlp(
            self.head_inputs + self.critic_features, self.head_sizes, 1, gain=output_gain(normalize_returns)
        )
        self.add_log_std(init_log_std, exploration)
        self.value_scale = ValueScale() if normalize_returns else None

    def make_memory(self, name: str, input_size: int, **options: Any) -> Memory:
        """The memory between what `write` gives and what `look` takes; a subclass may make another one."""
        return make_memory(name, input_size, **options)

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> TokenPolicy:
        """From ``--memory``, ``--memory-size``, ``--memory-kwargs``, ``--token-size``, ``--head-sizes`` and so on."""
        refuse_network_kwargs(
            args, "--memory, --memory-kwargs, --token-size, --query-sizes, --tcp-token, --sum-token and --head-sizes"
        )
        refuse_options(args, "encoder_sizes")
        parts = {part.name: part for part in observation.parts}
        if OBJECTS in parts and not parts[OBJECTS].items:
            raise ArgumentError("the number of objects is not known; leave --num-workers out, or use another --network")
        cls.refuse_object_options(observation, args)
        memory = args.memory, args.hidden_size, args.read_memory_kwargs()
        sizes = args.token_size, args.head_sizes, args.init_log_std
        with named_memory_errors(args):
            # An algorithm from elsewhere may be older than these options.
            options: dict[str, Any] = {
                "query_sizes": getattr(args, "query_sizes", ()),
                "tcp_token": getattr(args, "tcp_token", False),
                "sum_token": getattr(args, "sum_token", False),
                **read_ppo_options(args),
            }
            network = cls(observation, action, args.normalize_obs, *memory, *sizes, **options)
            check_memory(network.memory, args.read_memory_kwargs())
        return network

    @staticmethod
    def refuse_object_options(observation: ObservationLayout, args: Any) -> None:
        """Raise ArgumentError where options for objects are set and the observation has none."""
        if OBJECTS not in {part.name for part in observation.parts}:
            refuse_options(args, TOKEN_OPTIONS, "where the observation has no objects")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TokenPolicy:
        """A network of the shape that `to_dict` described, with random weights.

        Raises:
            RegistryError: its memory is not registered. Nothing is imported because a checkpoint names it.
        """
        get_memory(values["memory"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        memory = self.memory.to_dict()
        name, size = memory.pop("name"), memory.pop("hidden_size")
        del memory["input_size"]
        return {
            **super().to_dict(),
            "memory": name,
            "memory_size": size,
            "memory_kwargs": memory,
            "token_size": self.token_size,
            "head_sizes": list(self.head_sizes),
            "query_sizes": list(self.query_sizes),
            "tcp_token": self.tcp_token,
            "sum_token": self.sum_token,
        }

    def normalize(self, obs: Obs) -> Obs:
        """Raw observations (..., …) to a dict of what the layers see; images stay bytes."""
        if not self.num_objects:
            return super().normalize(obs)
        assert isinstance(obs, dict)
        others = super().normalize(obs)
        others = others if isinstance(others, dict) else {JOINED_VECTOR: others}
        objects = obs[OBJECTS].unflatten(-1, (self.num_objects, -1))
        return {**others, TOKENS: token_features(objects, obs[JOINTS][..., -7:])}

    def embed(self, normalized_obs: Obs) -> Embedded:
        """The other parts (..., F), and where there are objects the tokens (..., K, E) and which are visible (..., K).

        With ``tcp_token`` the other parts end with the token at the TCP: (..., F + E).
        """
        if not self.num_objects:
            return self.encode(normalized_obs), None, None
        assert isinstance(normalized_obs, dict)
        objects = normalized_obs[TOKENS]
        others = self.encode({name: value for name, value in normalized_obs.items() if name != TOKENS})
        tokens, visible = self.tokens(objects), objects[..., 0] > 0.5
        if self.tcp_token:
            others = torch.cat([others, token_at_tcp(objects, tokens, visible)], dim=-1)
        return others, tokens, visible

    def write(self, embedded: Embedded) -> Tensor:
        """What the memory is given, x (..., H), for what `embed` returned."""
        others, tokens, visible = embedded
        if tokens is not None and visible is not None:
            others = torch.cat([others, self.pooling(tokens, visible)], dim=-1)
            if self.sum_token:
                others = torch.cat([others, token_sum(tokens, visible)], dim=-1)
        written: Tensor = self.trunk(others)
        return written

    def write_recorded(self, embedded: Embedded, steps: Mapping[str, Tensor]) -> Tensor:
        """What the memory is given in recorded episodes, (M, I).

        Args:
            embedded: of the observations, (M, …) each.
            steps: what else is known of these steps, (M, …) by name. A class that gives its memory more than observations
                takes it from here.
        """
        return self.write(embedded)

    def look(self, y: Tensor, embedded: Embedded) -> Tensor:
        """What actor and critic see (..., `head_inputs`): y (..., H), what it finds among the tokens, the other parts."""
        return self.look_and_point(y, embedded)[0]

    def look_and_point(self, y: Tensor, embedded: Embedded) -> tuple[Tensor, Tensor | None]:
        """As `look`; and how well each token fits each query, (..., Q, K + 1), where there are objects.

        The last column is that of the empty token. Where an object is not visible it is -inf.
        """
        others, tokens, visible = embedded
        joined = torch.cat([y, others], dim=-1)
        if tokens is None or visible is None:
            return joined, None
        read, scores = self.reading(joined, tokens, visible)
        return torch.cat([joined, read], dim=-1), scores

    def initial_state(self, n: int) -> State:
        """The recurrent state at the start of an episode, (n, …) each."""
        return self.memory.initial_state(n)

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """One step of B environments; see `protocol.RecurrentNetwork`."""
        return self._forward(normalized_obs, state, starts)[:3]

    def forward_sequence(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """S steps of B environments, with gradients; see `protocol.RecurrentNetwork`."""
        return self._forward(normalized_obs, state, starts)[:3]

    def forward_memory(
        self, normalized_obs: Obs, state: State, starts: Tensor
    ) -> tuple[Distribution, Tensor, State, Tensor]:
        """As `forward_sequence`; and the outputs of the memory (S, B, H)."""
        return self._forward(normalized_obs, state, starts)

    def _forward(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State, Tensor]:
        embedded = self.embed(normalized_obs)
        run = self.memory.step if starts.ndim == 1 else self.memory.forward_sequence
        assert isinstance(state, dict)
        y, state = run(self.write(embedded), state, starts)
        joined = self.look(y, embedded)
        return self.distribution_of(joined), self.value_of(joined, normalized_obs), state, y


def _image_encoder(shape: tuple[int, ...]) -> ImpalaEncoder:
    return ImpalaEncoder(shape, IMAGE_FEATURES)
