"""What agents see: rays through the grid, by traversal of its cells (Amanatides and Woo 1987), for N agents at a time.

All rays of a column of pixels are above the same line in the plane, so one traversal serves a whole column. It ends at the
first cell of wall height. On its way it notes what each ray of the column hits of a hedge, its side or its top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mikasa_base.envs.batched import Floats
from mikasa_lifelong.nav.mazes import HEDGE_HEIGHT, WALL_HEIGHT, Maze

__all__ = ["REACH", "Camera"]

REACH = 20.0
"""How far a ray goes, m."""
PILLAR_RADIUS, PILLAR_HEIGHT = 0.3, 2.0
"""Of the pillar that marks the goal in colour images, m."""
SKY = (170, 205, 235)
SURFACES = ((196, 184, 160), (122, 98, 84), (150, 120, 100), (96, 150, 70), (225, 60, 50))
"""Colours of the ground, of walls' sides that face south or north, of those that face west or east, of hedges, and of the
pillar. They fade into the colour of the sky with distance."""
_FOGS = 63


def _palette() -> npt.NDArray[np.uint8]:
    """Colours (3, surfaces x shades); the last shade of a surface is the sky."""
    fog = (np.arange(_FOGS + 1) / _FOGS)[:, None] ** 2
    shades = [color + fog * (np.array(SKY) - color) for color in np.array(SURFACES, np.float64)]
    return np.ascontiguousarray(np.concatenate(shades).astype(np.uint8).T)


_PALETTE = _palette()
_OPEN, _LOW, _HIGH = range(3)


@dataclass(frozen=True)
class _Hits:
    """Distances in the plane, inf where nothing is hit."""

    wall: Floats
    """(N, A)."""
    east_west: npt.NDArray[np.bool_]
    """(N, A): whether the wall's side faces west or east."""
    hedge: Floats | None
    """(N, P, A); None in a maze without low hedges."""


class Camera:
    """A square grid of rays.

    Args:
        maze: What is looked at.
        size: Rays along each side of the image, P = A = ``size``.
        half_width: Angle from the middle to the left and right column, rad.
        half_height: Angle from the middle to the upper and lower row, rad.
    """

    def __init__(self, maze: Maze, size: int, half_width: float, half_height: float) -> None:
        self._width = maze.heights.shape[1]
        code = np.where(maze.heights == WALL_HEIGHT, _HIGH, np.where(maze.heights > 0, _LOW, _OPEN))
        self._code = code.astype(np.int8).ravel()
        self._has_low = maze.has_low_hedges
        self._azimuths = np.linspace(half_width, -half_width, size)
        pitches = np.linspace(half_height, -half_height, size)
        pitches[np.abs(pitches) < 1e-12] = 0.0
        self._slopes = np.tan(pitches)  # rise per metre in the plane, (P,)
        self._stretch = 1 / np.cos(pitches)[:, None]  # length of a ray per metre in the plane, (P, 1)

    def depth(self, x: Floats, y: Floats, eye: Floats, heading: Floats) -> Floats:
        """Lengths (N, P, A) of the rays in metres, at most `REACH`, from the upper left.

        Args:
            x, y: (N,) position, m.
            eye: (N,) height of the eye, m.
            heading: (N,) direction of view, rad.
        """
        hits = self._traverse(x, y, eye, *self._directions(heading))
        flat = self._nearest(hits, eye)
        return np.minimum(flat * self._stretch, REACH)

    def picture(
        self, x: Floats, y: Floats, eye: Floats, heading: Floats, goal_x: Floats, goal_y: Floats
    ) -> npt.NDArray[np.uint8]:
        """Colour images (N, 3, P, A) of the walls, the hedges, and a red pillar at the goal; arguments as in `depth`."""
        dx, dy = self._directions(heading)
        hits = self._traverse(x, y, eye, dx, dy)
        flat = self._nearest(hits, eye)  # (N, P, A)
        surface = np.where(flat == hits.wall[:, None], 1 + hits.east_west[:, None].astype(np.int64), 0)
        if hits.hedge is not None:
            surface[flat == hits.hedge] = 3
        along = (goal_x - x)[:, None] * dx + (goal_y - y)[:, None] * dy  # (N, A), of the point closest to the pillar
        aside = (goal_x - x)[:, None] * dy - (goal_y - y)[:, None] * dx
        front = along - np.sqrt(np.maximum(PILLAR_RADIUS**2 - aside * aside, 0))
        front = np.where((np.abs(aside) < PILLAR_RADIUS) & (front > 0), front, np.inf)[:, None]  # (N, 1, A)
        with np.errstate(invalid="ignore"):
            height = eye[:, None, None] + self._slopes[:, None] * front
        at_pillar = (front < flat) & (height >= 0) & (height <= PILLAR_HEIGHT)
        flat = np.where(at_pillar, front, flat)
        surface[at_pillar] = 4
        fog = np.minimum(flat * (self._stretch * (_FOGS / REACH)), _FOGS).astype(np.int64)
        shades = surface * (_FOGS + 1) + fog
        image = np.empty((len(x), 3, *shades.shape[1:]), np.uint8)
        for channel, table in enumerate(_PALETTE):
            image[:, channel] = table[shades]
        return image

    def _directions(self, heading: Floats) -> tuple[Floats, Floats]:
        angles = heading[:, None] + self._azimuths
        return np.cos(angles), np.sin(angles)

    def _nearest(self, hits: _Hits, eye: Floats) -> Floats:
        """Distances in the plane (N, P, A) to what the rays hit, inf for the sky."""
        slopes = self._slopes[:, None]
        wall = hits.wall[:, None]
        with np.errstate(invalid="ignore"):
            over = eye[:, None, None] + slopes * wall >= WALL_HEIGHT
        ground = np.where(slopes < 0, eye[:, None, None] / np.where(slopes < 0, -slopes, 1.0), np.inf)
        nearest = np.minimum(np.where(over, np.inf, wall), ground)
        return nearest if hits.hedge is None else np.minimum(nearest, hits.hedge)

    def _traverse(self, x: Floats, y: Floats, eye: Floats, dx: Floats, dy: Floats) -> _Hits:
        shape = dx.shape
        dx, dy = dx.ravel(), dy.ravel()
        x, y = np.repeat(x, shape[1]), np.repeat(y, shape[1])
        column, row = x.astype(np.int64), y.astype(np.int64)
        per_x, per_y = 1 / np.maximum(np.abs(dx), 1e-12), 1 / np.maximum(np.abs(dy), 1e-12)  # m per cell
        next_x = np.where(dx > 0, column + 1 - x, x - column) * per_x  # distance to the next border, m
        next_y = np.where(dy > 0, row + 1 - y, y - row) * per_y
        step_x, step_y = np.where(dx > 0, 1, -1), np.where(dy > 0, self._width, -self._width)
        cell, ids = row * self._width + column, np.arange(len(dx))
        entered = np.zeros(len(dx))
        wall, east_west = np.full(len(dx), np.inf), np.zeros(len(dx), np.bool_)
        hedge = np.full((len(dx), len(self._slopes)), np.inf) if self._has_low else None
        while ids.size:
            by_x = next_x < next_y
            left = np.where(by_x, next_x, next_y)  # where the ray leaves its cell
            if hedge is not None:
                low = np.flatnonzero(self._code.take(cell) == _LOW)
                if low.size:
                    rays = ids[low]
                    found = self._hedge(eye[rays // shape[1]], entered[low], left[low])
                    hedge[rays] = np.minimum(hedge[rays], found)
            cell = cell + np.where(by_x, step_x, step_y)
            next_x = np.where(by_x, next_x + per_x, next_x)
            next_y = np.where(by_x, next_y, next_y + per_y)
            entered = left
            high = self._code.take(cell) == _HIGH
            done = high | (left >= REACH)
            if done.any():
                stopped = ids[high]
                wall[stopped], east_west[stopped] = left[high], by_x[high]
                going = np.flatnonzero(~done)
                ids, cell, step_x, step_y = (part.take(going) for part in (ids, cell, step_x, step_y))
                entered, next_x, next_y, per_x, per_y = (
                    part.take(going) for part in (entered, next_x, next_y, per_x, per_y)
                )
        if hedge is not None:
            hedge = hedge.reshape(*shape, -1).swapaxes(1, 2)
        return _Hits(wall.reshape(shape), east_west.reshape(shape), hedge)

    def _hedge(self, eye: Floats, entered: Floats, left: Floats) -> Floats:
        """Where rays (n, P) hit a hedge that is above ``entered`` … ``left`` (n,) of their lines; inf if they miss it."""
        slopes, eye = self._slopes, eye[:, None]
        side = eye + slopes * entered[:, None] < HEDGE_HEIGHT
        top = (slopes < 0) & (eye + slopes * left[:, None] < HEDGE_HEIGHT)
        with np.errstate(divide="ignore"):
            on_top = (eye - HEDGE_HEIGHT) / np.where(slopes < 0, -slopes, math.inf)
        return np.where(side, entered[:, None], np.where(top, on_top, np.inf))
