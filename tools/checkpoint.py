"""Checkpoints of policies, as the commands that play them read them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.arguments import CommonArgs
from mikasa_robo.baselines.checkpoints import (
    PPO_LSTM,
    PPO_MLP,
    CheckpointError,
    load_checkpoint,
    load_policy,
    load_recurrent_policy,
)

from .env_ids import OptionError, resolve_env_id

__all__ = ["Checkpoint", "load_network", "make_actor", "read_checkpoint", "resolve_checkpoint_env_id"]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says about its policy."""

    path: Path
    sha256: str
    algorithm: str
    env_id: str
    env_module: str | None  # what registers the environment, where that was named when it was trained
    step: int
    args: CommonArgs


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what a checkpoint says about its policy. No code in it, and none that it names, is run.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is no checkpoint of a known algorithm.
    """
    problems = []
    for kind, trainer in ((PPO_MLP, ppo_mlp), (PPO_LSTM, ppo_lstm)):
        try:
            payload = load_checkpoint(path, kind)
        except CheckpointError as error:
            problems.append(error)
            continue
        args = trainer.Args.parse_plain(payload["args"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        module = payload.get("env_module")
        return Checkpoint(path, digest, args.algorithm, payload["env_id"], module, payload["step"], args)
    raise problems[0]


def load_network(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Any:
    """The policy's networks, on ``device``."""
    load: Callable[..., Any] = load_policy if checkpoint.algorithm == ppo_mlp.Args.algorithm else load_recurrent_policy
    return load(checkpoint.path, device)


def make_actor(checkpoint: Checkpoint, network: Any) -> tuple[Callable[[Any], Tensor], Callable[[], None]]:
    """A function from observations (N, …) to actions (N, A), and one to call before each round of episodes."""
    if checkpoint.algorithm == ppo_mlp.Args.algorithm:
        return network.act, lambda: None
    player = ppo_lstm.Player(network)
    return player.act, player.begin


def resolve_checkpoint_env_id(checkpoint: Checkpoint, asked: str | None) -> str:
    """Return the ID of the environment that a checkpoint was trained on, once it is registered.

    A module is imported only where the user names it: a checkpoint may come from anybody.

    Args:
        checkpoint: the checkpoint.
        asked: ``--env-id`` as the user gave it, None if not.

    Raises:
        OptionError: ``asked`` is another environment, or none was asked for and the checkpoint's is not registered.
    """
    if asked is not None:
        name = resolve_env_id(asked)
        if name != checkpoint.env_id:
            raise OptionError(
                f"--env-id {asked}: {checkpoint.path} was trained on {checkpoint.env_id}; name that one, or leave it out"
            )
        return name
    if checkpoint.env_module is not None and checkpoint.env_id not in gym.registry:
        raise OptionError(
            f"{checkpoint.path} was trained on {checkpoint.env_id} of the module {checkpoint.env_module}, which is not "
            f"imported unless you name it: add --env-id {checkpoint.env_module}:{checkpoint.env_id}"
        )
    return resolve_env_id(checkpoint.env_id, f"{checkpoint.path}: the task")
