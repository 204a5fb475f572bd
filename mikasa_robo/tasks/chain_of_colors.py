"""ChainOfColors: see coloured cubes one after another, then touch the cubes of these colours in the same order."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class ChainOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown one after another, in the order shown.

    Task, randomisations: as in `SeqOfColors`.
    Success, failure and oracle: see `RecallColors`; a touch out of order is a failure.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120. Ours: T = 140 with 5 cubes and
    T = 180 with 7. With 20 steps fewer the expert, whose arm was held until the response and turns a joint by at most
    0.04 rad a step, was too late in 5 % of the episodes.
    """

    cue_order = "sequential"
    ordered = True
