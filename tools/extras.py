"""The optional packages of mikasa-suite: what they are called, and the error for one that is missing."""

from __future__ import annotations

import importlib.util

__all__ = ["TRAIN_MODULES", "missing_module_message", "require_modules"]

TRAIN_MODULES = ("imageio", "imageio_ffmpeg", "tensorboard", "tqdm", "wandb")
"""The modules that the extra ``train`` of pyproject.toml installs."""


def missing_module_message(who: str, module: str, extra: str) -> str:
    """The error for a module that is not installed, with the command that installs it.

    >>> missing_module_message("mikasa sweep", "ray", "distributed")
    "mikasa sweep needs ray, which is not installed: pip install 'mikasa-suite[distributed]'"
    """
    return f"{who} needs {module}, which is not installed: pip install 'mikasa-suite[{extra}]'"


def require_modules(extra: str, *names: str) -> None:
    """Raise ``ModuleNotFoundError`` with the command that installs it where a module of ``extra`` is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(missing_module_message("this command", name, extra), name=name)
