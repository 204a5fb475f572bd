"""What runs in a worker process: it simulates a shard of the batch and writes its rows of the shared memory."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import torch

import mikasa_robo
from mikasa_robo.catalog import CATALOG, TaskSpec

from .nested import Path, flatten, is_batched, map_leaves
from .shared_memory import SharedTensors, TensorSpec

__all__ = [
    "ACTION_PATH",
    "DONE",
    "FAILED",
    "REFUSED",
    "TASK_ATTRIBUTES",
    "Reply",
    "Shard",
    "Worker",
    "run_worker",
    "send",
]

DONE, REFUSED, FAILED = "done", "refused", "failed"
"""The kinds of message that a worker sends: a result, a report of an exception that it survived, or of one that ended it."""
ACTION_PATH: Path = ("action",)
"""Where the shared memory holds the actions (N, A)."""
TASK_ATTRIBUTES = (
    "horizon",
    "instruction",
    "single_action_space",
    "single_observation_space",
    "metadata",
    "control_freq",
    "sim_freq",
    "control_mode",
    "obs_mode",
    "obs_layout",
    "arm",
    "on_mistake",
    "reward_mode",
    "render_mode",
    "reconfiguration_freq",
    "reset_options",
    "robot_uids",
)
"""Attributes of the task that `WorkerEnv` copies."""
CONSTRUCTOR_SEED = 2022
"""ManiSkill's constructor resets environment i with the seed 2022 + i. Unseeded first episodes follow from that."""


@dataclass(frozen=True)
class Shard:
    """Environments ``start`` to ``stop - 1`` of a batch, and how a worker process makes them."""

    env_id: str
    row: Mapping[str, Any]
    """The fields of the task's catalog row. A task that the user registered is not known in a new process."""
    kwargs: Mapping[str, bytes]
    """Arguments of the task, each of them pickled."""
    start: int
    stop: int
    main_process: int
    """The process ID of the main process."""

    @property
    def num_envs(self) -> int:
        """How many environments the shard has."""
        return self.stop - self.start

    def make(self) -> Any:
        """The environments of the shard, as a batch of their own."""
        if self.env_id not in CATALOG:
            mikasa_robo.register_task(TaskSpec(**self.row))
        kwargs = {name: pickle.loads(value) for name, value in self.kwargs.items()}
        return mikasa_robo.make_env(self.env_id, self.num_envs, **kwargs)


@dataclass(frozen=True)
class Reply:
    """The result of a request: the worker wrote some leaves to the shared memory and sends the others."""

    paths: tuple[Path, ...]
    """All leaves of the result, in order."""
    sent: Mapping[Path, Any]
    """The leaves that are not in the shared memory."""


class Worker:
    """The environments of one shard. Its public methods are the requests that a worker process answers."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._env = shard.make()
        self._task = self._env.unwrapped
        self._shared: dict[Path, torch.Tensor] = {}
        self._obs, self._info = self._env.reset(seed=[CONSTRUCTOR_SEED + i for i in range(shard.start, shard.stop)])

    def describe(self) -> dict[str, Any]:
        """What the main process needs: the task's attributes, its step limit, a state and the tensors of its results."""
        task, count = self._task, self._shard.num_envs
        state, limits = task.state_form()
        flags, numbers = torch.zeros(count, dtype=torch.bool), torch.zeros(count)
        result = self._observed() | {"reward": numbers, "terminated": flags, "truncated": flags}
        specs = [
            TensorSpec(path, tuple(leaf.shape[1:]), leaf.dtype)
            for path, leaf in flatten(result).items()
            if is_batched(leaf, count) and isinstance(leaf, torch.Tensor)
        ]
        specs.append(TensorSpec(ACTION_PATH, task.single_action_space.shape, torch.float32))
        return {name: getattr(task, name) for name in TASK_ATTRIBUTES} | {
            "tensor_specs": specs,
            "max_episode_steps": self._env.get_wrapper_attr("_max_episode_steps"),
            "state_form": (map_leaves(lambda leaf: leaf[:1].cpu(), state), limits),
        }

    def share_memory(self, descriptor: int, num_envs: int, specs: list[TensorSpec]) -> None:
        """Maps the shared memory of the whole batch and keeps the rows of this shard."""
        rows = slice(self._shard.start, self._shard.stop)
        shared = SharedTensors(descriptor, num_envs, specs)
        self._shared = {path: tensor[rows] for path, tensor in shared.tensors.items()}

    def step(self, has_action: bool) -> Reply:
        """Steps with the actions in the shared memory, or with ``None`` if there are none."""
        action = self._shared[ACTION_PATH].clone() if has_action else None
        self._obs, reward, terminated, truncated, self._info = self._env.step(action)
        flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return self._publish(self._observed() | flags)

    def reset(self, request: tuple[Any, dict[str, Any]] | None) -> Reply:
        """Resets with (seed, options). None: only other shards are reset, and this one observes again."""
        if request is None:
            return self.observe(None)
        seed, options = request
        self._obs, self._info = self._env.reset(seed=seed, options=options)
        return self._publish(self._observed())

    def observe(self, _: None) -> Reply:
        """The current observation and info."""
        self._info = self._task.get_info()
        self._obs = self._task.get_obs(self._info)
        return self._publish(self._observed())

    def get_state_dict(self, _: None) -> Any:
        """The state of the shard's environments."""
        return self._task.get_state_dict()

    def set_state_dict(self, request: tuple[Any, list[int] | None]) -> Reply:
        """Restores (state, env_idx)."""
        state, env_idx = request
        if env_idx is None:
            self._task.set_state_dict(state)
        elif env_idx:
            self._task.set_state_dict(state, torch.tensor(env_idx))
        return self._publish({"elapsed_steps": self._task.elapsed_steps})

    def render(self, _: None) -> torch.Tensor:
        """Images of the shard's environments, (n, H, W, 3) uint8."""
        return torch.as_tensor(self._env.render()).cpu()

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def _observed(self) -> dict[str, Any]:
        return {"obs": self._obs, "info": self._info, "elapsed_steps": self._task.elapsed_steps}

    def _publish(self, result: dict[str, Any]) -> Reply:
        leaves = flatten(result)
        sent = {}
        for path, leaf in leaves.items():
            shared = self._shared.get(path)
            if not isinstance(leaf, torch.Tensor):
                sent[path] = leaf
            elif shared is not None and leaf.shape == shared.shape and leaf.dtype == shared.dtype:
                shared.copy_(leaf)
            else:
                sent[path] = leaf.cpu()
        return Reply(tuple(leaves), sent)


def send(connection: Connection, message: Any) -> None:
    """Sends what ``connection.recv`` receives.

    ``connection.send`` would move every tensor into a shared memory of its own, which is slower for small ones.
    """
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def run_worker(connection: Connection, shard: Shard) -> None:
    """The main function of a worker process. It ends on a close request or when the main process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes; the main one decides
    faulthandler.enable(recv_handle(connection))
    threading.Thread(target=_exit_with, args=(shard.main_process,), daemon=True).start()
    torch.set_num_threads(1)
    exit_code = 0
    try:
        _serve(connection, shard)
    except (EOFError, ConnectionError):
        pass  # the main process has ended
    except BaseException as error:
        exit_code = 1
        send(connection, (FAILED, (traceback.format_exc(), _picklable(error))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # a regular exit takes a second, to unload the libraries


def _serve(connection: Connection, shard: Shard) -> None:
    worker = Worker(shard)
    send(connection, (DONE, worker.describe()))
    _, (num_envs, specs) = connection.recv()
    worker.share_memory(recv_handle(connection), num_envs, specs)
    while True:
        name, argument = connection.recv()
        if name == "close":
            worker.close()
            return
        method: Callable[[Any], Any] = getattr(worker, name)
        try:
            reply = (DONE, method(argument))
        except Exception as error:
            if name == "step":  # the batch is no longer at one time, and a simulation that broke in it may stay broken
                raise
            reply = (REFUSED, (traceback.format_exc(), _picklable(error)))
        send(connection, reply)


def _exit_with(main_process: int) -> None:
    """Ends this process when the main process has ended, even while a request is being answered.

    The closed pipe does not tell it as long as a fork of the main process holds the other end.
    """
    while os.getppid() == main_process:
        time.sleep(1.0)
    os._exit(1)


def _picklable(error: BaseException) -> BaseException | None:
    """``error`` if it can be sent to the main process, else None."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error if type(copy) is type(error) else None
