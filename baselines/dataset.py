"""Behaviour cloning from a dataset of `mikasa collect`: nothing is played but evaluations.

    mikasa collect --env-id RememberColor3-v0 --out data/colors
    mikasa train bc --env-id RememberColor3-v0 --dataset data/colors

The loss, the network and the updates are those of `dagger`; only the episodes come from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.data.dataset import Dataset
from mikasa_robo.data.episode import Episode as RecordedEpisode
from mikasa_robo.data.store import DataError

from .arguments import ArgumentError, CommonArgs, read_env_kwargs
from .dagger import BC, Rollout
from .dagger_arguments import BCArgs
from .episodes import Episode, EpisodeCutter, validation_indices
from .imitation import OBS
from .loggers import EpisodeStats
from .option_words import kwargs_words
from .protocol import Setup
from .spaces import Obs, ObservationLayout

__all__ = [
    "DIGEST",
    "DatasetBC",
    "dataset_digest",
    "open_dataset",
    "read_dataset",
    "require_same_dataset",
    "to_training_episode",
]

GENERAL = ("obs_mode", "control_mode", "reward_mode", "sim_backend")
"""Arguments of an environment that are not the task's own."""
DIGEST = "dataset_sha256"
"""Entry of an algorithm's state, and of a run's result: which episodes the run learns from."""


class _NothingPlayed(EpisodeCutter):
    """The episodes are there already."""

    def add(self, steps: Mapping[str, Tensor], over: Tensor) -> list[Episode]:
        return []


class DatasetBC(BC):
    """Behaviour cloning, from a dataset where ``args.dataset`` names one.

    Then a rollout plays nothing. It stands for ``num_envs`` x ``num_steps`` steps, after which gradient steps are taken, so
    a run has as many of them as without a dataset.
    """

    def __init__(self, args: BCArgs, setup: Setup) -> None:
        super().__init__(args, setup)
        if args.dataset is not None:
            layout = ObservationLayout.of(setup.observation_space)
            parts = [part.name for part in layout.parts]
            dataset = open_dataset(Path(args.dataset), args, parts)
            self.dataset_digest = dataset_digest(dataset)
            episodes, self.validation_episodes = read_dataset(dataset, args, parts, self.task)
            self.buffer.episodes.extend(episodes)
            self.cutter = _NothingPlayed(setup.num_envs)

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Rollout:
        """See `Imitation.rollout`; from a dataset, steps drawn at random, which tell what observations look like."""
        if not self.recorded:
            return super().rollout(env, obs, stats)
        if self.images_fixed and any(
            f"{OBS}{part.name}" in self.buffer.episodes[0] for part in self.network.layout.images
        ):
            self.fix_images()  # after --init-from: its weights came when the dataset had been read
        n, steps = env.num_envs, self.args.num_steps
        episodes = list(self.buffer.episodes)
        device = self.generator.device
        drawn = torch.randint(len(episodes), (n,), generator=self.generator, device=device).tolist()
        rows: list[Episode] = []
        for k in drawn:
            length = len(episodes[k]["labels"])
            times = torch.randint(length, (steps,), generator=self.generator, device=device).cpu()
            rows.append({name: value[times] for name, value in episodes[k].items()})
        stacked = {name: torch.stack([row[name] for row in rows], dim=1).to(self.network.device) for name in rows[0]}
        seen: dict[str, Tensor] = {name.removeprefix(OBS): stacked[name] for name in stacked if name.startswith(OBS)}
        labels, carried, known, oracle = (stacked[name] for name in ("labels", "carried", "known", "oracle"))
        over = torch.zeros(steps, n, dtype=torch.bool, device=labels.device)
        counted = over.new_zeros((steps, n, 0))
        target = torch.full_like(over, -1, dtype=torch.int64)
        return Rollout(seen.get("", seen), labels, carried, known, oracle, counted, target, over, obs)

    def _pretraining_due(self) -> bool:
        return self._waits_for_images() if self.recorded else super()._pretraining_due()

    def state_dict(self) -> dict[str, Any]:
        """See `Imitation.state_dict`."""
        return super().state_dict() | ({DIGEST: self.dataset_digest} if self.recorded else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Imitation.load_state_dict`. Raises ArgumentError where the dataset is another one now."""
        if self.recorded:
            require_same_dataset(state, self.args.dataset, self.dataset_digest)
        super().load_state_dict(state)


def open_dataset(folder: Path, args: CommonArgs, parts: Sequence[str]) -> Dataset:
    """A dataset whose native episodes a run can learn from.

    Args:
        folder: of the dataset.
        args: of the run; the task and the way to act must be those of the dataset.
        parts: of the observations; "" stands for the mode "state".

    Raises:
        ArgumentError: there is no such dataset, or it does not fit the run.
    """
    try:
        dataset = Dataset.open(folder)
        len(dataset)  # refuses one that is not complete
        dataset.require_native()
    except DataError as error:
        raise ArgumentError(f"--dataset {error}") from error
    info = dataset.info
    if info.env_id != args.env_id:
        raise ArgumentError(f"--dataset {folder} is of {info.env_id}; train on it with --env-id {info.env_id}")
    if info.control_mode != args.control_mode:
        raise ArgumentError(
            f"--dataset {folder} was recorded with --control-mode {info.control_mode}, not {args.control_mode}; use that"
        )
    own = {name: value for name, value in info.env_kwargs.items() if name not in GENERAL}
    asked = json.loads(json.dumps(read_env_kwargs(args.env_kwargs)))
    if {"arm": "free", **own} != {"arm": "free", **asked}:
        words = shlex.join(kwargs_words(own))
        fix = f"use --env-kwargs {words}" if own else "leave --env-kwargs out"
        raise ArgumentError(f"--dataset {folder} was recorded with {words or 'no arguments of the task'}; {fix}")
    try:
        observed = dataset.read(0).observations
    except DataError as error:
        raise ArgumentError(f"--dataset {folder}: {error}") from error
    lacking = [part for part in parts if (part or "state") not in observed]
    if lacking:
        raise ArgumentError(
            f"--dataset {folder} has no {', '.join(name or 'state' for name in lacking)} in its observations "
            f"({info.obs_mode}); use an --obs of these"
        )
    return dataset


def dataset_digest(dataset: Dataset) -> str:
    """A SHA-256, in hexadecimal, of the native episodes of a complete dataset, as its manifest lists them.

    It depends neither on where the folder is nor on the formats that were added to it.

    Raises:
        ArgumentError: the manifest lists no checksum of an episode.
    """
    try:
        files = (dataset.manifest or {})["files"]
        episodes = [(row["seed"], files[row["file"]]["sha256"]) for row in dataset.rows()]
    except (DataError, KeyError) as error:
        raise ArgumentError(
            f"--dataset {dataset.folder}: the manifest lacks checksums of episodes ({error}); collect it again"
        ) from error
    return hashlib.sha256(json.dumps(episodes).encode()).hexdigest()


def require_same_dataset(state: Mapping[str, Any], folder: str | None, digest: str) -> None:
    """Raise ArgumentError where a run that is resumed learnt from other episodes than those in ``folder`` now.

    Args:
        state: of the algorithm; that of an older run does not tell, and is taken.
        folder: of the dataset.
        digest: see `dataset_digest`.
    """
    if state.get(DIGEST, digest) != digest:
        raise ArgumentError(
            f"--dataset {folder} has other episodes than when the run began; put those back, or start a new run"
        )


def read_dataset(
    dataset: Dataset,
    args: Any,
    parts: Sequence[str],
    task: MemoryEnv[Any],
    convert: Callable[[RecordedEpisode, MemoryEnv[Any], Sequence[str]], Episode] | None = None,
) -> tuple[list[Episode], list[Episode]]:
    """The episodes of a dataset to learn from, and those for validation, as `imitation.imitation_loss` takes them.

    Args:
        dataset: as `open_dataset` returns it.
        args, parts: see `open_dataset`.
        task: an environment of the run.
        convert: what makes a training episode of a recorded one, ``task`` and ``parts``; None for `to_training_episode`.

    Raises:
        ArgumentError: it has too many episodes, or one is damaged, or it cannot be split by ``args.validation_share``.
    """
    folder = dataset.folder
    if len(dataset) > args.buffer_episodes:
        raise ArgumentError(f"--dataset {folder} has {len(dataset)} episodes; use --buffer-episodes {len(dataset)}")
    share = args.validation_share
    held_out = validation_indices(len(dataset), share)
    if share and not 0 < len(held_out) < len(dataset):
        raise ArgumentError(
            f"--validation-share {share:g} is {len(held_out)} of the {len(dataset)} episodes of --dataset {folder}; use a "
            "share that leaves at least one episode to learn from and one for validation"
        )
    convert = convert or to_training_episode
    try:
        episodes = [convert(episode, task, parts) for episode in dataset.episodes()]
    except DataError as error:
        raise ArgumentError(f"--dataset {folder}: {error}") from error
    validation = [episodes.pop(k) for k in reversed(held_out)]
    return episodes, validation[::-1]


def to_training_episode(episode: RecordedEpisode, task: MemoryEnv[Any], parts: Sequence[str]) -> Episode:
    """The steps of a recorded episode, (L, …) each; labels are the actions without noise, where it has them."""
    length = episode.length
    elapsed = torch.arange(length)
    seen = {f"{OBS}{part}": torch.from_numpy(episode.observations[part or "state"][:length]) for part in parts}
    return {
        **seen,
        "labels": torch.from_numpy(episode.step_columns.get("expert_action", episode.actions)),
        "carried": elapsed >= task.held_steps,
        "known": elapsed >= task.timeline.known_from,
        "oracle": torch.from_numpy(episode.columns["oracle_info"][:length]),
    }
