"""One batched environment that several processes simulate."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector.utils import batch_space
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.checks import NaNActionError, positive_int, step_limit
from mikasa_robo.core.saving import Limits, checked_state
from mikasa_robo.core.seeds import Seed, episode_keys
from mikasa_robo.sim.backend import BATCHED, CUDA_NAMES, checked_env_idx, choose_sim_backend
from mikasa_robo.sim.call_arguments import checked_action, checked_options

from .nested import Path, flatten, is_batched, map_leaves, unflatten
from .pool import WorkerError, WorkerPool
from .process import ACTION_PATH, TASK_ATTRIBUTES, Reply, Shard

__all__ = ["WorkerEnv", "WorkerError"]


class WorkerEnv(gym.Env[Any, Any]):
    """A task whose ``num_envs`` environments ``num_workers`` processes simulate on CPU; see `mikasa_robo.make_env`.

    Spaces, results, seeds and partial resets equal those of the batched environment in one process, bit for bit. Results
    are new CPU tensors with a leading axis of N = ``num_envs``.

    Args:
        env_id: the ID of a task in the catalog.
        num_envs: N.
        num_workers: number of processes, from 1 to N. Each gets N / ``num_workers`` environments, rounded up or down.
        **kwargs: arguments of the task. ``sim_threads``, the threads of each worker: 1 where it is not given, or None.

    Raises:
        ValueError: an argument cannot be used. No process has been started.
        TypeError: an argument cannot be pickled. No process has been started.
        WorkerError: a worker died. An exception in the task's constructor is raised itself.
    """

    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    horizon: int
    """Length of an episode in control steps."""
    arm: str
    """"free", or "held": the arm does not move before the response phase."""
    on_mistake: str
    """"fail": a mistake ends the episode; or "ignore"."""
    instruction: str
    """The task in one English sentence."""
    reconfiguration_freq: int
    """Number of resets after which the scene is built anew; 0: never."""
    reset_options: tuple[str, ...]
    """The names that ``reset(options=…)`` knows."""
    control_freq: int
    """Control steps per second, Hz."""

    def __init__(self, env_id: str, num_envs: int, num_workers: int, **kwargs: Any) -> None:
        shards = _shards(env_id, num_envs, num_workers, kwargs)
        self.num_envs, self.num_workers = shards[-1].stop, len(shards)
        self.device = torch.device("cpu")
        self.spec = _spec(env_id, {"num_envs": num_envs, **kwargs})
        self._shards = shards
        self._pool = WorkerPool(shards)
        self._close_pool: Callable[[], None] = weakref.finalize(self, self._pool.close)
        description = self._pool.descriptions[0]
        for name in TASK_ATTRIBUTES:
            setattr(self, name, description[name])
        self._state_form: tuple[dict[str, Any], Limits] = description["state_form"]
        self._max_episode_steps: int = description["max_episode_steps"]  # ManiSkill's wrappers expect this name
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        single = self.single_action_space
        self.action_space = single if self.num_envs == 1 else batch_space(single, self.num_envs)
        self._was_reset = False
        self._shared = self._pool.share_memory(self.num_envs, description["tensor_specs"]).tensors

    # ------------------------------------------------------------------ the environment
    def reset(
        self,
        *,
        seed: Seed | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in those of ``options["env_idx"]``; see `MemoryEnv.reset`.

        An exception in a worker is raised here, and all workers live on; all environments are then to be reset.

        Returns:
            the observation and the info of all N environments.
        """
        self._require_open()
        options = checked_options(options, self.reset_options)
        partial = "env_idx" in options
        index = self._index(options.pop("env_idx", None))
        if partial and options.get("reconfigure") and len(index) != self.num_envs:
            raise RuntimeError("options['reconfigure'] builds all environments anew: leave options['env_idx'] out")
        keys = None if seed is None else episode_keys(seed, index.tolist())
        states = options.pop("reset_to_env_states", None)
        if states is not None:
            # here, because one worker would refuse what the others have begun
            states = checked_state(states["env_states"], *self._state_form, len(index), self.device, whole=True)
        if not len(index):
            # a worker with one environment would refuse to reset none
            shown = self._gather(self._request("observe", [None] * self.num_workers))
            return shown["obs"], shown["info"] | {"reconfigure": False}
        arguments: list[Any] = []
        for rows, local in self._split(index):
            if not rows:
                arguments.append(None)
                continue
            own = dict(options)
            if partial:
                own["env_idx"] = local
            if states is not None:
                own["reset_to_env_states"] = {"env_states": _rows(states, rows)}
            arguments.append((None if keys is None else [keys[row] for row in rows], own))
        first = next(i for i, argument in enumerate(arguments) if argument is not None)
        self._was_reset = False
        result = self._gather(self._request("reset", arguments), representative=first)
        self._was_reset = True
        return result["obs"], result["info"]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments.

        Args:
            action: (N, A) tensor, array or nested lists, as the task's; None steps without an action.

        Returns:
            observation, reward (N,) float32, terminated (N,) bool, truncated (N,) bool, info.

        Raises:
            gymnasium.error.ResetNeeded: the environment was not reset yet.
        """
        self._require_open()
        if not self._was_reset:
            raise ResetNeeded("this environment was not reset yet: call reset() before step()")
        if action is not None:
            self._shared[ACTION_PATH].copy_(self._checked_action(action))
        result = self._gather(self._request("step", [action is not None] * self.num_workers))
        return result["obs"], result["reward"], result["terminated"], result["truncated"], result["info"]

    def get_obs(self) -> Any:
        """The current observation."""
        return self._gather(self._request("observe", [None] * self.num_workers))["obs"]

    def get_info(self) -> dict[str, Any]:
        """The current info."""
        info: dict[str, Any] = self._gather(self._request("observe", [None] * self.num_workers))["info"]
        return info

    def render(self) -> Tensor:  # type: ignore[override]
        """Images of all environments, (N, H, W, 3) uint8, as ``render_mode`` says."""
        return torch.cat(self._request("render", [None] * self.num_workers))

    def get_state_dict(self) -> dict[str, Any]:
        """The state of simulation and task, nested dicts of (N, …) tensors; see `MemoryEnv.get_state_dict`."""
        states = [flatten(state) for state in self._request("get_state_dict", [None] * self.num_workers)]
        return unflatten({path: torch.cat([state[path] for state in states]) for path in states[0]})

    def get_state(self) -> Tensor:
        """What `get_state_dict` returns as one vector for each environment, (N, D) float32."""
        leaves = flatten(self.get_state_dict()).values()
        return torch.cat([leaf.reshape(self.num_envs, -1) for leaf in leaves], dim=1)

    def set_state(self, flat: Any, env_idx: Any = None) -> None:
        """Restores the vectors (N, D) that `get_state` returned, or those (b, D) of ``env_idx`` (b,)."""
        self.set_state_dict(flat, env_idx)

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Any = None) -> None:
        """Restores what `get_state_dict` saved, in all environments or (rows of b) in ``env_idx`` (b,).

        Raises:
            KeyError, TypeError, ValueError: the state cannot be restored; the message names what is wrong. Nothing has
                changed.
        """
        index = self._index(env_idx)
        # here, because one worker would refuse what the others have done
        state = checked_state(state_dict, *self._state_form, len(index), self.device)
        self._was_reset = False
        self._request(
            "set_state_dict",
            [(_rows(state, rows), None if env_idx is None else local) for rows, local in self._split(index)],
        )
        self._was_reset = True

    @property
    def elapsed_steps(self) -> Tensor:
        """(N,) int32: control steps since the reset of each environment."""
        self._require_open()
        return self._shared["elapsed_steps",].clone()

    def close(self) -> None:
        """Ends the workers. May be called twice. Every other method then raises RuntimeError."""
        self._close_pool()
        self._shared = {}

    # ------------------------------------------------------------------ inside
    def _require_open(self) -> None:
        if self._pool.closed_by is not None:
            raise RuntimeError(
                f"this environment was closed by an error ({self._pool.closed_by}): make a new one to go on"
            )
        if not self._shared:
            raise RuntimeError("this environment was closed: make a new one to go on")

    def _request(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        self._require_open()
        return self._pool.request(name, arguments)

    def _index(self, env_idx: Any) -> Tensor:
        return torch.arange(self.num_envs) if env_idx is None else checked_env_idx(env_idx, self.num_envs, self.device)

    def _split(self, index: Tensor) -> list[tuple[list[int], list[int]]]:
        """For each worker, the positions in ``index`` of its environments, and their numbers within its shard."""
        split = []
        for shard in self._shards:
            rows = torch.nonzero((index >= shard.start) & (index < shard.stop)).flatten()
            split.append((rows.tolist(), (index[rows] - shard.start).tolist()))
        return split

    def _checked_action(self, action: Any) -> Tensor:
        shape = self._shared[ACTION_PATH].shape
        if isinstance(action, Mapping):
            raise TypeError("the action is a dict: workers take a tensor, an array or nested lists (N, A)")
        action = torch.as_tensor(checked_action(action, shape[1:], self.num_envs))
        bad = torch.isnan(action).reshape(self.num_envs, -1).any(dim=1)
        if bad.any():
            raise NaNActionError(f"the action of env {torch.nonzero(bad).flatten().tolist()} is NaN")
        return action

    def _gather(self, replies: list[Reply], representative: int = 0) -> dict[str, Any]:
        """Joins the results of all workers.

        A leaf without one row for each environment, such as a flag for the whole batch, is taken from the worker
        ``representative``.
        """
        shared_by_all = set.intersection(*(set(reply.paths) - reply.sent.keys() for reply in replies))
        leaves: dict[Path, Any] = {}
        for path in replies[representative].paths:
            if path in shared_by_all:
                leaves[path] = self._shared[path].clone()
                continue
            sent = replies[representative].sent
            batched = path not in sent or is_batched(sent[path], self._shards[representative].num_envs)
            leaves[path] = self._concatenate(path, replies) if batched else sent[path]
        return unflatten(leaves)

    def _concatenate(self, path: Path, replies: list[Reply]) -> Tensor:
        rows = []
        for number, (shard, reply) in enumerate(zip(self._shards, replies, strict=True)):
            if path not in reply.paths:
                raise KeyError(
                    f"{'/'.join(path)} is in the results of other workers but not in those of worker {number}"
                )
            own = reply.sent[path] if path in reply.sent else self._shared[path][shard.start : shard.stop]
            rows.append(torch.as_tensor(own))
        return torch.cat(rows)


def _rows(nested: Any, rows: list[int]) -> Any:
    return map_leaves(lambda leaf: torch.as_tensor(leaf)[rows], nested)


def _spec(env_id: str, kwargs: dict[str, Any]) -> EnvSpec:
    """What ``gymnasium.make`` makes the same environment from, in one process."""
    registered = gym.spec(env_id)
    kwargs = {**registered.kwargs, **kwargs}
    return dataclasses.replace(registered, max_episode_steps=kwargs.pop("max_episode_steps", None), kwargs=kwargs)


def _shards(env_id: str, num_envs: int, num_workers: int, kwargs: dict[str, Any]) -> list[Shard]:
    """Divides the environments among the workers. Raises ValueError or TypeError for arguments that cannot be used."""
    mikasa_robo.find_task(env_id)
    num_envs, num_workers = positive_int("num_envs", num_envs), positive_int("num_workers", num_workers)
    if num_workers > num_envs:
        raise ValueError(
            f"num_workers={num_workers} is more than num_envs={num_envs}: each worker needs an environment; "
            f"use num_workers={num_envs} or less"
        )
    backend = kwargs.get("sim_backend", "auto")
    if isinstance(backend, str) and backend.split(":")[0] in CUDA_NAMES:
        raise ValueError(
            f"sim_backend={backend!r} cannot be used with num_workers={num_workers}: workers share the cores of a CPU, "
            "and on a GPU one process simulates all environments; leave num_workers out"
        )
    backend = choose_sim_backend(backend, num_envs, cuda_available=False)
    if num_envs > 1:
        backend = BATCHED  # also for a worker with one environment, so that all environments are simulated alike
    if kwargs.get("render_mode") == "human":
        raise ValueError(
            f"render_mode='human' cannot be used with num_workers={num_workers}: it opens a window for one process; "
            "use 'rgb_array', or leave num_workers out"
        )
    if kwargs.get("max_episode_steps") is not None:
        step_limit(kwargs["max_episode_steps"])
    threads = kwargs.get("sim_threads")
    threads = 1 if threads is None else positive_int("sim_threads", threads)
    pickled = {
        name: _pickled(name, value)
        for name, value in {**kwargs, "sim_backend": backend, "sim_threads": threads}.items()
    }
    row = CATALOG[env_id]
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)} | {"kwargs": dict(row.kwargs)}
    bounds = [num_envs * i // num_workers for i in range(num_workers + 1)]
    return [Shard(env_id, fields, pickled, start, stop, os.getpid()) for start, stop in itertools.pairwise(bounds)]


def _pickled(name: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name}={value!r} cannot be sent to a worker process ({error}): use a value that pickle can store"
        ) from error
