"""Drawing with numpy alone, and the base class of the environments that use it.

Images are uint8 arrays (height, width, 3), and colours are triples of 0..255. A position is y (down), x (right) of the
upper left corner, in pixels. Whatever lies outside the image is clipped.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

__all__ = ["GLYPH_HEIGHT", "GLYPH_WIDTH", "DrawnEnv", "Image", "canvas", "disc", "rectangle", "text", "upscale"]

Image = npt.NDArray[np.uint8]
Color = tuple[int, int, int]
ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")

GLYPH_HEIGHT, GLYPH_WIDTH = 5, 3
"""Pixels of a character at scale 1."""
# Each character is five rows of three pixels, a row being one octal digit.
_FONT = {
    **{" ": "00000", "!": "22202", "+": "02720", "-": "00700", ".": "00002", "/": "11244", ":": "02020", "=": "07070"},
    **{"?": "61202", "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757"},
    **{"7": "71122", "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647"},
    **{"F": "74644", "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755"},
    **{"N": "65555", "O": "25552", "P": "65644", "Q": "25563", "R": "65655", "S": "34216", "T": "72222", "U": "55557"},
    **{"V": "55552", "W": "55775", "X": "55255", "Y": "55222", "Z": "71247"},
}


def canvas(height: int, width: int, color: Color = (0, 0, 0)) -> Image:
    """An image of one colour."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = color
    return image


def rectangle(image: Image, y: int, x: int, height: int, width: int, color: Color) -> None:
    """Fills a rectangle."""
    image[max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)] = color


def disc(image: Image, y: float, x: float, radius: float, color: Color) -> None:
    """Fills a disc with the centre (y, x), which may be a fraction. A pixel is filled if its centre is in the disc."""
    rows, columns = np.ogrid[: image.shape[0], : image.shape[1]]
    image[(rows + 0.5 - y) ** 2 + (columns + 0.5 - x) ** 2 <= radius**2] = color


def text(image: Image, y: int, x: int, string: str, color: Color, scale: int = 1) -> None:
    """Writes digits, letters (as capitals) and a few signs. A character is ``4 * scale`` pixels wide."""
    unknown = sorted(set(string.upper()) - set(_FONT))
    if unknown:
        raise ValueError(f"text={string!r}: no glyph for {' '.join(unknown)}; there are {''.join(_FONT)!r}")
    for k, character in enumerate(string.upper()):
        left = x + k * (GLYPH_WIDTH + 1) * scale
        for row, bits in enumerate(map(int, _FONT[character])):
            for column in range(GLYPH_WIDTH):
                if bits >> (GLYPH_WIDTH - 1 - column) & 1:
                    rectangle(image, y + row * scale, left + column * scale, scale, scale, color)


def upscale(image: Image, factor: int) -> Image:
    """The image enlarged: each pixel becomes ``factor`` x ``factor`` pixels."""
    return np.repeat(np.repeat(image, factor, axis=0), factor, axis=1)


class DrawnEnv(gym.Env[ObsType, ActType]):
    """An environment whose subclass draws it in `frame`.

    ``gym.make(..., render_mode="human")`` works, too: Gymnasium then shows the images in a pygame window. A subclass may
    override ``metadata`` for another ``render_fps``.

    Args:
        render_mode: None, or "rgb_array": ``render()`` then returns an image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} should be None or 'rgb_array'")
        self.render_mode = render_mode

    @abstractmethod
    def frame(self) -> Image:
        """An image of the current state, at least 96 pixels wide."""

    def render(self) -> Image | None:
        """An image of the current state, uint8 (height, width, 3); None without a ``render_mode``."""
        if self.render_mode is None:
            gym.logger.warn(f"{type(self).__name__}.render() needs render_mode='rgb_array' in gym.make")
            return None
        return self.frame()
