"""Scripted agents that know the maze: they follow a planned way in one of six styles."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mikasa_base import checks
from mikasa_base.envs.batched import Bools, Ints
from mikasa_lifelong.nav.game import MAX_STEPS, NavGame
from mikasa_lifelong.nav.kinematics import MAX_TURN, RADIUS
from mikasa_lifelong.nav.mazes import HEDGE_HEIGHT, load_maze
from mikasa_lifelong.nav.planner import Planner

__all__ = ["STYLES", "Demonstrations", "Demonstrator", "Style", "demonstrate"]


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a demonstrator follows its way."""

    name: str
    lookahead: float
    """It walks towards the point of the way that is this far ahead, m."""
    noise: float = 0.0
    """Standard deviation of an error of its heading, which changes slowly, rad."""
    strafe: float = 0.0
    """It looks this far to the left or right of where it walks, rad."""
    jumps: float = 0.0
    """Probability of a needless jump in a step."""
    pauses: float = 0.0
    """Probability that a step begins a pause of up to 1 s."""
    side: bool = False
    """Whether it takes a way to the left or right of the shortest; see `Planner.way`."""


STYLES: tuple[Style, ...] = (
    Style(name="direct", lookahead=1.0),
    Style(name="smooth", lookahead=2.0, side=True),
    Style(name="wavering", lookahead=1.0, noise=0.3),
    Style(name="strafing", lookahead=1.0, strafe=np.pi / 2, side=True),
    Style(name="hopping", lookahead=1.0, jumps=0.08, noise=0.1),
    Style(name="hesitant", lookahead=1.5, pauses=0.02, side=True),
)

_SPACING = 0.25
"""Distance of the points of a way, m."""
_WINDOW = 16
"""Points ahead among which the closest is looked for in a step."""
_JUMP_AHEAD = 1.5
"""It jumps this far before the middle of a hedge's cell, m."""
_PAUSE = 10
"""Longest pause, steps."""
_NOISE_MEMORY = 0.9
"""Share of the error of the heading that is left after a step."""
_PRESS = np.sin(np.pi / 8)
"""A key is pressed where its direction is within 67.5° of the one wanted: the nearest of eight directions results."""


@functools.cache
def _planner(maze: str) -> Planner:
    return Planner(load_maze(maze))


class Demonstrator:
    """Plays N episodes of a game, each in a style of its own.

    All that chance decides follows from the generator of each episode, so an episode does not depend on N.

    Args:
        game: The game, whose state it reads.
    """

    def __init__(self, game: NavGame) -> None:
        self.game = game
        n = game.num_envs
        self.styles = np.zeros(n, np.int64)
        """Index in `STYLES` of each episode (N,)."""
        self._ways = np.zeros((n, 1, 2))
        self._last = np.zeros(n, np.int64)  # index of the last point of each way
        self._place = np.zeros(n, np.int64)  # index of the point that has been come to
        self._offset = np.zeros((n, MAX_STEPS))  # error of the heading by step
        self._gaze = np.zeros(n)  # angle between looking and walking
        self._jumps = np.zeros((n, MAX_STEPS), np.bool_)
        self._waits = np.zeros((n, MAX_STEPS), np.bool_)

    def begin(self, which: Ints, rngs: list[np.random.Generator]) -> None:
        """Plans ways for the episodes that have begun in environments ``which`` (b,), each with its generator."""
        for i, rng in zip(which.tolist(), rngs, strict=True):
            self.styles[i] = rng.integers(len(STYLES))
            style = STYLES[self.styles[i]]
            side = int(rng.choice([-1, 1]))
            self._set_way(i, side if style.side else 0)
            self._gaze[i] = side * style.strafe
            shocks = rng.normal(size=MAX_STEPS) * style.noise * np.sqrt(1 - _NOISE_MEMORY**2)
            error = 0.0
            for t, shock in enumerate(shocks.tolist()):
                error = _NOISE_MEMORY * error + shock
                self._offset[i, t] = error
            self._jumps[i] = rng.random(MAX_STEPS) < style.jumps
            starts, lengths = rng.random(MAX_STEPS) < style.pauses, rng.integers(1, _PAUSE + 1, MAX_STEPS)
            self._waits[i] = False
            for begin in np.flatnonzero(starts).tolist():
                self._waits[i, begin : begin + lengths[begin]] = True

    def _set_way(self, i: int, side: int) -> None:
        game = self.game
        start, goal = np.array([game.bodies.x[i], game.bodies.y[i]]), np.array([game.goal_x[i], game.goal_y[i]])
        corners = _planner(game.maze.name).way(start, goal, side)
        along = np.concatenate([[0.0], np.cumsum(np.sqrt((np.diff(corners, axis=0) ** 2).sum(axis=1)))])
        at = np.append(np.arange(0, along[-1], _SPACING), along[-1])
        if len(at) > self._ways.shape[1]:
            self._ways = np.pad(self._ways, ((0, 0), (0, len(at) - self._ways.shape[1]), (0, 0)))
        for axis in (0, 1):
            self._ways[i, : len(at), axis] = np.interp(at, along, corners[:, axis])
            self._ways[i, len(at) :, axis] = corners[-1, axis]
        self._last[i], self._place[i] = len(at) - 1, 0

    def act(self) -> npt.NDArray[np.float32]:
        """Actions (N, 6) for the current state."""
        bodies, each = self.game.bodies, self.game.each
        x, y = bodies.x[:, None], bodies.y[:, None]
        ahead = np.minimum(self._place[:, None] + np.arange(_WINDOW), self._last[:, None])  # (N, window)
        points = self._ways[each[:, None], ahead]
        self._place = ahead[each, ((points[..., 0] - x) ** 2 + (points[..., 1] - y) ** 2).argmin(axis=1)]
        lookahead = np.array([style.lookahead for style in STYLES])[self.styles]
        hedge = self._before_hedge()
        # Straight at a hedge, without cutting the corner before it.
        reach = np.where(hedge, np.minimum(lookahead, 1.0), lookahead)
        target = self._ways[each, np.minimum(self._place + (reach / _SPACING).astype(np.int64), self._last)]
        now = np.minimum(self.game.elapsed, MAX_STEPS - 1)
        wanted = np.arctan2(target[:, 1] - bodies.y, target[:, 0] - bodies.x)
        wanted = wanted + np.where(hedge, 0.0, self._offset[each, now])
        turn = wanted + self._gaze - bodies.heading
        turn = np.clip(turn - 2 * np.pi * np.round(turn / (2 * np.pi)), -MAX_TURN, MAX_TURN)
        relative = wanted - (bodies.heading + turn)
        forward, left = np.cos(relative), np.sin(relative)
        waits = self._waits[each, now] & bodies.on_floor & ~hedge
        pressed = [forward > _PRESS, forward < -_PRESS, left > _PRESS, left < -_PRESS]
        jump = bodies.on_floor & (hedge | (self._jumps[each, now] & ~waits))
        return np.stack([*(key & ~waits for key in pressed), jump, turn], axis=1).astype(np.float32)

    def _before_hedge(self) -> Bools:
        """Whether a hedge that is higher than the feet comes next on the way (N,)."""
        game = self.game
        if not game.maze.has_low_hedges:
            return np.zeros(game.num_envs, np.bool_)
        ahead = self._place[:, None] + np.arange(int((_JUMP_AHEAD + RADIUS) / _SPACING) + 1)
        points = self._ways[game.each[:, None], np.minimum(ahead, self._last[:, None])].astype(np.int64)
        heights = game.maze.heights[points[..., 1], points[..., 0]]
        return ((heights == HEDGE_HEIGHT) & (heights > game.bodies.z[:, None])).any(axis=1)


@dataclass(frozen=True)
class Demonstrations:
    """Episodes one after another, T steps altogether."""

    obs: npt.NDArray[np.float32]
    """(T, D): before each action."""
    actions: npt.NDArray[np.float32]
    """(T, 6)."""
    lengths: Ints
    """(episodes,): steps of each."""
    styles: Ints
    """(episodes,): index in `STYLES`."""
    successes: Bools
    """(episodes,): whether the goal was reached."""


def demonstrate(maze: str, episodes: int, seed: int, obs: str = "depth") -> Demonstrations:
    """Plays ``episodes`` episodes of a maze side by side.

    Args:
        maze: A name in `mikasa_lifelong.nav.mazes.MAZES`.
        episodes: How many, at least 1.
        seed: Episode i is that of the environment reset with ``seed + i``, at any number of episodes.
        obs: "state" or "depth", as in `mikasa_lifelong.nav.game.NavMaze`.

    Raises:
        LifelongError: there is no such maze.
        ValueError: another argument cannot be used.
    """
    checks.choice("obs", obs, ("state", "depth"))
    seeds = [checks.integer("seed", seed, 0, 2**63) + i for i in range(checks.integer("episodes", episodes, 1, 10**5))]
    game = NavGame(episodes, maze, obs)
    game.begin_seeded(seeds)
    demonstrator = Demonstrator(game)
    demonstrator.begin(game.each, [np.random.default_rng([one, 1]) for one in seeds])
    running, successes, lengths = (
        np.ones(episodes, np.bool_),
        np.zeros(episodes, np.bool_),
        np.zeros(episodes, np.int64),
    )
    seen, played, who = [], [], []
    while running.any():
        observations, actions = game.observe(), demonstrator.act()
        assert isinstance(observations, np.ndarray)
        seen.append(observations[running])
        played.append(actions[running])
        who.append(np.flatnonzero(running))
        lengths += running
        _, terminated, truncated = game.step(actions)
        successes |= running & terminated
        running &= ~(terminated | truncated)
    order = np.argsort(np.concatenate(who), kind="stable")  # by episode, and within an episode by step
    return Demonstrations(
        np.concatenate(seen)[order], np.concatenate(played)[order], lengths, demonstrator.styles, successes
    )
