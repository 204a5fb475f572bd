"""The sequence of RATE, the recurrent action transformer with memory (Cherepanov et al., 2023, arXiv 2306.09459)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import sinusoids, split_heads
from .base import Memory, State, check_whole
from .decision import TOKENS, step_tokens, token_size
from .transformer import Block

__all__ = ["RATE", "MemoryRetentionValve"]


class MemoryRetentionValve(nn.Module):
    """What stays of a memory: cross-attention in which the old memory asks and the candidates answer.

    M' = W_O softmax(Q K^T / sqrt(d)) V per head, with Q = W_Q M of the old memory M, and K = W_K C, V = W_V C of the
    candidates C, the outputs of the transformer at the memory tokens behind the segment.

    Args:
        size: width H of a memory token.
        heads: attention heads.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.output = nn.Linear(size, size)

    def forward(self, memory: Tensor, candidates: Tensor) -> Tensor:
        """The new memory (N, M, H) from the old one and the candidates, of the same shape."""
        parts = self.ask(memory), self.key(candidates), self.value(candidates)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        read = functional.scaled_dot_product_attention(query, key, value)
        kept: Tensor = self.output(read.transpose(1, 2).flatten(2))
        return kept


class RATE(Memory):
    """A causal transformer over segments of an episode, with memory tokens that go from one segment to the next.

    An episode is divided into segments of ``segment`` steps. Each becomes the sequence memory, steps, memory; a step has the
    tokens of `decision.step_tokens`. The tokens in front see each other; those of steps see the memory in front and what was
    before them in the segment; those behind see everything. What the transformer makes of the memory behind passes the
    `MemoryRetentionValve`, and the result is the memory of the next segment. Nothing else passes from a segment to the next:
    of the paper's three mechanisms, caching of hidden states is left out. Gradients pass through the memory.

    The state is "memory" (N, memory_tokens, H), "keys" and "values" of the segment so far (N, segment x 3, layers, H), and
    "age" (N,), the steps since the episode began.

    Args:
        input_size, hidden_size, action_size, layers, heads: see `decision.DecisionTransformer`.
        segment: K, steps of a segment.
        memory_tokens: M.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        action_size: int = 1,
        layers: int = 2,
        heads: int = 4,
        segment: int = 10,
        memory_tokens: int = 5,
    ) -> None:
        sizes = {"layers": layers, "heads": heads, "segment": segment, "memory_tokens": memory_tokens}
        super().__init__(input_size, hidden_size, action_size=action_size, **sizes)
        check_whole(self, action_size=action_size, **sizes)
        if hidden_size % (2 * heads):
            raise ValueError(f"RATE: hidden_size {hidden_size} is no multiple of 2 x heads {heads}")
        self.action_size, self.layers, self.heads = action_size, layers, heads
        self.segment, self.memory_tokens = segment, memory_tokens
        self.embed = nn.Linear(token_size(input_size), hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size) for _ in range(layers))
        self.final = nn.LayerNorm(hidden_size)
        self.valve = MemoryRetentionValve(hidden_size, heads)
        self.first_memory = nn.Parameter(torch.randn(memory_tokens, hidden_size))
        # the places of the memory in front of a segment and behind it
        self.places = nn.Parameter(0.02 * torch.randn(2, memory_tokens, hidden_size))

    def initial_state(self, n: int) -> State:
        """See `Memory.initial_state`. "memory" is learnt."""
        cache = torch.zeros(n, self.segment * TOKENS, self.layers, self.hidden_size, device=self.device)
        return {
            "memory": self.first_memory.expand(n, -1, -1),
            "keys": cache,
            "values": cache.clone(),
            "age": torch.zeros(n, dtype=torch.int64, device=self.device),
        }

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.step`."""
        rows = starts[:, None, None]
        memory = torch.where(rows, self.first_memory, state["memory"])
        keys, values = (state[name].masked_fill(rows[..., None], 0) for name in ("keys", "values"))
        age = state["age"].masked_fill(starts, 0)
        place = age % self.segment  # of the step in its segment
        slots = torch.arange(keys.shape[1], device=x.device)
        seen = slots < TOKENS * place[:, None]  # (N, cache)
        tokens = self._embedded(x.unsqueeze(0), place.unsqueeze(0))
        y, candidates, *added = self._read(tokens, memory, keys, values, seen)
        own = TOKENS * place[:, None] + torch.arange(TOKENS, device=x.device)  # (N, 3) slots of this step
        index = own[..., None, None].expand(-1, -1, self.layers, self.hidden_size)
        keys, values = keys.scatter(1, index, added[0]), values.scatter(1, index, added[1])
        # A full segment is closed at once. It is computed for all rows, so that none has to be chosen on the host.
        full = (place == self.segment - 1)[:, None, None]
        memory = torch.where(full, self.valve(memory, candidates), memory)
        keys, values = (part.masked_fill(full[..., None], 0) for part in (keys, values))
        return y.squeeze(0), {"memory": memory, "keys": keys, "values": values, "age": age + 1}

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """See `Memory.forward_sequence`. Whole episodes go segment by segment, all else step by step."""
        if bool(starts[1:].any()) or not bool((starts[0] | (state["age"] == 0)).all()):
            return super().forward_sequence(x, state, starts)
        n = x.shape[1]
        state = self.initial_state(n)
        memory, keys, values = state["memory"], state["keys"], state["values"]
        nothing = torch.zeros(n, 0, self.layers, self.hidden_size, device=x.device)
        unseen = torch.zeros(n, 0, dtype=torch.bool, device=x.device)
        outputs = []
        for part in x.split(self.segment):
            place = torch.arange(len(part), device=x.device).unsqueeze(-1).expand(-1, n)
            y, candidates, *added = self._read(self._embedded(part, place), memory, nothing, nothing, unseen)
            outputs.append(y)
            padding = (0, 0, 0, 0, 0, keys.shape[1] - TOKENS * len(part))
            keys, values = (functional.pad(new, padding) for new in added)
            if len(part) == self.segment:
                memory, keys, values = self.valve(memory, candidates), torch.zeros_like(keys), torch.zeros_like(values)
        age = torch.full_like(state["age"], len(x))
        return torch.cat(outputs), {"memory": memory, "keys": keys, "values": values, "age": age}

    def _embedded(self, x: Tensor, place: Tensor) -> Tensor:
        """Tokens (N, 3 T, H) of inputs (T, N, I), whose places in their segments are (T, N)."""
        tokens = self.embed(step_tokens(x, self.action_size))
        return (tokens + sinusoids(place, self.hidden_size).repeat_interleave(TOKENS, dim=0)).transpose(0, 1)

    def _read(
        self, tokens: Tensor, memory: Tensor, keys: Tensor, values: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Steps of one segment.

        Args:
            tokens: (N, Q, H) of T steps.
            memory: (N, M, H) of the segment.
            keys, values: (N, P, layers, H) of the segment before these steps.
            seen: (N, P) bool, which of them there are.

        Returns:
            The outputs (T, N, H), the candidates (N, M, H) for the memory if the segment ends here, and the keys and values
            (N, Q, layers, H) of the tokens.
        """
        front, behind = memory + self.places[0], memory + self.places[1]
        y = torch.cat([front, tokens, behind], dim=1)  # (N, M + Q + M, H)
        own = slice(self.memory_tokens, self.memory_tokens + tokens.shape[1])
        mask = self._mask(tokens.shape[1], seen)
        all_keys, all_values = [], []
        for i, block in enumerate(cast("Iterable[Block]", self.blocks)):
            query, key, value = block.queries_keys_values(y)
            all_keys.append(key[:, own])
            all_values.append(value[:, own])
            k, v = torch.cat([keys[:, :, i], key], dim=1), torch.cat([values[:, :, i], value], dim=1)
            q, k, v = (split_heads(part, self.heads) for part in (query, k, v))
            y = block.join(y, functional.scaled_dot_product_attention(q, k, v, mask))
        y = self.final(y)
        outputs = y[:, own][:, TOKENS - 1 :: TOKENS].transpose(0, 1)
        return outputs, y[:, own.stop :], torch.stack(all_keys, dim=2), torch.stack(all_values, dim=2)

    def _mask(self, count: int, seen: Tensor) -> Tensor:
        """Which of cache, front, tokens and behind (N, 1, M + Q + M, P + M + Q + M) each of the last three may read."""
        memory = self.memory_tokens
        group = torch.arange(2 * memory + count, device=seen.device).sub(memory).clamp(-1, count)
        # -1 in front, then the tokens in turn, and all that is behind is the last
        among = group <= group.unsqueeze(-1)  # (M + Q + M, M + Q + M)
        cached = seen.unsqueeze(1) & (group >= 0).unsqueeze(-1)  # (N, M + Q + M, P)
        return torch.cat([cached, among.expand(len(seen), -1, -1)], dim=-1).unsqueeze(1)
