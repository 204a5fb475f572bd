"""ShellGame: a ball is covered by one of three mugs; touch, push or pick up that mug."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from mani_skill.utils.geometry.rotation_conversions import quaternion_apply
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, MUG_HEIGHT, MUG_RADIUS, build_ball_image, build_mug
from mikasa_robo.assets.palette import rgba
from mikasa_robo.checks import one_of
from mikasa_robo.core import rest, rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.phases import CUE
from mikasa_robo.core.sampling import Uniforms, between, index_below, upright
from mikasa_robo.core.state import index_into
from mikasa_robo.core.tabletop import FINGERS
from mikasa_robo.core.touches import HOLD_STEPS, hold_touches, record_touches
from mikasa_robo.tensors import constant, length

MUGS = 3
SPACING = 0.2  # m between neighbouring mugs, along y
ROW_CENTRE = (-0.1, 0.0)  # m
JITTER = 0.1  # m
PUSH_DISTANCE = 0.2  # m, straight ahead (+x)
ZONE_RADIUS = 0.1  # m
LIFT_HEIGHT = 0.1  # m above the table, of the mug's lowest point
MOVED = 0.05  # m in x and y: a wrong mug moved so far is a mistake (Push, Pick)
UNCOVERED = BALL_RADIUS
"""A wrong mug whose rim is anywhere higher above the table than this is a mistake, m. The centre of a ball under the mug
lies so high, so below it the rim hides the centre from all sides. It gets there by a lift of 0.02 m, by a tilt of 0.34 rad
on its edge (2 MUG_RADIUS sin 0.34 = 0.02), or by both in part."""
ON_TABLE = 0.005
"""A mug whose lowest point is lower than this is on the table, m."""
STANDING = 0.015
"""A mug on the table whose rim is nowhere higher than this stands, m: it is tilted by 0.25 rad at most, as by a finger that
leans on it, and falls back. The rim of a mug on its side is 2 MUG_RADIUS high, and that of one on its head MUG_HEIGHT."""
MUG_COLOR = (0.55, 0.38, 0.24, 1.0)
MUG_NAMES = ("left", "centre", "right")  # as the robot sees them: left is +y

SCALES: dict[str, dict[str, float]] = {
    "touch": {"reach": 1.0, "touch": 1.0, "still": 0.5},
    "push": {"reach": 1.0, "place": 2.0, "still": 0.5},
    "pick": {"reach": 1.0, "grasp": 1.0, "place": 2.0, "still": 0.5},
}


@dataclass
class ShellState:
    """One row per environment. Objects: the ball, then the mugs from left (+y) to right."""

    target: Tensor = field(metadata=index_into("places"))  # (N,) int64, mug with the ball: 0 left, 1 centre, 2 right
    places: Tensor  # (N, 3, 2) m, x and y of the three places
    held: Tensor  # (N, 3) int64, control steps of touch of each mug (see `hold_touches`)
    counted: Tensor  # (N, 3) bool, right mug touched
    grasped: Tensor  # (N,) bool, both fingers were on the right mug in the last step, with the TCP inside it
    mistaken: Tensor  # (N,) bool
    ball: Tensor  # (N, 2) m, x and y of the ball; it goes with its mug for as long as the mug covers it
    decided: Tensor  # (N,) bool, the episode has succeeded or failed; only then is the ball visible again


def sample_shells(u: Uniforms) -> ShellState:
    """Draw the row's centre (x, y) and the mug with the ball. Takes 3 uniforms."""
    centre = between(u.take(2), -JITTER, JITTER) + constant(ROW_CENTRE, torch.float64, u.device)
    target = index_below(u.take(1)[:, 0], MUGS)
    offset = constant((SPACING, 0.0, -SPACING), torch.float64, u.device)
    places = centre[:, None, :].repeat(1, MUGS, 1)
    places[..., 1] += offset
    b = u.count
    places = places.to(torch.float32)
    return ShellState(
        target=target,
        places=places,
        held=torch.zeros(b, MUGS, dtype=torch.int64, device=u.device),
        counted=torch.zeros(b, MUGS, dtype=torch.bool, device=u.device),
        grasped=torch.zeros(b, dtype=torch.bool, device=u.device),
        mistaken=torch.zeros(b, dtype=torch.bool, device=u.device),
        ball=places.gather(1, target[:, None, None].expand(-1, 1, 2))[:, 0],
        decided=torch.zeros(b, dtype=torch.bool, device=u.device),
    )


def shell_layout(s: ShellState, phase: Tensor) -> tuple[Tensor, Tensor]:
    """During the cue the ball alone, afterwards the three mugs, and the ball again once the episode is decided.

    A covered ball is not on the table at all, so that nothing can show it: no gap under a tilted mug, and no camera so close
    that it looks through the wall.

    Returns:
        (N, 4) bool, on the table; (N, 4, 7) poses.
    """
    xy = torch.cat([s.ball[:, None], s.places], dim=1)
    z = constant((BALL_RADIUS, *[MUG_HEIGHT / 2] * MUGS), xy.dtype, xy.device).expand(len(xy), -1)
    visible = torch.ones(len(xy), 1 + MUGS, dtype=torch.bool, device=xy.device)
    visible[:, 0] = (phase == CUE) | s.decided
    visible[:, 1:] = (phase != CUE)[:, None]
    return visible, upright(torch.cat([xy, z[..., None]], dim=-1))


def lowest_point(pose: Tensor) -> Tensor:
    """z of the lowest point of mugs at ``pose`` (…, 7), m: of a cylinder of the mug's radius and height."""
    x, y = pose[..., 4], pose[..., 5]
    up = 1 - 2 * (x**2 + y**2)  # z component of the mug's axis
    return pose[..., 2] - MUG_HEIGHT / 2 * up.abs() - MUG_RADIUS * (1 - up**2).clamp(min=0).sqrt()


def highest_rim_point(pose: Tensor) -> Tensor:
    """z of the highest point of the rim of mugs at ``pose`` (…, 7), m. An upright mug stands on its rim: z = 0."""
    x, y = pose[..., 4], pose[..., 5]
    up = 1 - 2 * (x**2 + y**2)  # z component of the mug's axis, which points from the rim to the lid
    return pose[..., 2] - MUG_HEIGHT / 2 * up + MUG_RADIUS * (1 - up**2).clamp(min=0).sqrt()


def covered(ball: Tensor, mugs: Tensor) -> Tensor:
    """(N, 3) bool: the ball's centre (N, 3) is inside each of the mugs at poses (N, 3, 7)."""
    q = mugs[..., 3:] * constant((1.0, -1.0, -1.0, -1.0), mugs.dtype, mugs.device)  # the inverse rotation
    local = quaternion_apply(q, ball[:, None] - mugs[..., :3])
    return (length(local[..., :2]) < MUG_RADIUS) & (local[..., 2].abs() < MUG_HEIGHT / 2)


class ShellGame(MemoryEnv[ShellState]):
    """Find the mug with the ball under it.

    Task: t < 5: a red ball (radius 0.02 m) at its place. From t = 5: three identical mugs (radius 0.03 m, height 0.08 m)
    stand upside down over the three places, the ball under one of them. *Touch* the right mug, *Push* it straight ahead
    or *Pick* it up. The ball stays hidden until the episode has succeeded or failed. Then it is put back where it lies, so
    the last observation shows it if no mug covers it. Until then it moves with its mug. It touches nothing, so no mug's
    motion reveals it.
    Randomisations: the row's centre, x ∈ -0.1 ± 0.1 m, y ∈ ±0.1 m; the mug with the ball, uniform among three; the arm's
    start. The mugs stand 0.2 m apart along y.
    Success: Touch: the right mug was touched for 0.1 s. Push: the right mug is within 0.1 m of the point 0.2 m ahead (+x)
    of where it stood, stands on the table (lowest point below 0.005 m, rim below 0.015 m) and is slower than 0.05 m/s over a
    control step. Pick: the right mug's lowest point is above 0.1 m. All: the robot is static.
    Failure: a wrong mug was lifted or tilted so that a point of its rim was higher than 0.02 m, the height of a ball's
    centre. Push, Pick: a wrong mug was moved by more than 0.05 m in x and y. Touch: a wrong mug was touched for 0.1 s in
    total; shorter taps of the same mug add up. A single tap of one control step is allowed: it shows nothing.
    A touch is a contact of the hand, a finger or the wrist camera at the end of a control step.
    Oracle: (N, 1) int64, mug with the ball: 0 left (+y), 1 centre, 2 right.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E; T = 90. Ours: a pushed mug has to stand and rest, so that a
    mug that slides through the zone, fell over or is carried does not count; a peek under a wrong mug is a mistake; and the
    ball stays hidden until the outcome. With ``on_mistake="ignore"`` there is no failure, and the ball stays hidden until
    success; an agent can then try one mug after another, which needs no memory.

    Dense reward: ``reach`` pays for nearness to the right mug (Push: to the place behind it), ``touch`` for how long it has
    been touched, ``grasp`` for both fingers on it and the hand inside it, ``place`` for how far it was pushed or lifted,
    ``still`` for an arm at rest once the mug was touched, stands in the zone or is lifted.

    Args:
        mode: "touch", "push" or "pick".
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps. During a delay the mugs are
            already on the table, but acting does not count yet.
        **kwargs: see `MemoryEnv`.
    """

    needed_response: ClassVar[int | None] = 45
    draws: ClassVar[int] = 3

    def __init__(
        self,
        *args: Any,
        mode: Literal["touch", "push", "pick"] = "touch",
        **kwargs: Any,
    ) -> None:
        self.mode = one_of("mode", mode, SCALES)
        self.reward_scales = SCALES[mode]  # type: ignore[misc]
        super().__init__(*args, **kwargs)

    def build(self) -> list[Actor]:
        ball = build_ball_image(self.scene, "ball", rgba("red"), BALL_RADIUS, parked=0)
        mugs = [build_mug(self.scene, f"mug_{name}", MUG_COLOR, parked=1 + k) for k, name in enumerate(MUG_NAMES)]
        return [ball, *mugs]

    def touchable(self, objects: list[Actor]) -> list[Actor]:
        return objects[1:]

    def sample(self, u: Uniforms) -> ShellState:
        return sample_shells(u)

    def layout(self, s: ShellState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        """The mugs are hidden during the cue; afterwards the ball is, until the episode is decided."""
        return shell_layout(s, self.timeline.phase(elapsed))

    def update_state(self, s: ShellState, data: StepData, touching: Tensor) -> None:
        is_target = torch.nn.functional.one_hot(s.target, MUGS).to(torch.bool)
        # until the first step of the response phase the layout puts the mugs at their places, and no touch counts
        settled = data.elapsed > self.timeline.response_start
        s.held, new = hold_touches(s.held, touching.any(dim=1), settled, sums=~is_target)
        s.counted, wrong_touch = record_touches(new, s.counted, is_target)
        # closed fingers that press on it from above touch it, too
        inside = covered(data.tcp[:, :3], self._target_mug(s, data)[:, None, :7])[:, 0]
        s.grasped = (touching[:, FINGERS] & is_target[:, None]).any(dim=2).all(dim=1) & inside & data.responding
        mugs = data.objects[:, 1:]
        uncovered = highest_rim_point(mugs[..., :7]) > UNCOVERED
        misplaced = uncovered
        if self.mode != "touch":
            misplaced = uncovered | (length(mugs[..., :2] - s.places) > MOVED)
        mistake = (misplaced & ~is_target).any(dim=1)
        if self.mode == "touch":
            mistake |= wrong_touch
        s.mistaken = s.mistaken | (mistake & settled)
        taken_along = (is_target & ~uncovered).any(dim=1) & ~s.decided
        s.ball = torch.where(taken_along[:, None], self._target_mug(s, data)[:, :2], s.ball)
        outcome = self.outcome(s, data)
        # not before: a mug that has been hidden until now is still far above the table
        s.decided = s.decided | (settled & (outcome["success"] | outcome["fail"]))

    def visible_poses(self, s: ShellState, data: StepData) -> tuple[Tensor, Tensor]:
        visible, _ = self.layout(s, data.elapsed)
        poses = data.objects[..., :7]
        inside = covered(poses[:, 0, :3], poses[:, 1:]).any(dim=1)
        visible = visible.clone()
        visible[:, 0] &= ~inside
        return visible, poses

    @staticmethod
    def _target_mug(s: ShellState, data: StepData) -> Tensor:
        """(N, 13) pose and velocities of the mug with the ball."""
        return data.objects[:, 1:].gather(1, s.target[:, None, None].expand(-1, 1, 13))[:, 0]

    @staticmethod
    def _zone_centre(s: ShellState) -> Tensor:
        """(N, 2) x and y of the centre of the zone to push the mug into, m."""
        centre = s.places.gather(1, s.target[:, None, None].expand(-1, 1, 2))[:, 0].clone()
        centre[:, 0] += PUSH_DISTANCE
        return centre

    def _distance_to_zone_centre(self, s: ShellState, mug: Tensor) -> Tensor:
        """(N,) distance of a mug (N, ≥ 2) from the centre of the zone, m."""
        return length(mug[:, :2] - self._zone_centre(s))

    def _stands_in_zone(self, s: ShellState, mug: Tensor) -> Tensor:
        """(N,) bool: a mug (N, ≥ 7) stands on the table in the zone."""
        pose = mug[:, :7]
        stands = (highest_rim_point(pose) < STANDING) & (lowest_point(pose) < ON_TABLE)
        return stands & (self._distance_to_zone_centre(s, mug) < ZONE_RADIUS)

    def outcome(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        mug = self._target_mug(s, data)
        touched = s.counted.any(dim=1)
        in_zone = self._stands_in_zone(s, mug)
        at_rest = rest.at_rest(data.speeds[:, 1:].gather(1, s.target[:, None])[:, 0])
        lifted = lowest_point(mug[:, :7]) > LIFT_HEIGHT
        done = {"touch": touched, "push": in_zone & at_rest, "pick": lifted}[self.mode] & data.responding
        fail = s.mistaken & (self.on_mistake == "fail")
        return {
            "success": done & data.static & ~fail,
            "fail": fail,
            "touched": touched,
            "in_zone": in_zone & data.responding,
            "lifted": lifted & data.responding,
            "mistake": s.mistaken.clone(),
            "static": data.static,
        }

    def reward_terms(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        terms = {"touch": self._touch_terms, "push": self._push_terms, "pick": self._pick_terms}
        return terms[self.mode](s, data)

    def _touch_terms(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        touched = s.counted.any(dim=1)
        near = rewards.reach(data.tcp[:, :3], self._target_mug(s, data)[:, :3])
        held = s.held.gather(1, s.target[:, None])[:, 0].to(near.dtype) / HOLD_STEPS
        return {
            "reach": torch.where(touched, 1.0, near),
            "touch": torch.where(touched, 1.0, held),
            "still": rewards.still_when(touched, data.joint_speed, data.responding),
        }

    def _push_terms(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        mug = self._target_mug(s, data)
        behind = mug[:, :3] - constant((MUG_RADIUS + 0.02, 0.0, 0.0), mug.dtype, mug.device)
        remaining = self._distance_to_zone_centre(s, mug)
        in_zone = self._stands_in_zone(s, mug)
        lies = highest_rim_point(mug[:, :7]) > UNCOVERED  # a mug that fell over or is carried earns nothing
        return {
            "reach": torch.where(in_zone, 1.0, rewards.reach(data.tcp[:, :3], behind)),
            "place": ((PUSH_DISTANCE - remaining) / (PUSH_DISTANCE - ZONE_RADIUS)).clamp(0, 1) * ~lies,
            "still": rewards.still_when(in_zone, data.joint_speed, data.responding),
        }

    def _pick_terms(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        mug = self._target_mug(s, data)
        height = lowest_point(mug[:, :7])
        grasped = s.grasped.to(height.dtype)
        return {
            "reach": rewards.reach(data.tcp[:, :3], mug[:, :3]),
            "grasp": grasped,
            "place": (height / LIFT_HEIGHT).clamp(0, 1) * grasped,
            "still": rewards.still_when(height > LIFT_HEIGHT, data.joint_speed, data.responding),
        }

    def oracle(self, s: ShellState) -> Tensor:
        return s.target[:, None].clone()

    def overlay_facts(self, s: ShellState) -> dict[str, list[str]]:
        return {"ball under": [f"the robot's {MUG_NAMES[mug]} mug" for mug in s.target.tolist()]}

    def state_features(self, s: ShellState, data: StepData) -> dict[str, Tensor]:
        mug = self._target_mug(s, data)
        responding = data.responding[:, None]
        features = {
            "target": torch.nn.functional.one_hot(s.target, MUGS),
            "tcp_to_target": (mug[:, :3] - data.tcp[:, :3]) * responding,
            "held": s.held / HOLD_STEPS,
            "counted": s.counted,
        }
        if self.mode == "push":
            features["target_to_goal"] = (self._zone_centre(s) - mug[:, :2]) * responding
        if self.mode == "pick":
            features["grasped"] = s.grasped
            features["fingers"] = data.fingers
        return features
