"""What LSTM and GRU have in common: torch runs them over a stretch of steps, and a reset cuts a sequence into stretches."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from .base import Memory, State, reset_rows

__all__ = ["Recurrent", "initialize_gates"]


class Recurrent(Memory):
    """Base class of memories that one of torch's recurrent layers computes."""

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """T steps (T, N, input_size) in which no episode begins, from the state before them."""
        raise NotImplementedError

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        y, state = self.run(x.unsqueeze(0), reset_rows(state, starts))
        return y.squeeze(0), state

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        # One call for each stretch in which no episode begins anywhere. With few environments that is faster than a loop
        # over steps, or than rearranging all episodes into padded or packed sequences. The list costs one transfer from
        # the GPU for a whole sequence.
        begins: list[int] = starts[1:].any(dim=1).nonzero().squeeze(1).tolist()
        outputs = []
        for begin, end in itertools.pairwise([0, *(t + 1 for t in begins), len(starts)]):
            y, state = self.run(x[begin:end], reset_rows(state, starts[begin]))
            outputs.append(y)
        return torch.cat(outputs), state


def initialize_gates(layer: nn.RNNBase, gates: int) -> None:
    """Orthogonal weights for each of the gates, biases of zero."""
    for name, parameter in layer.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(gates):
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
