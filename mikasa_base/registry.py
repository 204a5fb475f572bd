"""The table of all environments: it drives registration, `mikasa list --suite base`, the documentation and the tests."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym

__all__ = ["BY_NAME", "ENV_IDS", "ROWS", "VARIANTS", "EnvRow", "MemoryType", "Tier", "Variant", "load", "register_all"]

Tier = Literal["diagnostic", "complex"]
"""In the terms of the MIKASA paper (arXiv 2502.10550), section 5: diagnostic environments show vectors and test memory
alone; complex ones show images."""
MemoryType = Literal["object", "spatial", "sequential", "capacity"]
"""What memory is tested for, in the terms of its section 4.2."""

VECTOR_SUFFIX = "Vector"


@dataclass(frozen=True, kw_only=True)
class EnvRow:
    """A family of environments: ``<name>-v0``, which takes any kwargs, and ``<name><Preset>-v0``.

    Scores are returns of an episode or, with ``score="success"``, the share of episodes with success; the key "" stands
    for ``<name>-v0``. Where none is known, there is no key.
    """

    name: str
    """Stem of the IDs."""
    tier: Tier
    memory: tuple[MemoryType, ...]
    lag: str
    """Steps between a cue and its recall, for people to read."""
    entry_point: str
    """``module:Class`` of the single environment."""
    steps: Mapping[str, int]
    """The most steps that an episode can take, by preset, as the scores."""
    source: str
    """Where the environment comes from: publication and, if it is on top of one, library."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Those of ``<name>-v0``; only what JSON can hold."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Kwargs by the name of the preset."""
    vector_entry_point: str | None = None
    """``module:Class`` of the form that steps all environments at once, where there is one."""
    score: Literal["return", "success"] = "return"
    perfect: Mapping[str, float] = field(default_factory=dict)
    """Mean score of `perfect_agent`, which remembers all that it has seen."""
    memoryless: Mapping[str, float] = field(default_factory=dict)
    """Mean score of `memoryless_agent`, which acts on the present observation alone."""
    chance: Mapping[str, float] = field(default_factory=dict)
    """Mean score of uniformly random actions, where it can be computed."""
    perfect_agent: str | None = None
    """``module:Class`` of a :class:`mikasa_base.agents.agent.Agent`."""
    memoryless_agent: str | None = None
    """``module:Class``, likewise."""
    extra: str | None = None
    """The pip extra of mikasa-suite that brings what the environment needs."""
    requires: tuple[str, ...] = ()
    """Modules, by the names of import, that the extra brings."""
    weak: str = ""
    """Why this is a weak test of memory, where it is."""
    image: bool = False
    """Whether observations are images."""


@dataclass(frozen=True)
class Variant:
    """One ID: a row with one of its presets, or with none ("")."""

    row: EnvRow
    preset: str

    @property
    def id(self) -> str:
        """ID for ``gym.make``."""
        return f"{self.row.name}{self.preset}-v0"

    @property
    def kwargs(self) -> dict[str, Any]:
        """What the environment is made with unless ``gym.make`` is told otherwise."""
        return {**self.row.kwargs, **(self.row.presets[self.preset] if self.preset else {})}

    @property
    def steps(self) -> int:
        """The most steps that an episode can take."""
        return self.row.steps[self.preset]

    @property
    def perfect(self) -> float | None:
        """Score of an agent that remembers everything; None where unknown."""
        return self.row.perfect.get(self.preset)

    @property
    def memoryless(self) -> float | None:
        """Score of an agent without memory; None where unknown."""
        return self.row.memoryless.get(self.preset)

    @property
    def chance(self) -> float | None:
        """Score of random actions; None where unknown."""
        return self.row.chance.get(self.preset)


_LEVELS = ("Easy", "Medium", "Hard")
_DECKS: tuple[dict[str, Any], ...] = ({"num_decks": 1}, {"num_decks": 2}, {"num_decks": 3})
_NOISE: tuple[dict[str, Any], ...] = ({"noise_sigma": 0.1}, {"noise_sigma": 0.2}, {"noise_sigma": 0.3})
_POLE: tuple[dict[str, Any], ...] = (
    {"max_episode_length": 200},
    {"max_episode_length": 400},
    {"max_episode_length": 600},
)
_MAZE: tuple[dict[str, Any], ...] = ({"size": 10}, {"size": 14}, {"size": 18})
_Three = tuple[float, float, float]
# name; memory; lag; kwargs, steps, score with memory and without it at each level; the two agents; why it is weak
_POPGYM: tuple[
    tuple[
        str,
        tuple[MemoryType, ...],
        str,
        tuple[dict[str, Any], ...],
        tuple[int, int, int],
        _Three,
        _Three,
        tuple[str, str],
        str,
    ],
    ...,
] = (
    (
        "RepeatFirst",
        ("object",),
        "up to the episode (51; 51, 415, 831)",
        ({"num_decks": 1}, {"num_decks": 8}, {"num_decks": 16}),
        (51, 415, 831),
        (1, 1, 1),
        (-0.46, -0.5, -0.5),
        ("popgym:First", "popgym:FirstIfOnView"),
        "",
    ),
    (
        "RepeatPrevious",
        ("sequential", "object"),
        "k - 1 (3; 3, 31, 63)",
        ({"num_decks": 1, "k": 4}, {"num_decks": 2, "k": 32}, {"num_decks": 3, "k": 64}),
        (51, 103, 155),
        (1, 1, 1),
        (-0.49, -0.49, -0.5),
        ("popgym:Previous", "popgym:OtherSuit"),
        "",
    ),
    (
        "Autoencode",
        ("sequential",),
        "up to the episode (103; 103, 207, 311)",
        _DECKS,
        (103, 207, 311),
        (1, 1, 1),
        (-0.47, -0.49, -0.49),
        ("popgym:Reciter", "popgym:LastIfOnView"),
        "",
    ),
    (
        "CountRecall",
        ("object", "capacity"),
        "any, up to the episode",
        (
            {"num_decks": 1, "deck_type": "colors"},
            {"num_decks": 2, "deck_type": "suits"},
            {"num_decks": 4, "deck_type": "ranks"},
        ),
        (51, 103, 207),
        (1, 1, 1),
        (-0.92, -0.92, -0.88),
        ("popgym:Counter", "popgym:HalfOfThem"),
        "",
    ),
    (
        "Concentration",
        ("capacity",),
        "any, up to the episode",
        tuple(
            {"num_decks": decks, "deck_type": kind, "previous_action": False}
            for decks, kind in ((1, "colors"), (2, "colors"), (1, "ranks"))
        ),
        (104, 208, 104),
        (0.82, 0.81, 0.7),
        (0.45, 0.47, -0.81),
        ("popgym:Finder", "popgym:Turner"),
        "",
    ),
    (
        "HigherLower",
        ("object", "sequential"),
        "any, up to the episode",
        _DECKS,
        (51, 103, 155),
        (0.53, 0.52, 0.51),
        (0.5, 0.5, 0.5),
        ("popgym:CardCounter", "popgym:HigherIfLow"),
        "counting the cards adds 0.01 to 0.04 to what the card on view allows",
    ),
    (
        "MultiarmedBandit",
        ("object", "capacity"),
        "any, up to the episode",
        tuple({"num_bandits": arms, "episode_length": 20 * arms, "previous_action": False} for arms in (10, 20, 30)),
        (200, 400, 600),
        (0.7, 0.78, 0.8),
        (0, 0, 0),
        ("popgym:BestArm", "popgym:Arm"),
        "",
    ),
    (
        "Battleship",
        ("spatial",),
        "any, up to the episode",
        tuple({"board_size": size, "previous_action": True} for size in (8, 10, 12)),
        (64, 100, 144),
        (0.52, 0.57, 0.59),
        (0.15, 0.16, 0.17),
        ("boards:ShipFinder", "boards:RowByRow"),
        "",
    ),
    (
        "MineSweeper",
        ("spatial",),
        "any, up to the episode",
        tuple({"difficulty": level.lower(), "previous_action": True} for level in _LEVELS),
        (14, 30, 54),
        (0.63, 0.47, 0.52),
        (-0.22, -0.39, -0.43),
        ("boards:MineFinder", "boards:RowByRow"),
        "",
    ),
    (
        "PositionOnlyCartPole",
        ("sequential",),
        "1: two positions tell a velocity",
        _POLE,
        (200, 400, 600),
        (1, 1, 1),
        (0.22, 0.11, 0.07),
        ("control:PoleFromPositions", "control:Lean"),
        "",
    ),
    (
        "VelocityOnlyCartPole",
        ("sequential",),
        "any, up to the episode",
        _POLE,
        (200, 400, 600),
        (1, 1, 1),
        (0.975, 0.84, 0.62),
        ("control:PoleFromVelocities", "control:Lean"),
        "a linear policy of the velocities alone balances the pole, through all 200 steps of Easy",
    ),
    (
        "NoisyPositionOnlyCartPole",
        ("sequential",),
        "any, up to the episode",
        _NOISE,
        (200, 200, 200),
        (0.99, 0.63, 0.38),
        (0.23, 0.18, 0.175),
        ("control:PoleFromPositions", "control:Lean"),
        "",
    ),
    (
        "PositionOnlyPendulum",
        ("sequential",),
        "1: two positions tell a velocity",
        tuple({"max_episode_length": steps} for steps in (200, 150, 100)),
        (200, 150, 100),
        (0.92, 0.89, 0.83),
        (0.24, 0.25, 0.26),
        ("control:SwingFromNoise", "control:TurnAgainst"),
        "",
    ),
    (
        "NoisyPositionOnlyPendulum",
        ("sequential",),
        "any, up to the episode",
        _NOISE,
        (200, 200, 200),
        (0.89, 0.69, 0.6),
        (0.14, 0.14, 0.14),
        ("control:SwingFromNoise", "control:TurnAgainst"),
        "",
    ),
    (
        "LabyrinthExplore",
        ("spatial",),
        "any, up to the episode",
        _MAZE,
        (1023, 1023, 1023),
        (0.97, 0.93, 0.87),
        (0.97, 0.92, 0.87),
        ("boards:Explorer", "boards:WallFollower"),
        "the mazes have no loops, so that following the wall, by the last action in the observation, visits all of it",
    ),
    (
        "LabyrinthEscape",
        ("spatial",),
        "any, up to the episode",
        _MAZE,
        (1023, 1023, 1023),
        (0.96, 0.92, 0.85),
        (0.95, 0.9, 0.85),
        ("boards:Explorer", "boards:WallFollower"),
        "the mazes have no loops, so that following the wall, by the last action in the observation, leads out",
    ),
)

ROWS: tuple[EnvRow, ...] = (
    EnvRow(
        name="MemoryLength",
        tier="diagnostic",
        memory=("object",),
        lag="10; 10, 30, 100",
        entry_point="mikasa_base.envs.memory_length:MemoryLength",
        vector_entry_point="mikasa_base.envs.memory_length:MemoryLengthVector",
        kwargs={"memory_length": 10, "num_bits": 1},
        presets={
            "Easy": {"memory_length": 10, "num_bits": 1},
            "Medium": {"memory_length": 30, "num_bits": 1},
            "Hard": {"memory_length": 100, "num_bits": 3},
        },
        steps={"": 11, "Easy": 11, "Medium": 31, "Hard": 101},
        perfect={"": 1, "Easy": 1, "Medium": 1, "Hard": 1},
        memoryless={"": 0, "Easy": 0, "Medium": 0, "Hard": 0},
        chance={"": 0, "Easy": 0, "Medium": 0, "Hard": 0},
        perfect_agent="mikasa_base.agents.memory_length:PerfectMemory",
        memoryless_agent="mikasa_base.agents.memory_length:Memoryless",
        source="Osband et al. 2020, Behaviour Suite for Reinforcement Learning (arXiv 1908.03568)",
    ),
    EnvRow(
        name="PassiveTMaze",
        tier="diagnostic",
        memory=("object",),
        lag="10; 10, 10, 50, 100",
        entry_point="mikasa_base.envs.passive_t_maze:PassiveTMaze",
        vector_entry_point="mikasa_base.envs.passive_t_maze:PassiveTMazeVector",
        kwargs={"corridor_length": 10},
        presets={
            "Dense": {"corridor_length": 10, "penalty": -0.1},
            "Easy": {"corridor_length": 10},
            "Medium": {"corridor_length": 50},
            "Hard": {"corridor_length": 100},
        },
        steps={"": 11, "Dense": 11, "Easy": 11, "Medium": 51, "Hard": 101},
        perfect={"": 1, "Dense": 1, "Easy": 1, "Medium": 1, "Hard": 1},
        memoryless={"": 0.5, "Dense": 0.5, "Easy": 0.5, "Medium": 0.5, "Hard": 0.5},
        perfect_agent="mikasa_base.agents.passive_t_maze:PerfectMemory",
        memoryless_agent="mikasa_base.agents.passive_t_maze:Memoryless",
        source="Ni et al. 2023, When Do Transformers Shine in RL? (arXiv 2307.03864)",
    ),
    EnvRow(
        name="MemoryCards",
        tier="diagnostic",
        memory=("capacity",),
        lag="any, up to the episode's length",
        entry_point="mikasa_base.envs.memory_cards:MemoryCards",
        vector_entry_point="mikasa_base.envs.memory_cards:MemoryCardsVector",
        kwargs={"num_pairs": 5},
        presets={"Easy": {"num_pairs": 5}, "Medium": {"num_pairs": 10}, "Hard": {"num_pairs": 30}},
        steps={"": 50, "Easy": 50, "Medium": 200, "Hard": 1800},
        perfect={"": -5.3, "Easy": -5.3, "Medium": -14.2, "Hard": -51.4},
        memoryless={"": -20, "Easy": -20, "Medium": -90, "Hard": -870},
        perfect_agent="mikasa_base.agents.memory_cards:PerfectMemory",
        memoryless_agent="mikasa_base.agents.memory_cards:Memoryless",
        source="Esslinger et al. 2022, Deep Transformer Q-Networks (arXiv 2206.01078)",
    ),
    *(
        EnvRow(
            name=f"Numpad{form}",
            tier="diagnostic",
            memory=("sequential",),
            lag="any, up to the episode's length",
            entry_point=f"mikasa_base.envs.numpad:Numpad{form}",
            vector_entry_point=f"mikasa_base.envs.numpad:Numpad{form}Vector",
            kwargs={"size": 3, "sequence_length": 4, "max_steps": max_steps},
            presets={
                "Easy": {"size": 3, "sequence_length": 3},
                "Medium": {"size": 3, "sequence_length": 4},
                "Hard": {"size": 4, "sequence_length": 6},
            },
            steps={"": max_steps, "Easy": max_steps, "Medium": max_steps, "Hard": max_steps},
            perfect=dict(zip(("", "Easy", "Medium", "Hard"), perfect, strict=True)),
            memoryless=dict(zip(("", "Easy", "Medium", "Hard"), memoryless, strict=True)),
            perfect_agent=f"mikasa_base.agents.numpad:{agents}PerfectMemory",
            memoryless_agent=f"mikasa_base.agents.numpad:{agents}Memoryless",
            source="Humplik et al. 2019, Meta reinforcement learning as task inference (arXiv 1905.06424)",
        )
        for form, max_steps, agents, perfect, memoryless in (
            ("Discrete", 500, "Tile", (390, 368, 390, 362), (22, 29, 22, 6.6)),
            ("Continuous", 200, "Rolling", (18.7, 17.6, 18.7, 9.5), (2.2, 3.4, 2.2, 1.5)),
            ("ContinuousDiscreteActions", 200, "Rolling", (8.8, 9.4, 8.8, 5.6), (1.9, 2.2, 1.9, 1.5)),
        )
    ),
    *(
        EnvRow(
            name=name,
            tier="diagnostic",
            memory=memory,
            lag=lag,
            entry_point=f"mikasa_base.adapters.popgym:{name}",
            kwargs=presets[0],
            presets=dict(zip(_LEVELS, presets, strict=True)),
            steps=dict(zip(("", *_LEVELS), (steps[0], *steps), strict=True)),
            perfect=dict(zip(("", *_LEVELS), (perfect[0], *perfect), strict=True)),
            memoryless=dict(zip(("", *_LEVELS), (memoryless[0], *memoryless), strict=True)),
            perfect_agent=f"mikasa_base.agents.{agents[0]}",
            memoryless_agent=f"mikasa_base.agents.{agents[1]}",
            source="Morad et al. 2023, POPGym (arXiv 2303.01859), on top of popgym",
            extra="popgym",
            requires=("popgym", "mazelib"),
            weak=weak,
        )
        for name, memory, lag, presets, steps, perfect, memoryless, agents, weak in _POPGYM
    ),
    EnvRow(
        name="VelocityOnlyPendulum",
        tier="diagnostic",
        memory=("sequential",),
        lag="any, up to the episode: the angle is the sum of all that was turned",
        entry_point="mikasa_base.envs.velocity_only_pendulum:VelocityOnlyPendulum",
        kwargs={"max_episode_length": 200},
        presets={
            "Easy": {"max_episode_length": 200},
            "Medium": {"max_episode_length": 150},
            "Hard": {"max_episode_length": 100},
        },
        steps={"": 200, "Easy": 200, "Medium": 150, "Hard": 100},
        perfect={"": 0.91, "Easy": 0.91, "Medium": 0.88, "Hard": 0.82},
        memoryless={"": 0.39, "Easy": 0.39, "Medium": 0.39, "Hard": 0.39},
        perfect_agent="mikasa_base.agents.control:SwingFromVelocity",
        memoryless_agent="mikasa_base.agents.control:TurnAgainst",
        source="Morad et al. 2023, POPGym (arXiv 2303.01859), with the velocity in place of the angle",
    ),
    EnvRow(
        name="Ballet",
        tier="complex",
        memory=("sequential", "object"),
        lag="23 to 46; 31 to 62, 31 to 124, 63 to 504, from the first move of the right dancer to the question",
        entry_point="mikasa_base.envs.ballet:Ballet",
        kwargs={"num_dancers": 2, "dance_delay": 8},
        presets={
            "Easy": {"num_dancers": 2, "dance_delay": 16},
            "Medium": {"num_dancers": 4, "dance_delay": 16},
            "Hard": {"num_dancers": 8, "dance_delay": 48},
        },
        steps={"": 1024, "Easy": 320, "Medium": 320, "Hard": 1024},
        perfect={"": 1, "Easy": 1, "Medium": 1, "Hard": 1},
        memoryless={"": 1 / 2, "Easy": 1 / 2, "Medium": 1 / 4, "Hard": 1 / 8},
        perfect_agent="mikasa_base.agents.ballet:PerfectMemory",
        memoryless_agent="mikasa_base.agents.ballet:Memoryless",
        source="Lampinen et al. 2021, Towards mental time travel (arXiv 2105.14039)",
        image=True,
    ),
    EnvRow(
        name="BalletLight",
        tier="complex",
        memory=("sequential", "object"),
        lag="23 to 46, from the first move of the right dancer to the question",
        entry_point="mikasa_base.envs.ballet:BalletLight",
        kwargs={"num_dancers": 2, "dance_delay": 8},
        steps={"": 1024},
        perfect={"": 1},
        memoryless={"": 1 / 2},
        perfect_agent="mikasa_base.agents.ballet:PerfectMemory",
        memoryless_agent="mikasa_base.agents.ballet:Memoryless",
        source="Lampinen et al. 2021, Towards mental time travel (arXiv 2105.14039), simplified",
        image=True,
    ),
    EnvRow(
        name="PassiveVisualMatch",
        tier="complex",
        memory=("object",),
        lag="distractor_steps + 1 at least (31; 31, 61, 121)",
        entry_point="mikasa_base.envs.passive_visual_match:PassiveVisualMatch",
        vector_entry_point="mikasa_base.envs.passive_visual_match:PassiveVisualMatchVector",
        kwargs={"distractor_steps": 30},
        presets={
            "Easy": {"distractor_steps": 30},
            "Medium": {"distractor_steps": 60},
            "Hard": {"distractor_steps": 120},
        },
        steps={"": 60, "Easy": 60, "Medium": 90, "Hard": 150},
        score="success",
        perfect={"": 1, "Easy": 1, "Medium": 1, "Hard": 1},
        memoryless={"": 1 / 3, "Easy": 1 / 3, "Medium": 1 / 3, "Hard": 1 / 3},
        perfect_agent="mikasa_base.agents.passive_visual_match:PerfectMemory",
        memoryless_agent="mikasa_base.agents.passive_visual_match:Memoryless",
        source="Ni et al. 2023, When Do Transformers Shine in RL? (arXiv 2307.03864), "
        "after Hung et al. 2019 (arXiv 1810.06721)",
        image=True,
    ),
    EnvRow(
        name="MortarMayhem",
        tier="complex",
        memory=("capacity", "sequential"),
        lag="4 num_commands + 18 + 20 i for command i (58 to 238; 34 to 94, 46 to 166, 58 to 238)",
        entry_point="mikasa_base.envs.mortar_mayhem:MortarMayhem",
        kwargs={"num_commands": 10},
        presets={"Easy": {"num_commands": 4}, "Medium": {"num_commands": 7}, "Hard": {"num_commands": 10}},
        steps={"": 274, "Easy": 106, "Medium": 190, "Hard": 274},
        perfect={"": 1, "Easy": 0.4, "Medium": 0.7, "Hard": 1},
        memoryless={"": 0.019, "Easy": 0.019, "Medium": 0.019, "Hard": 0.019},
        perfect_agent="mikasa_base.agents.mortar_mayhem:PerfectMemory",
        memoryless_agent="mikasa_base.agents.mortar_mayhem:Memoryless",
        source="Pleines et al. 2023, Memory Gym (ICLR 2023)",
        image=True,
    ),
    EnvRow(
        name="MortarMayhemGrid",
        tier="complex",
        memory=("capacity", "sequential"),
        lag="4 num_commands + 6 + 4 i for command i (46 to 82)",
        entry_point="mikasa_base.envs.mortar_mayhem:MortarMayhemGrid",
        kwargs={"num_commands": 10},
        steps={"": 118},
        perfect={"": 1},
        memoryless={"": 0.033},
        perfect_agent="mikasa_base.agents.mortar_mayhem:PerfectMemory",
        memoryless_agent="mikasa_base.agents.mortar_mayhem:Memoryless",
        source="Pleines et al. 2023, Memory Gym (ICLR 2023)",
        image=True,
    ),
    EnvRow(
        name="MysteryPath",
        tier="complex",
        memory=("capacity", "spatial"),
        lag="any, up to the episode",
        entry_point="mikasa_base.envs.mystery_path:MysteryPath",
        steps={"": 512},
        score="success",
        perfect={"": 1},
        memoryless={"": 0.35},
        perfect_agent="mikasa_base.agents.mystery_path:PerfectMemory",
        memoryless_agent="mikasa_base.agents.mystery_path:Memoryless",
        source="Pleines et al. 2023, Memory Gym (ICLR 2023)",
        image=True,
    ),
    EnvRow(
        name="MysteryPathGrid",
        tier="complex",
        memory=("capacity", "spatial"),
        lag="any, up to the episode",
        entry_point="mikasa_base.envs.mystery_path:MysteryPathGrid",
        steps={"": 128},
        score="success",
        perfect={"": 1},
        memoryless={"": 0.24},
        perfect_agent="mikasa_base.agents.mystery_path:PerfectMemory",
        memoryless_agent="mikasa_base.agents.mystery_path:Memoryless",
        source="Pleines et al. 2023, Memory Gym (ICLR 2023)",
        image=True,
    ),
    EnvRow(
        name="MinigridMemory",
        tier="complex",
        memory=("object",),
        lag="the length of the corridor, up to size - 1 (10; 10, 12, 16)",
        entry_point="mikasa_base.adapters.minigrid:MinigridMemory",
        kwargs={"size": 11, "random_length": False},
        presets={"Easy": {"size": 11}, "Medium": {"size": 13}, "Hard": {"size": 17}},
        steps={"": 605, "Easy": 605, "Medium": 845, "Hard": 1445},
        perfect={"": 0.98, "Easy": 0.98, "Medium": 0.99, "Hard": 0.99},
        memoryless={"": 0.5, "Easy": 0.5, "Medium": 0.5, "Hard": 0.5},
        perfect_agent="mikasa_base.agents.minigrid:PerfectMemory",
        memoryless_agent="mikasa_base.agents.minigrid:Memoryless",
        source="Chevalier-Boisvert et al. 2023, Minigrid & Miniworld (arXiv 2306.13831), on top of minigrid",
        extra="minigrid",
        requires=("minigrid",),
        image=True,
    ),
    EnvRow(
        name="ViZDoomTwoColors",
        tier="complex",
        memory=("object",),
        lag="any, up to the episode, once the column is gone (after 45 steps; never, 45, 22)",
        entry_point="mikasa_base.adapters.vizdoom:ViZDoomTwoColors",
        kwargs={"column_steps": 45},
        presets={"Easy": {"column_steps": 0}, "Medium": {"column_steps": 45}, "Hard": {"column_steps": 22}},
        steps={"": 525, "Easy": 525, "Medium": 525, "Hard": 525},
        perfect={"": 14, "Easy": 14, "Medium": 14, "Hard": 14},
        memoryless={"": 0.2, "Easy": 0.2, "Medium": 0.2, "Hard": 0.2},
        perfect_agent="mikasa_base.agents.vizdoom:PerfectMemory",
        memoryless_agent="mikasa_base.agents.vizdoom:Memoryless",
        source="Sorokin et al. 2022, Explain My Surprise (NeurIPS 2022), in a scenario of its own on top of vizdoom",
        extra="vizdoom",
        requires=("vizdoom",),
        image=True,
    ),
    EnvRow(
        name="MemoryMaze",
        tier="complex",
        memory=("spatial",),
        lag="any, up to the episode",
        entry_point="mikasa_base.adapters.memory_maze:MemoryMaze",
        kwargs={"size": 9},
        presets={"9x9": {"size": 9}, "11x11": {"size": 11}, "13x13": {"size": 13}, "15x15": {"size": 15}},
        steps={"": 1000, "9x9": 1000, "11x11": 2000, "13x13": 3000, "15x15": 4000},
        source="Pasukonis et al. 2022, Evaluating Long-Term Memory in 3D Mazes (arXiv 2210.13383), on top of memory-maze; "
        "it gives 34.8, 58.0, 74.5 and 87.7 as the scores of an oracle that is told the shortest ways",
        extra="memory-maze",
        requires=("memory_maze", "dm_control", "mujoco"),
        image=True,
    ),
)
"""All families, the diagnostic ones first."""


def load(entry_point: str) -> Any:
    """What ``module:attribute`` names, imported now."""
    module, _, attribute = entry_point.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _variants(rows: tuple[EnvRow, ...]) -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    for row in rows:
        for variant in (Variant(row, preset) for preset in ("", *row.presets)):
            if variant.id in variants:
                raise ValueError(f"{variant.id} stands twice in ROWS of {__name__}: rename a row or a preset")
            variants[variant.id] = variant
    return variants


BY_NAME: dict[str, EnvRow] = {row.name: row for row in ROWS}
VARIANTS: dict[str, Variant] = _variants(ROWS)
"""Every ID with its row and preset, in the order of the table."""
ENV_IDS: tuple[str, ...] = tuple(VARIANTS)


def register_all() -> None:
    """Registers every ID with Gymnasium, each with entry points that are strings: see :mod:`mikasa_base.factory`."""
    for env_id, variant in VARIANTS.items():
        row = variant.row
        entry_point = f"mikasa_base.factory:{row.name}"
        gym.register(
            id=env_id,
            entry_point=entry_point,
            vector_entry_point=entry_point + VECTOR_SUFFIX if row.vector_entry_point else None,
            kwargs=variant.kwargs,
        )
