"""PPO with a recurrent network on batched environments: the agent with memory, an LSTM unless ``--memory`` names another.

    mikasa train ppo-lstm --env-id RememberColor3-v0 --obs objects+joints
    mikasa train ppo --memory gru --env-id RememberColor3-v0 --obs objects+joints
    mikasa train ppo-lstm --env-id MemoryLengthEasy-v0

A rollout starts from the recurrent state that the last one ended with; the state is reset only where an episode begins. An
update runs the network over whole rollouts of some of the environments, from the state that was stored at their start. So
before its first gradient step it computes exactly the log-probabilities and values that were recorded. Only the first update
of a new network does not: it normalises observations by what the first rollout saw.

Top to bottom: a rollout, an update, and the class that `training` runs. The formulas that PPO-MLP uses too
are in `ppo` and `advantages`, the arguments in `ppo_arguments`.
"""

from __future__ import annotations

import sys
import warnings
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
from .networks import NetworkPolicy
from .oracle_teacher import OracleTeacher
from .ppo import (
    PPO,
    PPO_FIGURES,
    minibatches,
    part_loss,
    rescale_values,
    standardize,
    summarize,
    take_step,
    value_unit,
)
from .ppo_arguments import PPOArgs, PPOMemoryArgs, RecurrentPPOArgs
from .ppo_arguments import PPOLSTMArgs as Args
from .protocol import RecurrentNetwork, Setup
from .spaces import Obs, State, map_tensors, stack_tensors
from .threads import BatchThreads

__all__ = ["PPOLSTM", "Args", "ArgumentError", "PPOMemory", "Player", "main", "train"]


@dataclass
class Rollout:
    """S steps of N environments, on the device of the network."""

    obs: Obs  # (S, N, …) raw
    starts: Tensor  # (S, N) bool, an episode begins with that observation
    state: State  # (N, …) recurrent state before the first step
    actions: Tensor  # (S, N, A) as sampled, before clamping
    log_probs: Tensor  # (S, N)
    values: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    truncated: Tensor  # (S, N) bool
    final_values: Tensor  # (S, N) where truncated: value of the episode's last observation, with its recurrent state
    last_obs: Obs  # (N, …) raw, the next rollout starts from it
    last_starts: Tensor  # (N,) bool, likewise
    last_state: State  # (N, …), likewise
    last_value: Tensor  # (N,) value of last_obs
    carried: Tensor | None = None  # (S, N, A) smooth noise of the step before, in standard deviations
    oracle: Tensor | None = None  # (S, N, d) what has to be remembered, where a teacher asks
    known: Tensor | None = None  # (S, N) bool, it can be known, likewise


@torch.no_grad()
def rollout(
    env: Any,
    network: RecurrentNetwork,
    obs: Obs,
    starts: Tensor,
    state: State,
    num_steps: int,
    generator: torch.Generator,
    stats: EpisodeStats,
    dist: DistContext | None = None,
    noise: NoiseSource | None = None,
    teacher: OracleTeacher | None = None,
) -> Rollout:
    """Play ``num_steps`` steps with sampled actions and automatic resets.

    Args:
        obs: (N, …) raw observations to start from.
        starts: (N,) bool, an episode begins with ``obs``.
        state: (N, …) recurrent state before ``obs``.
        teacher: is told what has to be remembered.
    """
    noise = noise or NoiseSource(network, generator, dist or DistContext())
    device, action, n = network.device, network.action, env.num_envs
    first_state = state
    observations: list[Obs] = []
    actions = torch.empty((num_steps, n, action.dim), device=device, dtype=action.dtype)
    log_probs, values, rewards = torch.empty((3, num_steps, n), device=device).unbind()
    final_values = torch.zeros((num_steps, n), device=device)
    carried: list[Tensor] = []
    told: list[tuple[Tensor, Tensor]] = []
    info = {} if teacher is None else teacher.task.get_info()
    begun, terminated, truncated = torch.empty((3, num_steps, n), dtype=torch.bool, device=device).unbind()

    for t in range(num_steps):
        observations.append(map_tensors(lambda x: x.to(device, copy=True), obs))
        begun[t] = starts
        distribution, values[t], state = network.step(network.normalize(observations[t]), state, begun[t])
        actions[t], log_probs[t], before = noise.act(distribution, n)
        if before is not None:
            carried.append(before)
        if teacher is not None:
            told.append(teacher.tell(info))
        obs, reward, ends, cuts, info = env.step(action.to_env(actions[t]).to(env.device))
        rewards[t], terminated[t], truncated[t] = reward, ends, cuts
        starts = ends | cuts
        stats.record(info, starts)
        if "final_observation" in info:
            final_values[t] = value_of_truncated(network, info["final_observation"], state, cuts)
        if teacher is not None and "cut_short" in info:  # these were reset after `info` had been made
            info = teacher.task.get_info()

    obs = map_tensors(lambda x: x.to(device, copy=True), obs)
    starts = starts.to(device)
    return Rollout(
        stack_tensors(observations),
        begun,
        first_state,
        actions,
        log_probs,
        values,
        rewards,
        terminated,
        truncated,
        final_values,
        obs,
        starts,
        state,
        network.step(network.normalize(obs), state, starts)[1],
        torch.stack(carried) if carried else None,
        *((torch.stack(part) for part in zip(*told, strict=True)) if told else ()),
    )


def value_of_truncated(network: RecurrentNetwork, obs: Obs, state: State, truncated: Tensor) -> Tensor:
    """Values (N,) of the last observations of truncated episodes, 0 elsewhere.

    Args:
        obs: (N, …) raw last observations, read where an episode was truncated.
        state: (N, …) recurrent state of these episodes.
        truncated: (N,) bool, on the device of the environment.
    """
    device = network.device
    values = torch.zeros(len(truncated), device=device)
    if not tensors.reads_wait(truncated.device):
        rows = truncated.nonzero().squeeze(1)
        if len(rows):
            last = network.normalize(map_tensors(lambda x: x[rows].to(device), obs))
            here = rows.to(device)
            going_on = torch.zeros(len(rows), dtype=torch.bool, device=device)
            values[here] = network.step(last, map_tensors(lambda x: x[here], state), going_on)[1]
        return values
    # On a GPU all rows are evaluated: the host would have to wait to know how many are wanted.
    last = network.normalize(map_tensors(lambda x: x.to(device), obs))
    going_on = torch.zeros(len(truncated), dtype=torch.bool, device=device)
    return torch.where(truncated.to(device), network.step(last, state, going_on)[1], values)


def update(
    network: RecurrentNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Rollout,
    args: RecurrentPPOArgs,
    generator: torch.Generator,
    dist: DistContext | None = None,
    warming: bool = False,
    teacher: OracleTeacher | None = None,
) -> dict[str, float]:
    """One PPO update from a rollout, with ``warming`` of the critic alone; returns figures for the log.

    A ``teacher`` adds its loss. In the warm-up only its read-out learns, and the memory does not change: the gradients of a
    read-out that knows nothing yet would spoil a memory that was learnt before.
    """
    dist = dist or DistContext()
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
        obs = network.normalize(batch.obs)  # once: the statistics do not change during an update
        old_values = batch.values + rescale_values(network, returns, dist)
        unit = value_unit(network)
    if teacher is not None:
        assert batch.oracle is not None
        teacher.learn_scale(batch.oracle, dist)
    figures: list[Tensor] = []
    with BatchThreads(network if teacher is None else teacher, args.compile) as threads:
        for chosen in minibatches(n * dist.size, args, generator, batch.rewards.device):
            count, envs = steps * len(chosen), dist.own_envs(chosen, n)
            standardized = standardize(advantages[:, envs], args, dist)

            def loss(rows: slice) -> tuple[Tensor, Tensor]:
                part = envs[rows]  # noqa: B023  all are used at once
                evaluated, y = evaluate(network, obs, batch, part, args.noise_correlation, teacher is not None)
                old, targets, values = batch.log_probs[:, part], returns[:, part], old_values[:, part]
                advantage = standardized[:, rows]  # noqa: B023
                term, found = part_loss(evaluated, old, advantage, targets, count, args, values, unit, warming)  # noqa: B023
                if teacher is None:
                    return term, found
                assert y is not None
                assert batch.oracle is not None
                assert batch.known is not None
                y = y.detach() if warming else y
                lesson, told = teacher.loss(y, batch.oracle[:, part], batch.known[:, part], count)  # noqa: B023
                return term + lesson, torch.cat([found, told])

            found = threads.backward(len(envs), loss)
            if not take_step(network, optimizer, found, len(figures), args, dist, warming):
                break
            if teacher is not None:
                teacher.step(dist)
            figures.append(found)
    row = summarize([found[:PPO_FIGURES] for found in figures], batch.values, returns, network, optimizer, dist)
    if teacher is not None:
        row |= teacher.describe(dist.sum(torch.stack([found[PPO_FIGURES:] for found in figures])))
    return row


def evaluate(
    network: Any, obs: Obs, batch: Rollout, envs: Tensor, correlation: float = 0.0, shows_memory: bool = False
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """What the present network makes of the rollouts of environments ``envs`` (B,), with gradients.

    Args:
        network: a `protocol.RecurrentNetwork`.
        obs: (S, N, …) normalised.
        correlation: of smooth noise, where the rollout has some.
        shows_memory: whether the outputs of the memory are wanted.

    Returns:
        Log-probability, entropy and value, (S, B) each; and the outputs of the memory (S, B, H), or None.
    """
    if not len(envs):  # this process has no share in the minibatch
        nothing = batch.rewards[:, envs]
        memory = nothing.new_zeros((*nothing.shape, network.memory.output_size)) if shows_memory else None
        return (nothing, nothing, nothing), memory
    part, state = map_tensors(lambda x: x[:, envs], obs), map_tensors(lambda x: x[envs], batch.state)
    y = None
    if shows_memory:
        distribution, value, _, y = network.forward_memory(part, state, batch.starts[:, envs])
    else:
        distribution, value, _ = network.forward_sequence(part, state, batch.starts[:, envs])
    if batch.carried is not None:
        assert isinstance(distribution, Gaussian)
        distribution = distribution.given(batch.carried[:, envs], correlation)
    return (distribution.log_prob(batch.actions[:, envs]), distribution.entropy(), value), y


class PPOLSTM(PPO):
    """PPO-LSTM as `training` runs it; see `protocol.Algorithm`."""

    args_type: ClassVar[type[PPOArgs]] = Args
    recurrent = True

    def __init__(self, args: RecurrentPPOArgs, setup: Setup) -> None:
        super().__init__(args, setup)
        self.state: State = self.network.initial_state(setup.num_envs)
        self.starts = torch.ones(setup.num_envs, dtype=torch.bool, device=setup.device)
        self.teacher = OracleTeacher(args, setup, self.network) if args.oracle_weight else None

    def on_episode_start(self, starts: Tensor) -> None:
        """In the environments where ``starts`` (N,) bool is True an episode begins with the next observation."""
        super().on_episode_start(starts)
        self.starts = starts.to(self.network.device)

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See the function of that name; continues from the recurrent state of the last rollout."""
        steps, begin = self.args.num_steps, (self.starts, self.state)
        batch = rollout(
            env, self.network, obs, *begin, steps, self.generator, stats, self.dist, self.noise, self.teacher
        )
        self.starts, self.state = batch.last_starts, batch.last_state
        return batch

    def update(self, batch: Rollout) -> dict[str, float]:
        """See the function of that name."""
        row = update(
            self.network, self.optimizer, batch, self.args, self.generator, self.dist, self.warming, self.teacher
        )
        return self.with_std(row)

    def state_dict(self) -> dict[str, Any]:
        """See `PPO.state_dict`; with the read-out of ``--oracle-weight``."""
        return super().state_dict() | ({} if self.teacher is None else {"teacher": self.teacher.save()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        if self.teacher is not None:
            self.teacher.restore(state["teacher"])


class PPOMemory(PPOLSTM):
    """PPO-LSTM under the name ``ppo``, which says nothing of a memory."""

    args_type: ClassVar[type[PPOArgs]] = PPOMemoryArgs


class Player(NetworkPolicy):
    """Deprecated: `networks.NetworkPolicy`."""

    def __init__(self, network: Any) -> None:
        warnings.warn("Player is deprecated; use networks.NetworkPolicy", DeprecationWarning, stacklevel=2)
        super().__init__(network)

    def begin(self) -> None:
        """Deprecated: `on_episode_start`."""
        self.on_episode_start()


def train(
    args: Args, env_factory: EnvFactory, command: Sequence[str] = (), dist: DistContext | None = None
) -> dict[str, Any]:
    """Train, evaluate and fill the run folder; see `training.train`."""
    return training.train(args, env_factory, command, dist)


def main(argv: Sequence[str] | None = None) -> int:
    """``mikasa train ppo-lstm``; returns the exit status."""
    from mikasa_robo.baselines.command import main

    return main(Args.algorithm, argv)


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
