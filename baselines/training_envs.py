"""The environments that a run learns in."""

from __future__ import annotations

import contextlib
from typing import Any

from .arguments import ArgumentError, CommonArgs
from .distributed import DistContext
from .env_wrappers import (
    ContinueAfterSuccess,
    EndAtSuccess,
    GymnasiumVectorEnv,
    PotentialShaping,
    ShowStateToCritic,
    StaggeredEpisodes,
)
from .environments import UNKNOWN_HORIZON, EnvFactory
from .evaluation import find_horizon

__all__ = ["TrainingEnvs", "require_same_spaces"]


class TrainingEnvs:
    """The batched environments of a run: those of ``--train-env-kwargs`` and, from ``--curriculum-share`` on, the task.

    Args:
        args: of the run.
        env_factory: makes the environments of the task itself.
        train_env_factory: makes those that training begins with.
        dist: this process among those that train together.
        step: environment steps that the run has had; more than 0 where it is resumed.

    Raises:
        ArgumentError: an argument is not for this kind of environment.
        RuntimeError, ValueError, gym.error.Error: the environments cannot be made.
    """

    def __init__(
        self, args: CommonArgs, env_factory: EnvFactory, train_env_factory: EnvFactory, dist: DistContext, step: int = 0
    ) -> None:
        self._args, self._env_factory, self._dist = args, env_factory, dist
        self._open = contextlib.ExitStack()
        self.raw: Any
        """The environments as they were made."""
        self.horizon: int
        """Upper bound of the length of an episode, in steps."""
        self.plays_task = self._task_begins(step)
        """Whether the curriculum is over."""
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            self.env = StaggeredEpisodes(*self._make(env_factory if self.plays_task else train_env_factory))
            """The environments with all that training adds to them. The object stays the same when the curriculum ends."""
            on_error.pop_all()

    def advance(self, step: int) -> bool:
        """Replace the environments by those of the task if the curriculum ends at this step of the run.

        Returns:
            Whether they were replaced. Then they have to be reset.
        """
        if self.plays_task or not self._task_begins(step):
            return False
        self.close()
        self.plays_task = True
        self.env.replace(*self._make(self._env_factory))
        return True

    def close(self) -> None:
        """Close the environments. A second call does nothing."""
        self._open.close()

    def _task_begins(self, step: int) -> bool:
        return step >= self._args.curriculum_share * self._args.total_timesteps

    def _make(self, factory: EnvFactory) -> tuple[Any, int, int, DistContext]:
        """Make environments, and return the arguments of `StaggeredEpisodes` for them."""
        self.raw = factory(self._args.num_envs, None)
        self._open.callback(self.raw.close)
        self.horizon = find_horizon(self.raw)
        # Environments can be spread over an episode only where its length is known.
        groups = self._args.stagger_groups if self.horizon < UNKNOWN_HORIZON else 1
        return self._prepared(), groups, self.horizon, self._dist

    def _prepared(self) -> Any:
        """The environments with automatic resets, and with what the arguments change in training alone."""
        from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

        args, env = self._args, self.raw
        if not isinstance(env, GymnasiumVectorEnv):
            wrapped = _until_success(env, args)
            if args.critic_obs is not None:
                wrapped = _show_state(wrapped, args)
            return ManiSkillVectorEnv(wrapped, record_metrics=True)
        if args.critic_obs is not None:
            raise ArgumentError(f"--critic-obs {args.critic_obs} is for the robot tasks of `mikasa list`; leave it out")
        if args.success_worth is not None:
            raise ArgumentError(
                f"--success-worth {args.success_worth:g} is for robot tasks, and {args.env_id} is not one; leave it out"
            )
        return env


def _until_success(env: Any, args: CommonArgs) -> Any:
    """A robot task whose training episodes end, or go on, at a success as the arguments say."""
    if args.potential_shaping:
        gamma: float = args.gamma  # type: ignore[attr-defined]  # of the algorithms that have this option
        assert args.success_worth is not None  # `PPOArgs.check`
        try:
            return PotentialShaping(env, gamma, args.success_worth)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
    if args.success_worth is not None:
        return EndAtSuccess(env, args.success_worth)
    return ContinueAfterSuccess(env) if args.train_to_horizon else env


def _show_state(env: Any, args: CommonArgs) -> ShowStateToCritic:
    try:
        return ShowStateToCritic(env)
    except ValueError as error:
        raise ArgumentError(f"--env-id {args.env_id}: {error}") from error


def require_same_spaces(args: CommonArgs, train_env: Any, eval_env: Any) -> None:
    """Raise ArgumentError where a policy of the training environments cannot act in those for evaluation."""
    for name in ("single_observation_space", "single_action_space"):
        ours, theirs = (getattr(env.unwrapped, name) for env in (train_env, eval_env))
        if ours != theirs:
            raise ArgumentError(
                f"--train-env-kwargs {' '.join(args.train_env_kwargs)}: the {name} {ours} of training differs from "
                f"{theirs} of evaluation; use arguments that leave it as it is, or --env-kwargs for both"
            )
