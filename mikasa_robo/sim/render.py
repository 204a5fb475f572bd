"""Checks whether SAPIEN can draw on this machine."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from mikasa_robo.deprecation import deprecated_names

FIX = (
    "install a Vulkan driver that SAPIEN can draw with (Debian 12: mesa-vulkan-drivers 25 from bookworm-backports, which "
    "`bash scripts/setup.sh` installs as root; other systems: mesa-vulkan-drivers >= 24 or the GPU vendor's driver), or do "
    "without pictures: obs_mode='state' and render_mode=None need no Vulkan"
)


class RenderingUnavailableError(RuntimeError):
    """Images were requested, and SAPIEN cannot draw on this machine."""


_TIMEOUT = 120.0


@functools.cache
def rendering_problem(device: str = "cpu") -> str | None:
    """Why SAPIEN cannot draw on ``device`` ("cpu" or "cuda[:n]"); None if it can.

    A child process tries, because a broken Vulkan driver can crash the process that uses it. It takes about 2 s and is
    done once per process.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", Path(__file__).with_name("draw_box.py").read_text(encoding="utf-8"), device],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            # PYTHONSAFEPATH: no file in the current folder hides an installed package. Before Python 3.11 it does nothing.
            env=os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONSAFEPATH": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:  # its own message would show the whole program
        return f"a test image was not drawn within {_TIMEOUT:g} s; if the machine is very busy, try again"
    except OSError as error:
        return f"the check of the renderer did not start: {error}"
    return None if done.returncode == 0 else ending(done.returncode, done.stderr)


def drawing_device() -> str:
    """Where ``render_backend="auto"`` draws: "cuda" if there is a CUDA device that can draw or nothing can, else "cpu".

    A machine may have CUDA without a Vulkan driver for its GPU, as many containers do.
    """
    import torch  # here, not above: `mikasa doctor` also runs where torch cannot be imported

    if not torch.cuda.is_available():
        return "cpu"
    problem = rendering_problem("cuda")
    if problem is None or rendering_problem("cpu") is not None:
        return "cuda"
    warnings.warn(f"the CPU draws images because SAPIEN cannot draw on the GPU ({problem})", stacklevel=2)
    return "cpu"


def ending(code: int, stderr: str) -> str:
    """How a program failed: the last line of its error output, and the signal that killed it, if any."""
    said = ([line.strip() for line in stderr.splitlines() if line.strip()] or [f"it ended with code {code}"])[-1]
    if code >= 0:
        return said
    return f"killed by {signal_name(-code)}" + (f": {said}" if stderr.strip() else "")


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGSEGV". Real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def require_rendering(what: str, device: str = "cpu") -> None:
    """Raises `RenderingUnavailableError` if SAPIEN cannot draw. The message names ``what`` needs it and the fix."""
    problem = rendering_problem(device)
    if problem is None:
        return
    where, fix = "here" if device == "cpu" else "on the GPU", FIX
    if device != "cpu" and rendering_problem("cpu") is None:
        fix = "install the GPU's Vulkan driver, or use sim_backend='physx_cpu' and render_backend='cpu', with which it can"
    raise RenderingUnavailableError(f"{what} needs pictures, but SAPIEN cannot draw {where} ({problem}): {fix}")


_drawing_process: int | None = None


def refuse_fork(what: str) -> None:
    """Raises RuntimeError in a fork of a process that has drawn: SAPIEN would wait for ever. Called before each drawing env.

    The message names ``what`` needs pictures and the fix.
    """
    global _drawing_process
    if _drawing_process is None:
        _drawing_process = os.getpid()
    if _drawing_process != os.getpid():
        raise RuntimeError(
            f"{what} needs pictures, and this process is a fork of one that draws already, which SAPIEN does not survive: "
            "start processes with the method 'spawn', such as gymnasium.make_vec(…, vectorization_mode='async', "
            "vector_kwargs={'context': 'spawn'})"
        )


__getattr__ = deprecated_names(__name__, {"MEND": "FIX", "write_video": "mikasa_robo.video:write_video"})
