"""Old public names that go on working for a while, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["deprecated_names"]


def deprecated_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that serves ``names``: old name to new name.

    A new name is one of the module itself, or ``"other.module:name"``.

        __getattr__ = deprecated_names(__name__, {"Senses": "StepData"})
    """

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = names[name].rpartition(":")
        home = home or module
        warnings.warn(f"{module}.{name} is deprecated; use {home}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(home), new)

    return getattribute
