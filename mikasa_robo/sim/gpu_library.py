"""PhysX's library for GPU simulation. SAPIEN does not ship it: it loads it from the user's folder, or first downloads it."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["download_url", "library_file", "load_library"]


def library_file(version: str | None = None) -> Path:
    """Where SAPIEN looks for the library. ``version`` is that of PhysX; None: the one of the installed SAPIEN."""
    return Path.home() / ".sapien" / "physx" / (version or _physx_version()) / "libPhysXGpu_64.so"


def download_url(version: str | None = None) -> str:
    """The zip file that SAPIEN downloads on Linux. ``version`` as in `library_file`."""
    name = "linux-aarch64-so.zip" if platform.machine() in ("aarch64", "arm64") else "linux-so.zip"
    return f"https://github.com/sapien-sim/physx-precompiled/releases/download/{version or _physx_version()}/{name}"


def _physx_version() -> str:
    import sapien.physx  # here, not above: `mikasa doctor` also runs where SAPIEN cannot be imported

    return str(sapien.physx.version())


def load_library(sim_backend: str) -> None:
    """Load the library, for which SAPIEN downloads it if it is missing.

    Args:
        sim_backend: the argument that asks for it, for the message.

    Raises:
        RuntimeError: it can be neither loaded nor downloaded.
    """
    import sapien.physx

    try:
        sapien.physx.enable_gpu()
    except Exception as error:  # of the network, of the zip file or of the loader
        file = library_file()
        there = file.is_file()
        fix = f"remove {file}, so that it is downloaded again" if there else f"unpack {download_url()} in {file.parent}"
        if "libcuda" in str(error):  # SAPIEN loads the driver first, by this name
            fix = "install NVIDIA's driver, or link its libcuda.so.1 as libcuda.so"
        what = "could not be loaded" if there else "could not be downloaded"
        raise RuntimeError(
            f"sim_backend={sim_backend!r} needs PhysX's library for GPUs, which {what} ({error}): {fix}, or use "
            "sim_backend='physx_cpu'"
        ) from error
