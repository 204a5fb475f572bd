"""The process behind ``mikasa``: SIGINT and SIGTERM are handled before anything slow is imported.

A signal raises KeyboardInterrupt in the main thread, so that files are closed, worker processes end and training saves its
policy. The process then prints one line and ends with the exit code 128 + signal, at the latest `GRACE` seconds after the
signal, whatever the main thread is doing. This module imports nothing but small parts of the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["exit_code", "finish_first", "handle_signals", "main", "run", "tell"]

GRACE = 2.0
"""Seconds from a signal to the end of a process that does not end by itself."""
PATIENCE = 30.0
"""Seconds that the work of `finish_first` may take after a signal."""
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class _State:
    """What has happened in this process."""

    signum: int | None = None  # the first signal
    raised = False  # and whether KeyboardInterrupt has been raised for it
    told = False  # whether the user has been told
    busy = 0  # blocks of `finish_first` that are running


def handle_signals() -> None:
    """Let SIGINT and SIGTERM end this process as the module says. A signal that is ignored stays so, as under ``nohup``."""
    handled = [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    if any(signal.getsignal(number) is _raise for number in handled):
        return
    for number in handled:
        signal.signal(number, _raise)
    # The interpreter writes a byte at once, even while the main thread is inside a library and cannot run Python code.
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(read,), name="mikasa-signals", daemon=True).start()
    sys.unraisablehook = _retry


def exit_code(error: KeyboardInterrupt) -> int:
    """That of a process which ``error`` ends: 128 + the signal, 130 for an interrupt from elsewhere."""
    return 128 + (error.args[0] if error.args else signal.SIGINT)


def tell(code: int, more: str = "") -> None:
    """Print the one line for the user: what ended the process, by its exit code, and ``more``. Prints it only once."""
    if not _State.told:
        _State.told = True
        word = WORDS.get(signal.Signals(code - 128), "interrupted")
        with contextlib.suppress(OSError):
            os.write(2, f"{word}{more and '; '}{more}\n".encode())


@contextlib.contextmanager
def finish_first() -> Iterator[None]:
    """A block that a signal's deadline waits for, such as writing a policy; for at most `PATIENCE` seconds."""
    _State.busy += 1
    try:
        yield
    finally:
        _State.busy -= 1


def run(command: Callable[[], int | None]) -> int:
    """Run ``command`` under `handle_signals` and return its exit code; ends the process if a signal came."""
    handle_signals()
    # A terminal that is not UTF-8 shows "?" for what it does not have, such as ±. No result is lost for that.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")
    try:
        return command() or 0
    except BaseException:
        # A signal may come out as another exception, for example that of a library whose helper process it ended.
        if _State.signum is None:
            raise
        return 128 + _State.signum
    finally:
        if _State.signum is None:
            for number in WORDS:  # what is left is the interpreter's end, which KeyboardInterrupt would only litter
                if signal.getsignal(number) is _raise:
                    signal.signal(number, signal.SIG_DFL)
        else:
            _end(_State.signum)


def main() -> int:
    """The console script."""

    def command() -> int:
        if not sys.warnoptions:  # about torch's own code, which a user of a command cannot do anything about
            warnings.filterwarnings("ignore", module=r"torch\b")
        from mikasa_robo.tools.cli import main

        return main()

    return run(command)


def _raise(signum: int, frame: FrameType | None) -> None:
    _State.signum = _State.signum or signum
    if not _State.raised:
        _State.raised = True
        raise KeyboardInterrupt(_State.signum)


def _retry(unraisable: Any) -> None:
    """`sys.unraisablehook`: raise an interrupt again that came where Python drops exceptions, such as a destructor."""
    if _State.signum is None:
        sys.__unraisablehook__(unraisable)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt):
        _State.raised = False
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        threading.Timer(0.02, signal.pthread_kill, (main_thread, _State.signum)).start()


def _watch(read: int) -> None:
    """The thread that ends the process if the main thread does not."""
    while (signum := os.read(read, 1)[0]) not in WORDS:
        pass
    time.sleep(GRACE)
    deadline = time.monotonic() + PATIENCE
    while _State.busy and time.monotonic() < deadline:
        time.sleep(0.05)
    tell(128 + signum)
    os._exit(128 + signum)


def _end(signum: int) -> None:
    """End without the destructors of the simulator and of torch, which may be slow and may write messages."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    tell(128 + signum)
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    os._exit(128 + signum)
