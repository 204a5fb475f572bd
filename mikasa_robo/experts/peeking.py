"""A cheat that remembers nothing: look under the mugs of ShellGamePush and ShellGamePick, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mikasa_robo.assets.bodies import MUG_HEIGHT, MUG_RADIUS
from mikasa_robo.checks import number
from mikasa_robo.core.phases import RESPONSE
from mikasa_robo.tasks.shell_game import MUGS, PUSH_DISTANCE, ZONE_RADIUS

from .arm import facing_down, quaternion_product
from .policies import Policy, UnfitPolicyError
from .shells import ShellPickSkill, ShellPushSkill
from .skill import Skill, View, look


class Look(NamedTuple):
    """How a hand that holds a mug looks under it."""

    lift: float
    """How far it lifts the mug's middle, m."""
    tilt: float
    """How far it turns about x, the axis that points away from the robot, rad."""


PUSH_LOOK = Look(lift=0.026, tilt=0.0)
"""In ShellGamePush: the rim comes above the ball's centre, which lies 0.02 m above the table."""
PICK_LOOK = Look(lift=0.023, tilt=0.18)
"""In ShellGamePick: the rim's lowest point stays below 0.02 m and the ball's centre comes out of the mug all the same. A
larger tilt does the same, but takes more time than three looks leave."""
LOOKED = 0.0015
"""The hand has looked once the mug is this close to the height from which it looks, m; it then gives the mug up."""
LOOK_STEPS = 8
"""The hand looks for so many control steps at most."""
LIFT_STEP = 0.012
"""The hand aims so far above itself while it lifts a mug, m, so that it does not overshoot."""
LOWER_STEPS = 3
"""The hand puts a mug down for so many control steps at most. It may drop it: the mugs stand upright again."""
RELEASE_STEPS = 1
"""The fingers open for so many control steps before the hand leaves."""
TRAVEL_HEIGHT = MUG_HEIGHT + 0.015
"""Height of the fingertips on the way from one mug to the next, m."""
CARRY = PUSH_DISTANCE - ZONE_RADIUS + 0.015
"""How far ahead a mug is carried in ShellGamePush, m: just into the zone."""

_GO, _LOOK, _LOWER, _RELEASE, _TAKE = range(5)


class Peek(Policy):
    """Looks under one mug after another, and pushes or picks the one under which the present view shows the ball.

    It stores nothing of the cue. Like `ExhaustiveSearch` it knows which mug it is at, and it takes the last mug without
    looking. The first is the left or the right mug, by chance.

    It was written against earlier rules, by which `visible` showed the ball under a raised mug and a look was no mistake;
    with ``take_if_alive=False`` it then succeeded in 72 % (Push) and 53 % (Pick) of 64 episodes with
    ``arm="held"``; most others ran out of time. In the present ShellGame a look that would uncover the ball ends the episode
    or has found the right mug, and a smaller one shows nothing. Both leave the chance of a guess, 1/3.

    Args:
        skill: that of ShellGamePush or ShellGamePick.
        seed: of the policy's own random numbers.
        look: how it looks; None: `PUSH_LOOK` or `PICK_LOOK`.
        take_if_alive: take the first mug that was raised without ending the episode, whether the ball shows or not, since
            a look under a wrong mug ends it. With a look below the threshold set it to False: the policy then gets the
            mug that it comes to last.

    Raises:
        UnfitPolicyError: the skill is another one.
        ValueError: the look is negative.
    """

    def __init__(self, skill: Skill, seed: int = 0, *, look: Look | None = None, take_if_alive: bool = True) -> None:
        if not isinstance(skill, ShellPushSkill | ShellPickSkill):
            raise UnfitPolicyError(
                f"Peek looks under mugs: it needs the skill of ShellGamePush or ShellGamePick, not {type(skill).__name__}"
            )
        super().__init__(skill, seed)
        self.pushes = isinstance(skill, ShellPushSkill)
        self.look = (PUSH_LOOK if self.pushes else PICK_LOOK) if look is None else Look(*look)
        number("look.lift", self.look.lift, 0, unit="m")
        number("look.tilt", self.look.tilt, 0, unit="rad")
        self.take_if_alive = take_if_alive
        n = skill.num_envs
        self._tried = torch.zeros(n, dtype=torch.int64, device=skill.device)  # mugs given up
        self._stage = torch.zeros_like(self._tried)
        self._steps = torch.zeros_like(self._tried)  # in this stage

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        index = slice(None) if env_idx is None else env_idx
        self._tried[index], self._stage[index], self._steps[index] = 0, _GO, 0

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view = look(obs, self._objects)
        responding = info["phase"] == RESPONSE
        row = torch.arange(len(responding), device=responding.device)
        mug = view.position[row, 1 + self._mug()]
        self._advance(view, mug, responding)
        mug = view.position[row, 1 + self._mug()]
        ready = self.skill.wait(view, (-0.1, 0.0, MUG_HEIGHT + 0.06))
        ready[:, -1] = 1.0
        return torch.where(responding[:, None], self._move(view, mug), ready)

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("a policy that looks under the mugs has no cue")

    def _mug(self) -> Tensor:
        """(N,) the mug that the hand is at."""
        return torch.where(self._u[:, 0] < 0.5, self._tried, MUGS - 1 - self._tried)

    @staticmethod
    def _around(view: View, mug: Tensor) -> Tensor:
        """(N,) bool: the mug (N, 3) is between the fingers."""
        distance = torch.linalg.norm(mug[:, :2] - view.tcp[:, :2], dim=1)
        return (distance < 0.015) & (view.tcp[:, 2] < mug[:, 2] + 0.02)

    @staticmethod
    def _roll(view: View) -> Tensor:
        """(N,) angle between the hand and straight down, rad."""
        w, z = view.joints[:, -4], view.joints[:, -1]
        return 2 * torch.hypot(w, z).clamp(max=1.0).asin()

    def _advance(self, view: View, mug: Tensor, responding: Tensor) -> None:
        """Goes to the next stage where the present one is over."""
        stage, steps = self._stage, self._steps
        holding = self._around(view, mug) & (view.fingers < MUG_RADIUS + 0.004)
        last = self._tried == MUGS - 1
        aloft = mug[:, 2] > MUG_HEIGHT / 2 + self.look.lift - LOOKED
        turned = (self._roll(view) - self.look.tilt).abs() < 0.03
        looked = (stage == _LOOK) & ((aloft & turned) | (steps >= LOOK_STEPS))
        raised = looked if self.take_if_alive else torch.zeros_like(looked)
        down = (mug[:, 2] < MUG_HEIGHT / 2 + 0.003) | (steps >= LOWER_STEPS)
        released = (stage == _RELEASE) & (steps >= RELEASE_STEPS)
        after = torch.where((stage == _GO) & holding, torch.where(last, _TAKE, _LOOK), stage)
        after = torch.where(looked, _LOWER, after)
        after = torch.where(((stage == _LOOK) & view.visible[:, 0]) | raised, _TAKE, after)
        after = torch.where((stage == _LOWER) & down, _RELEASE, after)
        after = torch.where(released, _GO, after)
        after = torch.where(responding, after, _GO)
        self._tried = self._tried + released.to(torch.int64)
        self._steps = torch.where(after == stage, steps + 1, 0)
        self._stage = after

    def _move(self, view: View, mug: Tensor) -> Tensor:
        """The action (N, 8) of the present stage on the mug at ``mug`` (N, 3)."""
        stage, tcp = self._stage, view.tcp
        go, looking, taking = stage == _GO, stage == _LOOK, stage == _TAKE
        distance = torch.linalg.norm(mug[:, :2] - tcp[:, :2], dim=1)
        near = (distance < 0.01) | self._around(view, mug)
        free = ((tcp[:, 2] - MUG_HEIGHT) / 0.012).clamp(0, 1)[:, None]
        coming = torch.where(near[:, None], mug[:, :2], tcp[:, :2] + free * (mug[:, :2] - tcp[:, :2]))
        # what it holds stays over its place
        xy = torch.where(go[:, None], coming, tcp[:, :2])
        z = torch.where(near, mug[:, 2], torch.full_like(distance, TRAVEL_HEIGHT))
        rise = (MUG_HEIGHT / 2 + self.look.lift - mug[:, 2]).clamp(max=LIFT_STEP)
        z = torch.where(looking, tcp[:, 2] + rise, z)
        z = torch.where((stage == _LOWER) | (stage == _RELEASE), tcp[:, 2] + MUG_HEIGHT / 2 - mug[:, 2], z)
        if self.pushes:
            place = view.position[:, 1:, 0].median(dim=1).values + CARRY  # the others stand where they stood
            ahead = place - mug[:, 0]
            arrived = ahead < 0.005
            carried = torch.stack([tcp[:, 0] + ahead, tcp[:, 1]], dim=1)
            xy = torch.where(taking[:, None], carried, xy)
            clear = tcp[:, 2] - mug[:, 2] + MUG_HEIGHT / 2 + torch.where(arrived, 0.0, self.look.lift)
            z = torch.where(taking, clear, z)
        else:
            up = torch.where(mug[:, 2] - MUG_HEIGHT / 2 > 0.13, 0.0, 0.05)
            z = torch.where(taking, tcp[:, 2] + up, z)
        open_ = (go & ~self._around(view, mug)) | (stage == _RELEASE)
        half = looking * (self.look.tilt / 2)
        zero = torch.zeros_like(z)
        turn = torch.stack([half.cos(), half.sin(), zero, zero], dim=-1)
        hand = quaternion_product(turn, facing_down(zero))
        goal = torch.cat([xy, z[:, None]], dim=1)
        return self.skill.arm.act(view.joints, goal, hand, torch.where(open_, 1.0, -1.0), wrist=self.skill.wrist)
