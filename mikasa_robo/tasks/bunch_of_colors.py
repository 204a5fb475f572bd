"""BunchOfColors: see several coloured cubes at once, then touch the cubes of these colours."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class BunchOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown together, in any order.

    Task: t < 5: ``n`` cubes (half size 0.02 m) side by side along y, 0.08 m apart, in the middle of the table.
    5 ≤ t < 10: nothing. From t = 10: nine cubes, one of each colour of the palette.
    Randomisations: the true colours, n different ones of nine, uniform; their order side by side; the nine cubes' places,
    a permutation of places in an arc of radius 0.62 ± 0.02 m round the robot's base; the arm's start, N(0, 0.02 rad) a
    joint.
    Success, failure and oracle: see `RecallTask`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120.
    """

    shown = "together"
