"""Numpad: find the order of the tiles by trial and error, then repeat it."""

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
"""In pixels: the side of a tile, the space on each side of it, and the distance from one tile to the next."""
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
    """The tiles and their lights. Subclasses implement the ball."""

    def __init__(self, num_envs: int, size: int, sequence_length: int, max_steps: int) -> None:
        super().__init__(num_envs)
        self.size = checks.integer("size", size, 2, 6)
        self.length = checks.integer("sequence_length", sequence_length, 2, min(self.size**2, 8))
        self.max_steps = checks.integer("max_steps", max_steps, 1, 1_000_000)
        self.num_tiles = self.size**2
        self.num_uniforms = 2
        self.walks = _walks(self.size, self.length)
        self.sequence = np.zeros((num_envs, self.length), np.int64)
        self.rank = np.zeros(
            (num_envs, self.num_tiles), np.int64
        )  # index of a tile in the sequence; length if it is not in it
        self.lit = np.zeros(num_envs, np.int64)  # number of lit tiles; they are the first of the sequence
        self.best = np.zeros(num_envs, np.int64)  # largest number of lit tiles since all were lit
        self.tile = np.zeros(num_envs, np.int64)  # the tile that the ball is on, or was on last
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
        """Moves the ball of environments ``which`` to its tile."""

    @abstractmethod
    def move(self, actions: npt.NDArray[Any]) -> tuple[Bools, Bools]:
        """Moves the balls. Returns which of them entered another tile, and which hit the wall of the board, each (N,)."""

    @abstractmethod
    def position(self) -> Floats:
        """Positions of the balls (N, 2): y (down) and x, in pixels."""


class _DiscreteRules(_Rules):
    def __init__(self, num_envs: int, size: int, sequence_length: int, max_steps: int) -> None:
        super().__init__(num_envs, size, sequence_length, max_steps)
        self.observation_space = gym.spaces.Box(0, 1, (2, self.size, self.size), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        places = np.stack(np.divmod(np.arange(self.num_tiles), self.size), axis=1)
        there = places[:, None] + MOVES  # (tiles, actions, 2)
        inside = ((there >= 0) & (there < self.size)).all(axis=2)
        self.neighbor = np.where(
            inside, there @ (self.size, 1), np.arange(self.num_tiles)[:, None]
        )  # a wall: the tile itself

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
        cell = (self.ball / PITCH).astype(np.int64)  # one too many at the far walls, where there is no tile
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
    """A ball lights the tiles of a board if it visits them in a hidden order.

    Task: each episode draws the order, a walk from neighbour to neighbour over ``sequence_length`` different tiles. The
    ball does not start on its first tile. Entering the next tile of the order lights it. Entering any other tile or hitting
    the wall of the board turns all lights off, except that of the first tile of the order if the ball is on it. When all
    tiles of the order are lit, they stay so for one step. Then all are off, and the order can be repeated.
    Observation: float32 (2, size, size): which tiles are lit; which tile the ball is on.
    Actions: Discrete(4): up, right, down, left.
    Reward: 1 whenever more tiles are lit than at any time since all were lit.
    End: truncates after ``max_steps`` steps.
    Source: Humplik et al. 2019, Meta reinforcement learning as task inference (arXiv 1905.06424), Numpad.

    Args:
        size: Tiles along each side of the board, 2 to 6.
        sequence_length: Tiles in the sequence, 2 to 8, and at most as many as the board has.
        max_steps: Length of an episode, 1 to 1,000,000.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, size: int = 3, sequence_length: int = 4, max_steps: int = 500, render_mode: str | None = None
    ) -> None:
        super().__init__(_DiscreteRules(1, size, sequence_length, max_steps), render_mode)


class NumpadContinuous(SingleEnv):
    """`NumpadDiscrete` with a ball that rolls.

    Task: as there. Tiles of 10 px lie 10 px apart and 5 px from the walls. The ball may roll between them, return to the
    tile that it was on last and be stopped by a wall without any effect on the lights. At the start the ball rests in the
    centre of a tile.
    Observation: float32 (4 + size²,): position of the ball, y (down) and x, divided by the size of the board; its velocity,
        y and x, divided by the maximum; which tiles are lit, row by row.
    Actions: Box(-1, 1, (2,)), added to the velocity, y (down) and x, in px per step, which is clipped to ±5 along each
        axis. Actions beyond the bounds are clipped.
    Reward, End, Source: see `NumpadDiscrete`.

    Args:
        size: Tiles along each side of the board, 2 to 6.
        sequence_length: Tiles in the sequence, 2 to 8, and at most as many as the board has.
        max_steps: Length of an episode, 1 to 1,000,000.
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
        size: Tiles along each side of the board, 2 to 6.
        sequence_length: Tiles in the sequence, 2 to 8, and at most as many as the board has.
        max_steps: Length of an episode, 1 to 1,000,000.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, size: int = 3, sequence_length: int = 4, max_steps: int = 200, render_mode: str | None = None
    ) -> None:
        super().__init__(_ContinuousRules(1, size, sequence_length, max_steps, discrete_actions=True), render_mode)


class NumpadDiscreteVector(BatchedEnv):
    """`NumpadDiscrete` as a vector environment; see there and `BatchedEnv`."""

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
    """`NumpadContinuous` as a vector environment; see there and `BatchedEnv`."""

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
    """`NumpadContinuousDiscreteActions` as a vector environment; see there and `BatchedEnv`."""

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
