"""What a spawned process runs for tests/test_base_registry.py; it knows of mikasa_base only what a spec names."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec


def is_registered(env_id: str) -> bool:
    return env_id in gym.registry


def first_steps(text: str) -> bytes:
    """Observations and rewards of the first steps of the environment that a spec in JSON describes."""
    env = gym.make(EnvSpec.from_json(text))
    env.action_space.seed(3)
    came: list[Any] = [env.reset(seed=3)[0]]
    for _ in range(3):
        came.extend(env.step(env.action_space.sample())[:2])
    env.close()
    return b"".join(np.asarray(leaf).tobytes() for part in came for leaf in _leaves(part))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return list(value) if isinstance(value, tuple) else [value]


def loaded(name: str) -> bool:
    return name in sys.modules
