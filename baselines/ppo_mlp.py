"""PPO with an MLP policy (Schulman et al., 2017, arXiv 1707.06347) on batched environments: the agent without memory.

    python -m baselines.ppo_mlp --env-id RememberColor3-v0        # the same: mikasa train ppo-mlp --env-id ...

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
from .networks import ActorCritic
from .spaces import ActionLayout, Obs, ObservationLayout, cat_obs, map_obs, stack_obs
from .team import Team

__all__ = ["Args", "ArgumentError", "main", "train"]


@dataclass
class Args(CommonArgs):
    """Trains PPO with an MLP policy, which has no memory."""

    algorithm: ClassVar[str] = "ppo-mlp"
    default_obs: ClassVar[str] = "state"

    hidden_sizes: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critic."""

    def check(self) -> None:
        """Raises ``ArgumentError`` where a value cannot work, before anything has been made."""
        super().check()
        require(self, "hidden_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")

    def check_minibatches(self) -> None:
        """Raises ``ArgumentError`` where a rollout cannot be shared out to minibatches."""
        if self.batch_size % self.num_minibatches:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} does not divide the batch, --num-envs {self.num_envs} x "
                f"--num-steps {self.num_steps} = {self.batch_size}; "
                f"use {nearest_divisor(self.batch_size, self.num_minibatches)}"
            )
        if self.batch_size // self.num_minibatches < 2 and self.normalize_advantages:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} leaves one transition to a minibatch, too few to normalise "
                f"its advantage; use at most {self.batch_size // 2}, or --no-normalize-advantages"
            )


@dataclass
class Rollout:
    """S steps of N environments, on the learner's device."""

    obs: Obs  # (S, N, …) raw
    actions: Tensor  # (S, N, A) as sampled, before clamping
    log_probs: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    truncated: Tensor  # (S, N) bool
    last_obs: Obs  # (N, …), where the next rollout goes on
    final_obs: Obs | None  # (K, …) last observations of truncated episodes, in the order of truncated.nonzero()


@torch.no_grad()
def rollout(
    env: Any,
    policy: ActorCritic,
    obs: Obs,
    num_steps: int,
    generator: torch.Generator,
    stats: EpisodeStats,
    team: Team | None = None,
) -> Rollout:
    """Plays ``num_steps`` steps from ``obs`` (N, …) with sampled actions and automatic resets."""
    device, n, steps = policy.device, env.num_envs, num_steps
    observations: list[Obs] = []
    actions = torch.empty((steps, n, policy.action_dim), device=device, dtype=policy.action.dtype)
    log_probs, rewards = torch.empty((2, steps, n), device=device).unbind()
    terminated, truncated = torch.empty((2, steps, n), dtype=torch.bool, device=device).unbind()
    final_obs: list[Obs] = []
    for t in range(steps):
        observations.append(map_obs(lambda x: x.to(device, copy=True), obs))
        actions[t], log_probs[t] = policy.sample(observations[t], generator, team)
        obs, reward, ends, cuts, info = env.step(policy.action.to_env(actions[t]).to(env.device))
        rewards[t], terminated[t], truncated[t] = reward, ends, cuts
        if cuts.any():
            final_obs.append(map_obs(lambda x: x[cuts].to(device), info["final_observation"]))  # noqa: B023  used at once
        stats.record(info, ends | cuts)
    return Rollout(
        stack_obs(observations),
        actions,
        log_probs,
        rewards,
        terminated,
        truncated,
        map_obs(lambda x: x.to(device, copy=True), obs),
        cat_obs(final_obs) if final_obs else None,
    )


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    batch: Rollout,
    args: Args,
    generator: torch.Generator,
    team: Team | None = None,
) -> dict[str, float]:
    """One PPO update from a rollout; returns figures for the log."""
    team = team or Team()
    with torch.no_grad():
        obs = policy.normalize(batch.obs)  # once: the normaliser does not change during an update
        values = policy.critic(policy.encode(obs)).squeeze(-1)
        final_values = torch.zeros_like(values)
        if batch.final_obs is not None:
            final_values[batch.truncated] = policy.value(batch.final_obs)
        advantages, returns = compute_gae(
            batch.rewards,
            values,
            policy.value(batch.last_obs),
            final_values,
            batch.terminated,
            batch.truncated,
            args.gamma,
            args.gae_lambda,
        )
    obs = map_obs(lambda x: x.flatten(0, 1), obs)
    actions = batch.actions.flatten(0, 1)
    recorded = Recorded(batch.log_probs.flatten(), advantages.flatten(), returns.flatten())
    # A transition's number counts those of all processes, step by step: own_row tells where it is here, or -1.
    steps, n = batch.rewards.shape
    number = torch.arange(steps * n * team.size, device=batch.rewards.device).view(steps, -1)[:, team.rows(n)].flatten()
    own_row = torch.full((steps * n * team.size,), -1, device=number.device)
    own_row[number] = torch.arange(steps * n, device=number.device)
    metrics: list[Tensor] = []
    stopped = False
    for _ in range(args.update_epochs):
        order = torch.randperm(args.batch_size, generator=generator, device=number.device)
        for chosen in order.chunk(args.num_minibatches):
            index = own_row[chosen]
            index = index[index >= 0]
            evaluated = policy.evaluate(map_obs(lambda x: x[index], obs), actions[index])  # noqa: B023  used at once
            step = ppo_step(policy, optimizer, *evaluated, recorded[index], len(chosen), args, team)
            if step is None:
                stopped = True
                break
            metrics.append(step)
        if stopped:
            break
    row = summarize_losses(metrics, values, returns)
    if not policy.action.sizes:
        row["loss/action_std"] = float(policy.log_std.detach().exp().mean())
    return row


class Learner:
    """PPO-MLP as `training` drives it."""

    def __init__(self, args: Args, setting: training.Setting) -> None:
        self.args, self.generator, self.team = args, setting.generator, setting.team
        self.policy = ActorCritic(
            ObservationLayout.of(setting.observation_space),
            ActionLayout.of(setting.action_space),
            args.hidden_sizes,
            args.normalize_obs,
            args.init_log_std,
        ).to(setting.device)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=args.learning_rate, eps=1e-5
        )

    def begin(self, starts: Tensor) -> None:
        """Where episodes begin does not matter without memory."""

    def explore(self, obs: Obs) -> Tensor:
        """Sampled actions (N, A) for observations (N, …)."""
        here = map_obs(lambda x: x.to(self.policy.device), obs)
        return self.policy.action.to_env(self.policy.sample(here, self.generator, self.team)[0])

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See `rollout`."""
        return rollout(env, self.policy, obs, self.args.num_steps, self.generator, stats, self.team)

    def update(self, batch: Rollout) -> dict[str, float]:
        """See `update`."""
        return update(self.policy, self.optimizer, batch, self.args, self.generator, self.team)

    def player(self) -> tuple[Callable[[Any], Tensor], Callable[[], None]]:
        """The policy; it has nothing to forget."""
        return self.policy.act, lambda: None


def train(args: Args, env_factory: EnvFactory, command: Sequence[str] = (), team: Team | None = None) -> dict[str, Any]:
    """Trains, evaluates and fills the run folder; see `training.train`."""
    return training.train(args, env_factory, Learner, command, team)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return training.run_command(Args, train, argv, f"{__package__}.ppo_mlp")


if __name__ == "__main__":
    sys.exit(main())
