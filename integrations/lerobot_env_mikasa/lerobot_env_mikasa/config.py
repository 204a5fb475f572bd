"""The configuration that LeRobot makes environments from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gymnasium.vector import VectorEnv
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_ENV_STATE, OBS_STATE

from mikasa_robo.clients.lerobot import LeRobotVectorEnv, TaskDescription, describe_task, task_ids
from mikasa_robo.data.formats.lerobot_names import image_key

__all__ = ["MikasaEnv"]

T = TypeVar("T")
POLICY_NAMES = {"agent_pos": OBS_STATE, "environment_state": OBS_ENV_STATE}


@EnvConfig.register_subclass("mikasa")
@dataclass
class MikasaEnv(EnvConfig):
    """One or several tasks of MIKASA; `mikasa list` names them.

    ``features`` and ``features_map`` are computed: they are what datasets of `mikasa collect --format lerobot` with the same
    ``obs`` have. With several tasks they are the features that all of them share.

    Raises:
        ValueError: there is no such task, an argument is not known, or the tasks differ in something that ``obs`` asks for.
    """

    task: str = "RememberColor3-v0"
    """An ID, several separated by commas, or "all"."""
    obs: str = "rgb+joints"
    """What is observed, as in `mikasa collect`: any of rgb, joints, objects, state, time and oracle, joined with +."""
    fps: int = 20
    """Control steps in a second. The tasks have 20 and no other number."""
    frames: str = "rgb_array"
    """What videos show: rgb_array, the task's own camera; observation, the first camera of the observation, which is
    quicker; blank, nothing, on a machine that cannot render."""
    sim_backend: str = "auto"
    """physx_cpu, physx_cuda, or auto: the GPU if CUDA and PhysX's library for GPUs are available and
    there are several environments."""
    num_workers: int | None = None
    """Simulate on the CPU in this many processes."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the tasks, such as {"arm": "held"}."""

    def __post_init__(self) -> None:
        for name in ("task", "obs", "frames", "sim_backend", "num_workers"):
            if name in self.env_kwargs:
                raise ValueError(f"env_kwargs has {name!r}, which is an option of its own: use --env.{name}")
        descriptions = {
            task: describe_task(task, self.obs, sim_backend=self.sim_backend, **self.env_kwargs)
            for task in task_ids(self.task)
        }
        for task, description in descriptions.items():
            if description.fps != self.fps:
                raise ValueError(f"fps={self.fps}: {task} has {description.fps} control steps in a second; use that")
        vectors = self._shared("shape", descriptions, lambda one: one.vectors)
        images = self._shared("images", descriptions, lambda one: one.images)
        action = self._shared("action", descriptions, lambda one: {ACTION: one.action})
        self.features = {name: PolicyFeature(FeatureType.ACTION, shape) for name, shape in action.items()}
        self.features_map = {ACTION: ACTION}
        for name, shape in vectors.items():
            kind = FeatureType.ENV if name == "environment_state" else FeatureType.STATE
            self.features[name] = PolicyFeature(kind, shape)
            self.features_map[name] = POLICY_NAMES.get(name, f"observation.{name}")
        for camera, shape in images.items():
            # the policy's own name, by which LeRobot finds the images when it records rollouts
            self.features[image_key(camera)] = PolicyFeature(FeatureType.VISUAL, shape)
            self.features_map[image_key(camera)] = image_key(camera)

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """The arguments of `LeRobotVectorEnv`."""
        return {
            "obs": self.obs,
            "frames": self.frames,
            "sim_backend": self.sim_backend,
            "num_workers": self.num_workers,
            **self.env_kwargs,
        }

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, VectorEnv[Any, Any, Any]]]:
        """One vector environment for each task, as ``{task: {0: environment}}``.

        Args:
            n_envs: environments of each; they are simulated together.
            use_async_envs: changes nothing.
        """
        return {task: {0: LeRobotVectorEnv(task, n_envs, **self.gym_kwargs)} for task in task_ids(self.task)}

    def _shared(
        self,
        what: str,
        descriptions: dict[str, TaskDescription],
        select: Callable[[TaskDescription], Any],
    ) -> dict[str, tuple[int, ...]]:
        """What all tasks have. Raises ValueError where they have it in different shapes."""
        found = {task: dict(select(description)) for task, description in descriptions.items()}
        names = _common(found.values())
        for name in names:
            shapes = {task: shapes[name] for task, shapes in found.items()}
            first, *others = shapes
            for other in others:
                if shapes[other] != shapes[first]:
                    raise ValueError(
                        f"task={self.task!r} with obs={self.obs!r}: {name!r} has the {what} {shapes[first]} in {first} "
                        f"and {shapes[other]} in {other}, so no policy fits both: name one of them, or change obs"
                    )
        return {name: next(iter(found.values()))[name] for name in names}


def _common(dicts: Iterable[dict[str, T]]) -> list[str]:
    """The keys that all dicts have, in the order of the first."""
    first, *others = dicts
    return [name for name in first if all(name in other for other in others)]
