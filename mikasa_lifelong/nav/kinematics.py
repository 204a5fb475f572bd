"""How the agents move: they run, turn, jump, slide along walls, and stand on whatever they land on."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mikasa_base.envs.batched import Bools, Floats, Ints
from mikasa_lifelong.nav.mazes import Maze

__all__ = ["DT", "MAX_TURN", "RADIUS", "RUN_SPEED", "Bodies"]

DT = 0.1
"""Duration of a step, s."""
RUN_SPEED = 5.0
"""m/s."""
ACCELERATION = 20.0
"""In the plane, on the ground as in the air, m/s²."""
GRAVITY = 9.81
"""m/s²."""
APEX = 1.0
"""Height of a jump, m."""
JUMP_SPEED = math.sqrt(2 * GRAVITY * APEX)
RADIUS = 0.3
"""Half the side of the square that an agent takes up, m; its sides are parallel to the cells'."""
MAX_TURN = math.pi / 4
"""Largest turn in a step, rad."""
_GAP = 1e-6
"""An agent stops this far before a wall, so that rounding cannot put it inside, m."""


class Bodies:
    """N agents in one maze, each on its own.

    Attributes:
        x, y, z: (N,) position of the feet, m.
        vx, vy, vz: (N,) velocity, m/s.
        heading: (N,) direction of view in (-π, π], rad; 0 is east, π/2 north.
        on_floor: (N,) whether it stands on the floor or on a top.
        at_wall: (N,) whether a wall or a hedge stopped it in the last step.
    """

    def __init__(self, maze: Maze, num_envs: int) -> None:
        self._width = maze.heights.shape[1]
        self._heights = maze.heights.ravel()
        self.x, self.y, self.z, self.vx, self.vy, self.vz, self.heading = np.zeros((7, num_envs))
        self.x += 1.5
        self.y += 1.5
        self.on_floor, self.at_wall = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    def place(self, which: Ints, x: Floats, y: Floats, heading: Floats) -> None:
        """Puts agents ``which`` (b,) on the floor at ``x``, ``y``, at rest."""
        self.x[which], self.y[which], self.heading[which] = x, y, heading
        for part in (self.z, self.vx, self.vy, self.vz):
            part[which] = 0.0
        self.on_floor[which], self.at_wall[which] = True, False

    def step(self, ahead: Floats, left: Floats, jump: Bools, turn: Floats) -> None:
        """One step of `DT`: turn, then move.

        Args:
            ahead: (N,) wish to move along the heading, -1 (back), 0 or 1.
            left: (N,) wish to move to the left of the heading, -1 (right), 0 or 1.
            jump: (N,) whether to jump; this works on the floor and on tops only.
            turn: (N,) turn to the left, rad.
        """
        heading = self.heading + turn
        self.heading = heading - 2 * np.pi * np.ceil((heading - np.pi) / (2 * np.pi))
        self._accelerate(ahead, left)
        ground = self._ground()
        self.vz = np.where(jump & self.on_floor, JUMP_SPEED, self.vz)
        self.z = np.maximum(self.z + self.vz * DT - 0.5 * GRAVITY * DT**2, ground)
        self.vz = self.vz - GRAVITY * DT
        self.x, hit_x = self._slide(self.x, self.vx, self.y, 1, self._width)
        self.y, hit_y = self._slide(self.y, self.vy, self.x, self._width, 1)
        self.vx, self.vy = np.where(hit_x, 0.0, self.vx), np.where(hit_y, 0.0, self.vy)
        self.at_wall = hit_x | hit_y
        self.on_floor = (self.z <= self._ground()) & (self.vz <= 0)
        self.vz = np.where(self.on_floor, 0.0, self.vz)

    def _accelerate(self, ahead: Floats, left: Floats) -> None:
        cos, sin = np.cos(self.heading), np.sin(self.heading)
        speed = np.where((ahead != 0) & (left != 0), RUN_SPEED * math.sqrt(0.5), RUN_SPEED)
        more_x = speed * (ahead * cos - left * sin) - self.vx
        more_y = speed * (ahead * sin + left * cos) - self.vy
        most = ACCELERATION * DT
        scale = most / np.maximum(np.sqrt(more_x * more_x + more_y * more_y), most)
        self.vx, self.vy = self.vx + scale * more_x, self.vy + scale * more_y

    def _ground(self) -> Floats:
        """Height of the highest cell under each agent (N,)."""
        west, east = (self.x - RADIUS).astype(np.int64), (self.x + RADIUS).astype(np.int64)
        south = (self.y - RADIUS).astype(np.int64) * self._width
        north = (self.y + RADIUS).astype(np.int64) * self._width
        take = self._heights.take
        return np.maximum(
            np.maximum(take(south + west), take(south + east)), np.maximum(take(north + west), take(north + east))
        )

    def _slide(
        self, place: Floats, velocity: Floats, across: Floats, along: int, beside: int
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Moves along one axis, up to the first cell that is higher than the feet.

        Args:
            place: (N,) coordinate that changes.
            velocity: (N,) along it. An agent crosses at most one border of cells in a step.
            across: (N,) the other coordinate.
            along: Distance of neighbours along this axis in the flat grid.
            beside: Distance of neighbours along the other.

        Returns:
            The new coordinate (N,), and whether a cell was in the way (N,).
        """
        forward = velocity > 0
        place = place + velocity * DT
        edge = (place + np.where(forward, RADIUS, -RADIUS)).astype(np.int64)
        cell = edge * along
        take = self._heights.take
        first, second = (across - RADIUS).astype(np.int64) * beside, (across + RADIUS).astype(np.int64) * beside
        hit = np.maximum(take(cell + first), take(cell + second)) > self.z
        return np.where(hit, np.where(forward, edge - (RADIUS + _GAP), edge + (1 + RADIUS + _GAP)), place), hit
