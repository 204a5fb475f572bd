"""What the families with nine coloured cubes have in common."""

from __future__ import annotations

from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_colored_cube
from mikasa_robo.assets.palette import COLORS, color_codes
from mikasa_robo.core.choice import RecallTask


class RecallColors(RecallTask):
    """`RecallTask` whose candidates are nine cubes, one of each colour of the palette."""

    def build_candidate(self, index: int) -> Actor:
        return build_colored_cube(self.scene, index)

    def object_features(self) -> Tensor:
        return color_codes(range(len(COLORS)))
