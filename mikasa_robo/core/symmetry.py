"""Rotations of a symmetric body that look the same. A perception system reports the smallest of them."""

from __future__ import annotations

import functools
import itertools
import math

import torch
from mani_skill.utils.geometry.rotation_conversions import quaternion_raw_multiply
from torch import Tensor

from mikasa_robo.deprecation import deprecated_names

__all__ = ["CUBE_ROTATIONS", "PEG_ROTATIONS", "canonical_rotation"]

_H = math.sqrt(0.5)
PEG_ROTATIONS = torch.tensor(
    [
        *([1, 0, 0, 0], [_H, _H, 0, 0], [_H, -_H, 0, 0], [0, 1, 0, 0]),  # about its long side
        *([0, 0, 1, 0], [0, 0, 0, 1], [0, 0, _H, _H], [0, 0, _H, -_H]),  # end for end
    ],
    dtype=torch.float32,
)
"""(8, 4) quaternions wxyz that map a peg with its long side along x to itself: both ends look alike, as do the sides."""


def _cube_rotations() -> Tensor:
    found = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=4)), dtype=torch.float64)
    found = found[(found != 0).sum(dim=1) != 3]  # 1, 2 or 4 entries that are not 0, all of one size
    found = found / found.norm(dim=1, keepdim=True)
    first = found.gather(1, (found != 0).to(torch.int64).argmax(dim=1, keepdim=True))
    return found[first[:, 0] > 0].to(torch.float32)  # q and -q are one rotation


CUBE_ROTATIONS = _cube_rotations()
"""(24, 4) quaternions wxyz that map a cube of one colour to itself."""


@functools.cache
def _on(symmetries: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy that is made once for each device: copying from the host waits for a GPU."""
    return symmetries.to(dtype=dtype, device=device)


def canonical_rotation(q: Tensor, symmetries: Tensor) -> Tensor:
    """The smallest rotations that look the same.

    The yaw of a peg that lies on the table is then within ±π/2, that of a cube within ±π/4.

    Args:
        q: (N, 4) quaternions wxyz of a body.
        symmetries: (S, 4) quaternions wxyz that map the body to itself.

    Returns:
        (N, 4), with the dtype and on the device of ``q``.
    """
    same = quaternion_raw_multiply(q[:, None], _on(symmetries, q.dtype, q.device))  # (N, S, 4)
    least = same[..., 0].abs().argmax(dim=1)
    return same[torch.arange(len(q), device=q.device), least]


__getattr__ = deprecated_names(__name__, {"folded": "canonical_rotation"})
