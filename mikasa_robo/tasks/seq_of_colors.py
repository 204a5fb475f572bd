"""SeqOfColors: see coloured cubes one after another, then touch the cubes of these colours."""

from __future__ import annotations

from mikasa_robo.tasks.colored_cubes import RecallColors


class SeqOfColors(RecallColors):
    """Touch the cubes that have the colours of those shown one after another, in any order.

    Task: t < 5n: ``n`` cubes (half size 0.02 m), each alone in the middle of the table for 5 steps.
    5n ≤ t < 5n + 5: nothing. From then on: nine cubes, one of each colour of the palette.
    Randomisations: as in `BunchOfColors`, with the order in which the colours are shown.
    Success, failure, oracle and dense reward: see `RecallColors`.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; modes 3, 5 and 7, T = 120; T is longer with
    ``arm="held"``, see `RecallColors`.
    """

    cue_order = "sequential"
