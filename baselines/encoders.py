"""Encoders of what a robot task shows: a set of objects, and images.

An ``objects`` observation is a set: the order of its rows says nothing, and a task may ask *where* the remembered colour
lies now. An MLP of the joined rows would have to learn that for each row anew. Here every object becomes a token by the
same MLP, and attention reads the tokens: `TokenPooling` by queries that are learned, for what goes into a memory, and
`TokenReading` by a query from what the memory holds, for what is done now. Neither depends on the order of the objects,
see Zaheer et al., 2017, arXiv 1703.06114, and Lee et al., 2019, arXiv 1810.00825. A policy can have two more summaries,
`token_at_tcp` and `token_sum`.

K is the number of objects, C the number of features that say what an object is (see `core.observations.object_view`),
E the size of a token.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = [
    "POSE_SIZE",
    "ImpalaEncoder",
    "TokenEncoder",
    "TokenPooling",
    "TokenReading",
    "relu_mlp",
    "token_at_tcp",
    "token_features",
    "token_sum",
]

POSE_SIZE = 8
"""Numbers of an object before its features: a visible flag, position (m), quaternion wxyz."""
REACH = 0.3
"""Distance that becomes 1, m: about the size of the part of the table that is used."""
NEAR = 0.03
"""Distances beyond this many metres all look alike in the fine part of a position: what an object's size asks for."""
EMPTY_AT = 0.06
"""In `token_at_tcp` the empty token weighs as much as an object at this distance from the TCP, m."""
GEOMETRY = 1 + 3 + 3 + 3 + 6
"""Numbers of a token that tell whether and where an object is."""


def token_features(objects: Tensor, tcp: Tensor) -> Tensor:
    """What the shared MLP sees of each object.

    Args:
        objects: (..., K, 8 + C) visible flag, position (m), quaternion wxyz, features; zeros if not visible.
        tcp: (..., 7) pose of the tool centre point: position (m) and quaternion.

    Returns:
        (..., K, 16 + C) float32: the flag; the position relative to the TCP, coarse and fine; the position on the table;
        the first two columns of the rotation matrix, which are the same for q and -q and hold cosine and sine of the
        yaw; the features. Zeros if not visible.
    """
    flag, position, quaternion = objects[..., :1], objects[..., 1:4], objects[..., 4:POSE_SIZE]
    offset = position - tcp[..., None, :3]
    w, x, y, z = quaternion.unbind(-1)
    rotation = torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y + w * z),
            2 * (x * z - w * y),
            2 * (x * y - w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z + w * x),
        ],
        dim=-1,
    )
    parts = [flag, offset / REACH, torch.tanh(offset / NEAR), position / REACH, rotation, objects[..., POSE_SIZE:]]
    return torch.cat(parts, dim=-1) * flag


def relu_mlp(inputs: int, widths: tuple[int, ...], outputs: int | None = None, gain: float = 0.01) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last where ``outputs`` is None; orthogonal weights.

    Args:
        inputs: size of an input.
        widths: of the layers that a ReLU follows.
        outputs: width of a last layer without one.
        gain: scale of the weights of that layer.
    """
    layers: list[nn.Module] = []
    for width in widths:
        layers += [_linear(inputs, width, math.sqrt(2.0)), nn.ReLU()]
        inputs = width
    if outputs is not None:
        layers.append(_linear(inputs, outputs, gain))
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class TokenEncoder(nn.Module):
    """The shared MLP: (..., K, 16 + C) of `token_features` to tokens (..., K, E).

    Args:
        features: C.
        size: E.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.net = relu_mlp(GEOMETRY + features, (size, size))

    def forward(self, objects: Tensor) -> Tensor:
        tokens: Tensor = self.net(objects)
        return tokens


def _attend(queries: Tensor, tokens: Tensor, visible: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Dot-product attention over the visible tokens of one step, and over an empty token that is always there.

    There are no matrices for keys and values: the queries and the layer that follows do their work, at a cost that does
    not grow with K. The empty token is what is read where no object is visible, and where none fits the query.

    Args:
        queries: (..., Q, E), or (Q, E) for the same ones everywhere.
        tokens: (..., K, E).
        visible: (..., K) bool.
        empty: (E,).

    Returns:
        What was read (..., Q * E), and the scores (..., Q, K + 1) of the tokens, those of the empty one last; -inf if not
        visible.
    """
    all_tokens = torch.cat([tokens, empty.expand(*tokens.shape[:-2], 1, -1)], dim=-2)
    there = torch.cat([visible, torch.ones_like(visible[..., :1])], dim=-1)
    scores = queries @ all_tokens.transpose(-1, -2) / math.sqrt(tokens.shape[-1])  # (..., Q, K + 1)
    scores = scores.masked_fill(~there[..., None, :], -torch.inf)
    return (scores.softmax(dim=-1) @ all_tokens).flatten(-2), scores


def token_at_tcp(objects: Tensor, tokens: Tensor, visible: Tensor) -> Tensor:
    """The token of what is at the tool centre point: a mean over the visible tokens, weighted by how near they are.

    It tells a memory which object the hand touches. The queries of `TokenPooling` could learn that too, but they begin with
    about equal weights for all objects, and in BunchOfColors and SeqOfColors they did not (docs/results/README.md).

    Args:
        objects: (..., K, 16 + C) of `token_features`.
        tokens: (..., K, E).
        visible: (..., K) bool.

    Returns:
        (..., E): the mean with weights exp(-(d / `NEAR`)²) in the distance d to the TCP. An empty token of zeros takes part
        as if it were at `EMPTY_AT`. Zeros where nothing is visible.
    """
    distance = (objects[..., 1:4] * (REACH / NEAR)).square().sum(dim=-1)
    scores = (-distance).masked_fill(~visible, -torch.inf)
    scores = torch.cat([scores, torch.full_like(scores[..., :1], -((EMPTY_AT / NEAR) ** 2))], dim=-1)
    weights = scores.softmax(dim=-1)[..., None, :-1]  # (..., 1, K)
    return (weights @ tokens).squeeze(-2)


def token_sum(tokens: Tensor, visible: Tensor) -> Tensor:
    """The sum (..., E) of the visible ones of the tokens (..., K, E), from which it is easy to learn what is there.

    A set that is seen at once, such as the seven cubes of BunchOfColors7, is a sum of what stands for its members (Zaheer et
    al., 2017, arXiv 1703.06114). From the softmax of `TokenPooling` it is learnt more slowly.
    """
    return (tokens * visible[..., None]).sum(dim=-2)


class TokenPooling(nn.Module):
    """Summary of a set of tokens by learned queries; it does not depend on the order of the tokens.

    Args:
        size: E.
        queries: Q.
    """

    def __init__(self, size: int, queries: int = 4) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, size))
        self.empty = nn.Parameter(torch.zeros(size))
        self.outputs = queries * size

    def forward(self, tokens: Tensor, visible: Tensor) -> Tensor:
        """(..., Q * E) of tokens (..., K, E), of which ``visible`` (..., K) bool are there."""
        return _attend(self.queries, tokens, visible, self.empty)[0]


class TokenReading(nn.Module):
    """What queries find among the tokens of the same step; it does not depend on the order of the tokens.

    Args:
        inputs: size of what the queries are made from, such as the output of a memory.
        size: E.
        queries: Q.
        hidden: widths of hidden layers between the inputs and the queries. With them a query can be "the second colour, if
            one was touched": what is to be looked for then depends on several things that the memory holds.
    """

    def __init__(self, inputs: int, size: int, queries: int = 4, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.count = queries
        outputs = queries * size
        self.queries: nn.Module = relu_mlp(inputs, hidden, outputs, gain=1.0) if hidden else _linear(inputs, outputs)
        self.empty = nn.Parameter(torch.zeros(size))
        self.outputs = queries * size

    def forward(self, source: Tensor, tokens: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """What is read (..., Q * E) and the scores (..., Q, K + 1) of the tokens, those of the empty one last.

        Args:
            source: (..., inputs).
            tokens: (..., K, E).
            visible: (..., K) bool.
        """
        queries = self.queries(source).unflatten(-1, (self.count, -1))
        return _attend(queries, tokens, visible, self.empty)


class _Residual(nn.Module):
    """Two 3 x 3 convolutions whose result is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, channels, 3, 1, 1), nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + branch


class ImpalaEncoder(nn.Module):
    """The residual network of IMPALA (Espeholt et al., 2018, arXiv 1802.01561): images (B, H, W, C) to features (B, F).

    Three groups of a convolution, max-pooling by 2 and two residual blocks, then a linear layer. Images of 64 pixels or
    more are averaged over 2 x 2 pixels first, which makes it four times faster.

    Args:
        shape: (H, W, C).
        outputs: F.
        channels: of the groups.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int = 128, channels: tuple[int, ...] = (16, 32, 32)) -> None:
        super().__init__()
        height, width, inputs = shape
        halved = min(height, width) >= 64
        layers: list[nn.Module] = [nn.AvgPool2d(2)] if halved else []
        for group in channels:
            layers += [nn.Conv2d(inputs, group, 3, 1, 1), nn.MaxPool2d(3, 2, 1), _Residual(group), _Residual(group)]
            inputs = group
        self.net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.adds_bytes = halved and height % 2 == width % 2 == 0
        with torch.no_grad():
            size = self.net(torch.zeros(1, shape[2], height, width)).numel()
        self.out = _linear(size, outputs, math.sqrt(2.0))

    def forward(self, image: Tensor, scale: float = 1.0) -> Tensor:
        """Features (B, F) of images (B, H, W, C), whose numbers are multiplied by ``scale`` first."""
        if self.adds_bytes and image.dtype == torch.uint8:
            # Added up as integers, so that only a quarter of the numbers become floats: a forward pass takes a fifth less.
            rows = image[:, 0::2].to(torch.int16) + image[:, 1::2]
            pooled = (rows[:, :, 0::2] + rows[:, :, 1::2]).float() * (0.25 * scale)
            features = self.net[1:](pooled.permute(0, 3, 1, 2))
        else:
            features = self.net((image.float() * scale).permute(0, 3, 1, 2))
        return torch.relu(self.out(features))
