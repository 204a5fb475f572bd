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
    t = horizon. Raises ValueError where a length is no whole number or too small.
    """

    cue: int
    delay: int
    response: int

    def __post_init__(self) -> None:
        for name, least in (("cue", 1), ("delay", 0), ("response", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of control steps, at least {least}")

    @property
    def response_start(self) -> int:
        """The first t of the response phase."""
        return self.cue + self.delay

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
        return (elapsed >= self.cue).to(torch.int64) + (elapsed >= self.response_start).to(torch.int64)

    def responding(self, elapsed: Tensor) -> Tensor:
        """(N,) bool: whether acting counts."""
        return elapsed >= self.response_start
