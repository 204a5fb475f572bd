"""Checks of the files that a command is to write, made before it does its work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .env_ids import OptionError

__all__ = ["FileTakenError", "require_folder", "require_new_files"]


class FileTakenError(OptionError, FileExistsError):
    """A command would have to overwrite a file."""


def require_folder(folder: Path, option: str = "--out") -> None:
    """Raise OptionError unless files can be written to ``folder``, or it can be made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise OptionError(f"{option} {folder}: {existing} is a file, not a folder; choose another name")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OptionError(f"{option} {folder}: {existing} cannot be written to; choose another folder")


def require_new_files(folder: Path, files: Sequence[Path], option: str = "--out") -> None:
    """Raise OptionError unless all ``files`` are new and can be written to ``folder``; see `require_folder`."""
    require_folder(folder, option)
    taken = [path.name for path in files if path.exists()]
    if taken:
        raise FileTakenError(
            f"{option} {folder} already contains {', '.join(taken)}; choose another folder, or move these files away"
        )
