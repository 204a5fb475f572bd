"""What a command is doing, on stderr, while it takes its time."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress", "say"]

INTERVAL = 5.0
"""Seconds between two lines where stderr is not a terminal."""


def say(text: str) -> None:
    """Write a line on what comes next, if somebody is watching: in the log of a script it would only be in the way."""
    if sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr, flush=True)


class Progress:
    """A progress bar on a terminal; elsewhere a line every `INTERVAL` seconds, and none for what takes less.

    Args:
        total: number of steps, at most; None where nobody knows.
        text: what is done.
    """

    def __init__(self, total: int | None, text: str) -> None:
        self._total, self._text, self._done = total, text, 0
        self._last = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc=self._text, unit="step", leave=False, dynamic_ncols=True)
        return self

    def to(self, done: int) -> None:
        """``done`` steps are done."""
        if self._bar is not None:
            self._bar.update(done - self._done)
        elif time.monotonic() - self._last >= INTERVAL:
            self._last = time.monotonic()
            most = "" if self._total is None else f" of at most {self._total}"
            print(f"{self._text}: step {done}{most}", file=sys.stderr, flush=True)
        self._done = done

    def step(self) -> None:
        """One more step is done."""
        self.to(self._done + 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
