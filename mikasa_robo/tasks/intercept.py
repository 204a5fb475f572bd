"""Intercept: a ball rolls past; bring it to rest in the goal disc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, build_disc, disc_pose
from mikasa_robo.assets.palette import rgba
from mikasa_robo.core import rest, rewards
from mikasa_robo.core.env import StepData
from mikasa_robo.core.sampling import Uniforms, between

from .rolling_ball import (
    CLOSED,
    RollingBallTask,
    RollingState,
    RollRanges,
    at_hand,
    ball_speed,
    between_fingers,
    distance_to_way,
    ready_to_grasp,
    sample_head_start,
)

GOAL_RADIUS = 0.1  # m
GOAL_BEYOND = 0.2  # m, from the ball's start to the disc's centre, along x
GOAL_Y = (-0.2, 0.2)  # m
FAR_SHARPNESS, NEAR_SHARPNESS = 2.0, 10.0
"""Of the two halves of `place`, 1/m. A ball that was stopped at the far end of the table, 0.7 m from the disc, still earns
0.1 of the first. The second pays for the last centimetres, without which PPO held some balls just outside the disc."""


@dataclass
class InterceptState(RollingState):
    """One row per environment. Objects: the ball, the disc."""

    goal: Tensor  # (N, 2) m, x and y of the disc's centre


def sample_ball_and_goal(u: Uniforms, ranges: RollRanges, hidden: bool = False) -> InterceptState:
    """Draw the ball and the disc. Takes 5 uniforms, and `RollRanges.more_draws`.

    Args:
        u: uniforms.
        ranges: of the ball.
        hidden: whether the ball is hidden on its way. Then the disc must not tell where the ball began, so its x is drawn
            from the same range by itself, which takes one more uniform. A head start brings it nearer, by the same share,
            to where the disc of a ball on view lies: a ball that hardly rolls must not lie in the disc already.
    """
    start, velocity, share = sample_head_start(u, ranges)
    goal_y = between(u.take(1)[:, 0], *GOAL_Y)
    beside = between(u.take(1)[:, 0], *ranges.start_x) if hidden else start[:, 0]
    if ranges.head_start[1] > 0:
        beside = beside + share * (start[:, 0] - beside)
    return InterceptState(
        start=start.to(torch.float32),
        velocity=velocity.to(torch.float32),
        slowed=torch.zeros(u.count, dtype=torch.bool, device=u.device),
        goal=torch.stack([beside + GOAL_BEYOND, goal_y], dim=1).to(torch.float32),
    )


class Intercept(RollingBallTask[InterceptState]):
    """Bring a rolling ball to rest in the goal disc.

    Task: a red ball (radius 0.02 m) rolls past the robot, mostly along +y; a disc (radius 0.1 m) marks the goal. The
    robot has to stop the ball and move it to the disc: untouched it rolls past or through the disc and off the table.
    With ``blank_steps`` the ball is hidden on its way: see `RollingBallTask`.
    Randomisations: ball's start x ∈ -0.2 ± 0.15 m, y ∈ [-0.9, -0.65] m; velocity v_y ∈ [0.25, 0.5] slow, [0.5, 0.75]
    medium, [0.75, 1] m/s fast, v_x ∈ [0, 0.05] m/s, all uniform; disc y ∈ ±0.2 m; the arm's start.
    Success: the ball's centre is within 0.1 m of the disc's in x and y, within 0.01 m of the height at which it rolls,
    and slower than 0.05 m/s over a control step. It may still be held. There is no failure.
    Oracle: (N, 3) float32, velocity of the ball at t = 0, m/s.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E.5; T = 90. Ours, because the paper does not say it:
    - The disc lies 0.2 m beyond the ball's start in x, so its centre has x ∈ [-0.15, 0.15] m, which is within reach. Only
      a slow ball with much drift rolls through the disc's edge. With ``blank_steps`` the disc lies 0.2 m beyond another
      place that the ball could have started from; otherwise the disc, which stays visible, would tell where it started.
    - The rolling resistance is 0.05 1/s: only the robot brings a ball to rest.
    - The ball has to lie on the table.
    The scripted expert stops the ball with the fingertips, closes the gripper and drags the ball to the disc; it succeeds
    in 95 % (fast) to 100 % (slow) of the episodes. PhysX throws about one slow ball in four back from a resting finger,
    although the restitution is 0.

    Dense reward: ``reach`` pays for a hand in the way that the ball has still before it (`distance_to_way`). ``stop`` pays
    for a ball between the fingers, one that is slow near a hand with open fingers that comes from above
    (`ready_to_grasp`), or one at the hand in the disc. ``grasp`` pays for a ball between closed fingers. ``place`` pays for
    a ball near the disc if it is at the hand, and half of it only if it is grasped. ``rest`` pays for a slow ball in the
    disc, and ``still`` for an arm at rest while the ball is there. A ball that rolls past the disc by itself earns nothing.
    Success asks for no grasp, but without these terms PPO pushed the ball, and brought it to the disc in less than half of
    the episodes.

    Args:
        speed, speed_range, drift_range, start_x_range, start_y_range, head_start, blank_steps, cue_steps, **kwargs: see
            `RollingBallTask`.
    """

    draws: ClassVar[int] = 5
    reward_scales: ClassVar[dict[str, float]] = {
        "reach": 1.0,
        "stop": 1.0,
        "grasp": 1.0,
        "place": 3.0,
        "rest": 1.0,
        "still": 0.5,
    }

    def build(self) -> list[Actor]:
        disc = build_disc(self.scene, "goal", rgba("lime"), GOAL_RADIUS, parked=1)
        return [self.build_rolling_ball(), disc]

    def sample(self, u: Uniforms) -> InterceptState:
        return sample_ball_and_goal(u, self.roll_ranges, hidden=self.blank_steps > 0)

    @property
    def more_draws(self) -> int:
        """See `RollingBallTask.more_draws`; a hidden ball's disc takes one."""
        return super().more_draws + int(self.blank_steps > 0)

    def layout(self, s: InterceptState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        on_view, ball = super().layout(s, elapsed)
        return on_view.expand(-1, 2), torch.cat([ball, disc_pose(s.goal)[:, None]], dim=1)

    def _to_goal(self, s: InterceptState, data: StepData) -> Tensor:
        """(N,) distance of the ball from lying in the disc, m; 0 where it does."""
        return rest.distance_to_area(data.objects[:, 0, :3], s.goal, GOAL_RADIUS, BALL_RADIUS)

    def outcome(self, s: InterceptState, data: StepData) -> dict[str, Tensor]:
        in_goal = self._to_goal(s, data) == 0
        at_rest = rest.at_rest(ball_speed(data))
        return {
            "success": in_goal & at_rest & data.responding,
            "fail": torch.zeros_like(in_goal),
            "in_goal": in_goal,
            "at_rest": at_rest,
        }

    def reward_terms(self, s: InterceptState, data: StepData) -> dict[str, Tensor]:
        """Moving a stopped ball to the disc costs nothing: only there ``rest`` pays, and ``stop`` does not ask for rest."""
        remaining = self._to_goal(s, data)
        in_goal = remaining == 0
        slow = rewards.closeness(ball_speed(data))
        hand = at_hand(data)
        between = between_fingers(data)
        stop = torch.where(between, 1.0, torch.where(in_goal, hand, ready_to_grasp(data)))
        near = rewards.closeness(remaining, FAR_SHARPNESS) + rewards.closeness(remaining, NEAR_SHARPNESS)
        grasped = (between & (data.fingers < CLOSED)).to(slow.dtype)
        return {
            "reach": rewards.closeness(distance_to_way(data)),
            "stop": stop,
            "grasp": grasped,
            "place": near * (hand + grasped) / 4,
            "rest": torch.where(in_goal, slow, torch.zeros_like(slow)),
            "still": rewards.still_when(in_goal, data.joint_speed),
        }

    def state_features(self, s: InterceptState, data: StepData) -> dict[str, Tensor]:
        return super().state_features(s, data) | {"ball_to_goal": s.goal - data.objects[:, 0, :2]}
