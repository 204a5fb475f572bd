"""The entry points that the registry gives to Gymnasium.

``mikasa_base.factory:MemoryLength`` is the factory of that row, and ``mikasa_base.factory:MemoryLengthVector`` the one of
its vector environment. A factory is called for each new environment. It checks that the environment's library is installed
and that the arguments exist, and only then imports the environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

from gymnasium.error import DependencyNotInstalled

from mikasa_base.checks import UnknownArgumentError
from mikasa_base.registry import BY_NAME, VECTOR_SUFFIX, EnvRow, load

__all__ = ["Factory", "missing_dependency"]


def missing_dependency(row: EnvRow) -> str | None:
    """Name of the first module that ``row`` needs and that is not installed; None if all are. Imports no module."""
    return next((name for name in row.requires if not _is_installed(name)), None)


class Factory:
    """Makes the environments of one row.

    Args:
        row: The row of the registry.
        vector: Whether to make the vector environment.
    """

    def __init__(self, row: EnvRow, vector: bool = False) -> None:
        entry_point = row.vector_entry_point if vector else row.entry_point
        if entry_point is None:
            raise ValueError(f"{row.name} has no vectorised form: use vectorization_mode 'sync' or 'async'")
        self.row = row
        self.vector = vector
        self.entry_point = entry_point

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the environment's class, with which ``gym.make`` checks ``render_mode``."""
        metadata: dict[str, Any] = self._load().metadata
        return metadata

    def __call__(self, **kwargs: Any) -> Any:
        """Makes the environment.

        Raises:
            gymnasium.error.DependencyNotInstalled: a module that it needs is not installed.
            mikasa_base.checks.UnknownArgumentError: an argument does not exist.
            ValueError: the value of an argument is not allowed.
        """
        env_class = self._load()
        # Single environments never get it: gym.make wraps them in TimeLimit instead.
        max_episode_steps = kwargs.pop("max_episode_steps", None) if self.vector else None
        parameters = inspect.signature(env_class).parameters.values()
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            known = [p.name for p in parameters]
            for name, value in kwargs.items():
                if name not in known:
                    # It begins in Python's own words, which TorchRL looks for.
                    raise UnknownArgumentError(
                        f"{self.row.name}.__init__() got an unexpected keyword argument {name!r}, as {name}={value!r}: "
                        f"its arguments are {', '.join(known)}"
                    )
        env = env_class(**kwargs)
        if max_episode_steps is not None:
            env.limit_episodes(max_episode_steps)
        return env

    def _load(self) -> Any:
        missing = missing_dependency(self.row)
        if missing is not None:
            raise DependencyNotInstalled(
                f"{self.row.name} needs {missing}, which is not installed: pip install 'mikasa-suite[{self.row.extra}]'"
            )
        return load(self.entry_point)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # a parent is missing, or the module is blocked in sys.modules
        return False


def __getattr__(name: str) -> Factory:
    if name in BY_NAME:
        return Factory(BY_NAME[name])
    family = name.removesuffix(VECTOR_SUFFIX)
    if family in BY_NAME and family != name:
        return Factory(BY_NAME[family], vector=True)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
