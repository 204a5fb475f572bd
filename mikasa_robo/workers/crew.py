"""Starting worker processes, giving them orders, and noticing when one dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import selectors
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import send_handle
from typing import Any

from mikasa_robo.sim.render import signal_name

from .process import FAILED, Part, run, send
from .rows import Column, SharedRows

_LOG_LENGTH = 20_000
_MAKING = "its making"
_GUARD = " Does your script start its work under `if __name__ == '__main__':`? A worker imports the script, too."


class WorkerError(RuntimeError):
    """A worker process died. The message names it and holds its exit code and the last that it said."""


@dataclass
class _Member:
    part: Part
    process: SpawnProcess
    connection: Connection
    log: int
    """File descriptor of what the worker's fault handler writes."""


class Crew:
    """Worker processes, one for each of ``parts``.

    Args:
        parts: what each of them simulates.

    Raises:
        WorkerError: one of them died. An error of the task's constructor is raised itself, from a WorkerError.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._owner = os.getpid()
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self.ended_by: str | None = None
        """Why the workers were ended, if not by `dismiss`."""
        try:
            for part in parts:
                self._start(part)
            self.facts: list[dict[str, Any]] = self._answers(_MAKING)
        except BaseException as error:
            self._give_up(error)
            raise

    def _start(self, part: Part) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(theirs, part), daemon=True, name=f"mikasa-worker-{part.start}")
        with theirs, _no_interrupts():
            process.start()
        log = os.memfd_create("mikasa-worker-log")
        self._members.append(_Member(part, process, ours, log))
        self._selector.register(ours, selectors.EVENT_READ, len(self._members) - 1)
        with contextlib.suppress(OSError):  # a worker that is dead already is found by whoever waits for it
            send_handle(ours, log, process.pid)

    def share(self, num_envs: int, columns: list[Column]) -> SharedRows:
        """Memory that all workers see."""
        descriptor = os.memfd_create("mikasa-batch")
        for member in self._members:
            with contextlib.suppress(OSError):
                send(member.connection, ("share", (num_envs, columns)))
                send_handle(member.connection, descriptor, member.process.pid)
        return SharedRows(descriptor, num_envs, columns)

    def order(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Gives each worker the order ``name`` with its argument, and returns their answers."""
        try:
            for member, argument in zip(self._members, arguments, strict=True):
                with contextlib.suppress(OSError):
                    send(member.connection, (name, argument))
            return self._answers(name)
        except BaseException as error:
            # a KeyboardInterrupt too: answers that nobody fetched would be taken for those to the next order
            self._give_up(error)
            raise

    def _answers(self, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < len(self._members):
            for key, _ in self._selector.select():
                try:
                    kind, value = self._members[key.data].connection.recv()
                except (EOFError, OSError):
                    raise self._death(key.data, what) from None
                if kind == FAILED:
                    report, original = value
                    death = self._death(key.data, what, report)
                    if what == _MAKING and original is not None:
                        raise original from death
                    raise death
                answers[key.data] = value
        return [answers[i] for i in range(len(self._members))]

    def _death(self, number: int, what: str, report: str | None = None) -> WorkerError:
        member = self._members[number]
        member.process.join(2.0)
        code = member.process.exitcode
        said = report or _without_modules(os.pread(member.log, _LOG_LENGTH, 0).decode(errors="replace"))
        return WorkerError(
            f"worker {number} (environments {member.part.start} to {member.part.stop - 1}, process "
            f"{member.process.pid}) died during {what}: {_describe(code)}\n"
            + (f"Its last message:\n{said.rstrip()}" if said else "It left no message but what it printed.")
            + (_GUARD if what == _MAKING and not said else "")
        )

    def _give_up(self, error: BaseException) -> None:
        self.ended_by = str(error).split("\n", 1)[0] or type(error).__name__
        self.dismiss(0.0)

    def dismiss(self, grace: float = 5.0) -> None:
        """Ends the workers: told to close, then killed after ``grace`` seconds. May be called twice."""
        if os.getpid() != self._owner:
            return  # in a fork, which has copies of the pipes: the workers are not its own
        members, self._members = self._members, []
        if grace:
            for member in members:
                with contextlib.suppress(OSError):
                    send(member.connection, ("close", None))
            alive, end = {member.process.sentinel for member in members}, time.monotonic() + grace
            while alive and (left := end - time.monotonic()) > 0:
                alive -= set(multiprocessing.connection.wait(alive, left))
        for member in members:
            member.process.kill()
        for member in members:
            member.process.join()
            member.process.close()
            member.connection.close()
            os.close(member.log)
        if members:
            self._selector.close()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started here never get a Ctrl-C, not even while Python starts."""
    # started by the first process and lets SIGINT through again when it is
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _describe(code: int | None) -> str:
    if code is None:
        return "its pipe is closed but it still runs"
    if code >= 0:
        return f"exit code {code}"
    name = signal_name(-code)
    hint = " (the system does so when memory runs out: see `dmesg`)" if name == "SIGKILL" else ""
    return f"exit code {code}, killed by {name}{hint}"


def _without_modules(report: str) -> str:
    """A fault handler's report less the long list of modules at its end."""
    return report.split("\nExtension modules:", 1)[0]
