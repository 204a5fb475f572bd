"""Random values of an episode, made from uniform numbers.

Each function maps uniforms in [0, 1) of shape (b, D) to values of b environments. A row depends on nothing but the same
row of uniforms. All are computed in float64 and rounded to float32 at the end, because the last bit of float32 arithmetic
can depend on how many environments are reset together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mikasa_robo.deprecation import deprecated_names

FINGER_WIDTH = 0.022
"""Width of a fingertip of the Panda hand, m (two collision boxes of 0.011 m)."""
GRID_JITTER = 0.006
"""Largest jitter in x and in y of an object in a grid, m."""
ROBOT_BASE_X = -0.615
"""x of the robot's base, m."""
ROW_DISTANCE = 0.13
"""Distance between the two arcs of `arc_places`, m."""


class Uniforms:
    """Uniform numbers (b, D), given out column by column.

    Args:
        values: (b, D) float64 in [0, 1).
    """

    def __init__(self, values: Tensor) -> None:
        self._values, self._next = values, 0

    @property
    def count(self) -> int:
        """b, the number of environments."""
        return len(self._values)

    @property
    def device(self) -> torch.device:
        """Device of the numbers."""
        return self._values.device

    @property
    def unused(self) -> int:
        """Number of columns that are left."""
        return self._values.shape[1] - self._next

    def take(self, columns: int) -> Tensor:
        """The next ``columns`` columns, (b, columns).

        Raises:
            ValueError: fewer are left, so the task's `draws` is too small.
        """
        if columns > self.unused:
            raise ValueError(
                f"{columns} more uniform numbers were asked for and {self.unused} are left: raise the task's `draws`"
            )
        self._next += columns
        return self._values[:, self._next - columns : self._next]


def between(u: Tensor, low: float, high: float) -> Tensor:
    """Uniform in [low, high)."""
    return low + (high - low) * u


def index_below(u: Tensor, n: int) -> Tensor:
    """Uniform int64 in 0 … n - 1."""
    return (u * n).to(torch.int64).clamp(max=n - 1)


def normal(u: Tensor, std: float) -> Tensor:
    """Gaussian with mean 0 and standard deviation ``std``, from the inverse of its cumulative distribution function."""
    return std * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))


def permutation(u: Tensor) -> Tensor:
    """Uniforms (b, n) to random permutations of 0 … n - 1, (b, n) int64."""
    return torch.argsort(u, dim=1)


def arc_spacing(n: int) -> float:
    """Distance between neighbours on the arc before jitter, m. More than 9 objects stand on two arcs."""
    per_row = n if n <= 9 else (n + 1) // 2
    return min(0.11, 0.70 / max(per_row - 1, 1))


def arc_places(u: Tensor, n: int, object_radius: float = 0.0283) -> Tensor:
    """Places for ``n`` objects on a jittered arc within the robot's reach, in random order.

    The arc is centred at the robot's base and has a radius of 0.62 ± 0.02 m. More than 9 objects stand on two arcs, the
    second 0.13 m closer to the robot. Neighbours always leave a gap of at least a finger's width (0.022 m).

    Args:
        u: (b, 3n) uniforms.
        n: number of objects, 1 to 18.
        object_radius: radius of an object's bounding circle seen from above, m.

    Returns:
        (b, n, 2) x and y, m; object k stands at [:, k].

    Raises:
        ValueError: ``n`` is out of range, or the objects are too large for such a gap.
    """
    if not 1 <= n <= 18:
        raise ValueError(f"n={n!r} objects: the table has room for 1 to 18")
    wobble = 0.02
    # an object of the second arc has its neighbours on the first one beside and behind it
    room = min(arc_spacing(n), ROW_DISTANCE - 2 * wobble) if n > 9 else arc_spacing(n)
    largest = (room - FINGER_WIDTH) / 2
    if n > 1 and object_radius > largest:
        raise ValueError(
            f"object_radius={object_radius!r} m is too large for n={n} objects in an arc with a finger's width between "
            f"them: at most {largest:.4f} m, or fewer objects"
        )
    order, u_angle, u_radius = permutation(u[:, :n]), u[:, n : 2 * n], u[:, 2 * n : 3 * n]
    rows = 1 if n <= 9 else 2
    per_row = -(-n // rows)
    slot = torch.arange(n, dtype=torch.float64, device=u.device)
    row, column = torch.div(slot, per_row, rounding_mode="floor"), slot % per_row
    in_row = torch.where(row == rows - 1, float(n - (rows - 1) * per_row), float(per_row))
    radius = 0.62 - ROW_DISTANCE * row
    spacing = arc_spacing(n)
    slack = max(0.0, (spacing - 2 * object_radius - FINGER_WIDTH) / 2)
    along = (column - (in_row - 1) / 2) * spacing + between(u_angle, -slack, slack)
    angle = along / (radius - wobble)  # on the smallest radius: farther out the gaps are wider
    distance = radius + between(u_radius, -wobble, wobble)
    places = torch.stack([ROBOT_BASE_X + distance * torch.cos(angle), distance * torch.sin(angle)], dim=-1)
    return torch.gather(places, 1, order[..., None].expand(-1, -1, 2))


def grid_places(u: Tensor, n: int, object_radius: float = 0.0283) -> Tensor:
    """Places for ``n`` objects in a square grid in the middle of the table, in random order.

    The grid is compact, so that many objects can be touched in a short time. With a jitter of ±0.006 m in x and in y,
    two objects always leave a gap of at least a finger's width (0.022 m).

    Args:
        u: (b, 3n) uniforms.
        n: number of objects.
        object_radius: radius of an object's bounding circle seen from above, m.

    Returns:
        (b, n, 2) x and y, m; object k stands at [:, k].
    """
    order, jitter = permutation(u[:, :n]), between(u[:, n : 3 * n], -GRID_JITTER, GRID_JITTER)
    side = math.ceil(math.sqrt(n))
    spacing = 2 * object_radius + FINGER_WIDTH + 2 * GRID_JITTER
    slot = torch.arange(n, dtype=torch.float64, device=u.device)
    grid = torch.stack([torch.div(slot, side, rounding_mode="floor"), slot % side], dim=-1)
    places = (grid - (side - 1) / 2) * spacing + jitter.reshape(-1, n, 2)
    return torch.gather(places, 1, order[..., None].expand(-1, -1, 2))


def upright(xyz: Tensor) -> Tensor:
    """Positions (…, 3) to poses (…, 7) without rotation: position, quaternion wxyz."""
    quaternion = torch.zeros(*xyz.shape[:-1], 4, dtype=xyz.dtype, device=xyz.device)
    quaternion[..., 0] = 1
    return torch.cat([xyz, quaternion], dim=-1)


__getattr__ = deprecated_names(__name__, {"BLOCK_JITTER": "GRID_JITTER", "block_places": "grid_places"})
