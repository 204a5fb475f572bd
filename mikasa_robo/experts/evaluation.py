"""How often a policy succeeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import mikasa_robo
from mikasa_robo.rollouts import EpisodeTotals, play_episodes
from mikasa_robo.statistics import wilson_interval

from .policies import OBS_MODE, Policy
from .registry import make_skill
from .skill import Skill

PolicyMaker = Callable[[Skill], Policy]


@dataclass
class Outcome:
    """Success over episodes."""

    episodes: int
    successes: int
    failures: int
    """Episodes that ended with a mistake."""
    mean_length: float
    """Mean number of control steps until success, over the successful episodes; nan if there is none."""

    @property
    def rate(self) -> float:
        """Fraction of the episodes that succeeded."""
        return self.successes / self.episodes

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Wilson's interval of the success rate."""
        return wilson_interval(self.successes, self.episodes, level)

    def in_percent(self) -> str:
        """Success rate and its 95 % interval in percent, for tables."""
        low, high = self.interval()
        return f"{100 * self.rate:.1f} ({100 * low:.0f} to {100 * high:.0f})"


@torch.no_grad()
def evaluate(
    env_id: str,
    make_policy: PolicyMaker,
    episodes: int = 100,
    num_envs: int = 64,
    seed: int = 0,
    on_step: Callable[[], None] | None = None,
    **kwargs: Any,
) -> Outcome:
    """Run a policy in batches of episodes, each until its success, its failure or its end.

    Args:
        env_id: one of `mikasa_robo.TASKS`.
        make_policy: makes the policy for the skill of the task.
        episodes: number of episodes, rounded up to whole batches of ``num_envs``.
        num_envs: episodes at a time.
        seed: batch j has the seed ``seed + j``.
        on_step: called after each control step of a batch.
        **kwargs: arguments of the task, such as ``arm="held"``.

    Raises:
        UnfitPolicyError: the policy is for other tasks.
    """
    num_envs = min(num_envs, episodes)
    env: Any = mikasa_robo.make_env(env_id, num_envs, obs_mode=OBS_MODE, **kwargs)
    successes = failures = steps = total = 0
    totals = EpisodeTotals()
    with contextlib.closing(env):
        policy = make_policy(make_skill(env_id, env.unwrapped))
        limit = env.get_wrapper_attr("_max_episode_steps")
        for batch in range(-(-episodes // num_envs)):
            for step in play_episodes(env, policy.act, seed + batch, limit):
                if step.t == 0:
                    policy.reset()
                totals.add(step)
                if on_step is not None:
                    on_step()
            total += num_envs
            successes += int(totals.success_once.sum())
            failures += int((totals.fail_once & ~totals.success_once).sum())
            steps += int(totals.lengths[totals.success_once].sum())
    return Outcome(total, successes, failures, steps / successes if successes else float("nan"))
