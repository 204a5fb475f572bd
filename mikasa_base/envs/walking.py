"""The walker of Mortar Mayhem and Mystery Path, which moves over square tiles, freely or tile by tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np

from mikasa_base import checks
from mikasa_base.envs.drawing import Image, canvas, disc, rectangle

__all__ = ["BODY", "HEADINGS", "NOSE", "RADIUS", "Arena", "FreeWalker", "GridWalker", "Tile", "Walker"]

Tile = tuple[int, int]
"""Column, row."""

HEADINGS: tuple[Tile, ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Up, right, down, left."""
RADIUS = 6
"""Radius of the walker's disc, in pixels."""
BODY = (250, 204, 153)
NOSE = (50, 50, 50)
"""Colour of the square on the disc that marks the heading of a `GridWalker`."""
NOSE_REACH, NOSE_SIZE = 4, 4
STRAIGHT, DIAGONAL = 3, 2
"""Pixels that a `FreeWalker` moves along each axis in one step."""


def _body() -> Image:
    image = canvas(2 * RADIUS, 2 * RADIUS)
    disc(image, RADIUS, RADIUS, RADIUS, BODY)
    return image


def _heading_body(heading: Tile) -> Image:
    image = _body()
    left, top = (RADIUS + axis * NOSE_REACH - NOSE_SIZE // 2 for axis in heading)
    rectangle(image, top, left, NOSE_SIZE, NOSE_SIZE, NOSE)
    return image


_DISC = _body().any(axis=-1, keepdims=True)
_SIGN = (0, -1, 1)


class Arena:
    """The grid of tiles in a square image.

    Args:
        tiles: Number of tiles along each side.
        tile_size: Pixels along the side of a tile.
        margin: Pixels around the tiles.
    """

    def __init__(self, tiles: int, tile_size: int, margin: int = 0) -> None:
        self.tiles, self.tile_size, self.margin = tiles, tile_size, margin
        self.size = tiles * tile_size + 2 * margin

    def corner(self, tile: Tile) -> tuple[int, int]:
        """x, y of the tile's upper left pixel."""
        return self.margin + tile[0] * self.tile_size, self.margin + tile[1] * self.tile_size

    def centre(self, tile: Tile) -> tuple[int, int]:
        """x, y of the tile's centre."""
        x, y = self.corner(tile)
        return x + self.tile_size // 2, y + self.tile_size // 2

    def tile_at(self, x: int, y: int) -> Tile:
        """The tile that contains a point."""
        return (x - self.margin) // self.tile_size, (y - self.margin) // self.tile_size

    def contains(self, tile: Tile) -> bool:
        """Whether the tile is in the grid."""
        return 0 <= tile[0] < self.tiles and 0 <= tile[1] < self.tiles

    def paint(self, image: Image, tile: Tile, color: tuple[int, int, int], inset: int = 0) -> None:
        """Fills a tile except for ``inset`` pixels at each side."""
        x, y = self.corner(tile)
        side = self.tile_size - 2 * inset
        rectangle(image, y + inset, x + inset, side, side, color)


class Walker(ABC):
    """A disc of 12 pixels that cannot leave the tiles; (x, y) is its centre, between pixels."""

    _sprites: tuple[Image, ...]  # by heading

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.x = self.y = 0
        self.heading = 0
        """Index into `HEADINGS`; always 0 for a walker without a heading."""

    @property
    def tile(self) -> Tile:
        """The tile that the walker is on."""
        return self.arena.tile_at(self.x, self.y)

    def place(self, tile: Tile) -> None:
        """Moves the walker to the centre of a tile."""
        self.x, self.y = self.arena.centre(tile)

    @abstractmethod
    def action_space(self) -> gym.Space[Any]:
        """Space of the actions that `read` and `move` take."""

    @abstractmethod
    def read(self, action: Any) -> tuple[int, int]:
        """Converts an action for `move`.

        Raises:
            ValueError: the action is not in the action space.
        """

    @abstractmethod
    def move(self, action: tuple[int, int]) -> None:
        """One step."""

    def draw(self, image: Image) -> None:
        """Draws the walker into the image."""
        region = image[self.y - RADIUS : self.y + RADIUS, self.x - RADIUS : self.x + RADIUS]
        np.copyto(region, self._sprites[self.heading], where=_DISC)


class FreeWalker(Walker):
    """Moves 3 pixels a step along one axis, or 2 along both.

    An action is MultiDiscrete([3, 3]), horizontal and vertical: 0 nothing, 1 towards the left or up, 2 towards the right
    or down.
    """

    _sprites = (_body(),)

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self._low = arena.margin + RADIUS
        self._high = arena.size - arena.margin - RADIUS

    def action_space(self) -> gym.spaces.MultiDiscrete:
        """Horizontal and vertical."""
        return gym.spaces.MultiDiscrete([3, 3])

    def read(self, action: Any) -> tuple[int, int]:
        """The signs of the movement to the right and down."""
        array = checks.array("action", action)
        if array.shape == (2,) and array.dtype.kind in "iu":
            across, down = array.tolist()
            if 0 <= across <= 2 and 0 <= down <= 2:
                return _SIGN[across], _SIGN[down]
        raise ValueError(f"action={action!r} should be two integers from 0 to 2")

    def move(self, action: tuple[int, int]) -> None:
        """One step; the border stops it."""
        across, down = action
        speed = DIAGONAL if across and down else STRAIGHT
        self.x = min(max(self.x + across * speed, self._low), self._high)
        self.y = min(max(self.y + down * speed, self._low), self._high)


class GridWalker(Walker):
    """Moves from tile to tile in the direction of its dark square.

    An action is Discrete(4): 0 nothing, 1 turn left, 2 turn right, 3 go to the next tile ahead, if there is one.
    """

    _sprites = tuple(_heading_body(heading) for heading in HEADINGS)

    def action_space(self) -> gym.spaces.Discrete:
        """Nothing, left, right, ahead."""
        return gym.spaces.Discrete(4)

    def read(self, action: Any) -> tuple[int, int]:
        """The number of quarter turns to the right, and of tiles ahead."""
        array = checks.array("action", action)
        if array.shape == () and array.dtype.kind in "iu" and 0 <= array < 4:
            return ((0, 0), (-1, 0), (1, 0), (0, 1))[int(array)]
        raise ValueError(f"action={action!r} should be an integer from 0 to 3")

    def move(self, action: tuple[int, int]) -> None:
        """One turn or step."""
        turn, step = action
        self.heading = (self.heading + turn) % len(HEADINGS)
        if step:
            (column, row), (across, down) = self.tile, HEADINGS[self.heading]
            ahead = (column + across, row + down)
            if self.arena.contains(ahead):
                self.place(ahead)
