"""Threads that work on parts of a batch, instead of on parts of each operation as torch's own do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["MOST_PARTS", "BatchThreads"]

MOST_PARTS = 4
"""Most parts of a batch. Python itself runs on one thread at a time, so that more would wait for each other."""

Result = TypeVar("Result")


class BatchThreads:
    """Runs a function on parts of a batch, one on each thread; a context manager.

    The threads wait for each other once in a batch. Torch's own wait at each operation, and those of OpenMP keep a core busy
    while they wait: where other processes want the cores too, that makes an update many times slower.

    The parts share the torch threads of the calling thread. Results have the order of the parts, so that sums over them do
    not depend on which thread was faster. Networks on a GPU and compiled ones are run as one part.

    Args:
        network: what the function runs; its device and parameters matter.
        compile: ``--compile`` of the run.
    """

    def __init__(self, network: Any, compile: str = "off") -> None:
        self._parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._before = torch.get_num_threads()
        in_parts = network.device.type == "cpu" and compile == "off"
        self._parts = min(self._before, MOST_PARTS) if in_parts else 1
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> BatchThreads:
        if self._parts > 1:
            each = self._before // self._parts
            torch.set_num_threads(each)
            self._pool = ThreadPoolExecutor(self._parts - 1, "batch", torch.set_num_threads, (each,))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            torch.set_num_threads(self._before)

    def run(self, size: int, function: Callable[[slice], Result]) -> list[Result]:
        """The results of ``function`` for slices that divide ``range(size)``; with ``size`` 0 for one empty slice."""
        count = max(1, min(self._parts, size))
        bounds = [size * i // count for i in range(count + 1)]
        first, *others = (slice(a, b) for a, b in itertools.pairwise(bounds))
        waiting = [self._pool.submit(function, rows) for rows in others] if self._pool is not None else []
        return [function(first), *(future.result() for future in waiting)]

    def backward(self, size: int, loss: Callable[[slice], tuple[Tensor, Tensor]]) -> Tensor:
        """Set ``grad`` of the parameters to the gradient of a sum over a batch.

        Args:
            size: of the batch; with 0 all gradients are None.
            loss: the term () of the slice and figures (F,) to add up.

        Returns:
            The sum (F,) of the figures.
        """

        def part(rows: slice) -> tuple[Tensor, Sequence[Tensor | None]]:
            term, figures = loss(rows)
            if not term.requires_grad:  # an empty slice
                return figures, [None] * len(self._parameters)
            return figures, torch.autograd.grad(term, self._parameters, allow_unused=True)

        (total, gradients), *others = self.run(size, part)
        for figures, more in others:
            total = total + figures
            gradients = [
                a if b is None else b if a is None else a.add_(b) for a, b in zip(gradients, more, strict=True)
            ]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None and gradient.stride() != parameter.stride():
                # `backward` would do so too; fused optimisers read the memory of both in one order.
                gradient = torch.empty_like(parameter).copy_(gradient)
            parameter.grad = gradient
        return total
