"""RememberColor: see a coloured cube, then touch the cube of that colour among several."""

from __future__ import annotations

from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_colored_cube
from mikasa_robo.assets.palette import color_codes
from mikasa_robo.core.choice import ChoiceState, names_of

from .colored_cubes import COLOR_NAMES
from .remember_task import RememberTask


class RememberColor(RememberTask):
    """Touch the cube that has the colour of the one shown before.

    Task: t < 5: one cube (half size 0.02 m) in the middle of the table. 5 ≤ t < 10: nothing. From t = 10: ``n`` cubes of
    the first ``n`` colours of the palette (red, lime, blue, yellow, magenta, cyan, maroon, olive, teal).
    Randomisations: the target colour, uniform among ``n``; the cubes' places, a permutation of ``n`` places in an arc of
    radius 0.62 ± 0.02 m around the robot's base; the joints of the arm at the start, N(0, 0.02 rad).
    Success: the cube of the target colour was touched for 0.1 s and the robot is static (joint speeds below 0.2 rad/s).
    Failure: another cube was touched for 0.1 s in total; shorter taps of the same cube add up.
    Oracle and dense reward: see `RememberTask`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 9, T = 60.
    """

    def build_candidate(self, index: int) -> Actor:
        return build_colored_cube(self.scene, index)

    def object_features(self) -> Tensor:
        return color_codes(range(self.n))

    def overlay_facts(self, s: ChoiceState) -> dict[str, list[str]]:
        return {"target colour": names_of(s.target, COLOR_NAMES)}
