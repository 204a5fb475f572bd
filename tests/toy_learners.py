"""An algorithm and two networks of somebody else's: what a module outside the package needs to train with `mikasa`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.networks import FeedForwardPolicyNetwork, NetworkPolicy, make_network
from mikasa_robo.baselines.policy_network import PolicyNetwork
from mikasa_robo.baselines.protocol import Setup
from mikasa_robo.baselines.registry import register_algorithm, register_network
from mikasa_robo.baselines.spaces import map_tensors, stack_tensors


@dataclass
class SearchArgs(CommonArgs):
    """Search at random for weights."""

    algorithm: ClassVar[str] = "toy-search"
    default_network: ClassVar[str] = "toy-linear"

    noise: float = 0.3
    """Standard deviation of the change of a weight."""


@dataclass
class Played:
    """One rollout."""

    obs: Any
    last_obs: Any
    reward: float


class RandomSearch:
    """Changes all weights at random, and keeps a change that earned more."""

    args_type = SearchArgs
    make_policy = staticmethod(NetworkPolicy)

    def __init__(self, args: SearchArgs, setup: Setup) -> None:
        self.args, self.generator = args, setup.generator
        self.network: Any = make_network(args, setup, recurrent=False)
        self.best, self.weights = -math.inf, self.copied()

    def copied(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.network.named_parameters()}

    def schedule(self, progress: float) -> None:
        pass

    def on_episode_start(self, starts: Tensor) -> None:
        pass

    def act(self, obs: Any) -> Tensor:
        return self.eval_policy().act(obs)

    def rollout(self, env: Any, obs: Any, stats: Any) -> Played:
        seen, total = [], 0.0
        for _ in range(self.args.num_steps):
            seen.append(map_tensors(torch.clone, obs))
            obs, reward, terminated, truncated, info = env.step(self.act(obs))
            stats.record(info, terminated | truncated)
            total += float(reward.sum())
        return Played(stack_tensors(seen), obs, total)

    def update(self, batch: Played) -> dict[str, float]:
        if batch.reward >= self.best:
            self.best, self.weights = batch.reward, self.copied()
        for name, weight in self.network.named_parameters():
            change = torch.randn(weight.shape, generator=self.generator)
            weight.data = self.weights[name] + self.args.noise * change
        return {"loss/best": self.best}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.weights = state["best"], state["weights"]

    def eval_policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.network)


class Linear(FeedForwardPolicyNetwork):
    """Actor and critic are linear."""

    def __init__(self, obs_dim: Any, action_dim: Any, normalize_obs: bool = True, gain: float = 1.0) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.gain = gain
        self.actor, self.critic = nn.Linear(self.features, self.action.parameters), nn.Linear(self.features, 1)
        self.actor.weight.data *= gain
        self.add_log_std(-0.5)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "gain": self.gain}


class Gru(PolicyNetwork):
    """A recurrent network whose state is one tensor (B, H)."""

    recurrent = True

    def __init__(self, obs_dim: Any, action_dim: Any, normalize_obs: bool = True, size: int = 8) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.size = size
        self.cell = nn.GRUCell(self.features, size)
        self.actor, self.critic = nn.Linear(size, self.action.parameters), nn.Linear(size, 1)
        self.add_log_std(-0.5)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "size": self.size}

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, self.size, device=self.device)

    def step(self, normalized_obs: Any, state: Any, starts: Tensor) -> Any:
        state = self.cell(self.encode(normalized_obs), torch.where(starts[:, None], torch.zeros_like(state), state))
        return self.make_distribution(self.actor(state)), self.critic(state).squeeze(-1), state

    def forward_sequence(self, normalized_obs: Any, state: Any, starts: Tensor) -> Any:
        features, states = self.encode(normalized_obs), []
        blank: Callable[[Tensor, Tensor], Tensor] = lambda s, b: torch.where(b[:, None], torch.zeros_like(s), s)  # noqa: E731
        for x, begins in zip(features, starts, strict=True):
            state = self.cell(x, blank(state, begins))
            states.append(state)
        joined = torch.stack(states)
        return self.make_distribution(self.actor(joined)), self.critic(joined).squeeze(-1), state


register_algorithm("toy-search", "toy_learners:RandomSearch", "Random search.")
register_network("toy-linear", "toy_learners:Linear", "Linear.")
register_network("toy-gru", "toy_learners:Gru", "A GRU.")
