"""Learners whose weights are held near those of earlier tasks by a quadratic penalty.

The penalty is ½λ Σ_i ω_i (θ_i - c_i)². A sum of such penalties, one for each task, is again one of them up to a constant:
with ω = Σ_j ω_j and c = Σ_j ω_j θ*_j / ω. So two numbers a weight are kept, however many tasks there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_lifelong.nets.model import to_tensors

from .base import Setup, Sizes
from .sequential import Sequential, copy_tensors

__all__ = ["EWC", "L2", "Anchored", "OnlineEWC", "merge_anchors"]

Tensors = dict[str, Tensor]
EXAMPLES_PER_PIECE = 32
"""Examples of the Fisher information between two moments at which a run can be resumed."""


def merge_anchors(omega: Tensor, centre: Tensor, new_omega: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The one penalty that equals two of them up to a constant.

    Args:
        omega: importance of the one.
        centre: its centre.
        new_omega: importance of the other.
        weights: its centre, which is also the result's where both importances are 0.

    Returns:
        Importance and centre, of the shape of the arguments.
    """
    total = omega + new_omega
    mixed = (omega * centre + new_omega * weights) / torch.where(total > 0, total, 1)
    return total, torch.where(total > 0, mixed, weights)


class Anchored(Sequential):
    """Sequential with the penalty; what ω is, is up to the learner. ``strength`` is λ."""

    factor = 1.0
    """1 for the ½ in the penalty, 2 without it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.omega: Tensors = {}  # by name, in the order of the parameters, as is the centre
        self.centre: Tensors = {}

    def weights(self) -> Tensors:
        """The current ones, by name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def merge(self, importance: Tensors) -> None:
        """Add an anchor at the current weights."""
        for name, theta in self.weights().items():
            if name in self.omega:
                pair = merge_anchors(self.omega[name], self.centre[name], importance[name], theta)
                self.omega[name], self.centre[name] = pair
            else:
                self.omega[name], self.centre[name] = importance[name].clone(), theta.clone()

    def add_penalty(self) -> None:
        """Its gradient is λ ω (θ - c)."""
        strength = self.setup.options["strength"] * self.factor
        if strength == 0 or not self.omega:
            return
        # For all weights at once, and without the names: a call for each of them costs as much as its arithmetic.
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        centres: list[Tensor] = [*self.centre.values()]
        with torch.no_grad():
            moved = torch._foreach_sub(self.parameters, centres)
            torch._foreach_addcmul_(gradients, list(moved), [*self.omega.values()], value=strength)

    def sizes(self) -> Sizes:
        """The network; for training also importance and centre of every weight."""
        numbers = self.model.numbers()
        return Sizes(numbers, numbers * (3 if self.omega else 1))

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {**super().state(), "omega": copy_tensors(self.omega), "centre": copy_tensors(self.centre)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.omega, self.centre = copy_tensors(state["omega"]), copy_tensors(state["centre"])


class L2(Anchored):
    """``l2``: every weight is as important as any other."""

    def consolidate(self, piece: int) -> bool:
        """Anchor all weights with importance 1."""
        self.merge({name: torch.ones_like(theta) for name, theta in self.weights().items()})
        return True


class EWC(Anchored):
    """``ewc``: the importance is the diagonal of the Fisher information on the task's data, with the data's own targets.

    ``fisher="example"`` is the mean of the squared gradients of single examples, ``"minibatch"`` that of the squared mean
    gradients of batches, as in LIBERO's release, which is smaller by about the batch size.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.fisher: Tensors = {}  # sums so far

    def anchor(self, fisher: Tensors) -> None:
        """Use the Fisher information of the task that ends."""
        self.merge(fisher)

    def consolidate(self, piece: int) -> bool:
        """Look at some more examples; after the last, anchor the weights."""
        samples, size = self.setup.options["fisher_samples"], 1
        if self.setup.options["fisher"] == "minibatch":
            size = min(self.setup.batch_size, len(self.data), samples)
        order = self.setup.chance.numpy("fisher", self.k, 0).permutation(len(self.data))[:samples]
        units = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        per_piece = max(1, EXAMPLES_PER_PIECE // size)
        for i in range(piece * per_piece, min((piece + 1) * per_piece, len(units))):
            batch = to_tensors(self.data.draw(units[i], self.setup.chance.numpy("fisher", self.k, 1, i)))
            self._add_square(self.model.log_prob(self.model(batch), batch).mean())
        if (piece + 1) * per_piece < len(units):
            return False
        self.anchor({name: total / len(units) for name, total in self.fisher.items()})
        self.fisher = {}
        return True

    def _add_square(self, log_prob: Tensor) -> None:
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        for name, gradient in zip(names, torch.autograd.grad(log_prob, parameters), strict=True):
            self.fisher[name] = self.fisher.get(name, torch.zeros_like(gradient)) + gradient.square()

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {**super().state(), "fisher": copy_tensors(self.fisher)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.fisher = copy_tensors(state["fisher"])


class OnlineEWC(EWC):
    """``ewc-online``: one Fisher information that fades, around the weights after the last task only.

    ``fisher_update="mean"``: F becomes gamma F + (1 - gamma) F_k, from F_1. ``"sum"``: gamma F + F_k, and the penalty
    has no ½.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.factor = 2.0 if setup.options["fisher_update"] == "sum" else 1.0

    def anchor(self, fisher: Tensors) -> None:
        """Fade the old, add the new, and move the centre."""
        gamma = self.setup.options["gamma"]
        share = 1.0 if self.setup.options["fisher_update"] == "sum" else 1 - gamma
        self.omega = (
            {name: gamma * self.omega[name] + share * new for name, new in fisher.items()} if self.omega else fisher
        )
        self.centre = {name: theta.clone() for name, theta in self.weights().items()}
