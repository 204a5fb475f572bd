"""How often a policy succeeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch

import mikasa_robo
from mikasa_robo.core.env import MemoryEnv

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
        z, n = NormalDist().inv_cdf((1 + level) / 2), self.episodes
        middle = (self.rate + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * (self.rate * (1 - self.rate) / n + z * z / (4 * n * n)) ** 0.5
        return max(0.0, middle - half), min(1.0, middle + half)

    def in_percent(self) -> str:
        """Success rate and its 95 % interval in percent, for tables."""
        low, high = self.interval()
        return f"{100 * self.rate:.1f} ({100 * low:.0f} to {100 * high:.0f})"


@torch.no_grad()
def evaluate(
    env_id: str, make_policy: PolicyMaker, episodes: int = 100, num_envs: int = 64, seed: int = 0, **kwargs: Any
) -> Outcome:
    """Run a policy in batches of episodes, each until its success, its failure or its end.

    Args:
        env_id: one of `mikasa_robo.TASKS`.
        make_policy: makes the policy for the skill of the task.
        episodes: number of episodes, rounded up to whole batches of ``num_envs``.
        num_envs: episodes at a time.
        seed: batch j has the seed ``seed + j``.
        **kwargs: arguments of the task, such as ``arm="held"``.
    """
    num_envs = min(num_envs, episodes)
    env: Any = mikasa_robo.make_env(env_id, num_envs, obs_mode=OBS_MODE, **kwargs)
    task: MemoryEnv[Any] = env.unwrapped
    policy = make_policy(make_skill(env_id, task))
    successes = failures = steps = total = 0
    for batch in range(-(-episodes // num_envs)):
        obs, info = env.reset(seed=seed + batch)
        policy.reset()
        done = torch.zeros(num_envs, dtype=torch.bool, device=task.device)
        won = torch.zeros_like(done)
        for t in range(1, task.horizon + 1):
            obs, _, _, _, info = env.step(policy.act(obs, info))
            new = info["success"] & ~done
            steps += t * int(new.sum())
            won |= new
            done |= info["success"] | info["fail"]
            if bool(done.all()):
                break
        total += num_envs
        successes += int(won.sum())
        failures += int((done & ~won).sum())
    env.close()
    return Outcome(total, successes, failures, steps / successes if successes else float("nan"))
