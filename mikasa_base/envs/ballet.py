"""Ballet: watch dancers one after another, then find the one who danced a given dance."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, text, upscale

__all__ = [
    "DANCES",
    "DIRECTIONS",
    "HOMES",
    "MOVES",
    "ROOM",
    "START",
    "STEPS",
    "TILE",
    "WATCH",
    "Ballet",
    "BalletLight",
    "Observation",
    "Place",
]

Observation = dict[str, Any]
Place = tuple[int, int]
"""Row, column of a tile in the room."""

ROOM = 11
"""Tiles along each side, the walls included."""
TILE = 9
"""Pixels along the side of a tile."""
START: Place = (5, 5)
HOMES: tuple[Place, ...] = tuple((r, c) for r in (2, 5, 8) for c in (2, 5, 8) if (r, c) != START)
DIRECTIONS: tuple[Place, ...] = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Rows and columns of the moves 0 to 7: north, then clockwise."""
DANCES: dict[str, tuple[int, ...]] = {
    name: tuple(map(int, moves))
    for name, moves in {
        "circle cw": "0244660022446602",
        "circle ccw": "0644220066442206",
        "up down": "0440" * 4,
        "left right": "2662" * 4,
        "diagonal uldr": "7337" * 4,
        "diagonal urdl": "1551" * 4,
        "plus cw": "04264062" * 2,
        "plus ccw": "04624026" * 2,
        "times cw": "15375173" * 2,
        "times ccw": "73513715" * 2,
        "zee": "1662251552266151",
        "chevron down": "7431051514570373",
        "chevron up": "3075415150134737",
    }.items()
}
"""The moves of each dance, all 16 of them, in the order of the instructions 1 to 13."""
MOVES = 16
STEPS: tuple[tuple[Place, ...], ...] = tuple(
    tuple((int(r), int(c)) for r, c in np.cumsum([DIRECTIONS[move] for move in moves], axis=0))
    for moves in DANCES.values()
)
"""The tile after each move of each dance, as rows and columns relative to the dancer's place."""
WATCH = 0
"""The instruction while somebody dances."""

_FLOOR, _WALL, _AGENT, _INK = (0, 0, 0), (40, 40, 40), (255, 255, 255), (255, 255, 255)
_COLORS = (
    *((255, 0, 0), (0, 200, 0), (0, 60, 255), (255, 220, 0), (0, 230, 230), (255, 0, 220), (255, 130, 0)),
    *((130, 0, 200), (140, 80, 20), (255, 170, 170), (150, 255, 150), (160, 190, 255), (120, 0, 0), (0, 100, 30)),
    *((0, 0, 130), (110, 110, 0), (0, 110, 110), (160, 160, 160), (255, 250, 180)),
)


def _shapes() -> tuple[npt.NDArray[np.bool_], ...]:
    r, c = np.mgrid[:TILE, :TILE] - TILE // 2
    across, down = np.abs(c), np.abs(r)
    plus, ex, circle = (across < 2) | (down < 2), np.abs(across - down) < 2, r**2 + c**2 <= 18
    sides = across > 1
    tee, u = (r < -1) | (across < 2), (r > 1) | sides
    return (
        *(2 * across <= r + 4, np.maximum(across, down) > 2, plus, ~plus, ex, ~ex, circle, circle & (r**2 + c**2 > 8)),
        *(tee, tee[::-1], sides | (down < 2), u, u[::-1], c % 2 == 0, r % 2 == 0),
    )


_SHAPES = _shapes()
_REACH = ROOM // 2  # tiles that the agent sees on each side
_EMPTY = canvas(TILE, TILE, _FLOOR)


def _tile(shape: npt.NDArray[np.bool_], color: tuple[int, int, int]) -> Image:
    return (shape[..., None] * np.array(color)).astype(np.uint8)


class Ballet(DrawnEnv[Observation, Any]):
    """Dancers perform one after another. Then the instruction names a dance, and the agent has to go to its dancer.

    Task: ``num_dancers`` dancers stand on random ones of eight places in a room of 9x9 tiles, with the agent in the
    middle. No two have the same shape, colour or dance. They dance one after another, 16 moves each, within a tile of
    their places, with ``dance_delay`` steps from the last move of one to the first of the next. Then the instruction names
    one of these dances.
    Observation: a dict. "image": uint8 (99, 99, 3), the 11x11 tiles around the agent, which is white, in the middle; walls
        (40, 40, 40); the floor and everything beyond the walls black. "instruction": Discrete(14), 0 "watch", 1 to 13 the
        dance to look for: circle cw, circle ccw, up down, left right, diagonal uldr, diagonal urdl, plus cw, plus ccw,
        times cw, times ccw, zee, chevron down, chevron up.
    Actions: Discrete(8), 0 north, then clockwise. Walls stop the agent. Actions have no effect while the instruction is
        "watch".
    Reward: 1 on the tile of the right dancer, 0 on that of another.
    End: dancer i (from 1) makes its first move in step (i - 1)(15 + dance_delay), which for the first one is the reset,
        and the dance is named after step num_dancers (15 + dance_delay). Terminates when the agent reaches a dancer, and
        ``info["success"]`` then tells whether it was the right one; truncates after 320 steps if ``dance_delay`` is 16,
        else after 1024, with ``info["success"]`` False.
    Source: Lampinen et al. 2021, Towards mental time travel: a hierarchical memory for reinforcement learning agents
        (arXiv 2105.14039). Here the dance is named by a number instead of words, and the colours differ.

    Args:
        num_dancers: Number of dancers, 1 to 8.
        dance_delay: Steps between the dances, 1 to 100.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_dancers: int = 2, dance_delay: int = 8, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.num_dancers = checks.integer("num_dancers", num_dancers, 1, len(HOMES))
        self.dance_delay = checks.integer("dance_delay", dance_delay, 1, 100)
        self.period = MOVES - 1 + self.dance_delay
        """Steps from the first move of a dancer to that of the next."""
        self.max_steps = 320 if self.dance_delay == 16 else 1024
        view = ROOM * TILE
        self.observation_space = gym.spaces.Dict(
            image=gym.spaces.Box(0, 255, (view, view, 3), np.uint8), instruction=gym.spaces.Discrete(1 + len(DANCES))
        )
        self.action_space = gym.spaces.Discrete(len(DIRECTIONS))
        self.homes: list[Place] = []
        """The place of each dancer, in the order of the dances."""
        self.dances: list[int] = []
        """The dance of each dancer, as its number in the instruction."""
        self.target = 0
        """Index of the dancer to go to."""
        self._tiles: list[Image] = []
        self._room = canvas(0, 0)  # what is seen around the room, too
        self._agent = START
        self._step = 0
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self.homes, self._tiles = self._draw_cast(self.np_random)
        self.dances = (1 + self.np_random.permutation(len(DANCES))[: self.num_dancers]).tolist()
        self.target = int(self.np_random.integers(self.num_dancers))
        self._room = canvas((2 * ROOM - 1) * TILE, (2 * ROOM - 1) * TILE, _FLOOR)
        low, high = _REACH * TILE, (_REACH + ROOM) * TILE
        self._room[low:high, low:high] = _WALL
        self._room[low + TILE : high - TILE, low + TILE : high - TILE] = _FLOOR
        for home, tile in zip(self.homes, self._tiles, strict=True):
            self._put(home, tile)
        self._agent, self._step, self._over = START, 0, False
        self._dance()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        action = checks.integer("action", action, 0, len(DIRECTIONS) - 1)
        watching = self._instruction() == WATCH
        self._step += 1
        if watching:
            self._dance()
        else:
            down, across = DIRECTIONS[action]
            row, column = self._agent
            self._agent = (row + down, column + across)
            if not (0 < row + down < ROOM - 1 and 0 < column + across < ROOM - 1):
                self._agent = (row, column)
        terminated = self._agent in self.homes
        success = terminated and self.homes.index(self._agent) == self.target
        truncated = self._step == self.max_steps and not terminated
        self._over = terminated or truncated
        info = {"success": success} if self._over else {}
        return self._observation(), float(success), terminated, truncated, info

    def frame(self) -> Image:
        """The observation, enlarged three times, with the instruction below."""
        observation = self._observation()
        picture = upscale(observation["image"], 3)
        caption = canvas(21, picture.shape[1], _WALL)
        name = ("watch", *DANCES)[observation["instruction"]]
        text(caption, 3, 4, name if name == "watch" else f"find: {name}", _INK, 3)
        return np.concatenate([picture, caption])

    def _draw_cast(self, rng: np.random.Generator) -> tuple[list[Place], list[Image]]:
        """Places and looks of the dancers."""
        homes = rng.permutation(len(HOMES))[: self.num_dancers]
        shapes = rng.permutation(len(_SHAPES))[: self.num_dancers]
        colors = rng.permutation(len(_COLORS))[: self.num_dancers]
        looks = [_tile(_SHAPES[shape], _COLORS[color]) for shape, color in zip(shapes, colors, strict=True)]
        return [HOMES[home] for home in homes], looks

    def _instruction(self) -> int:
        return self.dances[self.target] if self._step >= self.num_dancers * self.period else WATCH

    def _dance(self) -> None:
        """Draws the move of this step, if there is one."""
        dancer, move = divmod(self._step, self.period)
        if dancer < self.num_dancers and move < MOVES:
            (row, column), steps = self.homes[dancer], STEPS[self.dances[dancer] - 1]
            if move:
                self._put((row + steps[move - 1][0], column + steps[move - 1][1]), _EMPTY)
            else:
                self._put((row, column), _EMPTY)
            self._put((row + steps[move][0], column + steps[move][1]), self._tiles[dancer])

    def _put(self, place: Place, tile: Image) -> None:
        y, x = ((_REACH + i) * TILE for i in place)
        self._room[y : y + TILE, x : x + TILE] = tile

    def _observation(self) -> Observation:
        y, x = (i * TILE for i in self._agent)
        image = self._room[y : y + ROOM * TILE, x : x + ROOM * TILE].copy()
        image[_REACH * TILE : (_REACH + 1) * TILE, _REACH * TILE : (_REACH + 1) * TILE] = _AGENT
        return {"image": image, "instruction": np.int64(self._instruction())}


class BalletLight(Ballet):
    """`Ballet` with the same dancers in every episode.

    All dancers are red. Dancer i always has the i-th place and the i-th shape. Episodes differ only in who dances what,
    and in which dance is named.

    Args:
        num_dancers: Number of dancers, 1 to 8.
        dance_delay: Steps between the dances, 1 to 100.
        render_mode: None or "rgb_array".
    """

    def _draw_cast(self, rng: np.random.Generator) -> tuple[list[Place], list[Image]]:
        looks = [_tile(shape, _COLORS[0]) for shape in _SHAPES[: self.num_dancers]]
        return list(HOMES[: self.num_dancers]), looks
