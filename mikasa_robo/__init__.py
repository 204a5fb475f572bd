"""MIKASA-Robo: robot tasks that cannot be solved without memory, on ManiSkill3.

Importing this package registers every task with Gymnasium. It does not load torch, SAPIEN or ManiSkill: those are loaded
with the first environment that is made.

    >>> import mikasa_robo
    >>> "RememberColor3-v0" in mikasa_robo.TASKS
    True
"""

import difflib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec, parse_env_id

from mikasa_robo.catalog import CATALOG, TaskSpec, add_row

if TYPE_CHECKING:
    from mikasa_robo.workers.env import WorkerEnv

__all__ = ["CATALOG", "TASKS", "TaskSpec", "__version__", "find_task", "make_env", "make_vec", "register_task"]

try:
    __version__ = version("mikasa-suite")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0.0.0+unknown"

TASKS: tuple[str, ...] = tuple(CATALOG)
"""The IDs of this package, in the order of the catalog; `register_task` adds to CATALOG only."""


def make_env(env_id: str, num_envs: int = 1, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make the task ``env_id`` as one batched environment of ``num_envs`` copies.

    Args:
        env_id: one of :data:`TASKS`.
        num_envs: how many copies are simulated side by side.
        **kwargs: go to the task's constructor; see the class its catalog row names.

    Returns:
        What ``gymnasium.make`` returns: actions, observations, rewards and flags carry a leading axis of ``num_envs``.

    Raises:
        ValueError: there is no task with this ID.
    """
    find_task(env_id)
    return gymnasium.make(env_id, num_envs=num_envs, **kwargs)


def make_vec(env_id: str, num_envs: int = 1, num_workers: int | None = None, **kwargs: Any) -> "WorkerEnv":
    """Make the task ``env_id`` as one batched environment that several processes simulate on CPU.

    What it returns behaves like the environment of :func:`make_env` with ``sim_backend="physx_cpu"``: environment i is
    the same episode whatever the number of workers. Worth it where there are more cores than the threads of one process
    can use; see ``benchmarks/sim_speed.py``. Like any program that starts processes with the standard library, a script
    that calls this needs its ``if __name__ == "__main__":``.

    Args:
        env_id: one of :data:`TASKS`, or one that :func:`register_task` was told of.
        num_envs: how many copies are simulated.
        num_workers: processes that share them, at most ``num_envs``; None: one for each core.
        **kwargs: go to the task's constructor. ``sim_threads``, threads of each worker, is 1 by default.

    Raises:
        ValueError: a bad argument, such as a GPU backend (one process uses the GPU); no process was started.
        TypeError: an argument that cannot be pickled.
        WorkerError: a worker died, now or in a later call; see `mikasa_robo.workers.env.WorkerEnv`. What the task's own
            constructor raises is raised here too.
    """
    from mikasa_robo.workers.env import WorkerEnv

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
    """Register tasks with Gymnasium.

    Without ``max_episode_steps``: Gymnasium's own limit counts for one env, but a batch has to count for each env.
    """
    limit = WrapperSpec("BatchedTimeLimit", "mikasa_robo.utils.wrappers.time_limit:BatchedTimeLimit", {})
    for row in catalog.values():
        known = gymnasium.registry.get(row.id)
        if known is not None and known.entry_point == row.entry_point:
            continue  # this module was reloaded
        gymnasium.register(
            id=row.id,
            entry_point=row.entry_point,
            kwargs=row.make_kwargs,
            disable_env_checker=True,
            order_enforce=False,
            additional_wrappers=(limit,),
        )


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
