"""What the registry records of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["EnvRow", "MemoryType", "Tier", "Variant"]

Tier = Literal["diagnostic", "complex"]
"""As in the MIKASA paper (arXiv 2502.10550), section 5. Diagnostic environments return vectors and test memory alone;
complex ones return images."""
MemoryType = Literal["object", "spatial", "sequential", "capacity"]
"""The kind of memory that is tested, as in section 4.2 of the paper."""


@dataclass(frozen=True, kw_only=True)
class EnvRow:
    """One family of environments: ``<name>-v0``, which takes any arguments, and ``<name><Preset>-v0``.

    ``steps`` and the scores are mappings from the name of a preset to a value. The key "" stands for ``<name>-v0``. A
    score that is not known has no key. A score is the mean return of an episode or, with ``score="success"``, the
    success rate.
    """

    name: str
    """Stem of the IDs."""
    tier: Tier
    memory: tuple[MemoryType, ...]
    lag: str
    """Steps between a cue and its recall, in words."""
    entry_point: str
    """``module:Class`` of the single environment."""
    steps: Mapping[str, int]
    """The most steps that an episode can take."""
    source: str
    """The publication and, if the environment is built on one, the library."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``<name>-v0``. JSON must be able to store them."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of each preset."""
    vector_entry_point: str | None = None
    """``module:Class`` of the vector environment, if there is one."""
    score: Literal["return", "success"] = "return"
    perfect: Mapping[str, float] = field(default_factory=dict)
    """Score of `perfect_agent`, which remembers every observation."""
    memoryless: Mapping[str, float] = field(default_factory=dict)
    """Score of `memoryless_agent`, which uses the current observation alone."""
    chance: Mapping[str, float] = field(default_factory=dict)
    """Score of uniformly random actions, where it can be computed."""
    perfect_agent: str | None = None
    """``module:Class`` of a `mikasa_base.agents.agent.Agent`."""
    memoryless_agent: str | None = None
    """``module:Class`` of an `Agent`."""
    extra: str | None = None
    """The pip extra of mikasa-suite that installs what the environment needs."""
    requires: tuple[str, ...] = ()
    """The modules that the extra installs, by their import names."""
    weak: str = ""
    """Why this environment tests memory only weakly; empty if it does not."""


@dataclass(frozen=True)
class Variant:
    """One ID: a row with one of its presets, or without a preset ("")."""

    row: EnvRow
    preset: str

    @property
    def id(self) -> str:
        """The ID for ``gym.make``."""
        return f"{self.row.name}{self.preset}-v0"

    @property
    def kwargs(self) -> dict[str, Any]:
        """The default arguments of ``gym.make``."""
        return {**self.row.kwargs, **(self.row.presets[self.preset] if self.preset else {})}

    @property
    def steps(self) -> int:
        """The most steps that an episode can take."""
        return self.row.steps[self.preset]

    @property
    def perfect(self) -> float | None:
        """Score of an agent with perfect memory; None if not known."""
        return self.row.perfect.get(self.preset)

    @property
    def memoryless(self) -> float | None:
        """Score of an agent without memory; None if not known."""
        return self.row.memoryless.get(self.preset)

    @property
    def chance(self) -> float | None:
        """Score of random actions; None if not known."""
        return self.row.chance.get(self.preset)
