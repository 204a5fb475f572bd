"""The gated Transformer-XL of Parisotto et al., 2019, arXiv 1910.06764."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from .attention import WindowMemory, chunks, sinusoids, split_heads
from .base import State

__all__ = ["GTrXL"]


class GTrXL(WindowMemory):
    """A transformer with GRU gates for residuals, relative positions and a memory of what each layer has seen.

    Normalisation is before attention and MLP only, a ReLU after them, and a gate joins the result to the stream; the gates
    start near the identity ("GTrXL (GRU)" of the paper). Positions are relative, as in Transformer-XL (Dai et al., 2019,
    arXiv 1901.02860). A layer attends to ``window`` steps back, and through these the next layer further. The state is
    "inputs", the normalised inputs of the layers, (N, window, layers, hidden_size), and "age" (N,). Inside of a sequence,
    gradients pass from step to step; the paper's stop at the borders of segments.

    Args:
        input_size, hidden_size: see `Memory`.
        layers: number of layers.
        heads: attention heads of each.
        window: steps before the present one that a layer attends to.
        gate_bias: how far the gates start from passing anything on: b_g of the paper.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = 128,
        layers: int = 2,
        heads: int = 4,
        window: int = 64,
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__(input_size, hidden_size, ("inputs",), layers, heads, window)
        self.options["gate_bias"] = gate_bias
        self.embed = nn.Linear(input_size, hidden_size)
        self.blocks = nn.ModuleList(_Block(hidden_size, heads, gate_bias) for _ in range(layers))
        self.final = nn.LayerNorm(hidden_size)

    def run(self, x: Tensor, past: State, ages: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """See `WindowMemory.run`."""
        y = self.embed(x).transpose(0, 1)  # (N, T, H)
        parts = list(chunks(ages, past["inputs"].shape[1], self.window))
        positions = sinusoids(torch.arange(self.window + 1, device=x.device), self.hidden_size)
        kept = []
        for i, block in enumerate(cast("Iterable[_Block]", self.blocks)):
            present = block.before_attention(y)
            kept.append(torch.cat([past["inputs"][:, :, i], present], dim=1))
            key, value = (split_heads(part, self.heads) for part in block.read(kept[-1]).chunk(2, dim=-1))
            query, relative = (
                split_heads(block.ask(present), self.heads),
                split_heads(block.place(positions)[None], self.heads),
            )
            by_content, by_place = query + block.content_bias, query + block.place_bias
            seen = []
            for steps, others, distance, mask in parts:
                scores = by_content[:, :, steps] @ key[:, :, others].mT  # (N, heads, Q, K)
                places = by_place[:, :, steps] @ relative.mT  # (N, heads, Q, window + 1)
                scores = scores + places.gather(-1, distance.clamp(0, self.window).expand_as(scores))
                weights = (scores / query.shape[-1] ** 0.5).masked_fill(~mask, float("-inf")).softmax(dim=-1)
                seen.append(weights @ value[:, :, others])
            read = block.output(torch.cat(seen, dim=2).transpose(1, 2).flatten(2))
            y = block.attention_gate(y, read.relu())
            y = block.mlp_gate(y, block.mlp(block.before_mlp(y)).relu())
        return self.final(y).transpose(0, 1), {"inputs": kept}


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, gate_bias: float) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(size), nn.LayerNorm(size)
        self.ask, self.read = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.place, self.output = nn.Linear(size, size, bias=False), nn.Linear(size, size)
        # u and v of Transformer-XL
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, size // heads))
        self.place_bias = nn.Parameter(torch.zeros(heads, 1, size // heads))
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        self.attention_gate, self.mlp_gate = _Gate(size, gate_bias), _Gate(size, gate_bias)


class _Gate(nn.Module):
    """A GRU cell that joins what a sublayer gives to the stream."""

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.of_update = nn.Linear(size, 3 * size)
        self.of_stream = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        with torch.no_grad():
            self.of_update.bias.zero_()
            self.of_update.bias[size : 2 * size] = -bias

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        """(…, H) each to (…, H)."""
        reset, mix, content = self.of_update(update).chunk(3, dim=-1)
        more_reset, more_mix = self.of_stream(stream).chunk(2, dim=-1)
        candidate = (content + self.of_reset((reset + more_reset).sigmoid() * stream)).tanh()
        return torch.lerp(stream, candidate, (mix + more_mix).sigmoid())
