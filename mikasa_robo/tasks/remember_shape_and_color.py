"""RememberShapeAndColor: see an object, then touch the one of the same shape and colour among several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.palette import COLORS, color_codes, rgba
from mikasa_robo.assets.shapes import CIRCUMRADIUS, SHAPES, build_shape, resting_height, shape_codes
from mikasa_robo.checks import whole_number
from mikasa_robo.core.choice import ChoiceState, ChoiceTask, names_of
from mikasa_robo.deprecation import deprecated_names

CANDIDATE_SHAPES = ("cube", "sphere", "t_shape", "cross", "torus")
CANDIDATE_COLORS = ("red", "lime", "blue")


class RememberShapeAndColor(ChoiceTask):
    """Touch the object that has both the shape and the colour of the one shown before.

    Task: t < 5: one object in the middle of the table. 5 ≤ t < 10: nothing. From t = 10: one object of every pair of the
    first ``shapes`` of cube, sphere, T-shape, cross, torus and the first ``colors`` of red, lime, blue.
    Randomisations: the target pair, uniform; the objects' places, a permutation of the places in an arc of radius
    0.62 ± 0.02 m around the robot's base (more than nine objects: a second arc 0.13 m nearer); the joints of the arm at
    the start, N(0, 0.02 rad).
    Success: the object of the target pair was touched for 0.1 s and the robot is static.
    Failure: another object was touched for 0.1 s in total; shorter taps of the same object add up.
    Oracle: (N, 2) int64, index of the target shape, index of the target colour.
    Dense reward: see `ChoiceTask`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3x2, 3x3 and 5x3, T = 60.

    Args:
        shapes: number of shapes, 2 to 5.
        colors: number of colours, 2 to 3.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`.
    """

    radius = CIRCUMRADIUS

    def __init__(self, *args: Any, shapes: int = 3, colors: int = 2, **kwargs: Any) -> None:
        self.shapes = whole_number("shapes", shapes, 2, len(CANDIDATE_SHAPES))
        self.colors = whole_number("colors", colors, 2, len(CANDIDATE_COLORS))
        super().__init__(*args, num_candidates=shapes * colors, num_targets=1, **kwargs)

    def _pairs(self) -> list[tuple[str, str]]:
        """Shape and colour of each candidate, by its index."""
        return [
            (shape, color) for shape in CANDIDATE_SHAPES[: self.shapes] for color in CANDIDATE_COLORS[: self.colors]
        ]

    def build_candidate(self, index: int) -> Actor:
        shape, color = self._pairs()[index]
        return build_shape(self.scene, shape, f"{color}_{shape}", rgba(color), parked=index)

    def heights(self) -> Sequence[float]:
        return [resting_height(shape) for shape, _ in self._pairs()]

    def oracle(self, s: ChoiceState) -> Tensor:
        return torch.cat([torch.div(s.target, self.colors, rounding_mode="floor"), s.target % self.colors], dim=1)

    def object_features(self) -> Tensor:
        shapes, colors = zip(*self._pairs(), strict=True)
        names = list(COLORS)
        return torch.cat(
            [shape_codes(SHAPES.index(shape) for shape in shapes), color_codes(names.index(color) for color in colors)],
            dim=1,
        )

    def overlay_facts(self, s: ChoiceState) -> dict[str, list[str]]:
        shape, color = self.oracle(s).split(1, dim=1)
        return {"target shape": names_of(shape, CANDIDATE_SHAPES), "target colour": names_of(color, CANDIDATE_COLORS)}


__getattr__ = deprecated_names(__name__, {"THESE_SHAPES": "CANDIDATE_SHAPES", "THESE_COLORS": "CANDIDATE_COLORS"})
