"""Learning from an expert that can be asked anywhere: DAgger (Ross et al., 2011, arXiv 1011.0686) and behaviour cloning.

    mikasa train dagger --memory gru --env-id RememberColor3-v0 --obs objects+joints --env-kwargs arm=held
    mikasa train bc --memory gru --env-id RememberColor3-v0

The student acts, the expert of the task says at each step what it would do there, and the student learns that by
regression. The expert knows what has to be remembered; the student sees its own observations only, so it has to hold the
cue in its memory. This separates whether a memory *can* hold it from whether reinforcement learning finds out that it must.

DAgger begins with a warm start, in which the expert acts, with noise; behaviour cloning is nothing but that.
Top to bottom: the expert, a rollout, an update, and the classes that `training` runs. Arguments are in `dagger_arguments`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

import mikasa_suite
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core import observations
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.phases import CUE, RESPONSE
from mikasa_robo.experts.makers import PolicyName, policy_maker
from mikasa_robo.experts.policies import OBS_MODE, Policy
from mikasa_robo.experts.registry import has_skill, make_skill

from . import training
from .arguments import ArgumentError
from .dagger_arguments import BCArgs, DAggerArgs, ImitationArgs
from .distributed import DistContext
from .encoder import ObservationNormalizer
from .environments import EnvFactory
from .episodes import Episode, EpisodeBuffer, EpisodeCutter, cat_episodes
from .loggers import EpisodeStats
from .networks import NetworkPolicy, make_network
from .protocol import Setup
from .registry import get_network
from .spaces import Obs, map_tensors, stack_tensors
from .threads import BatchThreads
from .token_policy import TokenPolicy

__all__ = ["BC", "DAgger", "Labeler", "OracleReadout", "main", "train"]

OBS = "obs/"
"""Begin of the names of the parts of an observation in an `Episode`."""


class Labeler:
    """The expert of a task, or another scripted policy, asked at every step of a batch, whoever acts in it.

    It must be asked at every step: experts have stages, which go on when they are asked.

    Args:
        env_id: the ID of the task.
        task: the environment.
        seed: of the expert.
        teacher: name of the policy, see `mikasa_robo.experts.makers`.

    Raises:
        ArgumentError: the task has no expert.
    """

    def __init__(self, env_id: str, task: MemoryEnv[Any], seed: int, teacher: PolicyName = "expert") -> None:
        if not has_skill(env_id):
            known = ", ".join(sorted(name for name in CATALOG if has_skill(name)))
            raise ArgumentError(f"--env-id {env_id} has no expert to learn from; use one of {known}")
        self.task = task
        make: Any = policy_maker(teacher)  # the policies take a seed, too
        self._expert: Policy = make(make_skill(env_id, task), seed=seed)

    def reset(self, starts: Tensor) -> None:
        """Episodes begin where ``starts`` (N,) bool is True."""
        rows = starts.nonzero().squeeze(1)
        if len(rows):
            self._expert.reset(rows)

    def label(self, obs: Obs, info: Mapping[str, Any]) -> Tensor:
        """The expert's actions (N, A) in [-1, 1] at this step.

        Args:
            obs: raw observations. Where they have no objects, the task is asked what it would show.
            info: as the environment returned it with them.
        """
        if not (isinstance(obs, dict) and {"objects", "joints"} <= obs.keys()):
            obs = observations.observe(self.task, OBS_MODE, info)
        return self._expert.act(obs, info).clamp(-1.0, 1.0)


@dataclass
class Rollout:
    """S steps of N environments, on the device of the network."""

    obs: Obs  # (S, N, …) raw
    labels: Tensor  # (S, N, A) the expert's actions
    carried: Tensor  # (S, N) bool, actions were carried out: the arm was not held
    known: Tensor  # (S, N) bool, the cue is over, so that the oracle can be known
    oracle: Tensor  # (S, N, d) what has to be remembered
    over: Tensor  # (S, N) bool, the episode ended with that step
    last_obs: Obs  # (N, …) raw, the next rollout starts from it

    def steps(self) -> dict[str, Tensor]:
        """What is kept of each step, (S, N, …) each, on the CPU."""
        parts = self.obs if isinstance(self.obs, dict) else {"": self.obs}
        steps = {f"{OBS}{name}": value for name, value in parts.items()}
        steps |= {"labels": self.labels, "carried": self.carried, "known": self.known, "oracle": self.oracle}
        return {name: value.cpu() for name, value in steps.items()}


class OracleReadout(nn.Module):
    """A linear read-out of what has to be remembered from the output of a memory; see ``--oracle-weight``.

    Args:
        inputs: size H of the output.
        oracle: (N, d) an example. Whole numbers are told apart as classes, others are predicted.
        classes: number of values of whole numbers.
    """

    def __init__(self, inputs: int, oracle: Tensor, classes: int) -> None:
        super().__init__()
        self.discrete, self.size, self.classes = not oracle.is_floating_point(), oracle.shape[1], classes
        self.normalizer = ObservationNormalizer(self.size)
        self.linear = nn.Linear(inputs, self.size * (classes if self.discrete else 1))

    def forward(self, y: Tensor, oracle: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (M,) and how well it is told (M,): all classes right, or the squared error below a tenth of the variance.

        Args:
            y: (M, H).
            oracle: (M, d).
        """
        told = self.linear(y)
        if self.discrete:
            logits = told.unflatten(-1, (self.size, self.classes))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), oracle.flatten().long(), reduction="none")
            right = (logits.argmax(dim=-1) == oracle).all(dim=-1)
            return loss.view(-1, self.size).mean(dim=-1), right.float()
        error = (told - self.normalizer(oracle)).square().mean(dim=-1)
        return error, (error < 0.1).float().detach()


class _Learner(nn.Module):
    """All that has weights: the policy, and the read-out where there is one."""

    def __init__(self, network: TokenPolicy, readout: OracleReadout | None) -> None:
        super().__init__()
        self.network, self.readout = network, readout

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device


def imitation_loss(
    learner: _Learner, episodes: Sequence[Episode], count: float, args: ImitationArgs
) -> tuple[Tensor, Tensor]:
    """What some episodes add to the loss of a minibatch (), with gradients, and to its figures (4,).

    Args:
        learner: the networks.
        episodes: whole episodes.
        count: number of steps that sums are divided by.
        args: bptt, loss, huber_delta and oracle_weight.

    Returns:
        The loss; and the action loss, the read-out's loss, how often it is right, all three divided by ``count``, and the
        share of steps at which actions count.
    """
    network, device = learner.network, learner.device
    lengths = torch.tensor([len(episode["labels"]) for episode in episodes])
    steps = {name: value.to(device) for name, value in cat_episodes(episodes).items()}
    # Step m of all steps in a row is step `time` of episode `row`. Only what a memory runs over is padded.
    row = torch.arange(len(lengths)).repeat_interleave(lengths).to(device)
    time = torch.cat([torch.arange(length) for length in lengths.tolist()]).to(device)
    obs = {name.removeprefix(OBS): value for name, value in steps.items() if name.startswith(OBS)}
    with torch.no_grad():
        normalized = network.normalize(obs.get("", obs))
    embedded = network.embed(normalized)
    written = network.write(embedded)
    x = written.new_zeros((int(lengths.max()), len(lengths), written.shape[-1])).index_put((time, row), written)
    y = run_memory(network.memory, x, args.bptt)[time, row]

    chosen = steps["carried"].nonzero().squeeze(1)
    others, *objects = embedded
    tokens, visible = (None if part is None else part[chosen] for part in objects)
    means = network.actor(network.look(y[chosen], (others[chosen], tokens, visible)))
    if args.loss == "huber":
        # Divided by delta, so that the slope far off is 1 whatever delta is.
        each = nn.functional.huber_loss(means, steps["labels"][chosen], reduction="none", delta=args.huber_delta)
        each = each / args.huber_delta
    else:
        each = (means - steps["labels"][chosen]).square()
    action_loss = each.mean(dim=-1).sum() / count
    loss, zero = action_loss, torch.zeros((), device=device)
    figures = [action_loss, zero, zero, zero + len(chosen) / count]
    if learner.readout is not None:
        known = steps["known"].nonzero().squeeze(1)
        errors, right = learner.readout(y[known], steps["oracle"][known])
        loss = loss + args.oracle_weight * errors.sum() / count
        figures[1:3] = [errors.sum() / count, right.sum() / count]
    return loss, torch.stack(figures).detach()


def run_memory(memory: Any, x: Tensor, bptt: int) -> Tensor:
    """The outputs (T, B, H) of a memory for inputs (T, B, I) of whole episodes.

    Args:
        memory: a `memory.Memory`.
        x: the inputs.
        bptt: gradients do not pass multiples of this many steps; 0: they pass all.
    """
    length = len(x)
    starts = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    starts[0] = True
    state = memory.initial_state(x.shape[1])
    outputs = []
    for begin in range(0, length, bptt or length):
        part = slice(begin, begin + (bptt or length))
        y, state = memory.forward_sequence(x[part], state, starts[part])
        state = {name: value.detach() for name, value in state.items()}
        outputs.append(y)
    return torch.cat(outputs)


class Imitation:
    """Base class of both algorithms as `training` runs them; see `protocol.Algorithm`."""

    args_type: ClassVar[type[ImitationArgs]]
    student_acts: ClassVar[bool]
    """Whether the student ever acts in training."""

    def __init__(self, args: Any, setup: Setup) -> None:
        self.args = args
        task = getattr(setup.env, "unwrapped", None)
        if not isinstance(task, MemoryEnv):
            raise ArgumentError(
                f"--env-id {args.env_id} has no expert to learn from; use a robot task of `mikasa list`"
            )
        self.task: MemoryEnv[Any] = task
        if args.ignore_mistakes:
            task.on_mistake = "ignore"  # of the training environments only
        self.labeler = Labeler(args.env_id, task, args.seed, args.teacher)
        self.generator, n = setup.generator, setup.num_envs
        if not issubclass(get_network(args.network_name).load(), TokenPolicy):
            raise ArgumentError(f"--network {args.network_name} cannot be used; use tokens, or a class derived from it")
        network = cast(TokenPolicy, make_network(args, setup, recurrent=True))
        self.network: Any = network
        readout = None
        if args.oracle_weight:
            oracle = task.get_info()["oracle_info"]
            readout = OracleReadout(network.memory.output_size, oracle, len(task.objects)).to(setup.device)
        self.learner = _Learner(network, readout)
        fused = setup.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=args.learning_rate, fused=fused)
        self.buffer = EpisodeBuffer(args.buffer_episodes)
        self.cutter = EpisodeCutter(n)
        self.state = network.initial_state(n)
        self.starts = torch.ones(n, dtype=torch.bool, device=setup.device)
        self.noise = torch.zeros(n, device=setup.device)
        """(N,) standard deviation of the noise in the running episodes."""
        self.step = 0
        self.updates, self.owed = 0, 0
        """Gradient steps so far, and those that have to wait for the first whole episode."""

    # ------------------------------------------------------------------ what changes with time
    def beta(self) -> float:
        """The share of steps at which the expert acts instead of the student, in the next rollout."""
        raise NotImplementedError

    def updates_due(self) -> int:
        """Gradient steps after the rollout that was just played."""
        raise NotImplementedError

    def schedule(self, progress: float) -> None:
        """Set the learning rate, and remember how far the run is."""
        self.step = round(progress * self.args.total_timesteps)
        if self.args.anneal_lr:
            share = 1.0 - progress if self.args.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
            self.optimizer.param_groups[0]["lr"] = self.args.learning_rate * share

    def on_episode_start(self, starts: Tensor) -> None:
        """In the environments where ``starts`` (N,) bool is True an episode begins with the next observation."""
        self.starts = starts.to(self.network.device)
        self.cutter.drop(starts)

    # ------------------------------------------------------------------ rollout
    @torch.no_grad()
    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """Play ``num_steps`` steps; student or expert acts, and the expert labels all of them."""
        network, device, beta = self.network, self.network.device, self.beta()
        seen: list[Obs] = []
        rows: list[tuple[Tensor, ...]] = []  # label, carried, known, oracle, over
        info = self.task.get_info()
        for _ in range(self.args.num_steps):
            seen.append(map_tensors(lambda x: x.to(device, copy=True), obs))
            self.labeler.reset(self.starts.to(env.device))
            label = self.labeler.label(obs, info).to(device)
            action = self.act(seen[-1], label, beta)
            responding = info["phase"] == RESPONSE
            carried = responding if self.task.arm == "held" else torch.ones_like(responding)
            known, oracle = info["phase"] != CUE, info["oracle_info"].clone()
            obs, _, ends, cuts, info = env.step(network.action.to_env(action).to(env.device))
            over = ends | cuts
            stats.record(info, over)
            if "cut_short" in info:  # these were reset after `info` had been made
                info = self.task.get_info()
            self.starts = over.to(device)
            rows.append((label, carried.to(device), known.to(device), oracle.to(device), self.starts))
        last = map_tensors(lambda x: x.to(device, copy=True), obs)
        labels, carried, known, oracle, over = (torch.stack(part) for part in zip(*rows, strict=True))
        return Rollout(stack_tensors(seen), labels, carried, known, oracle, over, last)

    def act(self, obs: Obs, label: Tensor, beta: float) -> Tensor:
        """The actions (N, A) to carry out: the student's, or with probability ``beta`` the expert's with noise."""
        n, device = len(label), label.device
        spread = 2.0 * self.args.expert_noise * torch.rand(n, generator=self.generator, device=device)
        self.noise = torch.where(self.starts, spread, self.noise)
        noise = torch.randn(label.shape, generator=self.generator, device=device)
        noisy = label + self.noise[:, None] * noise
        if not self.student_acts:
            return noisy
        distribution, _, self.state = self.network.step(self.network.normalize(obs), self.state, self.starts)
        by_expert = torch.rand(n, generator=self.generator, device=device) < beta
        return torch.where(by_expert[:, None], noisy, distribution.mode())

    # ------------------------------------------------------------------ update
    def update(self, batch: Rollout) -> dict[str, float]:
        """Keep the episodes that ended, and take gradient steps on minibatches of all that are kept."""
        args, readout = self.args, self.learner.readout
        self.buffer.episodes.extend(self.cutter.add(batch.steps(), batch.over.cpu()))
        if readout is not None:
            readout.normalizer.update(batch.oracle.float())
        self.owed += self.updates_due()
        found: list[Tensor] = []
        if len(self.buffer):
            with BatchThreads(self.learner, args.compile) as threads:
                for episodes, count in self.buffer.minibatches(self.owed, args.batch_episodes, self.generator):

                    def loss(rows: slice) -> tuple[Tensor, Tensor]:
                        return imitation_loss(self.learner, episodes[rows], count, args)  # noqa: B023  used at once

                    found.append(threads.backward(len(episodes), loss))
                    nn.utils.clip_grad_norm_(self.learner.parameters(), args.max_grad_norm)
                    self.optimizer.step()
            self.updates, self.owed = self.updates + self.owed, 0
        return self._figures(found)

    def _figures(self, found: list[Tensor]) -> dict[str, float]:
        row = {
            "imitation/beta": self.beta(),
            "imitation/buffer_episodes": float(len(self.buffer)),
            "imitation/total_updates": float(self.updates),
            "loss/gradient_steps": float(len(found)),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if found:
            figures = torch.stack(found)
            if not figures.isfinite().all():
                raise FloatingPointError("a loss is infinite or NaN; use a smaller --learning-rate")
            action, oracle, right, share = figures.mean(dim=0).tolist()
            row["loss/action"] = action / max(share, 1e-9)  # the mean over the steps at which actions count
            if self.learner.readout is not None:
                row |= {"loss/oracle": oracle, "imitation/oracle_told": right}
        return row

    # ------------------------------------------------------------------ saving
    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the network."""
        readout = self.learner.readout
        return {
            "optimizer": self.optimizer.state_dict(),
            "readout": {} if readout is None else readout.state_dict(),
            "buffer": self.buffer.state_dict() if self.args.checkpoint_buffer else None,
            "updates": self.updates,
            "owed": self.owed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        if self.learner.readout is not None:
            self.learner.readout.load_state_dict(state["readout"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["buffer"] is not None:
            self.buffer.load_state_dict(state["buffer"])
        self.updates, self.owed = state["updates"], state["owed"]

    @staticmethod
    def make_policy(network: Any) -> NetworkPolicy:
        """The network by its most likely actions."""
        return NetworkPolicy(network)

    def eval_policy(self) -> NetworkPolicy:
        """The present policy, for an evaluation."""
        return self.make_policy(self.network)


class DAgger(Imitation):
    """DAgger: after a warm start the student acts and the expert labels."""

    args_type: ClassVar[type[ImitationArgs]] = DAggerArgs
    student_acts = True

    def _warm_rollouts(self) -> int:
        return -(-self.args.warm_start_steps // self.args.batch_size)

    def beta(self) -> float:
        """1 in the warm start, then falling to 0."""
        after = self.step - self._warm_rollouts() * self.args.batch_size
        if after < 0:
            return 1.0
        return max(0.0, 1.0 - after / self.args.beta_steps) if self.args.beta_steps else 0.0

    def updates_due(self) -> int:
        """A share of those of the warm start, or ``updates_per_rollout``."""
        warm, number = self._warm_rollouts(), self.step // self.args.batch_size
        if number >= warm:
            return int(self.args.updates_per_rollout)
        total = self.args.warm_start_updates
        return int(total * (number + 1) // warm - total * number // warm)


class BC(Imitation):
    """Behaviour cloning: the expert acts all the time, with noise."""

    args_type: ClassVar[type[ImitationArgs]] = BCArgs
    student_acts = False

    def beta(self) -> float:
        """1."""
        return 1.0

    def updates_due(self) -> int:
        """``updates_per_rollout``."""
        return int(self.args.updates_per_rollout)


def train(
    args: ImitationArgs, env_factory: EnvFactory, command: Sequence[str] = (), dist: DistContext | None = None
) -> dict[str, Any]:
    """Train, evaluate and fill the run folder; see `training.train`."""
    return training.train(args, env_factory, command, dist)


def main(argv: Sequence[str] | None = None) -> int:
    """``mikasa train dagger``; returns the exit status."""
    from mikasa_robo.baselines.command import main

    return main(DAggerArgs.algorithm, argv)


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
