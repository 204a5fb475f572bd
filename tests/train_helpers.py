"""What the tests of training runs share: runs that break off, and whether two runs ended with the same policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mikasa_robo.baselines.checkpoints import read_policy

__all__ = ["assert_same_policy", "break_off"]


def break_off(run: Callable[[], Any], owner: Any, name: str, calls: int) -> None:
    """Start a run that ends by an error at the first call of ``owner.name`` after ``calls`` of them."""
    function, done = getattr(owner, name), []

    def breaks(*args: Any) -> Any:
        done.append(1)
        if len(done) > calls:
            raise RuntimeError("the power went out")
        return function(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, breaks)
        with pytest.raises(RuntimeError, match="power"):
            run()


def assert_same_policy(*runs: Path) -> None:
    """The final policies of two runs are the same, bit for bit."""
    one, two = (read_policy(run / "checkpoint.pt")["state_dict"] for run in runs)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(two[name], value), name
