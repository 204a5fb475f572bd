"""BunchOfColors: see several coloured cubes side by side, then touch the cubes of these colours."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class BunchOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown together, in any order.

    Task: t < 5: ``n`` cubes (half size 0.02 m) side by side along y, 0.08 m apart, in the middle of the table.
    5 ≤ t < 10: nothing. From t = 10: nine cubes, one of each colour of the palette.
    Randomisations: the target colours, n different ones of nine, uniform; their order side by side; the nine cubes'
    places, a permutation of the places in a 3 x 3 grid in the middle of the table, 0.09 m apart and jittered by
    ±0.006 m in x and y; the joints of the arm at the start, N(0, 0.02 rad).
    Success, failure, oracle and dense reward: see `RecallColors`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120.
    """

    cue_order = "simultaneous"
