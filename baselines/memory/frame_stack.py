"""A stack of the last frames, as in Mnih et al., 2015: the shortest memory, and one that cannot fail within its window."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..encoder import mlp
from .base import Memory, State, check_whole, reset_rows

__all__ = ["FrameStack"]


class FrameStack(Memory):
    """A tanh MLP of the present input and those before it in the episode; zeros stand for those before its begin.

    Its state is "frames", (N, frames - 1, input_size), the newest last.

    Args:
        input_size, hidden_size: see `Memory`.
        frames: inputs in the stack, the present one among them.
    """

    def __init__(self, input_size: int, hidden_size: int = 128, frames: int = 4) -> None:
        super().__init__(input_size, hidden_size, frames=frames)
        check_whole(self, frames=frames)
        self.frames = frames
        self.mlp = mlp(frames * input_size, [hidden_size], hidden_size, output_gain=math.sqrt(2.0))

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return {"frames": torch.zeros((n, self.frames - 1, self.input_size), device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        stack = torch.cat([reset_rows(state, starts)["frames"], x.unsqueeze(1)], dim=1)  # (N, K, D)
        return self.mlp(stack.flatten(1)).tanh(), {"frames": stack[:, 1:]}

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        before = self.frames - 1
        everything = torch.cat([state["frames"].transpose(0, 1), x])  # (K - 1 + T, N, D)
        # A frame belongs to a stack if as many episodes had begun by then: those of the state are of episode 0.
        episode = starts.long().cumsum(dim=0)  # (T, N)
        episodes = torch.cat([torch.zeros_like(episode[:1]).expand(before, -1), episode])
        windows = everything.unfold(0, self.frames, 1)  # (T, N, D, K)
        kept = episodes.unfold(0, self.frames, 1) == episode.unsqueeze(-1)  # (T, N, K)
        stacks = (windows * kept.unsqueeze(2)).transpose(2, 3)
        return self.mlp(stacks.flatten(2)).tanh(), {"frames": stacks[-1, :, 1:]}
