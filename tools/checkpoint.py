"""Checkpoints of policies, as the commands that play them read them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from mikasa_robo.baselines.arguments import ArgumentError, CommonArgs
from mikasa_robo.baselines.checkpoints import (
    CheckpointError,
    algorithm_of,
    network_from,
    read_bytes,
    read_policy,
    require_memory,
)
from mikasa_robo.baselines.files import find_policy_file
from mikasa_robo.baselines.networks import NetworkPolicy
from mikasa_robo.baselines.protocol import Policy
from mikasa_robo.baselines.registry import RegistryError, get_algorithm, use_algorithm, use_memory, use_network
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout
from mikasa_robo.env_ids import EnvIdError

from .env_ids import OptionError, resolve_env_id

__all__ = [
    "Checkpoint",
    "import_foreign",
    "make_policy",
    "read_checkpoint",
    "require_sampling",
    "resolve_checkpoint_env_id",
    "why_unfit",
]


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
    payload: dict[str, Any] = field(repr=False, compare=False)  # what the file held when ``sha256`` was taken

    def load_network(self, device: torch.device | str = "cpu") -> Any:
        """The network, on ``device``: that of ``sha256``, also where the file has been replaced since.

        Raises:
            CheckpointError: the network is not registered, or what the checkpoint holds does not fit it.
        """
        return network_from(self.payload, self.path, device)


def read_checkpoint(path: Path, memory: str | None = None) -> Checkpoint:
    """Read what a checkpoint says about its policy. No code in it, and none that it names, is run.

    Args:
        path: the file, or the folder of a run: then its checkpoint.pt, or else its best.pt.
        memory: the ``--memory`` of the command; None if it was not given.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is not the checkpoint of a known algorithm, or not that of a policy with ``memory``.
    """
    path = find_policy_file(path)
    data = read_bytes(path)
    payload = read_policy(path, data=data)
    args_type = algorithm_of(payload, path).load().args_type
    try:
        args = args_type.from_dict(payload["args"])
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error
    require_memory(payload, path, memory)
    digest = hashlib.sha256(data).hexdigest()
    names = payload["env_id"], payload["env_module"], payload["step"]
    return Checkpoint(path, digest, args.algorithm, *names, args, payload)


def make_policy(
    checkpoint: Checkpoint, network: Any = None, device: torch.device | str = "cpu", sampled: bool = False
) -> Policy:
    """The policy of a checkpoint.

    Args:
        checkpoint: the checkpoint.
        network: its network; None for a new one, on ``device``.
        device: see ``network``.
        sampled: whether actions are sampled, as in training.

    Raises:
        OptionError: the algorithm does not learn from actions that it samples, see `require_sampling`.
    """
    network = checkpoint.load_network(device) if network is None else network
    policy: Policy = get_algorithm(checkpoint.algorithm).load().make_policy(network)
    if isinstance(policy, NetworkPolicy):
        policy.source = str(checkpoint.path)
    if not sampled:
        return policy
    require_sampling(checkpoint)
    if not isinstance(policy, NetworkPolicy):
        raise OptionError(
            f"--sample-actions: {checkpoint.algorithm} plays {checkpoint.path} by its own {type(policy).__name__}, which "
            "chooses the actions itself; leave it out"
        )
    return NetworkPolicy(policy.network, sampled=True, source=policy.source)


def require_sampling(checkpoint: Checkpoint) -> None:
    """Raises OptionError where the noise of a policy means nothing, because nothing taught it."""
    if not getattr(get_algorithm(checkpoint.algorithm).load(), "samples_actions", False):
        raise OptionError(
            f"--sample-actions: {checkpoint.path} was trained by {checkpoint.algorithm}, which learns no noise that actions "
            "could be sampled with; leave it out"
        )


def why_unfit(network: Any, env: Any) -> str | None:
    """Why a network cannot act in ``env``, a batched environment; None if it can, or does not tell its sizes."""
    if not hasattr(network, "layout"):  # one of somebody's own
        return None
    width = ObservationLayout.of(env.unwrapped.single_observation_space).width
    action = ActionLayout.of(env.unwrapped.single_action_space)
    if (network.layout.width, network.action) != (width, action):
        return (
            f"as it is now: the policy maps {network.layout.width} numbers to actions of {network.action.dim}, and the "
            f"task needs {width} to {action.dim}; use the version and the arguments that it was trained with"
        )
    return None


def import_foreign(algorithm: str | None, network: str | None, memory: str | None = None) -> None:
    """Import the modules that ``--algorithm``, ``--network`` and ``--memory`` name as module:NAME, None for those not given.

    Raises:
        OptionError: a name is malformed or not registered, or there is no such module.
    """
    option = "--algorithm"
    try:
        if algorithm is not None:
            use_algorithm(algorithm)
        option = "--network"
        if network is not None:
            use_network(network)
        option = "--memory"
        if memory is not None:
            use_memory(memory)
    except (EnvIdError, RegistryError) as error:
        raise OptionError(f"{option}: {error}") from error


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
