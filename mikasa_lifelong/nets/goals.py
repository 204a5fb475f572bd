"""Goal-conditioned behavioural cloning of Continual NavBench: flat (GCBC) and with two levels (HGCBC).

A batch has ``view`` (B, V), what the agent perceives without knowing where it is; cosine and sine of its heading come
first. ``position`` and ``goal`` (B, 3) are in metres. In training a batch also has ``keys``, ``turn`` and ``offset`` (B, 3),
the way in metres to where the demonstrator was some steps later.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mikasa_lifelong.stream import Signature

from .heads import gaussian_log_prob, make_head
from .mlp import ResidualMLP, Trunk, TrunkModel
from .model import TensorBatch

__all__ = ["Flat", "Hierarchical", "build_flat", "build_hierarchical"]

UNIT = 10.0
"""Lengths are read in units of this many metres."""
NEAR = 2.0
"""The high level is to name the goal itself where it is closer than this, m."""
LOG_STD = -5.0, -2.5
"""Range of the logarithm of the standard deviation of the high level's offset in metres."""
WAY, PLACE = 9, 6
"""Numbers of `_way` and of `_place`."""


def _way(offset: Tensor, view: Tensor) -> Tensor:
    """How far and in which direction to go, (B, 9), from an offset (B, 3) in metres.

    Directions are those of the world, and as the agent sees them: ahead and to its left.
    """
    distance = torch.linalg.vector_norm(offset, dim=1, keepdim=True)
    direction = offset / (distance + 1e-6)
    cos, sin = view[:, 0:1], view[:, 1:2]
    x, y = direction[:, 0:1], direction[:, 1:2]
    return torch.cat([offset / UNIT, distance / UNIT, direction, cos * x + sin * y, cos * y - sin * x], dim=1)


def _place(batch: TensorBatch) -> Tensor:
    """Where the agent and the goal are, (B, 6)."""
    return torch.cat([batch["position"], batch["goal"]], dim=1) / UNIT


class _Goals(TrunkModel):
    """What both have: an action's distribution is the last part of the outputs."""

    def __init__(self, signature: Signature) -> None:
        super().__init__()
        self.action = make_head(signature)
        self.view = signature.inputs["view"][0]

    def _action(self, outputs: Tensor) -> Tensor:
        return outputs[:, -self.action.size :]

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.log_prob`."""
        return self.action.log_prob(self._action(outputs), batch)

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.error`."""
        return self.action.error(self._action(outputs), batch)

    def mode(self, outputs: Tensor) -> Tensor:
        """See `Model.mode`."""
        return self.action.mode(self._action(outputs))


class Flat(_Goals):
    """``gcbc``: a residual MLP reads the view, the places and the way to the goal.

    Args:
        signature: what it reads and writes.
        hidden: size of its hidden layers.
        dropout: share of hidden units dropped in training.
    """

    trunks = ("trunk",)

    def __init__(self, signature: Signature, hidden: int, dropout: float) -> None:
        super().__init__(signature)
        self.trunk = ResidualMLP(self.view + PLACE + WAY, self.action.size, hidden, dropout)

    def compute(self, batch: TensorBatch, run: Trunk) -> Tensor:
        """See `TrunkModel.compute`."""
        view = batch["view"]
        return run("trunk", torch.cat([view, _place(batch), _way(batch["goal"] - batch["position"], view)], dim=1))


class Hierarchical(_Goals):
    """``hgcbc``: the high level says where to be in some steps, as an offset, or that the goal itself is near.

    The low level reads the view and that offset, and does not know where it is. In training it reads the demonstrator's own
    offset, so that the levels do not depend on each other; in play that of the high level, anew in each step. The outputs
    are mean and raw deviation of the offset (3 each), the logit of "the goal is far", and those of the action.

    Args:
        signature: what it reads and writes.
        hidden: size of the hidden layers of each level.
        dropout: share of hidden units dropped in training.
    """

    trunks = ("high", "low")
    levels = ("high.", "low.")

    def __init__(self, signature: Signature, hidden: int, dropout: float) -> None:
        super().__init__(signature)
        self.high = ResidualMLP(self.view + PLACE + WAY, 7, hidden, dropout)
        self.low = ResidualMLP(self.view + WAY, self.action.size, hidden, dropout)

    def compute(self, batch: TensorBatch, run: Trunk) -> Tensor:
        """See `TrunkModel.compute`."""
        view, to_goal = batch["view"], batch["goal"] - batch["position"]
        high = run("high", torch.cat([view, _place(batch), _way(to_goal, view)], dim=1))
        offset = batch.get("offset")
        if offset is None:
            offset = torch.where(high[:, 6:7] > 0, high[:, :3], to_goal)
        return torch.cat([high, run("low", torch.cat([view, _way(offset, view)], dim=1))], dim=1)

    def _far(self, batch: TensorBatch) -> Tensor:
        """Whether the goal is not near, (B,), 0 or 1."""
        distance = torch.linalg.vector_norm(batch["goal"] - batch["position"], dim=1)
        return (distance >= NEAR).to(distance.dtype)

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.log_prob`: the sum of both levels'."""
        far = -functional.binary_cross_entropy_with_logits(outputs[:, 6], self._far(batch), reduction="none")
        offset = gaussian_log_prob(outputs[:, :3], outputs[:, 3:6], batch["offset"], *LOG_STD)
        return far + offset + super().log_prob(outputs, batch)

    def level_errors(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.level_errors`; lengths are in metres."""
        far = (torch.sigmoid(outputs[:, 6]) - self._far(batch)).square()
        return torch.stack(
            [far + (outputs[:, :3] - batch["offset"]).square().sum(dim=1), super().error(outputs, batch)]
        )

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """See `Model.error`: the sum of both levels'."""
        return self.level_errors(outputs, batch).sum(dim=0)


def build_flat(signature: Signature, hidden: int, dropout: float) -> Flat:
    """The entry point of the network ``gcbc``."""
    return Flat(signature, hidden, dropout)


def build_hierarchical(signature: Signature, hidden: int, dropout: float) -> Hierarchical:
    """The entry point of the network ``hgcbc``."""
    return Hierarchical(signature, hidden, dropout)
