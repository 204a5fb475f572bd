"""The training algorithms that the commands know. Importing this loads none of them."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ALGORITHMS", "load_trainer"]

ALGORITHMS = ("ppo-mlp", "ppo-lstm")


def load_trainer(algorithm: str) -> Any:
    """The module of one of `ALGORITHMS`, with its ``Args`` and ``main(argv)``."""
    return importlib.import_module(f"mikasa_robo.baselines.{algorithm.replace('-', '_')}")
