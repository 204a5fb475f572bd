"""What the tests of `mikasa sweep` and `mikasa lifelong sweep` share."""

from __future__ import annotations

from pathlib import Path

import pytest

from mikasa_robo.tools.sweep_plan import SweepError, Vocabulary, read_plan


def require_refused(text: str, old: str, new: str, message: str, file: Path, words: Vocabulary | None = None) -> None:
    """Write ``text`` to ``file`` with ``new`` in the place of ``old``; reading it has to raise an error that fits."""
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SweepError, match=message):
        read_plan(file, words)
