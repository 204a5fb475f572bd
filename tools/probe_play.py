"""Playing the episodes of a probe, with a hand on the policy's recurrent state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mikasa_robo.baselines.evaluation import find_horizon
from mikasa_robo.baselines.networks import NaNPolicyError, gives_nan
from mikasa_robo.baselines.protocol import Policy
from mikasa_robo.baselines.spaces import ActionLayout, Obs, State, batch_size, map_tensors
from mikasa_robo.rollouts import Act, EpisodeTotals, Step, play_episodes
from mikasa_robo.statistics import wilson_interval

__all__ = [
    "Batch",
    "Before",
    "Episodes",
    "Player",
    "RecurrentPolicy",
    "StateSizeError",
    "batches",
    "flatten_rows",
    "freeze_at",
    "has_state",
    "play",
    "play_all",
    "policy_act",
    "rate",
    "require_same_size",
    "reset_at",
]


class RecurrentPolicy(Protocol):
    """What is probed: the part of `protocol.RecurrentNetwork` that acts. It need not be a torch module."""

    @property
    def action(self) -> ActionLayout:
        """What an action is made of."""

    @property
    def device(self) -> torch.device:
        """Where it wants its observations."""

    def normalize(self, obs: Obs) -> Obs:
        """Normalised observations (N, …), for `step`."""

    def initial_state(self, n: int) -> State:
        """The recurrent state (n, …) at the start of an episode."""

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Any, Any, State]:
        """The distribution of actions, anything, and the state (N, …) after this step."""


class StateSizeError(ValueError):
    """The size of a policy's state changes within an episode."""


Before = Callable[[int, State], State]
"""Maps t and the state that step t - 1 left to the state that step t begins with."""
After = Callable[[int, Obs, State], None]
"""Is given t, the normalised observation of step t, and the state that has seen it."""


@dataclass(frozen=True)
class Batch:
    """Episodes that are played together, one in each environment."""

    first: int  # number of the first episode
    seeds: list[int]  # (N,)
    keep: int  # the first ``keep`` environments play episodes that count

    def kept(self, flags: Tensor) -> Tensor:
        """``flags`` (N,) bool, False for episodes that do not count."""
        return flags & (torch.arange(len(flags), device=flags.device) < self.keep)


def batches(env: Any, episodes: int, first_seed: int) -> list[Batch]:
    """Episodes 0 to ``episodes - 1``, episode k with the seed ``first_seed + k``, in batches that ``env`` can play."""
    n = int(env.unwrapped.num_envs)
    return [
        Batch(start, [first_seed + start + i for i in range(n)], min(n, episodes - start))
        for start in range(0, episodes, n)
    ]


@dataclass
class Episodes:
    """What became of E episodes."""

    success: Tensor  # (E,) bool, a success at some step
    lengths: Tensor  # (E,) int64, control steps


class Player:
    """A recurrent policy in one batch of episodes: it takes the most likely actions.

    Args:
        policy: see `RecurrentPolicy`.
        before: changes the state before a step; by default nothing does.
        after: looks at the state after a step.

    Raises:
        NaNPolicyError: the network gives NaN.
        StateSizeError: a step changes the size of the state.
    """

    def __init__(self, policy: RecurrentPolicy, before: Before | None = None, after: After | None = None) -> None:
        self._policy, self._before, self._after = policy, before, after
        self._state: State | None = None
        self._t = 0

    def __call__(self, obs: Obs, info: dict[str, Any]) -> Tensor:
        policy, t = self._policy, self._t
        where = _device_of(obs)
        normalized = policy.normalize(map_tensors(lambda x: x.to(policy.device), obs))
        n = batch_size(obs)
        state = policy.initial_state(n) if self._state is None else self._state
        if self._before is not None:
            state = self._before(t, state)
        starts = torch.zeros(n, dtype=torch.bool, device=policy.device)
        distribution, _, self._state = policy.step(normalized, state, starts)
        require_same_size(state, self._state, t)
        action = distribution.mode()
        if gives_nan(distribution, action):
            raise NaNPolicyError("the policy", t)
        if self._after is not None:
            self._after(t, normalized, self._state)
        self._t = t + 1
        return policy.action.to_env(action).to(where)


def policy_act(policy: Policy, device: torch.device) -> Act:
    """What `play_all` needs to play a policy whose state is nobody's business; new episodes begin."""
    policy.on_episode_start()
    return lambda obs, info: policy.act(map_tensors(lambda x: x.to(device), obs)).to(_device_of(obs))


def play(env: Any, act: Act, batch: Batch) -> Iterator[Step]:
    """Play a batch of episodes until all are over."""
    return play_episodes(env, act, batch.seeds, find_horizon(env))


def play_all(env: Any, make_act: Callable[[], Act], plan: Iterable[Batch]) -> Episodes:
    """Play all batches; ``make_act`` makes the policy as the episodes of a batch begin."""
    success, lengths = [], []
    for batch in plan:
        totals = EpisodeTotals()
        for step in play(env, make_act(), batch):
            totals.add(step)
        success.append(totals.success_once[: batch.keep].cpu())
        lengths.append(totals.lengths[: batch.keep].cpu())
    return Episodes(torch.cat(success), torch.cat(lengths))


def reset_at(policy: RecurrentPolicy, when: int) -> Before:
    """At t = ``when`` the state becomes that of a new episode."""

    def before(t: int, state: State) -> State:
        return policy.initial_state(len(flatten_rows(state))) if t == when else state

    return before


def freeze_at(when: int) -> Before:
    """From t = ``when`` on, every step begins with the state that step ``when - 1`` left. For one batch."""
    kept: list[State] = []

    def before(t: int, state: State) -> State:
        if t == when:
            kept.append(state)
        return kept[0] if kept else state

    return before


def has_state(policy: Any, obs: Obs) -> bool:
    """Whether a network keeps a state from step to step, by the first step of episodes with raw observations (N, …).

    Raises:
        StateSizeError: the step changes the size of the state.
    """
    if not getattr(policy, "recurrent", False):
        return False
    with torch.no_grad():
        seen = policy.normalize(map_tensors(lambda x: x.to(policy.device), obs))
        n = batch_size(obs)
        state = policy.initial_state(n)
        after = policy.step(seen, state, torch.zeros(n, dtype=torch.bool, device=policy.device))[2]
    require_same_size(state, after, 0)
    return any(value.numel() for value in _parts(state).values())


def require_same_size(before: State, after: State, t: int) -> None:
    """Raises StateSizeError where the state after step ``t`` has other sizes than before it."""
    sizes, later = (
        {name: tuple(value.shape[1:]) for name, value in _parts(state).items()} for state in (before, after)
    )
    for name in sizes | later:
        if sizes.get(name) != later.get(name):
            part = f"the part {name!r} of the recurrent state" if name else "the recurrent state"
            raise StateSizeError(
                f"{part} has the shape {sizes.get(name, 'of nothing')} before step {t} and {later.get(name, 'of nothing')} "
                "after it (for one episode); swaps, freezes and the read-out need a state of one size: let the memory begin "
                "with the whole state, filled with zeros"
            )


def flatten_rows(tensors: State) -> Tensor:
    """(N, D) float32: all numbers of a row in one vector; of a complex number the real and the imaginary part."""
    parts = [torch.view_as_real(part) if part.is_complex() else part for part in _parts(tensors).values()]
    return torch.cat([part.reshape(len(part), -1).to(torch.float32) for part in parts], dim=1)


def _parts(state: State) -> Mapping[str, Tensor]:
    return state if isinstance(state, dict) else {"": state}


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its 95 % Wilson interval, for JSON; null where there was no trial."""
    low, high = wilson_interval(successes, trials) if trials else (None, None)
    share = successes / trials if trials else None
    return {"successes": successes, "episodes": trials, "rate": share, "low": low, "high": high}


def _device_of(obs: Obs) -> torch.device:
    return next(iter(obs.values())).device if isinstance(obs, dict) else obs.device
