"""Checks of the arguments that every robot task has, where ManiSkill would accept anything or fail half-way."""

from __future__ import annotations

import copy
import difflib
import inspect
import os
from collections.abc import Mapping
from typing import Any

import dacite
import sapien
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.render import PREBUILT_SHADER_CONFIGS
from mani_skill.utils import common
from mani_skill.utils.structs.types import SimConfig

from mikasa_robo.checks import boolean, number, one_of, positive_int, whole_number

from .draw_pool import default_processes
from .render import drawing_device, refuse_fork, require_rendering

__all__ = [
    "MOST_ENVS",
    "check_arguments",
    "check_cameras",
    "check_num_envs",
    "checked_render_workers",
    "choose_render_backend",
    "refuse_unknown_arguments",
]

MOST_ENVS = 65_536
"""Largest ``num_envs``."""
BYTES_PER_ENV = 300 * 1024
"""What an environment takes at least in the batched CPU simulation."""
MOST_THREADS = 1024
MOST_FREQUENCY = 100_000  # Hz
MOST_PIXELS = 8192
CAMERA_ARGUMENTS = ("sensor_configs", "human_render_camera_configs", "viewer_camera_configs")
OPTIONAL = ("sim_config", *CAMERA_ARGUMENTS)
"""Arguments that ManiSkill wants left out instead of None."""
OF_MAKE_VEC = ("num_workers", "autoreset_mode", "vectorization_mode", "to")
"""Arguments of ``gymnasium.make_vec`` that a task does not have."""
_RENDER_BACKENDS = ("none", "cpu", "gpu", "cuda", "sapien_cpu", "sapien_cuda", "pci")


def check_num_envs(num_envs: Any, batched_cpu: bool) -> int:
    """``num_envs`` as an int. Raises ValueError where it is more than `MOST_ENVS`, or than fit into memory on CPU."""
    num_envs = whole_number("num_envs", num_envs, 1, MOST_ENVS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if batched_cpu and num_envs * BYTES_PER_ENV > memory:
        raise ValueError(
            f"num_envs={num_envs} needs more memory than this machine has: use at most {memory // BYTES_PER_ENV}"
        )
    return num_envs


def refuse_unknown_arguments(task: BaseEnv, given: Mapping[str, Any]) -> None:
    """Raise TypeError where no class of ``task`` has an argument of one of these names. The task need not be initialised."""
    names: dict[str, None] = {}  # in the order of the classes, the task's own first
    for one in type(task).__mro__:
        if "__init__" in vars(one) and one is not object:
            parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
            names |= dict.fromkeys(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if one is BaseEnv:
            break
    names.pop("self", None)
    for name, value in given.items():
        if name in names:
            continue
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
        if name in OF_MAKE_VEC:
            advice = "it is an argument of gymnasium.make_vec"
        elif close:
            advice = f"use {close[0]}"
        else:
            advice = f"its arguments are {', '.join(names)}"
        # It begins in Python's own words, which other libraries look for.
        raise TypeError(
            f"{type(task).__name__}.__init__() got an unexpected keyword argument {name!r}, as {name}={value!r}: {advice}"
        )


def check_arguments(task: BaseEnv, arguments: Mapping[str, Any]) -> None:
    """Check arguments of ``task``, those that are given. The task need not be initialised.

    Raises:
        ValueError: a value cannot be used; the message names the argument, its value and what is allowed.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in ("enable_shadow", "enhanced_determinism", "parallel_in_single_scene", "sim_debug"):
        if name in given:
            boolean(name, given[name])
    if "sim_threads" in given:
        whole_number("sim_threads", given["sim_threads"], 1, MOST_THREADS)
    if "reconfiguration_freq" in given:
        whole_number("reconfiguration_freq", given["reconfiguration_freq"])
    if "reward_mode" in given:
        one_of("reward_mode", given["reward_mode"], task.SUPPORTED_REWARD_MODES)
    if "render_mode" in given:
        one_of("render_mode", given["render_mode"], task.metadata["render_modes"])
    if "shader_dir" in given:
        one_of("shader_dir", given["shader_dir"], PREBUILT_SHADER_CONFIGS)
    for name in ("control_mode", "sim_backend", "render_backend"):
        if name in given and not isinstance(given[name], str):
            raise ValueError(f"{name}={given[name]!r} must be a string")
    if given.get("control_mode") == "*":
        raise ValueError("control_mode='*' is not possible here: name one control mode")
    backend = given.get("render_backend", "none")
    if backend != "auto" and backend.split(":")[0] not in _RENDER_BACKENDS:
        raise ValueError(f"render_backend={backend!r} is not known: use 'auto', 'none', 'cpu' or 'gpu'")
    if ":" in backend:
        try:
            sapien.Device(backend.removeprefix("sapien_").replace("gpu:", "cuda:"))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"render_backend={backend!r} names no device of this machine: use 'auto'") from error
    for name in CAMERA_ARGUMENTS:
        if name in given:
            _check_camera(name, given[name])
    if "sim_config" in given:
        _check_sim_config(task, given["sim_config"])


def _check_camera(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name}={value!r} must be a dict of camera settings, such as {{'width': 256}}")
    for key, setting in value.items():
        if isinstance(setting, Mapping):  # of one camera
            _check_camera(f"{name}[{key!r}]", setting)
        elif key in ("width", "height"):
            whole_number(f"{name}[{key!r}]", setting, 1, MOST_PIXELS, "pixels")
        elif key in ("fov", "near", "far"):
            number(f"{name}[{key!r}]", setting, 1e-6, 1e6)
        elif key == "shader_pack":
            one_of(f"{name}[{key!r}]", setting, PREBUILT_SHADER_CONFIGS)


def check_cameras(error: Exception, configs: Mapping[str, Any]) -> None:
    """Raise ValueError where ``error``, with which ManiSkill refused to make cameras, is about one of ``configs``."""
    given = {name: value for name, value in configs.items() if value}
    if given:
        described = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{described} cannot be used: {error}; see ManiSkill's CameraConfig") from error


def _check_sim_config(task: BaseEnv, value: Any) -> None:
    if not isinstance(value, Mapping | SimConfig):
        raise ValueError(
            f"sim_config={value!r} must be a dict or a SimConfig of ManiSkill, such as {{'sim_freq': 100}}"
        )
    try:
        merged = task._default_sim_config.dict()
        common.dict_merge(merged, copy.deepcopy(value.dict() if isinstance(value, SimConfig) else dict(value)))
        config = dacite.from_dict(SimConfig, merged, dacite.Config(strict=True))
    except (AttributeError, TypeError, ValueError, dacite.DaciteError) as error:
        raise ValueError(f"sim_config={value!r} cannot be used: {error}; see ManiSkill's SimConfig") from error
    frequency = positive_int("sim_config['control_freq']", config.control_freq)
    whole_number("sim_config['sim_freq']", config.sim_freq, frequency, MOST_FREQUENCY, "Hz")
    if config.sim_freq % frequency:
        raise ValueError(f"sim_config: sim_freq={config.sim_freq} must be a multiple of control_freq={frequency}")
    for name, size in config.gpu_memory_config.dict().items():
        whole_number(f"sim_config['gpu_memory_config'][{name!r}]", size, 0, 2**32 - 1)
    for name, friction in config.default_materials_config.dict().items():
        number(f"sim_config['default_materials_config'][{name!r}]", friction, 0, 1e6)
    number("sim_config['spacing']", config.spacing, 0, 1e6, "m")
    scene = config.scene_config
    gravity = scene.gravity
    try:
        three = [number("gravity", x, -1e6, 1e6) for x in gravity]
    except (TypeError, ValueError):
        three = []
    if len(three) != 3:
        raise ValueError(f"sim_config: gravity={gravity!r} must be three numbers, m/s²")
    for name in ("bounce_threshold", "sleep_threshold", "contact_offset"):
        number(f"sim_config['scene_config'][{name!r}]", getattr(scene, name), 0, 1e6)
    number("sim_config['scene_config']['rest_offset']", scene.rest_offset, -1e6, scene.contact_offset)
    whole_number("sim_config['scene_config']['solver_position_iterations']", scene.solver_position_iterations, 1, 255)
    whole_number("sim_config['scene_config']['solver_velocity_iterations']", scene.solver_velocity_iterations, 0, 255)
    whole_number("sim_config['scene_config']['cpu_workers']", scene.cpu_workers, 0, MOST_THREADS)


def choose_render_backend(
    asked: str | None, obs_mode: str | None, render_mode: str | None, wanted: bool, gpu_physics: bool = False
) -> str:
    """ManiSkill's name of the render backend.

    Args:
        asked: the argument ``render_backend``; "auto" draws only where pictures are wanted, on a GPU that can.
        obs_mode, render_mode: the arguments, for the messages.
        wanted: whether one of them needs pictures.
        gpu_physics: whether a GPU simulates; then "auto" draws nowhere else.

    Raises:
        RenderingUnavailableError: SAPIEN cannot draw here.
        RuntimeError: this process is a fork of one that draws already.
        ValueError: ``asked`` turns off what is wanted.
    """
    if asked == "auto":
        if not wanted:
            return "none"
        asked = "gpu" if gpu_physics or drawing_device() == "cuda" else "cpu"
    if wanted:
        what = f"render_mode={render_mode!r}" if render_mode is not None else f"obs_mode={obs_mode!r}"
        if asked in (None, "none"):
            raise ValueError(f"{what} needs pictures: render_backend={asked!r} turns them off; use 'auto'")
        device, _, number = asked.removeprefix("sapien_").replace("gpu", "cuda").partition(":")
        if device != "pci":
            require_rendering(what, f"{device}:{number}" if number else device)
        refuse_fork(what)
    return "none" if asked is None else asked


def checked_render_workers(asked: int | None, num_envs: int, threads: int, cpu_draws: bool) -> int:
    """How many processes draw; 0: this one. Raises ValueError for a number that cannot be used."""
    if asked is None:
        return default_processes(num_envs, threads) if cpu_draws else 0
    if asked == 0:
        return 0
    asked = positive_int("render_workers", asked)
    if asked > num_envs:
        raise ValueError(
            f"render_workers={asked} is more than num_envs={num_envs}: each draws at least one environment; "
            f"use render_workers={num_envs} or less"
        )
    if not cpu_draws:
        raise ValueError(
            f"render_workers={asked} is for images in observations that the CPU draws in batched CPU simulation: use "
            "obs_mode='rgb', sim_backend='physx_cpu', render_backend='cpu' and num_envs > 1, or leave it out"
        )
    return asked
