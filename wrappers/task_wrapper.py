"""Base class of the wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym

from mikasa_robo.core.env import MemoryEnv

__all__ = ["TaskWrapper"]


class TaskWrapper(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A wrapper of a batched MIKASA task, or of other wrappers of one.

    A subclass that needs only what every ManiSkill task has sets ``base_class`` to ``BaseEnv``. A subclass with arguments of
    its own first passes them to ``gym.utils.RecordConstructorArgs.__init__``. Then ``gymnasium.make(env.spec)`` makes the
    same environment again.

    Args:
        env: a task as ``gymnasium.make`` returns it, with any number of environments.

    Raises:
        TypeError: ``env`` is not a MIKASA task, or its observations have no batch axis any more and the wrapper needs it.
    """

    base_class: ClassVar[type[Any]] = MemoryEnv
    unbatches: ClassVar[bool] = False
    """Whether its results have no batch axis."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env, gym.Env) or not isinstance(env.unwrapped, self.base_class):
            kind = "MIKASA" if self.base_class is MemoryEnv else "ManiSkill"
            from mikasa_robo.workers.env import WorkerEnv

            if isinstance(env, gym.Env) and isinstance(env.unwrapped, WorkerEnv):
                raise TypeError(
                    f"{type(self).__name__} needs the simulation in this process, but {env!r} runs it in workers: make the "
                    "environment without num_workers"
                )
            raise TypeError(
                f"{type(self).__name__} wraps {kind} tasks, such as gymnasium.make('RememberColor3-v0'), not {env!r}"
            )
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def _require_batched(self) -> None:
        """Raises TypeError if a wrapper inside takes the batch axis off."""
        env: Any = self.env
        while isinstance(env, gym.Wrapper):
            if getattr(env, "unbatches", False):
                raise TypeError(
                    f"{type(self).__name__} changes batched observations, and {type(env).__name__} inside takes the batch "
                    f"axis off: put {type(env).__name__} outside"
                )
            env = env.env

    @property
    def task(self) -> MemoryEnv[Any]:
        """The task below all wrappers."""
        task: Any = self.unwrapped
        return task

    def reset(
        self, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the task. The seed may be positional, as in the task itself and unlike in Gymnasium's wrappers."""
        return self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
