"""Playing whole episodes: what counts of an environment whose episode is over, and what does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mikasa_robo.rollouts import EpisodeTotals, play_episodes


class Countdown:
    """Environment i ends after ``lengths[i]`` steps; every step pays 1, also after the end. Success and failure come in
    the step before the last, and again after the end."""

    def __init__(self, lengths: list[int], ends: bool = True) -> None:
        self.lengths, self.ends = torch.tensor(lengths), ends
        self.unwrapped = SimpleNamespace(num_envs=len(lengths), device=torch.device("cpu"))

    def reset(self, seed: Any) -> tuple[Tensor, dict[str, Any]]:
        self.t = torch.zeros_like(self.lengths)
        return self.t, {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.t = self.t + 1
        flags = (self.t == self.lengths - 1) | (self.t > self.lengths)
        over = (self.t == self.lengths) & self.ends
        return self.t, torch.ones(len(self.t)), over, torch.zeros_like(over), {"success": flags, "fail": flags}


def test_steps_after_the_end_do_not_count() -> None:
    totals = EpisodeTotals()
    for step in play_episodes(Countdown([1, 2, 5]), lambda obs, info: None, seed=0, max_steps=5):
        totals.add(step)
    assert totals.lengths.tolist() == [1, 2, 5]
    assert totals.returns.tolist() == [1.0, 2.0, 5.0]
    assert totals.success_once.tolist() == [False, True, True]
    assert totals.fail_once.tolist() == [False, True, True]
    assert totals.success_at_end.tolist() == [False, False, False]
    assert totals.reports_success


def test_episodes_that_do_not_end_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"envs \[0, 1\] \(seeds \[7, 8\]\) are not over after 4 steps"):
        list(play_episodes(Countdown([2, 3], ends=False), lambda obs, info: None, seed=[7, 8], max_steps=4))
