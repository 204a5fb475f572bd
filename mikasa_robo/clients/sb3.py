"""A batched task as a vector environment of Stable-Baselines3.

    >>> import gymnasium as gym
    >>> import mikasa_robo
    >>> from mikasa_robo.clients.sb3 import SB3VecEnv
    >>> from stable_baselines3 import PPO
    >>> env = SB3VecEnv(gym.make("RememberColor3-v0", num_envs=16))
    >>> model = PPO("MlpPolicy", env, n_steps=60).learn(100_000)

Needs the extra ``clients``. ``docs/other-libraries.md`` has a table of what works with which wrapper.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

__all__ = ["SB3VecEnv"]

Array: TypeAlias = NDArray[Any]
Obs: TypeAlias = "Array | dict[str, Array]"
Indices: TypeAlias = "int | Iterable[int] | None"

ARRAY_RENDER_MODES = ("rgb_array", "sensors", "all")
"""ManiSkill's render modes in which ``render`` returns images."""


class SB3VecEnv(VecEnv):
    """One batched environment, as Stable-Baselines3 wants it.

    Observations are arrays (N, ...) or, for ``obs_mode`` other than "state", flat dicts of them, which need
    ``MultiInputPolicy``. Images stay uint8 with their channels last; Stable-Baselines3 wraps the environment in
    `VecTransposeImage` by itself.

    An environment whose episode is over is reset in the same step. ``infos[i]`` then describes the last step of the
    episode, and holds

    - ``terminal_observation``: the observation that ended the episode, from before the reset;
    - ``TimeLimit.truncated``: whether the time limit alone ended it (in every step);
    - ``episode``: ``r``, ``l`` and ``t``, as `Monitor` writes them, so neither `Monitor` nor `VecMonitor` is needed;
    - ``is_success``: whether the last step reported success.

    After ``seed(s)`` the next reset gives environment i the episode that a single environment plays with the seed s + i.

    The N environments are one object. `get_attr` gives row i of a tensor (N, ...) for environment i, as NumPy, and
    everything else to each of them; `env_method` calls the method once and divides what it returns in the same way.

    Args:
        env: what ``gymnasium.make``, `mikasa_robo.make_env` or a wrapper of these returns: batched observations, rewards
            and flags, and no automatic resets. ManiSkill's own tasks, made by `mikasa_robo.sim.env.make`, need ManiSkill's
            ``TimeLimitWrapper``, or their episodes go on until success.

    Raises:
        TypeError: ``env`` is not such an environment.
        ValueError: its observations are nested; Stable-Baselines3 takes flat dicts only.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        _check(env)
        self.env = env
        self.device = torch.device(env.get_wrapper_attr("device"))
        super().__init__(
            env.get_wrapper_attr("num_envs"),
            env.get_wrapper_attr("single_observation_space"),
            env.get_wrapper_attr("single_action_space"),
        )
        frequency: Any = getattr(env.unwrapped, "control_freq", None)
        if frequency is not None:
            self.metadata["render_fps"] = round(frequency)
        self.spec = env.spec
        self._action: Tensor | None = None
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._started = time.monotonic()

    # ------------------------------------------------------------------ reset and step
    def reset(self) -> Obs:
        """Start new episodes in all environments, with the seeds and options that were set since the last reset."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("set_options got different options for different environments; they share one reset")
        if "env_idx" in options:
            raise ValueError("set_options got 'env_idx'; Stable-Baselines3 resets all environments")
        seeds = None if self._seeds[0] is None else self._seeds
        obs, info = self.env.reset(seed=seeds, options=options or None)  # type: ignore[arg-type]  # one for each
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0
        self._lengths[:] = 0
        self.reset_infos = _split(_to_numpy(info), self.num_envs)
        return _to_numpy(obs)

    def step_async(self, actions: Array) -> None:
        """Hold the actions (N, A) for `step_wait`."""
        self._action = torch.as_tensor(np.array(actions), device=self.device)

    def step_wait(self) -> tuple[Obs, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Play one step in all environments; see the class for what the infos hold."""
        if self._action is None:
            raise RuntimeError("step_wait without step_async: call step, or step_async first")
        action, self._action = self._action, None
        raw_obs, raw_reward, raw_terminated, raw_truncated, raw_info = self.env.step(action)
        obs, info = _to_numpy(raw_obs), _to_numpy(raw_info)
        # A single environment returns scalars in some of ManiSkill's wrappers
        rewards = np.asarray(_to_numpy(raw_reward), np.float32).reshape(self.num_envs)
        terminated = np.asarray(_to_numpy(raw_terminated), np.bool_).reshape(self.num_envs)
        truncated = np.asarray(_to_numpy(raw_truncated), np.bool_).reshape(self.num_envs)
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        infos = _split(info, self.num_envs)
        for i in range(self.num_envs):
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        if dones.any():
            self._finish(np.flatnonzero(dones), obs, infos)
        return obs, rewards, dones, infos

    def _finish(self, over: NDArray[np.int64], obs: Obs, infos: list[dict[str, Any]]) -> None:
        """Write the ends of the episodes of the environments ``over`` (b,) into ``infos``, and reset these."""
        seconds = round(time.monotonic() - self._started, 6)
        for i in over.tolist():
            infos[i]["terminal_observation"] = _row(obs, i)
            infos[i]["episode"] = {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": seconds}
            if "success" in infos[i]:
                infos[i]["is_success"] = bool(infos[i]["success"])
        raw_obs, raw_info = self.env.reset(options={"env_idx": torch.as_tensor(over, device=self.device)})
        fresh, reset_infos = _to_numpy(raw_obs), _split(_to_numpy(raw_info), self.num_envs)
        for i in over.tolist():
            self.reset_infos[i] = reset_infos[i]
        # The others keep the observation of their step; a wrapper may observe with noise.
        if isinstance(obs, dict):
            for name in obs:
                obs[name][over] = fresh[name][over]
        else:
            obs[over] = fresh[over]
        self._returns[over] = 0
        self._lengths[over] = 0

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    # ------------------------------------------------------------------ images
    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """One image (H, W, 3) uint8 for each environment; None for each if the environment renders no images."""
        if self.env.render_mode not in ARRAY_RENDER_MODES:
            warnings.warn(
                f"render_mode={self.env.render_mode!r} gives no images; make the environment with "
                "render_mode='rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        images = _to_numpy(self.env.render())
        return list(images) if images.ndim == 4 else [images]

    # ------------------------------------------------------------------ attributes and methods
    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute of each environment, from the outermost wrapper that has it.

        Row i of a tensor or array (N, ...) belongs to environment i; any other value is given to each.

        Raises:
            AttributeError: neither the environment nor a wrapper has it.
        """
        values = _split_value(_to_numpy(self.env.get_wrapper_attr(attr_name)), self.num_envs)
        return [values[i] for i in self._checked(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set the attribute where it was defined.

        If it is a tensor or array (N, ...), ``value`` is written to the rows of ``indices``.

        Raises:
            ValueError: the environments share the attribute, and ``indices`` does not name all of them.
        """
        chosen = self._checked(indices)
        old: Any = self.env.get_wrapper_attr(attr_name) if self.env.has_wrapper_attr(attr_name) else None
        if _has_rows(old, self.num_envs):
            old[chosen] = value
            return
        self._require_all(f"set_attr({attr_name!r})", chosen)
        self.env.set_wrapper_attr(attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call the method once, and return each environment's part of the result.

        Raises:
            AttributeError: neither the environment nor a wrapper has it.
            ValueError: ``indices`` does not name all environments, which share the method.
        """
        self._require_all(f"env_method({method_name!r})", self._checked(indices))
        result = self.env.get_wrapper_attr(method_name)(*method_args, **method_kwargs)
        return _split_value(_to_numpy(result), self.num_envs)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Whether the environments are wrapped in ``wrapper_class``; True for `Monitor`, as the infos hold ``episode``."""
        wrapped = wrapper_class is Monitor or is_wrapped(self.env, wrapper_class)
        return [wrapped] * len(self._checked(indices))

    def _checked(self, indices: Indices) -> list[int]:
        chosen = list(self._get_indices(indices))
        bad = [i for i in chosen if not -self.num_envs <= i < self.num_envs]
        if bad:
            raise IndexError(f"indices={indices!r} names {bad}; there are {self.num_envs} environments")
        return [i % self.num_envs for i in chosen]

    def _require_all(self, call: str, chosen: list[int]) -> None:
        if sorted(set(chosen)) != list(range(self.num_envs)):
            raise ValueError(
                f"{call} with indices={chosen}: the {self.num_envs} environments are one object; leave indices out"
            )


def _check(env: Any) -> None:
    if isinstance(env, gym.vector.VectorEnv):
        raise TypeError(
            f"{type(env).__name__} resets by itself, which would hide the terminal observations; give "
            "gymnasium.make(env_id, num_envs=...)"
        )
    batched = ("num_envs", "device", "single_observation_space", "single_action_space")
    lacks = [name for name in batched if not (isinstance(env, gym.Env) and env.has_wrapper_attr(name))]
    if lacks:
        raise TypeError(
            f"{env!r} is not a batched environment (it has no {', '.join(lacks)}); give gymnasium.make(env_id, "
            "num_envs=...) of a robot task, and for other environments use stable_baselines3's make_vec_env"
        )
    space = env.get_wrapper_attr("single_observation_space")
    if isinstance(space, gym.spaces.Dict):
        nested = [name for name, part in space.items() if not isinstance(part, gym.spaces.Box)]
        if nested:
            raise ValueError(
                f"the observation is nested under {', '.join(map(repr, nested))}, and Stable-Baselines3 takes flat dicts; "
                "use obs_mode='rgb+joints' or the like with obs_layout='flat'"
            )


def _to_numpy(value: Any) -> Any:
    """A copy with NumPy arrays for tensors, in nested dicts; other values are returned themselves."""
    if isinstance(value, dict):
        return {name: _to_numpy(part) for name, part in value.items()}
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy().copy()
    return value.copy() if isinstance(value, np.ndarray) else value


def _row(value: Any, i: int) -> Any:
    return {name: _row(part, i) for name, part in value.items()} if isinstance(value, dict) else value[i].copy()


def _split(info: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """One info for each of the n environments, of an info that holds arrays (n, ...)."""
    infos: list[dict[str, Any]] = [{} for _ in range(n)]
    for name, value in info.items():
        for own, part in zip(infos, _split_value(value, n), strict=True):
            own[name] = part
    return infos


def _split_value(value: Any, n: int) -> list[Any]:
    if isinstance(value, dict):
        return _split(value, n)
    return list(value) if _has_rows(value, n) else [value] * n


def _has_rows(value: Any, n: int) -> bool:
    return isinstance(value, np.ndarray | Tensor) and value.ndim > 0 and len(value) == n
