"""Starting worker processes, sending them requests, and noticing when one dies."""

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

from .process import FAILED, REFUSED, Shard, run_worker, send
from .shared_memory import SharedTensors, TensorSpec

__all__ = ["WorkerError", "WorkerPool"]

_LOG_BYTES = 20_000
_CONSTRUCTION = "construction"
_MAIN_GUARD_HINT = (
    " Does your script start its work under `if __name__ == '__main__':`? A worker imports the script, too."
)


class WorkerError(RuntimeError):
    """A worker process died. The message names the worker, its exit code and its last output."""


@dataclass
class _Handle:
    """What the main process keeps of one worker."""

    shard: Shard
    process: SpawnProcess
    connection: Connection
    log: int
    """File descriptor to which the worker's fault handler writes."""


@dataclass
class _Refusal:
    """The reply of a worker that raised an exception and lives on."""

    report: str
    """The traceback."""
    error: BaseException | None
    """The exception; None where it cannot be sent."""


class WorkerPool:
    """Worker processes, one for each of ``shards``.

    Args:
        shards: what each worker simulates.

    Raises:
        WorkerError: a worker died. An exception in the task's constructor is raised itself, with the WorkerError as its
            cause.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._owner = os.getpid()
        self._handles: list[_Handle] = []
        self._selector = selectors.DefaultSelector()
        self.closed_by: str | None = None
        """The error that closed the pool; None as long as none did."""
        try:
            for shard in shards:
                self._start(shard)
            self.descriptions: list[dict[str, Any]] = self._replies(_CONSTRUCTION)
            """What `Worker.describe` returned in each worker."""
        except BaseException as error:
            self._abort(error)
            raise

    def _start(self, shard: Shard) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_worker, args=(theirs, shard), daemon=True, name=f"mikasa-worker-{shard.start}"
        )
        with theirs, _blocked_sigint():
            process.start()
        log = os.memfd_create("mikasa-worker-log")
        self._handles.append(_Handle(shard, process, ours, log))
        self._selector.register(ours, selectors.EVENT_READ, len(self._handles) - 1)
        with contextlib.suppress(OSError):  # if the worker is dead already, `_replies` reports it
            send_handle(ours, log, process.pid)

    def share_memory(self, num_envs: int, specs: list[TensorSpec]) -> SharedTensors:
        """Tensors in memory that all workers have mapped, too."""
        descriptor = os.memfd_create("mikasa-batch")
        for handle in self._handles:
            with contextlib.suppress(OSError):
                send(handle.connection, ("share_memory", (num_envs, specs)))
                send_handle(handle.connection, descriptor, handle.process.pid)
        return SharedTensors(descriptor, num_envs, specs)

    def request(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Calls `Worker`'s method ``name`` in every worker and waits for the results.

        Args:
            name: the method.
            arguments: its argument, one for each worker.

        Returns:
            one result for each worker.

        Raises:
            WorkerError: a worker died. All others have been ended, too.
            Exception: what a worker raised and survived, as it was raised there. All workers live on.
        """
        try:
            for handle, argument in zip(self._handles, arguments, strict=True):
                with contextlib.suppress(OSError):
                    send(handle.connection, (name, argument))
            replies = self._replies(name)
        except BaseException as error:
            # a KeyboardInterrupt, too: replies that were not received would be taken for those to the next request
            self._abort(error)
            raise
        for number, reply in enumerate(replies):
            if isinstance(reply, _Refusal):
                shard = self._handles[number].shard
                told = RuntimeError(
                    f"worker {number} (environments {shard.start} to {shard.stop - 1}) could not do {name}; it lives on. "
                    f"Its report:\n{reply.report.rstrip()}"
                )
                if reply.error is None:
                    raise told
                raise reply.error from told
        return replies

    def _replies(self, request: str) -> list[Any]:
        replies: dict[int, Any] = {}
        while len(replies) < len(self._handles):
            for key, _ in self._selector.select():
                try:
                    kind, value = self._handles[key.data].connection.recv()
                except (EOFError, OSError):
                    raise self._death(key.data, request) from None
                if kind == FAILED:
                    report, original = value
                    death = self._death(key.data, request, report)
                    if request == _CONSTRUCTION and original is not None:
                        raise original from death
                    raise death
                replies[key.data] = _Refusal(*value) if kind == REFUSED else value
        return [replies[i] for i in range(len(self._handles))]

    def _death(self, number: int, request: str, report: str | None = None) -> WorkerError:
        handle = self._handles[number]
        handle.process.join(2.0)
        code = handle.process.exitcode
        output = report or _without_modules(os.pread(handle.log, _LOG_BYTES, 0).decode(errors="replace"))
        return WorkerError(
            f"worker {number} (environments {handle.shard.start} to {handle.shard.stop - 1}, process "
            f"{handle.process.pid}) died during {request}: {_describe_exit(code)}\n"
            + (f"Its last output:\n{output.rstrip()}" if output else "It left no report beyond what it printed.")
            + (_MAIN_GUARD_HINT if request == _CONSTRUCTION and not output else "")
        )

    def _abort(self, error: BaseException) -> None:
        self.closed_by = str(error).split("\n", 1)[0] or type(error).__name__
        self.close(0.0)

    def close(self, grace: float = 5.0) -> None:
        """Ends the workers: asks them to close, and kills after ``grace`` seconds. May be called twice."""
        if os.getpid() != self._owner:
            return  # this process is a fork with copies of the pipes; the workers belong to the original
        handles, self._handles = self._handles, []
        if grace:
            for handle in handles:
                with contextlib.suppress(OSError):
                    send(handle.connection, ("close", None))
            alive, end = {handle.process.sentinel for handle in handles}, time.monotonic() + grace
            while alive and (left := end - time.monotonic()) > 0:
                alive -= set(multiprocessing.connection.wait(alive, left))
        for handle in handles:
            handle.process.kill()
        for handle in handles:
            handle.process.join()
            handle.process.close()
            handle.connection.close()
            os.close(handle.log)
        if handles:
            self._selector.close()


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Processes that are started inside inherit a blocked SIGINT, so that Ctrl-C cannot end them at any moment."""
    # starting the resource tracker unblocks SIGINT, so it is started before
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "its pipe is closed but it still runs"
    if code >= 0:
        return f"exit code {code}"
    name = signal_name(-code)
    hint = " (the system does so when memory runs out: see `dmesg`)" if name == "SIGKILL" else ""
    return f"exit code {code}, killed by {name}{hint}"


def _without_modules(report: str) -> str:
    """A fault handler's report without the long list of modules at its end."""
    return report.split("\nExtension modules:", 1)[0]
