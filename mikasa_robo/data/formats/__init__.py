"""The file formats of datasets. A format is a module with an `EpisodeWriter` and a row here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mikasa_robo.data.episode import EpisodeWriter

__all__ = ["FORMATS", "DataFormat", "FormatError", "find_format"]


class FormatError(ValueError):
    """There is no such format, or a package that it needs is missing."""


@dataclass(frozen=True)
class DataFormat:
    """A row: a file format and what writes it."""

    name: str
    """Its name on the command line, and that of its folder in a dataset."""
    entry_point: str
    """The `EpisodeWriter`, ``"module:Class"``; the module is imported when the format is used."""
    description: str
    """What it is and what reads it, in one line."""
    extra: str | None = None
    """The extra of the distribution that installs what the module needs beyond MIKASA's own dependencies."""

    def writer(self) -> type[EpisodeWriter]:
        """The class. Raises FormatError where its module, or a package that it needs, is not installed."""
        module, name = self.entry_point.split(":")
        try:
            kind: type[EpisodeWriter] = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            fix = f"; install it with: pip install 'mikasa-suite[{self.extra}]'" if self.extra is not None else ""
            raise FormatError(f"the format {self.name} needs the module {error.name}{fix}") from error
        except AttributeError as error:
            raise FormatError(f"the format {self.name}: {module} has no {name}") from error
        return kind


def _by_name(*rows: DataFormat) -> Mapping[str, DataFormat]:
    return MappingProxyType({row.name: row for row in rows})


_HERE = "mikasa_robo.data.formats"

FORMATS: Mapping[str, DataFormat] = _by_name(
    DataFormat(
        "lerobot", f"{_HERE}.lerobot:LeRobotWriter", "LeRobot v3.0, colour images as H.264 videos", extra="datasets"
    ),
    DataFormat(
        "lerobot-images", f"{_HERE}.lerobot:LeRobotImageWriter", "LeRobot v3.0, images without loss", extra="datasets"
    ),
    DataFormat("maniskill", f"{_HERE}.maniskill:ManiSkillWriter", "ManiSkill's trajectories, HDF5 and JSON"),
    DataFormat("minari", f"{_HERE}.minari:MinariWriter", "Minari, HDF5, for observations without images"),
    DataFormat("rlds", f"{_HERE}.rlds:RLDSWriter", "RLDS, TFRecord files for TensorFlow Datasets"),
    DataFormat("robomimic", f"{_HERE}.robomimic:RobomimicWriter", "robomimic's HDF5"),
)
"""The formats by name."""


def find_format(name: str) -> DataFormat:
    """The format ``name``, or ``module:Class`` for a writer of the user's own.

    Raises:
        FormatError: there is no such format; the message lists those that there are.
    """
    if name in FORMATS:
        return FORMATS[name]
    module, _, kind = name.partition(":")
    if kind.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return DataFormat(kind, name, "a format of the user's own")
    known = ", ".join(FORMATS) or "none are installed"
    raise FormatError(f"there is no format {name!r}; use {known}, or module:Class for a writer of your own")
