"""RotateLenient and RotateStrict: turn a peg by a given angle from where it lay at the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_peg
from mikasa_robo.assets.palette import rgba
from mikasa_robo.checks import boolean, number_range, warn_hard
from mikasa_robo.core import rest, rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.grasp_start import grasp_posture
from mikasa_robo.core.phases import DELAY
from mikasa_robo.core.recall import Recall, home, is_replaced, starts_grasped
from mikasa_robo.core.sampling import Uniforms, between
from mikasa_robo.core.symmetry import PEG_ROTATIONS, canonical_rotation
from mikasa_robo.core.tabletop import FINGERS
from mikasa_robo.tensors import length, total

HALF_LENGTH, HALF_WIDTH = 0.12, 0.025  # m
JITTER = 0.1  # m, of the peg's centre in x and in y
TOLERANCE = 0.1  # rad
# rad, how far a peg that comes back elsewhere at least is from its goal: to turn it by less than TOLERANCE is no mistake,
# and from here it does not help
FREE = 2 * TOLERANCE
LARGEST_ANGLE = {False: math.pi / 2, True: math.pi / 4}  # rad, by `both_ways`
HARD_ANGLE = 2.0
"""rad. Of 32 episodes each the scripted expert did 31 with angles in (1.6, 2), 28 in (2, 2.5) and 7 in (3, 3.14): the last
joint cannot turn farther."""
NEAR = 0.05  # m, largest distance of the peg's centre from where it was when acting began, in x and in y (Strict)
LEVEL = 0.1  # rad, largest roll and pitch (Strict)
OPEN = 0.035  # m, joint position of a finger that has room for the peg
REST_TURN = 0.2  # rad/s: a peg that turns slower than this is at rest
BEYOND = math.pi / 4  # rad, a peg turned less far than this beyond its target has more progress than an untouched one
STANDING = 0.1  # a peg whose unit axis is shorter than this, seen from above, stands on end and has no heading


def long_axis(q: Tensor) -> Tensor:
    """Return the peg's x axis in the world, (N, 3), for the rotations ``q`` (N, 4), wxyz."""
    w, x, y, z = q.unbind(-1)
    return torch.stack([1 - 2 * (y**2 + z**2), 2 * (x * y + w * z), 2 * (x * z - w * y)], dim=-1)


def heading(q: Tensor) -> Tensor:
    """(N,) float64: yaw of the peg's x axis as seen from above, rad in (-π, π]."""
    # in float64: the last bit of a float32 arc tangent depends on the length of the tensor
    axis = long_axis(q.to(torch.float64))
    return torch.atan2(axis[:, 1], axis[:, 0])


def tilt(q: Tensor) -> tuple[Tensor, Tensor]:
    """Roll and pitch, (N,) float64 each, rad, of the rotation that turns by yaw first, then by pitch, then by roll."""
    w, x, y, z = q.to(torch.float64).unbind(-1)
    roll = torch.atan2(2 * (y * z + w * x), 1 - 2 * (x**2 + y**2))
    return roll, torch.asin((2 * (w * y - x * z)).clamp(-1, 1))


def wrapped(angle: Tensor) -> Tensor:
    """The same angle in (-π, π]."""
    return math.pi - torch.remainder(math.pi - angle, 2 * math.pi)


def folded(angle: Tensor) -> Tensor:
    """The direction in [-π/2, π/2) that an object whose two ends look alike has at ``angle``; float64."""
    return torch.remainder(angle.to(torch.float64) + math.pi / 2, math.pi) - math.pi / 2


def stays_in_place(start: Tensor, peg: Tensor) -> Tensor:
    """(N,) bool: the centre of the peg (N, ≥ 3) is within `NEAR` of ``start`` (N, ≥ 2) in x and in y."""
    return ((peg[:, :2] - start[:, :2]).abs() < NEAR).all(dim=-1)


def is_level(peg: Tensor) -> Tensor:
    """(N,) bool: roll and pitch of the peg (N, ≥ 7) are within `LEVEL`."""
    roll, pitch = tilt(peg[:, 3:7])
    return (roll.abs() < LEVEL) & (pitch.abs() < LEVEL)


def angle_range_of(both_ways: bool, angle_range: Sequence[float] | None) -> tuple[float, float]:
    """Return the range (low, high), rad, that the constructor arguments ask for. Raises ValueError if one is invalid."""
    default = TOLERANCE, LARGEST_ANGLE[boolean("both_ways", both_ways)]
    if angle_range is None:
        return default
    low, high = number_range("angle_range", angle_range, TOLERANCE, math.pi, "rad")
    if high < 2 * TOLERANCE:
        raise ValueError(
            f"angle_range={angle_range!r} asks for so little that a peg which is left alone may count as turned, within "
            f"{TOLERANCE:g} rad; use at least {2 * TOLERANCE:g} rad for the larger number"
        )
    if high > HARD_ANGLE:
        warn_hard(
            "angle_range", angle_range, f"beyond {HARD_ANGLE:g} rad our scripted expert succeeds in less than 90 %"
        )
    return low, high


@dataclass
class RotateState:
    """One row per environment. Object: the peg."""

    start: Tensor  # (N, 7) pose of the peg at t = 0, m
    returned: Tensor  # (N, 7) pose of the peg when acting begins, m: its start, or where it came back
    target: Tensor  # (N,) the prompted angle, from the yaw at t = 0, rad
    goal: Tensor  # (N,) angle to turn the peg by from where it lies when acting begins, rad
    turned: Tensor  # (N,) angle by which the peg has been turned so far, rad; whole turns count
    heading: Tensor  # (N,) yaw of the peg after the last step, rad; before the response that of `returned`
    spin: Tensor  # (N,) speed of the yaw over the last step, rad/s
    grasped: Tensor  # (N,) bool, both fingers were on the peg in the last step, with the peg between them
    rested: Tensor  # (N,) int64, control steps in a row that peg and robot have been at rest
    mistaken: Tensor  # (N,) bool, the peg was set down at another angle


def lying(xy: Tensor, yaw: Tensor) -> Tensor:
    """(b, 7) float32 poses of pegs that lie on the table with their centres at ``xy`` (b, 2), m, and ``yaw`` (b,), rad."""
    z, zero = torch.full_like(yaw, HALF_WIDTH), torch.zeros_like(yaw)
    pose = torch.stack([*xy.unbind(1), z, (yaw / 2).cos(), zero, zero, (yaw / 2).sin()], dim=1)
    return pose.to(torch.float32)


def sample_peg(u: Uniforms, angles: tuple[float, float], both_ways: bool, replaced: bool = False) -> RotateState:
    """Draw the peg's place (x, y), its yaw, and the size and sign of the angle; where it comes back if ``replaced``.

    Takes 5 uniforms, 8 if ``replaced``. What remains to be turned then is independent of the place and the yaw with
    which the peg comes back and of the prompt, as the yaw at the start is uniform.
    """
    values = u.take(5)
    xy, yaw = between(values[:, :2], -JITTER, JITTER), between(values[:, 2], -math.pi, math.pi)
    size = between(values[:, 3], angles[1], angles[0])  # reversed: the range excludes low and includes high
    target = torch.where((values[:, 4] < 0.5) & both_ways, -1.0, 1.0) * size
    start, goal = lying(xy, yaw), target
    returned = start.clone()
    if replaced:
        values = u.take(3)
        goal = folded(between(values[:, 2], FREE, math.pi - FREE))
        returned = lying(between(values[:, :2], -JITTER, JITTER), wrapped(yaw + target - goal))
    no = torch.zeros(u.count, dtype=torch.bool, device=u.device)
    return RotateState(
        start=start,
        returned=returned,
        target=target.to(torch.float32),
        goal=goal.to(torch.float32),
        turned=torch.zeros_like(returned[:, 0]),
        heading=heading(returned[:, 3:]).to(torch.float32),
        spin=torch.zeros_like(returned[:, 0]),
        grasped=no,
        rested=torch.zeros(u.count, dtype=torch.int64, device=u.device),
        mistaken=no.clone(),
    )


class Rotate(MemoryEnv[RotateState]):
    """Turn the peg by the prompted angle: what RotateLenient and RotateStrict share.

    Task: a uniformly blue peg (half length 0.12 m, half width 0.025 m) lies on the table and is always on view. It has
    to be turned about the vertical by the prompted angle, counter-clockwise if that is positive. Only the first frame
    shows where it pointed at the start, and its two ends look alike. The robot may grasp it, push an end or lift it in
    between.
    Randomisations: centre x, y ∈ ±0.1 m; yaw uniform in ±π; angle uniform in (0.1, π/2] or, with ``both_ways``, size
    uniform in (0.1, π/4] and either sign equally often; the arm's start.
    Success: the angle by which the peg has been turned is within 0.1 rad of the target, the peg is at rest (slower than
    0.05 m/s and 0.2 rad/s over a control step) and the robot is static (arm joints below 0.2 rad/s), both for 2 control
    steps in a row. The angle is the sum of the changes of the yaw of the peg's long axis, seen from above, so half and
    whole turns count; it does not change while the peg stands on end (axis within 6° of the vertical). The peg may still
    be held.
    Failure: peg and robot rest as long while the peg is turned by more than 0.1 rad, but not to the target.
    Oracle: (N, 1) float32, signed angle still to turn, rad: target less angle turned so far.
    Prompt: (N, 1) float32, target angle, rad.
    Perception: ``objects`` observations hold the smallest rotation that looks the same (yaw in ±90°, roll in ±45°).
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E.7, E.8; T = 90. Ours, because the paper does not say it: how
    slowly and for how long a peg rests, and the failure. Without the failure a script that needs no memory succeeds by
    stopping every 0.17 rad (`benchmarks/shortcuts.py`, of 128 episodes: 96 % Pos, 99 % PosNeg; with it 12 and 28 %).

    Dense reward: ``progress`` is 0.1 for a peg that lies where it lay, however small the angle is, 1 at the target, and
    falls on both sides: beyond the target, and where the peg is turned the wrong way (`rewards.progress`). ``align`` pays
    for a hand with its fingers open on both long sides, ``grasp`` for a peg between both fingers. RotateStrict's ``place``
    is the share of the angle that has been turned, times the nearness to the start, so that to leave the peg where it is
    earns nothing. ``still`` pays once the peg is turned (Strict: in place and level).

    With ``recall="replaced"``, a form of ours, neither the table nor a grasp can hold what has to be remembered. During
    the cue, which shows the peg at its start, and during the delay, which hides it, the robot is held at its start
    whatever ``arm`` says. Then the peg comes back at another place (x, y ∈ ±0.1 m) with another yaw, and its long axis has
    to point the prompted angle from where it pointed in the cue; as the ends look alike, either may. What remains to be
    turned is uniform between 0.2 and π/2 rad and either way equally often, whatever the prompt and the pose at which the
    peg came back. So a guess succeeds in 0.2 / (π - 0.4) = 7.3 % of episodes.
    Success: the long axis is within 0.1 rad of that direction, the rest as above.
    Failure: peg and robot rest while the long axis is more than 0.1 rad from where it came back, and not at its goal.
    Oracle: what remains to be turned the shorter way, in [-π/2, π/2).

    Args:
        both_ways: whether the prompted angle may be clockwise.
        angle_range: (low, high) of the prompted angle's size, in place of the mode's own: low at least 0.1 rad, high 0.2…π
            rad.
        recall: "in_place", the paper's form, or "replaced".
        start_grasped: for a curriculum, whether the fingers are closed on the peg when an episode begins, with the hand
            upright over its middle and no noise of the arm's start. Only "in_place". With a delay, hold the arm
            (``arm="held"``), or it moves away while the peg is hidden.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps. During the cue the peg cannot be
            moved; during a delay it is hidden, and afterwards it lies where it lay, or where it comes back.
        **kwargs: see `MemoryEnv`.
    """

    needed_response: ClassVar[int | None] = 60
    draws: ClassVar[int] = 5
    instructed: ClassVar[Mapping[str, Any]] = {"recall": "in_place"}
    strict: ClassVar[bool]

    def __init__(
        self,
        *args: Any,
        both_ways: bool = False,
        angle_range: Sequence[float] | None = None,
        recall: Recall = "in_place",
        start_grasped: bool = False,
        **kwargs: Any,
    ) -> None:
        self.angle_range, self.both_ways = angle_range_of(both_ways, angle_range), both_ways
        self.holds_arm = self.replaced = is_replaced(recall, kwargs.get("response_steps"))
        self.start_grasped = starts_grasped(start_grasped, recall)
        self.cue_bodies = self.replaced  # type: ignore[misc]
        if self.replaced:
            self.draws = 8  # type: ignore[misc]
        super().__init__(*args, **kwargs)

    def build(self) -> list[Actor]:
        return [build_peg(self.scene, "peg", rgba("blue"), HALF_LENGTH, HALF_WIDTH, parked=0)]

    def sample(self, u: Uniforms) -> RotateState:
        return sample_peg(u, self.angle_range, self.both_ways, self.replaced)

    def start_posture(self, s: RotateState) -> Tensor | None:
        if not self.start_grasped:
            return None
        # The last joint turns against the yaw; it has the same way to its limits in all episodes.
        middle = 0.0 if self.both_ways else LARGEST_ANGLE[False] / 2
        return grasp_posture(s.start[:, :3], heading(s.start[:, 3:]), 2 * HALF_WIDTH, middle)

    def layout(self, s: RotateState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        phase = self.timeline.phase(elapsed)
        return (phase != DELAY)[:, None], home(phase, s.start, s.returned)[:, None]

    def update_state(self, s: RotateState, data: StepData, touching: Tensor) -> None:
        q = data.objects[:, 0, 3:7]
        lying = torch.linalg.norm(long_axis(q)[:, :2], dim=-1) > STANDING
        # until the first step of the response phase the layout puts the peg where it belongs
        counts = lying & (data.elapsed > self.timeline.response_start)
        now = torch.where(counts, heading(q), s.heading.to(torch.float64))
        turn = wrapped(now - s.heading)
        s.spin = turn.abs().to(torch.float32) * self.control_freq
        s.turned = (s.turned + turn).to(torch.float32)
        s.heading = now.to(torch.float32)
        s.grasped = touching[:, FINGERS, 0].all(dim=1) & self._between_fingers(data) & data.responding
        rests = (data.elapsed > self.timeline.response_start) & self._at_rest(s, data) & data.static
        s.rested = rest.count_rest(s.rested, rests)
        elsewhere = (self._angle(s.turned).abs() > TOLERANCE) & ~self._facing(s)
        s.mistaken = s.mistaken | (elsewhere & rest.set_down(s.rested))

    def _angle(self, angle: Tensor) -> Tensor:
        """(N,) a turn as it counts: with whole turns where the peg stays on view, else as the peg's direction shows it."""
        return folded(angle).to(angle.dtype) if self.replaced else angle

    def _remaining(self, s: RotateState) -> Tensor:
        """(N,) signed angle still to turn, rad."""
        return self._angle(s.goal - s.turned)

    def _facing(self, s: RotateState) -> Tensor:
        return self._remaining(s).abs() < TOLERANCE

    @staticmethod
    def _at_rest(s: RotateState, data: StepData) -> Tensor:
        return rest.at_rest(data.speeds[:, 0]) & (s.spin < REST_TURN)

    def prompt(self, s: RotateState) -> Tensor:
        return s.target[:, None].clone()

    def oracle(self, s: RotateState) -> Tensor:
        return self._remaining(s)[:, None]

    def visible_poses(self, s: RotateState, data: StepData) -> tuple[Tensor, Tensor]:
        poses = data.objects[..., :7].clone()
        poses[:, 0, 3:] = canonical_rotation(poses[:, 0, 3:], PEG_ROTATIONS)
        return self.layout(s, data.elapsed)[0], poses

    def outcome(self, s: RotateState, data: StepData) -> dict[str, Tensor]:
        peg = data.objects[:, 0]
        facing, in_place, level = self._facing(s), stays_in_place(s.returned, peg), is_level(peg)
        fail = s.mistaken & (self.on_mistake == "fail")
        success = facing & rest.set_down(s.rested) & data.static & data.responding & ~fail
        return {
            "success": success & in_place & level if self.strict else success,
            "fail": fail,
            "mistake": s.mistaken.clone(),
            "facing": facing,
            "at_rest": self._at_rest(s, data),
            "in_place": in_place,
            "level": level,
            "static": data.static,
        }

    def reward_terms(self, s: RotateState, data: StepData) -> dict[str, Tensor]:
        """The unweighted terms; see the class for what each of them pays for."""
        peg = data.objects[:, 0]
        done = self._facing(s)
        remaining, way = self._remaining(s), s.goal.abs()
        # a small angle leaves little room beyond the target
        left = remaining.abs() / torch.where(remaining * s.goal < 0, way.clamp(min=BEYOND), way)
        if self.strict:
            done = done & stays_in_place(s.returned, peg) & is_level(peg)
        terms = {
            "reach": rewards.reach(data.tcp[:, :3], peg[:, :3]),
            "align": (1 - self._in_hand(data)[1] ** 2) * self._open_enough(data),
            "grasp": s.grasped.to(peg.dtype),
            "progress": rewards.progress(left),
            "still": rewards.still_when(done, data.joint_speed, data.responding),
        }
        if self.strict:
            up = 1 - 2 * (peg[:, 4] ** 2 + peg[:, 5] ** 2)  # z component of the peg's z axis
            away = length(self._away(s, data)[:, :2])
            terms["place"] = (1 - left).clamp(min=0) / (1 + (away / NEAR) ** 2) * up.clamp(0, 1)
        return terms

    @staticmethod
    def _between_fingers(s: StepData) -> Tensor:
        """(N,) bool: the TCP is inside the peg. Closed fingers that press on it from above touch it, too."""
        way, axis = s.tcp[:, :3] - s.objects[:, 0, :3], long_axis(s.objects[:, 0, 3:7])
        along = total((way * axis).unbind(-1))
        return (length(way - along[:, None] * axis) < HALF_WIDTH) & (along.abs() < HALF_LENGTH)

    def _open_enough(self, s: StepData) -> Tensor:
        """(N,) in [0, 1]: how wide the fingers are open for the peg to fit between them; 1 where it is there."""
        return torch.where(self._between_fingers(s), 1.0, (s.fingers / OPEN).clamp(max=1))

    @staticmethod
    def _in_hand(s: StepData) -> tuple[Tensor, Tensor]:
        """Cosines (N,) of the angles between the peg's long axis and the hand's x axis, and its y axis (fingers open)."""
        w, x, y, z = s.tcp[:, 3:].unbind(-1)
        hand_x = long_axis(s.tcp[:, 3:])
        hand_y = torch.stack([2 * (x * y - w * z), 1 - 2 * (x**2 + z**2), 2 * (y * z + w * x)], dim=-1)
        axis = long_axis(s.objects[:, 0, 3:7])
        return total((hand_x * axis).unbind(-1)), total((hand_y * axis).unbind(-1))

    def _away(self, s: RotateState, data: StepData) -> Tensor:
        """(N, 3) vector from the peg's centre to where it was when acting began, m."""
        return s.returned[:, :3] - data.objects[:, 0, :3]

    def overlay_facts(self, s: RotateState) -> dict[str, list[str]]:
        angles = {"turn by": s.target, "turned so far": s.turned}
        if self.replaced:
            angles = {"from where it pointed": s.target, "still to turn": self._remaining(s)}
        return {name: [f"{round(angle):+d}°" for angle in row.rad2deg().tolist()] for name, row in angles.items()}

    def state_features(self, s: RotateState, data: StepData) -> dict[str, Tensor]:
        peg, tcp = data.objects[:, 0], data.tcp[:, :3]
        shown = self.layout(s, data.elapsed)[0]
        axis, (along, across) = long_axis(peg[:, 3:7]), self._in_hand(data)
        to_peg = peg[:, :3] - tcp
        features = {
            "turned": s.turned,
            "remaining": self._remaining(s),
            "tcp_to_peg": to_peg * shown,
            "tcp_to_ends": torch.cat([to_peg + HALF_LENGTH * axis, to_peg - HALF_LENGTH * axis], dim=1) * shown,
            "peg_axis": axis * shown,
            # cosine and sine of twice the angle: the same for either end
            "peg_in_hand": torch.stack([along**2 - across**2, 2 * along * across], dim=1) * shown,
            "speed": data.speeds[:, 0],
            "spin": s.spin,
            "grasped": s.grasped,
            "rested": s.rested / rest.REST_STEPS,
            "fingers": data.fingers,
        }
        if self.strict:
            features["peg_to_start"] = self._away(s, data) * shown
        return features


class RotateLenient(Rotate):
    """Turn the peg by the prompted angle; it may move away, and it may be held in the air. See `Rotate`."""

    strict: ClassVar[bool] = False
    reward_scales: ClassVar[dict[str, float]] = {"reach": 1, "align": 0.5, "grasp": 1, "progress": 4, "still": 0.5}


class RotateStrict(Rotate):
    """Turn the peg by the prompted angle on the spot.

    Success requires, in addition to that of `Rotate`, that the peg's centre is within 0.05 m of its start in x and in y
    (of where it came back, with ``recall="replaced"``), and that its roll and pitch are within 0.1 rad: a peg that was
    rolled onto another side has to be rolled back. Its height does not matter.
    """

    strict: ClassVar[bool] = True
    # Pushing an end turns the peg at once but carries it away. A grasp alone must pay more than such a push.
    reward_scales: ClassVar[dict[str, float]] = {**RotateLenient.reward_scales, "grasp": 3, "progress": 1, "place": 5}

    def overlay_facts(self, s: RotateState) -> dict[str, list[str]]:
        moved = torch.linalg.norm(self.object_layout.read()[:, 0, :2] - s.returned[:, :2], dim=-1)
        return super().overlay_facts(s) | {
            "centre moved by": [f"{100 * distance:.1f} cm" for distance in moved.tolist()]
        }
