"""What an episode is made of, drawn from per-environment uniform numbers.

Every function maps uniforms in [0, 1) of shape (b, D) to values of b environments, row by row, in float64: the last
bit of a float32 then does not depend on how many environments are reset together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mikasa_robo.deprecation import deprecated_names

FINGER_WIDTH = 0.022
"""Width of a fingertip of the Panda hand along the row of objects, m (collision boxes of 2 x 0.011 m)."""
GRID_JITTER = 0.006
"""Largest distance of an object from its place in the grid in x and in y, m."""
ROBOT_BASE_X = -0.615
"""x of the robot's base, m."""


class Uniforms:
    """Uniform numbers (b, D) that are handed out column by column.

    Args:
        values: (b, D) float64 in [0, 1).
    """

    def __init__(self, values: Tensor) -> None:
        self._values, self._next = values, 0

    @property
    def count(self) -> int:
        """b, the number of environments that are drawn for."""
        return len(self._values)

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self._values.device

    @property
    def unused(self) -> int:
        """Columns not handed out yet."""
        return self._values.shape[1] - self._next

    def take(self, columns: int) -> Tensor:
        """The next ``columns`` columns, (b, columns). Raises ValueError where a task declared fewer draws."""
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
    """Uniform int64 in 0…n-1."""
    return (u * n).to(torch.int64).clamp(max=n - 1)


def normal(u: Tensor, std: float) -> Tensor:
    """Gaussian with mean 0 and standard deviation ``std``, by the inverse of its distribution function."""
    return std * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))


def permutation(u: Tensor) -> Tensor:
    """(b, n) uniforms to (b, n) int64, each row a uniform permutation of 0…n-1."""
    return torch.argsort(u, dim=1)


def arc_spacing(n: int) -> float:
    """Distance between neighbours on the arc before jitter, m; beyond 9 objects there are two arcs."""
    per_row = n if n <= 9 else (n + 1) // 2
    return min(0.11, 0.70 / max(per_row - 1, 1))


def arc_places(u: Tensor, n: int, object_radius: float = 0.0283) -> Tensor:
    """Places for ``n`` objects in a jittered arc within the robot's reach, in random order.

    The arc has its centre in the robot's base, a radius of 0.62 ± 0.02 m and, beyond 9 objects, a second row 0.13 m
    nearer. Whatever the jitter, two objects in a row leave a gap of at least a finger's width (0.022 m) between them.

    Args:
        u: (b, 3n) uniforms.
        n: number of objects, 1…18.
        object_radius: of the circle in which an object fits, seen from above, m.

    Returns:
        (b, n, 2) x and y, m; object k stands at [:, k].
    """
    if not 1 <= n <= 18:
        raise ValueError(f"n={n!r} objects: the table has room for 1 to 18")
    order, u_angle, u_radius = permutation(u[:, :n]), u[:, n : 2 * n], u[:, 2 * n : 3 * n]
    rows = 1 if n <= 9 else 2
    per_row = -(-n // rows)
    slot = torch.arange(n, dtype=torch.float64, device=u.device)
    row, column = torch.div(slot, per_row, rounding_mode="floor"), slot % per_row
    in_row = torch.where(row == rows - 1, float(n - (rows - 1) * per_row), float(per_row))
    radius, wobble = 0.62 - 0.13 * row, 0.02
    spacing = arc_spacing(n)
    slack = max(0.0, (spacing - 2 * object_radius - FINGER_WIDTH) / 2)
    along = (column - (in_row - 1) / 2) * spacing + between(u_angle, -slack, slack)
    angle = along / (radius - wobble)  # on the smallest radius: farther out the gaps are wider
    distance = radius + between(u_radius, -wobble, wobble)
    places = torch.stack([ROBOT_BASE_X + distance * torch.cos(angle), distance * torch.sin(angle)], dim=-1)
    return torch.gather(places, 1, order[..., None].expand(-1, -1, 2))


def grid_places(u: Tensor, n: int, object_radius: float = 0.0283) -> Tensor:
    """Places for ``n`` objects in a square grid in the middle of the table, in random order.

    Compact, so that many objects can be touched one after another in a short time. Whatever the jitter of ±0.006 m in x
    and in y, two objects leave a gap of at least a finger's width (0.022 m) between them.

    Args:
        u: (b, 3n) uniforms.
        n: number of objects.
        object_radius: of the circle in which an object fits, seen from above, m.

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
    """(…, 3) positions to (…, 7) poses with no rotation, quaternion wxyz."""
    quaternion = torch.zeros(*xyz.shape[:-1], 4, dtype=xyz.dtype, device=xyz.device)
    quaternion[..., 0] = 1
    return torch.cat([xyz, quaternion], dim=-1)


__getattr__ = deprecated_names(__name__, {"BLOCK_JITTER": "GRID_JITTER", "block_places": "grid_places"})
