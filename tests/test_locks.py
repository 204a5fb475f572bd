"""Locks exclude other processes and handles, end with them, and are not needed where there are none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from mikasa_robo.locks import take_lock


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_excludes_others_until_it_is_closed(kind: str, tmp_path: Path) -> None:
    path = tmp_path
    if kind == "file":
        path = tmp_path / "lock"
        path.touch()
    first, second = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    assert take_lock(first)
    assert take_lock(first), "who has it may take it again"
    with pytest.raises(BlockingIOError):
        take_lock(second)
    os.close(first)
    assert take_lock(second)
    os.close(second)


def test_a_file_system_without_locks_is_told_from_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    handle = os.open(tmp_path, os.O_RDONLY)
    assert not take_lock(handle)
    os.close(handle)
