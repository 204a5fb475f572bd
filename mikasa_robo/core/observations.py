"""Observation modes: names that can be joined with "+", and how each part of an observation is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from mani_skill.agents.base_agent import BaseAgent
from mani_skill.utils import common
from torch import Tensor

from mikasa_robo.checks import one_of
from mikasa_robo.deprecation import renamed_attributes

from .phases import PHASES
from .step_data import StepData

VISUAL = ("rgb", "depth", "segmentation")
MODES = ("state", "objects", "joints", "time", "oracle", "prompt", *VISUAL)
"""What an observation can be made of, in the order in which it is returned."""
MANISKILL_MODES = ("none", "state_dict", "sensor_data", "pointcloud")
"""ManiSkill's own modes. They cannot be joined, and ManiSkill builds the observation."""
RESOLUTION = 1e-4
"""Poses in ``objects`` observations are multiples of this, m and parts of a quaternion."""
SEGMENTATION_CHANNELS = {"segmentation": slice(None), "Segmentation": slice(1, 2), "PositionSegmentation": slice(3, 4)}
"""The channels of a camera's textures, as ManiSkill names them, that hold the numbers of actors."""
LAYOUTS = ("flat", "maniskill")
"""How the parts of an observation are arranged."""


@renamed_attributes({"pictures": "images"})
@dataclass(frozen=True)
class ObservationModes:
    """The parts of an observation that ``obs_mode`` asks for.

    Args:
        parts: some of `MODES`, in their order; empty for one of ManiSkill's own modes.
        maniskill: the mode that ManiSkill runs in.
        layout: one of `LAYOUTS`.
    """

    parts: tuple[str, ...]
    maniskill: str
    layout: str = "flat"

    @property
    def joined(self) -> bool:
        """Whether an observation is a dict of the parts; "state" alone and ManiSkill's own modes are not."""
        return self.parts not in ((), ("state",))

    @property
    def flat_dict(self) -> bool:
        """Whether an observation is a flat dict of tensors."""
        return self.joined and self.layout == "flat"

    @property
    def images(self) -> tuple[str, ...]:
        """The parts that are images."""
        return tuple(part for part in self.parts if part in VISUAL)

    @property
    def needs_renderer(self) -> bool:
        """Whether something has to be rendered."""
        return bool(self.images) or self.maniskill in ("sensor_data", "pointcloud")


def parse_modes(obs_mode: str | None, layout: str = "flat") -> ObservationModes:
    """Splits ``obs_mode``, such as "rgb+joints"; None is "state".

    Args:
        obs_mode: as in ``gymnasium.make``.
        layout: ``obs_layout`` of ``gymnasium.make``, one of `LAYOUTS`.

    Raises:
        ValueError: a name is not known; the message lists those that are. Or the layout is ManiSkill's, and the modes do
            not include the robot's joints, which ManiSkill always observes.
    """
    one_of("obs_layout", layout, LAYOUTS)
    if obs_mode is None:
        obs_mode = "state"
    if obs_mode in MANISKILL_MODES:
        return ObservationModes((), obs_mode, layout)
    asked = [name.strip() for name in obs_mode.split("+")] if isinstance(obs_mode, str) else [repr(obs_mode)]
    unknown = [name for name in asked if name not in MODES]
    if unknown:
        raise ValueError(
            f"obs_mode={obs_mode!r}: {', '.join(map(repr, unknown))} is not known; join any of {', '.join(MODES)} with "
            f"'+', or use one of ManiSkill's own: {', '.join(MANISKILL_MODES)}"
        )
    if "objects" in asked:
        asked.append("joints")
    parts = tuple(name for name in MODES if name in asked)
    if layout == "maniskill" and not {"state", "joints"} & set(parts):
        raise ValueError(
            f"obs_mode={obs_mode!r} with obs_layout='maniskill': this layout always has the robot's joints; use "
            f"obs_mode='{obs_mode}+joints'"
        )
    visual = [name for name in parts if name in VISUAL]
    return ObservationModes(parts, "state" if parts == ("state",) else "+".join(visual) or "state_dict", layout)


class ObservedTask(Protocol):
    """The part of `MemoryEnv` that observations are made from; see `TaskHooks` for the hooks."""

    agent: BaseAgent
    device: torch.device
    _object_features: Tensor

    @property
    def elapsed_steps(self) -> Tensor:
        """(N,) control steps since the reset."""

    def _read_sim(self, elapsed: Tensor, /) -> StepData: ...

    @property
    def horizon(self) -> int:
        """Length of an episode in control steps."""

    @property
    def task_state(self) -> Any:
        """The task's state of the N running episodes."""

    def layout(self, s: Any, elapsed: Tensor, /) -> tuple[Tensor, Tensor]:
        """A hook."""

    def visible_poses(self, s: Any, data: StepData, /) -> tuple[Tensor, Tensor]:
        """A hook."""

    def state_features(self, s: Any, data: StepData, /) -> dict[str, Tensor]:
        """A hook."""

    def _get_obs_agent(self) -> dict[str, Any]: ...

    def _get_obs_sensor_data(self) -> dict[str, dict[str, Tensor]]: ...

    def get_sensor_params(self) -> dict[str, dict[str, Tensor]]:
        """ManiSkill's parameters of each camera."""


def always_observed(info: Mapping[str, Any], data: StepData) -> dict[str, Tensor]:
    """What ManiSkill's ``extra`` holds in every mode: the TCP pose (N, 7) and the prompt, if the task has one."""
    return {"tcp_pose": data.tcp, **({"prompt": info["prompt"].clone()} if "prompt" in info else {})}


def episode_time(elapsed: Tensor, horizon: int) -> Tensor:
    """The clock: t / T, (N, 1) float32, of ``elapsed`` (N,) control steps in an episode of ``horizon`` steps."""
    return (elapsed / horizon).to(torch.float32)[:, None]


def state_extra(task: ObservedTask, info: Mapping[str, Any], data: StepData) -> dict[str, Tensor]:
    """What the ``state`` observation holds beside the robot's joints, in its order.

    Returns:
        float32 (N, …) each: what is always observed, the phase (one-hot), t / T, the visible flags, the poses of visible
        objects, then the task's own features.
    """
    visible, _ = task.layout(task.task_state, data.elapsed)
    extra = always_observed(info, data)
    extra["phase"] = torch.nn.functional.one_hot(info["phase"], len(PHASES)).to(torch.float32)
    extra["time"] = episode_time(data.elapsed, task.horizon)
    extra["visible"] = visible.to(torch.float32)
    extra["object_poses"] = (data.objects[..., :7] * visible[..., None]).flatten(1)
    for name, value in task.state_features(task.task_state, data).items():
        value = value.to(torch.float32, copy=True)  # the task's state changes in place
        extra[name] = value.flatten(1) if value.ndim > 1 else value[:, None]
    return extra


def rounded_pose(poses: Tensor) -> Tensor:
    """Poses as ``objects`` observations report them.

    Positions and the four parts of the quaternion are rounded to multiples of `RESOLUTION`; the quaternion is not made
    unit again. So a rotation is reported to about 2e-4 rad, and its norm is within 2e-4 of 1. Of q and -q, the same
    rotation, that with a positive first part other than zero is reported: the sign would tell how often an object has
    turned.

    Args:
        poses: (N, K, 7) position (m) and quaternion wxyz.

    Returns:
        (N, K, 7) float32.
    """
    # in float64, so that each result is the float32 nearest to the decimal number, whatever the device divides like
    steps = (poses.to(torch.float64) / RESOLUTION).round()
    w, x, y, z = (part.sign() for part in steps[..., 3:].unbind(-1))
    sign = torch.where(w != 0, w, torch.where(x != 0, x, torch.where(y != 0, y, z)))
    steps = torch.cat([steps[..., :3], steps[..., 3:] * sign[..., None]], dim=-1)
    return (steps * RESOLUTION + 0.0).to(torch.float32)  # + 0.0: no negative zeros


def object_view(visible: Tensor, poses: Tensor, features: Tensor) -> Tensor:
    """What a perfect perception system would report about K objects at this instant.

    Args:
        visible: (N, K) bool.
        poses: (N, K, 7) position (m) and quaternion wxyz.
        features: (K, C) what each object is, see `TaskHooks.object_features`.

    Returns:
        (N, K * (8 + C)) float32: for each object a visible flag, its `rounded_pose`, its features; zeros where it is not
        visible.
    """
    flag = visible[..., None].to(torch.float32)
    told = torch.cat([flag, rounded_pose(poses), features.expand(len(poses), -1, -1)], dim=-1)
    return torch.where(visible[..., None], told, torch.zeros_like(told)).flatten(1)


def observation(task: ObservedTask, modes: ObservationModes, info: Mapping[str, Any], data: StepData) -> dict[str, Any]:
    """The observation now, in the layout of ``modes``; only the parts that were asked for are computed.

    Args:
        task: the environment.
        modes: the parts. The prompt is always one of them if the task has one.
        info: what ``evaluate`` returned.
        data: the simulation at this moment.

    Raises:
        ValueError: there would be nothing to observe, or images of different sizes would have to be joined.
    """
    vectors = _vectors(task, modes, info, data)
    if modes.layout == "maniskill":
        return nested_observation(task, modes, vectors, data)
    if modes.images:
        cameras = task._get_obs_sensor_data()
        sizes = {name: tuple(textures[modes.images[0]].shape[1:3]) for name, textures in cameras.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {height} x {width}" for name, (height, width) in sizes.items())
            raise ValueError(
                f"the cameras have different sizes ({told}), and a flat observation joins their images: give all cameras "
                "one size, or use obs_layout='maniskill'"
            )
        vectors |= {name: torch.cat([textures[name] for textures in cameras.values()], dim=-1) for name in modes.images}
    if not vectors:
        raise ValueError("obs_mode='prompt': this task has no prompt, so there would be nothing to observe")
    return vectors


def observe(task: ObservedTask, obs_mode: str, info: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the task would show now in another mode than its own, as a flat dict. Writes nothing.

    Args:
        task: the environment.
        obs_mode: any of `MODES` but images, joined with "+".
        info: what ``evaluate`` returned at this step.

    Raises:
        ValueError: a name is not known, or stands for images.
    """
    modes = parse_modes(obs_mode)
    if modes.needs_renderer:
        raise ValueError(f"obs_mode={obs_mode!r} has images, which only the mode of the environment itself renders")
    return _vectors(task, modes, info, task._read_sim(task.elapsed_steps))


def _vectors(task: ObservedTask, modes: ObservationModes, info: Mapping[str, Any], data: StepData) -> dict[str, Tensor]:
    """The parts that are not images, (N, …) float32 each."""
    obs: dict[str, Tensor] = {}
    if "state" in modes.parts:
        nested = {"agent": task._get_obs_agent(), "extra": state_extra(task, info, data)}
        obs["state"] = common.flatten_state_dict(nested, use_torch=True, device=task.device)
    if "objects" in modes.parts:
        visible, poses = task.visible_poses(task.task_state, data)
        obs["objects"] = object_view(visible, poses, task._object_features)
    if "joints" in modes.parts:
        robot = task.agent.robot
        obs["joints"] = torch.cat([robot.get_qpos(), robot.get_qvel(), data.tcp], dim=1)
    if "time" in modes.parts:
        obs["time"] = episode_time(data.elapsed, task.horizon)
    if "oracle" in modes.parts:
        obs["oracle"] = info["oracle_info"].to(torch.float32, copy=True)
    if "prompt" in info:
        obs["prompt"] = info["prompt"].clone()
    return obs


def nested_observation(
    task: ObservedTask, modes: ObservationModes, vectors: dict[str, Tensor], data: StepData
) -> dict[str, Any]:
    """The observation now with ManiSkill's keys, for wrappers such as its ``FlattenRGBDObservationWrapper``.

    It holds the same as the flat observation, and beside images the parameters of their cameras. A hidden object does not
    show in it.

    Args:
        task: the environment.
        modes: the parts, among them "joints" or "state".
        vectors: the parts that are not images.
        data: the simulation at this moment.

    Returns:
        ``agent`` with ``qpos`` (N, 9) and ``qvel`` (N, 9), and ``extra`` with ``tcp_pose`` (N, 7), for "joints". ``state``
        (N, D) for "state". ``extra`` also has ``objects``, ``time``, ``oracle`` and ``prompt``, where the flat observation
        has them. With images ``sensor_param[camera]`` and ``sensor_data[camera]["rgb"]`` (N, H, W, 3), and so on.
    """
    obs: dict[str, Any] = {}
    extra: dict[str, Tensor] = {}
    if "joints" in vectors:
        robot = task.agent.robot
        obs["agent"] = {"qpos": robot.get_qpos(), "qvel": robot.get_qvel()}
        extra["tcp_pose"] = data.tcp
    extra |= {name: vectors[name] for name in ("objects", "time", "oracle", "prompt") if name in vectors}
    if extra:
        obs["extra"] = extra
    if "state" in vectors:
        obs["state"] = vectors["state"]
    if modes.images:
        obs["sensor_param"] = task.get_sensor_params()
        obs["sensor_data"] = {
            # Copies: on a GPU the next image is drawn into the same memory.
            camera: {name: textures[name].clone() for name in modes.images}
            for camera, textures in task._get_obs_sensor_data().items()
        }
    return obs
