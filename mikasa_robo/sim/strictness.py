"""The rules of the GPU tensor API, and the error that debug mode raises where one is broken.

On a GPU a mistake in the order of the calls raises nothing: it reads old values or loses a write. The batched CPU
simulator behaves alike, and with ``debug=True`` it raises `GpuApiMisuse` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

RIGID, LINK_POSE, LINK_VELOCITY = "rigid_dynamic_data", "articulation_link_pose", "articulation_link_velocity"
QPOS, QVEL, QACC, QF = "articulation_qpos", "articulation_qvel", "articulation_qacc", "articulation_qf"
FORCES = "articulation_link_incoming_joint_forces"
TARGET_QPOS, TARGET_QVEL = "articulation_target_qpos", "articulation_target_qvel"
MOVED_BY_A_STEP = (RIGID, LINK_POSE, LINK_VELOCITY, QPOS, QVEL, QACC, FORCES)
"""The groups of buffers that a step makes stale; each has a ``gpu_fetch_*`` of its name."""


class GpuApiMisuse(RuntimeError):
    """A use of the tensor API that is undefined, or silently wrong, on a GPU."""


class Strictness:
    """Keeps track of which groups of buffers are stale, and raises `GpuApiMisuse` in debug mode.

    Args:
        debug: whether to raise.
        written: returns, for each group that can be written, the buffer and what was applied of it last; a difference is
            a write that still waits for its ``gpu_apply_*``.
    """

    def __init__(self, debug: bool, written: Callable[[], Mapping[str, tuple[Tensor, Tensor]]]) -> None:
        self.debug = debug
        self.stale: set[str] = set()
        self._written = written

    def before_access(self, name: str, groups: Iterable[str]) -> None:
        """Called when the buffer ``name`` is read or written."""
        if not self.debug:
            return
        stale = self.stale.intersection(groups)
        if stale:
            calls = ", ".join(f"gpu_fetch_{group}()" for group in sorted(stale))
            raise GpuApiMisuse(f"{name} is stale after a step: call {calls} before reading or writing it")

    def before_step(self) -> None:
        """Called by ``step``; afterwards whatever a step moves is stale."""
        self._forbid_unapplied("step", None)
        self.stale.update(MOVED_BY_A_STEP)

    def before_fetch(self, group: str) -> None:
        """Called by ``gpu_fetch_*``; afterwards the group is fresh."""
        if group not in self.stale:
            self._forbid_unapplied(f"gpu_fetch_{group}", group)
        self.stale.discard(group)

    def before_link_pose_fetch(self, outdated: np.ndarray) -> None:
        """Called by ``gpu_fetch_articulation_link_pose``; ``outdated`` (A,) bool: joints or root moved since."""
        if self.debug and outdated.any():
            raise GpuApiMisuse(
                "gpu_fetch_articulation_link_pose after a new qpos or root pose was applied: on a GPU link poses are "
                "undefined before gpu_update_articulation_kinematics(). Call that first"
            )

    def before_apply(self, group: str) -> bool:
        """Called by ``gpu_apply_*``. Returns whether the buffer is stale: then a GPU undoes the step in the rows applied."""
        if group not in self.stale:
            return False
        if self.debug:
            raise GpuApiMisuse(
                f"gpu_apply_{group} while its buffer is stale after a step: on a GPU this sets every environment back "
                f"to where it was before the step. Call gpu_fetch_{group}() first"
            )
        return True

    def _forbid_unapplied(self, what: str, only: str | None) -> None:
        if not self.debug:
            return
        for group, (now, applied) in self._written().items():
            if only in (None, group) and group not in self.stale and not torch.equal(now, applied):
                raise GpuApiMisuse(
                    f"{what} while a write to {group} waits for its gpu_apply_*: on a GPU it would be lost. "
                    "Apply it first"
                )
