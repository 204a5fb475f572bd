"""Linear read-outs of a memory, whose losses supervise it in training; the policy itself is not changed by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .encoder import ObservationNormalizer
from .option_words import ArgumentError

__all__ = ["CountedReadout", "OracleReadout", "make_oracle_readout", "require_set"]


class OracleReadout(nn.Module):
    """A linear read-out of what has to be remembered from the output of a memory; see ``--oracle-weight``.

    Args:
        inputs: size H of the output.
        oracle: (N, d) an example. Whole numbers are told apart as classes, others are predicted.
        classes: number of values of whole numbers.
        as_set: tell which whole numbers are in the oracle, and not their order. No number may occur in it twice.
    """

    def __init__(self, inputs: int, oracle: Tensor, classes: int, as_set: bool = False) -> None:
        super().__init__()
        self.discrete, self.size, self.classes = not oracle.is_floating_point(), oracle.shape[1], classes
        self.as_set = as_set
        self.normalizer = ObservationNormalizer(self.size)
        self.linear = nn.Linear(inputs, classes if as_set else self.size * (classes if self.discrete else 1))

    def forward(self, y: Tensor, oracle: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (M,), and whether it is told right (M,) float.

        Right is: all classes, of a set all members and no others, or a squared error below a tenth of the variance.

        Args:
            y: (M, H).
            oracle: (M, d).
        """
        told = self.linear(y)
        if self.as_set:
            members = self.members(oracle)
            loss = nn.functional.binary_cross_entropy_with_logits(told, members, reduction="none")
            # summed over the classes and divided by d, so that its scale is near that of the loss below
            return loss.sum(dim=-1) / self.size, ((told > 0) == members.bool()).all(dim=-1).float()
        if self.discrete:
            logits = told.unflatten(-1, (self.size, self.classes))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), oracle.flatten().long(), reduction="none")
            right = (logits.argmax(dim=-1) == oracle).all(dim=-1)
            return loss.view(-1, self.size).mean(dim=-1), right.float()
        error = (told - self.normalizer(oracle)).square().mean(dim=-1)
        return error, (error < 0.1).float().detach()

    def members(self, oracle: Tensor) -> Tensor:
        """1 for each whole number that is in the oracle (M, d), 0 for the others: (M, classes) float."""
        return torch.zeros(len(oracle), self.classes, device=oracle.device).scatter(1, oracle.long(), 1.0)


def make_oracle_readout(args: Any, task: Any, oracle: Tensor, inputs: int) -> OracleReadout:
    """The read-out that ``--oracle-weight`` asks for.

    Args:
        args: of the run: env_id and oracle_as_set.
        task: the environments.
        oracle: (N, d) an example of what has to be remembered.
        inputs: size of the output of the memory.

    Raises:
        ArgumentError: see `require_set`.
    """
    require_set(args, task)
    return OracleReadout(inputs, oracle, len(task.objects), args.oracle_as_set)


def require_set(args: Any, task: Any) -> None:
    """Raise ArgumentError for ``--oracle-as-set`` where the order matters in the task or there is nothing to order.

    Args:
        args: of the run: env_id and oracle_as_set.
        task: the environments.
    """
    if args.oracle_as_set and not task.oracle_is_set:
        raise ArgumentError(
            f"--oracle-as-set cannot be used: what has to be remembered in {args.env_id} is no set of targets; leave it "
            "out (it is for BunchOfColors and SeqOfColors)"
        )


class CountedReadout(nn.Module):
    """A linear read-out of the targets touched so far from the output of a memory; see ``--counted-weight``.

    Args:
        inputs: size H of the output.
        candidates: K.
    """

    def __init__(self, inputs: int, candidates: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, candidates)

    def forward(self, y: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (M,), and whether all candidates are told right (M,) float.

        Args:
            y: (M, H).
            counted: (M, K) bool.
        """
        told = self.linear(y)
        loss = nn.functional.binary_cross_entropy_with_logits(told, counted.to(told.dtype), reduction="none")
        return loss.mean(dim=-1), ((told > 0) == counted).all(dim=-1).float()
