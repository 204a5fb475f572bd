"""A policy that is given a return to reach and its own actions, besides what it observes: decision transformer and RATE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import ArgumentError
from .distributions import Distribution, Gaussian
from .memory import Memory
from .memory.decision import DecisionTransformer
from .memory.rate import RATE
from .policy_network import refuse_network_kwargs
from .spaces import ActionLayout, Obs, ObservationLayout, State
from .token_policy import Embedded, TokenPolicy

__all__ = ["ACTION_BEFORE", "MODELS", "RETURN_TO_GO", "SequencePolicy"]

MODELS: dict[str, type[Memory]] = {"decision": DecisionTransformer, "rate": RATE}
"""The sequence models by the name in ``memory``."""
ACTION_BEFORE, RETURN_TO_GO = "action_before", "return_to_go"
"""What recorded steps have to hold: (M, A) and (M,)."""
STEP = "step"
"""Entry of the state: steps (N,) since the episode began."""


class SequencePolicy(TokenPolicy):
    """A `TokenPolicy` whose memory is a sequence model of returns-to-go, observations and actions.

    In recorded episodes the returns-to-go are those of the data. In an evaluation no reward is given to the policy: dense
    rewards tell what has to be remembered. At step t it is given ``target_returns[t]`` instead, see `set_targets`.

    Args:
        obs_dim, action_dim, normalize_obs, memory_size, token_size, head_sizes, query_sizes, tcp_token, sum_token,
            init_log_std: as `TokenPolicy`'s.
        memory: a name in `MODELS`.
        memory_kwargs: options of the model, without the size of actions.
        horizon: T, number of target returns.
    """

    ppo_options = frozenset()
    of_the_run = ("target_returns", "return_scale")
    target_returns: Tensor  # (T,)
    return_scale: Tensor  # ()

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        normalize_obs: bool = True,
        memory: str = "decision",
        memory_size: int = 128,
        memory_kwargs: Mapping[str, Any] | None = None,
        token_size: int = 64,
        head_sizes: Sequence[int] = (256, 256),
        init_log_std: float = -0.5,
        horizon: int = 1,
        query_sizes: Sequence[int] = (),
        tcp_token: bool = False,
        sum_token: bool = False,
    ) -> None:
        sizes = memory_size, memory_kwargs, token_size, head_sizes, init_log_std
        options: dict[str, Any] = {"query_sizes": query_sizes, "tcp_token": tcp_token, "sum_token": sum_token}
        super().__init__(obs_dim, action_dim, normalize_obs, memory, *sizes, **options)
        self.model = memory
        self.register_buffer("target_returns", torch.zeros(horizon))
        self.register_buffer("return_scale", torch.ones(()))

    def make_memory(self, name: str, input_size: int, **options: Any) -> Memory:
        """See `TokenPolicy.make_memory`; the input has the return-to-go and the action before it, too."""
        if name not in MODELS:
            raise ValueError(f"there is no sequence model {name!r}; use one of {', '.join(MODELS)}")
        if self.action.sizes:
            raise ValueError("discrete actions cannot be used; use a task with continuous ones")
        size = self.action.dim
        model: Any = MODELS[name]
        made: Memory = model(input_size + 1 + size, action_size=size, **options)
        return made

    @classmethod
    def from_args(cls, observation: ObservationLayout, action: ActionLayout, args: Any) -> SequencePolicy:
        """From ``--memory-size``, ``--token-size``, ``--head-sizes`` and what ``args.model_kwargs`` returns."""
        cls.refuse_algorithm(args)
        refuse_network_kwargs(
            args, "--token-size, --query-sizes, --tcp-token, --sum-token, --head-sizes and the options of its model"
        )
        cls.refuse_object_options(observation, args)
        sizes = args.memory_size, args.model_kwargs(), args.token_size, args.head_sizes, args.init_log_std
        try:
            options = {name: getattr(args, name) for name in ("query_sizes", "tcp_token", "sum_token")}
            return cls(observation, action, args.normalize_obs, args.sequence_model, *sizes, **options)
        except ValueError as error:
            raise ArgumentError(f"--memory-size {args.memory_size} --heads {args.heads}: {error}") from error

    @classmethod
    def refuse_algorithm(cls, args: Any) -> None:
        """See `PolicyNetwork.refuse_algorithm`."""
        if getattr(args, "sequence_model", None) is None:
            raise ArgumentError("--network sequence is for `mikasa train dt` and `mikasa train rate`; use another one")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SequencePolicy:
        """A network of the shape that `to_dict` described, with random weights."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        values = super().to_dict()
        options = {name: value for name, value in values["memory_kwargs"].items() if name != "action_size"}
        return {**values, "memory": self.model, "memory_kwargs": options, "horizon": len(self.target_returns)}

    def set_targets(self, target_returns: Tensor, scale: float) -> None:
        """Say what to reach.

        Args:
            target_returns: (T,) the return-to-go that an evaluation is to reach from step t on; after the last one it stays.
            scale: returns-to-go are divided by it before the network sees them.
        """
        self.target_returns = target_returns.to(self.device, torch.float32)
        self.return_scale = torch.full_like(self.return_scale, scale)

    def write_recorded(self, embedded: Embedded, steps: Mapping[str, Tensor]) -> Tensor:
        """See `TokenPolicy.write_recorded`."""
        return self._inputs(embedded, steps[RETURN_TO_GO], steps[ACTION_BEFORE])

    def _inputs(self, embedded: Embedded, returns: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([self.write(embedded), (returns / self.return_scale).unsqueeze(-1), actions], dim=-1)

    def initial_state(self, n: int) -> State:
        """See `TokenPolicy.initial_state`."""
        action = torch.zeros(n, self.action.dim, device=self.device)
        step = torch.zeros(n, dtype=torch.int64, device=self.device)
        return {**self.memory.initial_state(n), ACTION_BEFORE: action, STEP: step}

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """One step of B environments; the most likely action counts as carried out. See `protocol.RecurrentNetwork`."""
        assert isinstance(state, dict)
        state = dict(state)
        action = state.pop(ACTION_BEFORE).masked_fill(starts.unsqueeze(-1), 0)
        step = state.pop(STEP).masked_fill(starts, 0)
        target = self.target_returns[step.clamp(max=len(self.target_returns) - 1)]
        embedded = self.embed(normalized_obs)
        y, after = self.memory.step(self._inputs(embedded, target, action), state, starts)
        joined = self.look(y, embedded)
        distribution = self.distribution_of(joined)
        carried_out = self.action.to_env(distribution.mode())
        value = self.value_of(joined, normalized_obs)
        return distribution, value, {**after, ACTION_BEFORE: carried_out, STEP: step + 1}

    def forward_sequence(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Distribution, Tensor, State]:
        """S steps of B environments, one after another: each action follows from those before it."""
        means, values = [], []
        for t, starting in enumerate(starts):
            obs = (
                {k: v[t] for k, v in normalized_obs.items()} if isinstance(normalized_obs, dict) else normalized_obs[t]
            )
            distribution, value, state = self.step(obs, state, starting)
            means.append(distribution.mode())
            values.append(value)
        return Gaussian(torch.stack(means), self.log_std), torch.stack(values), state
