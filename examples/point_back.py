"""PointBack-v0, an example task: point at the place where a disc lay. docs/adding-a-task.md explains this file."""

from __future__ import annotations

from collections.abc import Mapping
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
from mikasa_robo.core.phases import CUE, RESPONSE
from mikasa_robo.core.sampling import Uniforms, between
from mikasa_robo.experts.arm import facing_down
from mikasa_robo.experts.skill import WAITING, History, Skill, View

PLACE_X, PLACE_Y = (-0.15, 0.1), (-0.2, 0.2)  # m
RADIUS = 0.05  # m, of the disc, and the tolerance in x and y
HEIGHT = 0.1  # m above the table: a hand below it points


@dataclass
class PointBackState:
    """One row per environment."""

    place: Tensor  # (N, 2) m, x and y of the disc's centre


class PointBack(MemoryEnv[PointBackState]):
    """Point at the place where the disc lay.

    Task: t < 5: a red disc lies on the table. From t = 5 the table is empty. From t = 10 the robot has to move the tool
    centre point over the place where the disc was.
    Randomisations: the disc's centre, x ∈ [-0.15, 0.1] m, y ∈ [-0.2, 0.2] m, uniform; the arm's start.
    Success: the tool centre point is within 0.05 m of the disc's centre in x and y and below 0.1 m, and the robot is
    static (arm joints below 0.2 rad/s). There is no failure.
    Oracle: (N, 2) float32, x and y of the disc's centre, m.

    Args:
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`; ``on_mistake`` has no effect.
    """

    draws: ClassVar[int] = 2
    reward_scales: ClassVar[dict[str, float]] = {"reach": 1.0, "still": 0.5}

    def build(self) -> list[Actor]:
        return [build_disc(self.scene, "disc", rgba("red"), RADIUS, parked=0)]

    def sample(self, u: Uniforms) -> PointBackState:
        x, y = between(u.take(1), *PLACE_X), between(u.take(1), *PLACE_Y)
        return PointBackState(place=torch.cat([x, y], dim=1).to(torch.float32))

    def layout(self, s: PointBackState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        visible = self.timeline.phase(elapsed) == CUE
        return visible[:, None], disc_pose(s.place)[:, None]

    def update_state(self, s: PointBackState, data: StepData, touching: Tensor) -> None:
        """The state does not change during an episode."""

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
            "still": rewards.still_when(self._pointing(s, data), data.joint_speed, data.responding),
        }

    def oracle(self, s: PointBackState) -> Tensor:
        return s.place.clone()

    def state_features(self, s: PointBackState, data: StepData) -> dict[str, Tensor]:
        return {"way": self._way(s, data)}

    def _way(self, s: PointBackState, data: StepData) -> Tensor:
        """(N, 3) vector from the tool centre point to the place, at half the height, m."""
        height = torch.full_like(s.place[:, :1], HEIGHT / 2)
        return torch.cat([s.place, height], dim=1) - data.tcp[:, :3]

    def _pointing(self, s: PointBackState, data: StepData) -> Tensor:
        """(N,) bool: the tool centre point is low over the place."""
        near = torch.linalg.norm(data.tcp[:, :2] - s.place, dim=1) < RADIUS
        return near & (data.tcp[:, 2] < HEIGHT)


class PointBackSkill(Skill):
    """Cue: x and y (N, 2) of the disc's centre, m."""

    size = 2
    draws = 2

    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        place: Tensor = info["oracle_info"]
        return place

    def from_history(self, history: History, u: Tensor) -> Tensor:
        seen = history.visible[..., 0]  # (W, N)
        row = torch.arange(self.num_envs, device=self.device)
        place = history.position[seen.to(torch.int8).argmax(dim=0), row, 0, :2]
        guess = torch.stack([between(u[:, 0], *PLACE_X), between(u[:, 1], *PLACE_Y)], dim=1)
        return torch.where(seen.any(dim=0)[:, None], place, guess)

    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        target = torch.cat([cue, torch.full_like(cue[:, :1], HEIGHT / 2)], dim=1)
        down, closed = facing_down(torch.zeros_like(target[:, 0])), -torch.ones_like(target[:, 0])
        point = self.arm.act(view.joints, target, down, closed, wrist=self.wrist)
        return torch.where((info["phase"] == RESPONSE)[:, None], point, self.wait(view, WAITING))


mikasa_robo.register_task(
    mikasa_robo.TaskSpec(
        id="PointBack-v0",
        family="PointBack",
        memory="spatial",
        cue=5,
        delay=5,
        response=50,
        oracle="x and y of the disc's centre",
        oracle_shape=(2,),
        instruction="Remember where the red disc lies, then point at that place.",
        entry_point=f"{__name__}:PointBack",
        skill=f"{__name__}:PointBackSkill",
    )
)
