"""What the simulator relies on in ManiSkill and SAPIEN is still there; a release that changes it is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import mani_skill
import pytest
import sapien
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.structs.articulation import Articulation
from mani_skill.utils.structs.articulation_joint import ArticulationJoint
from mani_skill.utils.structs.base import PhysxRigidBodyComponentStruct
from sim_helpers import pick_cube

from mikasa_robo.sim import internals, stepping
from mikasa_robo.sim.internals import check_internals, install_row_lookup

ROW_LOOKUPS = (
    (PhysxRigidBodyComponentStruct, "_body_data_index"),
    (Articulation, "_data_index"),
    (ArticulationJoint, "_data_index"),
)


def test_the_installed_releases_are_what_the_simulator_was_written_against() -> None:
    problems = check_internals()
    assert problems == [], (
        f"mani_skill {getattr(mani_skill, '__version__', '?')} or sapien {sapien.__version__} changed what "
        "mikasa_robo/sim relies on; look at each place, adapt the simulator, then sim/internals.py:\n"
        + "\n".join(problems)
    )


def test_sapien_steps_without_the_global_lock() -> None:
    assert stepping.native_step() is not None, f"threads gain nothing: {stepping._native_error}"


def test_a_method_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(BaseEnv, "_setup_scene")
    problems = check_internals()
    assert any("BaseEnv._setup_scene is gone" in problem for problem in problems), problems


def test_a_method_that_says_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def _before_anything(self: object) -> None:
        """Another body."""

    monkeypatch.setattr(BaseEnv, "_step_action", _before_anything)
    problems = check_internals()
    assert any("BaseEnv._step_action no longer says" in problem for problem in problems), problems


def test_a_sapien_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internals.SAPIEN_NEEDS, sapien.Scene, ("pack_poses", "pack_posies"))
    assert check_internals() == ["sapien's Scene.pack_posies is gone"]


def test_the_list_of_cpu_backends_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "CPU_SIM_BACKENDS", [])
    assert len(check_internals()) == 1


def test_installing_the_row_lookup_again_changes_nothing() -> None:
    install_row_lookup()
    first = [inspect.getattr_static(owner, name) for owner, name in ROW_LOOKUPS]
    install_row_lookup()
    assert [inspect.getattr_static(owner, name) for owner, name in ROW_LOOKUPS] == first
    assert not any(hasattr(lookup.mikasa_original, "mikasa_original") for lookup in first), "wrapped twice"
    assert check_internals() == [], "the check should look through the replacement"


def outcome(ask: Callable[[], Any]) -> Any:
    """What a call gives, comparable; for a rigid body on CPU that is SAPIEN's error."""
    try:
        result = ask()
    except RuntimeError as error:
        return str(error)
    return (result.dtype, result.tolist()) if isinstance(result, torch.Tensor) else result


def test_single_envs_keep_maniskills_own_lookup() -> None:
    """With the lookup installed, a single env's indices are what ManiSkill's own code computes."""
    install_row_lookup()
    single = pick_cube(num_envs=1)
    things = (single.cube, single.agent.robot, single.agent.robot.active_joints[0])
    for thing, (owner, name) in zip(things, ROW_LOOKUPS, strict=True):
        own = outcome(lambda: inspect.getattr_static(owner, name).mikasa_original.func(thing))  # noqa: B023
        now = outcome(lambda: getattr(thing, name))  # noqa: B023
        assert now == own, f"{type(thing).__name__}.{name}"
    single.close()


def test_rows_are_scene_by_scene_bodies_then_links() -> None:
    """The layout that the module documents, and every struct finds its own rows."""
    env = pick_cube()
    px = env.scene.px
    bodies = len(px.rigid_dynamic_components)
    assert [px.row_of(body) for body in px.rigid_dynamic_components] == list(range(bodies))
    links = [px.row_of(link) for link in px.articulation_link_components]
    assert sorted(links) == list(range(bodies, bodies + len(links)))
    assert env.cube._body_data_index.tolist() == [px.row_of(body) for body in env.cube._bodies]
    assert env.agent.robot._data_index.tolist() == [0, 1, 2, 3]
    assert env.cube._body_data_index.dtype == torch.int64
    env.close()
