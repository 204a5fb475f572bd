"""PassiveTMaze: remember the side of the goal while walking down a corridor."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image, canvas, disc, rectangle, text

__all__ = ["PassiveTMaze", "PassiveTMazeVector"]

_FLOOR, _GOAL, _AGENT = (90, 90, 90), (60, 180, 75), (255, 225, 25)


class _Rules(Game):
    def __init__(
        self,
        num_envs: int,
        corridor_length: int,
        goal_reward: float,
        penalty: float | Literal["dense"],
        distract_reward: float,
    ) -> None:
        super().__init__(num_envs)
        self.corridor_length = checks.integer("corridor_length", corridor_length, 1, 100_000)
        self.goal_reward = checks.number("goal_reward", goal_reward)
        dense = -1.0 / self.corridor_length
        if isinstance(penalty, str) and penalty != "dense":
            raise ValueError(f"penalty={penalty!r} should be 'dense' or a finite number of at most 0")
        self.penalty = dense if penalty == "dense" else checks.number("penalty", penalty, high=0.0)
        self.distract_reward = checks.number("distract_reward", distract_reward)
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.num_uniforms = 1
        # places: the corridor, whose last one is the junction, and those on either side of that
        end, self.up, self.down = self.corridor_length, self.corridor_length + 1, self.corridor_length + 2
        self.next_place = np.repeat(np.arange(end + 3)[:, None], 4, axis=1)  # (places, actions): +x, +y, -x, -y
        self.next_place[:end, 0] += 1
        self.next_place[1 : end + 1, 2] -= 1
        self.next_place[[end, self.down], [1, 1]] = self.up, end
        self.next_place[[end, self.up], [3, 3]] = self.down, end
        self.view = np.zeros((end + 3, 2), np.float32)
        self.view[end:] = (1, 0), (1, 1), (1, -1)
        self.goal = np.zeros(num_envs, np.int64)  # place
        self.place = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)

    def begin(self, which: Ints, uniforms: Floats) -> None:
        self.goal[which] = np.where(uniforms[:, 0] < 0.5, self.down, self.up)
        self.place[which] = self.steps[which] = 0

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.steps += 1
        self.place = self.next_place[self.place, actions]
        reward = np.zeros(self.num_envs)
        if self.penalty or self.distract_reward:
            x = np.minimum(self.place, self.corridor_length)
            reward += (x < self.steps) * self.penalty + (x == 0) * self.distract_reward
        over = self.steps > self.corridor_length
        if over.any():
            reward[over] = (self.place == self.goal)[over] * self.goal_reward
        return reward, over, np.zeros(self.num_envs, np.bool_)

    def observe(self) -> npt.NDArray[np.float32]:
        shown = self.view[self.place]
        start = self.steps == 0
        if start.any():
            shown[start, 1] = self.view[self.goal[start], 1]
        return shown

    def frame(self, i: int) -> Image:
        length = self.corridor_length
        cell = 16 if length <= 20 else 320 / length
        image = canvas(64, round(cell * length) + 32, (20, 20, 20))
        end = round(cell * length) + 8
        rectangle(image, 24, 8, 16, end + 8, _FLOOR)
        rectangle(image, 8, end, 48, 16, _FLOOR)
        if self.steps[i] == 0:  # y points up
            text(image, 4, 8, "up" if self.goal[i] == self.up else "down", _GOAL, 3)
        y = float(self.view[self.place[i], 1])
        disc(image, 32 - 16 * y, cell * min(int(self.place[i]), length) + 16, 6, _AGENT)
        return image


class PassiveTMaze(SingleEnv):
    """The first observation tells on which side of a T-junction the goal is. The junction is at the end of a corridor.

    Task: walk to the junction without any extra step, and turn to the side of the goal.
    Observation: float32 (2,): [0, side of the goal, -1 or 1] at the start, and [0, 0] if the agent comes back there;
        [0, 0] in the corridor; [1, y] at its end, where y is the side that the agent has turned to, or 0.
    Actions: Discrete(4): +x (down the corridor), +y, -x, -y. A wall stops the agent.
    Reward: in the last step ``goal_reward`` if the agent is at the goal, else 0; before it ``penalty`` for each step t
        (from 1) after which x < t, and ``distract_reward`` for each after which x = 0.
    End: terminates after ``corridor_length + 1`` steps, the length of the shortest way to the goal.
    Source: Ni et al. 2023, When Do Transformers Shine in RL? (arXiv 2307.03864), passive T-maze.

    Args:
        corridor_length: Steps from the start to the junction, 1 to 100,000.
        goal_reward: See Reward.
        penalty: See Reward; at most 0. "dense" stands for ``-1 / corridor_length``.
        distract_reward: See Reward.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self,
        corridor_length: int = 10,
        goal_reward: float = 1.0,
        penalty: float | Literal["dense"] = 0.0,
        distract_reward: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(_Rules(1, corridor_length, goal_reward, penalty, distract_reward), render_mode)


class PassiveTMazeVector(BatchedEnv):
    """`PassiveTMaze` as a vector environment; see there and `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        corridor_length: int = 10,
        goal_reward: float = 1.0,
        penalty: float | Literal["dense"] = 0.0,
        distract_reward: float = 0.0,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        rules = _Rules(batch_size(num_envs), corridor_length, goal_reward, penalty, distract_reward)
        super().__init__(rules, render_mode, autoreset_mode)
