"""POPGym's card games and its bandits."""

from __future__ import annotations

from typing import Any

import popgym.envs as upstream
from gymnasium import spaces

from mikasa_base import checks

from .popgym_adapter import MAX_STEPS, PopGymEnv, check_decks

__all__ = [
    "Autoencode",
    "Concentration",
    "CountRecall",
    "HigherLower",
    "MultiarmedBandit",
    "RepeatFirst",
    "RepeatPrevious",
]


class RepeatFirst(PopGymEnv):
    """Name the suit of the first card at every step.

    Task: remember one of 4 suits for the whole episode, while other cards go by.
    Observation: Tuple(Discrete(2), Discrete(4)): 1 in the first observation and 0 later; the suit of the card. POPGym's
        code returns the suit alone; its paper describes the flag.
    Actions: Discrete(4), the suit.
    Reward: 1 / (52 num_decks - 1) for the right suit, minus that for a wrong one.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        super().__init__(upstream.RepeatFirst(num_decks=check_decks(num_decks)), render_mode)
        self.observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(4)))

    def _correct(self, obs: Any, first: bool = False) -> Any:
        return int(first), obs


class RepeatPrevious(PopGymEnv):
    """Name the suit of the card from some steps ago.

    Task: keep the last ``k`` suits and their order.
    Observation: Discrete(4), the suit of the card.
    Actions: Discrete(4), the suit of the card k - 1 steps before the current one.
    Reward: 1 / (52 num_decks - k) for the right suit, minus that for a wrong one; 0 while there is no such card.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        k: 1 is the current card; at most as many as there are cards, less one.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, k: int = 4, render_mode: str | None = None) -> None:
        decks = check_decks(num_decks)
        self.k = checks.integer("k", k, 1, 52 * decks - 1)
        super().__init__(upstream.RepeatPrevious(num_decks=decks, k=self.k), render_mode)


class Autoencode(PopGymEnv):
    """Watch cards go by, then name their suits from the last one back to the first.

    Task: keep all suits and their order.
    Observation: Tuple(Discrete(2), Discrete(4)): 1 while cards go by, 0 from the last of them on; the suit of the card,
        which is meaningless after the last one.
    Actions: Discrete(4), the suit. They have no effect while cards go by.
    Reward: 1 / (52 num_decks) for the right suit, minus that for a wrong one.
    End: terminates after ``104 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        super().__init__(upstream.Autoencode(num_decks=check_decks(num_decks)), render_mode)


class CountRecall(PopGymEnv):
    """Say how often a kind of card has appeared.

    Task: count every kind of card. Each step shows a card and asks for a kind.
    Observation: MultiDiscrete([K, K]): the kind of the card, the kind that is asked for.
    Actions: Discrete(52 num_decks / K + 1), how often that kind has appeared, including the current card.
    Reward: 1 / (52 num_decks - 1) for the right number, minus that for a wrong one.
    End: terminates after ``52 num_decks - 1`` steps.
    Unlike POPGym's, info does not hold the counts.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        deck_type: "colors" (K = 2), "suits" (4) or "ranks" (13).
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, deck_type: str = "colors", render_mode: str | None = None) -> None:
        checks.choice("deck_type", deck_type, ("colors", "suits", "ranks"))
        super().__init__(upstream.CountRecall(num_decks=check_decks(num_decks), deck_type=deck_type), render_mode)


class Concentration(PopGymEnv):
    """Turn cards over, two at a time, to find the pairs.

    Task: remember which card lies where.
    Observation: MultiDiscrete([K + 1] * N) for N = 52 num_decks cards: the kind of each card that shows its face, else
        K. The last two cards stay face up until the next one is turned. With ``previous_action``, the pair of this and
        Discrete(N + 1), the card that was turned last (N at the reset).
    Actions: Discrete(N), the card to turn.
    Reward: 2 / N for a pair; minus 1 / (step limit) for each of two cards that do not match. For a card of a pair that was
        found: minus 1 / (step limit) if it is the first of the two, minus twice that if it is the second.
    End: terminates with the last pair, truncates after ``ceil(2 N - N / (2 N - 1))`` steps.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        deck_type: What makes two cards a pair: "colors" (K = 2) or "ranks" (13).
        previous_action: Whether the observation holds the previous action.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self,
        num_decks: int = 1,
        deck_type: str = "colors",
        previous_action: bool = False,
        render_mode: str | None = None,
    ) -> None:
        checks.choice("deck_type", deck_type, ("colors", "ranks"))
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.Concentration(num_decks=check_decks(num_decks), deck_type=deck_type)
        super().__init__(env, render_mode, previous_action)


class HigherLower(PopGymEnv):
    """Say whether the next card ranks higher or lower.

    Task: count the cards that have gone by. Memory adds little: see the scores in the table of environments.
    Observation: Discrete(13), the rank of the card.
    Actions: Discrete(2): 0 higher, 1 lower.
    Reward: 1 / (52 num_decks) if right, minus that if wrong, 0 for an equal rank.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards, 1 to 100.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        self.num_decks = check_decks(num_decks)
        super().__init__(upstream.HigherLower(num_decks=self.num_decks), render_mode)


class MultiarmedBandit(PopGymEnv):
    """Find the arm that pays most often.

    Task: remember how often each arm has paid. Each episode draws the probability that an arm pays, uniformly from [0, 1).
    Observation: Discrete(2), whether the arm paid. With ``previous_action``, the pair of this and
        Discrete(num_bandits + 1), the arm (num_bandits at the reset). Keeping an arm for as long as it pays is then a
        good policy that needs no memory.
    Actions: Discrete(num_bandits), the arm.
    Reward: 1 / episode_length if the arm pays, else minus that.
    End: truncates after ``episode_length`` steps.
    Unlike POPGym's, info does not hold the probabilities.

    Args:
        num_bandits: Arms, 2 to 10,000.
        episode_length: Steps, 1 to 1,000,000.
        previous_action: Whether the observation holds the previous action.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self,
        num_bandits: int = 10,
        episode_length: int = 200,
        previous_action: bool = False,
        render_mode: str | None = None,
    ) -> None:
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.MultiarmedBandit(
            num_bandits=checks.integer("num_bandits", num_bandits, 2, 10_000),
            episode_length=checks.integer("episode_length", episode_length, 1, MAX_STEPS),
        )
        super().__init__(env, render_mode, previous_action)
