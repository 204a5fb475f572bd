"""PPO with a recurrent policy (an LSTM) on batched environments: the agent with memory.

    python -m baselines.ppo_lstm --env-id RememberColor3-v0 --obs objects+joints     # or: mikasa train ppo-lstm ...
    python -m baselines.ppo_lstm --env-id MemoryLengthEasy-v0

A rollout starts from the memory that the last one ended with; memory is lost only where an episode begins. An update
replays whole rollouts of some of the environments from the memory that was stored at their start, so before its first
step it computes the very log-probabilities and values that were recorded.

Top to bottom: the arguments, a rollout, an update, the learner that joins them, the command line. The training loop
around them is in `training`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import training
from .advantages import compute_gae
from .arguments import ArgumentError, CommonArgs, nearest_divisor, require
from .environments import EnvFactory
from .loggers import EpisodeStats
from .losses import Recorded, ppo_step, summarize_losses
from .networks import RecurrentActorCritic
from .spaces import ActionLayout, Obs, ObservationLayout, map_obs, stack_obs
from .team import Team, team_size

__all__ = ["Args", "ArgumentError", "Player", "main", "train"]


@dataclass
class Args(CommonArgs):
    """Trains PPO with an LSTM policy, which can remember."""

    algorithm: ClassVar[str] = "ppo-lstm"
    default_obs: ClassVar[str] = "objects+joints"

    num_minibatches: int = 8
    """Minibatches in an epoch, each of whole rollouts of some of the environments; must divide num_envs."""
    gamma: float = 0.99
    """Discount. What a memory is good for comes late."""
    gae_lambda: float = 0.95
    """Trace decay of the advantage estimate."""
    encoder_sizes: tuple[int, ...] = (128,)
    """Widths of the layers between an observation and the LSTM, at least one."""
    lstm_size: int = 128
    """Width of the LSTM."""
    head_sizes: tuple[int, ...] = (128,)
    """Widths of the hidden layers of actor and critic, after the LSTM."""

    def check(self) -> None:
        """Raises ``ArgumentError`` where a value cannot work, before anything has been made."""
        super().check()
        require(self, "encoder_sizes", lambda widths: min(widths, default=0) >= 1, "use widths of at least 1")
        require(self, "head_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
        require(self, "lstm_size", lambda width: width >= 1, "use at least 1")

    def check_minibatches(self) -> None:
        """Raises ``ArgumentError`` where the environments cannot be shared out to minibatches."""
        num_envs = self.num_envs * team_size()
        if num_envs % self.num_minibatches:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} does not divide the number of environments, {num_envs}; "
                f"use {nearest_divisor(num_envs, self.num_minibatches)}"
            )
        if self.batch_size // self.num_minibatches < 2 and self.normalize_advantages:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} leaves one transition to a minibatch, too few to normalise "
                "its advantage; use more --num-steps, or --no-normalize-advantages"
            )


@dataclass
class Rollout:
    """S steps of N environments, on the learner's device."""

    obs: Obs  # (S, N, …) raw
    starts: Tensor  # (S, N) bool, an episode begins with that observation
    memory: Tensor  # (2, N, H) before the first step
    actions: Tensor  # (S, N, A) as sampled, before clamping
    log_probs: Tensor  # (S, N)
    values: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    truncated: Tensor  # (S, N) bool
    final_values: Tensor  # (S, N) value of the true last observation, with the memory of its episode; where truncated
    last_obs: Obs  # (N, …), where the next rollout goes on
    last_starts: Tensor  # (N,) bool, likewise
    last_memory: Tensor  # (2, N, H), likewise
    last_value: Tensor  # (N,) value of last_obs


@torch.no_grad()
def rollout(
    env: Any,
    policy: RecurrentActorCritic,
    obs: Obs,
    starts: Tensor,
    memory: Tensor,
    num_steps: int,
    generator: torch.Generator,
    stats: EpisodeStats,
    team: Team | None = None,
) -> Rollout:
    """Plays ``num_steps`` steps with sampled actions and automatic resets.

    Args:
        obs: (N, …) where to go on.
        starts: (N,) bool, an episode begins with ``obs``.
        memory: (2, N, H), what is known before ``obs``.
    """
    team = team or Team()
    device, n, steps = policy.device, env.num_envs, num_steps
    first_memory = memory
    observations: list[Obs] = []
    actions = torch.empty((steps, n, policy.action_dim), device=device, dtype=policy.action.dtype)
    log_probs, values, rewards = torch.empty((3, steps, n), device=device).unbind()
    final_values = torch.zeros((steps, n), device=device)
    begun, terminated, truncated = torch.empty((3, steps, n), dtype=torch.bool, device=device).unbind()
    for t in range(steps):
        observations.append(map_obs(lambda x: x.to(device, copy=True), obs))
        begun[t] = starts
        distribution, values[t], memory = policy.step(observations[t], memory, begun[t])
        actions[t] = distribution.sample(policy.noise(n, generator, team))
        log_probs[t] = distribution.log_prob(actions[t])
        obs, reward, ends, cuts, info = env.step(policy.action.to_env(actions[t]).to(env.device))
        rewards[t], terminated[t], truncated[t] = reward, ends, cuts
        if cuts.any():
            here = truncated[t]
            last = map_obs(lambda x: x[cuts].to(device), info["final_observation"])  # noqa: B023  used at once
            going_on = torch.zeros(int(here.sum()), dtype=torch.bool, device=device)
            final_values[t, here] = policy.step(last, memory[:, here], going_on)[1]
        starts = ends | cuts
        stats.record(info, starts)
    obs = map_obs(lambda x: x.to(device, copy=True), obs)
    starts = starts.to(device)
    return Rollout(
        stack_obs(observations),
        begun,
        first_memory,
        actions,
        log_probs,
        values,
        rewards,
        terminated,
        truncated,
        final_values,
        obs,
        starts,
        memory,
        policy.step(obs, memory, starts)[1],
    )


def update(
    policy: RecurrentActorCritic,
    optimizer: torch.optim.Optimizer,
    batch: Rollout,
    args: Args,
    generator: torch.Generator,
    team: Team | None = None,
) -> dict[str, float]:
    """One PPO update from a rollout; returns figures for the log."""
    team = team or Team()
    steps, n = batch.rewards.shape
    advantages, returns = compute_gae(
        batch.rewards,
        batch.values,
        batch.last_value,
        batch.final_values,
        batch.terminated,
        batch.truncated,
        args.gamma,
        args.gae_lambda,
    )
    with torch.no_grad():
        obs = policy.normalize(batch.obs)  # once: the normaliser does not change during an update
    recorded = Recorded(batch.log_probs, advantages, returns)
    metrics: list[Tensor] = []
    stopped = False
    for _ in range(args.update_epochs):
        order = torch.randperm(n * team.size, generator=generator, device=batch.rewards.device)
        for chosen in order.chunk(args.num_minibatches):
            envs = chosen - team.rows(n).start  # their places in this process, where they are here
            envs = envs[(envs >= 0) & (envs < n)]
            if len(envs):
                part = map_obs(lambda x: x[:, envs], obs)  # noqa: B023  used at once
                distribution, value, _ = policy.replay(part, batch.memory[:, envs], batch.starts[:, envs])
                evaluated = distribution.log_prob(batch.actions[:, envs]), distribution.entropy(), value
            else:
                nothing = batch.rewards[:, envs]
                evaluated = nothing, nothing, nothing
            step = ppo_step(policy, optimizer, *evaluated, recorded[:, envs], steps * len(chosen), args, team)
            if step is None:
                stopped = True
                break
            metrics.append(step)
        if stopped:
            break
    row = summarize_losses(metrics, batch.values, returns)
    if not policy.action.sizes:
        row["loss/action_std"] = float(policy.log_std.detach().exp().mean())
    return row


class Player:
    """A policy that acts by its likeliest actions and remembers what it saw since `begin`."""

    def __init__(self, policy: RecurrentActorCritic) -> None:
        self._policy = policy
        self._memory: Tensor | None = None

    def begin(self) -> None:
        """Forgets: new episodes begin everywhere."""
        self._memory = None

    @torch.no_grad()
    def act(self, obs: Obs) -> Tensor:
        """Actions (N, A), as an environment takes them, for raw observations (N, …)."""
        n = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
        memory = self._policy.empty_memory(n) if self._memory is None else self._memory
        starts = torch.zeros(n, dtype=torch.bool, device=self._policy.device)
        distribution, _, self._memory = self._policy.step(obs, memory, starts)
        return self._policy.action.to_env(distribution.mode())


class Learner:
    """PPO-LSTM as `training` drives it."""

    def __init__(self, args: Args, setting: training.Setting) -> None:
        self.args, self.generator, self.team = args, setting.generator, setting.team
        self.policy = RecurrentActorCritic(
            ObservationLayout.of(setting.observation_space),
            ActionLayout.of(setting.action_space),
            args.encoder_sizes,
            args.lstm_size,
            args.head_sizes,
            args.normalize_obs,
            args.init_log_std,
        ).to(setting.device)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=args.learning_rate, eps=1e-5
        )
        self.memory = self.policy.empty_memory(setting.num_envs)
        self.starts = torch.ones(setting.num_envs, dtype=torch.bool, device=setting.device)

    def begin(self, starts: Tensor) -> None:
        """Is told in which environments (N,) bool an episode begins with the observation that comes next."""
        self.starts = starts.to(self.policy.device)

    @torch.no_grad()
    def explore(self, obs: Obs) -> Tensor:
        """Sampled actions (N, A) for observations (N, …), which are remembered."""
        here = map_obs(lambda x: x.to(self.policy.device), obs)
        distribution, _, self.memory = self.policy.step(here, self.memory, self.starts)
        noise = self.policy.noise(len(self.starts), self.generator, self.team)
        return self.policy.action.to_env(distribution.sample(noise))

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See `rollout`; goes on with the memory of the last one."""
        steps, generator = self.args.num_steps, self.generator
        batch = rollout(env, self.policy, obs, self.starts, self.memory, steps, generator, stats, self.team)
        self.starts, self.memory = batch.last_starts, batch.last_memory
        return batch

    def update(self, batch: Rollout) -> dict[str, float]:
        """See `update`."""
        return update(self.policy, self.optimizer, batch, self.args, self.generator, self.team)

    def player(self) -> tuple[Callable[[Any], Tensor], Callable[[], None]]:
        """The policy with a memory of its own."""
        player = Player(self.policy)
        return player.act, player.begin


def train(args: Args, env_factory: EnvFactory, command: Sequence[str] = (), team: Team | None = None) -> dict[str, Any]:
    """Trains, evaluates and fills the run folder; see `training.train`."""
    return training.train(args, env_factory, Learner, command, team)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return training.run_command(Args, train, argv, f"{__package__}.ppo_lstm")


if __name__ == "__main__":
    sys.exit(main())
