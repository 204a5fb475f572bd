"""Sequence models of a dataset: the decision transformer (Chen et al., 2021, arXiv 2106.01345) and RATE (Cherepanov et al.,
2023, arXiv 2306.09459).

    mikasa collect --env-id RememberColor3-v0 --arm held --out data/colors
    mikasa train dt --env-id RememberColor3-v0 --env-kwargs arm=held --dataset data/colors
    mikasa train rate --env-id RememberColor3-v0 --env-kwargs arm=held --dataset data/colors

Both predict the action of each step from the returns-to-go, observations and actions so far. The models are in
`memory.decision` and `memory.rate`, the network around them is `sequence_policy.SequencePolicy`. Encoder, action head and
loss are those of behaviour cloning. The loss counts at all steps, also where the arm is held: each action is an input of the
next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.data.episode import Episode as RecordedEpisode

from .arguments import ArgumentError
from .dataset import DIGEST, dataset_digest, open_dataset, read_dataset, require_same_dataset, to_training_episode
from .episodes import Episode
from .imitation import OBS, EpisodeLearner
from .loggers import EpisodeStats
from .offline_arguments import DTArgs, OfflineArgs, RATEArgs, SequenceArgs
from .protocol import Setup
from .readouts import require_set
from .registry import get_network
from .sequence_policy import ACTION_BEFORE, RETURN_TO_GO, SequencePolicy
from .spaces import Obs, ObservationLayout

__all__ = ["DT", "RATE", "Offline", "rewards_of", "target_returns"]

SAMPLE = 128, 8
"""Episodes, and steps of each, that tell the normaliser between gradient steps what observations look like."""


@dataclass
class Sample:
    """Steps of the dataset in place of a rollout."""

    obs: Obs  # (S, N, …)
    last_obs: Obs  # what the environments showed before; nothing is played


class Offline(EpisodeLearner):
    """Base class of algorithms that learn from a dataset; see `protocol.Algorithm`."""

    args_type: ClassVar[type[OfflineArgs]]

    def __init__(self, args: Any, setup: Setup) -> None:
        parts = [part.name for part in ObservationLayout.of(setup.observation_space).parts]
        task = setup.env.unwrapped
        if not isinstance(task, MemoryEnv):
            raise ArgumentError(f"--env-id {args.env_id} has no datasets; use a robot task of `mikasa list`")
        folder = Path(args.dataset)
        dataset = open_dataset(folder, args, parts)
        reward_mode = dataset.info.env_kwargs.get("reward_mode")
        if args.reward == "dense" and reward_mode == "sparse":  # of a checkpoint that was trained with it
            raise ArgumentError(f"--reward dense: --dataset {folder} has sparse rewards; use --reward success")
        require_set(args, task)  # before all episodes are read
        self.dataset_digest = dataset_digest(dataset)
        episodes, self.validation_episodes = read_dataset(dataset, args, parts, task, self.convert)
        oracle = None
        if args.oracle_weight:
            # IQL's episodes have a row more, in which nothing was done.
            told = [
                episode["oracle"][episode["acted"]] if "acted" in episode else episode["oracle"] for episode in episodes
            ]
            oracle = torch.cat(told)
        self.make_learner(args, setup, oracle)
        if oracle is not None:
            self.learner.readout.normalizer.update(oracle.float().to(setup.device))
        self.buffer.episodes.extend(episodes)

    def convert(self, episode: RecordedEpisode, task: MemoryEnv[Any], parts: Sequence[str]) -> Episode:
        """What is learnt from a recorded episode; see `dataset.read_dataset`."""
        raise NotImplementedError

    def on_episode_start(self, starts: Tensor) -> None:
        """Nothing is played."""

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Sample:
        """Steps drawn at random."""
        episodes, device = list(self.buffer.episodes), self.generator.device
        count, steps = SAMPLE
        rows: list[Episode] = []
        for k in torch.randint(len(episodes), (count,), generator=self.generator, device=device).tolist():
            seen = {name.removeprefix(OBS): value for name, value in episodes[k].items() if name.startswith(OBS)}
            length = len(next(iter(seen.values())))
            times = torch.randint(length, (steps,), generator=self.generator, device=device).cpu()
            rows.append({name: value[times] for name, value in seen.items()})
        joined = {name: torch.stack([row[name] for row in rows], dim=1).to(self.network.device) for name in rows[0]}
        return Sample(joined.get("", joined), obs)

    def update(self, batch: Sample) -> dict[str, float]:
        """Take gradient steps."""
        return self.describe_steps(self.take_steps(self.args.batch_size)) | self.validate()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the policy and the episodes, and which episodes these are."""
        return super().state_dict() | {DIGEST: self.dataset_digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises ArgumentError where the dataset is another one now."""
        require_same_dataset(state, self.args.dataset, self.dataset_digest)
        super().load_state_dict(state)


class _SequenceModel(Offline):
    """What both models have in common."""

    network_type = SequencePolicy
    args: SequenceArgs

    def __init__(self, args: Any, setup: Setup) -> None:
        self.args = args  # `convert` reads it
        if not issubclass(get_network(args.network_name).load(), self.network_type):
            raise ArgumentError(f"--network {args.network_name} cannot be used; leave it out")
        super().__init__(args, setup)
        returns = [episode[RETURN_TO_GO] for episode in self.buffer.episodes]
        scale = max(1.0, max(float(each.abs().max()) for each in returns))
        self.network.set_targets(target_returns(returns, args.target_quantile), scale)

    def convert(self, episode: RecordedEpisode, task: MemoryEnv[Any], parts: Sequence[str]) -> Episode:
        """`to_training_episode` with returns-to-go and the actions that were carried out before; all actions count."""
        steps = to_training_episode(episode, task, parts)
        rewards = rewards_of(episode, self.args.reward)
        actions = torch.from_numpy(episode.actions)
        return steps | {
            "carried": torch.ones_like(steps["carried"]),
            RETURN_TO_GO: rewards.flip(0).cumsum(0).flip(0),
            ACTION_BEFORE: torch.cat([torch.zeros_like(actions[:1]), actions[:-1]]),
        }


class DT(_SequenceModel):
    """The decision transformer."""

    args_type = DTArgs


class RATE(_SequenceModel):
    """The recurrent action transformer with memory."""

    args_type = RATEArgs


def rewards_of(episode: RecordedEpisode, kind: str) -> Tensor:
    """The rewards (L,) of an episode: "dense" as recorded, "success" 1 at the first success and else 0."""
    if kind == "dense":
        return torch.from_numpy(episode.rewards).float()
    success = torch.from_numpy(episode.step_columns["success"])
    return (success & (success.cumsum(0) == 1)).float()


def target_returns(returns: Sequence[Tensor], quantile: float) -> Tensor:
    """A quantile of the returns-to-go at each step (T,), over all episodes; T is the length of the longest.

    An episode that has ended counts with its last return-to-go: a success ends an episode, so over those that still run the
    target would fall to that of failures as soon as the last success is over.

    Args:
        returns: (L,) of each episode.
        quantile: from 0 to 1.
    """
    longest = max(len(each) for each in returns)
    # Step by step, because torch takes quantiles of at most 16 million numbers.
    at_step = [torch.stack([each[min(t, len(each) - 1)] for each in returns]) for t in range(longest)]
    return torch.stack([values.quantile(quantile) for values in at_step])
