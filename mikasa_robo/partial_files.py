"""Files that are not complete yet. They have a name of their own, and a lock as long as their process lives.

A process that is killed leaves its partial files behind. `remove_leftovers` finds them by their name and removes those that
no living process has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from types import TracebackType

from mikasa_robo.locks import take_lock

__all__ = ["PREFIX", "PartialFile", "remove_leftovers"]

PREFIX = ".mikasa-partial-"
"""Begin of the names of partial files. It holds nothing of the final name, which may be as long as names can be."""


class PartialFile:
    """An empty file next to ``target`` that takes its place once it is complete.

    As a context manager it removes the file at the end of the block, unless `replace` was called.

    Args:
        target: the file to write. Its folder exists.

    Raises:
        OSError: no file can be created in that folder.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        while True:
            self.handle, name = tempfile.mkstemp(dir=target.parent, prefix=PREFIX, suffix=target.suffix[-8:])
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(self.handle, fcntl.LOCK_EX)
            if os.fstat(self.handle).st_nlink:
                break
            os.close(self.handle)  # `remove_leftovers` found it before it was locked
        self.path = Path(name)
        # mkstemp makes private files; a result should be as readable as any other file of the user.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)

    def replace(self, overwrite: bool = True) -> None:
        """Give the file its final name, and replace a file of that name.

        Raises:
            FileExistsError: there is such a file, and ``overwrite`` is False.
        """
        if overwrite:
            os.replace(self.path, self.target)
        else:
            self._take_new_name()
        self.close()

    def _take_new_name(self) -> None:
        """Give the file its final name unless it is taken; in one step, so that no empty file can stay behind."""
        try:
            os.link(self.path, self.target)
        except FileExistsError:
            raise
        except OSError:  # some file systems have no hard links
            self.target.touch(exist_ok=False)  # claims the name against other processes
            os.replace(self.path, self.target)

    def close(self) -> None:
        """Remove the file, unless it has its final name. Closing again does nothing."""
        if self.handle >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self.handle)
            self.handle = -1

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the partial files in ``folder`` whose process has ended, and return them. Does nothing where it cannot."""
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):  # another process was faster, or is still writing
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if take_lock(handle):
                        path.unlink()
                        removed.append(path)
                finally:
                    os.close(handle)
    return removed
