"""Checkpoints hold tensors and plain values only, so that loading one never runs code that it carries.

Algorithm and network are stored by their names in the `registry`, together with the modules that register them. A module is
never imported because a checkpoint names it: the error says which option imports it.
"""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from mikasa_robo.deprecation import deprecated_names

from .files import find_policy_file, write_atomically
from .networks import NetworkPolicy
from .plain_values import why_not_plain
from .registry import AlgorithmSpec, RegistryError, get_algorithm, get_network, use_memory

if TYPE_CHECKING:
    from .arguments import CommonArgs
    from .protocol import Network

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "algorithm_of",
    "load_checkpoint",
    "load_network",
    "load_policy",
    "network_from",
    "read_bytes",
    "read_evaluation",
    "read_policy",
    "require_finite",
    "require_memory",
    "save_checkpoint",
    "save_policy",
    "write_atomically",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "load_recurrent_policy": "load_network",
        "Policy": f"{__package__}.policy_network:PolicyNetwork",
        "PPO_MLP": "PPO_MLP_1",
        "PPO_LSTM": "PPO_LSTM_1",
    },
)

POLICY = "mikasa/policy/2"
PPO_MLP_1, PPO_LSTM_1 = "mikasa/ppo-mlp/1", "mikasa/ppo-lstm/1"
POLICY_1 = {PPO_MLP_1: ("ppo-mlp", "mlp"), PPO_LSTM_1: ("ppo-lstm", "lstm")}
"""Formats of version 1, with the names of their algorithm and network."""
POLICY_ENTRIES: dict[str, Any] = {
    "algorithm": str,
    "algorithm_module": str | None,
    "network_name": str,
    "network_module": str | None,
    "env_id": str,
    "env_module": str | None,
    "step": int,
    "args": dict,
    "network": dict,
    "state_dict": dict,
}
"""What the checkpoint of a policy holds, with types."""
RUN_ENTRIES: dict[str, Any] = {"algorithm": str, "world_size": int, "args": dict, "step": int, "horizon": int | None}
"""What a checkpoint to resume from holds besides the state of the run, with types."""
MODULE_OF = {
    "env_id": "env_module",
    "algorithm": "algorithm_module",
    "network": "network_module",
    "network_name": "network_module",
}
"""Entries that are names, with the entry for the module that registers the name."""
RUN = "mikasa/run/2"
RUN_1 = "mikasa/run/1"


class CheckpointError(RuntimeError):
    """A file is not a checkpoint that can be used here; the message names the file, the reason and the fix."""


def save_checkpoint(path: Path, payload: Mapping[str, Any]) -> None:
    """Write a mapping of tensors and plain values (str, int, float, bool, None, list, tuple, dict) atomically.

    Raises:
        CheckpointError: ``payload`` holds anything else, or the file cannot be written, for example because the disk is
            full. An older file of that name is left as it is.
    """
    if (why := why_not_plain(payload, "payload")) is not None:
        raise CheckpointError(why)
    buffer = io.BytesIO()
    torch.save(dict(payload), buffer)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are intact: make room, then continue with --resume"
        ) from error


def read_bytes(path: Path) -> bytes:
    """The content of a checkpoint. Raises CheckpointError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; name a file, such as the checkpoint.pt of a run"
        ) from error


def load_checkpoint(
    path: Path, formats: str | Iterable[str], device: torch.device | str = "cpu", data: bytes | None = None
) -> dict[str, Any]:
    """Read a checkpoint without running any code stored in it.

    Args:
        path: the file, or the folder of a run: then its checkpoint.pt or else its best.pt.
        formats: the "format" entries that are accepted.
        device: where tensors are put.
        data: the content of the file, where it has been read already.

    Raises:
        CheckpointError: the file cannot be read, is not a checkpoint, holds arbitrary objects, or has another format.
        FileNotFoundError: there is no such file.
    """
    formats = [formats] if isinstance(formats, str) else list(formats)
    if data is None:
        path = find_policy_file(path)
        data = read_bytes(path)
    try:
        _require_intact(data)
        payload = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:  # what torch raises depends on the bytes
        reason = textwrap.shorten((str(error) or type(error).__name__).splitlines()[0], 200)
        raise CheckpointError(
            f"{path} is not a checkpoint of tensors and plain values, or is damaged ({reason}); pass one that training wrote"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") not in formats:
        found = payload.get("format") if isinstance(payload, dict) else type(payload).__name__
        expected = " or ".join(map(repr, formats))
        raise CheckpointError(f"{path} has the format {found!r}, expected {expected}; pass a checkpoint of that kind")
    return payload


def _require_intact(data: bytes) -> None:
    """Raise ValueError where a bit has changed. Checkpoints are zip archives with checksums, which torch ignores."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:  # torch never compresses; a few bytes could hold gigabytes
                raise ValueError(f"{entry.filename} is compressed")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} does not fit")


def save_policy(
    path: Path, network: Network, args: CommonArgs, step: int, evaluation: Mapping[str, float] | None = None
) -> None:
    """Write a trained network.

    Args:
        path: of the file.
        network: the network.
        args: of its training.
        step: the number of environment steps so far.
        evaluation: how this network did, for `read_evaluation`.
    """
    save_checkpoint(
        path,
        {
            "format": POLICY,
            "algorithm": args.algorithm,
            "algorithm_module": args.algorithm_module,
            "network_name": args.network_name,
            "network_module": args.network_module,
            "env_id": args.env_id,
            "env_module": args.env_module,
            "step": step,
            "args": args.to_dict(),
            "network": network.to_dict(),
            "state_dict": {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()},
            **({} if evaluation is None else {"evaluation": dict(evaluation)}),
        },
    )


def read_evaluation(path: Path) -> tuple[int, dict[str, float]] | None:
    """The step of a policy, and the ``evaluation`` that `save_policy` was given; None where the file does not tell."""
    try:
        payload = read_policy(path)
    except (CheckpointError, FileNotFoundError):
        return None
    found = payload.get("evaluation")
    if not isinstance(found, dict) or not all(isinstance(value, float) for value in found.values()):
        return None
    return payload["step"], found


def read_policy(path: Path | str, device: torch.device | str = "cpu", data: bytes | None = None) -> dict[str, Any]:
    """What `save_policy` wrote, of any version; imports and builds nothing.

    Names are bare: where one names a module, that is in the entry for modules.

    Args:
        path, device, data: see `load_checkpoint`.

    Raises:
        CheckpointError: the file is not the checkpoint of a policy, or lacks an entry.
        FileNotFoundError: there is no such file.
    """
    payload = load_checkpoint(Path(path), (POLICY, *POLICY_1), device, data)
    if payload["format"] in POLICY_1:
        payload["algorithm"], payload["network_name"] = POLICY_1[payload["format"]]
        payload |= {"algorithm_module": None, "network_module": None, "env_module": None}
    _require_entries(payload, POLICY_ENTRIES, path)
    _require_weights(payload["state_dict"], path)
    _split_modules(payload)
    _split_modules(payload["args"])
    return payload


def _require_entries(payload: Mapping[str, Any], entries: Mapping[str, Any], path: Path | str) -> None:
    missing = [name for name in entries if name not in payload]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}; pass a checkpoint that training wrote")
    for name, kind in entries.items():
        if not isinstance(payload[name], kind) or (isinstance(payload[name], bool) and kind is int):
            found = type(payload[name]).__name__
            raise CheckpointError(f"{path} has {name} of type {found}; pass a checkpoint that training wrote")


def _require_weights(state_dict: Mapping[str, Any], path: Path | str) -> None:
    """Raise CheckpointError where these are not the weights of a network, or training has diverged."""
    for name, value in state_dict.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"{path} has weights {name!r} that are no tensor; pass a checkpoint that training wrote"
            )
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            # such as a stride of 0: a small file that stands for more memory than there is
            raise CheckpointError(f"{path} has weights {name!r} that overlap; pass a checkpoint that training wrote")
        # Infinite numbers may be right in a buffer, such as a mask of attention: `require_finite` knows the parameters.
        if value.is_floating_point() and bool(value.isnan().any()):
            raise CheckpointError(f"{path} has {_diverged(name)}; pass an earlier checkpoint")


def require_finite(network: Any) -> None:
    """Raise ValueError where a parameter is infinite or NaN."""
    # A network need not be a module. Then nothing tells its parameters from the rest.
    values = network.named_parameters() if isinstance(network, torch.nn.Module) else network.state_dict().items()
    for name, value in values:
        if not bool(value.isfinite().all()):
            raise ValueError(f"it has {_diverged(name)}")


def _diverged(name: str) -> str:
    return f"weights {name!r} that are not finite, so training has diverged"


def _split_modules(values: dict[str, Any]) -> None:
    """Turn names ``"module:NAME"`` into bare ones. Otherwise reading the ID would import what the file names."""
    for name, module in MODULE_OF.items():
        value = values.get(name)
        if isinstance(value, str) and ":" in value:
            values[module], _, values[name] = value.rpartition(":")


def algorithm_of(payload: dict[str, Any], path: Path | str) -> AlgorithmSpec:
    """The algorithm that trained a policy (see `read_policy`). Raises CheckpointError where it is not registered."""
    name, module = payload["algorithm"], payload["algorithm_module"]
    try:
        return get_algorithm(name)
    except RegistryError as error:
        raise CheckpointError(f"{path}: {_imported_by('algorithm', name, module)}") from error


def network_from(payload: dict[str, Any], path: Path | str, device: torch.device | str = "cpu") -> Any:
    """The network of a policy (see `read_policy`), on ``device``.

    Raises:
        CheckpointError: the network is not registered, or what the checkpoint holds does not fit it.
    """
    name, module = payload["network_name"], payload["network_module"]
    try:
        network_class = get_network(name).load()
    except RegistryError as error:
        raise CheckpointError(f"{path}: {_imported_by('network', name, module)}") from error
    try:
        _require_sizes(network_class, payload)
        network: Any = network_class.from_dict(payload["network"])
        network.load_state_dict(payload["state_dict"])
    except RegistryError as error:  # a memory of a user's own
        raise CheckpointError(f"{path}: {error}") from error
    except Exception as error:  # what a network raises depends on the values
        reason = textwrap.shorten(str(error), 300)
        raise CheckpointError(
            f"{path} does not fit the network {name!r} ({reason}); use the version that the policy was trained with"
        ) from error
    try:
        require_finite(network)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; pass an earlier checkpoint") from error
    return network.to(device).eval()


def _require_sizes(network_class: Any, payload: Mapping[str, Any]) -> None:
    """Raise ValueError where the network is far larger than the weights, before memory is taken for it."""
    found = sum(value.numel() for value in payload["state_dict"].values())
    try:
        with torch.device("meta"):
            network = network_class.from_dict(payload["network"])
    except (NotImplementedError, RuntimeError, TypeError):
        # A class of somebody's own computes with numbers, which these tensors do not have. Or the description is damaged:
        # then this raises again.
        with _Bounded(20 * found + 10_000_000):
            network = network_class.from_dict(payload["network"])
    # Weights of unknown size, such as LazyLinear's, get that of the file.
    needed = sum(value.numel() for value in network.state_dict().values() if not is_lazy(value))
    if needed > 4 * found:  # an older version may have stored shared weights once
        raise ValueError(f"the network has {needed} weights, and the file holds {found}")


class _Bounded(TorchDispatchMode):
    """Within it, ValueError is raised before more than ``most`` numbers have been made as new tensors."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = self.left = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == "device" for argument in func._schema.arguments):  # it makes a tensor: how large?
            options = {name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")}
            # There may be no such function without storage.
            with contextlib.suppress(NotImplementedError, RuntimeError):
                self.left -= func(*args, **{**options, "device": torch.device("meta")}).numel()
            if self.left < 0:
                raise ValueError(f"making the network takes more than {self.most} numbers, too many for its weights")
        return func(*args, **kwargs)


def _imported_by(kind: str, name: str, module: str | None) -> str:
    if module is None:
        return f"there is no {kind} {name!r} in this version"
    return (
        f"{kind} {name!r} is in the module {module}, which is imported only if you name it; add --{kind} {module}:{name}, "
        f"or in Python import {module} first"
    )


def load_network(path: Path | str, device: torch.device | str = "cpu", memory: str | None = None) -> Any:
    """The network of a checkpoint that `save_policy` wrote, on ``device``; see `protocol.Network`.

    Args:
        path, device: see `load_checkpoint`.
        memory: ``"module:Class"`` where the network has a memory of your own: then its module is imported.

    Raises:
        CheckpointError: the file is not the checkpoint of a policy, it has another memory, or its network is not
            registered.
        FileNotFoundError: there is no such file.
        EnvIdError, RegistryError: there is no such module, or no such memory in it.
    """
    payload = read_policy(path, device)
    require_memory(payload, path, memory)
    if memory is not None:
        use_memory(memory)
    return network_from(payload, path, device)


def require_memory(payload: Mapping[str, Any], path: Path | str, asked: str | None) -> None:
    """Raise CheckpointError where a user named a memory, ``asked``, and a policy's checkpoint has another one or none."""
    found = payload["network"].get("memory")
    if asked is not None and asked != found:
        has = "no --memory" if found is None else f"the memory {found!r}"
        fix = "leave it out"
        if found is not None and ":" in found:
            fix = f"use --memory {found} (in Python: load_policy(..., memory={found!r}))"
        raise CheckpointError(f"{path} has {has}, not {asked!r}; {fix}")


def load_policy(path: Path | str, device: torch.device | str = "cpu", memory: str | None = None) -> NetworkPolicy:
    """The policy of a checkpoint: ``policy.act(obs)`` maps observations (N, …) to actions (N, A).

    A policy with memory remembers from call to call; call ``policy.on_episode_start()`` when new episodes begin.

    Args:
        path, device, memory: see `load_network`.

    Raises:
        CheckpointError, FileNotFoundError, EnvIdError, RegistryError: see `load_network`.
    """
    return NetworkPolicy(load_network(path, device, memory))


class Checkpoints:
    """The checkpoints ``resume-<step>.pt`` in a run's folder, from which training can continue.

    Args:
        run_dir: the folder.
        keep: number of checkpoints to keep.
    """

    def __init__(self, run_dir: Path, keep: int) -> None:
        self._run_dir = run_dir
        self._keep = keep

    def save(self, step: int, payload: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove the oldest. Raises CheckpointError where it cannot be written."""
        save_checkpoint(self._run_dir / f"resume-{step:012d}.pt", {"format": RUN, "step": step, **payload})
        for path in _resumable(self._run_dir)[: -self._keep]:
            path.unlink(missing_ok=True)

    @staticmethod
    def load_newest(run_dir: Path) -> dict[str, Any]:
        """The newest checkpoint.

        Raises:
            CheckpointError: there is none, or it is not the checkpoint of a run.
        """
        found = _resumable(run_dir)
        if not found:
            raise CheckpointError(
                f"--resume {run_dir} holds no checkpoint (resume-*.pt); name the folder of a run, or start a new run"
            )
        try:
            payload = load_checkpoint(found[-1], (RUN, RUN_1))
            if payload["format"] == RUN_1:
                _require_entries(payload, {"team_size": int, "optimizer": dict}, found[-1])
                payload["world_size"] = payload.pop("team_size")
                payload["algorithm_state"] = {"optimizer": payload.pop("optimizer")}
            payload.setdefault("horizon", None)  # a former version did not write it
            _require_entries(payload, RUN_ENTRIES, found[-1])
            _require_weights(payload.get("policy", {}), found[-1])
        except CheckpointError as error:
            older = "move it away to continue from an older one" if len(found) > 1 else "start a new run"
            raise CheckpointError(f"--resume {run_dir}: {error}; {older}") from error
        _split_modules(payload["args"])
        return payload


def _resumable(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("resume-*.pt")) if os.path.isdir(run_dir) else []
