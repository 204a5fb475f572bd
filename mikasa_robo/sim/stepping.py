"""Stepping many CPU PhysX systems on several threads.

``PhysxCpuSystem.step()`` holds Python's global interpreter lock for the whole solver call (sapien 3.0.3), so plain
Python threads gain nothing. The shared library that the binding is built on exports the same method as a C++ symbol;
called through ctypes, which releases the lock, scenes are stepped in parallel. Where the symbol or the
object's address cannot be found, stepping falls back to the binding: slower, with the same results.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import sapien
import sapien.physx as physx

logger = logging.getLogger(__name__)

STEP_SYMBOL = "_ZN6sapien5physx14PhysxSystemCpu4stepEv"
"""sapien::physx::PhysxSystemCpu::step(), in the Itanium C++ ABI's mangling."""
TYPE_INFO_SYMBOL = "_ZTIN6sapien5physx14PhysxSystemCpuE"
"""typeid(sapien::physx::PhysxSystemCpu), which tells pybind11's conduit which pointer is wanted."""
PYBIND11_ABI_ID = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"
"""pybind11's platform ABI id of the sapien wheels. On a mismatch the conduit returns None, and the fallback is used."""


class _NativeStep:
    """The C++ step function, and how to find the C++ address of a Python object."""

    def __init__(self) -> None:
        site = os.path.dirname(os.path.dirname(os.path.abspath(sapien.__file__)))
        candidates = sorted(glob.glob(os.path.join(site, "sapien.libs", "libsapien*.so")))
        if not candidates:
            raise OSError("no libsapien*.so beside the sapien package")
        library = ctypes.CDLL(candidates[0])  # the binding has loaded it already: the same handle
        self.function: Callable[[int], None] = getattr(library, STEP_SYMBOL)
        self.function.argtypes = [ctypes.c_void_p]
        self.function.restype = None
        self._type_info = ctypes.addressof(ctypes.c_void_p.in_dll(library, TYPE_INFO_SYMBOL))
        api = ctypes.pythonapi
        self._capsule_new = api.PyCapsule_New
        self._capsule_new.restype = ctypes.py_object
        self._capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._capsule_name = api.PyCapsule_GetName
        self._capsule_name.restype = ctypes.c_char_p
        self._capsule_name.argtypes = [ctypes.py_object]
        self._capsule_pointer = api.PyCapsule_GetPointer
        self._capsule_pointer.restype = ctypes.c_void_p
        self._capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self._type_info_name = b"St9type_info"  # kept: a capsule points at its name

    def address(self, system: physx.PhysxCpuSystem) -> int:
        """The address of the C++ object behind ``system``; raises TypeError if the binding does not give it."""
        wanted = self._capsule_new(self._type_info, self._type_info_name, None)
        capsule: Any = system._pybind11_conduit_v1_(PYBIND11_ABI_ID, wanted, b"raw_pointer_ephemeral")
        if capsule is None:
            raise TypeError("pybind11's conduit refused: another C++ ABI or pybind11 version")
        pointer = self._capsule_pointer(capsule, self._capsule_name(capsule))
        if not pointer:
            raise TypeError("pybind11's conduit gave a null pointer")
        return int(pointer)


_native: _NativeStep | None = None
_native_error: str | None = None


def native_step() -> _NativeStep | None:
    """The C++ step function, looked up once per process.

    Returns None if there is none; a warning in the log then says why.
    """
    global _native, _native_error
    if _native is None and _native_error is None:
        try:
            candidate = _NativeStep()
            candidate.address(physx.PhysxCpuSystem())
            _native = candidate
        except (OSError, AttributeError, TypeError, ValueError) as error:
            _native_error = str(error)
            logger.warning(
                "sapien %s does not offer a step without Python's global lock (%s): scenes are stepped on one thread",
                sapien.__version__,
                error,
            )
    return _native


def default_threads() -> int:
    """The number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


class _Order:
    """A job for every scene, on which several threads work."""

    def __init__(self, job: Callable[[int], None], count: int) -> None:
        self._job = job
        # a range iterator hands out each number once, also to several threads, so no scene waits for a slower one
        self._scenes = iter(range(count))
        self._working = 0
        self._idle = threading.Condition()
        self.errors: list[BaseException] = []

    def work(self) -> None:
        """Call the job for scenes until none is left, or a call fails."""
        for scene in self._scenes:
            self._job(scene)

    def help(self) -> None:
        """`work` in a thread of its own; errors are kept."""
        with self._idle:
            self._working += 1
        try:
            self.work()
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def finish(self) -> None:
        """Wait until no thread works on it, and none will. May be interrupted and called again."""
        for _ in self._scenes:  # none is left, unless the work was interrupted
            pass
        with self._idle:
            while self._working:
                self._idle.wait()


def _worker(orders: queue.SimpleQueue[_Order | None]) -> None:
    while (order := orders.get()) is not None:
        order.help()
        # a waiting thread must not keep a forgotten environment alive
        del order


class _Stop:
    """Ends the workers. Separate from the pool, so that a finalizer can hold it without keeping the pool alive."""

    def __init__(self, orders: queue.SimpleQueue[_Order | None], threads: list[threading.Thread]) -> None:
        self.orders, self.threads = orders, threads

    def __call__(self) -> None:
        for _ in self.threads:
            self.orders.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()
        self.threads.clear()


class ScenePool:
    """Runs a job once for each of ``count`` scenes, ``threads`` at a time (the calling thread is one of them)."""

    def __init__(self, count: int, threads: int) -> None:
        self._count = count
        self.threads = max(1, min(threads, count))
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._begun: _Order | None = None
        workers = [
            threading.Thread(target=_worker, args=(self._orders,), daemon=True, name=f"mikasa-physx-{i}")
            for i in range(1, self.threads)
        ]
        for worker in workers:
            worker.start()
        self._workers = len(workers)
        self._stop = weakref.finalize(self, _Stop(self._orders, workers))

    def run(self, job: Callable[[int], None]) -> None:
        """Calls ``job(scene)`` for every scene and waits for all. An error in any call is raised here.

        Ctrl-C may end it early. Then the next call first waits for what still runs, and leaves out what was not begun.
        """
        if not self._stop.alive:
            raise RuntimeError("the simulation was closed: make a new environment to step again")
        if self._begun is not None:
            self._begun.finish()
        self._begun = order = _Order(job, self._count)
        for _ in range(self._workers):
            self._orders.put(order)
        try:
            order.work()
        finally:
            order.finish()
            self._begun = None
        if order.errors:
            raise order.errors[0]

    def close(self) -> None:
        """Ends the threads. May be called twice."""
        self._stop()


def steppers(systems: Sequence[physx.PhysxCpuSystem]) -> list[Callable[[], None]]:
    """For each system, a function that makes one substep, without Python's global lock if possible."""
    native = native_step()
    if native is None:
        return [system.step for system in systems]
    return [functools.partial(native.function, native.address(system)) for system in systems]
