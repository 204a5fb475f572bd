"""The files that the fuzzer's commands find in their folder: a run, checkpoints good and damaged, and what is none."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import torch

from mikasa_robo.baselines import ppo_mlp
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.networks import ActorCritic

__all__ = ["PWNED", "damage", "lay_out"]

PWNED = "pwned"
"""The file that the hostile checkpoint's code would make."""
TRAIN = (
    "--env-id PassiveTMaze-v0 --preset none --num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 32 "
    "--update-epochs 1 --hidden-sizes 8 --eval-every 16 --eval-episodes 1 --eval-num-envs 1 --no-video --torch-threads 1 "
    "--checkpoint-every 16 --env-kwargs corridor_length=2"
)


class _Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {PWNED}",)


def lay_out(folder: Path) -> None:
    """Make the files in ``folder``."""
    with contextlib.redirect_stderr(io.StringIO()):
        for name in ("run", "resumable"):
            if ppo_mlp.main([*TRAIN.split(), "--run-dir", str(folder / name)]):
                raise RuntimeError("the run that the cases use cannot be trained")
    (folder / "resumable" / "final_eval.json").unlink()
    torch.manual_seed(0)
    args = ppo_mlp.Args(env_id="RememberColor3-v0", sim_backend="physx_cpu")
    save_policy(folder / "robo.pt", ActorCritic(65, 8, (8,)), args, step=0)
    good = (folder / "run" / "checkpoint.pt").read_bytes()
    rng = random.Random(0)
    for name in ("truncated", "nan", "flipped", "hostile"):
        (folder / f"{name}.pt").write_bytes(damage(rng, good, name))
    (folder / "foreign.csv").write_text("date,price\n2024-01-01,3\n")
    (folder / "empty").touch()
    (folder / "text.json").write_text('{"format": "something else"}')
    (folder / "folder").mkdir()
    (folder / "folder" / "progress.csv").write_text("date,price\n2024-01-01,3\n")
    (folder / "sweep.toml").write_text(
        'out = "sweep"\ntasks = ["PassiveTMaze-v0"]\nalgorithms = ["ppo-mlp"]\nseeds = [1, 2]\n'
    )
    os.mkfifo(folder / "pipe")
    (folder / "broken-link").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    run = json.loads((folder / "run" / "final_eval.json").read_text(encoding="utf-8"))
    (folder / "eval.json").write_text(json.dumps({"format": "mikasa/eval/1", "env_id": run["env_id"]}))


def damage(rng: random.Random, data: bytes, how: str) -> bytes:
    """A checkpoint that is no good, made of a good one.

    Args:
        how: truncated, flipped (one to three bits), noise, hostile (a pickle that runs a command), nan, or entries.
    """
    if how == "truncated":
        return data[: rng.randrange(len(data))]
    if how == "flipped":
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if how == "noise":
        start = rng.randrange(len(data))
        return data[:start] + rng.randbytes(rng.randrange(1, 64)) + data[start + rng.randrange(64) :]
    if how == "hostile" and rng.random() < 0.5:
        return pickle.dumps(_Hostile())
    payload = torch.load(io.BytesIO(data), weights_only=True)
    if how == "hostile":
        payload["args"]["env_id"] = _Hostile()
    elif how == "nan":
        name = rng.choice([name for name, tensor in payload["state_dict"].items() if tensor.is_floating_point()])
        payload["state_dict"][name].view(-1)[0] = rng.choice([float("nan"), float("inf")])
    else:
        _change_entry(rng, payload)
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def _change_entry(rng: random.Random, payload: dict[Any, Any]) -> None:
    """Remove or replace an entry at any depth."""
    name = rng.choice(list(payload))
    inner = payload[name]
    if isinstance(inner, dict) and inner and rng.random() < 0.7:
        _change_entry(rng, inner)
    elif rng.random() < 0.3:
        del payload[name]
    else:
        replacements = (
            None,
            -1,
            10**9,
            2**70,
            1.5,
            "x",
            "module:NAME",
            [],
            [10**6],
            {},
            {"a": 1},
            True,
            torch.zeros(3, 3),
        )
        payload[name] = rng.choice(replacements)
