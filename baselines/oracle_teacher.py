"""A loss for PPO that teaches a memory what to hold: a linear read-out of what has to be remembered.

A reward says late and seldom that the cue should have been kept. The read-out says it at each step after the cue, as with
``--oracle-weight`` of DAgger. Only training needs it; the policy is saved without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mikasa_robo.core.env import MemoryEnv

from .arguments import ArgumentError
from .distributed import DistContext
from .protocol import Setup
from .readouts import make_oracle_readout

__all__ = ["OracleTeacher"]


class OracleTeacher(nn.Module):
    """The read-out of a run of PPO, and its own optimizer.

    Args:
        args: of the run: oracle_weight, oracle_as_set, learning_rate and max_grad_norm.
        setup: of the run.
        network: whose memory is read. It needs `forward_memory`.

    Raises:
        ArgumentError: the task has no oracle, the network does not show its memory, or see `make_oracle_readout`.
    """

    def __init__(self, args: Any, setup: Setup, network: Any) -> None:
        super().__init__()
        option = f"--oracle-weight {args.oracle_weight}"
        task = getattr(setup.env, "unwrapped", None)
        if not isinstance(task, MemoryEnv):
            raise ArgumentError(f"{option} is for the robot tasks of `mikasa list`; leave it out")
        if not hasattr(network, "forward_memory"):
            raise ArgumentError(f"--network {args.network_name} does not take {option}; leave one of them out")
        self._env = setup.env
        self.weight, self.max_grad_norm = args.oracle_weight, args.max_grad_norm
        oracle = task.get_info()["oracle_info"]
        self.readout = make_oracle_readout(args, task, oracle, network.memory.output_size).to(setup.device)
        self.optimizer = torch.optim.Adam(self.readout.parameters(), lr=args.learning_rate)
        self.network = network

    @property
    def task(self) -> MemoryEnv[Any]:
        """The training environments, which are others when a curriculum ends."""
        task: MemoryEnv[Any] = self._env.unwrapped
        return task

    @property
    def device(self) -> torch.device:
        """Where the network and the read-out are."""
        device: torch.device = self.network.device
        return device

    def tell(self, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """What has to be remembered (N, d), and whether it can be known (N,) bool: the cue is over."""
        return info["oracle_info"].to(self.device, copy=True), (
            self.task.elapsed_steps >= self.task.timeline.known_from
        ).to(self.device)

    def learn_scale(self, oracle: Tensor, dist: DistContext) -> None:
        """Update the statistics of the read-out with the oracle (..., d) of a rollout."""
        self.readout.normalizer.update(oracle.float(), dist)

    def loss(self, y: Tensor, oracle: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """What a part of a minibatch adds to its loss (), with gradients, and to its figures (3,).

        Args:
            y: (S, B, H) outputs of the memory.
            oracle: (S, B, d).
            known: (S, B) bool.
            count: transitions of the whole minibatch, summed over all processes.

        Returns:
            The loss; and its sum without the weight, how often the read-out is right, and the share of steps that count.
        """
        errors, right = self.readout(y[known], oracle[known])
        total = errors.sum() / count
        figures = torch.stack([total.detach(), right.sum() / count, known.sum() / count])
        return self.weight * total, figures

    def step(self, dist: DistContext) -> None:
        """One step of the read-out's optimizer, with the gradients of all processes."""
        dist.sum_gradients(self.readout.parameters())
        nn.utils.clip_grad_norm_(self.readout.parameters(), self.max_grad_norm)
        self.optimizer.step()

    def describe(self, figures: Tensor) -> dict[str, float]:
        """What the log says of minibatches with these figures (M, 3), summed over all processes."""
        loss, right, share = figures.mean(dim=0).tolist()
        return {"loss/oracle": loss / max(share, 1e-9), "loss/oracle_told": right / max(share, 1e-9)}

    def save(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"readout": self.readout.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.readout.load_state_dict(state["readout"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
