"""At rest, lying on the table, set down: what the tasks with objects that are put somewhere share."""

from __future__ import annotations

import math

import pytest
import torch

from mikasa_robo.core import rest


def test_at_rest_and_lying_have_sharp_bounds() -> None:
    speed = torch.tensor([0.0, 0.049, 0.051, 1.0])
    assert rest.at_rest(speed).tolist() == [True, True, False, False]
    z = torch.tensor([0.02, 0.0295, 0.0305, 0.0105, 0.0095])
    assert rest.lying(z, 0.02).tolist() == [True, True, False, True, False]


def test_the_distance_to_an_area_counts_what_is_outside_of_it_alone() -> None:
    """Within the radius and the height it is 0; farther away it is the way to the nearest place that counts."""
    centre = torch.tensor([0.1, -0.2])
    for across, up, expected in [
        (0.0, 0.0, 0.0),
        (0.049, 0.009, 0.0),
        (0.08, 0.0, 0.03),
        (0.0, 0.05, 0.04),
        (0.0, -0.05, 0.04),
        (0.08, 0.05, math.hypot(0.03, 0.04)),
    ]:
        angle = torch.linspace(0, 2 * math.pi, 100)
        position = torch.stack([centre[0] + across * angle.cos(), centre[1] + across * angle.sin(), angle * 0], dim=1)
        position[:, 2] = 0.02 + up
        found = rest.distance_to_area(position, centre.expand(100, 2), 0.05, 0.02)
        assert torch.allclose(found, torch.full((100,), expected), atol=1e-6), (across, up)
        assert bool(((found == 0) == (expected == 0)).all()), "exactly 0 inside"


def test_the_rest_counter_counts_steps_in_a_row_and_starts_again() -> None:
    rested, seen = torch.zeros(3, dtype=torch.int64), []
    pattern = [[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]]
    for rests in pattern:
        rested = rest.count_rest(rested, torch.tensor(rests, dtype=torch.bool))
        assert rested.dtype == torch.int64
        seen.append(rested.tolist())
    assert seen == [[1, 1, 0], [2, 0, 1], [2, 1, 2], [0, 2, 2]], "capped at 2, back to 0 where it was interrupted"
    assert rest.set_down(rested).tolist() == [False, True, True]
    assert pytest.approx(0.1) == rest.REST_STEPS / 20, "0.1 s at 20 Hz"
