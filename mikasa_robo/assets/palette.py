"""Nine colours that are easy to tell apart in a 128 x 128 image, in the order of the tasks' indices."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "lime": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "magenta": (255, 0, 255),
    "cyan": (0, 255, 255),
    "maroon": (110, 0, 0),
    "olive": (255, 128, 0),
    "teal": (0, 70, 70),
}
"""sRGB by name. "olive" is orange, as in MIKASA-Robo 1.0.0: a real olive in the shade looks like yellow."""


def rgba(name: str) -> list[float]:
    """The colour as RGBA in [0, 1], for a render material. Raises KeyError with the names that exist."""
    if name not in COLORS:
        raise KeyError(f"no colour {name!r}: use one of {', '.join(COLORS)}")
    return [channel / 255 for channel in COLORS[name]] + [1.0]


def color_codes(indices: Iterable[int]) -> Tensor:
    """One-hot colours of K objects, (K, 9) float32; part of the ``objects`` observation."""
    return torch.eye(len(COLORS))[list(indices)]
