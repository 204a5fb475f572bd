"""PassiveVisualMatch: remember a colour while collecting apples, then find the pad of that colour."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image, upscale

__all__ = [
    "APPLE",
    "APPLE_SLOTS",
    "APPLE_START",
    "CHOICE_STEPS",
    "CUE_STEPS",
    "FLOOR",
    "MOVES",
    "PADS",
    "PLAYER",
    "RESPAWN",
    "VIEW",
    "WALL",
    "PassiveVisualMatch",
    "PassiveVisualMatchVector",
    "Place",
]

Place = tuple[int, int]
"""Row and column of a tile, or the difference of two tiles."""
MOVES: tuple[Place, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
APPLE_START: Place = (5, 5)
"""The player's tile when the apples appear."""
APPLE_SLOTS: tuple[Place, ...] = tuple(
    (r, c) for r in range(1, 6) for c in range(1, 10) if (r + c) % 2 == 0 and (r, c) != APPLE_START
)
"""The tiles that can hold an apple. The first and the last one are corners of the room."""
VIEW = 5
"""Tiles along each side of the observation."""
_REACH = VIEW // 2
FLOOR, WALL, PLAYER, APPLE = (204, 204, 204), (25, 25, 25), (228, 148, 109), (140, 178, 0)
PADS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
_RIM = ((0, 0), (_REACH, _REACH), (_REACH, _REACH))
_floor, _wall, _player, _apple, _pad = range(5)  # codes of the tiles; pad k has the code _pad + k
_PALETTE = np.array([FLOOR, WALL, PLAYER, APPLE, *PADS], np.uint8)

_ROOMS = (
    # the cue: the ring round the player
    ("           ", "    ###    ", "    # #    ", "    ###    ", "           ", "           ", "           "),
    # apples
    ("###########", "#         #", "#         #", "#         #", "#         #", "#         #", "###########"),
    # the choice
    ("###########", "#         #", "#         #", "#         #", "####   ####", "   #   #   ", "   #####   "),
)
_STARTS = np.array([(2, 5), APPLE_START, (5, 5)])  # row, column of the player
# the rooms without cue, apples and pads, padded, as the view reaches beyond them
_TILES = np.pad([[[_wall if tile == "#" else _floor for tile in row] for row in room] for room in _ROOMS], _RIM)
_RING = np.array([(r, c) for r in (1, 2, 3) for c in (4, 5, 6) if (r, c) != (2, 5)])
_SLOTS = np.array(APPLE_SLOTS)
_PAD_PLACES = np.array([(1, 2), (1, 5), (1, 8)])
_MOVES = np.array(MOVES)

CUE_STEPS, CHOICE_STEPS = 15, 15
_NUM_APPLES = 10
RESPAWN = 20
"""Steps after which a new apple replaces one that was picked."""


class _Rules(Game):
    def __init__(self, num_envs: int, distractor_steps: int) -> None:
        super().__init__(num_envs)
        self.distractor_steps = checks.integer("distractor_steps", distractor_steps, 1, 100_000)
        self.begins = np.array([0, CUE_STEPS, CUE_STEPS + self.distractor_steps])  # step after which each phase begins
        self.max_steps = int(self.begins[-1]) + CHOICE_STEPS
        self.observation_space = gym.spaces.Box(0, 255, (VIEW, VIEW, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(_MOVES))
        # which tile of the ring is coloured, with what, which slots have apples, where each pad is
        self.num_uniforms = 2 + len(_SLOTS) + len(PADS)
        self.cue_place = np.zeros((num_envs, 2), np.int64)
        self.target = np.zeros(num_envs, np.int64)  # index into PADS
        self.apples = np.zeros((num_envs, _NUM_APPLES, 2), np.int64)
        self.ripe = np.zeros((num_envs, _NUM_APPLES), np.int64)  # step after which an apple that was picked is back
        self.pads = np.zeros((num_envs, len(PADS)), np.int64)  # pad on each of the places
        self.tiles = np.zeros((num_envs, *_TILES.shape[1:]), np.uint8)  # what lies where in the present room
        self.player = np.zeros((num_envs, 2), np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.won = np.zeros(num_envs, np.bool_)  # whether the right pad was found
        self.outcome = self.won  # the same after the last step, before any reset
        self.ended = np.zeros(num_envs, np.bool_)  # whether the episode came to its own end with the last step
        offsets = np.arange(VIEW)
        self._rows, self._columns = offsets[:, None], offsets[None, :]

    def begin(self, which: Ints, uniforms: Floats) -> None:
        ring, target, slots, pads = np.split(uniforms, np.cumsum([1, 1, len(_SLOTS)]), axis=1)
        self.cue_place[which] = _RING[(ring[:, 0] * len(_RING)).astype(np.int64)]
        self.target[which] = target[:, 0] * len(PADS)
        self.apples[which] = _SLOTS[slots.argsort(axis=1)[:, :_NUM_APPLES]]
        self.pads[which] = pads.argsort(axis=1)
        self.steps[which] = 0
        self.won[which] = False
        self._enter(which, 0)

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.steps += 1
        there = self.player + _MOVES[actions]
        blocked = (self._at(there) == _wall) | (self.steps <= CUE_STEPS)
        self.player = np.where(blocked[:, None], self.player, there)
        reached = self._at(self.player)
        rewards = np.zeros(self.num_envs)
        found = (reached > _wall).nonzero()[0]
        if len(found):
            rewards[found] = self._take(found, reached[found])
        envs, apples = (self.ripe == self.steps[:, None]).nonzero()
        if len(envs):
            self._put(envs, self.apples[envs, apples], _apple)
        entering, phases = (self.steps[:, None] == self.begins).nonzero()
        for phase in set(phases.tolist()):
            self._enter(entering[phases == phase], phase)
        self.outcome, self.ended = self.won.copy(), self.steps == self.max_steps
        return rewards, np.zeros(self.num_envs, np.bool_), self.ended

    def observe(self) -> Image:
        rows, columns = self.player[:, 0, None, None], self.player[:, 1, None, None]
        view = self.tiles[self.each[:, None, None], rows + self._rows, columns + self._columns]
        view[:, _REACH, _REACH] = _player
        return _PALETTE[view]

    def frame(self, i: int) -> Image:
        return upscale(self.observe()[i], 40)

    def _enter(self, which: Ints, phase: int) -> None:
        """Starts phase ``phase`` in environments ``which``."""
        self.player[which] = _STARTS[phase]
        self.tiles[which] = _TILES[phase]
        self.ripe[which] = -1
        if phase == 0:
            self._put(which, self.cue_place[which], (_pad + self.target[which]).astype(np.uint8))
        elif phase == 1:
            self._put(which[:, None], self.apples[which], _apple)
        else:
            self._put(which[:, None], _PAD_PLACES, (_pad + self.pads[which]).astype(np.uint8))

    def _take(self, which: Ints, reached: npt.NDArray[np.uint8]) -> Floats:
        """Rewards (b,) of the players of ``which`` (b,), who have each reached an apple or a pad, ``reached``."""
        apple = reached == _apple
        pickers, choosers = which[apple], which[~apple]
        self._put(pickers, self.player[pickers], _floor)
        picked = (self.apples[pickers] == self.player[pickers, None]).all(axis=-1)
        self.ripe[pickers] = np.where(picked, self.steps[pickers, None] + RESPAWN, self.ripe[pickers])
        self._put(choosers[:, None], _PAD_PLACES, _floor)
        right = reached == _pad + self.target[which]
        self.won[which] |= right
        return np.where(apple, 1.0, np.where(right, 10.0, 0.0))

    def _at(self, places: Ints) -> npt.NDArray[np.uint8]:
        """The tile codes (N,) at a place (N, 2) of each environment."""
        tiles: npt.NDArray[np.uint8] = self.tiles[self.each, places[:, 0] + _REACH, places[:, 1] + _REACH]
        return tiles

    def _put(self, which: Ints, places: Ints, tile: int | npt.NDArray[np.uint8]) -> None:
        """Writes tile codes to places (..., 2) of environments ``which`` (...)."""
        self.tiles[which, places[..., 0] + _REACH, places[..., 1] + _REACH] = tile


class PassiveVisualMatch(SingleEnv):
    """The episode shows a colour, distracts with apples, and asks for the pad of that colour among three.

    Task: for 15 steps the player is closed in a box of 3x3 tiles. A random one of them is red, green or blue. For
    ``distractor_steps`` steps it may collect apples in a room of 5x9 tiles. 10 apples lie on random ones of 22 places, a
    chessboard pattern without the player's start, and grow again 20 steps after they were picked. For the last 15 steps it
    is in an alcove below a room with a red, a green and a blue pad along its far wall, in random order. The first pad that
    it reaches makes all three disappear.
    Observation: uint8 (5, 5, 3), a pixel for each of the 5x5 tiles around the player, who is (228, 148, 109); walls
        (25, 25, 25), floor (204, 204, 204), apples (140, 178, 0), the cue and the pads pure red, green or blue.
    Actions: Discrete(4) north, south, west, east; walls stop the player.
    Reward: 1 for an apple, 10 if the first pad has the right colour.
    End: truncates after ``distractor_steps + 30`` steps; ``info["success"]`` then tells whether the first pad was the right
        one.
    Source: Hung et al. 2019, Optimizing agent behavior over long time scales by transporting value (arXiv 1810.06721);
        in this form Ni et al. 2023, When Do Transformers Shine in RL? (arXiv 2307.03864). Unlike there, the pads are in
        random order, and apples come back after 20 steps instead of 21.

    Args:
        distractor_steps: Steps among the apples, 1 to 100,000.
        render_mode: None or "rgb_array".
    """

    def __init__(self, distractor_steps: int = 30, render_mode: str | None = None) -> None:
        self._rules = _Rules(1, distractor_steps)
        super().__init__(self._rules, render_mode)

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Plays one step; see `SingleEnv`."""
        obs, reward, terminated, truncated, info = super().step(action)
        if truncated:
            info["success"] = bool(self._rules.outcome[0])
        return obs, reward, terminated, truncated, info


class PassiveVisualMatchVector(BatchedEnv):
    """`PassiveVisualMatch` as a vector environment; see there and `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        distractor_steps: int = 30,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self._rules = _Rules(batch_size(num_envs), distractor_steps)
        super().__init__(self._rules, render_mode, autoreset_mode)

    def step(self, actions: Any) -> tuple[Image, Floats, Bools, Bools, dict[str, Any]]:
        """Plays one step of every environment; see `BatchedEnv`."""
        obs, rewards, terminated, truncated, infos = super().step(actions)
        # An episode that ``max_episode_steps`` cuts off has no outcome, so `ended` is False there. An environment that this
        # step reset has none either, so `truncated` is False there.
        ended = self._rules.ended & truncated
        if ended.any():
            told = {"success": self._rules.outcome & ended, "_success": ended}
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                infos["final_info"] = told
            else:
                infos |= told
        return obs, rewards, terminated, truncated, infos
