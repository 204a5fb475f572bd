"""How agents see and steer the walkers of :mod:`mikasa_base.envs.walking`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from mikasa_base.envs.drawing import Image
from mikasa_base.envs.walking import BODY, DIAGONAL, HEADINGS, NOSE, Arena, Tile

__all__ = ["AHEAD", "TURNS", "has_heading", "locate", "pixels", "push", "steer"]

TURNS, AHEAD = (1, 2), 3
"""Actions of the grid form: turn left or right; go ahead."""


def has_heading(env: gym.Env[Any, Any]) -> bool:
    """Whether the walker has a heading and moves by whole tiles."""
    return isinstance(env.action_space, gym.spaces.Discrete)


def pixels(image: Image, color: tuple[int, int, int]) -> tuple[Any, Any]:
    """y, x of the pixels of exactly this colour."""
    channel = max(range(3), key=color.__getitem__)
    y, x = np.divmod(np.flatnonzero(image[..., channel] == color[channel]), image.shape[1])
    exact = (image[y, x] == color).all(axis=-1)  # few are left after the brightest channel, which is cheap to compare
    return y[exact], x[exact]


def locate(image: Image) -> tuple[int, int, int | None]:
    """x, y and heading of the walker in the picture; None where it shows no heading."""
    body_y, body_x = pixels(image, BODY)
    nose_y, nose_x = pixels(image, NOSE)
    x, y = (int(c.min() + c.max() + 1) // 2 for c in (np.append(body_x, nose_x), np.append(body_y, nose_y)))
    if not len(nose_y):
        return x, y, None
    right, down = nose_x.mean() + 0.5 - x, nose_y.mean() + 0.5 - y
    return x, y, int(np.argmax([right * h[0] + down * h[1] for h in HEADINGS]))


def push(signs: tuple[int, ...]) -> Any:
    """Action of the free form that goes to the right and down by the ``signs``."""
    return np.array([(0, 2, 1)[sign] for sign in signs])


def steer(arena: Arena, where: tuple[int, int, int | None], tile: Tile) -> Any:
    """Action that brings a walker, seen at ``where``, towards the centre of a tile, and lets it rest there."""
    x, y, heading = where
    if heading is None:
        there = arena.centre(tile)
        # nearer than the shorter kind of step is near enough
        return push(tuple(0 if abs(d) < DIAGONAL else int(np.sign(d)) for d in (there[0] - x, there[1] - y)))
    column, row = arena.tile_at(x, y)
    across, down = tile[0] - column, tile[1] - row
    if (across, down) == (0, 0):
        return 0
    # ahead as long as that brings it nearer, to turn as little as possible
    wanted = [i for i, h in enumerate(HEADINGS) if h[0] * across + h[1] * down > 0]
    if heading in wanted:
        return AHEAD
    left, right = TURNS
    return left if (wanted[0] - heading) % len(HEADINGS) == 3 else right
