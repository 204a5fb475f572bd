"""TakeItBack: push a cube onto a goal and, once it has been there, back to where it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_cube, build_disc, disc_pose
from mikasa_robo.assets.palette import rgba
from mikasa_robo.checks import number
from mikasa_robo.core import rest, rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.grasp_start import grasp_posture
from mikasa_robo.core.phases import DELAY
from mikasa_robo.core.recall import Recall, home, is_replaced, starts_grasped
from mikasa_robo.core.sampling import Uniforms, between, index_below, upright
from mikasa_robo.core.symmetry import CUBE_ROTATIONS, canonical_rotation
from mikasa_robo.core.tabletop import ARM_JOINTS, FINGERS, START_QPOS
from mikasa_robo.tensors import constant, length

HALF_SIZE = 0.02  # m, of the cube
START_X = (-0.05, 0.05)  # m
LANES = (-0.1, 0.0, 0.1)  # m, y
LANE_JITTER = 0.02  # m
RETURN_X, RETURN_Y = (-0.125, -0.085), (-0.08, 0.08)  # m, where the cube comes back: in no region that it has to go to
GOAL_X = (0.2, 0.25)  # m
GOAL_Y = 0.0  # m
RADII = (0.01, 0.075)  # m, of goal and region, whose centres are at least 0.15 m apart
MIN_TOLERANCE = 0.005  # m, of the goal's centre
LEG = 0.4  # share of the reward's progress for the way to the goal, and again for the way back
PLACE_SHARPNESS = 20.0  # 1/m, of `place`: 0.24 of it at 5 cm from the start, 0.46 at the region's edge, 0.8 at 1 cm


@dataclass
class TakeItBackState:
    """One row per environment. Objects: the cube, the red disc, the magenta disc."""

    start: Tensor  # (N, 3) m, the cube's centre at t = 0
    returned: Tensor  # (N, 3) m, the cube's centre when acting begins: its start, or where it came back
    goal: Tensor  # (N, 2) m, x and y of the discs' centre
    reached: Tensor  # (N,) bool, the cube has been on the goal
    grasped: Tensor  # (N,) bool, both fingers were on the cube in the last step, with the cube between them
    rested: Tensor  # (N,) int64, control steps in a row that cube and robot have been at rest
    mistaken: Tensor  # (N,) bool, the cube was set down elsewhere


def sample_start_and_goal(u: Uniforms, replaced: bool = False) -> TakeItBackState:
    """Draw the start's x, its lane, its offset from the lane's centre, the goal's x; if ``replaced`` the place of return.

    Takes 4 uniforms, 6 if ``replaced``.
    """
    values = u.take(4)
    lanes = constant(LANES, torch.float64, u.device)
    y = lanes[index_below(values[:, 1], len(LANES))] + between(values[:, 2], -LANE_JITTER, LANE_JITTER)
    x = between(values[:, 0], *START_X)
    goal_x = between(values[:, 3], *GOAL_X)
    start = torch.stack([x, y, torch.full_like(x, HALF_SIZE)], dim=1).to(torch.float32)
    returned = start.clone()
    if replaced:
        values = u.take(2)
        back = between(values[:, 0], *RETURN_X), between(values[:, 1], *RETURN_Y), torch.full_like(x, HALF_SIZE)
        returned = torch.stack(back, dim=1).to(torch.float32)
    no = torch.zeros(u.count, dtype=torch.bool, device=u.device)
    return TakeItBackState(
        start=start,
        returned=returned,
        goal=torch.stack([goal_x, torch.full_like(goal_x, GOAL_Y)], dim=1).to(torch.float32),
        reached=no,
        grasped=no.clone(),
        rested=torch.zeros(u.count, dtype=torch.int64, device=u.device),
        mistaken=no.clone(),
    )


class TakeItBack(MemoryEnv[TakeItBackState]):
    """Push the cube onto the goal, then back to its start.

    Task: a green cube (half size 0.02 m) and, ahead of it, a red goal disc. As soon as the cube lies in the centre of the
    disc (within 0.015 m) the disc turns magenta and stays so; now the cube has to go back. Only the first frame shows
    where it started: nothing marks the region around the start, and no observation reveals it except the oracle and
    ``state``, which contains the oracle. The cube may be pushed or carried.
    Randomisations: start x ∈ ±0.05 m, y one of -0.1, 0, 0.1 m (uniform) ± 0.02 m, not rotated; goal x ∈ [0.2, 0.25] m;
    the arm's start.
    Success: the goal was reached earlier, and the cube is set down in the region (centre within 0.03 m of its start).
    Set down: it lies on the table (centre within 0.01 m of the height at which it started), is slower than 0.05 m/s over
    a control step, and the robot is static (arm joints below 0.2 rad/s), all for 2 control steps in a row. The gripper
    may still hold it.
    Failure: after the goal was reached, the cube is set down neither in the region nor on the goal.
    Oracle: (N, 3) float32, initial xyz of the cube, m.
    Perception: ``objects`` observations hold the smallest rotation of the cube that looks the same (yaw in ±45°).
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E.9; T = 180. Ours, because the paper does not say it:
    - The goal lies at y = 0. A disc straight ahead of the start would keep showing the start's y.
    - The start's y is jittered within its lane.
    - The radius of the region is 0.03 m. With 0.05 m an agent would have to remember the lane only, not x.
    Ours as well, because a script without memory could do the task otherwise (`benchmarks/shortcuts.py`):
    - The mistake. Setting the cube down at six places in turn succeeded in 85 % of the episodes; with the mistake it
      succeeds in 22 % (16 to 30), no more than a guess (18.4 %) within the error.
    - The cube has to reach the centre of the disc. At the disc's edge the cube's bearing shows its lane, which gave a
      script 51 %; now it succeeds in 22 %, too.
    An upright hand reaches x = 0.165 m only: for far goals it has to lean forward.

    With ``recall="replaced"``, a form of ours, neither the table nor a grasp can hold where the cube started. During the
    cue, which shows it there, and during the delay, which hides it, the robot is held at its start whatever ``arm`` says.
    Then the cube comes back elsewhere: x ∈ [-0.125, -0.085], y ∈ ±0.08 m (uniform), whatever the start was. All else is as
    above. A guess is right in at most 18.4 % of episodes: the share of the possible starts within 0.03 m of one of them.

    Dense reward: ``reach`` pays for nearness to the cube, ``grasp`` for holding it between both fingers, ``progress`` for
    the share of both legs that lies behind it, ``place`` on the way back for the last centimetres to the place where the
    cube started, and ``still`` for an arm at rest once the cube is back.

    Args:
        goal_radius: of the disc, 0.01…0.075 m.
        goal_tolerance: distance from the disc's centre at which the cube has reached the goal, 0.005 m to `goal_radius`.
        region_radius: distance from its start at which the cube is back, 0.01…0.075 m.
        recall: "in_place", the paper's form, or "replaced".
        start_grasped: for a curriculum, whether the fingers are closed on the cube when an episode begins, with the hand
            upright and no noise of the arm's start. Only "in_place". With a delay, hold the arm (``arm="held"``), or it
            moves away while the cube is hidden.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps. During the cue nothing can be
            moved; during a delay the table is empty, and afterwards everything lies where it lay, but for a cube that
            comes back elsewhere.
        **kwargs: see `MemoryEnv`.
    """

    needed_response: ClassVar[int | None] = 110
    draws: ClassVar[int] = 4
    instructed: ClassVar[Mapping[str, Any]] = {"recall": "in_place"}
    reward_scales: ClassVar[dict[str, float]] = {
        "reach": 1.0,
        "grasp": 1.0,
        "progress": 4.0,
        "place": 2.0,
        "still": 0.5,
    }

    def __init__(
        self,
        *args: Any,
        goal_radius: float = 0.05,
        goal_tolerance: float = 0.015,
        region_radius: float = 0.03,
        recall: Recall = "in_place",
        start_grasped: bool = False,
        **kwargs: Any,
    ) -> None:
        self.start_grasped = starts_grasped(start_grasped, recall)
        self.goal_radius = number("goal_radius", goal_radius, *RADII, unit="m")
        self.region_radius = number("region_radius", region_radius, *RADII, unit="m")
        self.goal_tolerance = number("goal_tolerance", goal_tolerance, MIN_TOLERANCE, self.goal_radius, unit="m")
        self.holds_arm = self.replaced = is_replaced(recall, kwargs.get("response_steps"))
        self.cue_bodies = self.replaced  # type: ignore[misc]
        if self.replaced:
            self.draws = 6  # type: ignore[misc]
        super().__init__(*args, **kwargs)

    def build(self) -> list[Actor]:
        cube = build_cube(self.scene, "cube", rgba("lime"), HALF_SIZE, parked=0)
        discs = [
            build_disc(self.scene, f"goal_{color}", rgba(color), self.goal_radius, parked=1 + k)
            for k, color in enumerate(("red", "magenta"))
        ]
        return [cube, *discs]

    def touchable(self, objects: list[Actor]) -> list[Actor]:
        return objects[:1]

    def sample(self, u: Uniforms) -> TakeItBackState:
        return sample_start_and_goal(u, self.replaced)

    def start_posture(self, s: TakeItBackState) -> Tensor | None:
        if not self.start_grasped:
            return None
        return grasp_posture(s.start, torch.zeros_like(s.start[:, 0]), 2 * HALF_SIZE, START_QPOS[ARM_JOINTS - 1])

    def layout(self, s: TakeItBackState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        disc, phase = disc_pose(s.goal), self.timeline.phase(elapsed)
        cube, on_view = upright(home(phase, s.start, s.returned)), phase != DELAY
        visible = torch.stack([on_view, on_view & ~s.reached, on_view & s.reached], dim=1)
        return visible, torch.stack([cube, disc, disc], dim=1)

    def update_state(self, s: TakeItBackState, data: StepData, touching: Tensor) -> None:
        # until the first step of the response phase the layout puts the cube where it belongs
        acted = data.elapsed > self.timeline.response_start
        s.reached = s.reached | (acted & (self._to_middle(s, data) == 0))
        # closed fingers that press on it from above touch it, too
        inside = length(data.tcp[:, :3] - data.objects[:, 0, :3]) < HALF_SIZE
        s.grasped = touching[:, FINGERS, 0].all(dim=1) & inside & data.responding
        lying = rest.lying(data.objects[:, 0, 2], HALF_SIZE)
        rests = acted & lying & self._at_rest(data) & data.static
        s.rested = rest.count_rest(s.rested, rests)
        on_goal = self._to_area(s.goal, self.goal_radius, data) == 0
        elsewhere = ~on_goal & (self._to_region(s, data) > 0)
        s.mistaken = s.mistaken | (s.reached & rest.set_down(s.rested) & elsewhere)

    @staticmethod
    def _at_rest(data: StepData) -> Tensor:
        return rest.at_rest(data.speeds[:, 0])

    def visible_poses(self, s: TakeItBackState, data: StepData) -> tuple[Tensor, Tensor]:
        poses = data.objects[..., :7].clone()
        poses[:, 0, 3:] = canonical_rotation(poses[:, 0, 3:], CUBE_ROTATIONS)
        return self.layout(s, data.elapsed)[0], poses

    @staticmethod
    def _to_area(centre: Tensor, radius: float, data: StepData) -> Tensor:
        return rest.distance_to_area(data.objects[:, 0, :3], centre, radius, HALF_SIZE)

    def _to_middle(self, s: TakeItBackState, data: StepData) -> Tensor:
        return self._to_area(s.goal, self.goal_tolerance, data)

    def _to_region(self, s: TakeItBackState, data: StepData) -> Tensor:
        return self._to_area(s.start[:, :2], self.region_radius, data)

    def outcome(self, s: TakeItBackState, data: StepData) -> dict[str, Tensor]:
        in_region = self._to_region(s, data) == 0
        fail = s.mistaken & (self.on_mistake == "fail")
        return {
            "success": s.reached & in_region & rest.set_down(s.rested) & ~fail,
            "fail": fail,
            "mistake": s.mistaken.clone(),
            "reached": s.reached.clone(),
            "in_region": in_region,
            "at_rest": self._at_rest(data),
            "static": data.static,
        }

    def reward_terms(self, s: TakeItBackState, data: StepData) -> dict[str, Tensor]:
        """The unweighted terms; see the class for what each of them pays for.

        ``progress`` pays `LEG` for each leg and the rest for reaching the goal, so that this never costs anything. It also
        falls where the cube is farther from where it has to go than when the leg began: a cube that was carried past the
        disc, or was lifted from it, must earn by coming closer. ``place`` leads to the middle of the region and down to the
        table: ``progress`` alone is nearly as large just outside of the region, where no mistake is possible as long as the
        cube is held up.
        """
        way_there = length(s.goal - s.returned[:, :2])
        way_back = length(s.goal - s.start[:, :2])
        there = rewards.progress(self._to_middle(s, data) / (way_there - self.goal_tolerance))
        back = rewards.progress(self._to_region(s, data) / (way_back - self.region_radius), 1 - LEG)
        place = rewards.closeness(length(s.start - data.objects[:, 0, :3]), PLACE_SHARPNESS)
        arrived = s.reached & (self._to_region(s, data) == 0)
        return {
            "reach": rewards.reach(data.tcp[:, :3], data.objects[:, 0, :3]),
            "grasp": s.grasped.to(way_back.dtype),
            "progress": torch.where(s.reached, back, LEG * there),
            "place": torch.where(s.reached, place, 0.0),
            "still": rewards.still_when(arrived, data.joint_speed, data.responding),
        }

    def oracle(self, s: TakeItBackState) -> Tensor:
        return s.start.clone()

    def overlay_facts(self, s: TakeItBackState) -> dict[str, list[str]]:
        away = torch.linalg.norm(self.object_layout.read()[:, 0, :2] - s.start[:, :2], dim=-1)
        return {
            "cube started at": [f"({x:.2f}, {y:.2f}) m" for x, y, _ in s.start.tolist()],
            "away from there by": [f"{100 * distance:.1f} cm" for distance in away.tolist()],
            "next": ["back to the start" if reached else "to the disc" for reached in s.reached.tolist()],
        }

    def state_features(self, s: TakeItBackState, data: StepData) -> dict[str, Tensor]:
        cube = data.objects[:, 0]
        shown = self.layout(s, data.elapsed)[0][:, :1]
        return {
            "start": s.start,
            "tcp_to_cube": (cube[:, :3] - data.tcp[:, :3]) * shown,
            "cube_to_goal": (s.goal - cube[:, :2]) * shown,
            "cube_to_start": (s.start - cube[:, :3]) * shown,
            "cube_velocity": cube[:, 7:] * shown,
            "reached": s.reached,
            "grasped": s.grasped,
            "rested": s.rested / rest.REST_STEPS,
            "fingers": data.fingers,
        }
