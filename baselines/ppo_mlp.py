"""PPO with a network without memory (Schulman et al., 2017, arXiv 1707.06347) on batched environments.

    mikasa train ppo-mlp --env-id RememberColor3-v0

Top to bottom: a rollout, an update, and the class that `training` runs. The formulas that PPO-LSTM uses too
are in `ppo` and `advantages`, the arguments in `ppo_arguments`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import mikasa_suite
from mikasa_robo import tensors

from . import training
from .advantages import compute_gae
from .arguments import ArgumentError
from .distributed import DistContext
from .distributions import Gaussian
from .environments import EnvFactory
from .exploration import NoiseSource
from .loggers import EpisodeStats
from .ppo import PPO, minibatches, part_loss, rescale_values, standardize, summarize, take_step, value_unit
from .ppo_arguments import PPOArgs
from .ppo_arguments import PPOMLPArgs as Args
from .protocol import FeedForwardNetwork
from .spaces import Obs, batch_size, cat_tensors, map_tensors, stack_tensors
from .threads import BatchThreads

__all__ = ["PPOMLP", "Args", "ArgumentError", "main", "train"]


@dataclass
class Rollout:
    """S steps of N environments, on the device of the network."""

    obs: Obs  # (S, N, …) raw
    actions: Tensor  # (S, N, A) as sampled, before clamping
    log_probs: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    truncated: Tensor  # (S, N) bool
    last_obs: Obs  # (N, …) raw, the next rollout starts from it
    final_obs: Obs | None  # (K, …) raw, last observations of truncated episodes, in the order of truncated.nonzero()
    carried: Tensor | None = None  # (S, N, A) smooth noise of the step before, in standard deviations


@torch.no_grad()
def rollout(
    env: Any,
    network: FeedForwardNetwork,
    obs: Obs,
    num_steps: int,
    generator: torch.Generator,
    stats: EpisodeStats,
    dist: DistContext | None = None,
    noise: NoiseSource | None = None,
) -> Rollout:
    """Play ``num_steps`` steps from raw observations ``obs`` (N, …) with sampled actions and automatic resets."""
    noise = noise or NoiseSource(network, generator, dist or DistContext())
    device, action, n = network.device, network.action, env.num_envs
    observations: list[Obs] = []
    actions = torch.empty((num_steps, n, action.dim), device=device, dtype=action.dtype)
    log_probs, rewards = torch.empty((2, num_steps, n), device=device).unbind()
    terminated, truncated = torch.empty((2, num_steps, n), dtype=torch.bool, device=device).unbind()
    final_obs: list[Obs] = []  # (N, …) or fewer rows, and which of them are of truncated episodes
    final_cuts: list[Tensor] = []
    carried: list[Tensor] = []

    for t in range(num_steps):
        observations.append(map_tensors(lambda x: x.to(device, copy=True), obs))
        distribution = network.action_distribution(network.normalize(observations[t]))
        actions[t], log_probs[t], before = noise.act(distribution, n)
        if before is not None:
            carried.append(before)
        obs, reward, ends, cuts, info = env.step(action.to_env(actions[t]).to(env.device))
        rewards[t], terminated[t], truncated[t] = reward, ends, cuts
        stats.record(info, ends | cuts)
        if "final_observation" in info:
            last = info["final_observation"]
            if not tensors.reads_wait(cuts.device):
                # On a GPU all rows are kept until the end: the host would have to wait to know how many are wanted.
                last, cuts = map_tensors(lambda x: x[cuts], last), cuts[cuts]  # noqa: B023  used at once
            final_obs.append(map_tensors(lambda x: x.to(device), last))
            final_cuts.append(cuts.to(device))

    kept = torch.cat(final_cuts) if final_cuts else torch.zeros(0)
    return Rollout(
        stack_tensors(observations),
        actions,
        log_probs,
        rewards,
        terminated,
        truncated,
        map_tensors(lambda x: x.to(device, copy=True), obs),
        map_tensors(lambda x: x[kept], cat_tensors(final_obs)) if kept.any() else None,
        torch.stack(carried) if carried else None,
    )


def update(
    network: FeedForwardNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Rollout,
    args: Args,
    generator: torch.Generator,
    dist: DistContext | None = None,
    warming: bool = False,
) -> dict[str, float]:
    """One PPO update from a rollout, with ``warming`` of the critic alone; returns figures for the log."""
    dist = dist or DistContext()
    with BatchThreads(network, args.compile) as threads:
        with torch.no_grad():
            obs = network.normalize(batch.obs)  # once: the statistics do not change during an update
            values = values_of(network, obs, threads)
            final_values = torch.zeros_like(values)
            if batch.final_obs is not None:
                final_values[batch.truncated] = network.value(network.normalize(batch.final_obs))
            advantages, returns = compute_gae(
                batch.rewards,
                values,
                network.value(network.normalize(batch.last_obs)),
                final_values,
                batch.terminated,
                batch.truncated,
                args.gamma,
                args.gae_lambda,
            )
            values = values + rescale_values(network, returns, dist)
            unit = value_unit(network)

        # The transitions of all steps and environments in one row.
        n = batch.rewards.shape[1]
        obs = map_tensors(lambda x: x.flatten(0, 1), obs)
        actions, old_log_probs = batch.actions.flatten(0, 1), batch.log_probs.flatten()
        flat_advantages, flat_returns, flat_values = advantages.flatten(), returns.flatten(), values.flatten()
        carried = None if batch.carried is None else batch.carried.flatten(0, 1)
        figures: list[Tensor] = []
        for chosen in minibatches(args.batch_size, args, generator, batch.rewards.device):
            count, index = len(chosen), dist.own_transitions(chosen, n)
            standardized = standardize(flat_advantages[index], args, dist)

            def loss(rows: slice) -> tuple[Tensor, Tensor]:
                part = index[rows]  # noqa: B023  all are used at once
                seen = map_tensors(lambda x: x[part], obs)
                if carried is None:
                    evaluated = network.evaluate(seen, actions[part])
                else:
                    evaluated = evaluate_smooth(network, seen, actions[part], carried[part], args.noise_correlation)
                old, targets, values = old_log_probs[part], flat_returns[part], flat_values[part]
                return part_loss(evaluated, old, standardized[rows], targets, count, args, values, unit, warming)  # noqa: B023

            found = threads.backward(len(index), loss)
            if not take_step(network, optimizer, found, len(figures), args, dist, warming):
                break
            figures.append(found)
    return summarize(figures, values, returns, network, optimizer, dist)


def evaluate_smooth(
    network: Any, obs: Obs, actions: Tensor, carried: Tensor, correlation: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `protocol.FeedForwardNetwork.evaluate`, of actions (B, A) given the noise (B, A) of the steps before."""

    def condition(distribution: Gaussian) -> Gaussian:
        return distribution.given(carried, correlation)

    evaluated: tuple[Tensor, Tensor, Tensor] = network.evaluate(obs, actions, condition)
    return evaluated


def values_of(network: FeedForwardNetwork, obs: Obs, threads: BatchThreads) -> Tensor:
    """Values (S, N) of normalised observations (S, N, …), without gradients."""

    @torch.no_grad()  # which holds for one thread
    def part(rows: slice) -> Tensor:
        return network.value(map_tensors(lambda x: x[rows], obs))

    return torch.cat(threads.run(batch_size(obs), part))


class PPOMLP(PPO):
    """PPO-MLP as `training` runs it; see `protocol.Algorithm`."""

    args_type: ClassVar[type[PPOArgs]] = Args
    recurrent = False

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See the function of that name."""
        steps = self.args.num_steps
        return rollout(env, self.network, obs, steps, self.generator, stats, self.dist, self.noise)

    def update(self, batch: Rollout) -> dict[str, float]:
        """See the function of that name."""
        row = update(self.network, self.optimizer, batch, self.args, self.generator, self.dist, self.warming)
        return self.with_std(row)


def train(
    args: Args, env_factory: EnvFactory, command: Sequence[str] = (), dist: DistContext | None = None
) -> dict[str, Any]:
    """Train, evaluate and fill the run folder; see `training.train`."""
    return training.train(args, env_factory, command, dist)


def main(argv: Sequence[str] | None = None) -> int:
    """``mikasa train ppo-mlp``; returns the exit status."""
    from mikasa_robo.baselines.command import main

    return main(Args.algorithm, argv)


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
