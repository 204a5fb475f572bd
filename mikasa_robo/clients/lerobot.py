"""A task as a vector environment for LeRobot's `lerobot-eval` and `lerobot-train`.

`integrations/lerobot_env_mikasa` tells LeRobot about it; docs/lerobot.md shows how both are used. This module does not
import LeRobot.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

import mikasa_robo
from mikasa_robo.checks import one_of, positive_int
from mikasa_robo.core.observations import parse_modes
from mikasa_robo.core.seeds import Seed
from mikasa_robo.data.formats.lerobot_names import observation_keys
from mikasa_robo.sim.backend import BATCHED, choose_sim_backend

__all__ = ["LeRobotVectorEnv", "TaskDescription", "describe_task", "task_ids"]

Frames = Literal["rgb_array", "observation", "blank"]
BLANK = (64, 64, 3)
"""Shape of a frame of ``frames="blank"``."""
RAW_NAMES = {"observation.state": "agent_pos", "observation.environment_state": "environment_state"}
"""What LeRobot calls parts of an observation before `preprocess_observation` has given them the names of policies."""


RESERVED = {
    "num_envs": "a description is of one environment; leave it out",
    "num_workers": "a description is of one environment; leave it out",
    "obs_mode": "use obs",
    "obs_layout": "observations are flat; leave it out",
    "render_mode": "use frames",
}
"""Arguments of the task that `LeRobotVectorEnv` chooses, and what to do instead."""


@dataclass(frozen=True)
class TaskDescription:
    """What an environment of one task observes and takes, without the axis of the batch."""

    vectors: Mapping[str, tuple[int, ...]]
    """Shapes of the float32 arrays of an observation, by LeRobot's raw names, such as "agent_pos"."""
    images: Mapping[str, tuple[int, int, int]]
    """Height, width and 3, by camera."""
    action: tuple[int, ...]
    """Shape of an action, float32 in [-1, 1]."""
    fps: int
    """Control steps in a second."""
    max_episode_steps: int
    instruction: str
    """The task in one English sentence; empty where arguments make it another task than the one of its ID."""


def task_ids(names: str) -> list[str]:
    """The IDs that ``names`` lists, separated by commas; "all" stands for all tasks.

    Raises:
        ValueError: there is no task with an ID, or one is named twice.
    """
    ids = list(mikasa_robo.TASKS) if names == "all" else [name.strip() for name in names.split(",")]
    for env_id in ids:
        mikasa_robo.find_task(env_id)
        if ids.count(env_id) > 1:
            raise ValueError(f"task={names!r} names {env_id} twice: leave one out")
    return ids


def describe_task(task: str, obs: str = "rgb+joints", **kwargs: Any) -> TaskDescription:
    """Make an environment of ``task``, look at its spaces, and close it. Asking again costs nothing.

    Args:
        task, obs, kwargs: as in `LeRobotVectorEnv`.

    Raises:
        ValueError: as `LeRobotVectorEnv`.
        mikasa_robo.sim.render.RenderingUnavailableError: images are asked for, and this machine cannot render.
    """
    checked_obs(obs)
    mikasa_robo.find_task(task)
    for name, instead in RESERVED.items():
        if name in kwargs:
            raise ValueError(f"{name}={kwargs[name]!r} is no argument of the task here: {instead}")
    return _describe(task, obs, json.dumps(kwargs, sort_keys=True))


@functools.lru_cache(maxsize=256)
def _describe(task: str, obs: str, kwargs: str) -> TaskDescription:
    env = _make(task, 1, obs, None, None, json.loads(kwargs))
    try:
        space = env.get_wrapper_attr("single_observation_space")
        parts: dict[str, Any] = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"state": space}
        actions = env.get_wrapper_attr("single_action_space")
        if not np.all((actions.low == -1.0) & (actions.high == 1.0)):
            mode = env.get_wrapper_attr("control_mode")
            raise ValueError(
                f"control_mode={mode!r} takes actions outside of [-1, 1]: use a mode of deltas, such as 'pd_joint_delta_pos'"
            )
        images = {}
        if "rgb" in parts:
            height, width, _ = parts["rgb"].shape
            images = dict.fromkeys(env.unwrapped._sensors, (height, width, 3))  # type: ignore[attr-defined]
        return TaskDescription(
            vectors={name: parts[part].shape for part, name in _raw_names(parts).items()},
            images=images,
            action=actions.shape,
            fps=int(env.get_wrapper_attr("control_freq")),
            max_episode_steps=env.get_wrapper_attr("_max_episode_steps"),
            instruction=env.get_wrapper_attr("instruction"),
        )
    finally:
        env.close()


def checked_obs(obs: str) -> str:
    """``obs``, if LeRobot can be given such observations. Raises ValueError."""
    modes = parse_modes(obs)
    unfit = [name for name in modes.images if name != "rgb"] or ([obs] if not modes.parts else [])
    if unfit:
        raise ValueError(
            f"obs={obs!r}: LeRobot's environments have colour images and vectors, not {unfit[0]!r}: leave it out"
        )
    return obs


def _raw_names(parts: Mapping[str, Any]) -> dict[str, str]:
    """LeRobot's raw names of the parts that are not images."""
    keys = observation_keys(part for part in parts if part != "rgb")
    return {part: RAW_NAMES.get(key, key.removeprefix("observation.")) for part, key in keys.items()}


def _make(
    task: str, num_envs: int, obs: str, render_mode: str | None, num_workers: int | None, kwargs: Mapping[str, Any]
) -> gym.Env[Any, Any]:
    kwargs = dict(kwargs)
    backend = kwargs.pop("sim_backend", "auto")
    if backend == "auto" and (num_workers is not None or choose_sim_backend("auto", num_envs) == "physx_cpu"):
        # Also for a single environment: on the CPU an episode does not depend on how many are played at a time.
        backend = BATCHED
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    return mikasa_robo.make_env(task, num_envs, num_workers=num_workers, obs_mode=obs, sim_backend=backend, **kwargs)


class LeRobotVectorEnv(VectorEnv[Any, Any, Any]):
    """A batch of environments of one task that plays one episode in each, as LeRobot's `rollout` wants it.

    An environment whose episode is over is frozen: until the next `reset` it returns its last observation and flags, and
    the reward 0. The simulation is made by the first `reset`, and made again by a `reset` after `close`, so that
    `lerobot-eval` can hold many tasks, and close and use them in turn.

    Observation: dict of NumPy arrays. "pixels": dict of (N, H, W, 3) uint8 by camera, with ``obs`` that has "rgb".
    "agent_pos" (N, J) float32: the part "joints" (or "state"). "environment_state" (N, D) float32: the part "objects".
    Other parts keep their names, such as "time" and "prompt", (N, …) float32.
    Action: float32 (N, A) in [-1, 1]; what is outside is clipped.
    Info: "success" and "fail" (N,) bool, of this step. Once an episode is over: "final_info", a dict of arrays (N,):
    "is_success" (whether it ever succeeded), "success_at_end", "fail" (whether it ever failed) and "length" (int64,
    control steps), zeros where the episode goes on; and "_final_info" (N,) bool, where it is over.

    Args:
        task: an ID, such as "RememberColor3-v0".
        num_envs: N.
        obs: the parts of an observation, joined with "+", see `mikasa_robo.core.observations.MODES`.
        frames: what `render` returns: "rgb_array", images of the task's own camera for videos; "observation", those of
            the first camera of the observation, which cost nothing more; "blank", black ones, where nothing can be drawn.
        num_workers: simulate on the CPU in this many processes; see `mikasa_robo.make_env`.
        **kwargs: of the task, such as ``delay_steps`` and ``arm``; values that JSON can hold.

    Raises:
        ValueError: there is no such task, an argument is not known, or actions are not in [-1, 1].
        TypeError: the task takes no such argument.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # Gymnasium's own form
    render_mode = "rgb_array"

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        obs: str = "rgb+joints",
        frames: Frames = "rgb_array",
        num_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.num_envs = positive_int("num_envs", num_envs)
        self.frames: str = one_of("frames", frames, get_args(Frames))
        if frames == "observation" and "rgb" not in parse_modes(obs).parts:
            raise ValueError(
                f"frames='observation' needs images, and obs={obs!r} has none: add 'rgb', or use 'rgb_array'"
            )
        self.description = describe_task(task, obs, **kwargs)
        self.task = task
        self.task_description: str = self.description.instruction
        self._max_episode_steps = self.description.max_episode_steps
        render_mode = "rgb_array" if self.frames == "rgb_array" else None
        self._make_env = functools.partial(_make, task, num_envs, obs, render_mode, num_workers, kwargs)
        self._env: Any = None
        self.metadata = {**self.metadata, "render_fps": self.description.fps}
        self.single_observation_space = _observation_space(self.description)
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, self.description.action, np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # ------------------------------------------------------------------ reset and step
    def reset(
        self, *, seed: Seed | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a new episode in every environment.

        Args:
            seed: a list with one seed for each environment, as LeRobot gives it; or an int, whose i-th episode environment
                i gets; or None.
            options: may have any entries; LeRobot's own tell that a rollout begins. None of them changes anything.

        Raises:
            ValueError: the options name some of the environments. All of them are reset.
        """
        for name in ("reset_mask", "env_idx"):
            if name in (options or {}):
                raise ValueError(f"options[{name!r}]: all environments begin an episode together; leave it out")
        if self._env is None:
            self._env = self._make_env()
            self._device = self._env.get_wrapper_attr("device")
        obs, _ = self._env.reset(seed=list(seed) if isinstance(seed, Iterable) else seed)
        nothing = np.zeros(self.num_envs, np.bool_)
        self._obs = self._convert(obs)
        self._terminated, self._truncated = nothing.copy(), nothing.copy()
        self._final = {name: nothing.copy() for name in ("is_success", "success_at_end", "fail")}
        self._final["length"] = np.zeros(self.num_envs, np.int64)
        self._drawn: tuple[NDArray[np.uint8], NDArray[np.bool_]] | None = None
        return _copy(self._obs), {}

    def step(
        self, actions: Any
    ) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Play a step in the environments whose episode is not over. Once all are over nothing is simulated.

        Args:
            actions: (N, A).

        Returns:
            observation, reward (N,) float32, terminated (N,) bool, truncated (N,) bool, info; see the class.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after `close`.
            ValueError: the actions have another shape.
        """
        if self._env is None:
            raise ResetNeeded("step before reset: call reset first, also after close")
        actions = np.asarray(actions, np.float32)
        if actions.shape != self.action_space.shape:  # NumPy would spread a smaller one over all environments
            raise ValueError(
                f"actions have the shape {actions.shape}: give {self.action_space.shape}, one row an environment"
            )
        over = self._terminated | self._truncated
        if self._drawn is not None and (over & ~self._drawn[1]).any() and not over.all():
            self.render()  # keeps the end of an episode, which is gone once the others go on
        nothing = np.zeros(self.num_envs, np.bool_)
        success, fail, reward = nothing, nothing, np.zeros(self.num_envs, np.float32)
        if not over.all():
            # An action that is not a number would be refused, also that of a frozen environment.
            actions = np.where(over[:, None], np.float32(0), actions)
            obs, rewards, terminated, truncated, info = self._env.step(torch.as_tensor(actions, device=self._device))
            self._obs = _where(over, self._obs, self._convert(obs))
            reward = np.where(over, np.float32(0), _array(rewards).astype(np.float32))
            success, fail = (~over & _array(info[name]) for name in ("success", "fail"))
            self._terminated |= ~over & _array(terminated)
            self._truncated |= ~over & _array(truncated)
            self._final["is_success"] |= success
            self._final["success_at_end"] = np.where(over, self._final["success_at_end"], success)
            self._final["fail"] |= fail
            self._final["length"] += ~over
        result_info = {"success": success, "fail": fail, **self._final_info()}
        return _copy(self._obs), reward, self._terminated.copy(), self._truncated.copy(), result_info

    def _final_info(self) -> dict[str, Any]:
        """What an info holds about the episodes that are over."""
        over = self._terminated | self._truncated
        if not over.any():
            return {}
        final: dict[str, Any] = {
            name: np.where(over, value, value.dtype.type(0)) for name, value in self._final.items()
        }
        final |= {f"_{name}": over.copy() for name in self._final}
        return {"final_info": final, "_final_info": over}

    def _convert(self, obs: Any) -> dict[str, Any]:
        """The task's observation by LeRobot's names."""
        parts = obs if isinstance(obs, Mapping) else {"state": obs}
        found: dict[str, Any] = {name: _array(parts[part]) for part, name in _raw_names(parts).items()}
        if "rgb" in parts:
            cameras = tuple(self.description.images)
            images = np.split(_array(parts["rgb"]), len(cameras), axis=-1)
            found["pixels"] = {
                camera: np.ascontiguousarray(image) for camera, image in zip(cameras, images, strict=True)
            }
        return found

    # ------------------------------------------------------------------ what LeRobot asks beside
    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """A frame (H, W, 3) uint8 of each environment.

        One whose episode is over shows its end, whether or not a frame was asked for at that step. Only without any frame
        since the reset nothing is kept: then the first one shows what the simulation has made of it meanwhile.
        """
        if self._env is None:
            raise ResetNeeded("render before reset: call reset first, also after close")
        if self.frames == "blank":
            return tuple(np.zeros((self.num_envs, *BLANK), np.uint8))
        if self.frames == "observation":
            return tuple(next(iter(self._obs["pixels"].values())).copy())
        over = self._terminated | self._truncated
        images = _array(self._env.render())
        if self._drawn is not None:
            before, ended = self._drawn
            images = np.where(ended[:, None, None, None], before, images)
        self._drawn = images, over
        return tuple(images.copy())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute, once for each environment, as of `gymnasium.vector.SyncVectorEnv`."""
        return (getattr(self, name),) * self.num_envs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """An attribute, or what a method returns, once for each environment; `render` has a frame for each."""
        value = getattr(self, name)
        if not callable(value):
            return (value,) * self.num_envs
        result = value(*args, **kwargs)
        return result if name == "render" else (result,) * self.num_envs

    def close(self, **kwargs: Any) -> None:
        """Close the simulation. `reset` makes it again."""
        env, self._env = getattr(self, "_env", None), None
        if env is not None:
            env.close()


def _observation_space(description: TaskDescription) -> gym.spaces.Dict:
    spaces: dict[str, gym.Space[Any]] = {
        name: gym.spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in description.vectors.items()
    }
    if description.images:
        cameras: dict[str, gym.Space[Any]] = {
            name: gym.spaces.Box(0, 255, shape, np.uint8) for name, shape in description.images.items()
        }
        spaces["pixels"] = gym.spaces.Dict(cameras)
    return gym.spaces.Dict(spaces)


def _array(value: Any) -> NDArray[Any]:
    """A tensor as an array of the caller's own."""
    return value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)


def _where(mask: NDArray[np.bool_], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of ``old`` where the mask is True, and those of ``new`` elsewhere, also in nested dicts."""
    return {
        name: _where(mask, old[name], value)
        if isinstance(value, Mapping)
        else np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), old[name], value)
        for name, value in new.items()
    }


def _copy(obs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value.copy() for name, value in obs.items()}
