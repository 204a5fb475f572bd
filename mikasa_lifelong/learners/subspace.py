"""HiSPO (Kobanda et al. 2024, arXiv 2412.14865): a subspace of policies, spanned by as few anchors as will do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mikasa_lifelong.nets.model import ModelPolicy, TensorBatch, to_tensors
from mikasa_lifelong.stream import Policy

from .base import Setup, Sizes
from .sequential import Sequential, copy_tensors

__all__ = ["Span", "Subspace", "mix"]

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


class Span:
    """The anchors of one level of a network, and the mixtures of them that play the tasks.

    Args:
        first: the first anchor.
    """

    def __init__(self, first: Weights) -> None:
        self.anchors: list[Weights] = [first]
        self.alphas: list[Tensor] = []  # of each task that is done, (number of its anchors,)
        self.scores = nn.Parameter(torch.zeros(1))
        self.tries: list[
            tuple[str, Tensor]
        ] = []  # mixtures of the old anchors and of all of them; not part of the state
        # The best mixture so far of the old anchors and of all of them: error, alpha.
        self.found: dict[str, tuple[float, Tensor]] = {}

    def grow(self) -> None:
        """Add an anchor, the mean of the old ones."""
        n = len(self.anchors)
        self.anchors.append(mix(self.anchors, torch.full((n,), 1 / n)))
        self.scores = nn.Parameter(torch.zeros(n + 1))

    def open(self) -> None:
        """Let the newest anchor train."""
        self.anchors[-1] = {name: nn.Parameter(value) for name, value in self.anchors[-1].items()}

    def trained(self) -> list[nn.Parameter]:
        """The newest anchor and the scores."""
        return [*(value for value in self.anchors[-1].values() if isinstance(value, nn.Parameter)), self.scores]

    def noisy_alpha(self, generator: torch.Generator) -> Tensor:
        """The mixture (n,) of a training step."""
        n = len(self.anchors)
        shake = torch.randn(n, generator=generator)
        return torch.softmax(n * (torch.tanh(self.scores) + NOISE * shake), dim=0)

    def learned_alpha(self) -> Tensor:
        """The mixture (n,) that training has found, without noise."""
        return torch.softmax(len(self.scores) * torch.tanh(self.scores.detach()), dim=0)

    def alpha_of(self, k: int, in_stage: bool) -> Tensor:
        """The mixture of the task in place ``k``, or the current one where there is none."""
        if k < len(self.alphas):
            return self.alphas[k]
        return self.alphas[-1] if self.alphas and not in_stage else self.learned_alpha()

    def likeness(self) -> Tensor:
        """Mean squared cosine (), without the pairs of old anchors, which are constant."""
        n = len(self.anchors)
        if n == 1:
            return torch.zeros(())
        newest = _flat(self.anchors[-1])
        alike = [torch.cosine_similarity(_flat(old), newest, dim=0).square() for old in self.anchors[:-1]]
        return 2 / (n * (n - 1)) * torch.stack(alike).sum()

    def draw_tries(self, old: np.random.Generator, new: np.random.Generator, draws: int) -> None:
        """Draw the mixtures that are compared."""
        n = len(self.anchors)
        # In a simplex of one corner all draws are the same.
        rows = [("old", row) for row in old.dirichlet([1.0] * (n - 1), size=draws if n > 2 else 1)]
        rows += [("new", row) for row in new.dirichlet([1.0] * n, size=draws)]
        self.tries = [(which, torch.tensor(row, dtype=torch.float32)) for which, row in rows]
        self.tries.append(("new", self.learned_alpha()))

    def note(self, which: str, alpha: Tensor, error: float) -> None:
        """Keep a mixture if it is the best so far."""
        if which not in self.found or error < self.found[which][0]:
            self.found[which] = (error, alpha)

    def choose(self, threshold: float) -> Tensor:
        """The mixture that plays the task; drops the new anchor if it does not lower the error enough."""
        (old_error, old_alpha), (new_error, new_alpha) = self.found["old"], self.found["new"]
        if new_error < (1 - threshold) * old_error:
            return new_alpha
        self.anchors.pop()
        return old_alpha

    def close(self, alpha: Tensor) -> None:
        """The task is done, and ``alpha`` plays it."""
        self.anchors[-1] = {name: value.detach() for name, value in self.anchors[-1].items()}
        self.alphas.append(alpha)
        self.found, self.tries = {}, []

    def state(self) -> dict[str, Any]:
        """What changes."""
        return {"anchors": self.anchors, "alphas": self.alphas, "scores": self.scores, "found": self.found}

    def load(self, state: Mapping[str, Any], in_stage: bool) -> None:
        """Become what `state` was asked of."""
        self.anchors, self.alphas = copy_tensors(state["anchors"]), copy_tensors(state["alphas"])
        self.scores = nn.Parameter(state["scores"].clone())
        self.found, self.tries = copy_tensors(state["found"]), []
        if in_stage:
            self.open()


class Subspace(Sequential):
    """``hispo``: a policy is a mixture of anchors; a task adds an anchor only where it lowers the error enough.

    Each level of the network has anchors and mixtures of its own. Parameters are mixed, so that playing costs one network;
    the authors' release mixes the outputs of layers. ``strength`` is the weight of the penalty on anchors that point the
    same way, ``threshold`` the ε of the pruning rule.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        named: Weights = copy_tensors(dict(self.model.named_parameters()))
        self.spans = [
            Span({name: value for name, value in named.items() if name.startswith(level)})
            for level in self.model.levels
        ]

    def prepare(self) -> None:
        """Add an anchor to each level; the first is there already."""
        for span in self.spans:
            if self.k > 0:
                span.grow()
            span.open()

    def trained_parameters(self) -> list[list[nn.Parameter]]:
        """The newest anchor and the scores of each level."""
        return [span.trained() for span in self.spans]

    def mixed(self, alphas: list[Tensor]) -> Weights:
        """The weights of the network for a mixture of each level."""
        return {
            name: value
            for span, alpha in zip(self.spans, alphas, strict=True)
            for name, value in mix(span.anchors, alpha).items()
        }

    def loss(self, batch: TensorBatch, noise: torch.Generator) -> Tensor:
        """The mean loss at the mixture, and the penalty on each level's anchors."""
        generator = self.setup.chance.torch("scores", self.k, self.t)
        alphas = [span.noisy_alpha(generator) for span in self.spans]
        outputs = functional_call(self.model, self.mixed(alphas), (batch, noise))
        loss = -self.model.log_prob(outputs, batch).mean()
        strength = self.setup.options["strength"]
        if self.k == 0 or strength == 0:
            return loss
        return loss + strength * torch.stack([span.likeness() for span in self.spans]).sum()

    def consolidate(self, piece: int) -> bool:
        """Try some more mixtures; after the last, each level keeps its new anchor or drops it."""
        if self.k == 0:
            for span in self.spans:
                span.close(torch.ones(1))
            return True
        chance = self.setup.chance
        rng, old, new = (chance.numpy("simplex", self.k, i) for i in range(3))
        rows = rng.integers(len(self.data), size=COMPARED_BATCHES * self.setup.batch_size)
        batch = to_tensors(self.data.draw(rows, rng))
        for span in self.spans:
            span.draw_tries(old, new, self.setup.options["draws"])
        tries = max(len(span.tries) for span in self.spans)
        for i in range(piece * DRAWS_PER_PIECE, min((piece + 1) * DRAWS_PER_PIECE, tries)):
            self._try(i, batch)
        if (piece + 1) * DRAWS_PER_PIECE < tries:
            return False
        for span in self.spans:
            span.close(span.choose(self.setup.options["threshold"]))
        return True

    @torch.no_grad()
    def _try(self, i: int, batch: TensorBatch) -> None:
        """Compare mixture ``i`` of every level; a level that has fewer repeats its last one."""
        tries = [span.tries[min(i, len(span.tries) - 1)] for span in self.spans]
        outputs = functional_call(self.model, self.mixed([alpha for _, alpha in tries]), (batch,))
        errors = self.model.level_errors(outputs, batch).mean(dim=1).tolist()
        for span, (which, alpha), error in zip(self.spans, tries, errors, strict=True):
            span.note(which, alpha, error)

    def policy(self, k: int) -> Policy:
        """The mixture of that task, or the current one where there is none."""
        with torch.no_grad():
            return ModelPolicy(self.model, self.mixed([span.alpha_of(k, self.in_stage) for span in self.spans]))

    def sizes(self) -> Sizes:
        """All anchors, and the mixture of each task."""
        weights = sum(value.numel() for span in self.spans for anchor in span.anchors for value in anchor.values())
        numbers = weights + sum(len(alpha) for span in self.spans for alpha in span.alphas)
        return Sizes(numbers, numbers)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {**super().state(), "spans": copy_tensors([span.state() for span in self.spans])}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        for span, saved in zip(self.spans, state["spans"], strict=True):
            span.load(saved, state["in_stage"])
        super().load(state)
