"""Mazes as tasks of a stream: demonstrations with relabelled goals to learn from, and episodes to be played."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mikasa_base.envs.batched import Ints
from mikasa_base.envs.drawing import Image
from mikasa_lifelong.nav.demonstrator import Demonstrations, demonstrate
from mikasa_lifelong.nav.film import episode_frames
from mikasa_lifelong.nav.game import BUTTONS, DEPTH_SIZE, STATE, NavGame
from mikasa_lifelong.nav.kinematics import MAX_TURN, RUN_SPEED
from mikasa_lifelong.nav.rays import REACH
from mikasa_lifelong.stream import Batch, Policy, Scores, Signature

__all__ = ["EVALUATION_SEED", "CrossMaze", "Steps", "env_actions", "policy_inputs"]

Array = npt.NDArray[np.float32]
EPISODES = 100
"""Of an evaluation."""
EVALUATION_SEED = 10**6
"""Episode j of an evaluation has this seed plus j. Demonstrations have the seeds from 0."""
VIEW = 2 + 3 + 2 + DEPTH_SIZE**2
"""Numbers of a view: heading, velocity, contacts with floor and wall, depth."""


def policy_inputs(obs: Array) -> dict[str, Array]:
    """What a policy reads of observations (N, 140) of `mikasa_lifelong.nav.game.NavMaze`.

    Returns:
        ``view`` (N, 128): heading as a unit vector, velocity as a share of the running speed, contacts, and depth as a
        share of the farthest; ``position`` and ``goal`` (N, 3), m. The number of the step, and what is always the same, is
        left out.
    """
    contacts = STATE["contacts"].start
    parts = [
        obs[:, STATE["orientation"]][:, :2],
        obs[:, STATE["velocity"]] / RUN_SPEED,
        obs[:, contacts : contacts + 2],
        obs[:, STATE["timestep"].stop :] / REACH,
    ]
    view = np.concatenate(parts, axis=1, dtype=np.float32)
    return {"view": view, "position": obs[:, STATE["position"]], "goal": obs[:, STATE["goal"]]}


def env_actions(actions: Array) -> Array:
    """Actions (N, 6) of the environment from those of a policy, whose turn is a share of the largest."""
    return actions * np.array([1.0] * len(BUTTONS) + [MAX_TURN], np.float32)


class Steps:
    """Steps of demonstrations; the goal of each is drawn anew whenever it is used (hindsight experience replay).

    Args:
        view: (N, V) of each step.
        actions: (N, 6) as a policy gives them.
        places: (N,) row in ``track`` of each step.
        track: (T, 3) positions in whole episodes, one episode after another, m.
        ends: (episodes,) row in ``track`` of the last step of each, rising.
        goal_steps: mean number of steps from a step to the one whose position is its goal; exponentially distributed, and
            cut off at the end of the episode.
        offset_steps: number of steps to the one whose position the high level is to name, up to 2 more or less.
    """

    JITTER = 2

    def __init__(
        self, view: Array, actions: Array, places: Ints, track: Array, ends: Ints, goal_steps: float, offset_steps: int
    ) -> None:
        self.view, self.actions, self.places = view, actions, places
        self.track, self.ends = track, ends
        self.goal_steps, self.offset_steps = goal_steps, offset_steps

    @classmethod
    def of(cls, shown: Demonstrations, goal_steps: float, offset_steps: int) -> Steps:
        """All steps of demonstrations."""
        inputs = policy_inputs(shown.obs)
        actions = shown.actions / env_actions(np.ones_like(shown.actions))
        places, ends = np.arange(len(actions)), np.cumsum(shown.lengths) - 1
        return cls(inputs["view"], actions, places, inputs["position"], ends, goal_steps, offset_steps)

    def __len__(self) -> int:
        return len(self.view)

    @property
    def numbers_per_item(self) -> int:
        """A view, an action, and a share of the positions of the episodes."""
        return self.view.shape[1] + self.actions.shape[1] + math.ceil(self.track.size / len(self))

    def draw(self, rows: Ints, rng: np.random.Generator) -> Batch:
        """See `mikasa_lifelong.stream.Dataset.draw`; `mikasa_lifelong.nets.goals` says what the arrays are."""
        here = self.places[rows]
        last = self.ends[np.searchsorted(self.ends, here)]
        ahead = np.rint(rng.exponential(self.goal_steps, len(rows))).astype(np.int64)
        soon = self.offset_steps + rng.integers(-self.JITTER, self.JITTER + 1, len(rows))
        position, actions = self.track[here], self.actions[rows]
        return {
            "view": self.view[rows],
            "position": position,
            "goal": self.track[np.minimum(here + ahead, last)],
            "offset": self.track[np.minimum(here + soon, last)] - position,
            "keys": actions[:, :-1],
            "turn": actions[:, -1:],
        }

    def take(self, rows: Ints) -> Steps:
        """The steps ``rows`` only, with all positions of their episodes."""
        episodes = np.unique(np.searchsorted(self.ends, self.places[rows]))
        kept = np.isin(np.searchsorted(self.ends, np.arange(len(self.track))), episodes)
        moved = np.cumsum(kept) - 1  # from rows of the old track to rows of the new one
        places, ends = moved[self.places[rows]], moved[self.ends[episodes]]
        return Steps(
            self.view[rows], self.actions[rows], places, self.track[kept], ends, self.goal_steps, self.offset_steps
        )


@functools.cache
def _steps(maze: str, episodes: int, goal_steps: float, offset_steps: int) -> Steps:
    return Steps.of(demonstrate(maze, episodes, seed=0), goal_steps, offset_steps)


class CrossMaze:
    """Cross one maze; the network's actions are keys and a turn.

    Args:
        maze: a name in `mikasa_lifelong.nav.mazes.MAZES`.
        demonstrations: how many episodes there are to learn from.
        goal_steps: see `Steps`.
        offset_steps: see `Steps`.
    """

    def __init__(self, maze: str, demonstrations: int, goal_steps: float, offset_steps: int) -> None:
        self.maze, self.demonstrations = maze, demonstrations
        self.goal_steps, self.offset_steps = goal_steps, offset_steps
        inputs = {"view": (VIEW,), "position": (3,), "goal": (3,)}
        self.signature = Signature(inputs, "keys-turn", len(BUTTONS) + 1)

    def dataset(self, seed: int) -> Steps:
        """The demonstrations; they are the same for every ``seed``, as those of a published data set are."""
        return _steps(self.maze, self.demonstrations, self.goal_steps, self.offset_steps)

    def evaluate(self, policy: Policy, episodes: int | None) -> Scores:
        """Play ``episodes`` episodes side by side, by default 100; a success is to reach the goal within 300 steps."""
        trials = EPISODES if episodes is None else episodes
        game = NavGame(trials, self.maze, "depth")
        game.begin_seeded([EVALUATION_SEED + j for j in range(trials)])
        policy.on_episode_start()
        running, reached = np.ones(trials, np.bool_), np.zeros(trials, np.bool_)
        while running.any():
            obs = game.observe()
            assert isinstance(obs, np.ndarray)
            _, terminated, truncated = game.step(env_actions(policy.act(policy_inputs(obs))))
            reached |= running & terminated
            running &= ~(terminated | truncated)
        successes = int(reached.sum())
        return Scores(successes, trials, successes / trials)

    def frames(self, policy: Policy, episode: int) -> Iterator[Image]:
        """Draw an episode; see `mikasa_lifelong.stream.DrawableTask`."""
        policy.on_episode_start()
        return episode_frames(
            self.maze, lambda obs: env_actions(policy.act(policy_inputs(obs))), EVALUATION_SEED + episode
        )
