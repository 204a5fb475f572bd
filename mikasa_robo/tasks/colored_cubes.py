"""What BunchOfColors, SeqOfColors and ChainOfColors share: nine coloured cubes, of which several have to be touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_colored_cube
from mikasa_robo.assets.palette import COLORS, color_codes
from mikasa_robo.catalog import recall_response_steps
from mikasa_robo.checks import whole_number, whole_range
from mikasa_robo.core.choice import ChoiceState, ChoiceTask, names_of
from mikasa_robo.core.phases import MOST_STEPS
from mikasa_robo.core.sampling import Uniforms, index_below

COLOR_NAMES = tuple("olive (orange)" if name == "olive" else name for name in COLORS)
"""The nine colours as a spectator sees them: the palette's olive is drawn in orange."""


class RecallColors(ChoiceTask):
    """See ``n`` coloured cubes, then touch the cubes of these colours among nine.

    Cue: the ``n`` cubes, side by side or one after another in the middle of the table. Delay: an empty table. Response:
    nine cubes, one of each colour of the palette, in a jittered 3 x 3 grid, at places that are drawn anew in every
    episode.
    Success: all target cubes were touched, each for 0.1 s (2 control steps in a row), and the robot is static.
    Failure: a cube that is no target was touched for as long in total (shorter taps of the same cube add up), or a target
    was held for as long a second time while others are missing or, where the order matters, out of order.
    Oracle: (N, n) int64, indices of the target colours in the order shown (from the left if they are shown at once).
    Dense reward: see `ChoiceTask`.

    Args:
        n: number of targets, 2 to 8; in ChainOfColors, where their order has to be remembered, 2 to 9.
        cue_steps: control steps for which each cue is on view; cubes that are shown side by side are one cue.
        delay_steps: control steps of the empty table.
        response_steps: control steps to act in. An ID's value is for its own ``n``: give more with a larger ``n``, or
            None for what the catalog gives to ``n`` cubes that are shown one after another (`recall_response_steps`; with
            ``n=8`` in any order it is too short, so give 88).
        start_counted: for a curriculum, the number of targets, the first in the order shown, that count as touched when an
            episode begins; 0 (the task itself) to n - 1. Two numbers (low, high): each episode draws its own number from
            these and those between, all with the same probability. Cue and oracle still hold all ``n``. From there on it
            is the task as it is for an arm that has come so far: the same rewards, and to touch such a cube again is a
            mistake.
        arm: see `MemoryEnv`. With "held", SeqOfColors and ChainOfColors add the steps of cue and delay, which the hold takes
            away, to the response: an arm that could not get ready meanwhile would be late.
        **kwargs: see `MemoryEnv`.
    """

    grid = True
    instructed: ClassVar[Mapping[str, Any]] = {"start_counted": 0}

    def __init__(
        self,
        *args: Any,
        n: int = 3,
        cue_steps: int,
        delay_steps: int,
        response_steps: int | None,
        start_counted: int | Sequence[int] = 0,
        arm: Literal["free", "held"] = "free",
        **kwargs: Any,
    ) -> None:
        if isinstance(n, int) and n == 9 and not self.ordered:
            raise ValueError("n=9: all nine candidates would be targets, with nothing to remember; use 2 to 8")
        self.n = whole_number("n", n, 2, 9 if self.ordered else 8)
        self.start_counted = whole_range("start_counted", start_counted, 0, self.n - 1)
        low, high = self.start_counted
        self.more_draws = int(low < high)
        sequential = self.cue_order == "sequential"
        if response_steps is None and sequential:
            response_steps = recall_response_steps(self.n, self.ordered)
        if sequential and arm == "held" and response_steps:
            lengths = {"cue_steps": cue_steps, "delay_steps": delay_steps, "response_steps": response_steps}
            cue, delay, response = (
                whole_number(name, value, 0, MOST_STEPS, "control steps") for name, value in lengths.items()
            )
            response_steps = response + self.n * cue + delay
        super().__init__(
            *args,
            num_candidates=9,
            num_targets=self.n,
            cue_steps=cue_steps,
            delay_steps=delay_steps,
            response_steps=response_steps,
            arm=arm,
            **kwargs,
        )

    def build_candidate(self, index: int) -> Actor:
        return build_colored_cube(self.scene, index)

    def sample(self, u: Uniforms) -> ChoiceState:
        s = super().sample(u)
        low, high = self.start_counted
        counted = low + index_below(u.take(1), high - low + 1) if self.more_draws else low
        s.counted = s.is_target & (s.rank < counted)
        return s

    def object_features(self) -> Tensor:
        return color_codes(range(len(COLORS)))

    def overlay_facts(self, s: ChoiceState) -> dict[str, list[str]]:
        touched = [target[counted[target]] for target, counted in zip(s.target, s.counted, strict=True)]
        return {
            "target colours": names_of(s.target, COLOR_NAMES),
            "touched": [f"{len(done)} of {self.n} ({names_of(done[None], COLOR_NAMES)[0] or '-'})" for done in touched],
        }
