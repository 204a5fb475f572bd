"""The rows of the POPGym environments: each has the presets Easy, Medium and Hard."""

from __future__ import annotations

from typing import Any

from .env_row import EnvRow, MemoryType

__all__ = ["POPGYM_ROWS"]

_LEVELS = ("Easy", "Medium", "Hard")
_DECKS: tuple[dict[str, Any], ...] = ({"num_decks": 1}, {"num_decks": 2}, {"num_decks": 3})
_NOISE: tuple[dict[str, Any], ...] = ({"noise_sigma": 0.1}, {"noise_sigma": 0.2}, {"noise_sigma": 0.3})
_POLE: tuple[dict[str, Any], ...] = (
    {"max_episode_length": 200},
    {"max_episode_length": 400},
    {"max_episode_length": 600},
)
_MAZE: tuple[dict[str, Any], ...] = ({"size": 10}, {"size": 14}, {"size": 18})


def _row(
    name: str,
    *,
    memory: tuple[MemoryType, ...],
    lag: str,
    presets: tuple[dict[str, Any], ...],
    steps: tuple[int, int, int],
    perfect: tuple[float, float, float],
    memoryless: tuple[float, float, float],
    agents: tuple[str, str],
    weak: str = "",
) -> EnvRow:
    """The row of one environment; ``<name>-v0`` is the same as its preset Easy.

    Args:
        name, memory, lag, weak: see `EnvRow`.
        presets: the arguments at each level.
        steps: the most steps of an episode at each level.
        perfect, memoryless: the mean scores at each level.
        agents: ``module:Class`` below ``mikasa_base.agents``, of the agent with perfect memory and of the memoryless one.
    """
    perfect_agent, memoryless_agent = (f"mikasa_base.agents.{agent}" for agent in agents)
    names = ("", *_LEVELS)
    return EnvRow(
        name=name,
        tier="diagnostic",
        memory=memory,
        lag=lag,
        entry_point=f"mikasa_base.adapters.popgym:{name}",
        kwargs=presets[0],
        presets=dict(zip(_LEVELS, presets, strict=True)),
        steps=dict(zip(names, (steps[0], *steps), strict=True)),
        perfect=dict(zip(names, (perfect[0], *perfect), strict=True)),
        memoryless=dict(zip(names, (memoryless[0], *memoryless), strict=True)),
        perfect_agent=perfect_agent,
        memoryless_agent=memoryless_agent,
        source="Morad et al. 2023, POPGym (arXiv 2303.01859), on top of popgym",
        extra="popgym",
        requires=("popgym", "mazelib"),
        weak=weak,
    )


POPGYM_ROWS: tuple[EnvRow, ...] = (
    _row(
        "RepeatFirst",
        memory=("object",),
        lag="up to the episode (51; 51, 415, 831)",
        presets=({"num_decks": 1}, {"num_decks": 8}, {"num_decks": 16}),
        steps=(51, 415, 831),
        perfect=(1, 1, 1),
        memoryless=(-0.46, -0.5, -0.5),
        agents=("popgym:First", "popgym:FirstIfOnView"),
    ),
    _row(
        "RepeatPrevious",
        memory=("sequential", "object"),
        lag="k - 1 (3; 3, 31, 63)",
        presets=({"num_decks": 1, "k": 4}, {"num_decks": 2, "k": 32}, {"num_decks": 3, "k": 64}),
        steps=(51, 103, 155),
        perfect=(1, 1, 1),
        memoryless=(-0.49, -0.49, -0.5),
        agents=("popgym:Previous", "popgym:OtherSuit"),
    ),
    _row(
        "Autoencode",
        memory=("sequential",),
        lag="up to the episode (103; 103, 207, 311)",
        presets=_DECKS,
        steps=(103, 207, 311),
        perfect=(1, 1, 1),
        memoryless=(-0.47, -0.49, -0.49),
        agents=("popgym:Reciter", "popgym:LastIfOnView"),
    ),
    _row(
        "CountRecall",
        memory=("object", "capacity"),
        lag="any, up to the episode",
        presets=(
            {"num_decks": 1, "deck_type": "colors"},
            {"num_decks": 2, "deck_type": "suits"},
            {"num_decks": 4, "deck_type": "ranks"},
        ),
        steps=(51, 103, 207),
        perfect=(1, 1, 1),
        memoryless=(-0.92, -0.92, -0.88),
        agents=("popgym:Counter", "popgym:HalfOfThem"),
    ),
    _row(
        "Concentration",
        memory=("capacity",),
        lag="any, up to the episode",
        presets=tuple(
            {"num_decks": decks, "deck_type": kind, "previous_action": False}
            for decks, kind in ((1, "colors"), (2, "colors"), (1, "ranks"))
        ),
        steps=(104, 208, 104),
        perfect=(0.81, 0.81, 0.7),
        memoryless=(0.45, 0.47, -0.81),
        agents=("popgym:Finder", "popgym:Turner"),
    ),
    _row(
        "HigherLower",
        memory=("object", "sequential"),
        lag="any, up to the episode",
        presets=_DECKS,
        steps=(51, 103, 155),
        perfect=(0.53, 0.52, 0.51),
        memoryless=(0.5, 0.5, 0.5),
        agents=("popgym:CardCounter", "popgym:HigherIfLow"),
        weak="counting the cards adds 0.01 to 0.04 to the score of an agent that sees the current card only",
    ),
    _row(
        "MultiarmedBandit",
        memory=("object", "capacity"),
        lag="any, up to the episode",
        presets=tuple(
            {"num_bandits": arms, "episode_length": 20 * arms, "previous_action": False} for arms in (10, 20, 30)
        ),
        steps=(200, 400, 600),
        perfect=(0.7, 0.78, 0.8),
        memoryless=(0, 0, 0),
        agents=("popgym:BestArm", "popgym:Arm"),
    ),
    _row(
        "Battleship",
        memory=("spatial",),
        lag="any, up to the episode",
        presets=tuple({"board_size": size, "previous_action": True} for size in (8, 10, 12)),
        steps=(64, 100, 144),
        perfect=(0.52, 0.57, 0.59),
        memoryless=(0.17, 0.172, 0.177),
        agents=("boards:ShipFinder", "boards:RowByRow"),
    ),
    _row(
        "MineSweeper",
        memory=("spatial",),
        lag="any, up to the episode",
        presets=tuple({"difficulty": level.lower(), "previous_action": True} for level in _LEVELS),
        steps=(14, 30, 54),
        perfect=(0.725, 0.5, 0.47),
        memoryless=(-0.22, -0.39, -0.43),
        agents=("boards:MineFinder", "boards:RowByRow"),
    ),
    _row(
        "PositionOnlyCartPole",
        memory=("sequential",),
        lag="1: two positions give a velocity",
        presets=_POLE,
        steps=(200, 400, 600),
        perfect=(1, 1, 1),
        memoryless=(0.215, 0.107, 0.071),
        agents=("control:PoleFromPositions", "control:Lean"),
    ),
    _row(
        "VelocityOnlyCartPole",
        memory=("sequential",),
        lag="any, up to the episode",
        presets=_POLE,
        steps=(200, 400, 600),
        perfect=(1, 1, 1),
        memoryless=(1, 0.998, 0.83),
        agents=("control:PoleFromVelocities", "control:LeanOnVelocities"),
        weak="a linear policy that sees the velocities alone keeps the pole up to the end in Easy, and nearly always in "
        "Medium",
    ),
    _row(
        "NoisyPositionOnlyCartPole",
        memory=("sequential",),
        lag="any, up to the episode",
        presets=_NOISE,
        steps=(200, 200, 200),
        perfect=(0.99, 0.63, 0.38),
        memoryless=(0.25, 0.21, 0.18),
        agents=("control:PoleFromPositions", "control:Lean"),
    ),
    _row(
        "PositionOnlyPendulum",
        memory=("sequential",),
        lag="1: two positions give a velocity",
        presets=tuple({"max_episode_length": steps} for steps in (200, 150, 100)),
        steps=(200, 150, 100),
        perfect=(0.91, 0.88, 0.82),
        memoryless=(0.35, 0.35, 0.355),
        agents=("control:SwingFromNoise", "control:TurnAgainst"),
    ),
    _row(
        "NoisyPositionOnlyPendulum",
        memory=("sequential",),
        lag="any, up to the episode",
        presets=_NOISE,
        steps=(200, 200, 200),
        perfect=(0.89, 0.69, 0.6),
        memoryless=(0.34, 0.335, 0.325),
        agents=("control:SwingFromNoise", "control:TurnAgainst"),
    ),
    _row(
        "LabyrinthExplore",
        memory=("spatial",),
        lag="any, up to the episode",
        presets=_MAZE,
        steps=(1023, 1023, 1023),
        perfect=(0.97, 0.93, 0.87),
        memoryless=(0.97, 0.92, 0.87),
        agents=("boards:Explorer", "boards:WallFollower"),
        weak="the mazes have no loops, so an agent that follows the wall (it sees its last action) visits all of it",
    ),
    _row(
        "LabyrinthEscape",
        memory=("spatial",),
        lag="any, up to the episode",
        presets=_MAZE,
        steps=(1023, 1023, 1023),
        perfect=(0.96, 0.92, 0.85),
        memoryless=(0.95, 0.9, 0.85),
        agents=("boards:Explorer", "boards:WallFollower"),
        weak="the mazes have no loops, so an agent that follows the wall (it sees its last action) finds the way out",
    ),
)
