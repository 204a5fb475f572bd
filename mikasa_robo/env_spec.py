"""What Gymnasium's registry holds of a task, for ``gymnasium.make`` and for ``gymnasium.make_vec``."""

import copy
from typing import Any

from gymnasium.envs.registration import EnvSpec, WrapperSpec

from mikasa_robo.catalog import TaskSpec

__all__ = ["BatchedEnvSpec", "batched_env_spec"]

TIME_LIMIT = WrapperSpec("BatchedTimeLimit", "mikasa_robo.utils.wrappers.time_limit:BatchedTimeLimit", {})


class BatchedEnvSpec(EnvSpec):
    """The spec of a task that simulates a batch by itself.

    ``gymnasium.make`` reads the registered spec: the task's class and its time limit, a wrapper. ``gymnasium.make_vec``
    reads a deep copy, and takes no ``vector_entry_point`` from a spec with wrappers. A deep copy of this spec is therefore
    an `EnvSpec` without wrappers, whose entry points put the time limit into what they make: `make_vector_env` and, for
    ``vectorization_mode="sync"`` and ``"async"``, `make_single_env`.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> EnvSpec:
        return EnvSpec(
            id=self.id,
            entry_point="mikasa_robo.vector:make_single_env",
            vector_entry_point=self.vector_entry_point,
            order_enforce=False,
            disable_env_checker=True,
            kwargs={"env_id": self.id, "task": self.entry_point, **copy.deepcopy(self.kwargs, memo)},
        )


def batched_env_spec(row: TaskSpec) -> BatchedEnvSpec:
    """The spec under which a task is registered.

    Without ``max_episode_steps``: Gymnasium's own limit counts for one env, but a batch has to count for each env.
    """
    return BatchedEnvSpec(
        id=row.id,
        entry_point=row.entry_point,
        vector_entry_point="mikasa_robo.vector:make_vector_env",
        order_enforce=False,
        disable_env_checker=True,
        kwargs=row.make_kwargs,
        additional_wrappers=(TIME_LIMIT,),
    )
