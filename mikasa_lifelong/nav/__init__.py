"""Navigation: 16 mazes as vectorised environments in numpy. Their names are in `mikasa_lifelong.nav.mazes.MAZES`."""

from __future__ import annotations

import gymnasium as gym

from mikasa_lifelong.nav.mazes import MAZES

__all__ = ["ENV_IDS", "MAZES", "register_all"]

ENV_IDS: tuple[str, ...] = tuple(f"{name}-v0" for name in MAZES)
"""The gym IDs of the mazes."""


def register_all() -> None:
    """Registers every maze with Gymnasium."""
    for name in MAZES:
        gym.register(
            id=f"{name}-v0",
            entry_point="mikasa_lifelong.nav.game:NavMaze",
            vector_entry_point="mikasa_lifelong.nav.game:NavMazeVector",
            kwargs={"maze": name},
        )
