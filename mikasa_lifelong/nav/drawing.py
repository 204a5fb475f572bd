"""Images of an episode: the maze from above, with the way so far, and beside it what the agent sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mikasa_base.envs.drawing import Image, canvas, disc, rectangle, text, upscale
from mikasa_lifelong.nav.mazes import CLOSED, DOOR, FLOOR, HEDGE, HEDGE_HEIGHT, WALL, Maze

if TYPE_CHECKING:
    from mikasa_lifelong.nav.game import NavGame

__all__ = ["draw"]

MAP_SIZE, VIEW_SCALE, GAP, LINE = 480, 4, 10, 14
"""Pixels: the side of the map, of a pixel of the view, between the two, and the height of a line of text."""
COLORS = {
    FLOOR: (236, 228, 208),
    WALL: (96, 88, 84),
    HEDGE: (120, 168, 92),
    DOOR: (252, 246, 170),
    CLOSED: (168, 70, 52),
}
HIGH_HEDGE = (58, 98, 52)
GRID, BACKGROUND, INK = (226, 217, 196), (248, 248, 248), (40, 40, 40)
TRAIL, AGENT, AIRBORNE, NOSE = (90, 150, 220), (30, 80, 190), (140, 90, 220), (255, 255, 255)
GOAL_AREA, GOAL, STARTED = (255, 190, 180), (215, 40, 40), (90, 90, 90)


def draw(game: NavGame, i: int) -> Image:
    """The map and the view of environment i, uint8 (480, 746, 3).

    On the map, a white square on the blue disc shows where the agent looks; the disc is violet in the air. The goal is red,
    with the area that counts as reached; open doors are yellow, closed ones brick red; hedges are green, light green if they
    can be jumped over.
    """
    image = canvas(MAP_SIZE, MAP_SIZE + GAP + 64 * VIEW_SCALE, BACKGROUND)
    _map(image[:, :MAP_SIZE], game, i)
    left = MAP_SIZE + GAP
    view = upscale(np.ascontiguousarray(game.picture(np.array([i]))[0].transpose(1, 2, 0)), VIEW_SCALE)
    image[: view.shape[0], left:] = view
    bodies = game.bodies
    speed, away = (
        np.hypot(bodies.vx[i], bodies.vy[i]),
        np.hypot(game.goal_x[i] - bodies.x[i], game.goal_y[i] - bodies.y[i]),
    )
    told = (
        game.maze.name,
        f"STEP {game.elapsed[i]}",
        f"SPEED {speed:.1f} M/S",
        f"HEIGHT {bodies.z[i]:.1f} M",
        f"GOAL {away:.1f} M AWAY",
        "REACHED" if game.reached[i] else "",
    )
    for row, line in enumerate(told):
        text(image, view.shape[0] + GAP + row * LINE, left, line, INK, 2)
    return image


def _map(image: Image, game: NavGame, i: int) -> None:
    """Draws into ``image``, a square. North is up."""
    scale = image.shape[0] // game.maze.heights.shape[0]  # pixels a metre
    image[:] = _ground(game.maze, scale)

    def spot(x: float, y: float, radius: float, color: tuple[int, int, int]) -> None:
        # Only the part of the image that can change: a disc over the whole map would take longer than all else.
        row, column, reach = image.shape[0] - y * scale, x * scale, int(radius) + 2
        top, west = max(int(row) - reach, 0), max(int(column) - reach, 0)
        disc(image[top : int(row) + reach + 1, west : int(column) + reach + 1], row - top, column - west, radius, color)

    x, y = float(game.bodies.x[i]), float(game.bodies.y[i])
    spot(game.goal_x[i], game.goal_y[i], scale, GOAL_AREA)
    trail = game.trail[: game.elapsed[i] + 1, :, i]
    for past_x, past_y in trail.tolist():
        spot(past_x, past_y, 2, TRAIL)
    spot(float(trail[0, 0]), float(trail[0, 1]), 4, STARTED)
    spot(game.goal_x[i], game.goal_y[i], 5, GOAL)
    body = max(0.3 * scale, 6.0)
    spot(x, y, body, AGENT if game.bodies.on_floor[i] else AIRBORNE)
    heading = game.bodies.heading[i]
    row, column = image.shape[0] - y * scale - body * np.sin(heading), x * scale + body * np.cos(heading)
    rectangle(image, int(row) - 2, int(column) - 2, 5, 5, INK)
    rectangle(image, int(row) - 1, int(column) - 1, 3, 3, NOSE)


def _ground(maze: Maze, scale: int) -> Image:
    colors = np.array([COLORS[kind] for kind in range(len(COLORS))], np.uint8)[maze.kinds]  # (H, W, 3)
    colors[(maze.kinds == HEDGE) & (maze.heights > HEDGE_HEIGHT)] = HIGH_HEDGE
    image = upscale(colors[::-1], scale)
    floor = upscale((maze.kinds[::-1] == FLOOR)[..., None].astype(np.uint8), scale)[..., 0] == 1
    for lines in (np.s_[::scale, :], np.s_[:, ::scale]):
        image[lines][floor[lines]] = GRID
    return image
