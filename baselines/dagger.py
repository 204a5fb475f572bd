"""Learning from an expert that can be asked anywhere: DAgger (Ross et al., 2011, arXiv 1011.0686) and behaviour cloning.

    mikasa train dagger --memory gru --env-id RememberColor3-v0 --obs objects+joints --env-kwargs arm=held
    mikasa train bc --memory gru --env-id RememberColor3-v0

The student acts, the expert of the task says at each step what it would do there, and the student learns that by
regression. The expert knows what has to be remembered; the student sees its own observations only, so it has to hold the
cue in its memory. This separates whether a memory *can* hold it from whether reinforcement learning finds out that it must.

DAgger begins with a warm start, in which the expert acts, with noise; behaviour cloning is nothing but that.
Top to bottom: the expert, a rollout, and the classes that `training` runs. The loss and gradient steps are in `imitation`,
arguments in `dagger_arguments`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import mikasa_suite
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core import observations
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.deprecation import deprecated_names
from mikasa_robo.experts.makers import PolicyName, policy_maker
from mikasa_robo.experts.policies import OBS_MODE, Policy, UnfitPolicyError
from mikasa_robo.experts.registry import has_skill, make_skill
from mikasa_robo.experts.skill import Skill, look

from . import training
from .arguments import ArgumentError
from .dagger_arguments import BCArgs, DAggerArgs, ImitationArgs
from .distributed import DistContext
from .environments import EnvFactory, choose_obs_mode
from .episodes import Episode, EpisodeCutter
from .image_pretraining import FrameHead, encode_episode, freeze_images, pretrain_images
from .imitation import OBS, EpisodeLearner
from .loggers import EpisodeStats
from .protocol import Setup
from .spaces import Obs, map_tensors, stack_tensors

__all__ = ["BC", "DAgger", "Imitation", "Labeler", "Rollout", "main", "train"]
__getattr__ = deprecated_names(__name__, {"OracleReadout": f"{__package__}.readouts:OracleReadout"})


class Labeler:
    """The expert of a task, or another scripted policy, asked at every step of a batch, whoever acts in it.

    It must be asked at every step: experts have stages, which go on when they are asked.

    Args:
        env_id: the ID of the task.
        task: the environment.
        seed: of the expert.
        teacher: name of the policy, see `mikasa_robo.experts.makers`.

    Raises:
        ArgumentError: the task has no expert, or the policy is for other tasks.
    """

    def __init__(self, env_id: str, task: MemoryEnv[Any], seed: int, teacher: PolicyName = "expert") -> None:
        if not has_skill(env_id):
            known = ", ".join(sorted(name for name in CATALOG if has_skill(name)))
            raise ArgumentError(f"--env-id {env_id} has no expert to learn from; use one of {known}")
        self.task = task
        make: Any = policy_maker(teacher)  # the policies take a seed, too
        try:
            self._expert: Policy = make(make_skill(env_id, task), seed=seed)
        except UnfitPolicyError as error:
            raise ArgumentError(f"--teacher {teacher}: {error}") from error
        self.tells_targets = type(self._expert.skill).target is not Skill.target
        """Whether `target` tells something: the task is to choose among objects."""

    def reset(self, starts: Tensor) -> None:
        """Episodes begin where ``starts`` (N,) bool is True."""
        rows = starts.nonzero().squeeze(1)
        if len(rows):
            self._expert.reset(rows)

    def state_dict(self) -> dict[str, Any]:
        """The random numbers with which a teacher guesses."""
        return self._expert.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._expert.load_state_dict(state)

    def label(self, obs: Obs, info: Mapping[str, Any]) -> Tensor:
        """The expert's actions (N, A) in [-1, 1] at this step.

        Args:
            obs: raw observations. Where they have no objects, the task is asked what it would show.
            info: as the environment returned it with them.
        """
        return self._expert.act(self._objects_of(obs, info), info).clamp(-1.0, 1.0)

    def target(self, obs: Obs, info: Mapping[str, Any]) -> Tensor:
        """The object (N,) int64 to go for at this step, or -1 for none.

        Args:
            obs, info: as in `label`.
        """
        skill = self._expert.skill
        view = look(self._objects_of(obs, info), len(self.task.objects))
        return skill.target(view, skill.from_oracle(view, info), info)

    def _objects_of(self, obs: Obs, info: Mapping[str, Any]) -> Mapping[str, Tensor]:
        if isinstance(obs, dict) and {"objects", "joints"} <= obs.keys():
            return obs
        return observations.observe(self.task, OBS_MODE, info)


@dataclass
class Rollout:
    """S steps of N environments, on the device of the network."""

    obs: Obs  # (S, N, …) raw
    labels: Tensor  # (S, N, A) the expert's actions
    carried: Tensor  # (S, N) bool, actions were carried out: the arm was not held
    known: Tensor  # (S, N) bool, the cue is over, so that the oracle can be known
    oracle: Tensor  # (S, N, d) what has to be remembered
    counted: Tensor  # (S, N, K) bool, targets touched so far; K = 0 where no read-out asks
    target: Tensor  # (S, N) int64, the object that the expert goes for; -1: none, or nothing asks
    over: Tensor  # (S, N) bool, the episode ended with that step
    last_obs: Obs  # (N, …) raw, the next rollout starts from it

    def steps(self) -> dict[str, Tensor]:
        """What is kept of each step, (S, N, …) each, on the CPU."""
        parts = self.obs if isinstance(self.obs, dict) else {"": self.obs}
        steps = {f"{OBS}{name}": value for name, value in parts.items()}
        for name in ("labels", "carried", "known", "oracle", "counted", "target"):
            steps[name] = getattr(self, name)
        return {name: value.cpu() for name, value in steps.items()}


class Imitation(EpisodeLearner):
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
        self.recorded = getattr(args, "dataset", None) is not None
        """Whether the episodes come from a dataset, so that nothing is played."""
        self.labeler = None if self.recorded else Labeler(args.env_id, task, args.seed, args.teacher)
        oracle = task.get_info()["oracle_info"] if args.oracle_weight else None
        self.make_learner(args, setup, oracle, self._candidates() if args.counted_weight else 0)
        n = setup.num_envs
        if args.target_weight:
            self._require_targets()
        self.cutter = EpisodeCutter(n)
        self.state = self.network.initial_state(n)
        self.starts = torch.ones(n, dtype=torch.bool, device=setup.device)
        self.noise = torch.zeros(n, device=setup.device)
        """(N,) standard deviation of the noise in the running episodes."""
        self.owed = 0
        """Gradient steps that have to wait for the first whole episode, or for the image encoders."""
        self.images_fixed = False
        """Whether the image encoders have been pretrained, so that episodes are kept as features."""
        images = bool(self.network.layout.images)
        for name in ("image_pretraining_updates", "image_pretraining_steps"):
            if getattr(args, name) and not images:
                raise ArgumentError(
                    f"--{name.replace('_', '-')} {getattr(args, name)} cannot be used: --obs {choose_obs_mode(args)} has no "
                    "images; leave it out"
                )
        self.pretrains_images = images and args.image_pretraining_updates != 0
        """Whether they are to be pretrained."""
        if images and args.init_from is not None and args.image_pretraining_updates is None:
            self.fix_images()  # the rest of that policy fits the features of its own encoders

    def _candidates(self) -> int:
        """Number of candidates of the task, for a read-out of those that were touched.

        Raises:
            ArgumentError: the task has no candidates.
        """
        counted = self.task.get_info().get("counted")
        if counted is None:
            raise ArgumentError(
                f"--counted-weight {self.args.counted_weight} cannot be used: {self.args.env_id} has no targets that are "
                "touched one after another; leave it out"
            )
        return int(counted.shape[1])

    def _require_targets(self) -> None:
        """Raise ArgumentError where no query of the policy could find what the expert goes for."""
        option = f"--target-weight {self.args.target_weight} cannot be used"
        assert self.labeler is not None
        if not self.labeler.tells_targets:
            raise ArgumentError(
                f"{option}: the expert of {self.args.env_id} does not choose among objects; leave it out"
            )
        if not self.network.num_objects:
            raise ArgumentError(
                f"{option}: --obs {choose_obs_mode(self.args)} has no objects to find; use objects+joints"
            )

    # ------------------------------------------------------------------ what changes with time
    def beta(self) -> float:
        """The share of steps at which the expert acts instead of the student, in the next rollout."""
        raise NotImplementedError

    def updates_due(self) -> int:
        """Gradient steps after the rollout that was just played."""
        raise NotImplementedError

    def on_episode_start(self, starts: Tensor) -> None:
        """In the environments where ``starts`` (N,) bool is True an episode begins with the next observation."""
        self.starts = starts.to(self.network.device)
        self.cutter.drop(starts)

    # ------------------------------------------------------------------ rollout
    @torch.no_grad()
    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """Play ``num_steps`` steps; student or expert acts, and the expert labels all of them."""
        network, device, beta = self.network, self.network.device, self.beta()
        assert self.labeler is not None
        seen: list[Obs] = []
        rows: list[tuple[Tensor, ...]] = []  # label, carried, known, oracle, counted, target, over
        info = self.task.get_info()
        for _ in range(self.args.num_steps):
            seen.append(map_tensors(lambda x: x.to(device, copy=True), obs))
            self.labeler.reset(self.starts.to(env.device))
            label = self.labeler.label(obs, info).to(device)
            no_target = torch.full_like(self.starts, -1, dtype=torch.int64)
            target = self.labeler.target(obs, info) if self.args.target_weight else no_target
            action = self.act(seen[-1], label, beta)
            elapsed, oracle = self.task.elapsed_steps, info["oracle_info"].clone()
            carried, known = elapsed >= self.task.held_steps, elapsed >= self.task.timeline.known_from
            touched = info["counted"].clone() if self.learner.counted_readout else known.new_zeros((len(known), 0))
            obs, _, ends, cuts, info = env.step(network.action.to_env(action).to(env.device))
            over = ends | cuts
            stats.record(info, over)
            if "cut_short" in info:  # these were reset after `info` had been made
                info = self.task.get_info()
            self.starts = over.to(device)
            rows.append((label, *(part.to(device) for part in (carried, known, oracle, touched, target)), self.starts))
        last = map_tensors(lambda x: x.to(device, copy=True), obs)
        labels, carried, known, oracle, counted, target, over = (torch.stack(part) for part in zip(*rows, strict=True))
        return Rollout(stack_tensors(seen), labels, carried, known, oracle, counted, target, over, last)

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
        readout = self.learner.readout
        self.keep(self.cutter.add(batch.steps(), batch.over.cpu()))
        if readout is not None:
            readout.normalizer.update(batch.oracle.float())
        self.owed += self.updates_due()
        figures = torch.zeros(0, 0)
        images = {}
        if len(self.buffer) and self._pretraining_due():
            images = self.pretrain(batch.oracle)
        if len(self.buffer) and not self._waits_for_images():
            figures = self.take_steps(self.owed)
            self.owed = 0
        kept = images | {"imitation/beta": self.beta(), "imitation/buffer_episodes": float(len(self.buffer))}
        return kept | self.describe_steps(figures) | (self.validate() if len(figures) else {})

    def keep(self, episodes: Sequence[Episode]) -> None:
        """Add whole episodes to those that are kept, as features where the image encoders are fixed."""
        if self.images_fixed:
            episodes = [encode_episode(self.network, episode) for episode in episodes]
        self.buffer.episodes.extend(episodes)

    # ------------------------------------------------------------------ images
    def _waits_for_images(self) -> bool:
        return self.pretrains_images and not self.images_fixed

    def _pretraining_due(self) -> bool:
        return self._waits_for_images() and self.step + self.args.batch_size >= self.args.pretraining_begins

    def pretrain(self, oracle: Tensor) -> dict[str, float]:
        """Train the image encoders on single frames and fix them; see `image_pretraining`.

        Args:
            oracle: (S, N, d) examples of what has to be remembered.

        Returns:
            What the log says of it.
        """
        args, network = self.args, self.network
        candidates = len(self.task.objects)
        head = FrameHead(network.features, network.action_dim, oracle[0], candidates, args.oracle_as_set)
        head.to(network.device)
        head.readout.normalizer.update(oracle.float())
        episodes = list(self.buffer.episodes)
        updates = args.pretraining_updates(sum(len(episode["labels"]) for episode in episodes))
        losses = pretrain_images(network, head, episodes, updates, args, self.generator)
        self.fix_images()
        last = losses[-max(1, len(losses) // 20) :]
        return {"loss/images": float(last.mean()), "imitation/image_updates": float(len(losses))}

    def fix_images(self) -> None:
        """No gradient changes the image encoders from now on, and what is kept becomes features."""
        freeze_images(self.network)
        self.images_fixed = True
        episodes = list(self.buffer.episodes)
        self.buffer.episodes.clear()
        self.keep(episodes)
        self.validation_episodes = [encode_episode(self.network, episode) for episode in self.validation_episodes]

    # ------------------------------------------------------------------ saving
    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the network."""
        # A dataset is read again, not saved.
        buffer = self.buffer.state_dict() if self.args.checkpoint_buffer and not self.recorded else None
        own: dict[str, Any] = {"buffer": buffer, "owed": self.owed, "images_fixed": self.images_fixed}
        if self.labeler is not None:
            own["teacher"] = self.labeler.state_dict()
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        if state["buffer"] is not None:
            self.buffer.load_state_dict(state["buffer"])
            for episode in self.buffer.episodes:  # of a run that began before targets were recorded
                episode.setdefault("target", torch.full((len(episode["labels"]),), -1))
        self.owed = state["owed"]
        if self.labeler is not None and "teacher" in state:
            self.labeler.load_state_dict(state["teacher"])
        # A run that began before there was such pretraining goes on without it.
        self.pretrains_images = self.pretrains_images and "images_fixed" in state
        if state.get("images_fixed"):
            self.fix_images()


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
