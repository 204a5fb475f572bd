"""Which phase of its episode each environment is in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mikasa_robo.checks import warn_hard, whole_number

CUE, DELAY, RESPONSE = 0, 1, 2
PHASES = ("cue", "delay", "response")
MOST_STEPS = 1_000_000
"""Largest length of a phase, 14 hours."""


@dataclass(frozen=True)
class Timeline:
    """Lengths of the phases of an episode in control steps.

    The observation that ``reset`` returns has t = 0. The cue phase is t < cue, the delay cue <= t < cue + delay, the
    response the rest until t = horizon. With a response of 0 the cue stays on view to the end and acting counts from the
    first step.

    Raises:
        ValueError: a length is not a whole number, too small or above `MOST_STEPS`, or there is a delay but no response.
    """

    cue: int
    delay: int
    response: int
    views: int = 0
    """Without a response: the number of steps, from t = 0, for which ``arm="held"`` holds the arm."""

    def __post_init__(self) -> None:
        for name, least in (("cue", 1), ("delay", 0), ("response", 0)):
            value = whole_number(f"{name}_steps", getattr(self, name), least, MOST_STEPS, "control steps")
            object.__setattr__(self, name, value)
        if not self.response and self.delay:
            raise ValueError(f"delay_steps={self.delay} without a response: use 0, or response_steps of at least 1")

    @property
    def response_start(self) -> int:
        """The first t of the response phase, from which acting counts."""
        return self.cue + self.delay if self.response else 0

    @property
    def hold_steps(self) -> int:
        """Steps for which ``arm="held"`` holds the arm; 0: it cannot be held."""
        return self.response_start or self.views

    @property
    def known_from(self) -> int:
        """The first t at which an agent can know what it has to remember: the end of the cue. Where the cue is a motion that
        goes on to the end, it is the third view."""
        return self.cue if self.response else min(2, self.cue - 1)

    @property
    def horizon(self) -> int:
        """Length of an episode, T."""
        return self.cue + self.delay + self.response

    def phase(self, elapsed: Tensor) -> Tensor:
        """The phase that each environment is in.

        Args:
            elapsed: (N,) control steps since the reset.

        Returns:
            (N,) int64: `CUE`, `DELAY` or `RESPONSE`. Without a response it is `CUE`, also after the last step.
        """
        if not self.response:
            return torch.zeros_like(elapsed, dtype=torch.int64)
        return (elapsed >= self.cue).to(torch.int64) + (elapsed >= self.cue + self.delay).to(torch.int64)

    def responding(self, elapsed: Tensor) -> Tensor:
        """(N,) bool: in the response phase, where acting counts; ``elapsed`` as for `phase`."""
        return elapsed >= self.response_start


def timeline_for(needed: int | None, cue: int, delay: int, response: int, views: int = 0) -> Timeline:
    """The timeline of a task that needs a response.

    Args:
        needed: about the response steps that the scripted expert needs, as measured; None: the task can be done without a
            response phase.
        cue, delay, response, views: see `Timeline`.

    Raises:
        ValueError: as `Timeline`, or the task needs a response and has none.

    Warns:
        UserWarning: the response is shorter than ``needed``.
    """
    timeline = Timeline(cue, delay, response, views)
    if needed is None:
        return timeline
    if not timeline.response:
        raise ValueError(f"response_steps=0: acting counts in the response phase only; give it at least {needed} steps")
    if timeline.response < needed:
        warn_hard("response_steps", response, f"our scripted expert needs about {needed} steps")
    return timeline
