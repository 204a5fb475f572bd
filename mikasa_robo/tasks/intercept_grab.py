"""InterceptGrab: a ball rolls past; catch it and lift it off the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS
from mikasa_robo.core import rest, rewards
from mikasa_robo.core.env import StepData
from mikasa_robo.core.sampling import Uniforms
from mikasa_robo.core.tabletop import FINGERS

from .rolling_ball import (
    RollingBallTask,
    RollingState,
    RollRanges,
    ball_speed,
    between_fingers,
    distance_to_way,
    ready_to_grasp,
    sample_roll,
)

LIFT_HEIGHT = 0.02  # m above the table, of the ball's lowest point


@dataclass
class InterceptGrabState(RollingState):
    """One row per environment. The only object is the ball."""

    grasped: Tensor  # (N,) bool, both fingers were on the ball in the last step


def sample_ball(u: Uniforms, ranges: RollRanges) -> InterceptGrabState:
    """Draw the ball. Takes 4 uniforms, and `RollRanges.more_draws`."""
    start, velocity = sample_roll(u, ranges)
    no = torch.zeros(u.count, dtype=torch.bool, device=u.device)
    return InterceptGrabState(
        start=start.to(torch.float32), velocity=velocity.to(torch.float32), slowed=no, grasped=no.clone()
    )


class InterceptGrab(RollingBallTask[InterceptGrabState]):
    """Catch a rolling ball and lift it.

    Task: a red ball (radius 0.02 m) rolls past the robot, mostly along +y, and, untouched, off the table. With
    ``blank_steps`` the ball is hidden on its way: see `RollingBallTask`.
    Randomisations: ball's start x ∈ -0.2 ± 0.15 m, y ∈ [-0.9, -0.65] m; velocity v_y ∈ [0.25, 0.5] slow, [0.5, 0.75]
    medium, [0.75, 1] m/s fast, v_x ∈ [0, 0.05] m/s, all uniform; the arm's start.
    Success: both fingers touch the ball, its lowest point is more than 0.02 m above the table, it is at rest (slower
    than 0.05 m/s over a control step, in the world frame) and the robot is static (arm joints below 0.2 rad/s). There is
    no failure.
    Oracle: (N, 3) float32, velocity of the ball at t = 0, m/s.
    Source: MIKASA (arXiv 2502.10550), Table 1 and appendix E.6; T = 90. Ours, because the paper does not say it: the
    height, and the rolling resistance of 0.05 1/s. The scripted expert stops the ball with the fingertips, closes the
    gripper and lifts; it succeeds in 95 % (fast) to 100 % (slow) of the episodes.

    Dense reward: ``reach`` pays for a hand in the way that the ball has still before it (`distance_to_way`), ``stop`` for a
    ball that is grasped, or slow near a hand with open fingers that comes from above (`rewards.reach_from_above`),
    ``grasp`` for a ball between both fingers, ``lift`` for the height of a grasped ball, ``still`` for an arm at rest once
    the ball is held up. A loose grasp earns as much as a firm one, until it has to lift: so ``lift`` weighs more.

    Args:
        speed, speed_range, drift_range, start_x_range, start_y_range, head_start, blank_steps, cue_steps, **kwargs: see
            `RollingBallTask`.
    """

    draws: ClassVar[int] = 4
    reward_scales: ClassVar[dict[str, float]] = {"reach": 1.0, "stop": 1.0, "grasp": 1.0, "lift": 3.0, "still": 0.5}

    def build(self) -> list[Actor]:
        return [self.build_rolling_ball()]

    def sample(self, u: Uniforms) -> InterceptGrabState:
        return sample_ball(u, self.roll_ranges)

    def update_state(self, s: InterceptGrabState, data: StepData, touching: Tensor) -> None:
        super().update_state(s, data, touching)
        s.grasped = touching[:, FINGERS, 0].all(dim=1)

    def _height(self, data: StepData) -> Tensor:
        """(N,) of the ball's lowest point above the table, m."""
        return data.objects[:, 0, 2] - BALL_RADIUS

    def outcome(self, s: InterceptGrabState, data: StepData) -> dict[str, Tensor]:
        lifted = self._height(data) > LIFT_HEIGHT
        at_rest = rest.at_rest(ball_speed(data))
        return {
            "success": s.grasped & lifted & at_rest & data.static & data.responding,
            "fail": torch.zeros_like(lifted),
            "grasped": s.grasped.clone(),
            "lifted": lifted,
            "at_rest": at_rest,
            "static": data.static,
        }

    @staticmethod
    def _between_fingers(s: InterceptGrabState, data: StepData) -> Tensor:
        """(N,) bool: both fingers are on the ball and the TCP is inside it; else it may lie against closed fingers."""
        return s.grasped & between_fingers(data)

    def reward_terms(self, s: InterceptGrabState, data: StepData) -> dict[str, Tensor]:
        height = self._height(data)
        between = self._between_fingers(s, data)
        held = between & (height > LIFT_HEIGHT)
        grasped = between.to(height.dtype)
        return {
            "reach": rewards.closeness(distance_to_way(data)),
            "stop": torch.where(between, 1.0, ready_to_grasp(data)),
            "grasp": grasped,
            "lift": (height / LIFT_HEIGHT).clamp(0, 1) * grasped,
            "still": rewards.still_when(held, data.joint_speed),
        }

    def state_features(self, s: InterceptGrabState, data: StepData) -> dict[str, Tensor]:
        return super().state_features(s, data) | {"grasped": self._between_fingers(s, data)}
