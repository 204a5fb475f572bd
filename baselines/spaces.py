"""The layout of observations and actions, as plain values that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from mikasa_robo.deprecation import deprecated_names, renamed_attributes

__all__ = [
    "ActionLayout",
    "Obs",
    "ObservationLayout",
    "ObservationPart",
    "State",
    "Tensors",
    "batch_size",
    "cat_tensors",
    "flatten",
    "map_tensors",
    "stack_tensors",
]

__getattr__ = deprecated_names(
    __name__, {"map_obs": "map_tensors", "stack_obs": "stack_tensors", "cat_obs": "cat_tensors"}
)

Tensors: TypeAlias = Tensor | dict[str, Tensor]
"""One tensor, or a flat dict of tensors with the same leading axes."""
Obs: TypeAlias = Tensors
"""Observations: one tensor with a leading axis of environments, or a flat dict of such tensors."""
State: TypeAlias = Tensors
"""Recurrent state of a network: one tensor with a leading axis of environments, or a flat dict of such tensors."""

MIN_IMAGE_SIDE = 16
"""Arrays (H, W, C) with fewer pixels a side are treated as vectors: they are too small for the convolutions."""
MAX_IMAGE_CHANNELS = 32
OBJECTS = "objects"
"""The part of a robot task's observation that is a set; see `core.observations.object_view`."""
IMAGE_SCALES = {"depth": 1e-3, "segmentation": 1 / 32}
"""Factor for images of integers, by the last part of their name: depth comes in mm and is used in m."""


def map_tensors(function: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    """Apply ``function`` to the tensor, or to every tensor of the dict."""
    return (
        {name: function(value) for name, value in tensors.items()} if isinstance(tensors, dict) else function(tensors)
    )


def stack_tensors(rows: Sequence[Tensors]) -> Tensors:
    """Stack S times (N, …) to (S, N, …)."""
    return _join(torch.stack, rows)


def cat_tensors(rows: Sequence[Tensors]) -> Tensors:
    """Concatenate (B_i, …) to (sum of B_i, …)."""
    return _join(torch.cat, rows)


def batch_size(tensors: Tensors) -> int:
    """Length of the leading axis."""
    return len(next(iter(tensors.values()))) if isinstance(tensors, dict) else len(tensors)


def _join(join: Callable[[list[Tensor]], Tensor], rows: Sequence[Tensors]) -> Tensors:
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
        kind: "vector": numbers, normalised by their running statistics; "bounded": numbers that are scaled by a constant;
            "discrete": one-hot encoded; "image": (H, W, C), encoded by a convolutional network.
        shape: shape of the tensor, without the axis of environments.
        scale: factor for "bounded" numbers and images.
        sizes: number of values of each component of a "discrete" part.
        starts: lowest value of each of these components.
        items: number of objects that a "vector" describes one after another, in equal shares; 0 where it is no set.
    """

    name: str
    kind: Literal["vector", "bounded", "discrete", "image"]
    shape: tuple[int, ...]
    scale: float = 1.0
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    items: int = field(default=0, compare=False)  # how a vector is read, not what is observed

    @property
    def width(self) -> int:
        """Number of columns of the joined vector that it becomes; 0 for an image."""
        if self.kind == "image":
            return 0
        return sum(self.sizes) if self.kind == "discrete" else int(np.prod(self.shape, dtype=int))


@renamed_attributes({"parse": "from_dict", "plain": "to_dict", "pictures": "images"})
@dataclass(frozen=True)
class ObservationLayout:
    """The parts of an observation, in the order in which they are joined."""

    parts: tuple[ObservationPart, ...]

    @classmethod
    def of(cls, space: gym.Space[Any], num_objects: int = 0) -> ObservationLayout:
        """The layout of flattened observations (see `flatten`) of ``space``, the space of one environment.

        Args:
            space: the space of one environment.
            num_objects: number of objects in the part "objects" of a robot task; 0 where there is no such part.

        Raises:
            ValueError: no encoder takes one of the parts.
        """
        parts = (_part(name, leaf) for name, leaf in flatten(space).items())
        return cls(tuple(replace(part, items=num_objects) if part.name == OBJECTS else part for part in parts))

    @classmethod
    def from_dict(cls, values: int | Sequence[Mapping[str, Any]] | ObservationLayout) -> ObservationLayout:
        """The layout that `to_dict` described, or that of a vector of the given size."""
        if isinstance(values, ObservationLayout):
            return values
        if isinstance(values, int):
            return cls((ObservationPart("", "vector", (values,)),))
        return cls(tuple(ObservationPart(**_part_arguments(part)) for part in values))

    @property
    def width(self) -> int:
        """Size of the vector that all parts but the images are joined to."""
        return sum(part.width for part in self.parts)

    @property
    def images(self) -> tuple[ObservationPart, ...]:
        """The parts that are images."""
        return tuple(part for part in self.parts if part.kind == "image")

    def to_dict(self) -> int | list[dict[str, Any]]:
        """Plain values for a checkpoint: a dict for each part, or the size alone where there is only one vector."""
        if self == ObservationLayout.from_dict(self.width):
            return self.width
        return [{key: list(v) if isinstance(v, tuple) else v for key, v in asdict(part).items()} for part in self.parts]


def _part_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if arguments["kind"] == "picture":  # in checkpoints of version 1
        arguments["kind"] = "image"
    return arguments


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
        image = len(shape) == 3 and min(shape[:2]) >= MIN_IMAGE_SIDE and shape[2] <= MAX_IMAGE_CHANNELS
        byte = space.dtype == np.uint8 and int(space.high.max(initial=0)) == 255
        scale = IMAGE_SCALES.get(name.rpartition(".")[2], 1 / 255 if byte else 1.0)
        if image:
            return ObservationPart(name, "image", shape, scale)
        return ObservationPart(name, "bounded", shape, scale) if byte else ObservationPart(name, "vector", shape)
    raise ValueError(
        f"observation {name!r} is a {type(space).__name__}, which no encoder takes; "
        "use Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them"
    )


@renamed_attributes({"parse": "from_dict", "plain": "to_dict"})
@dataclass(frozen=True)
class ActionLayout:
    """An action of A components, either continuous in [-1, 1] or discrete and counted from 0.

    Args:
        dim: A.
        sizes: number of values of each discrete component; empty for continuous ones.
    """

    dim: int
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, space: gym.Space[Any]) -> ActionLayout:
        """The layout for an action space of one environment. Raises ValueError for a space of another kind."""
        if isinstance(space, gym.spaces.Box):
            return cls(int(np.prod(space.shape, dtype=int)))
        if isinstance(space, gym.spaces.Discrete):
            return cls(1, (int(space.n),))
        if isinstance(space, gym.spaces.MultiDiscrete):
            sizes = tuple(int(n) for n in np.ravel(space.nvec))
            return cls(len(sizes), sizes)
        raise ValueError(f"the action space {space} is not supported; use Box, Discrete or MultiDiscrete")

    @classmethod
    def from_dict(cls, values: int | Sequence[int] | ActionLayout) -> ActionLayout:
        """The layout that `to_dict` described: the number of continuous components, or the sizes of discrete ones."""
        if isinstance(values, ActionLayout):
            return values
        return cls(values) if isinstance(values, int) else cls(len(values), tuple(values))

    @property
    def parameters(self) -> int:
        """Number of outputs of a policy network: means or logits."""
        return sum(self.sizes) or self.dim

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of a tensor of actions (B, A)."""
        return torch.int64 if self.sizes else torch.float32

    def to_dict(self) -> int | list[int]:
        """Plain values for a checkpoint; see `from_dict`."""
        return list(self.sizes) if self.sizes else self.dim

    def to_env(self, action: Tensor) -> Tensor:
        """The sampled actions (B, A) as the environment takes them: continuous ones clamped to [-1, 1]."""
        return action if self.sizes else action.clamp(-1.0, 1.0)
