"""ChainOfColors: see coloured cubes one after another, then touch the cubes of these colours in the same order."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class ChainOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown one after another, in the order shown.

    Task, randomisations: as in `SeqOfColors`.
    Success, failure, oracle and dense reward: see `RecallColors`; a touch out of order is a failure.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120. Ours: T = 180 with 7 cubes.
    The arm turns a joint by at most 0.04 rad a step: with T = 120 the scripted expert touches seven cubes in time in 29 % of
    48 episodes. T is longer with ``arm="held"``, see `RecallColors`.
    """

    cue_order = "sequential"
    ordered = True
