"""Old public names that go on working for a while, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["deprecated_names", "rename_hooks", "renamed_attributes"]

Class = TypeVar("Class", bound=type)


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


class _RenamedAttribute:
    """A descriptor for the old name of an attribute. ``owner`` None: looked up on the instance, else on that class."""

    def __init__(self, where: str, old: str, new: str, owner: type | None = None) -> None:
        self._where, self._old, self._new, self._owner = where, old, new, owner

    def __get__(self, instance: Any, cls: type) -> Any:
        warnings.warn(
            f"{self._where}.{self._old} is deprecated; use {self._where}.{self._new}", DeprecationWarning, stacklevel=2
        )
        if self._owner is None:
            return getattr(cls if instance is None else instance, self._new)
        found = vars(self._owner)[self._new]
        return found.__get__(instance, cls) if hasattr(found, "__get__") else found


def renamed_attributes(names: Mapping[str, str]) -> Callable[[Class], Class]:
    """Return a class decorator that lets attributes and methods be read under their old names: old to new."""

    def decorate(cls: Class) -> Class:
        for old, new in names.items():
            setattr(cls, old, _RenamedAttribute(cls.__name__, old, new))
        return cls

    return decorate


def rename_hooks(cls: type, names: Mapping[str, str]) -> None:
    """Lets ``cls`` define methods that subclasses override under their old names: old to new.

    A class that defines an old name and not the new one gets the new one, with a DeprecationWarning. One that defines
    the new name can be asked for the old one, so that an old-style subclass may call ``super().old_name(...)``. Call it
    once for the base class, and for every subclass from ``__init_subclass__``.
    """
    own = vars(cls)
    for old, new in names.items():
        if old in own and new not in own:
            warnings.warn(
                f"{cls.__name__}.{old} is deprecated: rename the method to {new}", DeprecationWarning, stacklevel=3
            )
            setattr(cls, new, own[old])
        elif new in own and old not in own:
            setattr(cls, old, _RenamedAttribute(cls.__name__, old, new, owner=cls))
