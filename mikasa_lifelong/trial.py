"""Whether a network can learn from the data of tasks, which may be somebody's own; tried before a run has a folder."""

from __future__ import annotations

import numpy as np
import torch

from .errors import LifelongError
from .learners.base import Setup
from .nets.model import to_tensors
from .stream import TaskStream

__all__ = ["require_learnable"]

TRIED_ITEMS = 256
"""Items of each task, at most."""


def require_learnable(setup: Setup, stream: TaskStream) -> None:
    """Let an untrained network judge items of every task. This draws none of the run's random numbers.

    Args:
        setup: what the learner of the run is given.
        stream: the tasks.

    Raises:
        LifelongError: the items of a task do not fit its signature or the head, or are not finite.
    """
    model, signature = setup.fresh_model(0), stream.signature
    places = {name: k for k, name in enumerate(stream.row.tasks)}
    for name, k in places.items():
        data, rng = stream.dataset(k, setup.chance.seed), np.random.default_rng(0)
        rows = rng.permutation(len(data))[:TRIED_ITEMS]
        batch = data.draw(rows, rng)
        kinds = {key: f"{values.dtype} {values.shape[1:]}" for key, values in batch.items()}
        shapes = {key: batch[key].shape[1:] if key in batch else None for key in signature.inputs}
        if shapes != {key: tuple(shape) for key, shape in signature.inputs.items()}:
            raise LifelongError(
                f"task {name}: an item of its data has the inputs {shapes}, and its signature {dict(signature.inputs)}; let "
                "them agree"
            )
        try:
            with torch.no_grad():
                tensors = to_tensors(batch)
                outputs = model(tensors)
                found = model.log_prob(outputs, tensors)
                model.error(outputs, tensors)
                first = {key: values[:1] for key, values in tensors.items()}
                alone = model.log_prob(model(first), first)
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise LifelongError(
                f"task {name}: the network cannot learn from items {kinds} ({type(error).__name__}: {error}); give float32 "
                f"inputs, and the targets of the head {signature.head!r}, as mikasa_lifelong.nets.heads describes them"
            ) from error
        if not bool(torch.isfinite(found).all()):
            raise LifelongError(
                f"task {name}: its data gives a loss that is not finite; take out what is NaN or infinite"
            )
        # Targets (B,) in place of (B, 1) would be broadcast: each item would be compared with those of all others.
        if found.shape != (len(rows),) or not torch.allclose(found[:1], alone, rtol=1e-3, atol=1e-3):
            raise LifelongError(
                f"task {name}: the loss of an item of {kinds} depends on the items beside it; give targets of the shapes "
                f"that the head {signature.head!r} reads, as mikasa_lifelong.nets.heads describes them"
            )
