"""Runs that kill themselves: ``python lifelong_child.py JOBS``, where JOBS is JSON.

Each job is ``[words, what, count]``: `mikasa lifelong run` with these words ends by SIGKILL in call number ``count`` of the
learner's ``step`` or ``end``, or of an evaluation (``evaluate``), before anything comes of it. Each runs in a fork of this
process, so torch is imported only once. Prints a JSON list of exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import lifelong_helpers

from mikasa_lifelong.command import main
from mikasa_lifelong.loop import Loop


def kills(method: Callable[..., Any], count: int) -> Callable[..., Any]:
    """``method``, whose call number ``count`` does its work and is the last thing that the process does."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def play(words: list[str], what: str, count: int) -> int:
    """Run in this process, which does not survive it."""
    init = Loop.__init__

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        target, name = (self, "_evaluate") if what == "evaluate" else (self.learner, what)
        setattr(target, name, kills(getattr(target, name), count))

    Loop.__init__ = patched  # type: ignore[method-assign]
    return main(["run", *words])


if __name__ == "__main__":
    lifelong_helpers.register_tiny_stream()
    # What is written survives the process either way; a file that is synced survives the machine, and takes its time.
    os.fsync = lambda fd: None
    lifelong_helpers.Played(
        "sequential", stages=1
    )  # what torch and scikit-learn import late is imported before the forks
    codes = []
    for words, what, count in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            os._exit(play(words, what, count))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write(json.dumps(codes) + "\n")
