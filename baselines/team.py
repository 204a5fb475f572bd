"""Data-parallel training: processes that `torchrun` starts, each with environments of its own.

K processes with n environments each do what one with K n environments does: random numbers are drawn for all
environments by everyone, sums go over all processes, and process r plays environments r n to (r + 1) n - 1.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

__all__ = ["Team", "join_team", "team_size"]

PATIENCE = datetime.timedelta(hours=6)
"""How long a process waits for the others: the first one evaluates while they wait."""


@dataclass(frozen=True)
class Team:
    """A process's place among those that train together.

    Args:
        rank: its number, from 0 on; 0 is the one that writes.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and evaluates."""
        return self.rank == 0

    def rows(self, n: int) -> slice:
        """This process's environments among those of all, where each has ``n``."""
        return slice(self.rank * n, (self.rank + 1) * n)

    def sum(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all processes; the same in each of them."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replaces the gradients by their sums over all processes."""
        if self.size == 1:
            return
        learnt = list(parameters)
        flat = self.sum(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in learnt]))
        start = 0
        for parameter in learnt:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()

    def wait(self) -> None:
        """Until all processes have come here."""
        self.sum(torch.zeros(1))

    def standardize(self, values: Tensor) -> Tensor:
        """``values`` shifted and scaled to mean 0 and standard deviation 1 over those of all processes."""
        count = self.sum(torch.tensor(float(values.numel()), device=values.device))
        mean = self.sum(values.sum()) / count
        std = (self.sum((values - mean).square().sum()) / (count - 1.0)).sqrt()
        return (values - mean) / (std + 1e-8)


def team_size() -> int:
    """How many processes `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def join_team() -> Iterator[Team]:
    """Joins the processes that `torchrun` started with this one, for a block; alone without it.

    Where there are GPUs, each process takes one, by its local rank; so this has to come before anything uses CUDA.
    """
    if team_size() == 1:
        yield Team()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[local_rank] if local_rank < len(visible) > 1 else str(local_rank)
    # Without the name of a backend there is one for each kind of tensor: gloo on CPU, nccl on GPU.
    distributed.init_process_group(timeout=PATIENCE)
    try:
        yield Team(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
