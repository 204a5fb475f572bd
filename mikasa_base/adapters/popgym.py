"""POPGym's environments (extra ``popgym``), on top of their own classes, with what is amiss in them mended.

For all of them: an info tells nothing (POPGym's give away the counts, the bandits, the position, the maze); no array that
was handed out is written again; an episode is either terminated or truncated; one generator, seeded by ``reset``,
decides everything, and Python's and numpy's global ones are left alone; an action outside the space, and a step without
a reset, are errors; a picture shows what the agent sees. What else differs from POPGym stands with each class.

Source of all: Morad et al. 2023, POPGym: Benchmarking Partially Observable Reinforcement Learning (arXiv 2303.01859),
popgym 1.0.7.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import popgym.envs as upstream
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image, canvas, rectangle, text

__all__ = [
    "Autoencode",
    "Battleship",
    "Concentration",
    "CountRecall",
    "HigherLower",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MineSweeper",
    "MultiarmedBandit",
    "NoisyPositionOnlyCartPole",
    "NoisyPositionOnlyPendulum",
    "PositionOnlyCartPole",
    "PositionOnlyPendulum",
    "RepeatFirst",
    "RepeatPrevious",
    "VelocityOnlyCartPole",
]

_MOST_DECKS, _MOST_STEPS = 100, 1_000_000
_WHITE, _DARK, _BAR = (255, 255, 255), (25, 25, 25), (60, 160, 220)
_CELLS_A_ROW, _CELL = 13, 24


class _Adapted(DrawnEnv[Any, Any]):
    """One of POPGym's environments.

    Args:
        env: POPGym's.
        render_mode: See `DrawnEnv`.
        previous_action: Whether the observation becomes the pair (POPGym's, the action that led to it), where each part
            of the action has one further value for "none", at the reset.
    """

    def __init__(self, env: gym.Env[Any, Any], render_mode: str | None, previous_action: bool = False) -> None:
        super().__init__(render_mode)
        self._env = env
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        self._none: Any = None
        if previous_action:
            space, self._none = _with_none(env.action_space)
            self.observation_space = spaces.Tuple((env.observation_space, space))
        self._action_scale = 1
        self._over = True
        self._shown: npt.NDArray[np.float64] = np.zeros(0)
        self._steps, self._reward = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; ``options`` are not used."""
        super().reset(seed=seed)
        self._env.unwrapped.np_random = self.np_random
        obs = self._begin()
        self._over = False
        self._steps, self._reward = 0, 0.0
        return self._show(obs, self._none), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over:
            raise ResetNeeded(f"{type(self).__name__}.step(): no episode is going on; call reset() first")
        action = _checked_action(self.action_space, action)
        obs, reward, terminated, truncated, _ = self._env.step(self._action_scale * action)
        terminated = bool(terminated)
        truncated = bool(truncated) and not terminated
        self._over = terminated or truncated
        self._steps, self._reward = self._steps + 1, float(reward)
        return self._show(self._mended(obs), action), self._reward, terminated, truncated, {}

    def frame(self) -> Image:
        """What the agent sees: a value among several as a lit cell with its number, a continuous one as a bar."""
        rows = max(1, -(-self._shown.size // _CELLS_A_ROW))
        image = canvas(24 + _CELL * rows, 8 + _CELL * _CELLS_A_ROW, _DARK)
        text(image, 8, 8, f"step {self._steps} reward {self._reward:+.3f}", _WHITE, 2)
        discrete = not isinstance(self.observation_space, spaces.Box)
        for i, value in enumerate(self._shown.tolist()):
            y, x = 24 + _CELL * (i // _CELLS_A_ROW), 8 + _CELL * (i % _CELLS_A_ROW)
            if discrete:
                shade = int(45 + 170 * np.sin(1.7 * value + 0.4) ** 2)
                rectangle(image, y, x, _CELL - 4, _CELL - 4, (shade, 70, 225 - shade // 2))
                text(image, y + 5, x + 2, f"{value:.0f}", _WHITE, 2)
            else:
                height = round(float(np.tanh(value)) * (_CELL // 2 - 2))
                rectangle(image, y + _CELL // 2 - max(height, 0), x, abs(height) + 1, _CELL - 4, _BAR)
        return image

    def _begin(self) -> Any:
        """Resets POPGym's environment and gives its observation, mended."""
        return self._mended(self._env.reset()[0], first=True)

    def _mended(self, obs: Any, first: bool = False) -> Any:
        """The observation as it should be; POPGym's unless a subclass knows better."""
        return obs

    def _show(self, obs: Any, action: Any) -> Any:
        given = _fresh(self.observation_space, obs if self._none is None else (obs, action))
        self._shown = np.concatenate([np.ravel(part).astype(float) for part in _parts(given)])
        return given


def _with_none(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Any]:
    """The space of actions with one more value, and that value."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1), int(space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    return spaces.MultiDiscrete(space.nvec + 1), space.nvec.copy()


def _checked_action(space: spaces.Space[Any], action: Any) -> Any:
    if isinstance(space, spaces.Box):
        values = np.asarray(action)
        if values.shape != space.shape or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError(f"action={action!r} should be {space.shape} finite numbers, as in {space}")
        return np.clip(values, space.low, space.high).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return checks.integer("action", action, 0, int(space.n) - 1)
    if not space.contains(action):
        raise ValueError(f"action={action!r} should be in {space}")
    return np.array(action)


def _fresh(space: spaces.Space[Any], obs: Any) -> Any:
    """``obs`` in memory of its own, with the dtype of its space."""
    if isinstance(space, spaces.Tuple):
        return tuple(_fresh(part, value) for part, value in zip(space.spaces, obs, strict=True))
    return int(obs) if isinstance(space, spaces.Discrete) else np.array(obs, dtype=space.dtype)


def _parts(obs: Any) -> list[Any]:
    return [leaf for part in obs for leaf in _parts(part)] if isinstance(obs, tuple) else [obs]


def _decks(num_decks: int) -> int:
    return checks.integer("num_decks", num_decks, 1, _MOST_DECKS)


class RepeatFirst(_Adapted):
    """Say at every step the suit that was shown first.

    Task: remember one of 4 suits for the whole episode, while other cards go by.
    Observation: Tuple(Discrete(2), Discrete(4)): 1 in the first observation and 0 later; the suit of the card. POPGym
        shows the suit alone; the flag is the one that its paper describes.
    Actions: Discrete(4), the suit.
    Reward: 1 / (52 num_decks - 1) for the right suit, minus that for a wrong one.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        super().__init__(upstream.RepeatFirst(num_decks=_decks(num_decks)), render_mode)
        self.observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(4)))

    def _mended(self, obs: Any, first: bool = False) -> Any:
        return int(first), obs


class RepeatPrevious(_Adapted):
    """Say the suit that was shown some steps ago.

    Task: keep the last ``k`` suits and their order.
    Observation: Discrete(4), the suit of the card.
    Actions: Discrete(4), the suit of the card k - 1 steps before the present one.
    Reward: 1 / (52 num_decks - k) for the right suit, minus that for a wrong one; 0 while there is no such card.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards.
        k: The present card is k = 1.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, k: int = 4, render_mode: str | None = None) -> None:
        decks = _decks(num_decks)
        self.k = checks.integer("k", k, 1, 52 * decks - 1)
        super().__init__(upstream.RepeatPrevious(num_decks=decks, k=self.k), render_mode)


class Autoencode(_Adapted):
    """Watch cards go by, then name their suits from the last one back to the first.

    Task: keep all suits and their order.
    Observation: Tuple(Discrete(2), Discrete(4)): 1 while cards go by, 0 from the last of them on; the suit of the card,
        and nothing of worth after the last one.
    Actions: Discrete(4), the suit; of no effect while cards go by.
    Reward: 1 / (52 num_decks) for the right suit, minus that for a wrong one.
    End: terminates after ``104 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        super().__init__(upstream.Autoencode(num_decks=_decks(num_decks)), render_mode)


class CountRecall(_Adapted):
    """Say how often a kind of card has come up.

    Task: count every kind of card. At each step a card comes up and a kind is asked for.
    Observation: MultiDiscrete([K, K]): the kind that came up, the kind that is asked for.
    Actions: Discrete(52 num_decks / K + 1), how often the kind asked for has come up, the present card included.
    Reward: 1 / (52 num_decks - 1) for the right number, minus that for a wrong one.
    End: terminates after ``52 num_decks - 1`` steps.
    POPGym's info holds the counts; not so here.

    Args:
        num_decks: Decks of 52 cards.
        deck_type: "colors" (K = 2), "suits" (4) or "ranks" (13).
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, deck_type: str = "colors", render_mode: str | None = None) -> None:
        checks.choice("deck_type", deck_type, ("colors", "suits", "ranks"))
        super().__init__(upstream.CountRecall(num_decks=_decks(num_decks), deck_type=deck_type), render_mode)


class Concentration(_Adapted):
    """Turn cards over, two at a time, to find the pairs.

    Task: remember which card lies where.
    Observation: MultiDiscrete([K + 1] * N) for N = 52 num_decks cards: the kind of each card that shows its face, else
        K. The last two cards show theirs until the next one is turned. With ``previous_action``, the pair of this and of
        Discrete(N + 1), the card that was turned last (N at the reset).
    Actions: Discrete(N), the card to turn.
    Reward: 2 / N for a pair; minus 1 / (most steps) for each card of two that do not match, or turned in vain.
    End: terminates with the last pair, truncates after ``ceil(2 N - N / (2 N - 1))`` steps.

    Args:
        num_decks: Decks of 52 cards.
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
        env = upstream.Concentration(num_decks=_decks(num_decks), deck_type=deck_type)
        super().__init__(env, render_mode, previous_action)


class HigherLower(_Adapted):
    """Say whether the next card ranks higher or lower.

    Task: count the cards that have gone by. Memory adds little: see the scores in the table of environments.
    Observation: Discrete(13), the rank of the card.
    Actions: Discrete(2): 0 higher, 1 lower.
    Reward: 1 / (52 num_decks) if right, minus that if wrong, 0 for an equal rank.
    End: terminates after ``52 num_decks - 1`` steps.

    Args:
        num_decks: Decks of 52 cards.
        render_mode: None or "rgb_array".
    """

    def __init__(self, num_decks: int = 1, render_mode: str | None = None) -> None:
        self.num_decks = _decks(num_decks)
        super().__init__(upstream.HigherLower(num_decks=self.num_decks), render_mode)


class MultiarmedBandit(_Adapted):
    """Find the arm that pays best.

    Task: remember how often each arm has paid. Each pays with a probability drawn evenly from [0, 1) for the episode.
    Observation: Discrete(2), whether the arm paid. With ``previous_action``, the pair of this and of
        Discrete(num_bandits + 1), the arm (num_bandits at the reset): then staying with an arm for as long as it pays,
        which needs no memory, goes a long way.
    Actions: Discrete(num_bandits), the arm.
    Reward: 1 / episode_length if the arm pays, else minus that.
    End: truncates after ``episode_length`` steps.
    POPGym's info holds the probabilities; not so here.

    Args:
        num_bandits: Arms.
        episode_length: Steps.
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
            episode_length=checks.integer("episode_length", episode_length, 1, _MOST_STEPS),
        )
        super().__init__(env, render_mode, previous_action)


class Battleship(_Adapted):
    """Sink four ships, of 2, 3, 3 and 4 tiles, whose places are not shown.

    Task: remember where one has shot, and what was hit.
    Observation: Tuple(Discrete(2), MultiDiscrete([b + 1, b + 1])): whether the shot hit a tile for the first time; the
        tile that was shot at, (b, b) at the reset. POPGym shows the first alone, as does ``previous_action=False``; the
        place is what its paper describes.
    Actions: MultiDiscrete([b, b]), the tile to shoot at.
    Reward: 1 / 12 for a hit, minus 1 / (b^2 - 12) for anything else.
    End: terminates when all ships are sunk, truncates after ``b^2`` steps.

    Args:
        board_size: b, tiles on a side.
        previous_action: Whether the observation holds the tile that was shot at.
        render_mode: None or "rgb_array".
    """

    def __init__(self, board_size: int = 8, previous_action: bool = True, render_mode: str | None = None) -> None:
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.Battleship(board_size=checks.integer("board_size", board_size, 6, 100))
        super().__init__(env, render_mode, previous_action)


class MineSweeper(_Adapted):
    """Uncover all tiles but the mines; the board is not shown.

    Task: remember what has been uncovered, and infer where the mines are.
    Observation: Tuple(Discrete(M + 1, at most 10), MultiDiscrete([b + 1, b + 1])): mines on the tile and its neighbours;
        the tile, (b, b) at the reset. POPGym shows the first alone, as does ``previous_action=False``; the tile is what
        its paper describes.
    Actions: MultiDiscrete([b, b]), the tile to uncover.
    Reward: 1 / T for a new tile, -0.5 / (T - 2) for one uncovered before, -0.5 - 1 / T for a mine, where T = b^2 - M.
    End: terminates on a mine and when all is uncovered, truncates after T steps.

    Args:
        difficulty: "easy" (b = 4, M = 2), "medium" (6, 6) or "hard" (8, 10).
        previous_action: Whether the observation holds the tile that was uncovered.
        render_mode: None or "rgb_array".
    """

    def __init__(self, difficulty: str = "easy", previous_action: bool = True, render_mode: str | None = None) -> None:
        checks.choice("difficulty", difficulty, ("easy", "medium", "hard"))
        checks.choice("previous_action", previous_action, (False, True))
        env = upstream.MineSweeper(difficulty)
        self.num_mines: int = env.num_mines
        super().__init__(env, render_mode, previous_action)


def _length(max_episode_length: int) -> int:
    return checks.integer("max_episode_length", max_episode_length, 1, _MOST_STEPS)


class PositionOnlyCartPole(_Adapted):
    """CartPole that shows positions alone.

    Task: infer the velocities from what was seen before, and balance the pole.
    Observation: float32 (2,): position of the cart in m, angle of the pole in rad.
    Actions: Discrete(2): push left, push right.
    Reward: 1 / max_episode_length each step.
    End: terminates when the cart leaves +-2.4 m or the pole +-12 degrees, truncates after ``max_episode_length`` steps.

    Args:
        max_episode_length: Steps.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.PositionOnlyCartPole(max_episode_length=_length(max_episode_length)), render_mode)


class VelocityOnlyCartPole(_Adapted):
    """CartPole that shows velocities alone.

    Task: infer the angle from what was seen before, and balance the pole. For 200 steps a linear policy without memory
    does it too.
    Observation: float32 (2,) in [-20, 20], which nothing reaches: velocity of the cart in m/s, angular velocity of the
        pole in rad/s. POPGym's reset gives the positions instead, and its space has no bounds; not so here.
    Actions, reward, end: as `PositionOnlyCartPole`.

    Args:
        max_episode_length: Steps.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.VelocityOnlyCartPole(max_episode_length=_length(max_episode_length)), render_mode)
        self.observation_space = spaces.Box(-20, 20, (2,), np.float32)

    def _mended(self, obs: Any, first: bool = False) -> Any:
        return self._env.unwrapped.get_state()[[1, 3]] if first else obs  # type: ignore[attr-defined]


class NoisyPositionOnlyCartPole(_Adapted):
    """CartPole that shows positions alone, and those with noise.

    Task: average over what was seen before, and balance the pole.
    Observation: as `PositionOnlyCartPole`, each number with normal noise, clipped to the space.
    Actions, reward, end: as `PositionOnlyCartPole`, with 200 steps.

    Args:
        noise_sigma: Standard deviation of the noise, in m and in rad.
        render_mode: None or "rgb_array".
    """

    def __init__(self, noise_sigma: float = 0.1, render_mode: str | None = None) -> None:
        self.noise_sigma = checks.number("noise_sigma", noise_sigma, 0, 10)
        super().__init__(upstream.NoisyPositionOnlyCartPole(noise_sigma=self.noise_sigma), render_mode)


class _Pendulum(_Adapted):
    def __init__(self, env: gym.Env[Any, Any], render_mode: str | None) -> None:
        super().__init__(env, render_mode)
        self._action_scale = 2
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)


class PositionOnlyPendulum(_Pendulum):
    """Pendulum that shows its position alone.

    Task: infer the velocity from what was seen before, and swing the pendulum up.
    Observation: float32 (2,): cosine and sine of the angle, which is 0 when upright.
    Actions: float32 (1,) in [-1, 1], the torque in units of 2 N m. POPGym takes it in N m.
    Reward: Gymnasium's, brought from [-16.27, 0] to [-1, 1], divided by ``max_episode_length``.
    End: truncates after ``max_episode_length`` steps.

    Args:
        max_episode_length: Steps.
        render_mode: None or "rgb_array".
    """

    def __init__(self, max_episode_length: int = 200, render_mode: str | None = None) -> None:
        super().__init__(upstream.PositionOnlyPendulum(max_episode_length=_length(max_episode_length)), render_mode)


class NoisyPositionOnlyPendulum(_Pendulum):
    """Pendulum that shows its position alone, and that with noise.

    Task: average over what was seen before, and swing the pendulum up.
    Observation: as `PositionOnlyPendulum`, each number with normal noise, clipped to the space.
    Actions, reward, end: as `PositionOnlyPendulum`, with 200 steps.

    Args:
        noise_sigma: Standard deviation of the noise.
        render_mode: None or "rgb_array".
    """

    def __init__(self, noise_sigma: float = 0.1, render_mode: str | None = None) -> None:
        self.noise_sigma = checks.number("noise_sigma", noise_sigma, 0, 10)
        super().__init__(upstream.NoisyPositionOnlyPendulum(noise_sigma=self.noise_sigma), render_mode)


class _Labyrinth(_Adapted):
    def __init__(self, env_class: Any, size: int, render_mode: str | None) -> None:
        if checks.integer("size", size, 4, 100) % 2:
            raise ValueError(f"size={size!r} should be even")
        with warnings.catch_warnings():
            # POPGym warns that memory is of little use here; the table of environments says so too.
            warnings.simplefilter("ignore", DeprecationWarning)
            env = env_class(maze_dims=(size, size))
        super().__init__(env, render_mode)

    def _begin(self) -> Any:
        with _global_generators(int(self.np_random.integers(2**32))):
            return super()._begin()

    def _mended(self, obs: Any, first: bool = False) -> Any:
        env: Any = self._env.unwrapped
        y, x = env.position
        view = np.pad(env.maze.grid, 1, constant_values=1)[y : y + 3, x : x + 3]
        return np.append(view, obs[-1])


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seeds Python's and numpy's global generators, from which mazelib draws, and puts them back."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


class LabyrinthExplore(_Labyrinth):
    """Visit every tile of a maze.

    Task: remember the ways that were not taken. In a maze without loops, following the wall does as well.
    Observation: MultiDiscrete([5] * 10): the 3x3 tiles round the agent, row by row (0 free, 1 wall, 2 start, 3 goal);
        the previous action, 4 at the reset. On the maze's left and upper rim POPGym moves the tiles by one; not so here.
    Actions: Discrete(4): left, right, up, down.
    Reward: 1 / (free tiles) for a new tile, else -1/1024.
    End: terminates when all is visited, truncates after 1023 steps.
    POPGym's info holds the maze and the position; not so here.

    Args:
        size: Tiles on a side, even; the rim adds one.
        render_mode: None or "rgb_array".
    """

    def __init__(self, size: int = 10, render_mode: str | None = None) -> None:
        super().__init__(upstream.LabyrinthExplore, size, render_mode)


class LabyrinthEscape(_Labyrinth):
    """Find the way out of a maze.

    Task: remember the ways that led nowhere. In a maze without loops, following the wall does nearly as well.
    Observation, actions: as `LabyrinthExplore`.
    Reward: -1/1024 each step, and 1 at the goal, which is on the side opposite to the start.
    End: terminates at the goal, truncates after 1023 steps.

    Args:
        size: Tiles on a side, even; the rim adds one.
        render_mode: None or "rgb_array".
    """

    def __init__(self, size: int = 10, render_mode: str | None = None) -> None:
        super().__init__(upstream.LabyrinthEscape, size, render_mode)
