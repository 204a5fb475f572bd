"""ChainOfColors: see coloured cubes one after another, then touch the cubes of these colours in the same order."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class ChainOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown one after another, in the order shown.

    Task, randomisations: as in `SeqOfColors`.
    Success, failure and oracle: see `RecallTask`; a touch out of order is a failure.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120; with 5 cubes T = 140 and with 7
    cubes T = 180: ours, since the arm, at 0.04 rad a step and joint and in the order given, was late in 5 % of episodes with
    20 steps fewer (expert, arm held until the response).
    """

    shown = "in turn"
    ordered = True
