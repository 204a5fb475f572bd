"""One episode in a maze, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mikasa_base.envs.drawing import Image
from mikasa_lifelong.nav.game import NavGame

__all__ = ["episode_frames"]

Act = Callable[[NDArray[np.float32]], NDArray[Any]]


def episode_frames(maze: str, act: Act, seed: int) -> Iterator[Image]:
    """Play an episode and draw it: the first image is that of its start, and one follows after each step.

    Args:
        maze: a name in `mikasa_lifelong.nav.mazes.MAZES`.
        act: actions (1, 6) of the environment for observations (1, 140) with depth.
        seed: that of the episode.

    Yields:
        Images uint8 (480, 746, 3); see `mikasa_lifelong.nav.drawing.draw`.
    """
    game = NavGame(1, maze, "depth")
    game.begin_seeded([seed])
    over = False
    yield game.frame(0)
    while not over:
        obs = game.observe()
        assert isinstance(obs, np.ndarray)
        _, terminated, truncated = game.step(act(obs))
        over = bool(terminated[0] or truncated[0])
        yield game.frame(0)
