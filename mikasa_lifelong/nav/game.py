"""The mazes as environments: reach the goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, Observations, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image
from mikasa_lifelong.nav.drawing import draw
from mikasa_lifelong.nav.kinematics import MAX_TURN, Bodies
from mikasa_lifelong.nav.mazes import WALL_HEIGHT, load_maze
from mikasa_lifelong.nav.rays import REACH, Camera

__all__ = ["BUTTONS", "EYE_HEIGHT", "MAX_STEPS", "STATE", "NavGame", "NavMaze", "NavMazeVector"]

MAX_STEPS = 300
GOAL_RADIUS = 1.0
"""An episode ends this close to the goal, m."""
MAX_SPEED = 10.0
"""Bound of a velocity in the observation space, m/s; nothing falls or runs as fast."""
EYE_HEIGHT = 0.5
"""Of the camera above the feet, m."""
DEPTH_SIZE, RGB_SIZE = 11, 64
HALF_WIDTH, HALF_HEIGHT = math.pi / 4, math.pi / 6
"""Half the camera's field of view, rad."""
BUTTONS = ("forward", "back", "left", "right", "jump")
"""The actions 0 to 4, which are pressed from 0.5 on; action 5 is the turn."""
_PARTS = ("position", "orientation", "velocity", "goal", "up", "contacts")
_NUM_STATE = 3 * len(_PARTS) + 1
STATE = {
    **{name: slice(3 * i, 3 * i + 3) for i, name in enumerate(_PARTS)},
    "timestep": slice(_NUM_STATE - 1, _NUM_STATE),
}
"""Where the parts of the state are in an observation. Depth comes after them."""


def _spaces(size: tuple[int, int], obs: str) -> gym.Space[Any]:
    rows, columns = size
    unit, speed = [(-1.0, 1.0)] * 3, [(-MAX_SPEED, MAX_SPEED)] * 3
    inside = [(0.0, columns), (0.0, rows), (0.0, WALL_HEIGHT)]
    bounds = [*inside, *unit, *speed, *inside, *unit, *[(0.0, 1.0)] * 3, (0.0, MAX_STEPS)]  # in the order of `STATE`
    bounds += [(0.0, REACH)] * (0 if obs == "state" else DEPTH_SIZE**2)
    low, high = np.array(bounds, np.float32).T
    state = gym.spaces.Box(low, high)
    if obs != "full":
        return state
    return gym.spaces.Dict({"state": state, "rgb": gym.spaces.Box(0, 255, (3, RGB_SIZE, RGB_SIZE), np.uint8)})


class NavGame(Game):
    """The rules of N episodes in one maze; see `NavMaze`."""

    num_uniforms = 7

    def __init__(self, num_envs: int, maze: str, obs: str) -> None:
        checks.choice("obs", obs, ("state", "depth", "full"))
        super().__init__(num_envs)
        self.maze = load_maze(maze)
        self.obs = obs
        self.observation_space = _spaces(self.maze.heights.shape, obs)
        self.action_space = gym.spaces.Box(
            np.array([0] * 5 + [-MAX_TURN], np.float32), np.array([1] * 5 + [MAX_TURN], np.float32)
        )
        self.bodies = Bodies(self.maze, num_envs)
        self.camera = Camera(self.maze, DEPTH_SIZE, HALF_WIDTH, HALF_HEIGHT)
        self.rgb_camera = Camera(self.maze, RGB_SIZE, HALF_WIDTH, HALF_HEIGHT)
        self.goal_x, self.goal_y = np.zeros((2, num_envs))
        self.elapsed = np.zeros(num_envs, np.int64)
        self.reached = np.zeros(num_envs, np.bool_)
        self.trail = np.zeros((MAX_STEPS + 1, 2, num_envs), np.float32)
        """Where each agent has been, x and y by step, for `frame`."""

    def begin(self, which: Ints, uniforms: Floats) -> None:
        x, y = self._places(self.maze.starts, uniforms[:, 0:3])
        self.bodies.place(which, x, y, np.pi * (1 - 2 * uniforms[:, 6]))
        self.goal_x[which], self.goal_y[which] = self._places(self.maze.goals, uniforms[:, 3:6])
        self.elapsed[which], self.reached[which] = 0, False
        self.trail[0, :, which] = np.stack([x, y], axis=1)

    def begin_seeded(self, seeds: Sequence[int]) -> None:
        """Starts in each environment the episode that a reset with its seed starts; ``seeds`` are N."""
        self.begin(self.each, np.stack([seeding.np_random(seed)[0].random(self.num_uniforms) for seed in seeds]))

    def _places(self, cells: npt.NDArray[np.float64], uniforms: Floats) -> tuple[Floats, Floats]:
        chosen = cells[(uniforms[:, 0] * len(cells)).astype(np.int64)] + self.maze.spread * (2 * uniforms[:, 1:] - 1)
        return chosen[:, 0], chosen[:, 1]

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        pressed = actions[:, :5].T >= 0.5
        move = pressed[[0, 2]].astype(np.float64) - pressed[[1, 3]]
        self.bodies.step(move[0], move[1], pressed[4], actions[:, 5].astype(np.float64))
        self.elapsed = np.minimum(self.elapsed + 1, MAX_STEPS)
        self.trail[self.elapsed, 0, self.each] = self.bodies.x
        self.trail[self.elapsed, 1, self.each] = self.bodies.y
        dx, dy, z = self.bodies.x - self.goal_x, self.bodies.y - self.goal_y, self.bodies.z
        self.reached = dx * dx + dy * dy + z * z <= GOAL_RADIUS**2
        return self.reached.astype(np.float64), self.reached.copy(), (self.elapsed >= MAX_STEPS) & ~self.reached

    def observe(self) -> Observations:
        bodies = self.bodies
        pixels = 0 if self.obs == "state" else DEPTH_SIZE**2
        state = np.zeros((self.num_envs, _NUM_STATE + pixels), np.float32)
        state[:, 0], state[:, 1], state[:, 2] = bodies.x, bodies.y, bodies.z
        state[:, 3], state[:, 4] = np.cos(bodies.heading), np.sin(bodies.heading)
        state[:, 6], state[:, 7], state[:, 8] = bodies.vx, bodies.vy, bodies.vz
        state[:, 9], state[:, 10] = self.goal_x, self.goal_y
        state[:, 14] = 1.0
        state[:, 15], state[:, 16], state[:, 17] = bodies.on_floor, bodies.at_wall, self.reached
        state[:, 18] = self.elapsed
        if pixels:
            eye = bodies.z + EYE_HEIGHT
            depth = self.camera.depth(bodies.x, bodies.y, eye, bodies.heading)
            state[:, _NUM_STATE:] = depth.reshape(self.num_envs, -1)
        return {"state": state, "rgb": self.picture(self.each)} if self.obs == "full" else state

    def picture(self, which: Ints) -> npt.NDArray[np.uint8]:
        """What agents ``which`` (b,) see, (b, 3, 64, 64)."""
        bodies = self.bodies
        return self.rgb_camera.picture(
            bodies.x[which],
            bodies.y[which],
            bodies.z[which] + EYE_HEIGHT,
            bodies.heading[which],
            self.goal_x[which],
            self.goal_y[which],
        )

    def frame(self, i: int) -> Image:
        return draw(self, i)


class NavMaze(SingleEnv):
    """A maze to be crossed. The IDs are ``SimpleTown…-v0`` (20 x 20 m) and ``AmazeVille…-v0`` (60 x 60 m).

    Task: come within 1 m of the goal. SimpleTown: starts anywhere in the southern strip, goals anywhere in the northern one.
        AmazeVille: one of four starts and one of four goals. The first heading is random.
    Observation: float32 (140,): position (m), orientation (unit vector), velocity (m/s), goal (m) and up, three numbers
        each; contacts with floor, wall and goal (0 or 1); the number of steps so far; depth (m, at most 20) by 11 x 11 rays
        over ±45° and ±30°, from the upper left. x points east, y north, z up. ``obs="state"`` leaves depth out, so (19,).
        ``obs="full"`` is a dict of ``state`` (140,) and ``rgb``, uint8 (3, 64, 64).
    Actions: Box(6): forward, back, left, right and jump are pressed from 0.5 on; the last is a turn to the left, ±π/4 rad.
    Physics: steps of 0.1 s, 5 m/s, 20 m/s², jumps of 1 m. A wall stops only the motion towards it. Tops can be stood on.
    Reward: 1 in the step that reaches the goal, else 0.
    End: terminates at the goal, and is truncated after 300 steps.
    Source: after Kobanda et al. 2025, Continual NavBench; the mazes are our own.

    Args:
        maze: A name in `mikasa_lifelong.nav.mazes.MAZES`.
        obs: "state", "depth" or "full"; see Observation.
        render_mode: None or "rgb_array".

    Raises:
        LifelongError: there is no such maze.
        ValueError: another argument cannot be used.
    """

    def __init__(self, maze: str = "SimpleTownBase", obs: str = "depth", render_mode: str | None = None) -> None:
        super().__init__(NavGame(1, maze, obs), render_mode)


class NavMazeVector(BatchedEnv):
    """`NavMaze` as a vector environment; see there and `BatchedEnv`.

    Args:
        max_episode_steps: Truncates episodes after this many steps, if that is earlier; see `BatchedEnv.limit_episodes`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        maze: str = "SimpleTownBase",
        obs: str = "depth",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int = -1,
    ) -> None:
        super().__init__(NavGame(batch_size(num_envs), maze, obs), render_mode, autoreset_mode)
        self.limit_episodes(max_episode_steps)
