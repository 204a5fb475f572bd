"""What the tests of the commands share: a task of the user's own, and checkpoints of untrained policies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from mikasa_robo import catalog
from mikasa_robo.baselines import ppo_mlp
from mikasa_robo.baselines.checkpoints import save_policy
from mikasa_robo.baselines.networks import ActorCritic

OWN_MODULE = "examples.point_back"
OWN_ID = "PointBack-v0"


@pytest.fixture
def own_task() -> Iterator[str]:
    """``module:ID`` of a task of the user's own, which is not imported yet. What it registers is removed afterwards."""
    rows, specs = dict(catalog._TABLE), dict(gym.registry)
    sys.modules.pop(OWN_MODULE, None)
    yield f"{OWN_MODULE}:{OWN_ID}"
    sys.modules.pop(OWN_MODULE, None)
    for registry, before in ((catalog._TABLE, rows), (gym.registry, specs)):
        table: dict[str, Any] = registry
        table.clear()
        table.update(before)


def save_untrained(path: Path, env_id: str, obs_dim: int, module: str | None = None, **args: Any) -> Path:
    """A checkpoint of an untrained PPO-MLP policy with 8 actions; ``module`` registers its task."""
    torch.manual_seed(0)
    trained = ppo_mlp.Args(env_id=env_id, env_module=module, **args)
    save_policy(path, ActorCritic(obs_dim, 8, (16,)), trained, step=0)
    return path
