"""RememberX, BunchOfColors, SeqOfColors and ChainOfColors: touch the targets, one after another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from mikasa_robo.core.choice import ChoiceTask
from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.core.phases import RESPONSE
from mikasa_robo.tasks.remember_shape_and_color import RememberShapeAndColor

from .arm import Arm, facing_down
from .skill import History, Skill, View

CLEARANCE = 0.02
"""Height of the fingertips above the highest object while they travel, m."""
PRESS = 0.008
"""The fingertips aim this far below an object's top, m."""
PRESSED = 0.012
"""Fingertips that are lower than this above an object's top rest on it, m."""
OVER = 0.02
"""The hand comes down once it is closer than this in x and y, m."""
SAFE = 0.012
"""The hand moves sideways freely once it is this far above the highest object, m."""


def nearest(position: Tensor, point: Tensor, among: Tensor) -> Tensor:
    """(N,) index of the object (N, K, 3) nearest in x and y to ``point`` (N, 2) or (N, 3), of those ``among`` (N, K)."""
    distance = torch.linalg.norm(position[..., :2] - point[:, None, :2], dim=-1)
    return torch.where(among, distance, torch.inf).argmin(dim=1)


def press(arm: Arm, view: View, place: Tensor, top: Tensor, highest: float, wrist: Tensor | None = None) -> Tensor:
    """The action (N, 8) that moves the closed fingers over a place and down onto it without touching anything else.

    Args:
        arm: the arm's kinematics.
        view: the present view.
        place: (N, 2) x and y, m.
        top: (N,) z of the top of the object to touch, m.
        highest: z of the top of the highest object on the table, m.
        wrist: see `Arm.act`.
    """
    tcp = view.tcp
    over = torch.linalg.norm(place - tcp[:, :2], dim=1) < OVER
    free = ((tcp[:, 2] - highest) / SAFE).clamp(0, 1)[:, None]
    xy = torch.where(over[:, None], place, tcp[:, :2] + free * (place - tcp[:, :2]))
    z = torch.where(over, top - PRESS, torch.full_like(top, highest + CLEARANCE))
    goal = torch.cat([xy, z[:, None]], dim=1)
    return arm.act(view.joints, goal, facing_down(torch.zeros_like(z)), -torch.ones_like(z), wrist=wrist)


def still(view: View) -> Tensor:
    """The action (N, 8) of an arm that stays where it is, with closed fingers."""
    action = torch.zeros(len(view.joints), 8, device=view.joints.device)
    action[:, -1] = -1
    return action


class TouchSkill(Skill):
    """Cue: the indices (N, m) of the targets, in the order shown."""

    def __init__(self, task: MemoryEnv[Any]) -> None:
        super().__init__(task)
        self._choice = cast(ChoiceTask, task)
        self.size, self.draws = self._choice.num_targets, self._choice.num_candidates
        self.candidates = self._choice.num_candidates
        self._sets = list(itertools.combinations(range(self.candidates), self.size))
        # an object's origin is in the middle of its height
        self._half_heights = torch.tensor(self._choice.heights(), device=task.device)
        self._highest = 2 * float(self._half_heights.max())

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        oracle = info["oracle_info"]
        if isinstance(self._choice, RememberShapeAndColor):
            oracle = oracle[:, :1] * self._choice.colors + oracle[:, 1:]
        return oracle.to(torch.float32)

    def from_history(self, history: History, u: Tensor) -> Tensor:
        visible = history.visible  # (W, N, K)
        on_view = (visible.sum(dim=-1) < self._choice.num_candidates)[..., None] & visible
        when = torch.arange(1, len(visible) + 1, device=u.device)[:, None, None]
        last = (on_view * when).amax(dim=0)  # (N, K): 0 if never seen
        # what was seen last comes last in the order; what came before was forgotten and is guessed
        order = torch.argsort(torch.where(last > 0, last.to(u.dtype), u - 1), dim=1)
        return order[:, -self.size :].to(torch.float32)

    def _next(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The candidate to touch now (N,), and whether all targets have been touched (N,) bool."""
        target, counted = cue.to(torch.int64), info["counted"]
        touched = counted.gather(1, target)
        if self._choice.ordered:
            index = target.gather(1, touched.to(torch.int8).argmin(dim=1, keepdim=True))[:, 0]
        else:
            missing = torch.zeros_like(view.visible).scatter(1, target, ~touched)
            index = nearest(view.position, view.tcp, missing)
        return index, touched.all(dim=1)

    def target(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        index, complete = self._next(view, cue, info)
        return index.masked_fill(complete | (info["phase"] != RESPONSE), -1)

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        index, complete = self._next(view, cue, info)
        row = torch.arange(len(index), device=index.device)
        place = view.position[row, index]
        action = press(self.arm, view, place[:, :2], place[:, 2] + self._half_heights[index], self._highest, self.wrist)
        action = torch.where(complete[:, None], still(view), action)
        ready = self.wait(view, (-0.03, 0.0, self._highest + 0.05))
        return torch.where((info["phase"] == RESPONSE)[:, None], action, ready)

    def tried(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        index = cue[:, 0].to(torch.int64)
        row = torch.arange(len(index), device=index.device)
        top = view.position[row, index, 2] + self._half_heights[index]
        return (view.tcp[:, 2] < top + PRESSED) | info["counted"][row, index]

    @property
    def levels(self) -> int:
        # cues shown one after another would all have to be written into one joint angle, in steps too small to move by
        return len(self._sets) if self.size == 1 or self._choice.cue_order == "simultaneous" else 1

    def encode(self, view: View) -> Tensor:
        if self.levels == 1:
            return super().encode(view)
        return (view.visible.to(torch.float32) @ self._table(self.device).T).argmax(dim=1)

    def decode(self, level: Tensor, view: View, u: Tensor) -> Tensor:
        if self.levels == 1:
            return super().decode(level, view, u)
        return torch.tensor(self._sets, device=level.device)[level].to(torch.float32)

    def _table(self, device: torch.device) -> Tensor:
        """(levels, K) 1 if the set of a level contains the candidate."""
        sets = torch.tensor(self._sets, device=device)
        return torch.zeros(len(sets), self.candidates, device=device).scatter(1, sets, 1.0)
