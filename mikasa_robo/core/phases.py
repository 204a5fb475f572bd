"""Which phase of its episode each environment is in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CUE, DELAY, RESPONSE = 0, 1, 2
PHASES = ("cue", "delay", "response")


@dataclass(frozen=True)
class Timeline:
    """Lengths of the phases in control steps; the observation that ``reset`` returns has t = 0.

    An episode is in its cue for t < cue, in its delay for cue <= t < cue + delay, then in its response until
    t = horizon. A response of 0 stands for a task whose information is on view to the end and which is acted in from the
    first step. Raises ValueError where a length is no whole number or too small.
    """

    cue: int
    delay: int
    response: int

    def __post_init__(self) -> None:
        for name, least in (("cue", 1), ("delay", 0), ("response", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}_steps={value!r} must be a whole number of control steps, at least {least}")
        if not self.response and self.delay:
            raise ValueError(f"delay_steps={self.delay} without a response: use 0, or response_steps of at least 1")

    @property
    def response_start(self) -> int:
        """The first t at which acting counts."""
        return self.cue + self.delay if self.response else 0

    @property
    def horizon(self) -> int:
        """Length of an episode, T."""
        return self.cue + self.delay + self.response

    def phase(self, elapsed: Tensor) -> Tensor:
        """Phase index of each environment.

        Args:
            elapsed: (N,) control steps since the reset.

        Returns:
            (N,) int64: `CUE`, `DELAY` or `RESPONSE`.
        """
        return (elapsed >= self.cue).to(torch.int64) + (elapsed >= self.cue + self.delay).to(torch.int64)

    def responding(self, elapsed: Tensor) -> Tensor:
        """(N,) bool: whether acting counts."""
        return elapsed >= self.response_start
