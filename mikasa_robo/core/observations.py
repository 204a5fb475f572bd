"""Observation modes: names that can be joined with "+", and the parts that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VISUAL = ("rgb", "depth", "segmentation")
MODES = ("state", "objects", "joints", "oracle", "prompt", *VISUAL)
"""What an observation can be made of, in the order in which it is returned."""
MANISKILL_MODES = ("none", "state_dict", "sensor_data", "pointcloud")
"""ManiSkill's own modes, given through as they are."""


@dataclass(frozen=True)
class ObservationModes:
    """The parts that were asked for.

    Args:
        parts: some of `MODES`, in their order; empty for one of ManiSkill's own modes.
        maniskill: the mode that ManiSkill runs in.
    """

    parts: tuple[str, ...]
    maniskill: str

    @property
    def flat_dict(self) -> bool:
        """Whether an observation is a flat dict of tensors; "state" alone and ManiSkill's own modes are not."""
        return self.parts not in ((), ("state",))

    @property
    def pictures(self) -> tuple[str, ...]:
        """The parts that have to be drawn."""
        return tuple(part for part in self.parts if part in VISUAL)


def parse_modes(obs_mode: str | None) -> ObservationModes:
    """Splits ``obs_mode``, such as "rgb+joints". Raises ValueError with the known names where one is not known."""
    if obs_mode is None:
        obs_mode = "state"
    if obs_mode in MANISKILL_MODES:
        return ObservationModes((), obs_mode)
    asked = [name.strip() for name in obs_mode.split("+")] if isinstance(obs_mode, str) else [repr(obs_mode)]
    unknown = [name for name in asked if name not in MODES]
    if unknown:
        raise ValueError(
            f"obs_mode={obs_mode!r}: {', '.join(map(repr, unknown))} is not known; join any of {', '.join(MODES)} with "
            f"'+', or use one of ManiSkill's own: {', '.join(MANISKILL_MODES)}"
        )
    if "objects" in asked:
        asked.append("joints")
    parts = tuple(name for name in MODES if name in asked)
    drawn = [name for name in parts if name in VISUAL]
    return ObservationModes(parts, "state" if parts == ("state",) else "+".join(drawn) or "state_dict")


def object_view(visible: Tensor, poses: Tensor, codes: Tensor) -> Tensor:
    """What a perfect perception system would report of K objects at this instant.

    Args:
        visible: (N, K) bool.
        poses: (N, K, 7) position (m) and quaternion wxyz.
        codes: (K, C) what each object is.

    Returns:
        (N, K * (8 + C)) float32: for each object a flag, its pose with a quaternion of w >= 0, its code; zeros where it
        is not visible.
    """
    sign = torch.where(poses[..., 3:4] < 0, -1.0, 1.0)  # q and -q are one rotation: the sign would count turns
    canonical = torch.cat([poses[..., :3], poses[..., 3:] * sign], dim=-1)
    flag = visible[..., None].to(torch.float32)
    told = torch.cat([flag, canonical.to(torch.float32), codes.expand(len(poses), -1, -1)], dim=-1)
    return torch.where(visible[..., None], told, torch.zeros_like(told)).flatten(1)
