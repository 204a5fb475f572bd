"""The causal swap: in the middle of their episodes, policies get each other's recurrent states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.baselines.spaces import State, map_tensors

from .probe_cues import CueRule, copy_state
from .probe_play import Batch, Player, RecurrentPolicy, play

__all__ = ["JudgedEnv", "Swapped", "match", "swap"]

MEMORY, SIGHT, NEITHER = "memory", "sight", "neither"
"""Whose cue an episode was done with: that of the state it was given, the one it had seen itself, or none of the two."""
OVER, ACTED, ALIKE = "over", "acted", "equal cue"
"""Why an episode takes no part."""
NEVER = 2**62


@dataclass
class Swapped:
    """The episodes of a swap."""

    when: int  # the state is exchanged before this step
    followed: dict[int, str] = field(default_factory=dict)  # by the number of the episode: MEMORY, SIGHT or NEITHER
    partner: dict[int, int] = field(default_factory=dict)  # whose state it was given
    skipped: dict[int, str] = field(default_factory=dict)  # OVER, ACTED or ALIKE

    def count(self, followed: str) -> int:
        """Number of episodes that followed this cue."""
        return sum(value == followed for value in self.followed.values())


class JudgedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Judges episodes by further copies of the task's state, such as ones with other cues, beside the task's own.

    The copies are kept up to date by the task's own hooks, `update_state` and `outcome`, with what these read from the
    simulation. So the rules are those of the task, and neither the simulation nor what a policy observes changes. An
    episode goes on until it is over by all copies; those that `judge` leaves out are over at once.

    Args:
        env: a batch of a `MemoryEnv`. It must not be used by others before `detach`.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._task: Any = env.unwrapped
        self._states: list[Any] = []
        self._outcomes: list[dict[str, Tensor]] = []
        self._clock = 0
        update, outcome = self._task.update_state, self._task.outcome

        @functools.wraps(update)
        def update_all(s: Any, data: Any, touching: Tensor) -> None:
            for state in self._states:
                update(state, data, touching)
            update(s, data, touching)  # last: what the task keeps of this step beside its state is to be of its own

        @functools.wraps(outcome)
        def outcome_of_all(s: Any, data: Any) -> Any:
            self._outcomes = [outcome(state, data) for state in self._states]
            return outcome(s, data)

        self._task.update_state, self._task.outcome = update_all, outcome_of_all

    def detach(self) -> None:
        """Give the task its own hooks back."""
        del self._task.update_state, self._task.outcome

    def reset(self, **kwargs: Any) -> Any:
        self._states = []
        return self.env.reset(**kwargs)

    def judge(self, states: Sequence[Any], taking_part: Tensor) -> None:
        """Judge the episodes ``taking_part`` (N,) bool by these states, too, from now until the next reset."""
        self._states = list(states)
        self._clock = 0
        self.success_step = torch.full((len(states), len(taking_part)), NEVER, device=taking_part.device)
        """(states, N) int64: the number of steps until the first success by each state, `NEVER` where there is none."""
        self._over: Tensor = torch.logical_not(taking_part).expand(len(states), -1)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._states:
            self._clock += 1
            success = torch.stack([outcome["success"] for outcome in self._outcomes]) & ~self._over
            self.success_step[success] = self._clock
            self._over = self._over | success | torch.stack([outcome["fail"] for outcome in self._outcomes])
            return obs, reward, self._over.all(dim=0), truncated, info
        return obs, reward, terminated, truncated, info


def match(allowed: Tensor, seed: int) -> Tensor:
    """Give as many rows as possible a column each, none to two rows.

    Args:
        allowed: (N, N) bool, row i may get column j.
        seed: of the random order in which rows and columns are tried.

    Returns:
        (N,) int64 column of each row, -1 where there is none left.
    """
    # Augmenting paths (Kuhn 1955): a row may take a column from another row that finds itself a new one.
    generator = torch.Generator().manual_seed(seed)
    n = len(allowed)
    table = allowed.cpu()
    options = [[j for j in torch.randperm(n, generator=generator).tolist() if table[i, j]] for i in range(n)]
    owner: dict[int, int] = {}

    def find(i: int, tried: set[int]) -> bool:
        for j in options[i]:
            if j not in tried:
                tried.add(j)
                if j not in owner or find(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    for i in torch.randperm(n, generator=generator).tolist():
        find(i, set())
    columns = torch.full((n,), -1)
    for j, i in owner.items():
        columns[i] = j
    return columns


@torch.no_grad()
def swap(env: Any, policy: RecurrentPolicy, plan: Sequence[Batch], rule: CueRule[Any], when: int) -> Swapped:
    """Exchange the recurrent states of episodes with different cues before step ``when``, and see whose task they do.

    States are exchanged within a batch, as a permutation of the episodes that are running and have a partner.

    Args:
        env: a batch of the task.
        policy: what is probed.
        plan: the batches of episodes.
        rule: what the cue is.
        when: t of the first step that begins with the other state.
    """
    result = Swapped(when)
    judged = JudgedEnv(env)
    try:
        for batch in plan:
            _swap_batch(judged, policy, batch, rule, result)
    finally:
        judged.detach()
    return result


def _swap_batch(env: JudgedEnv, policy: RecurrentPolicy, batch: Batch, rule: CueRule[Any], result: Swapped) -> None:
    task: Any = env.unwrapped
    n = len(batch.seeds)
    partner = torch.full((n,), -1)
    running = torch.ones(n, dtype=torch.bool)
    acted = torch.zeros(n, dtype=torch.bool)

    def before(t: int, state: State) -> State:
        nonlocal partner, acted
        if t != result.when:
            return state
        s = task.task_state
        acted = rule.acted(s).cpu()
        eligible = batch.kept(running & ~acted)
        allowed = rule.differs(task, s).cpu() & eligible[:, None] & eligible
        partner = match(allowed, seed=batch.first)
        taking_part = (partner >= 0).to(task.device)
        source = torch.where(partner >= 0, partner, torch.arange(n)).to(task.device)
        env.judge([copy_state(s), *rule.with_cue_of(task, s, source)], taking_part)
        return map_tensors(lambda x: x[source.to(x.device)], state)

    for step in play(env, Player(policy, before), batch):
        running = step.still_running.cpu()
        if step.t <= result.when:
            alive = running
    reached = bool((partner >= 0).any())
    steps = env.success_step.cpu() if reached else torch.full((2, n), NEVER)
    own, other = steps[0], steps[1:].amin(dim=0)
    for i in range(batch.keep):
        number = batch.first + i
        if partner[i] < 0:
            result.skipped[number] = OVER if not alive[i] else ACTED if acted[i] else ALIKE
            continue
        result.partner[number] = batch.first + int(partner[i])
        result.followed[number] = MEMORY if other[i] < own[i] else SIGHT if own[i] < NEVER else NEITHER
