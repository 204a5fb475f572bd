"""ShellGame: touch, push or pick up the mug with the ball."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.assets.bodies import MUG_HEIGHT, MUG_RADIUS
from mikasa_robo.core.phases import RESPONSE
from mikasa_robo.tasks.shell_game import PUSH_DISTANCE

from .arm import facing_down
from .skill import History, Skill, View
from .touching import CLEARANCE, PRESSED, nearest, press, still

MUGS = 3
REACH_OF_ROW = 0.31
"""Largest distance of the ball from the x axis, m."""


class ShellSkill(Skill):
    """What the three modes share. Cue: the mug (N, 1) with the ball."""

    size = 1
    draws = 1
    candidates = MUGS

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        return info["oracle_info"].to(torch.float32)

    def from_history(self, history: History, u: Tensor) -> Tensor:
        seen = history.visible[..., 0] & ~history.visible[..., 1]  # (W, N): the ball without mugs
        when = torch.arange(1, len(seen) + 1, device=u.device)[:, None]
        last = (seen * when).argmax(dim=0)
        ball = history.position[last, torch.arange(seen.shape[1], device=u.device), 0]
        mugs = history.now.visible[:, 1:]
        found = nearest(history.now.position[:, 1:], ball, mugs)
        guessed = (u[:, 0] * MUGS).to(torch.int64)
        return torch.where(seen.any(dim=0), found, guessed)[:, None].to(torch.float32)

    @property
    def levels(self) -> int:
        return 31

    def encode(self, view: View) -> Tensor:
        place = (view.position[:, 0, 1] + REACH_OF_ROW) / (2 * REACH_OF_ROW)
        return (place * self.levels).to(torch.int64).clamp(0, self.levels - 1)

    def decode(self, level: Tensor, view: View, u: Tensor) -> Tensor:
        y = ((level + 0.5) / self.levels * 2 - 1) * REACH_OF_ROW
        return (view.position[:, 1:, 1] - y[:, None]).abs().argmin(dim=1, keepdim=True).to(torch.float32)

    def target(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        mug = 1 + cue[:, 0].to(torch.int64)
        return mug.masked_fill(info["phase"] != RESPONSE, -1)

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        index = 1 + cue[:, 0].to(torch.int64)
        row = torch.arange(len(index), device=index.device)
        action = self.handle(view, view.position[row, index], info)
        ready = self.wait(view, (-0.1, 0.0, MUG_HEIGHT + 0.06))
        return torch.where((info["phase"] == RESPONSE)[:, None], action, ready)

    def handle(self, view: View, mug: Tensor, info: Mapping[str, Any]) -> Tensor:
        """The action (N, 8) on the mug at ``mug`` (N, 3)."""
        raise NotImplementedError


class ShellTouchSkill(ShellSkill):
    """The closed fingers come down on the mug."""

    def handle(self, view: View, mug: Tensor, info: Mapping[str, Any]) -> Tensor:
        action = press(self.arm, view, mug[:, :2], mug[:, 2] + MUG_HEIGHT / 2, MUG_HEIGHT, self.wrist)
        return torch.where(info["touched"][:, None], still(view), action)

    def tried(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        return view.tcp[:, 2] < MUG_HEIGHT + PRESSED


class ShellPushSkill(ShellSkill):
    """The closed fingers come down behind the mug and move on through its place."""

    behind = MUG_RADIUS + 0.045
    depth = 0.045

    def handle(self, view: View, mug: Tensor, info: Mapping[str, Any]) -> Tensor:
        tcp = view.tcp
        start = view.position[:, 1:, 0].median(dim=1).values  # the other two mugs stand where they stood
        aside = (tcp[:, 1] - mug[:, 1]).abs()
        low = tcp[:, 2] < self.depth + 0.02
        pushing = low & (aside < 0.02) & (tcp[:, 0] < mug[:, 0] - MUG_RADIUS)
        back = torch.stack([mug[:, 0] - self.behind, mug[:, 1]], dim=1)
        over = torch.linalg.norm(back - tcp[:, :2], dim=1) < 0.015
        free = ((tcp[:, 2] - MUG_HEIGHT) / 0.012).clamp(0, 1)[:, None]
        xy = torch.where(over[:, None], back, tcp[:, :2] + free * (back - tcp[:, :2]))
        z = torch.where(over, torch.full_like(start, self.depth), torch.full_like(start, MUG_HEIGHT + CLEARANCE))
        through = torch.stack([mug[:, 0], mug[:, 1]], dim=1)
        xy = torch.where(pushing[:, None], through, xy)
        z = torch.where(pushing, torch.full_like(z, self.depth), z)
        goal = torch.cat([xy, z[:, None]], dim=1)
        action = self.arm.act(
            view.joints, goal, facing_down(torch.zeros_like(z)), -torch.ones_like(z), wrist=self.wrist
        )
        arrived = mug[:, 0] - start > PUSH_DISTANCE - 0.03
        return torch.where(arrived[:, None], still(view), action)

    def tried(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        index = 1 + cue[:, 0].to(torch.int64)
        mug = view.position[torch.arange(len(index), device=index.device), index, 0]
        return mug - view.position[:, 1:, 0].median(dim=1).values > PUSH_DISTANCE - 0.03


class ShellPickSkill(ShellSkill):
    """The open fingers come down around the mug, close and lift."""

    def handle(self, view: View, mug: Tensor, info: Mapping[str, Any]) -> Tensor:
        tcp = view.tcp
        distance = torch.linalg.norm(mug[:, :2] - tcp[:, :2], dim=1)
        inside = (distance < 0.015) & (tcp[:, 2] < mug[:, 2] + 0.02)
        holding = inside & (view.fingers < MUG_RADIUS + 0.004)
        over = distance < 0.01
        free = ((tcp[:, 2] - MUG_HEIGHT - 0.01) / 0.012).clamp(0, 1)[:, None]
        xy = torch.where((over | inside)[:, None], mug[:, :2], tcp[:, :2] + free * (mug[:, :2] - tcp[:, :2]))
        z = torch.where(over | inside, mug[:, 2], torch.full_like(distance, MUG_HEIGHT + 0.04))
        z = torch.where(holding, tcp[:, 2] + 0.05, z)
        gripper = torch.where(inside, -1.0, 1.0)
        goal = torch.cat([xy, z[:, None]], dim=1)
        action = self.arm.act(view.joints, goal, facing_down(torch.zeros_like(z)), gripper, wrist=self.wrist)
        lifted = holding & (mug[:, 2] - MUG_HEIGHT / 2 > 0.12)
        return torch.where(lifted[:, None], still(view), action)

    def wait(self, view: View, place: Any) -> Tensor:
        action = super().wait(view, place)
        action[:, -1] = 1.0
        return action
