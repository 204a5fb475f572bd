"""Write lines of text into images."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["Place", "write_lines"]

Place = Literal["top", "bottom"]
LINES_PER_IMAGE = 27
"""Number of lines that fill an image: at 512 pixels a line is 19 pixels high, its letters 14."""
SMALLEST_FONT = 10
"""Pixels; smaller letters are unreadable."""
COLUMN = 0.4
"""Width of a block of text, as a part of the image's: the robot is in the middle, and has to stay in sight."""
SMALLEST_COLUMN = 200
"""Pixels; in a narrower block the text would break into too many lines."""
SHADE = 0.3
"""Factor that darkens the image behind the text."""


def write_lines(picture: NDArray[np.uint8], lines: Sequence[str], place: Place, start: int = 0) -> int:
    """Write white lines on a darkened block at the left edge of an image, in place. Long lines are broken.

    Args:
        picture: (H, W, 3) uint8.
        lines: one below the other.
        place: the edge at which the block lies.
        start: pixels between that edge and the block.

    Returns:
        Pixels from the edge to the end of the block: the ``start`` of the next block.
    """
    height, width, _ = picture.shape
    pitch = max(height // LINES_PER_IMAGE, round(SMALLEST_FONT * 1.3))
    size, margin = round(pitch / 1.3), max(2, pitch // 4)
    font = _font(size)
    column = min(width, max(round(COLUMN * width), SMALLEST_COLUMN))
    broken = [part for line in lines for part in _broken(line, font, column - 2 * margin)]
    if not broken:
        return start
    end = min(height, start + pitch * len(broken) + margin)
    if end <= start:
        return end
    top, bottom = (start, end) if place == "top" else (height - end, height - start)
    block_width = min(width, round(max(font.getlength(line) for line in broken)) + 2 * margin)
    block = (picture[top:bottom, :block_width] * SHADE).astype(np.uint8)
    image = Image.fromarray(block)
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(broken):
        draw.text((margin, margin // 2 + row * pitch), line, fill=(255, 255, 255), font=font)
    picture[top:bottom, :block_width] = np.asarray(image)
    return end


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _broken(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Break the line into parts of at most ``width`` pixels; a single word may be longer."""
    parts = [""]
    for word in line.split(" "):
        longer = f"{parts[-1]} {word}".lstrip()
        if parts[-1] and font.getlength(longer) > width:
            parts.append(word)
        else:
            parts[-1] = longer
    return parts
