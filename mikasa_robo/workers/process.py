"""A worker process: simulates its part of a batch and keeps its rows of the shared memory up to date."""

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

from .rows import Column, Path, SharedRows, flatten, has_rows

DONE, FAILED = "done", "failed"
ACTION: Path = ("action",)
FACTS = (
    "horizon",
    "instruction",
    "single_action_space",
    "single_observation_space",
    "metadata",
    "control_freq",
    "sim_freq",
    "control_mode",
    "obs_mode",
    "reward_mode",
    "render_mode",
    "reconfiguration_freq",
    "robot_uids",
)
"""Attributes of the task that `WorkerEnv` has too."""
MAKING_SEED = 2022
"""ManiSkill resets environment i with 2022 + i while it makes it; the first unseeded episodes follow from that."""


@dataclass(frozen=True)
class Part:
    """Environments ``start`` to ``stop - 1`` of a batch: what a worker is told when it starts."""

    env_id: str
    row: Mapping[str, Any]
    """The fields of the task's catalog row, which only the main process may know."""
    kwargs: Mapping[str, bytes]
    """Arguments of the task, each of them pickled."""
    start: int
    stop: int
    main_process: int
    """Its process ID."""

    @property
    def count(self) -> int:
        """How many environments they are."""
        return self.stop - self.start

    def make(self) -> Any:
        """The environments, as a batch of their own."""
        if self.env_id not in CATALOG:
            mikasa_robo.register_task(TaskSpec(**self.row))
        kwargs = {name: pickle.loads(value) for name, value in self.kwargs.items()}
        return mikasa_robo.make_env(self.env_id, self.count, **kwargs)


@dataclass(frozen=True)
class Answer:
    """The leaves of a result: those that have a place in the shared memory are there, the others here."""

    paths: tuple[Path, ...]
    others: Mapping[Path, Any]


class Worker:
    """The environments of a part. Its public methods are the orders that a worker knows."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._env = part.make()
        self._task = self._env.unwrapped
        self._shared: dict[Path, torch.Tensor] = {}
        self._obs, self._info = self._env.reset(seed=[MAKING_SEED + i for i in range(part.start, part.stop)])

    def introduce(self) -> dict[str, Any]:
        """What the main process has to know about the task, and which columns its results have."""
        task, count = self._task, self._part.count
        flag, number = torch.zeros(count, dtype=torch.bool), torch.zeros(count)
        result = self._seen() | {"reward": number, "terminated": flag, "truncated": flag}
        columns = [
            Column(path, tuple(leaf.shape[1:]), leaf.dtype)
            for path, leaf in flatten(result).items()
            if has_rows(leaf, count) and isinstance(leaf, torch.Tensor)
        ]
        columns.append(Column(ACTION, task.single_action_space.shape, torch.float32))
        return {name: getattr(task, name) for name in FACTS} | {
            "columns": columns,
            "max_episode_steps": self._env.get_wrapper_attr("_max_episode_steps"),
        }

    def share(self, descriptor: int, num_envs: int, columns: list[Column]) -> None:
        """Maps the shared memory of the whole batch."""
        rows = slice(self._part.start, self._part.stop)
        shared = SharedRows(descriptor, num_envs, columns)
        self._shared = {path: tensor[rows] for path, tensor in shared.tensors.items()}

    def step(self, acts: bool) -> Answer:
        """A step with the actions in the shared memory, or without any."""
        action = self._shared[ACTION].clone() if acts else None
        self._obs, reward, terminated, truncated, self._info = self._env.step(action)
        flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return self._publish(self._seen() | flags)

    def reset(self, order: tuple[Any, dict[str, Any]] | None) -> Answer:
        """A reset with (seed, options); None: the reset is of other workers' environments, these are only looked at."""
        if order is None:
            return self.look(None)
        seed, options = order
        self._obs, self._info = self._env.reset(seed=seed, options=options)
        return self._publish(self._seen())

    def look(self, order: None) -> Answer:
        """The present observation and info."""
        self._info = self._task.get_info()
        self._obs = self._task.get_obs(self._info)
        return self._publish(self._seen())

    def get_state_dict(self, order: None) -> Any:
        """The state of these environments."""
        return self._task.get_state_dict()

    def set_state_dict(self, order: tuple[Any, list[int] | None]) -> Answer:
        """Restores (state, env_idx)."""
        state, env_idx = order
        if env_idx is None:
            self._task.set_state_dict(state)
        elif env_idx:
            self._task.set_state_dict(state, torch.tensor(env_idx))
        return self._publish({"elapsed_steps": self._task.elapsed_steps})

    def render(self, order: None) -> torch.Tensor:
        """(n, H, W, 3) uint8."""
        return torch.as_tensor(self._env.render()).cpu()

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def _seen(self) -> dict[str, Any]:
        return {"obs": self._obs, "info": self._info, "elapsed_steps": self._task.elapsed_steps}

    def _publish(self, result: dict[str, Any]) -> Answer:
        leaves = flatten(result)
        others = {}
        for path, leaf in leaves.items():
            place = self._shared.get(path)
            if (
                place is not None
                and isinstance(leaf, torch.Tensor)
                and (leaf.shape, leaf.dtype)
                == (
                    place.shape,
                    place.dtype,
                )
            ):
                place.copy_(leaf)
            else:
                others[path] = leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
        return Answer(tuple(leaves), others)


def send(connection: Connection, message: Any) -> None:
    """Sends what ``connection.recv`` receives. Its own ``send`` would put every tensor into a shared memory of its own."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def run(connection: Connection, part: Part) -> None:
    """The life of a worker: it follows orders until it is told to close or its main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the main process decides
    faulthandler.enable(recv_handle(connection))
    threading.Thread(target=_end_with, args=(part.main_process,), daemon=True).start()
    torch.set_num_threads(1)
    exit_code = 0
    try:
        _follow(connection, part)
    except (EOFError, ConnectionError):
        pass  # nobody is left to work for
    except BaseException as error:
        exit_code = 1
        send(connection, (FAILED, (traceback.format_exc(), _portable(error))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # to take the interpreter and its libraries down in order takes a second


def _follow(connection: Connection, part: Part) -> None:
    worker = Worker(part)
    send(connection, (DONE, worker.introduce()))
    _, (num_envs, columns) = connection.recv()
    worker.share(recv_handle(connection), num_envs, columns)
    while True:
        order, argument = connection.recv()
        if order == "close":
            worker.close()
            return
        method: Callable[[Any], Any] = getattr(worker, order)
        send(connection, (DONE, method(argument)))


def _end_with(main_process: int) -> None:
    """Ends this process when the main one is gone, even in the middle of an order.

    The end of the pipe would tell, unless a fork of the main process still holds it.
    """
    while os.getppid() == main_process:
        time.sleep(1.0)
    os._exit(1)


def _portable(error: BaseException) -> BaseException | None:
    """``error`` if the main process can be sent it, else None."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error if type(copy) is type(error) else None
