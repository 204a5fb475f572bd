"""One batched environment that several processes simulate."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.checks import positive_int
from mikasa_robo.core.seeds import Seed, episode_keys
from mikasa_robo.sim.env import _CUDA_NAMES, BATCHED, checked_env_idx, choose_sim_backend
from mikasa_robo.sim.stepping import default_threads

from .crew import Crew, WorkerError
from .process import ACTION, FACTS, Answer, Part
from .rows import Path, flatten, has_rows, map_leaves, unflatten

__all__ = ["WorkerEnv", "WorkerError"]


class WorkerEnv(gym.Env[Any, Any]):
    """A task of which ``num_workers`` processes simulate ``num_envs`` environments on CPU; see `mikasa_robo.make_vec`.

    It has the spaces, results, seeds and partial resets of the one batched environment that ``gymnasium.make`` gives,
    to the bit. Results are new CPU tensors with a leading axis of N = ``num_envs``.
    """

    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    horizon: int
    """Length of an episode in control steps."""
    instruction: str
    reconfiguration_freq: int
    control_freq: int
    """Control steps per second, Hz."""

    def __init__(self, env_id: str, num_envs: int, num_workers: int | None = None, **kwargs: Any) -> None:
        parts = _parts(env_id, num_envs, num_workers, kwargs)
        self.num_envs, self.num_workers = parts[-1].stop, len(parts)
        self.device = torch.device("cpu")
        self.spec = copy.deepcopy(gym.spec(env_id))
        self.spec.kwargs.update(kwargs)
        self._parts = parts
        self._crew = Crew(parts)
        self._end: Callable[[], None] = weakref.finalize(self, self._crew.dismiss)
        facts = self._crew.facts[0]
        for name in FACTS:
            setattr(self, name, facts[name])
        self._max_episode_steps: int = facts["max_episode_steps"]  # ManiSkill's wrappers look it up under this name
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        single = self.single_action_space
        self.action_space = single if self.num_envs == 1 else batch_space(single, self.num_envs)
        self._shared = self._crew.share(self.num_envs, facts["columns"]).tensors

    # ------------------------------------------------------------------ the environment
    def reset(
        self,
        *,
        seed: Seed | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in ``options["env_idx"]`` only; see `MemoryEnv.reset`.

        Returns:
            the observation and the info of all N environments.
        """
        self._require_open()
        options = dict(options or {})
        partial = "env_idx" in options
        index = self._index(options.pop("env_idx", None))
        if not len(index):
            raise ValueError("env_idx=[] names no environment: name at least one, or leave it out to reset all")
        if partial and options.get("reconfigure") and len(index) != self.num_envs:
            raise RuntimeError("options['reconfigure'] builds all environments anew: leave options['env_idx'] out")
        keys = None if seed is None else episode_keys(seed, index.tolist())
        states = options.pop("reset_to_env_states", None)
        orders: list[Any] = []
        for rows, local in self._shares(index):
            if not rows:
                orders.append(None)
                continue
            own = dict(options)
            if partial:
                own["env_idx"] = local
            if states is not None:
                own["reset_to_env_states"] = _rows(states, rows)
            orders.append((None if keys is None else [keys[row] for row in rows], own))
        result = self._gather(
            self._order("reset", orders), leader=next(i for i, o in enumerate(orders) if o is not None)
        )
        return result["obs"], result["info"]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A control step of all environments.

        Args:
            action: (N, A) numbers in [-1, 1], a tensor or an array; None lets time pass without any.

        Returns:
            observation, reward (N,) float32, terminated (N,) bool, truncated (N,) bool, info.
        """
        self._require_open()
        if action is not None:
            self._shared[ACTION].copy_(self._checked_action(action))
        result = self._gather(self._order("step", [action is not None] * self.num_workers))
        return result["obs"], result["reward"], result["terminated"], result["truncated"], result["info"]

    def get_obs(self) -> Any:
        """The observation of the present moment."""
        return self._gather(self._order("look", [None] * self.num_workers))["obs"]

    def get_info(self) -> dict[str, Any]:
        """The info of the present moment."""
        info: dict[str, Any] = self._gather(self._order("look", [None] * self.num_workers))["info"]
        return info

    def render(self) -> Tensor:  # type: ignore[override]
        """Pictures of all environments, (N, H, W, 3) uint8, of the kind that ``render_mode`` names."""
        return torch.cat(self._order("render", [None] * self.num_workers))

    def get_state_dict(self) -> dict[str, Any]:
        """The state of simulation and task, nested dicts of (N, …) tensors; see `MemoryEnv.get_state_dict`."""
        parts = [flatten(part) for part in self._order("get_state_dict", [None] * self.num_workers)]
        return unflatten({path: torch.cat([part[path] for part in parts]) for path in parts[0]})

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Any = None) -> None:
        """Restores what `get_state_dict` saved, in all environments or (rows of b) in ``env_idx`` (b,)."""
        index = self._index(env_idx)
        wrong = {"/".join(path): leaf for path, leaf in flatten(state_dict).items() if not has_rows(leaf, len(index))}
        if wrong:
            raise ValueError(
                f"the state's {', '.join(wrong)} must have a row for each of the {len(index)} environments to restore"
            )
        shares = self._shares(index)
        orders = [(_rows(state_dict, rows), None if env_idx is None else local) for rows, local in shares]
        self._order("set_state_dict", orders)

    @property
    def elapsed_steps(self) -> Tensor:
        """(N,) int32: control steps since each environment's reset."""
        self._require_open()
        return self._shared["elapsed_steps",].clone()

    def close(self) -> None:
        """Ends the workers. May be called twice; whatever else is called then raises RuntimeError."""
        self._end()
        self._shared = {}

    # ------------------------------------------------------------------ inside
    def _require_open(self) -> None:
        if self._crew.ended_by is not None:
            raise RuntimeError(
                f"this environment was closed by an error ({self._crew.ended_by}): make a new one to go on"
            )
        if not self._shared:
            raise RuntimeError("this environment was closed: make a new one to go on")

    def _order(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        self._require_open()
        return self._crew.order(name, arguments)

    def _index(self, env_idx: Any) -> Tensor:
        return torch.arange(self.num_envs) if env_idx is None else checked_env_idx(env_idx, self.num_envs, self.device)

    def _shares(self, index: Tensor) -> list[tuple[list[int], list[int]]]:
        """For each worker the rows of ``index`` that are its own, and the environments there as the worker counts them."""
        shares = []
        for part in self._parts:
            rows = torch.nonzero((index >= part.start) & (index < part.stop)).flatten()
            shares.append((rows.tolist(), (index[rows] - part.start).tolist()))
        return shares

    def _checked_action(self, action: Any) -> Tensor:
        if not isinstance(action, np.ndarray | Tensor):
            raise TypeError(f"the action is a {type(action).__name__}: give a tensor or an array (N, A), or None")
        action = torch.as_tensor(action)
        wanted = self._shared[ACTION].shape
        if action.shape not in (wanted, self.action_space.shape):
            raise ValueError(f"the action has the shape {tuple(action.shape)}: give {tuple(wanted)}")
        bad = torch.isnan(action).reshape(self.num_envs, -1).any(dim=1)
        if bad.any():
            raise ValueError(f"the action of env {torch.nonzero(bad).flatten().tolist()} is NaN")
        return action.reshape(wanted)

    def _gather(self, answers: list[Answer], leader: int = 0) -> dict[str, Any]:
        """The result of all workers. What has no rows, such as a flag for all, is that of the worker ``leader``."""
        shared_by_all = set.intersection(*(set(answer.paths) - answer.others.keys() for answer in answers))
        leaves: dict[Path, Any] = {}
        for path in answers[leader].paths:
            if path in shared_by_all:
                leaves[path] = self._shared[path].clone()
                continue
            leaf = answers[leader].others.get(path)
            joins = path not in answers[leader].others or has_rows(leaf, self._parts[leader].count)
            leaves[path] = self._joined(path, answers) if joins else leaf
        return unflatten(leaves)

    def _joined(self, path: Path, answers: list[Answer]) -> Tensor:
        rows = []
        for number, (part, answer) in enumerate(zip(self._parts, answers, strict=True)):
            if path not in answer.paths:
                raise KeyError(
                    f"{'/'.join(path)} is in the results of some workers and not in those of worker {number}"
                )
            own = answer.others[path] if path in answer.others else self._shared[path][part.start : part.stop]
            rows.append(torch.as_tensor(own))
        return torch.cat(rows)


def _rows(nested: Any, rows: list[int]) -> Any:
    return map_leaves(lambda leaf: torch.as_tensor(leaf)[rows], nested)


def _parts(env_id: str, num_envs: int, num_workers: int | None, kwargs: dict[str, Any]) -> list[Part]:
    """The environments of each worker, as even as may be. Raises ValueError or TypeError for what cannot work."""
    mikasa_robo.find_task(env_id)
    num_envs = positive_int("num_envs", num_envs)
    count = min(default_threads(), num_envs) if num_workers is None else positive_int("num_workers", num_workers)
    if count > num_envs:
        raise ValueError(
            f"num_workers={count} is more than num_envs={num_envs}: each worker needs an environment; "
            f"use num_workers={num_envs} or less"
        )
    backend = kwargs.get("sim_backend", "auto")
    if backend.split(":")[0] in _CUDA_NAMES:
        raise ValueError(
            f"sim_backend={backend!r}: workers share the cores of a CPU, while on a GPU one process simulates all "
            f"environments; use mikasa_robo.make_env({env_id!r}, {num_envs}, sim_backend={backend!r})"
        )
    backend = choose_sim_backend(backend, num_envs, cuda_available=False)
    if num_envs > 1:
        backend = BATCHED  # for a worker with one environment too, so that all are simulated alike
    if kwargs.get("render_mode") == "human":
        raise ValueError("render_mode='human' opens a window for one process: use 'rgb_array', or mikasa_robo.make_env")
    threads = positive_int("sim_threads", kwargs.get("sim_threads", 1))
    arguments = kwargs | {"sim_backend": backend, "sim_threads": threads}
    pickled = {name: _pickled(name, value) for name, value in arguments.items()}
    row = CATALOG[env_id]
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)} | {"kwargs": dict(row.kwargs)}
    bounds = [num_envs * i // count for i in range(count + 1)]
    return [Part(env_id, fields, pickled, start, stop, os.getpid()) for start, stop in itertools.pairwise(bounds)]


def _pickled(name: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name}={value!r} cannot be sent to a worker process ({error}): pickle must be able to store it"
        ) from error
