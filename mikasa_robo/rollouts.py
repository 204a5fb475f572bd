"""Playing whole episodes: one in each environment of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["EpisodeTotals", "Step", "play_episodes"]

Act = Callable[[Any, dict[str, Any]], Any]
"""Maps observations (N, …) and the info that came with them to actions (N, A)."""


@dataclass
class Step:
    """One control step of a batch of N environments."""

    t: int  # control steps since the reset; 0 for the reset itself
    obs: Any
    reward: Tensor  # (N,)
    info: dict[str, Any]
    running: Tensor  # (N,) bool, the episode was not over before this step
    still_running: Tensor  # (N,) bool, the episode is not over after this step either
    terminated: Tensor  # (N,) bool, as ``env.step`` returned it; False at the reset
    truncated: Tensor  # (N,) bool, likewise

    def flag(self, name: str) -> Tensor:
        """``info[name]`` (N,) bool for environments whose episode was running; False where there is no such entry."""
        flag = self.info.get(name)
        return torch.zeros_like(self.running) if flag is None else self.running & flag


@torch.no_grad()
def play_episodes(env: Any, act: Act, seed: int | list[int], max_steps: int) -> Iterator[Step]:
    """Play one episode in each environment, and yield the reset and every step until all episodes are over.

    An environment whose episode is over is stepped on with the others; ``running`` tells which steps count.

    Args:
        env: a batched environment whose flags are tensors.
        act: chooses actions; called once before each step.
        seed: for ``env.reset``: one seed, or one for each environment.
        max_steps: number of control steps after which every episode is over.

    Raises:
        RuntimeError: an episode is not over after ``max_steps`` steps.
    """
    obs, info = env.reset(seed=seed)
    n = env.unwrapped.num_envs
    running = torch.ones(n, dtype=torch.bool, device=env.unwrapped.device)
    nothing = torch.zeros_like(running)
    yield Step(0, obs, torch.zeros(n, device=running.device), info, running, running, nothing, nothing)
    for t in range(1, max_steps + 1):
        obs, reward, terminated, truncated, info = env.step(act(obs, info))
        still_running = running & ~(terminated | truncated)
        reward = torch.as_tensor(reward, device=running.device)
        yield Step(t, obs, reward, info, running, still_running, terminated, truncated)
        running = still_running
        if not bool(running.any()):
            return
    unfinished = running.nonzero().squeeze(1).tolist()
    which = f"seeds {[seed[i] for i in unfinished]}" if isinstance(seed, list) else f"seed {seed}"
    raise RuntimeError(
        f"the episodes of envs {unfinished} ({which}) are not over after {max_steps} steps; the environment must truncate "
        "at its horizon"
    )


class EpisodeTotals:
    """Success, failure, return and length of the episodes of a batch; call `add` with each `Step`."""

    def __init__(self) -> None:
        self.reports_success = False
        """Whether ``info`` had an entry "success"; where not, the flags below are all False."""
        self.success_once = self.success_at_end = self.fail_once = torch.zeros(0, dtype=torch.bool)
        """(N,) bool: a success at some step, a success at the last step, a failure at some step."""
        self.returns = self.lengths = torch.zeros(0)
        """(N,) sum of rewards; (N,) int64 number of control steps."""

    def add(self, step: Step) -> None:
        """Count a step; step 0 starts anew."""
        if step.t == 0:
            self.success_once = self.success_at_end = self.fail_once = torch.zeros_like(step.running)
            self.returns = torch.zeros_like(step.running, dtype=torch.float32)
            self.lengths = torch.zeros_like(step.running, dtype=torch.int64)
            return
        self.reports_success |= "success" in step.info
        success = step.flag("success")
        self.success_once = self.success_once | success
        self.success_at_end = torch.where(step.running, success, self.success_at_end)
        self.fail_once = self.fail_once | step.flag("fail")
        self.returns = self.returns + torch.where(step.running, step.reward, torch.zeros_like(self.returns))
        self.lengths = self.lengths + step.running
