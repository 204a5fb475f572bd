"""What ends a run whose numbers are infinite or NaN."""

from __future__ import annotations

import torch

__all__ = ["diverged", "steps_taken"]


def diverged(what: str, learnt_before: bool, fix: str = "use a smaller --learning-rate") -> FloatingPointError:
    """The error that ends such a run.

    Args:
        what: is infinite or NaN.
        learnt_before: whether there was a gradient step before. If not, learning cannot be the cause.
        fix: what to do where there was one.
    """
    if learnt_before:
        return FloatingPointError(f"{what}; {fix}")
    return FloatingPointError(
        f"{what} before the first gradient step of this run, so --learning-rate is not the cause: the network itself gives "
        "such numbers; look for 0/0 or log(0) in a network or memory of your own, and for such numbers in observations and "
        "rewards"
    )


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    """The steps of an Adam so far, those before a resume included. It waits for a GPU."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)
