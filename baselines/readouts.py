"""Linear read-outs of a memory, whose losses supervise it in training; the policy itself is not changed by them."""

from __future__ import annotations

from torch import Tensor, nn

from .encoder import ObservationNormalizer

__all__ = ["CountedReadout", "OracleReadout"]


class OracleReadout(nn.Module):
    """A linear read-out of what has to be remembered from the output of a memory; see ``--oracle-weight``.

    Args:
        inputs: size H of the output.
        oracle: (N, d) an example. Whole numbers are told apart as classes, others are predicted.
        classes: number of values of whole numbers.
    """

    def __init__(self, inputs: int, oracle: Tensor, classes: int) -> None:
        super().__init__()
        self.discrete, self.size, self.classes = not oracle.is_floating_point(), oracle.shape[1], classes
        self.normalizer = ObservationNormalizer(self.size)
        self.linear = nn.Linear(inputs, self.size * (classes if self.discrete else 1))

    def forward(self, y: Tensor, oracle: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (M,) and how well it is told (M,): all classes right, or the squared error below a tenth of the variance.

        Args:
            y: (M, H).
            oracle: (M, d).
        """
        told = self.linear(y)
        if self.discrete:
            logits = told.unflatten(-1, (self.size, self.classes))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), oracle.flatten().long(), reduction="none")
            right = (logits.argmax(dim=-1) == oracle).all(dim=-1)
            return loss.view(-1, self.size).mean(dim=-1), right.float()
        error = (told - self.normalizer(oracle)).square().mean(dim=-1)
        return error, (error < 0.1).float().detach()


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
