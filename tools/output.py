"""Files that a command writes: checks that are made before it does its work, and a block within a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mikasa_robo.baselines.files import why_not_writable
from mikasa_robo.partial_files import remove_leftovers
from mikasa_robo.terminal import print_error

from .env_ids import OptionError

__all__ = [
    "FileTakenError",
    "print_report",
    "put_between_marks",
    "require_folder",
    "require_new_file",
    "require_new_files",
]


class FileTakenError(OptionError, FileExistsError):
    """A command would have to overwrite a file."""


def require_folder(folder: Path, option: str = "--out", longest_name: str = "") -> None:
    """Raise OptionError unless files can be written to ``folder``, or it can be made.

    Removes the partial files that a killed process left there.
    """
    problem = why_not_writable(folder, longest_name)
    if problem is not None:
        raise OptionError(f"{option} {folder}: {problem}; choose another folder")
    remove_leftovers(folder)


def require_new_file(path: Path, option: str = "--out") -> None:
    """Raise OptionError unless ``path`` is new and can be written; its folder has to exist."""
    if not os.path.isdir(path.parent):
        raise OptionError(f"{option} {path}: there is no folder {path.parent}; make it, or name another file")
    problem = why_not_writable(path.parent, path.name)
    if problem is not None:
        raise OptionError(f"{option} {path}: {problem}; name another file")
    if os.path.lexists(path):  # a broken link, too
        raise FileTakenError(f"{option} {path} exists; name another file, or move that one away")
    remove_leftovers(path.parent)


def require_new_files(folder: Path, files: Sequence[Path], option: str = "--out") -> None:
    """Raise OptionError unless all ``files`` are new and can be written to ``folder``; see `require_folder`."""
    require_folder(folder, option, max((path.name for path in files), key=len, default=""))
    taken = [path.name for path in files if os.path.lexists(path)]
    if taken:
        raise FileTakenError(
            f"{option} {folder} already contains {', '.join(taken)}; choose another folder, or move these files away"
        )


def print_report(make: Callable[[], tuple[Path, bool]], *mistakes: type[Exception]) -> int:
    """Print a report, and return the exit code of its command.

    Args:
        make: writes report.md and report.html; returns the path of report.md, and whether a run was found.
        mistakes: what it raises where an argument cannot be used, besides OptionError and ModuleNotFoundError.

    Returns:
        1 if no run was found; 2 after a mistake, which is printed to stderr.
    """
    expected: tuple[type[Exception], ...] = (OptionError, ModuleNotFoundError, *mistakes)
    try:
        report, found = make()
    except expected as error:
        print_error(error)
        return 2
    print(report.read_text(encoding="utf-8"))
    print(f"written: {report}, {report.with_suffix('.html').name}")
    return 0 if found else 1


def put_between_marks(path: Path, mark: str, block: str) -> None:
    """Replace what stands between two lines ``mark`` in a file, such as a table in a README.

    Args:
        path: the file.
        mark: the line before and after the block.
        block: whole lines.

    Raises:
        ValueError: there are not two marks. The file is as it was.
    """
    parts = path.read_text(encoding="utf-8").split(mark)
    if len(parts) != 3:
        raise ValueError(f"{path} has {len(parts) - 1} lines {mark!r}, and needs two, round the table")
    path.write_text(f"{parts[0]}{mark}\n{block}{mark}{parts[2]}", encoding="utf-8")
