"""Episodes of several policies side by side, with a line of text above each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mikasa_base.envs.drawing import GLYPH_HEIGHT, Image, canvas, text

__all__ = ["FPS", "HOLD", "side_by_side", "with_caption"]

FPS = 20
"""Frames per second. A step of a maze is 0.1 s, so its videos run at twice the true speed."""
HOLD = 20
"""For so many frames the last image of an episode stays."""
SCALE, MARGIN, GAP = 2, 6, 8
"""Of the text, and pixels around it and between two images."""
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 +-./:=!?"
"""What can be drawn."""
BACKGROUND, INK = (248, 248, 248), (40, 40, 40)


def with_caption(image: Image, caption: str) -> Image:
    """The image (H, W, 3) below a strip with a text, in capitals. Characters that cannot be drawn become spaces."""
    strip = canvas(GLYPH_HEIGHT * SCALE + 2 * MARGIN, image.shape[1], BACKGROUND)
    text(strip, MARGIN, MARGIN, "".join(c if c.upper() in CHARACTERS else " " for c in caption), INK, SCALE)
    return np.concatenate([strip, image])


def side_by_side(episodes: Sequence[Iterable[Image]], captions: Sequence[str]) -> Iterator[Image]:
    """The frames of episodes that are played at the same time; one that is over shows its last frame.

    Args:
        episodes: frames (H, W, 3) of each, all of one size; each has at least one.
        captions: a text for each.

    Yields:
        Frames (H + strip, widths + gaps, 3), `HOLD` more of them at the end.
    """
    last: list[Image | None] = [None] * len(episodes)
    joined = canvas(1, 1)
    for frames in itertools.zip_longest(*episodes):
        last = [old if new is None else new for old, new in zip(last, frames, strict=True)]
        shown = [
            with_caption(image, caption) for image, caption in zip(last, captions, strict=True) if image is not None
        ]
        gap = canvas(shown[0].shape[0], GAP, BACKGROUND)
        joined = np.concatenate([part for image in shown for part in (gap, image)][1:], axis=1)
        yield joined
    yield from itertools.repeat(joined, HOLD)
