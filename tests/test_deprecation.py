"""Old names go on working, each with a DeprecationWarning that names the new one."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import build_disc, disc_pose
from mikasa_robo.assets.palette import rgba
from mikasa_robo.core import rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.observations import parse_modes
from mikasa_robo.core.phases import CUE
from mikasa_robo.core.sampling import Uniforms, between
from mikasa_robo.tasks.remember_color import RememberColor

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from mikasa_robo.core.env import Senses


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mikasa_robo.core.env", "Senses", "StepData"),
        ("mikasa_robo.core.visibility", "Stage", "ObjectLayout"),
        ("mikasa_robo.core.symmetry", "folded", "canonical_rotation"),
    ],
)
def test_old_names_of_a_module_give_the_new_thing(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is deprecated; use {module}\.{new}") as caught:
        assert getattr(home, old) is getattr(home, new)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = home.Nothing


def test_pictures_are_images() -> None:
    modes = parse_modes("rgb+joints")
    with pytest.warns(
        DeprecationWarning, match=r"ObservationModes\.pictures is deprecated; use ObservationModes\.images"
    ):
        assert modes.pictures == modes.images == ("rgb",)  # type: ignore[attr-defined]


@dataclass
class PointState:
    """As in the example of earlier versions."""

    place: Tensor  # (N, 2) m


def old_style() -> Any:
    """examples/point_back.py as users copied it before the hooks were renamed, with all five of them."""

    class OldPointBack(MemoryEnv[PointState]):
        draws: ClassVar[int] = 2
        reward_scales: ClassVar[dict[str, float]] = {"reach": 1.0, "still": 0.5}

        def build(self) -> list[Actor]:
            return [build_disc(self.scene, "disc", rgba("red"), 0.05, parked=0)]

        def sample(self, u: Uniforms) -> PointState:
            x, y = between(u.take(1), -0.15, 0.1), between(u.take(1), -0.2, 0.2)
            return PointState(place=torch.cat([x, y], dim=1).to(torch.float32))

        def layout(self, s: PointState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
            return (self.timeline.phase(elapsed) == CUE)[:, None], disc_pose(s.place)[:, None]

        def advance(self, s: PointState, senses: Senses, touching: Tensor) -> None:
            self.advanced = getattr(self, "advanced", 0) + 1

        def judge(self, s: PointState, senses: Senses) -> dict[str, Tensor]:
            pointing = torch.linalg.norm(senses.tcp[:, :2] - s.place, dim=1) < 0.05
            return {"success": pointing & senses.static & senses.responding, "fail": torch.zeros_like(pointing)}

        def perceive(self, s: PointState, senses: Senses) -> tuple[Tensor, Tensor]:
            visible, poses = super().perceive(s, senses)
            return visible, poses.clone()

        def codes(self) -> Tensor:
            return super().codes() * 2

        def velocities(self, s: PointState) -> Tensor | None:
            return super().velocities(s)

        def reward_terms(self, s: PointState, senses: Senses) -> dict[str, Tensor]:
            still = rewards.still(senses.joint_speed)
            away = torch.linalg.norm(senses.tcp[:, :2] - s.place, dim=1)
            return {"reach": rewards.closeness(away), "still": torch.where(senses.responding, 0.2 * still, still)}

        def oracle(self, s: PointState) -> Tensor:
            return s.place.clone()

        def state_features(self, s: PointState, senses: Senses) -> dict[str, Tensor]:
            return {"place": s.place}

    return OldPointBack


def test_a_task_with_the_old_hooks_runs_and_is_told() -> None:
    with pytest.warns(DeprecationWarning, match="rename the method") as caught:
        task = old_style()
    told = {str(warning.message) for warning in caught}
    assert told == {
        f"OldPointBack.{old} is deprecated: rename the method to {new}"
        for old, new in {
            "judge": "outcome",
            "advance": "update_state",
            "perceive": "visible_poses",
            "codes": "object_features",
            "velocities": "initial_velocities",
        }.items()
    }
    assert all(warning.filename == __file__ for warning in caught)
    with pytest.warns(DeprecationWarning, match="codes"):
        env = task(num_envs=2, cue_steps=2, delay_steps=1, response_steps=5, obs_mode="objects", sim_debug=True)
    with pytest.warns(DeprecationWarning, match="perceive"):
        obs, info = env.reset(seed=0)
    assert obs["objects"].shape == (2, 9)
    assert bool((obs["objects"][:, 8] == 2).all()), "its own codes"
    assert bool((obs["objects"][:, 0] == 1).all()), "the disc is on view"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(3):
            obs, reward, terminated, _, info = env.step(torch.zeros(2, 8))
    assert env.advanced == 3
    assert not bool(obs["objects"].any()), "its layout hides the disc"
    assert float(reward.min()) > 0
    assert torch.equal(terminated, info["success"])
    with pytest.warns(DeprecationWarning, match=r"MemoryEnv\.stage is deprecated; use MemoryEnv\.object_layout"):
        stage = env.stage
    assert stage is env.object_layout
    with pytest.warns(DeprecationWarning, match=r"ObjectLayout\.arrange is deprecated"):
        assert stage.arrange == stage.apply
    with pytest.warns(DeprecationWarning, match=r"ObjectLayout\.set_up is deprecated"):
        assert stage.set_up == stage.reset
    env.close()


def test_an_old_hook_over_a_new_one_calls_it_once() -> None:
    """``super().judge`` of a subclass of a task of this package is that task's outcome, not its own."""
    with pytest.warns(DeprecationWarning, match=r"Stricter\.judge"):

        class Stricter(RememberColor):
            def judge(self, s: Any, senses: StepData) -> dict[str, Tensor]:
                found: dict[str, Tensor] = super().judge(s, senses)
                return {**found, "success": found["success"] & (senses.elapsed > 20)}

    with pytest.warns(DeprecationWarning, match=r"ChoiceTask\.judge is deprecated; use ChoiceTask\.outcome"):
        env: Any = Stricter(n=3, num_envs=2, cue_steps=1, delay_steps=0, response_steps=40, sim_debug=True)
    for steps in (3, 20):
        env.reset(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for _ in range(steps):
                env.step(torch.zeros(2, 8))
            env.task_state.counted.scatter_(1, env.task_state.target, True)
            env.set_state_dict(env.get_state_dict())
            assert bool((env.step(torch.zeros(2, 8))[-1]["success"] == (steps == 20)).all())
    env.close()


def test_a_task_with_the_new_hooks_is_told_nothing_and_may_use_the_old_names_for_its_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)

        class New(RememberColor):
            def object_features(self) -> Tensor:
                return torch.eye(3)

            def codes(self) -> str:
                return "its own"

        env: Any = New(n=3, num_envs=1, cue_steps=1, delay_steps=0, response_steps=9)
    assert env.codes() == "its own"
    env.close()
