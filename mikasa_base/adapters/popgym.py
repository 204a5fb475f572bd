"""POPGym's environments (extra ``popgym``), on top of its own classes, with its faults corrected.

For all of them:

- ``info`` is empty. POPGym's holds hidden facts: the counts, the bandits' probabilities, the position, the maze.
- An array that was returned is never written again.
- An episode is either terminated or truncated, never both.
- One generator, seeded by ``reset``, decides everything. Python's and numpy's global generators are left alone.
- An action outside the space raises an error, and so does a step before the first reset.
- An image shows what the agent sees.

Each class lists its further differences from POPGym.

Source of all: Morad et al. 2023, POPGym: Benchmarking Partially Observable Reinforcement Learning (arXiv 2303.01859),
popgym 1.0.7.
"""

from __future__ import annotations

from .popgym_boards import (
    Battleship,
    LabyrinthEscape,
    LabyrinthExplore,
    MineSweeper,
)
from .popgym_cards import (
    Autoencode,
    Concentration,
    CountRecall,
    HigherLower,
    MultiarmedBandit,
    RepeatFirst,
    RepeatPrevious,
)
from .popgym_control import (
    NoisyPositionOnlyCartPole,
    NoisyPositionOnlyPendulum,
    PositionOnlyCartPole,
    PositionOnlyPendulum,
    VelocityOnlyCartPole,
)

__all__ = [
    "Autoencode",
    "Battleship",
    "Concentration",
    "CountRecall",
    "HigherLower",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MineSweeper",
    "MultiarmedBandit",
    "NoisyPositionOnlyCartPole",
    "NoisyPositionOnlyPendulum",
    "PositionOnlyCartPole",
    "PositionOnlyPendulum",
    "RepeatFirst",
    "RepeatPrevious",
    "VelocityOnlyCartPole",
]
