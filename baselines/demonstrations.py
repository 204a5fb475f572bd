"""Transitions of an expert for off-policy learning: played on the spot, or read from a dataset of `mikasa collect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.data.episode import Episode as RecordedEpisode
from mikasa_robo.data.store import DataError

from .arguments import ArgumentError
from .dagger import Labeler
from .dataset import dataset_digest, open_dataset
from .protocol import Setup
from .replay import NEXT_OBS, OBS, Transitions
from .sac_arguments import SACArgs
from .spaces import Obs, map_tensors

__all__ = ["NoisyExpert", "read_transitions", "to_transitions"]


class NoisyExpert:
    """The expert of a task, which acts with noise in all environments of a batch.

    Args:
        args: env_id, seed and expert_noise.
        setup: of the run; its generator draws the noise.

    Raises:
        ArgumentError: there is no expert.
    """

    def __init__(self, args: SACArgs, setup: Setup) -> None:
        task = getattr(setup.env, "unwrapped", None)
        if not isinstance(task, MemoryEnv):
            raise ArgumentError(
                f"--expert-steps {args.expert_steps}: {args.env_id} has no expert; use a robot task of `mikasa list`, or "
                "leave it out"
            )
        self._task: MemoryEnv[Any] = task
        self._labeler = Labeler(args.env_id, task, args.seed)
        self._generator, self._noise = setup.generator, args.expert_noise
        self._stds = torch.zeros(setup.num_envs, device=setup.device)

    def act(self, obs: Obs, starts: Tensor) -> Tensor:
        """Actions (N, A), not yet clamped, for raw observations (N, …).

        Args:
            obs: of this step, on any device.
            starts: (N,) bool, on the device of the network: an episode begins with it.
        """
        device = starts.device
        self._labeler.reset(starts.to(self._task.device))
        obs = map_tensors(lambda x: x.to(self._task.device), obs)  # beside the info of the task
        label = self._labeler.label(obs, self._task.get_info()).to(device)
        stds = 2.0 * self._noise * torch.rand(len(label), generator=self._generator, device=device)
        self._stds = torch.where(starts, stds, self._stds)
        return label + self._stds[:, None] * torch.randn(label.shape, generator=self._generator, device=device)


def read_transitions(args: SACArgs, parts: Sequence[str]) -> tuple[list[Transitions], str]:
    """The transitions of all episodes of ``args.dataset``, episode by episode, and the `dataset_digest`.

    Args:
        args: of the run; the task, its reward and the way to act must be those of the dataset.
        parts: of the observations; "" stands for the mode "state".

    Raises:
        ArgumentError: there is no such dataset, or it does not fit the run.
    """
    assert args.dataset is not None
    folder = Path(args.dataset)
    dataset = open_dataset(folder, args, parts)
    reward_mode = dataset.info.env_kwargs.get("reward_mode", "normalized_dense")
    if reward_mode != args.reward_mode:
        raise ArgumentError(
            f"--dataset {folder} was recorded with the reward {reward_mode}; use --reward-mode {reward_mode}"
        )
    try:
        episodes = [to_transitions(episode, parts, args.train_to_horizon) for episode in dataset.episodes()]
    except DataError as error:
        raise ArgumentError(f"--dataset {folder}: {error}") from error
    return episodes, dataset_digest(dataset)


def to_transitions(episode: RecordedEpisode, parts: Sequence[str], train_to_horizon: bool) -> Transitions:
    """The L transitions of a recorded episode.

    Where training goes on after a success, only a mistake terminates: an episode that a success ended is a truncated one.
    """
    terminated = torch.zeros(episode.length, dtype=torch.bool)
    terminated[-1] = bool(episode.step_columns["fail"][-1]) if train_to_horizon else episode.terminated
    observations = {part: torch.from_numpy(episode.observations[part or "state"]) for part in parts}
    return {
        **{f"{OBS}{part}": value[:-1] for part, value in observations.items()},
        **{f"{NEXT_OBS}{part}": value[1:] for part, value in observations.items()},
        "actions": torch.from_numpy(episode.actions),
        "rewards": torch.from_numpy(episode.rewards),
        "terminated": terminated,
    }
