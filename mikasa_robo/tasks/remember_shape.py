"""RememberShape: see an object, then touch the one of the same shape among several."""

from __future__ import annotations

from collections.abc import Sequence

from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.palette import rgba
from mikasa_robo.assets.shapes import CIRCUMRADIUS, SHAPES, build_shape, resting_height, shape_codes
from mikasa_robo.core.choice import ChoiceState, names_of

from .remember_task import RememberTask


class RememberShape(RememberTask):
    """Touch the object that has the shape of the one shown before.

    Task: t < 5: one object in the middle of the table. 5 ≤ t < 10: nothing. From t = 10: ``n`` objects of the first ``n``
    shapes (cube, sphere, cylinder, cross, torus, star, pyramid, T-shape, crescent), all of them blue.
    Randomisations: the target shape, uniform among ``n``; the objects' places, a permutation of ``n`` places in an arc of
    radius 0.62 ± 0.02 m around the robot's base; the joints of the arm at the start, N(0, 0.02 rad).
    Success, failure, oracle and dense reward: see `RememberTask`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 9, T = 60. Ours: all objects are blue.
    """

    radius = CIRCUMRADIUS

    def build_candidate(self, index: int) -> Actor:
        return build_shape(self.scene, SHAPES[index], SHAPES[index], rgba("blue"), parked=index)

    def heights(self) -> Sequence[float]:
        return [resting_height(shape) for shape in SHAPES[: self.n]]

    def object_features(self) -> Tensor:
        return shape_codes(range(self.n))

    def overlay_facts(self, s: ChoiceState) -> dict[str, list[str]]:
        return {"target shape": names_of(s.target, SHAPES)}
