"""The sequence of a decision transformer (Chen et al., 2021, arXiv 2106.01345) as a memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import sinusoids
from .base import Memory, State, check_whole
from .transformer import Transformer

__all__ = ["TOKENS", "DecisionTransformer", "step_tokens", "token_size"]

TOKENS = 3
"""Tokens of a step: the action before it, the return-to-go, the observation."""


def token_size(input_size: int) -> int:
    """Size of a token: all parts of the input side by side, and which of the three it is."""
    return input_size + TOKENS


def step_tokens(x: Tensor, action_size: int) -> Tensor:
    """Three tokens (3 T, N, D) for each of T inputs (T, N, I), in the order action before, return-to-go, observation.

    A token has zeros where the parts of the others are, so that one linear layer embeds each kind by weights of its own.

    Args:
        x: observation, return-to-go (one number) and action before the step, side by side.
        action_size: numbers of an action.
    """
    observed, target, action = x.split([x.shape[-1] - 1 - action_size, 1, action_size], dim=-1)
    kinds = torch.eye(TOKENS, device=x.device).unbind()

    def token(kind: int, *parts: Tensor) -> Tensor:
        return torch.cat([*parts, kinds[kind].expand(*x.shape[:-1], TOKENS)], dim=-1)

    none = [torch.zeros_like(part) for part in (observed, target, action)]
    rows = [
        token(0, none[0], none[1], action),
        token(1, none[0], target, none[2]),
        token(2, observed, none[1], none[2]),
    ]
    return torch.stack(rows, dim=1).flatten(0, 1)


class DecisionTransformer(Memory):
    """A causal transformer over returns-to-go, observations and actions; its output is that at the observation.

    The tokens are in the order of the paper, R_0 o_0 a_0 R_1 o_1 a_1 …. Here a step holds the action before it and not its
    own, which is not known yet; before the first step that action is 0. The three tokens of a step share its position.
    Every layer attends to ``context`` steps, the present one among them. The state is that of a `Transformer`.

    Args:
        input_size: size I of x: observation, return-to-go and action before the step, side by side.
        hidden_size: see `Memory`.
        action_size: numbers of an action.
        layers: number of layers.
        heads: attention heads of each.
        context: steps that are attended to. In longer episodes the oldest are forgotten.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        action_size: int = 1,
        layers: int = 2,
        heads: int = 4,
        context: int = 256,
    ) -> None:
        super().__init__(input_size, hidden_size, action_size=action_size, layers=layers, heads=heads, context=context)
        check_whole(self, action_size=action_size, context=context)
        self.action_size = action_size
        window = TOKENS * context - 1  # tokens before the last one of a step
        self.transformer = _OfTokens(token_size(input_size), hidden_size, layers, heads, window)

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`."""
        return self.transformer.initial_state(n)

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        y, state = self._run(x.unsqueeze(0), state, starts.unsqueeze(0), self.transformer.window)
        return y.squeeze(0), state

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`."""
        age = state["age"].masked_fill(starts[0], 0)
        return self._run(x, state, starts, min(int(age.max()), self.transformer.window))

    def run_episodes(self, x: Tensor) -> Tensor:
        """See `Memory.run_episodes`."""
        return self.transformer.run_episodes(step_tokens(x, self.action_size))[TOKENS - 1 :: TOKENS]

    def _run(self, x: Tensor, state: State, starts: Tensor, used: int) -> tuple[Tensor, State]:
        first = torch.zeros(len(x), TOKENS, x.shape[1], dtype=torch.bool, device=x.device)
        first[:, 0] = starts
        y, state = self.transformer.run_window(step_tokens(x, self.action_size), state, first.flatten(0, 1), used)
        return y[TOKENS - 1 :: TOKENS], state


class _OfTokens(Transformer):
    """A transformer whose "steps" are tokens."""

    embed: nn.Linear

    def positions(self, ages: Tensor) -> Tensor:
        """Those of the steps that the tokens belong to."""
        return sinusoids(ages // TOKENS, self.hidden_size)
