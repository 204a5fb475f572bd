"""Names that say which module registers them, as Gymnasium has it: ``"module:ID"``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

__all__ = ["EnvIdError", "import_env_id", "import_named_module", "make_current_folder_importable", "split_env_id"]


class EnvIdError(ValueError):
    """An environment ID (or another such name) is malformed, or the module that it names cannot be imported."""


def split_env_id(env_id: str) -> tuple[str | None, str]:
    """The module and the bare ID of ``env_id``; the module is None where it names none.

    >>> split_env_id("examples.point_back:PointBack-v0")
    ('examples.point_back', 'PointBack-v0')

    Raises:
        EnvIdError: there is more than one colon, or nothing on one side of it.
    """
    return _split(env_id, "an environment ID: write 'ID' or 'module:ID', such as 'my_tasks:MyTask-v0'")


def import_env_id(env_id: str) -> str:
    """Import the module that ``env_id`` names, if it names one, and return the bare ID.

    This runs the module's code. Call it only for an ID that the user gave, never for one read from a file.

    Raises:
        EnvIdError: ``env_id`` is malformed, or its module does not exist. What the module itself raises is not caught.
    """
    return _import(env_id, *split_env_id(env_id))


def import_named_module(name: str, kind: str) -> str:
    """`import_env_id` for another ``kind`` of name, such as ``"an algorithm"``."""
    return _import(name, *_split(name, f"{kind}: write 'NAME' or 'module:NAME'"))


def _split(text: str, expected: str) -> tuple[str | None, str]:
    module, colon, name = text.rpartition(":")
    if not colon:
        return None, text
    if not name or not all(part.isidentifier() for part in module.split(".")):
        raise EnvIdError(f"{text!r} is not {expected}")
    return module, name


def make_current_folder_importable() -> None:
    """For names of the form module:ID. ``python -m`` does the same; the console script and ``python FILE`` do not.

    The folder goes to the end of the path, so that no file in it hides an installed package.
    """
    with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)


def _import(text: str, module: str | None, name: str) -> str:
    if module is None:
        return name
    make_current_folder_importable()  # whichever script or command the name was given to
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise EnvIdError(
            f"{text!r}: there is no module {error.name!r}; run this from the folder that holds it, or install it"
        ) from error
    return name
