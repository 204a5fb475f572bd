"""An HDF5 file that can be given up halfway, as where the disk is full."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py

__all__ = ["HDF5Writer"]


class _Disk(io.FileIO):
    """A file that keeps its first error for later, and takes everything from then on without writing it.

    HDF5 cannot get rid of what it could not write. It tries again whenever an object of the file is freed, and crashes the
    interpreter at its end. So it never learns of an error.
    """

    error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Write all of ``data``. Returns its size in bytes."""
        rest = memoryview(data)
        size = len(rest)
        try:
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        except BaseException as error:  # an interrupt too
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Change the size of the file, in bytes."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return self.tell() if size is None else size

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``, with zeros where nothing was written. Returns its size in bytes."""
        view = memoryview(buffer)
        found = super().readinto(view) or 0
        view[found:] = bytes(len(view) - found)
        return len(view)


class HDF5Writer:
    """An open HDF5 file that is being written; `check` or `finish` raise what went wrong with the disk.

    Args:
        path: the file to write; one that exists is replaced.
        **options: of `h5py.File`, such as ``track_order``.

    Raises:
        OSError: the file cannot be created.

    Attributes:
        file: the `h5py.File`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        self._disk = _Disk(path, "w+")
        self.file = h5py.File(self._disk, "w", **options)

    def check(self) -> None:
        """Raise the first error of the disk: nothing was written since. Call it after each episode."""
        if self._disk.error is not None:
            raise self._disk.error

    def finish(self) -> None:
        """Complete the file. Raises OSError where a part of it could not be written."""
        self.file.close()
        self._disk.close()
        self.check()

    def abort(self) -> None:
        """Close the file as it is. Does nothing after `finish`."""
        self._disk.error = self._disk.error or OSError("the file was given up")
        self.file.close()
        self._disk.close()
