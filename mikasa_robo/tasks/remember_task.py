"""What RememberColor and RememberShape share: one object is shown, and several candidates stand in an arc."""

from __future__ import annotations

from typing import Any

from mikasa_robo.checks import whole_number
from mikasa_robo.core.choice import ChoiceTask


class RememberTask(ChoiceTask):
    """See one object, then touch the same one among ``n``.

    Cue: the target in the middle of the table. Delay: an empty table. Response: all ``n`` objects in a jittered arc
    within reach, at places that are drawn anew in every episode.
    Success: the target was touched (contact force above 0.05 N in 2 control steps in a row) and the robot is static.
    Failure: another object was touched for as long in total; shorter taps of the same object add up.
    Oracle: (N, 1) int64, index of the target.
    Dense reward: see `ChoiceTask`.

    Args:
        n: number of candidates, 2 to 9.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`.
    """

    def __init__(self, *args: Any, n: int = 3, **kwargs: Any) -> None:
        self.n = whole_number("n", n, 2, 9)
        super().__init__(*args, num_candidates=n, num_targets=1, **kwargs)
