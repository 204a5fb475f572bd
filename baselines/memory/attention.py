"""What transformer and GTrXL have in common: a window of the past, and attention to it that leaves no episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mikasa_robo.tensors import reads_wait

from .base import Memory, State, check_whole, episode_ages

__all__ = ["WindowMemory", "chunks", "sinusoids", "split_heads"]


class WindowMemory(Memory):
    """Base class of memories that keep something of each of the last ``window`` steps of an episode.

    A step attends to what is kept and to itself. The state is "age" (N,), the steps since the episode began, and tensors
    (N, window, layers, hidden_size) of what is kept, the newest last, with zeros for what was before the episode.

    Args:
        input_size, hidden_size: see `Memory`.
        kept: names of these tensors.
        layers, heads, window: numbers of layers, of attention heads and of steps.
    """

    def __init__(
        self, input_size: int, hidden_size: int, kept: tuple[str, ...], layers: int, heads: int, window: int
    ) -> None:
        super().__init__(input_size, hidden_size, layers=layers, heads=heads, window=window)
        check_whole(self, layers=layers, heads=heads, window=window)
        if hidden_size % (2 * heads):
            raise ValueError(f"{type(self).__name__}: hidden_size {hidden_size} is no multiple of 2 x heads {heads}")
        self.kept, self.layers, self.heads, self.window = kept, layers, heads, window

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        shape = n, self.window, self.layers, self.hidden_size
        state = {name: torch.zeros(shape, device=self.device) for name in self.kept}
        return {**state, "age": torch.zeros(n, dtype=torch.int64, device=self.device)}

    def run(self, x: Tensor, past: State, ages: Tensor) -> tuple[Tensor, Mapping[str, Sequence[Tensor]]]:
        """T steps.

        Args:
            x: (T, N, input_size).
            past: what is kept of the last P steps before, (N, P, layers, hidden_size) each.
            ages: (T, N) steps since the episode began.

        Returns:
            y (T, N, output_size), and what to keep of all P + T steps, (N, P + T, hidden_size) for each layer.
        """
        raise NotImplementedError

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        # What no row keeps is left out, as below, unless that waits for a GPU in each step.
        used = self.window if reads_wait(x.device) else self._used(state, starts)
        y, state = self.run_window(x.unsqueeze(0), state, starts.unsqueeze(0), used)
        return y.squeeze(0), state

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        # Most sequences begin with an episode or soon after: what no row keeps is left out. This costs one transfer from the
        # GPU for a whole sequence.
        return self.run_window(x, state, starts, self._used(state, starts[0]))

    def run_episodes(self, x: Tensor) -> Tensor:
        """See `Memory.run_episodes`. The state, which is large, is not made."""
        ages = torch.arange(len(x), device=x.device).unsqueeze(-1).expand(-1, x.shape[1])
        nothing = x.new_zeros((x.shape[1], 0, self.layers, self.hidden_size))
        return self.run(x, dict.fromkeys(self.kept, nothing), ages)[0]

    def _used(self, state: State, starts: Tensor) -> int:
        """The number of steps, the newest of the state, that some row keeps.

        Where an episode begins (``starts`` (N,)), what was before does not matter, not even to rounding.
        """
        return min(int(state["age"].masked_fill(starts, 0).max()), self.window)

    def run_window(self, x: Tensor, state: State, starts: Tensor, used: int) -> tuple[Tensor, State]:
        """`forward_sequence`, where no row keeps more than the ``used`` newest steps of the state."""
        ages = episode_ages(state["age"], starts)
        y, kept = self.run(x, {name: state[name][:, self.window - used :] for name in self.kept}, ages)
        count = min(used + len(x), self.window)
        older = torch.arange(count - 1, -1, -1, device=x.device) > ages[-1].unsqueeze(-1)  # (N, count)
        after = {}
        for name, layers in kept.items():
            # Written at once: each further copy of a large window costs as much as the attention.
            first = self.window - count
            whole = layers[0].new_empty((len(older), self.window, self.layers, self.hidden_size))
            whole[:, :first] = 0.0
            for i, layer in enumerate(layers):
                whole[:, first:, i] = layer[:, layer.shape[1] - count :]
            # Of the episodes before nothing stays, so that states can be compared and read.
            whole[:, first:].masked_fill_(older[..., None, None], 0)
            after[name] = whole
        return y, {**after, "age": ages[-1] + 1}


def chunks(ages: Tensor, past: int, window: int) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Stretches of steps, so that memory grows with T times the window and not with T².

    Args:
        ages: (T, N) steps since the episode began.
        past: number P of kept steps before them.
        window: how many steps back a step attends to.

    Yields:
        the Q steps that attend, the K steps of P + T that they may attend to, the distances (Q, K) between them, and the
        mask (N, 1, Q, K) bool of those within the window and the episode.
    """
    steps, size = len(ages), max(window, 64)
    for begin in range(0, steps, size):
        end, first = min(begin + size, steps), max(0, past + begin - window)
        queries = torch.arange(past + begin, past + end, device=ages.device)
        distance = queries.unsqueeze(-1) - torch.arange(first, past + end, device=ages.device)
        within = (distance >= 0) & (distance <= window)
        mask = within & (distance <= ages[begin:end].T.unsqueeze(-1))  # (N, Q, K)
        yield slice(begin, end), slice(first, past + end), distance, mask.unsqueeze(1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(N, T, H) to (N, heads, T, H / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines (…, width) of positions (…), as Vaswani et al., 2017, arXiv 1706.03762."""
    exponents = torch.arange(0, width, 2, device=positions.device) / width
    angles = positions.unsqueeze(-1) / 10_000**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
