"""What observations and actions are made of, as plain values that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

__all__ = ["ActionLayout", "Obs", "ObservationLayout", "ObservationPart", "cat_obs", "flatten", "map_obs", "stack_obs"]

Obs: TypeAlias = Tensor | dict[str, Tensor]
"""One tensor with a leading axis of environments, or a flat dict of such tensors."""

SMALLEST_PICTURE = 16
"""Arrays (H, W, C) with fewer pixels a side are taken as vectors: a convolution would have nothing to slide over."""
MOST_CHANNELS = 32
PICTURE_SCALES = {"depth": 1e-3, "segmentation": 1 / 32}
"""What a picture of integers is multiplied by, by its name: depth comes in mm and is taken in m."""


def map_obs(function: Callable[[Tensor], Tensor], obs: Obs) -> Obs:
    """``function`` of every tensor of ``obs``."""
    return {name: function(value) for name, value in obs.items()} if isinstance(obs, dict) else function(obs)


def stack_obs(rows: Sequence[Obs]) -> Obs:
    """Joins S observations (N, …) to (S, N, …)."""
    return _join(torch.stack, rows)


def cat_obs(rows: Sequence[Obs]) -> Obs:
    """Joins observations (B_i, …) to (sum of B_i, …)."""
    return _join(torch.cat, rows)


def _join(join: Callable[[list[Tensor]], Tensor], rows: Sequence[Obs]) -> Obs:
    first = rows[0]
    if isinstance(first, dict):
        return {name: join([row[name] for row in rows]) for name in first}  # type: ignore[index]
    return join(list(rows))  # type: ignore[arg-type]


def flatten(nested: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dicts and tuples under the names of their paths, such as ``"a.b"``; a leaf alone is ``""``.

    >>> flatten({"a": {"b": 1}, "c": (2, 3)})
    {'a.b': 1, 'c.0': 2, 'c.1': 3}
    """
    if isinstance(nested, (Mapping, gym.spaces.Dict)):
        items = list(nested.items())
    elif isinstance(nested, (tuple, gym.spaces.Tuple)):
        items = [(str(i), value) for i, value in enumerate(nested)]
    else:
        return {name: nested}
    return {
        path: leaf for key, value in items for path, leaf in flatten(value, f"{name}.{key}" if name else key).items()
    }


@dataclass(frozen=True)
class ObservationPart:
    """One tensor of an observation.

    Args:
        name: its key; "" where the observation is one tensor.
        kind: "vector": numbers that are normalised; "bounded": numbers that only have to be scaled; "discrete": one-hot
            codes are made of it; "picture": (H, W, C), goes through a convolutional network.
        shape: of one environment's.
        scale: what "bounded" numbers and pictures are multiplied by.
        sizes: numbers of values of the components of "discrete".
        starts: their lowest values.
    """

    name: str
    kind: Literal["vector", "bounded", "discrete", "picture"]
    shape: tuple[int, ...]
    scale: float = 1.0
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers of a vector it becomes; 0 for a picture."""
        if self.kind == "picture":
            return 0
        return sum(self.sizes) if self.kind == "discrete" else int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True)
class ObservationLayout:
    """The parts of an observation, in the order in which they are joined."""

    parts: tuple[ObservationPart, ...]

    @classmethod
    def of(cls, space: gym.Space[Any]) -> ObservationLayout:
        """The layout of what `flatten` makes of an observation from ``space``, that of one environment.

        Raises ValueError where a part cannot be taken.
        """
        return cls(tuple(_part(name, leaf) for name, leaf in flatten(space).items()))

    @classmethod
    def parse(cls, plain: int | Sequence[Mapping[str, Any]] | ObservationLayout) -> ObservationLayout:
        """From what `plain` gave, or from the size of a vector."""
        if isinstance(plain, ObservationLayout):
            return plain
        if isinstance(plain, int):
            return cls((ObservationPart("", "vector", (plain,)),))
        return cls(tuple(ObservationPart(**_tuples(part)) for part in plain))

    @property
    def width(self) -> int:
        """Numbers in the vector that all parts but the pictures are joined to."""
        return sum(part.width for part in self.parts)

    @property
    def pictures(self) -> tuple[ObservationPart, ...]:
        """The parts that are pictures."""
        return tuple(part for part in self.parts if part.kind == "picture")

    def plain(self) -> int | list[dict[str, Any]]:
        """For a checkpoint; the size alone where there is one vector and nothing else."""
        if self == ObservationLayout.parse(self.width):
            return self.width
        return [{key: list(v) if isinstance(v, tuple) else v for key, v in asdict(part).items()} for part in self.parts]


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}


def _part(name: str, space: gym.Space[Any]) -> ObservationPart:
    if isinstance(space, gym.spaces.Discrete):
        return ObservationPart(name, "discrete", (), sizes=(int(space.n),), starts=(int(space.start),))
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes, starts = (tuple(int(v) for v in np.ravel(a)) for a in (space.nvec, space.start))
        return ObservationPart(name, "discrete", tuple(space.shape), sizes=sizes, starts=starts)
    if isinstance(space, gym.spaces.MultiBinary):
        return ObservationPart(name, "bounded", tuple(space.shape))
    if isinstance(space, gym.spaces.Box):
        shape = tuple(space.shape)
        image = len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE and shape[2] <= MOST_CHANNELS
        byte = space.dtype == np.uint8 and int(space.high.max(initial=0)) == 255
        scale = PICTURE_SCALES.get(name.rpartition(".")[2], 1 / 255 if byte else 1.0)
        if image:
            return ObservationPart(name, "picture", shape, scale)
        return ObservationPart(name, "bounded", shape, scale) if byte else ObservationPart(name, "vector", shape)
    raise ValueError(
        f"observation {name!r} is a {type(space).__name__}, which no encoder takes; "
        "use Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"
    )


@dataclass(frozen=True)
class ActionLayout:
    """An action of A components: continuous ones in [-1, 1], or (where there are ``sizes``) numbers from 0 on.

    Args:
        dim: A.
        sizes: numbers of values of discrete components; empty for continuous ones.
    """

    dim: int
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, space: gym.Space[Any]) -> ActionLayout:
        """The layout for an action space of one environment. Raises ValueError where it cannot be served."""
        if isinstance(space, gym.spaces.Box):
            return cls(int(np.prod(space.shape, dtype=int)))
        if isinstance(space, gym.spaces.Discrete):
            return cls(1, (int(space.n),))
        if isinstance(space, gym.spaces.MultiDiscrete):
            sizes = tuple(int(n) for n in np.ravel(space.nvec))
            return cls(len(sizes), sizes)
        raise ValueError(f"actions in {space} cannot be made; use a Box, Discrete or MultiDiscrete action space")

    @classmethod
    def parse(cls, plain: int | Sequence[int] | ActionLayout) -> ActionLayout:
        """From what `plain` gave: the number of continuous components, or the sizes of the discrete ones."""
        if isinstance(plain, ActionLayout):
            return plain
        return cls(plain) if isinstance(plain, int) else cls(len(plain), tuple(plain))

    @property
    def parameters(self) -> int:
        """How many numbers a network has to give for an action's distribution: means or logits."""
        return sum(self.sizes) or self.dim

    @property
    def dtype(self) -> torch.dtype:
        """Of an action's tensor (B, A)."""
        return torch.int64 if self.sizes else torch.float32

    def plain(self) -> int | list[int]:
        """For a checkpoint."""
        return list(self.sizes) if self.sizes else self.dim

    def to_env(self, action: Tensor) -> Tensor:
        """What an environment takes (B, A) for a sampled action (B, A): continuous ones are clamped to [-1, 1]."""
        return action if self.sizes else action.clamp(-1.0, 1.0)
