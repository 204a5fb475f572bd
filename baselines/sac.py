"""Soft actor-critic (Haarnoja et al., 2018, arXiv 1812.05905), with an expert's transitions as in RLPD (Ball et al., 2023,
arXiv 2302.02948): the off-policy reference.

    mikasa train sac --env-id RotateLenientPos-v0                           # from nothing
    mikasa train sac --env-id RotateLenientPos-v0 --expert-steps 20000      # RLPD

RLPD is SAC with three things: half of each minibatch are transitions of an expert (`replay.sample_symmetric`), the critics
have normalised layers, and a target is the minimum over a few of an ensemble of critics, whose mean the actor follows.
Environments are stepped in batches, so there are fewer gradient steps for an environment step than in the paper.

Top to bottom: a rollout, the losses, a gradient step, and the class that `training` runs. Arguments are in `sac_arguments`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

import mikasa_suite

from . import training
from .arguments import ArgumentError
from .dataset import DIGEST, require_same_dataset
from .demonstrations import NoisyExpert, read_transitions
from .distributed import DistContext
from .divergence import diverged
from .environments import EnvFactory
from .loggers import EpisodeStats
from .networks import NetworkPolicy, make_network
from .protocol import Setup
from .registry import get_network
from .replay import NEXT_OBS, OBS, ReplayBuffer, Transitions, observation_of, sample_symmetric, with_observation
from .sac_arguments import SACArgs
from .sac_network import SACNetwork
from .spaces import Obs, map_tensors, stack_tensors

__all__ = ["SAC", "Rollout", "critic_targets", "main", "rollout", "train"]


@dataclass
class Rollout:
    """S steps of N environments, on the device of the network."""

    obs: Obs  # (S, N, …) raw
    next_obs: Obs  # (S, N, …) raw, after the step; where an episode ended the last observation of that episode
    actions: Tensor  # (S, N, A) as they were carried out, in [-1, 1]
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    last_obs: Obs  # (N, …) raw, the next rollout starts from it

    def transitions(self) -> Transitions:
        """The S x N transitions, in the order of time."""
        found = {"actions": self.actions, "rewards": self.rewards, "terminated": self.terminated}
        found |= with_observation(self.obs, OBS) | with_observation(self.next_obs, NEXT_OBS)
        return {name: value.flatten(0, 1) for name, value in found.items()}


@torch.no_grad()
def rollout(
    env: Any,
    network: SACNetwork,
    obs: Obs,
    starts: Tensor,
    num_steps: int,
    act: Callable[[Obs, Tensor], Tensor],
    stats: EpisodeStats,
) -> tuple[Rollout, Tensor]:
    """Play from raw observations ``obs`` (N, …) with automatic resets.

    Args:
        env: N environments.
        network: its device is where the rollout is.
        obs: of the present step.
        starts: (N,) bool, an episode begins with them.
        num_steps: S.
        act: actions (N, A), not yet clamped, for observations and ``starts``.
        stats: is told of each step.

    Returns:
        The rollout, and ``starts`` of the step after it.
    """
    device = network.device
    rows: list[tuple[Obs, Obs]] = []
    steps: list[tuple[Tensor, ...]] = []  # action, reward, terminated
    for _ in range(num_steps):
        seen = map_tensors(lambda x: x.to(device, copy=True), obs)
        action = network.action.to_env(act(seen, starts))
        obs, reward, ends, cuts, info = env.step(action.to(env.device))
        over = ends | cuts
        stats.record(info, over)
        after = _last_of_episodes(obs, info["final_observation"], over) if "final_observation" in info else obs
        rows.append((seen, map_tensors(lambda x: x.to(device, copy=True), after)))
        steps.append((action, reward.to(device, torch.float32), ends.to(device)))
        starts = over.to(device)
    actions, rewards, terminated = (torch.stack(part) for part in zip(*steps, strict=True))
    before, after = (stack_tensors(part) for part in zip(*rows, strict=True))
    last = map_tensors(lambda x: x.to(device, copy=True), obs)
    return Rollout(before, after, actions, rewards, terminated, last), starts


def _last_of_episodes(obs: Obs, final: Obs, over: Tensor) -> Obs:
    """Observations (N, …) after a step, before the resets: ``final`` where an episode is over."""
    if isinstance(obs, dict):
        assert isinstance(final, dict)
        return {name: _choose(over, final[name], value) for name, value in obs.items()}
    return _choose(over, cast(Tensor, final), obs)


def _choose(over: Tensor, final: Tensor, obs: Tensor) -> Tensor:
    return torch.where(over.view(-1, *[1] * (obs.ndim - 1)), final, obs)


def critic_targets(
    rewards: Tensor, terminated: Tensor, next_q: Tensor, next_log_prob: Tensor | None, temperature: Tensor, gamma: float
) -> Tensor:
    """r + gamma (min Q - temperature log pi), (B,); a terminated episode has no later part, and a truncated one has.

    Args:
        rewards: (B,).
        terminated: (B,) bool.
        next_q: (K, B) by the chosen target critics, of an action sampled in the state after.
        next_log_prob: (B,) of that action; None where entropy does not count.
        temperature: ().
        gamma: discount.
    """
    later = next_q.min(dim=0).values
    if next_log_prob is not None:
        later = later - temperature * next_log_prob
    return rewards + gamma * (~terminated).to(rewards.dtype) * later


class SAC:
    """SAC as `training` runs it; see `protocol.Algorithm`."""

    args_type: ClassVar[type[SACArgs]] = SACArgs
    samples_actions: ClassVar[bool] = True
    """See `protocol.Algorithm.make_policy`."""
    network_type: ClassVar[type] = SACNetwork
    """See `protocol.Algorithm`."""

    def __init__(self, args: SACArgs, setup: Setup) -> None:
        self.args, self.generator, self.dist = args, setup.generator, setup.dist
        if not issubclass(get_network(args.network_name).load(), self.network_type):
            raise ArgumentError(
                f"--network {args.network_name} cannot be used; use sac, or a class derived from sac_network.SACNetwork"
            )
        network = cast(SACNetwork, make_network(args, setup, recurrent=False))
        self.network: Any = network
        self.log_temperature = torch.tensor(args.init_temperature, device=setup.device).log().requires_grad_()
        self.target_entropy = -float(self.network.action.dim) if args.target_entropy is None else args.target_entropy
        fused = setup.device.type in ("cpu", "cuda")
        self.optimizers = {
            name: torch.optim.Adam(parameters, lr=args.learning_rate, fused=fused)
            for name, parameters in (
                ("actor", [*network.actor.parameters()]),
                ("critic", [*network.critic.parameters()]),
                ("temperature", [self.log_temperature]),
            )
        }
        self.buffer = ReplayBuffer(args.buffer_transitions)
        rollouts = -(-args.expert_steps // args.batch_size)  # the expert's last one may go beyond --expert-steps
        # Room for all of the expert: it acts at the beginning only, and what is lost does not come back.
        self.expert_buffer = ReplayBuffer(args.buffer_transitions + rollouts * args.batch_size)
        self.expert = NoisyExpert(args, setup) if args.expert_steps else None
        if args.dataset is not None:
            self._read_dataset()
        self.starts = torch.ones(setup.num_envs, dtype=torch.bool, device=setup.device)
        self.step = 0
        self.owed = 0.0
        """Gradient steps that are due; less than 1 between updates."""
        self.updates = 0

    def _read_dataset(self) -> None:
        """Keep the transitions of the dataset, and let the normaliser see them."""
        parts = [part.name for part in self.network.layout.parts]
        episodes, self.dataset_digest = read_transitions(self.args, parts)
        count = sum(len(episode["rewards"]) for episode in episodes)
        if count > self.args.buffer_transitions:
            raise ArgumentError(
                f"--dataset {self.args.dataset} has {count} transitions; use --buffer-transitions {count}, or more"
            )
        for episode in episodes:
            self.expert_buffer.add(episode)
            self.network.update_normalizer(
                map_tensors(lambda x: x.to(self.network.device), observation_of(episode, OBS))
            )

    # ------------------------------------------------------------------ what changes with time
    def schedule(self, progress: float) -> None:
        """Set the learning rate, and remember how far the run is."""
        self.step = round(progress * self.args.total_timesteps)
        if self.args.anneal_lr:
            for optimizer in self.optimizers.values():
                optimizer.param_groups[0]["lr"] = self.args.learning_rate * (1.0 - progress)

    def on_episode_start(self, starts: Tensor) -> None:
        """In the environments where ``starts`` (N,) bool is True an episode begins with the next observation."""
        self.starts = self.starts | starts.to(self.network.device)

    @property
    def expert_acts(self) -> bool:
        """Whether the expert acts in the next rollout, or acted in the present one."""
        return self.step < self.args.expert_steps

    @property
    def at_random(self) -> bool:
        """Whether actions are drawn uniformly in the next rollout."""
        return not self.expert_acts and self.step < self.args.expert_steps + self.args.random_steps

    # ------------------------------------------------------------------ rollout
    def act(self, obs: Obs, starts: Tensor) -> Tensor:
        """Actions (N, A) for raw observations (N, …) in training: the expert's, random ones, or the policy's."""
        if self.expert_acts and self.expert is not None:
            return self.expert.act(obs, starts)
        network = self.network
        if self.at_random:
            shape = len(starts), network.action.dim
            return 2.0 * torch.rand(shape, generator=self.generator, device=network.device) - 1.0
        noise = network.sample_noise(len(starts), self.generator, self.dist)
        actions: Tensor = network.action_distribution(network.normalize(obs)).sample(noise)
        return actions

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See the function of that name."""
        batch, self.starts = rollout(env, self.network, obs, self.starts, self.args.num_steps, self.act, stats)
        return batch

    # ------------------------------------------------------------------ update
    def update(self, batch: Rollout) -> dict[str, float]:
        """Keep the transitions of a rollout, and take the gradient steps that are due; returns figures for the log."""
        transitions = batch.transitions()
        (self.expert_buffer if self.expert_acts else self.buffer).add(transitions)
        found: list[dict[str, Tensor]] = []
        if not (self.expert_acts or self.at_random):
            self.owed += self.args.utd_ratio * len(transitions["rewards"])
            due = int(self.owed)
            self.owed -= due
            for _ in range(due):
                self.updates += 1
                found.append(self.gradient_step(self.updates % self.args.policy_delay == 0))
        return self._figures(found)

    def gradient_step(self, with_actor: bool) -> dict[str, Tensor]:
        """One step of the critics, and of actor and temperature if asked for; returns figures, () each."""
        args, network = self.args, self.network
        drawn = sample_symmetric(
            self.buffer, self.expert_buffer, args.batch_transitions, args.expert_ratio, self.generator
        )
        drawn = {name: value.to(network.device) for name, value in drawn.items()}
        with torch.no_grad():
            obs, next_obs = (network.normalize(observation_of(drawn, prefix)) for prefix in (OBS, NEXT_OBS))
        loss, figures = self.critic_loss(obs, next_obs, drawn)
        self._descend("critic", loss)
        if with_actor:
            loss, log_prob = self.actor_loss(obs)
            self._descend("actor", loss)
            entropy = -log_prob.mean()
            self._descend("temperature", self.log_temperature.exp() * (entropy - self.target_entropy))
            figures |= {"loss/actor": loss.detach(), "loss/entropy": entropy}
        network.move_targets(args.tau)
        return figures

    def critic_loss(self, obs: Obs, next_obs: Obs, drawn: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error (), summed over the critics, and figures of it.

        Args:
            obs, next_obs: normalised, (B, …).
            drawn: the minibatch that they are of.
        """
        args, network, device = self.args, self.network, self.network.device
        with torch.no_grad():
            action, log_prob = self._sample(next_obs)
            chosen = torch.randperm(args.num_critics, generator=self.generator, device=device)[: args.min_critics]
            targets = critic_targets(
                drawn["rewards"],
                drawn["terminated"],
                network.target_q_values(next_obs, action)[chosen],
                log_prob if args.entropy_backup else None,
                self.log_temperature.exp(),
                args.gamma,
            )
        q = network.q_values(obs, drawn["actions"])
        loss = (q - targets).square().mean(dim=1).sum()
        return loss, {"loss/critic": loss.detach() / args.num_critics, "loss/q": q.detach().mean()}

    def actor_loss(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """temperature log pi - mean Q (), with gradients of the actor alone, and log pi (B,) without gradients."""
        action, log_prob = self._sample(obs)
        self.network.critic.requires_grad_(False)
        q = self.network.q_values(obs, action).mean(dim=0)
        self.network.critic.requires_grad_(True)
        return (self.log_temperature.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def _sample(self, obs: Obs) -> tuple[Tensor, Tensor]:
        distribution = self.network.action_distribution(obs)
        noise = torch.randn(distribution.mean.shape, generator=self.generator, device=self.network.device)
        found: tuple[Tensor, Tensor] = distribution.sample_with_log_prob(noise)
        return found

    def _descend(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def _figures(self, found: list[dict[str, Tensor]]) -> dict[str, float]:
        row = {
            "replay/own_transitions": float(len(self.buffer)),
            "replay/expert_transitions": float(len(self.expert_buffer)),
            "loss/gradient_steps": float(len(found)),
            "learning_rate": self.optimizers["actor"].param_groups[0]["lr"],
        }
        for name in sorted({name for figures in found for name in figures}):
            row[name] = float(torch.stack([figures[name] for figures in found if name in figures]).mean())
            if not torch.tensor(row[name]).isfinite():
                first = torch.stack([*found[0].values()])
                learnt_before = self.updates > len(found) or bool(first.isfinite().all())
                fix = "use a smaller --learning-rate, or check the rewards"
                raise diverged("a loss is infinite or NaN", learnt_before, fix)
        if found:
            row["loss/temperature"] = float(self.log_temperature.detach().exp())
        return row

    # ------------------------------------------------------------------ saving
    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the network."""
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "log_temperature": self.log_temperature.detach().clone(),
            "buffer": self.buffer.state_dict() if self.args.checkpoint_buffer else None,
            "expert_buffer": self.expert_buffer.state_dict(),
            "updates": self.updates,
            "owed": self.owed,
            **({} if self.args.dataset is None else {DIGEST: self.dataset_digest}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises ArgumentError where the dataset is another one now."""
        if self.args.dataset is not None:
            require_same_dataset(state, self.args.dataset, self.dataset_digest)
        for name, optimizer in self.optimizers.items():
            # A copy, because the optimizer keeps using the tensors that it is given.
            optimizer.load_state_dict(copy.deepcopy(state["optimizers"][name]))
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        if state["buffer"] is not None:
            self.buffer.load_state_dict(state["buffer"])
        self.expert_buffer.load_state_dict(state["expert_buffer"])
        self.updates, self.owed = state["updates"], state["owed"]

    @staticmethod
    def make_policy(network: Any) -> NetworkPolicy:
        """The network by the action of its mean."""
        return NetworkPolicy(network)

    def eval_policy(self) -> NetworkPolicy:
        """The present policy, for an evaluation."""
        return self.make_policy(self.network)


def train(
    args: SACArgs, env_factory: EnvFactory, command: Sequence[str] = (), dist: DistContext | None = None
) -> dict[str, Any]:
    """Train, evaluate and fill the run folder; see `training.train`."""
    return training.train(args, env_factory, command, dist)


def main(argv: Sequence[str] | None = None) -> int:
    """``mikasa train sac``; returns the exit status."""
    from mikasa_robo.baselines.command import main

    return main(SACArgs.algorithm, argv)


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
