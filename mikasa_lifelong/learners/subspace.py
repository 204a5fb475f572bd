"""HiSPO (Kobanda et al. 2024, arXiv 2412.14865): a subspace of policies, spanned by as few anchors as will do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mikasa_lifelong.nets.model import ModelPolicy, TensorBatch, to_tensors
from mikasa_lifelong.stream import Policy

from .base import Setup, Sizes
from .sequential import Sequential, copy_tensors

__all__ = ["Subspace", "mix"]

Weights = dict[str, Tensor]
NOISE = 0.1
"""Standard deviation of the noise on the scores in training."""
COMPARED_BATCHES = 16
"""Batches on which mixtures are compared."""
DRAWS_PER_PIECE = 64
"""Mixtures that are tried between two moments at which a run can be resumed."""


def mix(anchors: list[Weights], alpha: Tensor) -> Weights:
    """The weighted sum of anchors; ``alpha`` (n,) may be shorter than ``anchors``, and then leaves the last ones out."""
    used = anchors[: len(alpha)]
    return {
        name: torch.stack([a * anchor[name] for a, anchor in zip(alpha, used, strict=True)]).sum(0) for name in used[0]
    }


def _flat(weights: Weights) -> Tensor:
    return torch.cat([value.flatten() for value in weights.values()])


class Subspace(Sequential):
    """``hispo``: a policy is a mixture of anchors; a task adds an anchor only where it lowers the error enough.

    Parameters are mixed, so that playing costs one network; the authors' release mixes the outputs of layers. ``strength``
    is the weight of the penalty on anchors that point the same way, ``threshold`` the ε of the pruning rule.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.anchors: list[Weights] = [copy_tensors(dict(self.model.named_parameters()))]
        self.alphas: list[Tensor] = []  # of each task that is done, (number of its anchors,)
        self.scores = nn.Parameter(torch.zeros(1))
        # The best mixture so far of the old anchors and of all of them: error, alpha.
        self.found: dict[str, tuple[float, Tensor]] = {}

    def prepare(self) -> None:
        """Add an anchor, the mean of the old ones; the first is there already."""
        if self.k > 0:
            n = len(self.anchors)
            self.anchors.append(mix(self.anchors, torch.full((n,), 1 / n)))
            self.scores = nn.Parameter(torch.zeros(n + 1))
        self.anchors[-1] = {name: nn.Parameter(value) for name, value in self.anchors[-1].items()}
        self.found = {}

    def trained_parameters(self) -> Iterable[nn.Parameter]:
        """The newest anchor and the scores."""
        return [*(value for value in self.anchors[-1].values() if isinstance(value, nn.Parameter)), self.scores]

    def loss(self, batch: TensorBatch, noise: torch.Generator) -> Tensor:
        """The mean loss at the mixture, and the penalty. Pairs of old anchors are left out of it, as they are constant."""
        n = len(self.anchors)
        shake = torch.randn(n, generator=self.setup.chance.torch("scores", self.k, self.t))
        alpha = torch.softmax(n * (torch.tanh(self.scores) + NOISE * shake), dim=0)
        outputs = functional_call(self.model, mix(self.anchors, alpha), (batch, noise))
        loss = -self.model.log_prob(outputs, batch).mean()
        strength = self.setup.options["strength"]
        if n == 1 or strength == 0:
            return loss
        newest = _flat(self.anchors[-1])
        alike = [torch.cosine_similarity(_flat(old), newest, dim=0).square() for old in self.anchors[:-1]]
        return loss + strength * 2 / (n * (n - 1)) * torch.stack(alike).sum()

    def learned_alpha(self) -> Tensor:
        """The mixture (n,) that training has found, without noise."""
        return torch.softmax(len(self.scores) * torch.tanh(self.scores.detach()), dim=0)

    @torch.no_grad()
    def _try(self, which: str, alpha: Tensor, batch: TensorBatch) -> None:
        outputs = functional_call(self.model, mix(self.anchors, alpha), (batch,))
        error = float(self.model.error(outputs, batch).mean())
        if which not in self.found or error < self.found[which][0]:
            self.found[which] = (error, alpha)

    def consolidate(self, piece: int) -> bool:
        """Try some more mixtures; after the last, keep the new anchor or drop it."""
        n, draws = len(self.anchors), self.setup.options["draws"]
        if self.k == 0:
            self._finish(torch.ones(1))
            return True
        chance = self.setup.chance
        rng = chance.numpy("simplex", self.k, 0)
        rows = rng.integers(len(self.data), size=COMPARED_BATCHES * self.setup.batch_size)
        batch = to_tensors(self.data.draw(rows, rng))
        # In a simplex of one corner all draws are the same.
        old = chance.numpy("simplex", self.k, 1).dirichlet([1.0] * (n - 1), size=draws if n > 2 else 1)
        new = chance.numpy("simplex", self.k, 2).dirichlet([1.0] * n, size=draws)
        tries = [*(("old", row) for row in old), *(("new", row) for row in new)]
        for which, row in tries[piece * DRAWS_PER_PIECE : (piece + 1) * DRAWS_PER_PIECE]:
            self._try(which, torch.tensor(row, dtype=torch.float32), batch)
        if (piece + 1) * DRAWS_PER_PIECE < len(tries):
            return False
        self._try("new", self.learned_alpha(), batch)
        (old_error, old_alpha), (new_error, new_alpha) = self.found["old"], self.found["new"]
        keep = new_error < (1 - self.setup.options["threshold"]) * old_error
        if not keep:
            self.anchors.pop()
        self._finish(new_alpha if keep else old_alpha)
        return True

    def _finish(self, alpha: Tensor) -> None:
        self.anchors[-1] = {name: value.detach() for name, value in self.anchors[-1].items()}
        self.alphas.append(alpha)
        self.found = {}

    def policy(self, k: int) -> Policy:
        """The mixture of that task, or the current one where there is none."""
        if k < len(self.alphas):
            alpha = self.alphas[k]
        elif self.alphas and not self.in_stage:
            alpha = self.alphas[-1]
        else:
            alpha = self.learned_alpha()
        with torch.no_grad():
            return ModelPolicy(self.model, mix(self.anchors, alpha))

    def sizes(self) -> Sizes:
        """All anchors, and the mixture of each task."""
        numbers = len(self.anchors) * self.model.numbers() + sum(len(alpha) for alpha in self.alphas)
        return Sizes(numbers, numbers)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        own = {"anchors": self.anchors, "alphas": self.alphas, "scores": self.scores, "found": self.found}
        return {**super().state(), **copy_tensors(own)}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        self.anchors, self.alphas = copy_tensors(state["anchors"]), copy_tensors(state["alphas"])
        self.scores = nn.Parameter(state["scores"].clone())
        self.found = copy_tensors(state["found"])
        if state["in_stage"]:
            self.anchors[-1] = {name: nn.Parameter(value) for name, value in self.anchors[-1].items()}
        super().load(state)
