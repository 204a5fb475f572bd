"""A causal transformer over the whole episode (Vaswani et al., 2017, arXiv 1706.03762), with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import WindowMemory, chunks, sinusoids, split_heads
from .base import State

__all__ = ["Block", "Transformer"]


class Transformer(WindowMemory):
    """Layers of causal self-attention and an MLP, with normalisation before each (Xiong et al., 2020, arXiv 2002.04745).

    The position is the step of the episode, as sines and cosines. The state is "keys" and "values" of the last ``window``
    steps, (N, window, layers, hidden_size) each, and "age" (N,). It is large, and each step copies it: choose a window as
    long as an episode, and not longer. In a longer episode the oldest steps are forgotten.

    Args:
        input_size, hidden_size: see `Memory`.
        layers: number of layers.
        heads: attention heads of each.
        window: steps before the present one that are attended to.
    """

    def __init__(
        self, input_size: int, hidden_size: int = 128, layers: int = 2, heads: int = 4, window: int = 256
    ) -> None:
        super().__init__(input_size, hidden_size, ("keys", "values"), layers, heads, window)
        self.embed = nn.Linear(input_size, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size) for _ in range(layers))
        self.final = nn.LayerNorm(hidden_size)

    def positions(self, ages: Tensor) -> Tensor:
        """What is added to the inputs (…, hidden_size) for the steps (…) of the episode."""
        return sinusoids(ages, self.hidden_size)

    def run(self, x: Tensor, past: State, ages: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """See `WindowMemory.run`."""
        y = (self.embed(x) + self.positions(ages)).transpose(0, 1)  # (N, T, H)
        parts = list(chunks(ages, past["keys"].shape[1], self.window))
        all_keys, all_values = [], []
        for i, block in enumerate(cast("Iterable[Block]", self.blocks)):
            query, key, value = block.queries_keys_values(y)
            all_keys.append(torch.cat([past["keys"][:, :, i], key], dim=1))
            all_values.append(torch.cat([past["values"][:, :, i], value], dim=1))
            q, k, v = (split_heads(tensor, self.heads) for tensor in (query, all_keys[-1], all_values[-1]))
            read = [
                functional.scaled_dot_product_attention(q[:, :, steps], k[:, :, others], v[:, :, others], mask)
                for steps, others, _, mask in parts
            ]
            y = block.join(y, torch.cat(read, dim=2))
        return self.final(y).transpose(0, 1), {"keys": all_keys, "values": all_values}


class Block(nn.Module):
    """The weights of one layer.

    Args:
        size: width H.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def queries_keys_values(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention needs, (N, T, H) each, of a stream (N, T, H)."""
        query, key, value = self.project(self.before_attention(y)).chunk(3, dim=-1)
        return query, key, value

    def join(self, y: Tensor, read: Tensor) -> Tensor:
        """The stream (N, T, H) after this layer, from that before it and what each head read (N, heads, T, H / heads)."""
        y = y + self.output(read.transpose(1, 2).flatten(2))
        joined: Tensor = y + self.mlp(self.before_mlp(y))
        return joined
