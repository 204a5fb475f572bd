"""Heads: how a network's outputs become a distribution over actions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from mikasa_lifelong.catalog import load_entry_point
from mikasa_lifelong.stream import Signature

from . import HEADS
from .model import TensorBatch

__all__ = ["Categorical", "Head", "make_head"]


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


def make_head(signature: Signature) -> Head:
    """The head that ``signature`` names."""
    head: Head = load_entry_point(HEADS[signature.head])(signature.outputs)
    return head
