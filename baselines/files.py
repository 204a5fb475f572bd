"""Files of runs: writing them so that a crash never leaves half of one, and finding them."""

from __future__ import annotations

import os
from pathlib import Path

from mikasa_robo.partial_files import PartialFile

__all__ = ["POLICY_FILES", "find_policy_file", "why_not_writable", "write_atomically"]

POLICY_FILES = ("checkpoint.pt", "best.pt")
"""The policies in the folder of a run, the latest and the best."""


def write_atomically(path: Path, data: bytes, overwrite: bool = True) -> None:
    """Write ``data`` to ``path`` atomically: after a crash the old file or the new one is there, never half of one.

    Raises:
        FileExistsError: there is such a file, and ``overwrite`` is False.
    """
    with PartialFile(path) as partial:
        with open(partial.handle, "wb", closefd=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(overwrite)


def find_policy_file(path: Path) -> Path:
    """``path``, or the policy in it where it is the folder of a run: checkpoint.pt if it is there, else best.pt.

    Raises:
        FileNotFoundError: there is no such file, it is not a regular one, or the folder holds no policy.
    """
    if os.path.isfile(path):  # False, and no error, for a name that no file can have
        return path
    if os.path.isdir(path):
        for name in POLICY_FILES:
            if (path / name).is_file():
                return path / name
        raise FileNotFoundError(f"{path} holds neither checkpoint.pt nor best.pt; name the folder of a run")
    if os.path.exists(path):
        raise FileNotFoundError(f"{path} is not a regular file; name the checkpoint.pt of a run")
    raise FileNotFoundError(f"{path}: there is no such file; name one that training wrote, or the folder of a run")


def why_not_writable(folder: Path, name: str = "") -> str | None:
    """Why no file can be created in ``folder``; None if one can. Missing folders count as far as they can be made.

    Args:
        folder: where the files will be.
        name: the longest name of a file there.
    """
    existing = folder
    try:
        absolute = folder.absolute()
        existing = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
        if not existing.is_dir():
            return f"{existing} is a file, not a folder" if existing.exists() else f"{existing} is a broken link"
        parts = [*absolute.relative_to(existing).parts, name]
        if any("\0" in part for part in parts):
            return "no name can hold a null character"
        longest = max(len(os.fsencode(part)) for part in parts)
        if longest > os.pathconf(existing, "PC_NAME_MAX"):
            return f"a name of {longest} bytes is too long"
        if len(os.fsencode(absolute / name)) >= os.pathconf(existing, "PC_PATH_MAX"):
            return "the path is too long"
        # Not os.access: it says yes to the superuser where nothing can be created, such as in /proc.
        PartialFile(existing / "check").close()
    except (OSError, ValueError) as error:
        return f"{existing} cannot be written to: {getattr(error, 'strerror', None) or error}"
    return None
