"""MemoryCards: find the second card of a pair."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image, canvas, rectangle, text

__all__ = ["MemoryCards", "MemoryCardsVector"]

_TABLE, _BACK, _FACE, _INK = (20, 60, 30), (60, 80, 160), (240, 240, 230), (30, 30, 30)


class _Rules(Game):
    def __init__(self, num_envs: int, num_pairs: int) -> None:
        super().__init__(num_envs)
        self.num_pairs = n = checks.integer("num_pairs", num_pairs, 1, 50)
        self.num_cards = 2 * n
        self.max_steps = 2 * n * n
        self.observation_space = gym.spaces.MultiDiscrete([n + 2] * self.num_cards)
        self.action_space = gym.spaces.Discrete(self.num_cards)
        # where the cards lie, and which one is turned up at each time
        self.num_uniforms = self.num_cards + self.max_steps + 1
        self.faces = np.zeros((num_envs, self.num_cards), np.int64)  # 1 to n
        self.mate = np.zeros((num_envs, self.num_cards), np.int64)  # card with the same face
        self.removed = np.zeros((num_envs, self.num_cards), np.int64)  # n + 1 where a card is removed, else 0
        # the cards that are left, in the first `left` columns, and where each of them stands there
        self.deck = np.zeros((num_envs, self.num_cards), np.int64)
        self.place = np.zeros((num_envs, self.num_cards), np.int64)
        self.left = np.zeros(num_envs, np.int64)
        self.up = np.zeros(num_envs, np.int64)  # card that is turned up
        self.turns = np.zeros((num_envs, self.max_steps + 1))  # uniforms that choose which card is turned up
        self.steps = np.zeros(num_envs, np.int64)

    def begin(self, which: Ints, uniforms: Floats) -> None:
        order = uniforms[:, : self.num_cards].argsort(axis=1)  # a shuffle; its neighbours make the pairs
        rows = which[:, None]
        self.faces[rows, order] = np.repeat(np.arange(1, self.num_pairs + 1), 2)
        self.mate[rows, order[:, 0::2]] = order[:, 1::2]
        self.mate[rows, order[:, 1::2]] = order[:, 0::2]
        self.deck[which] = self.place[which] = np.arange(self.num_cards)
        self.left[which] = self.num_cards
        self.turns[which] = uniforms[:, self.num_cards :]
        self.removed[which] = self.steps[which] = 0
        self.up[which] = (self.turns[which, 0] * self.num_cards).astype(np.int64)

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        found = (actions == self.mate[self.each, self.up]) & (self.left > 0)
        if found.any():
            which = np.flatnonzero(found)
            self._remove(which, self.up[which])
            self._remove(which, actions[which])
        self.steps = np.minimum(self.steps + 1, self.max_steps)  # an episode that was over does not go on counting
        self.up = self.deck[self.each, (self.turns[self.each, self.steps] * self.left).astype(np.int64)]
        cleared = self.left == 0
        return found - 1.0, cleared, (self.steps == self.max_steps) & ~cleared

    def _remove(self, which: Ints, cards: npt.NDArray[Any]) -> None:
        """Removes a card from each deck: the last one there takes its place."""
        self.left[which] -= 1
        place, last = self.place[which, cards], self.deck[which, self.left[which]]
        self.deck[which, place] = last
        self.place[which, last] = place
        self.removed[which, cards] = self.num_pairs + 1

    def observe(self) -> Ints:
        shown = self.removed.copy()
        shown[self.each, self.up] = np.where(self.left > 0, self.faces[self.each, self.up], self.num_pairs + 1)
        return shown

    def frame(self, i: int) -> Image:
        columns = max(5, int(np.ceil(np.sqrt(self.num_cards))))
        image = canvas(8 + 26 * -(-self.num_cards // columns), 8 + 22 * columns, _TABLE)
        for k, shown in enumerate(self.observe()[i].tolist()):
            y, x = 6 + 26 * (k // columns), 6 + 22 * (k % columns)
            if shown <= self.num_pairs:
                rectangle(image, y, x, 22, 18, _FACE if shown else _BACK)
            if 0 < shown <= self.num_pairs:
                text(image, y + 6, x + (6 if shown < 10 else 2), str(shown), _INK, 2)
        return image


class MemoryCards(SingleEnv):
    """Pairs of cards lie face down in random order. One card is face up, and the agent has to choose its partner.

    Task: every step turns up one of the remaining cards, drawn at random. If the agent chooses its partner, both are
    removed; otherwise the card is hidden again. The chosen card is never shown, so the agent has to remember the cards
    that were face up before.
    Observation: MultiDiscrete([num_pairs + 2] * 2 num_pairs), a number for each card: 0 hidden, 1 to num_pairs the face
        of the card that is face up, num_pairs + 1 removed.
    Actions: Discrete(2 num_pairs), the chosen card.
    Reward: 0 for the partner, else -1.
    End: terminates when all cards are removed, truncates after 2 num_pairs² steps.
    Source: Esslinger et al. 2022, Deep Transformer Q-Networks (arXiv 2206.01078), memory cards.

    Args:
        num_pairs: Number of pairs, 1 to 50.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_pairs: int = 5, render_mode: str | None = None) -> None:
        super().__init__(_Rules(1, num_pairs), render_mode)


class MemoryCardsVector(BatchedEnv):
    """`MemoryCards` as a vector environment; see there and `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        num_pairs: int = 5,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(_Rules(batch_size(num_envs), num_pairs), render_mode, autoreset_mode)
