"""The 16 mazes, drawn in text.

A character is a cell of 1 m x 1 m. The first line is the north side. In coordinates x points east, y north and z up, and
the origin is the south-western corner.

    #  wall or house, 3 m            .  floor
    +  wall, floor in SimpleTownBase ~  hedge: in AmazeVilleL 0.8 m, which a jump clears; in AmazeVilleH 3 m
    A B C  doors from west to east   s  start   g  goal

A maze is named after its doors, O for open and X for closed. A closed door is a wall.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mikasa_lifelong.errors import find

__all__ = ["CLOSED", "DOOR", "FLOOR", "HEDGE", "HEDGE_HEIGHT", "MAZES", "WALL", "WALL_HEIGHT", "Maze", "load_maze"]

HEDGE_HEIGHT, WALL_HEIGHT = 0.8, 3.0
"""Heights in metres."""
FLOOR, WALL, HEDGE, DOOR, CLOSED = range(5)
"""Kinds of cells; CLOSED is a door that is closed, and DOOR one that is open. A hedge of 3 m is a HEDGE, too."""

_TOWN = """
####################
#gggggggggggggggggg#
#gggggggggggggggggg#
#..................#
#.....##....##.....#
#.....##....##.....#
#..................#
#..................#
#..................#
#++AA+++++BB+++CC++#
#++AA+++++BB+++CC++#
#..................#
#..................#
#..................#
#.....##....##.....#
#.....##....##.....#
#..................#
#ssssssssssssssssss#
#ssssssssssssssssss#
####################
"""

_VILLE = """
############################################################
#.....g.............g...................g..............g...#
#..........................................................#
#.............................###..........................#
#.............................###...........###............#
#.........###.................###...........###............#
#.........###.........####....###...........###............#
#.........###.........####....###...###.....###....###.....#
#..##.....###.........####....###...###.....###....###.....#
#..##.....###.........####..........###.....###....###.....#
#..##.....###.........####..........###............###.....#
#..##.................####..........###............###.....#
#...................................###....................#
#..........................................................#
#..........................................................#
####~~~#####...#############~~~~######~~~#####...###########
####~~~#####...#############~~~~######~~~#####...###########
#....................###...................................#
#....................###...................................#
#....................###...##..............................#
#...........###......###...##..............................#
#...###.....###......###...##................###.....###...#
#...###.....###......###.........###.........###.....###...#
#...###.....###......###.........###.........###.....###...#
#...###.....###..................###.........###.....###...#
#...........###..................###.........###.....###...#
#................................###.........###...........#
#................................###.......................#
#................................###.......................#
########AAA#################BBBB#################CCC########
########AAA#################BBBB#################CCC########
#...................................###....................#
#...................................###....................#
#...................................###....................#
#............###....................###....................#
#....###.....###....................###.....###............#
#....###.....###.....##...###.......###.....###.....###....#
#....###.....###.....##...###.......###.....###.....###....#
#....###.............##...###.......###.....###.....###....#
#....................##...###...............###.....###....#
#....................##.............................###....#
#....................##....................................#
#....................##....................................#
####~~~#######...###########~~~~########~~~######...########
####~~~#######...###########~~~~########~~~######...########
#..........................................................#
#..........................................................#
#.......##.................................................#
#.......##...............####...........####........###....#
#.........####...........####...........####........###....#
#.........####...........####...###.....####...###..###....#
#.........####....###....####...###.....####...###.........#
#.........####....###....####...###.....####...###.........#
#.........####....###....####...###.....####...###.........#
#.........####....###...........###............###.........#
#.................###...........###............###.........#
#.................###...........###............###.........#
#..........................................................#
#.....s...............s..............s.................s...#
############################################################
"""


@dataclass(frozen=True)
class Maze:
    """One maze. Arrays are read-only; the first axis of a grid is y, from south to north."""

    name: str
    doors: str
    """From west to east, O for open and X for closed; empty if there are none."""
    kinds: npt.NDArray[np.int8]
    """(H, W): FLOOR, WALL, HEDGE, DOOR or CLOSED."""
    heights: npt.NDArray[np.float64]
    """(H, W): m."""
    starts: npt.NDArray[np.float64]
    """(S, 2): centres x, y of the cells where an episode may start, m."""
    goals: npt.NDArray[np.float64]
    """(G, 2): likewise of the goals."""
    spread: float
    """Starts and goals are uniform within this distance from the centre of their cell along each axis, m."""

    @property
    def has_low_hedges(self) -> bool:
        """Whether a jump opens ways."""
        return bool((self.heights == HEDGE_HEIGHT).any())


_DOORS = {
    "SimpleTown": ("Base", "OOO", "OOX", "OXO", "XOO", "XXO", "XOX", "OXX"),
    "AmazeVilleH": ("OOO", "OOX", "XOO", "XOX"),
    "AmazeVilleL": ("OOO", "OOX", "XOO", "XOX"),
}
_PARTS = {family + doors: (family, doors) for family, names in _DOORS.items() for doors in names}
MAZES: tuple[str, ...] = tuple(_PARTS)
"""The names of all mazes."""


@functools.cache
def load_maze(name: str) -> Maze:
    """The maze of this name. Raises LifelongError, which names similar ones, if there is none."""
    family, doors = find("maze", name, _PARTS)
    town, base = family == "SimpleTown", doors == "Base"
    cells = np.array([list(line) for line in (_TOWN if town else _VILLE).split()])[::-1]  # (H, W), from south to north
    kinds = np.full(cells.shape, FLOOR, np.int8)
    kinds[cells == "#"] = WALL
    kinds[cells == "+"] = FLOOR if base else WALL
    kinds[cells == "~"] = HEDGE
    for letter, state in zip("ABC", "OOO" if base else doors, strict=True):
        kinds[cells == letter] = FLOOR if base else DOOR if state == "O" else CLOSED
    heights = np.where((kinds == WALL) | (kinds == CLOSED), WALL_HEIGHT, 0.0)
    heights[kinds == HEDGE] = HEDGE_HEIGHT if family == "AmazeVilleL" else WALL_HEIGHT
    starts, goals = (np.argwhere(cells == letter)[:, ::-1].astype(np.float64) + np.float64(0.5) for letter in "sg")
    for array in (kinds, heights, starts, goals):
        array.flags.writeable = False
    return Maze(name, "" if base else doors, kinds, heights, starts, goals, spread=0.2 if town else 0.0)
