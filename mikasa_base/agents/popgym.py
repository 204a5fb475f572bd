"""Agents for POPGym's card games and its bandits."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from mikasa_base.agents.agent import Agent

__all__ = [
    "Arm",
    "BestArm",
    "CardCounter",
    "Counter",
    "Finder",
    "First",
    "FirstIfOnView",
    "HalfOfThem",
    "HigherIfLow",
    "LastIfOnView",
    "OtherSuit",
    "Previous",
    "Reciter",
    "Turner",
]


class First(Agent):
    """RepeatFirst with memory: keeps the first suit."""

    def begin(self, obs: Any) -> None:
        """Keeps it."""
        self._first = obs[1]

    def act(self, obs: Any, reward: float) -> Any:
        """Says it."""
        return self._first


class FirstIfOnView(Agent):
    """RepeatFirst without memory: the first suit while it is on view, then any but the present one."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Of a suit that has just come up, one card fewer is left to be the first."""
        first, suit = obs
        return suit if first else (suit + 1) % 4


class Previous(Agent):
    """RepeatPrevious with memory: keeps all suits."""

    def begin(self, obs: Any) -> None:
        """Forgets the last episode."""
        self._suits: list[int] = []
        self._k = self.env.get_wrapper_attr("k")

    def act(self, obs: Any, reward: float) -> Any:
        """The suit of k - 1 steps ago, or any while there is none."""
        self._suits.append(obs)
        return self._suits[-self._k] if len(self._suits) >= self._k else obs


class OtherSuit(Agent):
    """RepeatPrevious without memory: any suit but the present one, of which one card fewer is left."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The next suit."""
        return (obs + 1) % 4


class Reciter(Agent):
    """Autoencode with memory: keeps all suits, then says them backwards."""

    def begin(self, obs: Any) -> None:
        """Forgets the last episode."""
        self._suits: list[int] = []
        self._watching = True

    def act(self, obs: Any, reward: float) -> Any:
        """The last suit that has not been said; the first observation that says "play" still shows a card."""
        playing, suit = not obs[0], obs[1]
        if self._watching:
            self._suits.append(suit)
            self._watching = not playing
        return self._suits.pop() if playing else suit


class LastIfOnView(Agent):
    """Autoencode without memory: the suit that is shown, which is right for the last card."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The suit."""
        return obs[1]


class Counter(Agent):
    """CountRecall with memory: counts every kind."""

    def begin(self, obs: Any) -> None:
        """Starts from nothing."""
        self._counts = np.zeros(self.env.observation_space.nvec[0], np.int64)  # type: ignore[attr-defined]

    def act(self, obs: Any, reward: float) -> Any:
        """Counts the card and says how often the kind asked for has come up."""
        self._counts[obs[0]] += 1
        return int(self._counts[obs[1]])


class HalfOfThem(Agent):
    """CountRecall without memory: half of the cards there are of a kind; no number is right much more often."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Half of the most."""
        return int(self.env.action_space.n - 1) // 2  # type: ignore[attr-defined]


class Finder(Agent):
    """Concentration with memory: keeps what every card showed.

    Takes a pair that it knows; else turns a new card, and then the mate of that one if it knows it, or another new one.
    """

    def begin(self, obs: Any) -> None:
        """All cards are down."""
        self._down = int(self.env.action_space.n) * [True]  # type: ignore[attr-defined]
        self._kinds: dict[int, int] = {}
        self._turned: list[int] = []

    def act(self, obs: Any, reward: float) -> Any:
        """Learns from the cards on view, and turns the next one."""
        cards = _cards(obs)
        for card in self._turned:
            self._kinds[card] = int(cards[card])
        if len(self._turned) == 2:
            if reward > 0:
                for card in self._turned:
                    self._down[card] = False
            self._turned = []
        card = self._second(self._turned[0]) if self._turned else self._first()
        self._turned.append(card)
        return card

    def _first(self) -> int:
        waiting: dict[int, int] = {}
        for card, kind in self._kinds.items():
            if self._down[card]:
                if kind in waiting:
                    return card
                waiting[kind] = card
        return self._new()

    def _second(self, first: int) -> int:
        for card, kind in self._kinds.items():
            if self._down[card] and card != first and kind == self._kinds[first]:
                return card
        return self._new(first)

    def _new(self, but: int = -1) -> int:
        down = [card for card, is_down in enumerate(self._down) if is_down and card != but]
        new = [card for card in down if card not in self._kinds]
        return int(self.rng.choice(new or down))


class Turner(Agent):
    """Concentration without memory: turns any card that does not show its face."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """Any card that is down; if two that do not match hide the last two, any."""
        cards, space = _cards(obs), self.env.observation_space
        cards_space: Any = space[0] if isinstance(space, spaces.Tuple) else space
        down = np.flatnonzero(cards == cards_space.nvec[0] - 1)
        return int(self.rng.choice(down if down.size else cards.size))


def _cards(obs: Any) -> Any:
    return obs[0] if isinstance(obs, tuple) else obs


class CardCounter(Agent):
    """HigherLower with memory: counts the cards that are left above and below."""

    def begin(self, obs: Any) -> None:
        """A fresh deck."""
        self._left = np.full(13, 4 * self.env.get_wrapper_attr("num_decks"))

    def act(self, obs: Any, reward: float) -> Any:
        """The likelier one."""
        self._left[obs] -= 1
        return int(self._left[:obs].sum() > self._left[obs + 1 :].sum())


class HigherIfLow(Agent):
    """HigherLower without memory: higher on a rank of the lower half."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """0 higher, 1 lower."""
        return int(obs > 6)


class BestArm(Agent):
    """MultiarmedBandit with memory: counts what every arm paid, and tries those that may still be the best."""

    def begin(self, obs: Any) -> None:
        """Nothing known of any arm."""
        arms = int(self.env.action_space.n)  # type: ignore[attr-defined]
        self._paid, self._pulled = np.zeros(arms), np.zeros(arms)
        self._arm: int | None = None

    def act(self, obs: Any, reward: float) -> Any:
        """The arm with the highest mean plus a share of its standard deviation (uniform prior)."""
        if self._arm is not None:
            self._pulled[self._arm] += 1
            self._paid[self._arm] += reward > 0
        a, b = 1 + self._paid, 1 + self._pulled - self._paid
        mean = a / (a + b)
        self._arm = int(np.argmax(mean + 1.0 * np.sqrt(mean * (1 - mean) / (a + b + 1))))
        return self._arm


class Arm(Agent):
    """MultiarmedBandit without memory, where the observation does not say which arm was pulled: always the same."""

    def begin(self, obs: Any) -> None:
        """Nothing to prepare."""

    def act(self, obs: Any, reward: float) -> Any:
        """The first arm."""
        return 0
