"""PointBack-v0, a task of our own: point at the place where a disc lay. docs/adding-a-task.md goes through this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

import mikasa_robo
from mikasa_robo.assets.bodies import build_disc, disc_pose
from mikasa_robo.assets.palette import rgba
from mikasa_robo.core import rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.phases import CUE
from mikasa_robo.core.sampling import Uniforms, between

CUE_STEPS, DELAY_STEPS, RESPONSE_STEPS = 5, 5, 50  # at 20 Hz
PLACE_X, PLACE_Y = (-0.15, 0.1), (-0.2, 0.2)  # m
RADIUS = 0.05  # m, of the disc, and how far from its middle pointing is right
HEIGHT = 0.1  # m above the table, below which a hand points


@dataclass
class PointBackState:
    """One row per environment."""

    place: Tensor  # (N, 2) m, x and y of the disc's middle


class PointBack(MemoryEnv[PointBackState]):
    """Point at the place where the disc lay.

    Task: t < 5: a red disc lies on the table. From t = 5 the table is empty. From t = 10 the tool centre point has to be
    brought over the place where the disc was.
    Randomisations: the disc's middle, x ∈ [-0.15, 0.1] m, y ∈ [-0.2, 0.2] m, uniform; the arm's start.
    Success: the tool centre point is within 0.05 m of the disc's middle in x and y and below 0.1 m, and the robot is
    static (arm joints below 0.2 rad/s). There is no failure.
    Oracle: (N, 2) float32, x and y of the disc's middle, m.

    Args:
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`; ``on_mistake`` has no meaning here.
    """

    draws: ClassVar[int] = 2
    reward_scales: ClassVar[dict[str, float]] = {"reach": 1.0, "still": 0.5}

    def __init__(
        self,
        *args: Any,
        cue_steps: int = CUE_STEPS,
        delay_steps: int = DELAY_STEPS,
        response_steps: int = RESPONSE_STEPS,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, cue_steps=cue_steps, delay_steps=delay_steps, response_steps=response_steps, **kwargs)

    def build(self) -> list[Actor]:
        return [build_disc(self.scene, "disc", rgba("red"), RADIUS, parked=0)]

    def sample(self, u: Uniforms) -> PointBackState:
        x, y = between(u.take(1), *PLACE_X), between(u.take(1), *PLACE_Y)
        return PointBackState(place=torch.cat([x, y], dim=1).to(torch.float32))

    def layout(self, s: PointBackState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        on_view = self.timeline.phase(elapsed) == CUE
        return on_view[:, None], disc_pose(s.place)[:, None]

    def update_state(self, s: PointBackState, data: StepData, touching: Tensor) -> None:
        """Nothing has to be kept of what happens: the place is all."""

    def outcome(self, s: PointBackState, data: StepData) -> dict[str, Tensor]:
        pointing = self._pointing(s, data)
        return {
            "success": pointing & data.static & data.responding,
            "fail": torch.zeros_like(pointing),
            "pointing": pointing & data.responding,
            "static": data.static,
        }

    def reward_terms(self, s: PointBackState, data: StepData) -> dict[str, Tensor]:
        return {
            "reach": rewards.closeness(torch.linalg.norm(self._way(s, data), dim=1)),
            "still": rewards.still_when(self._pointing(s, data) | ~data.responding, data.joint_speed),
        }

    def oracle(self, s: PointBackState) -> Tensor:
        return s.place.clone()

    def state_features(self, s: PointBackState, data: StepData) -> dict[str, Tensor]:
        return {"way": self._way(s, data)}

    def _way(self, s: PointBackState, data: StepData) -> Tensor:
        """(N, 3) from the tool centre point to half the height above the place, m."""
        height = torch.full_like(s.place[:, :1], HEIGHT / 2)
        return torch.cat([s.place, height], dim=1) - data.tcp[:, :3]

    def _pointing(self, s: PointBackState, data: StepData) -> Tensor:
        """(N,) bool: the tool centre point is low over the place."""
        near = torch.linalg.norm(data.tcp[:, :2] - s.place, dim=1) < RADIUS
        return near & (data.tcp[:, 2] < HEIGHT)


mikasa_robo.register_task(
    mikasa_robo.TaskSpec(
        id="PointBack-v0",
        family="PointBack",
        memory="spatial",
        cue=CUE_STEPS,
        delay=DELAY_STEPS,
        response=RESPONSE_STEPS,
        oracle="x and y of the disc's middle",
        oracle_shape=(2,),
        instruction="Remember where the red disc lies, then point at that place.",
        entry_point=f"{__name__}:PointBack",
    )
)
