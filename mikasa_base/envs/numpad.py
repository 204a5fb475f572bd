"""Numpad: find out, by trying, in which order the tiles want to be visited, and go that way again and again."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image, canvas, disc, rectangle

__all__ = [
    "MAX_SPEED",
    "MOVES",
    "PITCH",
    "TILE",
    "NumpadContinuous",
    "NumpadContinuousDiscreteActions",
    "NumpadContinuousDiscreteActionsVector",
    "NumpadContinuousVector",
    "NumpadDiscrete",
    "NumpadDiscreteVector",
]

MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
"""Row and column of a step up, right, down, left."""
TILE, SPACING, PITCH = 10.0, 5.0, 20.0
"""px: a tile, the space on each side of it, and from one tile to the next."""
MAX_SPEED = 5.0
"""px per step, along each axis."""
_PICTURE = 192
_GROUND, _DARK, _LIT, _BALL = (30, 30, 30), (90, 90, 90), (60, 180, 75), (255, 225, 25)


@lru_cache(maxsize=8)
def _walks(size: int, length: int) -> Ints:
    """All walks over ``length`` tiles of a ``size`` x ``size`` board that visit no tile twice, (W, length)."""
    walks = [[tile] for tile in range(size * size)]
    for _ in range(length - 1):
        walks = [
            [*walk, tile]
            for walk in walks
            for row, column in (MOVES + divmod(walk[-1], size)).tolist()
            if 0 <= row < size and 0 <= column < size and (tile := row * size + column) not in walk
        ]
    return np.array(walks, np.int64)


class _Rules(Game):
    """The tiles and their lights; where the ball is, is for the subclasses."""

    def __init__(self, num_envs: int, size: int, sequence_length: int, max_steps: int) -> None:
        super().__init__(num_envs)
        self.size = checks.integer("size", size, 2, 6)
        self.length = checks.integer("sequence_length", sequence_length, 2, min(self.size**2, 8))
        self.max_steps = checks.integer("max_steps", max_steps, 1, 1_000_000)
        self.num_tiles = self.size**2
        self.num_uniforms = 2
        self.walks = _walks(self.size, self.length)
        self.sequence = np.zeros((num_envs, self.length), np.int64)
        self.rank = np.zeros((num_envs, self.num_tiles), np.int64)  # place of a tile in the sequence; length if in none
        self.lit = np.zeros(num_envs, np.int64)  # the first so many tiles of the sequence are lit
        self.best = np.zeros(num_envs, np.int64)  # the most that were lit since all were
        self.tile = np.zeros(num_envs, np.int64)  # where the ball is, or was last
        self.steps = np.zeros(num_envs, np.int64)

    def begin(self, which: Ints, uniforms: Floats) -> None:
        sequence = self.walks[(uniforms[:, 0] * len(self.walks)).astype(np.int64)]
        self.sequence[which] = sequence
        self.rank[which] = self.length
        self.rank[which[:, None], sequence] = np.arange(self.length)
        # any tile but the first of the sequence
        start = (uniforms[:, 1] * (self.num_tiles - 1)).astype(np.int64)
        self.tile[which] = start + (start >= sequence[:, 0])
        self.lit[which] = self.best[which] = self.steps[which] = 0
        self.place(which)

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.steps += 1
        completed = self.lit == self.length
        self.lit[completed] = self.best[completed] = 0
        entered, bumped = self.move(actions)
        rank = self.rank[self.each, self.tile]
        right = entered & (rank == self.lit)
        wrong = (entered | bumped) & ~right
        self.lit = np.where(wrong, rank == 0, self.lit + right)
        reward = (self.lit > self.best).astype(np.float64)
        self.best = np.maximum(self.best, self.lit)
        return reward, np.zeros(self.num_envs, np.bool_), self.steps >= self.max_steps

    def lights(self) -> Bools:
        """Which tiles are lit, (N, size²)."""
        return self.rank < self.lit[:, None]

    def frame(self, i: int) -> Image:
        image = canvas(_PICTURE, _PICTURE, _GROUND)
        scale = _PICTURE / (PITCH * self.size)
        side = round(TILE * scale)
        for tile, lit in enumerate(self.lights()[i].tolist()):
            y, x = (round((PITCH * k + SPACING) * scale) for k in divmod(tile, self.size))
            rectangle(image, y, x, side, side, _LIT if lit else _DARK)
        y, x = (scale * self.position()[i]).tolist()
        disc(image, y, x, 3 * scale, _BALL)
        return image

    @abstractmethod
    def place(self, which: Ints) -> None:
        """Puts the ball of environments ``which`` onto its tile."""

    @abstractmethod
    def move(self, actions: npt.NDArray[Any]) -> tuple[Bools, Bools]:
        """Moves the balls and says which of them came to another tile, and which bumped into the wall of the board."""

    @abstractmethod
    def position(self) -> Floats:
        """Of the balls, (N, 2), y (down) and x, px."""


class _DiscreteRules(_Rules):
    def __init__(self, num_envs: int, size: int, sequence_length: int, max_steps: int) -> None:
        super().__init__(num_envs, size, sequence_length, max_steps)
        self.observation_space = gym.spaces.Box(0, 1, (2, self.size, self.size), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        places = np.stack(np.divmod(np.arange(self.num_tiles), self.size), axis=1)
        there = places[:, None] + MOVES  # (tiles, actions, 2)
        inside = ((there >= 0) & (there < self.size)).all(axis=2)
        self.neighbor = np.where(inside, there @ (self.size, 1), np.arange(self.num_tiles)[:, None])  # itself at a wall

    def place(self, which: Ints) -> None:
        pass

    def move(self, actions: npt.NDArray[Any]) -> tuple[Bools, Bools]:
        tile = self.neighbor[self.tile, actions]
        bumped = tile == self.tile
        self.tile = tile
        return ~bumped, bumped

    def observe(self) -> npt.NDArray[np.float32]:
        shown = np.zeros((self.num_envs, 2, self.num_tiles), np.float32)
        shown[:, 0] = self.lights()
        shown[self.each, 1, self.tile] = 1
        return shown.reshape(self.num_envs, 2, self.size, self.size)

    def position(self) -> Floats:
        return PITCH * (np.stack(np.divmod(self.tile, self.size), axis=1) + 0.5)


class _ContinuousRules(_Rules):
    def __init__(
        self, num_envs: int, size: int, sequence_length: int, max_steps: int, discrete_actions: bool = False
    ) -> None:
        super().__init__(num_envs, size, sequence_length, max_steps)
        self.discrete_actions = discrete_actions
        self.width = PITCH * self.size
        low = np.zeros(4 + self.num_tiles, np.float32)
        low[2:4] = -1
        self.observation_space = gym.spaces.Box(low, np.ones_like(low), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(4) if discrete_actions else gym.spaces.Box(-1, 1, (2,), np.float32)
        self.ball = np.zeros((num_envs, 2))
        self.velocity = np.zeros((num_envs, 2))

    def place(self, which: Ints) -> None:
        self.ball[which] = PITCH * (np.stack(np.divmod(self.tile[which], self.size), axis=1) + 0.5)
        self.velocity[which] = 0

    def move(self, actions: npt.NDArray[Any]) -> tuple[Bools, Bools]:
        push = MOVES[actions] if self.discrete_actions else actions
        velocity = (self.velocity + push).clip(-MAX_SPEED, MAX_SPEED)
        ball = self.ball + velocity
        self.ball = ball.clip(0.0, self.width)
        self.velocity = velocity * (self.ball == ball)
        cell = (self.ball / PITCH).astype(np.int64)  # at the far walls one too many, where there is no tile
        from_middle = np.abs(self.ball - PITCH * cell - PITCH / 2)
        on_tile = (from_middle[:, 0] <= TILE / 2) & (from_middle[:, 1] <= TILE / 2)
        tile = self.size * cell[:, 0] + cell[:, 1]
        entered = on_tile & (tile != self.tile)
        self.tile = np.where(entered, tile, self.tile)
        return entered, np.zeros(self.num_envs, np.bool_)

    def observe(self) -> npt.NDArray[np.float32]:
        shown = np.empty((self.num_envs, 4 + self.num_tiles), np.float32)
        shown[:, :2] = self.ball / self.width
        shown[:, 2:4] = self.velocity / MAX_SPEED
        shown[:, 4:] = self.lights()
        return shown

    def position(self) -> Floats:
        return self.ball


class NumpadDiscrete(SingleEnv):
    """A ball on a board of tiles lights them one after another if it visits them in a hidden order.

    Task: the order is a walk from neighbour to neighbour over ``sequence_length`` tiles, none twice, drawn anew for each
    episode; the ball does not start on its first tile. To come onto the next tile lights it. Any other tile, or the wall
    of the board, puts all lights out (and the first tile, if the ball is there, on again). Once all are lit they are
    shown so for one step; then they are out, and everything can be done again.
    Observation: float32 (2, size, size): which tiles are lit; where the ball is.
    Actions: Discrete(4): up, right, down, left.
    Reward: 1 for each tile that makes more tiles lit than ever since the last time that all were.
    End: truncates after ``max_steps`` steps.
    Source: Humplik et al. 2019, Meta reinforcement learning as task inference (arXiv 1905.06424), Numpad.

    Args:
        size: Tiles along each side of the board.
        sequence_length: Tiles in the sequence.
        max_steps: Length of an episode.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, size: int = 3, sequence_length: int = 4, max_steps: int = 500, render_mode: str | None = None
    ) -> None:
        super().__init__(_DiscreteRules(1, size, sequence_length, max_steps), render_mode)


class NumpadContinuous(SingleEnv):
    """`NumpadDiscrete` with a ball that rolls.

    Task: as there. Tiles of 10 px lie 10 px apart and 5 px off the walls; between them nothing happens, and neither does
    at a wall, which stops the ball, nor if the ball comes back to the tile that it was on last. At the start the ball
    rests in the middle of a tile.
    Observation: float32 (4 + size²,): place of the ball, y (down) and x, as a share of the board; its velocity, y and x,
        by the greatest; which tiles are lit, row by row.
    Actions: Box(-1, 1, (2,)), what is added to the velocity, y (down) and x, px per step; it stays within ±5 along each
        axis. Beyond the bounds they are brought to the nearest bound.
    Reward, End, Source: see `NumpadDiscrete`.

    Args:
        size: Tiles along each side of the board.
        sequence_length: Tiles in the sequence.
        max_steps: Length of an episode.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, size: int = 3, sequence_length: int = 4, max_steps: int = 200, render_mode: str | None = None
    ) -> None:
        super().__init__(_ContinuousRules(1, size, sequence_length, max_steps), render_mode)


class NumpadContinuousDiscreteActions(SingleEnv):
    """`NumpadContinuous` with Discrete(4) actions: 1 px per step is added to the velocity up, right, down or left.

    Task, Observation, Reward, End, Source: see `NumpadContinuous`.

    Args:
        size: Tiles along each side of the board.
        sequence_length: Tiles in the sequence.
        max_steps: Length of an episode.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, size: int = 3, sequence_length: int = 4, max_steps: int = 200, render_mode: str | None = None
    ) -> None:
        super().__init__(_ContinuousRules(1, size, sequence_length, max_steps, discrete_actions=True), render_mode)


class NumpadDiscreteVector(BatchedEnv):
    """Many `NumpadDiscrete` in step; see there and in `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 3,
        sequence_length: int = 4,
        max_steps: int = 500,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        rules = _DiscreteRules(batch_size(num_envs), size, sequence_length, max_steps)
        super().__init__(rules, render_mode, autoreset_mode)


class NumpadContinuousVector(BatchedEnv):
    """Many `NumpadContinuous` in step; see there and in `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 3,
        sequence_length: int = 4,
        max_steps: int = 200,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        rules = _ContinuousRules(batch_size(num_envs), size, sequence_length, max_steps)
        super().__init__(rules, render_mode, autoreset_mode)


class NumpadContinuousDiscreteActionsVector(BatchedEnv):
    """Many `NumpadContinuousDiscreteActions` in step; see there and in `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 3,
        sequence_length: int = 4,
        max_steps: int = 200,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        rules = _ContinuousRules(batch_size(num_envs), size, sequence_length, max_steps, discrete_actions=True)
        super().__init__(rules, render_mode, autoreset_mode)
