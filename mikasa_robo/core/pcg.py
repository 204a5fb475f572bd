"""NumPy's default generator, PCG64, for many environments at once and on any device.

Seeds define episodes through ``numpy.random.default_rng``. Here the generators of N environments are tensors. A draw from
b of them takes a fixed number of tensor operations, loops over no environment and does not wait for a GPU. The numbers are
NumPy's to the last bit.

The algorithm is O'Neill's PCG XSL-RR 128/64 (https://www.pcg-random.org). Its state is a 128-bit number s that goes to
a·s + c modulo 2¹²⁸ with every number drawn; each generator has its own c. Torch has no 128-bit integers, so each is held as
4 words of 32 bits in int64, the lowest first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Entropy: TypeAlias = Sequence[int] | np.random.SeedSequence
"""What a generator starts with, as ``numpy.random.default_rng`` takes it."""

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
WORDS, WORD_BITS = 4, 32
MASK = 2**WORD_BITS - 1


class BatchedPCG64:
    """N independent generators, unseeded at first.

    Args:
        count: N.
        device: where the numbers are wanted.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        fresh = np.random.SeedSequence().generate_state(count * 2 * WORDS).astype(np.int64)
        words = torch.from_numpy(fresh).reshape(count, 2 * WORDS).to(device)
        self._state, self._increment = words[:, :WORDS].clone(), words[:, WORDS:].clone()
        self._increment[:, 0] |= 1

    @property
    def state(self) -> Tensor:
        """(N, 8) int64, a copy: each generator's state, then its increment."""
        return torch.cat([self._state, self._increment], dim=1)

    def seed(self, index: Tensor, entropy: Sequence[Entropy], drawn: Sequence[int] | None = None) -> None:
        """Starts the generators ``index`` (b,) as ``numpy.random.default_rng(e)`` does, for each e of ``entropy``.

        Args:
            index: (b,) generators.
            entropy: b seeds.
            drawn: how many numbers each is to skip; None: 0.
        """
        fresh = [np.random.PCG64(e) for e in entropy]
        for generator, numbers in zip(fresh, drawn or (), strict=False):
            generator.advance(numbers)
        states = [generator.state["state"] for generator in fresh]
        words = torch.tensor([_words(s["state"]) + _words(s["inc"]) for s in states], dtype=torch.int64)
        words = words.reshape(len(states), 2 * WORDS).to(self._state.device, non_blocking=True)
        self._state[index], self._increment[index] = words[:, :WORDS], words[:, WORDS:]

    def random(self, index: Tensor, columns: int) -> Tensor:
        """The next ``columns`` numbers of the generators ``index`` (b,), (b, columns) float64 in [0, 1)."""
        powers, sums = _jumps(columns, self._state.device)
        # all steps at once: after k of them the state is aᵏ·s + (1 + a + … + aᵏ⁻¹)·c
        state, increment = self._state[index][:, None], self._increment[index][:, None]
        words = _multiply_add(state, powers, increment, sums)
        if columns:
            self._state[index] = torch.stack([word[:, -1] for word in words], dim=1)
        return _to_double(words)


def _words(number: int) -> list[int]:
    return [(number >> (WORD_BITS * k)) & MASK for k in range(WORDS)]


@functools.cache
def _jumps(columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(columns, 4) each: aᵏ and 1 + a + … + aᵏ⁻¹ modulo 2¹²⁸ for k = 1 … columns."""
    powers, sums, power, total = [], [], 1, 0
    for _ in range(columns):
        total = (total + power) % 2**128
        power = power * MULTIPLIER % 2**128
        powers.append(_words(power))
        sums.append(_words(total))
    made = torch.tensor([powers, sums], dtype=torch.int64).reshape(2, columns, WORDS).to(device)
    return made[0], made[1]


def _multiply_add(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    """The words of a·b + c·d modulo 2¹²⁸, for words (…, 4) that are broadcast."""
    terms: list[list[Tensor]] = [[] for _ in range(WORDS)]
    for x, y in ((a, b), (c, d)):
        for i in range(WORDS):
            for j in range(WORDS - i):
                product = x[..., i] * y[..., j]  # below 2⁶⁴: its bits are right even where the sign is not
                terms[i + j].append(product & MASK)
                if i + j + 1 < WORDS:
                    terms[i + j + 1].append((product >> WORD_BITS) & MASK)
    words = []
    for k, parts in enumerate(terms):
        total = functools.reduce(torch.add, parts)
        words.append(total & MASK)
        if k + 1 < WORDS:
            terms[k + 1].append(total >> WORD_BITS)
    return words


def _to_double(state: list[Tensor]) -> Tensor:
    """The output for the words of a state: both halves combined, turned by the 6 highest bits, 53 bits kept."""
    low, high = state[0] ^ state[2], state[1] ^ state[3]
    turn = state[3] >> (WORD_BITS - 6)
    swap, turn = turn >= WORD_BITS, turn % WORD_BITS
    low, high = torch.where(swap, high, low), torch.where(swap, low, high)
    left = WORD_BITS - turn
    turned_low = ((low >> turn) | (high << left)) & MASK
    turned_high = ((high >> turn) | (low << left)) & MASK
    return ((turned_high << 21) | (turned_low >> 11)).to(torch.float64) * 2.0**-53
