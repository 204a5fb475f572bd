"""Locks on files and folders, which end with the process that holds them."""

from __future__ import annotations

import fcntl

__all__ = ["take_lock"]


def take_lock(handle: int) -> bool:
    """Lock an open file or folder without waiting. The lock ends when ``handle`` is closed, also by a kill.

    Args:
        handle: a file descriptor.

    Returns:
        Whether it is locked now. False: the file system has no locks, as some network file systems.

    Raises:
        BlockingIOError: another process, or another handle of this one, holds the lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
