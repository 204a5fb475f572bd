"""Every internal of ManiSkill and SAPIEN that the batched CPU simulator relies on, in one place.

`check_internals` compares the installed releases with those that this code was written for and names each difference;
``tests/test_sim_internals.py`` fails with its message when a release changes one. Three cached properties are replaced on
ManiSkill's classes, because no subclass can replace them: they read indices that SAPIEN knows only on a GPU.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import sapien
import sapien.physx as physx
import torch
from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController
from mani_skill.agents.controllers.utils.kinematics import Kinematics
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.envs.tasks.tabletop.push_t import WhiteTableSceneBuilder
from mani_skill.envs.utils.system.backend import CPU_SIM_BACKENDS, BackendInfo
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs.actor import Actor
from mani_skill.utils.structs.articulation import Articulation
from mani_skill.utils.structs.articulation_joint import ArticulationJoint
from mani_skill.utils.structs.base import PhysxRigidBodyComponentStruct
from mani_skill.utils.structs.link import Link
from mani_skill.utils.structs.render_camera import RenderCamera

RELIES_ON: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    # name: (owner, attribute, words that its source must contain; empty if only its presence matters)
    "the backend is assigned to self.backend, then checked": (
        BaseEnv,
        "__init__",
        (
            "self.backend = parse_sim_and_render_backend(",
            "self.backend.sim_backend in CPU_SIM_BACKENDS and num_envs > 1",
        ),
    ),
    "the scene is made in _setup_scene": (BaseEnv, "_setup_scene", ("ManiSkillScene(", "physx.PhysxCpuSystem()")),
    "scene settings are made in _set_scene_config": (BaseEnv, "_set_scene_config", ("physx.set_scene_config(",)),
    "hooks around the substeps": (
        BaseEnv,
        "_step_action",
        (
            "self._before_control_step()",
            "self._before_simulation_step()",
            "self.scene.step()",
            "self._after_control_step()",
            "self.scene._gpu_fetch_all()",
        ),
    ),
    "a reset applies, updates kinematics and fetches": (
        BaseEnv,
        "reset",
        (
            "self.scene._gpu_apply_all()",
            "self.scene.px.gpu_update_articulation_kinematics()",
            "self._clear_sim_state()",
        ),
    ),
    "controllers reset every env": (BaseEnv, "reset", ("self.agent.controller.reset()",)),
    "the robot is loaded in _load_agent": (BaseEnv, "_load_agent", ("self.agent",)),
    "the scene's system is self.px": (ManiSkillScene, "__init__", ("self.px", "self.gpu_sim_enabled")),
    "the scene initialises the system in _setup": (ManiSkillScene, "_setup", ("self.px.gpu_init()",)),
    "the scene applies every buffer": (ManiSkillScene, "_gpu_apply_all", ("gpu_apply_rigid_dynamic_data",)),
    "the scene fetches every buffer": (ManiSkillScene, "_gpu_fetch_all", ("gpu_fetch_rigid_dynamic_data",)),
    "cameras are set up in _gpu_setup_sensors": (ManiSkillScene, "_gpu_setup_sensors", ()),
    "cameras read their group": (RenderCamera, "get_picture", ("self.camera_group.get_picture_cuda(name).torch()",)),
    "cameras draw through their group": (RenderCamera, "take_picture", ("self.camera_group.take_picture()",)),
    "the builder can repeat planes": (ActorBuilder, "set_allow_overlapping_plane_collisions", ()),
    "rigid bodies look their row up in _body_data_index": (
        PhysxRigidBodyComponentStruct,
        "_body_data_index",
        ("body.gpu_pose_index", "_body_data_index_internal"),
    ),
    "articulations look their row up in _data_index": (Articulation, "_data_index", ("px_articulation.gpu_index",)),
    "joints look their row up in _data_index": (ArticulationJoint, "_data_index", ("px_articulation.gpu_index",)),
    "actors ask isinstance(scene.px, PhysxGpuSystem)": (
        Actor,
        "create_from_entities",
        ("isinstance(scene.px, physx.PhysxGpuSystem)",),
    ),
    "links ask isinstance(scene.px, PhysxGpuSystem)": (
        Link,
        "create",
        ("isinstance(scene.px, physx.PhysxGpuSystem)",),
    ),
    "end-effector control asks its kinematics for joint targets": (
        PDEEPosController,
        "set_action",
        ("self.kinematics.compute_ik(", "current_pose=self.ee_pose_at_base", "not self.scene.gpu_sim_enabled"),
    ),
    "CPU kinematics solve one pose": (
        Kinematics,
        "compute_ik",
        ("self.pmodel.compute_inverse_kinematics(", "pose.sp", "self.pmodel_controlled_joint_indices"),
    ),
    "PushT-v1 only paints the table that its base class builds": (
        WhiteTableSceneBuilder,
        "build",
        ("super().build()", "cheap way to un-texture table"),
    ),
}

SAPIEN_NEEDS: dict[Any, tuple[str, ...]] = {
    physx.PhysxCpuSystem: ("step", "get_contacts", "pack", "rigid_dynamic_components", "articulation_link_components"),
    sapien.Scene: ("pack_poses",),
    physx.PhysxArticulation: ("qpos", "qvel", "qf", "qacc", "root_linear_velocity", "link_incoming_joint_forces"),
}


def _source(owner: Any, attribute: str) -> str | None:
    found = inspect.getattr_static(owner, attribute, None)
    if found is None:
        return None
    original = getattr(found, "mikasa_original", found)
    if isinstance(original, functools.cached_property):
        original = original.func
    elif isinstance(original, classmethod | staticmethod):
        original = original.__func__
    elif isinstance(original, property):
        original = original.fget
    try:
        return inspect.getsource(original)
    except (OSError, TypeError):
        return None


def check_internals() -> list[str]:
    """How the installed ManiSkill and SAPIEN differ from what the simulator relies on; empty if they do not."""
    problems = []
    for what, (owner, attribute, words) in RELIES_ON.items():
        source = _source(owner, attribute)
        where = f"{owner.__module__}.{owner.__qualname__}.{attribute}"
        if source is None:
            problems.append(f"{where} is gone ({what})")
            continue
        problems += [f"{where} no longer says {word!r} ({what})" for word in words if word not in source]
    for owner, names in SAPIEN_NEEDS.items():
        problems += [f"sapien's {owner.__name__}.{name} is gone" for name in names if not hasattr(owner, name)]
    if "physx_cpu" not in CPU_SIM_BACKENDS:
        problems.append("ManiSkill no longer lists physx_cpu in CPU_SIM_BACKENDS")
    if not {"device", "sim_device", "sim_backend", "render_device", "render_backend"} <= set(
        BackendInfo.__dataclass_fields__
    ):
        problems.append("ManiSkill's BackendInfo has other fields")
    return problems


class _RowIndex(functools.cached_property[Any]):
    """A cached property that asks the batched CPU system if the scene has one, and ManiSkill otherwise."""

    def __init__(self, original: functools.cached_property[Any], lookup: Callable[[Any], list[int]]) -> None:
        super().__init__(original.func)
        self.mikasa_original = original
        self._lookup = lookup

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        name = self.attrname
        assert name is not None
        if name not in instance.__dict__ and getattr(instance.scene, "is_batched_cpu", False):
            dtype = torch.int64 if name == "_body_data_index" else torch.int32
            instance.__dict__[name] = torch.tensor(self._lookup(instance), device=instance.device, dtype=dtype)
        return super().__get__(instance, owner)


def install_row_lookup() -> None:
    """Lets ManiSkill's structs find their rows in a batched CPU system. Idempotent. Other scenes are not affected."""
    for owner, name, lookup in (
        (
            PhysxRigidBodyComponentStruct,
            "_body_data_index",
            lambda struct: [struct.scene.px.row_of(body) for body in struct._bodies],
        ),
        (Articulation, "_data_index", lambda struct: [struct.scene.px.row_of(a) for a in struct._objs]),
        (
            ArticulationJoint,
            "_data_index",
            lambda struct: [struct.scene.px.row_of(a) for a in struct._physx_articulations],
        ),
    ):
        original = inspect.getattr_static(owner, name)
        if isinstance(original, _RowIndex):
            continue
        replacement = _RowIndex(original, lookup)
        replacement.__set_name__(owner, name)
        setattr(owner, name, replacement)
