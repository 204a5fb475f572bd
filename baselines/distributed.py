"""Data-parallel training: the processes that `torchrun` starts, each with its own environments.

K processes with n environments each learn what one process with K n environments does. Every process draws the random
numbers of all environments, sums run over all processes, and process r simulates environments r n to (r + 1) n - 1.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from mikasa_robo.deprecation import renamed_attributes

from .arguments import ArgumentError, world_size

__all__ = ["DistContext", "choose_gpu", "join_processes", "world_size"]

TIMEOUT = datetime.timedelta(hours=6)
"""How long a process waits for the others. Process 0 evaluates while the others wait."""


@renamed_attributes({"leads": "is_main", "rows": "own"})
@dataclass(frozen=True)
class DistContext:
    """A process's place among the processes that train together; the default is a process that trains alone.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
        gpu: CUDA device number of this process, counted among the visible ones; None without a GPU, and where the
            process trains alone.
    """

    rank: int = 0
    size: int = 1
    gpu: int | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates and writes the files."""
        return self.rank == 0

    def own(self, n: int) -> slice:
        """The slice of this process's environments among all, where each process has ``n``."""
        return slice(self.rank * n, (self.rank + 1) * n)

    def own_envs(self, chosen: Tensor, n: int) -> Tensor:
        """From environments (M,) numbered over all processes to this process's own (m,), numbered from 0 to n - 1."""
        if self.size == 1:
            return chosen
        envs = chosen - self.rank * n
        return envs[(envs >= 0) & (envs < n)]

    def own_transitions(self, chosen: Tensor, n: int) -> Tensor:
        """The same for transitions of a rollout, numbered step by step: environment e at step t is t * envs + e."""
        if self.size == 1:
            return chosen
        total = n * self.size
        steps, envs = chosen // total, chosen % total - self.rank * n
        own = (envs >= 0) & (envs < n)
        return steps[own] * n + envs[own]

    def sum(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all processes, the same in each of them."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace the gradients by their sums over all processes."""
        if self.size == 1:
            return
        learnt = list(parameters)
        flat = self.sum(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in learnt]))
        start = 0
        for parameter in learnt:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()

    def wait(self) -> None:
        """Wait until all processes have called this."""
        self.sum(torch.zeros(1))

    def standardize(self, values: Tensor) -> Tensor:
        """Shift and scale ``values`` to mean 0 and standard deviation 1 over all processes."""
        count = self.sum(torch.tensor(float(values.numel()), device=values.device))
        mean = self.sum(values.sum()) / count
        std = (self.sum((values - mean).square().sum()) / (count - 1.0)).sqrt()
        return (values - mean) / (std + 1e-8)


def choose_gpu(environ: Mapping[str, str], device_count: int) -> int | None:
    """The CUDA device number for a process that `torchrun` started, or None where no GPU is visible.

    ``CUDA_VISIBLE_DEVICES`` stays as it is: CUDA counts the devices that it makes visible from 0.

    Args:
        environ: environment variables; ``LOCAL_RANK`` is the number of the process on its machine.
        device_count: number of visible GPUs.

    Raises:
        ArgumentError: there are fewer visible GPUs than processes on this machine.
    """
    if device_count == 0:
        return None
    local_rank = int(environ["LOCAL_RANK"])
    if local_rank >= device_count:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        raise ArgumentError(
            f"process {local_rank} of this machine has no GPU: {device_count} visible"
            + ("" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})")
            + f"; use --nproc-per-node={device_count}, make more GPUs visible, or set CUDA_VISIBLE_DEVICES= to train on CPU"
        )
    return local_rank


@contextlib.contextmanager
def join_processes() -> Iterator[DistContext]:
    """Join the processes that `torchrun` started with this one; without `torchrun` the process trains alone.

    Each process gets the GPU of its local rank, where there are GPUs.

    Raises:
        ArgumentError: see `choose_gpu`.
    """
    if world_size() == 1:
        yield DistContext()
        return
    gpu = choose_gpu(os.environ, torch.cuda.device_count())
    if gpu is not None:
        torch.cuda.set_device(gpu)
    # Without the name of a backend there is one for each kind of tensor: gloo on CPU, nccl on GPU.
    distributed.init_process_group(timeout=TIMEOUT)
    try:
        yield DistContext(distributed.get_rank(), distributed.get_world_size(), gpu)
    finally:
        distributed.destroy_process_group()
