"""A buffer of whole episodes, and the cutting of rollouts into episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Episode", "EpisodeBuffer", "EpisodeCutter", "cat_episodes", "count_steps", "validation_indices"]

Episode = dict[str, Tensor]
"""What was recorded in one episode of L steps: (L, …) by name."""
ALIKE = 8
"""Minibatches that are drawn at a time, and then made of episodes of similar length: less is padded."""


class EpisodeCutter:
    """Puts the steps of rollouts together to whole episodes; one goes on from a rollout to the next.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._begun: list[list[Episode]] = [[] for _ in range(num_envs)]

    def drop(self, starts: Tensor) -> None:
        """Forget the running episodes where ``starts`` (N,) bool is True."""
        for i in starts.nonzero().squeeze(1).tolist():
            self._begun[i] = []

    def add(self, steps: Mapping[str, Tensor], over: Tensor) -> list[Episode]:
        """The episodes that ended in a rollout, in the order of their ends.

        Args:
            steps: (S, N, …) each.
            over: (S, N) bool, on the CPU: the episode ended with that step.
        """
        found: list[tuple[int, int, Episode]] = []
        for i, begun in enumerate(self._begun):
            start = 0
            for t in over[:, i].nonzero().squeeze(1).tolist():
                parts = [*begun, {name: value[start : t + 1, i] for name, value in steps.items()}]
                found.append((t, i, cat_episodes(parts)))
                start, begun = t + 1, []
            if start < len(over):
                # A copy: a slice would keep the whole rollout in memory.
                begun = [*begun, {name: value[start:, i].clone() for name, value in steps.items()}]
            self._begun[i] = begun
        return [episode for _, _, episode in sorted(found, key=lambda one: one[:2])]


def cat_episodes(episodes: Sequence[Episode]) -> Episode:
    """The steps of all episodes one after another, (sum of L, …) each."""
    return {name: torch.cat([episode[name] for episode in episodes]) for name in episodes[0]}


def count_steps(episode: Episode) -> int:
    """L, the number of steps of an episode."""
    return len(next(iter(episode.values())))


def validation_indices(count: int, share: float) -> list[int]:
    """Which of ``count`` episodes are for validation: round(share count) of them, spread evenly.

    Args:
        count: number of episodes.
        share: of those for validation, from 0 to 1.
    """
    wanted = round(share * count)
    return [(2 * i + 1) * count // (2 * wanted) for i in range(wanted)]


class EpisodeBuffer:
    """The newest episodes, on the CPU, with the dtypes that they came with: images stay bytes.

    Args:
        capacity: most episodes.
    """

    def __init__(self, capacity: int) -> None:
        self.episodes: deque[Episode] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self.episodes)

    def minibatches(self, count: int, size: int, generator: torch.Generator) -> Iterator[tuple[list[Episode], float]]:
        """``count`` times ``size`` episodes, drawn at random with replacement.

        Yields:
            The episodes, and the mean number of steps of such a minibatch: episodes of similar length come together, and a
            loss that is divided by the steps of the minibatch itself would give those in short episodes more weight.
        """
        device = generator.device
        episodes = list(self.episodes)
        lengths = [count_steps(episode) for episode in episodes]
        while count > 0:
            now = min(count, ALIKE)
            drawn = torch.randint(len(episodes), (now * size,), generator=generator, device=device).tolist()
            drawn.sort(key=lengths.__getitem__)
            mean = sum(lengths[k] for k in drawn) / now
            for j in torch.randperm(now, generator=generator, device=device).tolist():
                yield [episodes[k] for k in drawn[j * size : (j + 1) * size]], mean
            count -= now

    def state_dict(self) -> dict[str, Any]:
        """All episodes, as tensors."""
        if not self.episodes:
            return {"lengths": torch.zeros(0, dtype=torch.int64), "steps": {}}
        lengths = torch.tensor([count_steps(episode) for episode in self.episodes])
        return {"lengths": lengths, "steps": cat_episodes(list(self.episodes))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the episodes that `state_dict` returned."""
        lengths: list[int] = state["lengths"].tolist()
        parts = {name: value.split(lengths) for name, value in state["steps"].items()}
        self.episodes.clear()
        self.episodes.extend({name: value[k].clone() for name, value in parts.items()} for k in range(len(lengths)))
