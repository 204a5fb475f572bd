"""Old names of modules that have moved. Importing and ``python -m`` work under both, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, MappingProxyType, ModuleType

__all__ = ["MOVED_MODULES", "install_moved_modules"]

MOVED_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "mikasa_robo.baselines.evaluation_protocol": "mikasa_robo.tools.evaluate",
        "mikasa_robo.baselines.intervals": "mikasa_robo.tools.intervals",
        "mikasa_robo.baselines.plot": "mikasa_robo.tools.plot",
        "mikasa_robo.baselines.report": "mikasa_robo.tools.report",
        "mikasa_robo.baselines.sweep": "mikasa_robo.tools.sweep",
        "mikasa_robo.cli": "mikasa_robo.tools.cli",
        "mikasa_robo.doctor": "mikasa_robo.tools.doctor",
        "mikasa_robo.experts.command": "mikasa_robo.tools.expert",
        "mikasa_robo.gallery": "mikasa_robo.tools.gallery",
        "mikasa_robo.recording": "mikasa_robo.tools.record",
    }
)
"""Modules that have moved: old name to new name."""


class _MovedModuleLoader(InspectLoader):
    """Loads a module under its old name: the import returns the very module that has moved."""

    def __init__(self, new: str) -> None:
        self._new = new

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        # The import system returns what stands in sys.modules after this; its own frames do not count for stacklevel.
        warnings.warn(f"{old} is deprecated; use {self._new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(self._new)

    def get_source(self, fullname: str) -> str:
        """What ``python -m`` runs."""
        return (
            "import sys, warnings\n"
            f"from {self._new} import main\n"
            "if __name__ == '__main__':\n"
            f"    warnings.warn('{fullname} is deprecated; use {self._new}', DeprecationWarning)\n"
            "    sys.exit(main())\n"
        )

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), f"<{fullname}>", "exec")

    def is_package(self, fullname: str) -> bool:
        return False


class _MovedModuleFinder(MetaPathFinder):
    """Finds the modules of `MOVED_MODULES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = MOVED_MODULES.get(fullname)
        if new is None:
            return None
        found = importlib.util.find_spec(new)
        origin = None if found is None else found.origin  # `python -m` makes it sys.argv[0]
        return ModuleSpec(fullname, _MovedModuleLoader(new), origin=origin)


def install_moved_modules() -> None:
    """Let the modules of `MOVED_MODULES` be imported under their old names. Installing it twice changes nothing."""
    if not any(type(finder).__name__ == _MovedModuleFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_MovedModuleFinder())
