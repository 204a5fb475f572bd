"""Starting from the policy of another run: ``--init-from``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .arguments import ArgumentError, CommonArgs
from .checkpoints import read_policy, require_finite
from .critics import CRITIC_STATE
from .exploration import MAX_LOG_STD
from .files import find_policy_file
from .option_words import kwargs_words, option_words
from .policy_network import PolicyNetwork
from .registry import RegistryError, get_algorithm, get_network
from .sequence_policy import SequencePolicy
from .spaces import ObservationLayout

__all__ = ["start_from"]

IMITATION = ("bc", "dagger", "dt", "rate", "iql")
"""Algorithms that train neither the critic nor the noise of their network."""
CRITIC, NOISE = ("critic.", "critic_encoder.", "value_scale."), ("log_std", "std_head.")
"""How the names of the weights of a critic and of the noise of actions begin."""
REPLACEABLE = ("exploration", "normalize_returns", "horizon", CRITIC_STATE)
"""Entries of a network's description in which the two may differ: what they describe is made anew."""

log = logging.getLogger(__name__)


def start_from(network: Any, args: CommonArgs, path: Path, device: torch.device) -> dict[str, Any]:
    """Give ``network`` the weights and the normalisation of a policy that another run saved.

    The critic stays new where that of the policy has not been trained or sees something else, and the noise of actions where
    it has not been trained or is of another kind, and with ``--reset-noise``.

    Args:
        network: of the new run; nothing of it is used if this raises.
        args: of the new run.
        path: a checkpoint, or the folder of a run.
        device: where the network is.

    Returns:
        Where the run began, for its results: the path, and the algorithm, task and number of steps of the policy.

    Raises:
        ArgumentError: there is no such file, or its network is another one.
        CheckpointError: the file holds no policy.
    """
    try:
        path = find_policy_file(path)
    except FileNotFoundError as error:
        raise ArgumentError(f"--init-from {error}") from error
    payload = read_policy(path, device)
    own, other = _descriptions(network, args, payload)
    for name in {**own, **other}:
        if name not in REPLACEABLE and own.get(name) != other.get(name) and not _same_per_object(name, own, other):
            advice = _advice(name, other.get(name), network, args, payload["algorithm"])
            raise ArgumentError(
                f"--init-from {path} has {name} {other.get(name)}, and this run {own.get(name)}; "
                f"both need the same network, and observations of the same sizes{advice}"
            )
    untrained = payload["algorithm"] in IMITATION and args.algorithm not in IMITATION
    new: tuple[str, ...] = getattr(network, "of_the_run", ())
    if untrained or own.get(CRITIC_STATE) != other.get(CRITIC_STATE):
        new += CRITIC
    elif own.get("normalize_returns") != other.get("normalize_returns"):
        # A critic without a scale can get one; the weights of one with a scale mean nothing without it.
        new += CRITIC if other.get("normalize_returns") else ("value_scale.",)
    if untrained or own.get("exploration") != other.get("exploration") or getattr(args, "reset_noise", False):
        new += NOISE
    try:
        if not new:
            network.load_state_dict(payload["state_dict"])
        else:
            kept = {name: value for name, value in payload["state_dict"].items() if not name.startswith(new)}
            result = network.load_state_dict(kept, strict=False)
            wrong = [name for name in result.missing_keys if not name.startswith(new)] + result.unexpected_keys
            if wrong:
                raise ValueError(f"{', '.join(wrong)} do not fit")
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"--init-from {path} holds weights of another network: {error}") from error
    try:
        require_finite(network)
    except ValueError as error:
        raise ArgumentError(f"--init-from {path}: {error}; name an earlier checkpoint") from error
    if (
        (head := getattr(network, "std_head", None)) is not None
        and float(head.cap) < MAX_LOG_STD
        and getattr(args, "final_log_std", None) is None
    ):
        log.info(
            "the logarithm of the standard deviation of actions stays below %g, as in that run; --final-log-std sets a new "
            "bound, and --reset-noise lifts it",
            float(head.cap),
        )
    trained = f"{payload['algorithm']} on {payload['env_id']} for {payload['step']:,} steps"
    log.info(
        "starting from the policy of %s, trained by %s%s", path, trained, " (new critic)" if CRITIC[0] in new else ""
    )
    return {
        "path": str(path),
        "algorithm": payload["algorithm"],
        "env_id": payload["env_id"],
        "training_steps": payload["step"],
    }


def _descriptions(network: Any, args: CommonArgs, payload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the network and that of a policy are made of, with what the critic alone sees as an entry of its own."""
    own = {"network": args.network_name, **network.to_dict()}
    other = {"network": payload["network_name"], **payload["network"]}
    if own["network"] == other["network"]:
        # As a new network describes itself: a checkpoint of version 1 has other names for the parts of observations.
        described = type(network).from_dict(payload["network"]).to_dict()
        other |= {name: described[name] for name in ("obs_dim", "action_dim") if name in other and name in described}
        other = {**described, **other}  # a checkpoint may be older than an option of the network
    if isinstance(network, SequencePolicy):  # the options of its model are options of the run
        for values in (own, other):
            values |= values.pop("memory_kwargs", None) or {}
    for values in (own, other):
        if isinstance(network, PolicyNetwork) and "obs_dim" in values:
            parts = ObservationLayout.from_dict(values["obs_dim"]).parts
            seen = ObservationLayout(tuple(part for part in parts if part.name != CRITIC_STATE))
            hidden = ObservationLayout(tuple(part for part in parts if part.name == CRITIC_STATE))
            values |= {"obs_dim": seen.to_dict(), CRITIC_STATE: hidden.to_dict()}
    return own, other


def _same_per_object(name: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether observations differ in the number of objects alone, where a network reads them as a set."""
    return name == "obs_dim" and _per_object(own[name]) == _per_object(other.get(name))


def _per_object(parts: Any) -> Any:
    """Parts of observations without the number of objects: a network that reads them as a set takes any number."""
    if not isinstance(parts, list):
        return parts
    return [
        {**part, "shape": [part["shape"][0] / part["items"]], "items": True} if part.get("items") else part
        for part in parts
    ]


def _advice(name: str, value: Any, network: Any, args: CommonArgs, algorithm: str) -> str:
    """The option that would make this run's network like the other, where there is one.

    Args:
        name: the entry in which the descriptions of the networks differ.
        value: what the other network has there.
        network, args: of this run.
        algorithm: the one that trained the other network.
    """
    if name == "network":
        try:
            taken = _takes_network(args, get_network(str(value)).load(), network)
        except RegistryError:
            return ""
        return (
            f"; add --network {value}"
            if taken
            else f"; {args.algorithm} takes no network {value}, so this policy of {algorithm} cannot be used"
        )
    if name == "memory" and isinstance(network, SequencePolicy):
        return f"; {args.algorithm} cannot use a policy of {algorithm}"
    name = getattr(args, "size_field", name) if name == "memory_size" else name
    if name not in args.to_dict():
        return ""
    if value is None:
        value = getattr(type(args)(), name)  # the policy is older than this option
    if value in (None, [], (), {}):
        return ""
    return f"; add {shlex.join(option_words(name, kwargs_words(value) if isinstance(value, dict) else value))}"


def _takes_network(args: CommonArgs, found: Any, own: Any) -> bool:
    """Whether the algorithm of ``args`` trains networks of the class ``found``, as it does ``own``."""
    needed = getattr(get_algorithm(args.algorithm).load(), "network_type", object)
    if found.recurrent != own.recurrent or not issubclass(found, needed):
        return False
    try:
        if issubclass(found, PolicyNetwork):
            found.refuse_algorithm(args)
    except ArgumentError:
        return False
    return True
