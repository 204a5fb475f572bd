"""MemoryLength: remember bits, and answer with one of them after a delay."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from mikasa_base import checks
from mikasa_base.envs.batched import BatchedEnv, Bools, Floats, Game, Ints, SingleEnv, batch_size
from mikasa_base.envs.drawing import Image, canvas, rectangle, text

__all__ = ["MemoryLength", "MemoryLengthVector"]

_ONE, _ZERO, _HIDDEN, _WHITE = (60, 180, 75), (230, 60, 60), (70, 70, 70), (255, 255, 255)


class _Rules(Game):
    def __init__(self, num_envs: int, memory_length: int, num_bits: int) -> None:
        super().__init__(num_envs)
        self.memory_length = checks.integer("memory_length", memory_length, 1, 100_000)
        self.num_bits = checks.integer("num_bits", num_bits, 1, 1000)
        memory_length, num_bits = self.memory_length, self.num_bits  # plain ints, which cannot overflow
        low, high = np.zeros(num_bits + 2, np.float32), np.ones(num_bits + 2, np.float32)
        low[2:] = -1
        high[1] = max(1, num_bits - 1)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.num_uniforms = num_bits + 1
        # by the steps taken: the first one does not count
        self.clock = (1 - np.maximum(np.arange(-1, memory_length + 1), 0) / memory_length).astype(np.float32)
        self.bits = np.zeros((num_envs, num_bits), np.int64)  # 0 or 1
        self.query = np.zeros(num_envs, np.int64)  # which bit will be asked for
        self.steps = np.zeros(num_envs, np.int64)

    def begin(self, which: Ints, uniforms: Floats) -> None:
        self.bits[which] = uniforms[:, :-1] >= 0.5
        self.query[which] = uniforms[:, -1] * self.num_bits
        self.steps[which] = 0

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.steps += 1
        over = self.steps > self.memory_length
        reward = np.zeros(self.num_envs)
        if over.any():
            right = actions == self.bits[self.each, self.query]
            reward[over] = np.where(right[over], 1.0, -1.0)
        return reward, over, np.zeros(self.num_envs, np.bool_)

    def observe(self) -> npt.NDArray[np.float32]:
        shown = np.zeros((self.num_envs, self.num_bits + 2), np.float32)
        shown[:, 0] = self.clock[self.steps]
        asked = self.steps == self.memory_length
        if asked.any():
            shown[asked, 1] = self.query[asked]
        early = self.steps <= 1
        if early.any():
            shown[early, 2:] = 2 * self.bits[early] - 1
        return shown

    def frame(self, i: int) -> Image:
        time, query, *bits = self.observe()[i].tolist()
        columns = min(self.num_bits, 8)
        rows = -(-self.num_bits // columns)
        image = canvas(24 * rows + 48, max(24 * columns + 8, 128), (20, 20, 20))
        for k, bit in enumerate(bits):
            y, x = 8 + 24 * (k // columns), 8 + 24 * (k % columns)
            rectangle(image, y, x, 20, 20, _ONE if bit > 0 else _ZERO if bit < 0 else _HIDDEN)
        rectangle(image, 24 * rows + 12, 8, 4, round(112 * time), _WHITE)
        if self.steps[i] == self.memory_length:
            text(image, 24 * rows + 26, 8, f"bit {query:.0f} ?", _WHITE, 3)
        return image


class MemoryLength(SingleEnv):
    """The episode starts with some bits, and ``memory_length`` steps later asks for one of them.

    Task: remember ``num_bits`` bits for ``memory_length`` steps. The first two observations contain the bits. The last
    observation before the answer contains the index of one. With ``memory_length=1`` this is the second observation, and
    the task needs no memory.
    Observation: float32 (num_bits + 2,): 1 - t / memory_length, where t counts the steps from the second observation on;
        the index of the bit that is asked for in the observation after step ``memory_length``, else 0; the bits as
        -1 or 1 in the first two observations, else 0.
    Actions: Discrete(2), the value of the bit. Only the last action counts.
    Reward: 1 for the right and -1 for the wrong bit in the last step, 0 before.
    End: terminates after ``memory_length + 1`` steps.
    Source: Osband et al. 2020, Behaviour Suite for Reinforcement Learning (arXiv 1908.03568), memory_len and memory_size.

    Args:
        memory_length: Steps between the first observation, which contains the bits, and the question, 1 to
            100,000.
        num_bits: Number of bits, 1 to 1,000.
        render_mode: None or "rgb_array".
    """

    def __init__(self, memory_length: int = 10, num_bits: int = 1, render_mode: str | None = None) -> None:
        super().__init__(_Rules(1, memory_length, num_bits), render_mode)


class MemoryLengthVector(BatchedEnv):
    """`MemoryLength` as a vector environment; see there and `BatchedEnv`."""

    def __init__(
        self,
        num_envs: int = 1,
        memory_length: int = 10,
        num_bits: int = 1,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        super().__init__(_Rules(batch_size(num_envs), memory_length, num_bits), render_mode, autoreset_mode)
