"""Heads: how a network's outputs become a distribution over actions."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from mikasa_lifelong.catalog import load_entry_point
from mikasa_lifelong.errors import find
from mikasa_lifelong.stream import Signature

from . import HEADS
from .model import TensorBatch

__all__ = ["Categorical", "Head", "KeysTurn", "gaussian_log_prob", "make_head"]


class Head(Protocol):
    """A distribution over actions, given outputs (B, size)."""

    size: int

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """Log-probability (B,) of the batch's targets."""

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        """Error (B,) of the action, at least 0: the Brier score of discrete and the squared error of continuous parts."""

    def mode(self, outputs: Tensor) -> Tensor:
        """The most probable actions (B, …)."""


class Categorical:
    """One of ``size`` classes; the target is ``label`` (B,) int64."""

    def __init__(self, size: int) -> None:
        self.size = size

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        return -functional.cross_entropy(outputs, batch["label"], reduction="none")

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        truth = functional.one_hot(batch["label"], self.size)
        return (torch.softmax(outputs, dim=1) - truth).square().sum(dim=1)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1)


def gaussian_log_prob(mean: Tensor, raw: Tensor, target: Tensor, low: float, high: float) -> Tensor:
    """Log-density (B,) of ``target`` under independent Gaussians.

    Args:
        mean: (B, D).
        raw: (B, D); a sigmoid brings it into the range of the logarithm of the standard deviation.
        target: (B, D).
        low: the least logarithm of a standard deviation.
        high: the greatest.
    """
    log_std = low + (high - low) * torch.sigmoid(raw)
    z = (target - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=1)


class KeysTurn:
    """Keys that are pressed or not, each a Bernoulli variable, and a turn, a Gaussian one.

    The targets are ``keys`` (B, K), 0 or 1, and ``turn`` (B, 1), as a share of the largest turn.

    Args:
        size: how many numbers an action has: K keys, and the turn.
    """

    LOG_STD = -2.0, 1.0
    """Range of the logarithm of the turn's standard deviation, as in the release of Continual NavBench."""
    PRESSED = 0.5

    def __init__(self, size: int) -> None:
        self.keys = size - 1
        self.size = size + 1

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the keys (B, K), and mean and raw deviation of the turn (B, 1)."""
        return outputs[:, : self.keys], outputs[:, self.keys : self.keys + 1], outputs[:, self.keys + 1 :]

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        logits, mean, raw = self._split(outputs)
        keys = -functional.binary_cross_entropy_with_logits(logits, batch["keys"], reduction="none").sum(dim=1)
        return keys + gaussian_log_prob(mean, raw, batch["turn"], *self.LOG_STD)

    def error(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        logits, mean, _ = self._split(outputs)
        brier = (torch.sigmoid(logits) - batch["keys"]).square().sum(dim=1)
        return brier + (mean - batch["turn"]).square().sum(dim=1)

    def mode(self, outputs: Tensor) -> Tensor:
        """Actions (B, K + 1): 1 for each key that is pressed, else 0, and the turn as a share of the largest, in [-1, 1]."""
        logits, mean, _ = self._split(outputs)
        return torch.cat([(torch.sigmoid(logits) >= self.PRESSED).to(mean.dtype), mean.clamp(-1, 1)], dim=1)


def make_head(signature: Signature) -> Head:
    """The head that ``signature`` names. Raises LifelongError if there is none of that name."""
    head: Head = load_entry_point(find("head", signature.head, HEADS, "signature of a task, head"))(signature.outputs)
    return head
