"""Checkpoints of tensors and plain values only, so that loading one never runs code that it carries."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .networks import ActorCritic, RecurrentActorCritic

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Policy",
    "load_checkpoint",
    "load_policy",
    "load_recurrent_policy",
    "save_checkpoint",
    "save_policy",
    "write_atomically",
]

Policy = ActorCritic | RecurrentActorCritic

PPO_MLP = "mikasa/ppo-mlp/1"
PPO_LSTM = "mikasa/ppo-lstm/1"
RUN = "mikasa/run/1"


class CheckpointError(RuntimeError):
    """A file is not a checkpoint that can be used here; the message says which and why."""


def write_atomically(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` so that a reader or a crash meets the old file or the new one, never half of one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a result should be as readable as any other file the user writes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save_checkpoint(path: Path, payload: Mapping[str, Any]) -> None:
    """Writes a mapping of tensors and plain values (str, int, float, bool, None, list, tuple, dict) atomically.

    Raises:
        CheckpointError: ``payload`` holds anything else, or the file cannot be written (a full disk, say). What stood
            under that name is still there.
    """
    _require_plain(payload, "payload")
    buffer = io.BytesIO()
    torch.save(dict(payload), buffer)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; earlier checkpoints are intact: make room, then go on with --resume"
        ) from error


def load_checkpoint(path: Path, kind: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Reads a checkpoint of the given ``kind`` (its "format" entry) without running any code stored in it.

    Raises:
        CheckpointError: the file is no checkpoint, holds arbitrary objects, or is of another kind.
        FileNotFoundError: there is no such file.
    """
    try:
        payload = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is not a checkpoint of tensors and plain values ({reason}); pass one that training wrote"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != kind:
        found = payload.get("format") if isinstance(payload, dict) else type(payload).__name__
        raise CheckpointError(f"{path} has the format {found!r}, expected {kind!r}; pass a checkpoint of that kind")
    return payload


def save_policy(path: Path, policy: Policy, *, env_id: str, step: int, args: Mapping[str, Any]) -> None:
    """Writes everything that `load_policy` or `load_recurrent_policy` needs, and what the policy was trained on."""
    save_checkpoint(
        path,
        {
            "format": PPO_MLP if isinstance(policy, ActorCritic) else PPO_LSTM,
            "env_id": env_id,
            "step": step,
            "args": dict(args),
            "network": policy.plain(),
            "state_dict": {name: tensor.detach().cpu() for name, tensor in policy.state_dict().items()},
        },
    )


def load_policy(path: Path | str, device: torch.device | str = "cpu") -> ActorCritic:
    """Rebuilds a PPO-MLP policy from its checkpoint alone; ``policy.act(obs)`` then maps (B, …) to (B, A).

    Raises:
        CheckpointError: the file is not a PPO-MLP checkpoint.
        FileNotFoundError: there is no such file.
    """
    payload = load_checkpoint(Path(path), PPO_MLP, device)
    policy = ActorCritic(**payload["network"])
    policy.load_state_dict(payload["state_dict"])
    return policy.to(device).eval()


def load_recurrent_policy(path: Path | str, device: torch.device | str = "cpu") -> RecurrentActorCritic:
    """Rebuilds a PPO-LSTM policy from its checkpoint alone; `ppo_lstm.Player` plays it.

    Raises:
        CheckpointError: the file is not a PPO-LSTM checkpoint.
        FileNotFoundError: there is no such file.
    """
    payload = load_checkpoint(Path(path), PPO_LSTM, device)
    policy = RecurrentActorCritic(**payload["network"])
    policy.load_state_dict(payload["state_dict"])
    return policy.to(device).eval()


class Checkpoints:
    """The checkpoints in a run's folder that training can go on from, ``resume-<step>.pt``.

    Args:
        run_dir: the folder.
        keep: how many are kept.
    """

    def __init__(self, run_dir: Path, keep: int) -> None:
        self._run_dir = run_dir
        self._keep = keep

    def save(self, step: int, payload: Mapping[str, Any]) -> None:
        """Writes one, and then removes those that are too many. Raises CheckpointError where it cannot be written."""
        save_checkpoint(self._run_dir / f"resume-{step:012d}.pt", {"format": RUN, "step": step, **payload})
        for path in _resumable(self._run_dir)[: -self._keep]:
            path.unlink(missing_ok=True)

    @staticmethod
    def load_newest(run_dir: Path) -> dict[str, Any]:
        """What was saved last.

        Raises:
            CheckpointError: there is none, or it is no checkpoint of a run; the message tells how to go on.
        """
        found = _resumable(run_dir)
        if not found:
            raise CheckpointError(
                f"--resume {run_dir} holds no checkpoint (resume-*.pt); name the folder of a run, or start a new one"
            )
        try:
            return load_checkpoint(found[-1], RUN)
        except CheckpointError as error:
            older = "move it away to go on from an older one" if len(found) > 1 else "start a new run"
            raise CheckpointError(f"--resume {run_dir}: {error}; {older}") from error


def _resumable(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("resume-*.pt"))


def _require_plain(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, int, float, bool, torch.Tensor)):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _require_plain(item, f"{where}[{index}]")
    else:
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot hold; make it a tensor or a plain value"
        )
