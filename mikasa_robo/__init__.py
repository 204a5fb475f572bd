"""MIKASA-Robo: robot tasks that cannot be solved without memory, on ManiSkill3.

Importing this package registers every task with Gymnasium. It does not load torch, SAPIEN or ManiSkill: those are loaded
with the first environment that is made.

    >>> import mikasa_robo
    >>> "RememberColor3-v0" in mikasa_robo.TASKS
    True
"""

import difflib
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import parse_env_id

from mikasa_robo.catalog import CATALOG, TaskSpec, add_row
from mikasa_robo.checks import step_limit
from mikasa_robo.env_spec import batched_env_spec
from mikasa_robo.moved_modules import install_moved_modules

if TYPE_CHECKING:
    from mikasa_robo.workers.env import WorkerEnv

__all__ = ["CATALOG", "TASKS", "TaskSpec", "__version__", "find_task", "make_env", "make_vec", "register_task"]

try:
    __version__ = version("mikasa-suite")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0.0.0+unknown"

TASKS: tuple[str, ...] = tuple(CATALOG)
"""The IDs of this package, in the order of the catalog; `register_task` adds to CATALOG only."""


def make_env(
    env_id: str, num_envs: int = 1, *, num_workers: int | None = None, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Make the task ``env_id`` as one batched environment of ``num_envs`` copies.

    With ``num_workers``, that many processes simulate the batch on CPU. Episodes, observations and rewards are the same
    to the bit for any number of workers, and the same as without workers on the batched CPU simulator. Workers pay off
    where there are more cores than the threads of one process can use; ``benchmarks/sim_speed.py`` measures it. A script
    that uses workers must start its work under ``if __name__ == "__main__":``, as each worker imports the script.

    Args:
        env_id: one of :data:`TASKS`, or the ID of a task that :func:`register_task` added.
        num_envs: how many copies are simulated side by side.
        num_workers: None simulates in this process; k >= 1 starts k worker processes, at most ``num_envs``.
        **kwargs: go to the task's constructor; see the class its catalog row names. With workers, ``sim_threads`` is
            the number of threads of each worker, by default 1.

    Returns:
        What ``gymnasium.make`` returns: actions, observations, rewards and flags carry a leading axis of ``num_envs``.
        With workers, a `mikasa_robo.workers.env.WorkerEnv`: spaces, `reset`, `step`, `render` and saved states are the
        same. It has a copy of the task's plain attributes, such as ``arm``; the simulation itself is in the workers.

    Raises:
        ValueError: there is no task with this ID, or an argument cannot be used, such as a GPU backend with workers. No
            process has been started.
        TypeError: an argument cannot be pickled for the workers. No process has been started.
        mikasa_robo.workers.env.WorkerError: a worker died. An exception in the task's constructor is raised itself.
    """
    find_task(env_id)
    if kwargs.get("max_episode_steps") is not None:
        kwargs["max_episode_steps"] = step_limit(kwargs["max_episode_steps"])
    if num_workers is None:
        return gymnasium.make(env_id, num_envs=num_envs, **kwargs)
    from mikasa_robo.workers.env import WorkerEnv

    return WorkerEnv(env_id, num_envs, num_workers, **kwargs)


def make_vec(env_id: str, num_envs: int = 1, num_workers: int | None = None, **kwargs: Any) -> "WorkerEnv":
    """Make the task ``env_id`` with worker processes. Deprecated: use :func:`make_env` with ``num_workers``.

    Here ``num_workers=None`` starts one worker for each core, at most ``num_envs``.
    """
    warnings.warn(
        "mikasa_robo.make_vec is deprecated; use mikasa_robo.make_env with num_workers",
        DeprecationWarning,
        stacklevel=2,
    )
    from mikasa_robo.sim.stepping import default_threads
    from mikasa_robo.workers.env import WorkerEnv

    if num_workers is None:
        num_workers = max(1, min(default_threads(), num_envs))
    return WorkerEnv(env_id, num_envs, num_workers, **kwargs)


def find_task(env_id: str) -> TaskSpec:
    """Return the catalog row of a task. Raises ValueError, which names similar IDs, if there is none."""
    row = CATALOG.get(env_id)
    if row is None:
        close = difflib.get_close_matches(env_id, CATALOG, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`mikasa list` shows all of them."
        raise ValueError(f"There is no task with the ID {env_id!r}; {hint}")
    return row


def _register(catalog: Mapping[str, TaskSpec]) -> None:
    """Register tasks with Gymnasium."""
    for row in catalog.values():
        known = gymnasium.registry.get(row.id)
        if known is not None and known.entry_point == row.entry_point:
            continue  # this module was reloaded
        gymnasium.register(row.id, row.entry_point)  # checks the ID and warns where it is taken
        gymnasium.registry[row.id] = batched_env_spec(row)


def register_task(row: TaskSpec) -> None:
    """Register a task of your own with Gymnasium and add it to the catalog.

    Its constructor is given ``row.make_kwargs``: the lengths of the phases and the row's own arguments. See
    ``docs/adding-a-task.md``.

    Raises:
        ValueError: another row has the ID, or ``row.entry_point`` names no class.
        gymnasium.error.Error: the ID does not have the form ``"Name-v0"``.
    """
    if not isinstance(row.entry_point, str) or ":" not in row.entry_point:
        raise ValueError(f"{row.id!r} has entry_point={row.entry_point!r}: name its class as 'module:Class'")
    parse_env_id(row.id)
    add_row(row)
    _register({row.id: row})


_register(CATALOG)
install_moved_modules()
