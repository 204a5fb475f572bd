"""Sequential training of one network, on which the other learners build."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mikasa_lifelong.nets.model import Model, ModelPolicy, TensorBatch, to_tensors
from mikasa_lifelong.stream import Dataset, Policy

from .base import Setup, Sizes

__all__ = ["Sequential", "copy_tensors"]


def copy_tensors(value: Any) -> Any:
    """A copy of nested dicts and lists in which no tensor shares memory with ``value``."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: copy_tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_tensors(item) for item in value)
    return value


class Sequential:
    """Goes on from the weights after the last task, with a fresh optimiser for each task.

    Other learners override the small methods: what begins a task, what a batch is, what is added to the gradient.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model: Model = setup.fresh_model(0)
        self.k, self.t = -1, 0  # the current task and its steps so far
        self.pieces = 0  # pieces of the consolidation that are done
        self.in_stage = False  # from `begin` until `end` is complete
        self.data: Dataset
        self.optimizer: torch.optim.Optimizer

    # ---- what others override
    def prepare(self) -> None:
        """Called when the task ``self.k`` begins, before its optimiser is made."""

    def trained_parameters(self) -> list[list[nn.Parameter]]:
        """What the optimiser changes, for each of the model's levels. The gradient of each level is clipped by itself."""
        named = list(self.model.named_parameters())
        return [[parameter for name, parameter in named if name.startswith(level)] for level in self.model.levels]

    def draw(self) -> TensorBatch:
        """The batch of the current step."""
        rng = self.setup.chance.numpy("batches", self.k, self.t)
        rows = rng.integers(len(self.data), size=self.setup.batch_size)
        return to_tensors(self.data.draw(rows, rng))

    def loss(self, batch: TensorBatch, noise: torch.Generator) -> Tensor:
        """The mean loss () of a batch."""
        return -self.model.log_prob(self.model(batch, noise), batch).mean()

    def add_penalty(self) -> None:
        """Add the gradient of what the loss does not hold."""

    def consolidate(self, piece: int) -> bool:
        """Do ``piece`` of the consolidation, counted from 0; return whether it was the last."""
        return True

    # ---- the protocol
    def begin(self, k: int, data: Dataset) -> None:
        """See `Learner.begin`."""
        self.k, self.t, self.pieces, self.data, self.in_stage = k, 0, 0, data, True
        self.prepare()
        self.make_optimizer()

    def make_optimizer(self) -> None:
        """A fresh optimiser for the parameters that train."""
        groups = [{"params": parameters} for parameters in self.trained_parameters()]
        self.optimizer = torch.optim.Adam(groups, lr=self.setup.learning_rate)

    def step(self) -> dict[str, float]:
        """See `Learner.step`.

        Raises:
            FloatingPointError: the loss is not finite.
        """
        rate = self.setup.learning_rate * 0.5 * (1 + math.cos(math.pi * self.t / self.setup.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.draw()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch, self.setup.chance.torch("dropout", self.k, self.t))
        loss.backward()
        self.add_penalty()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], self.setup.max_grad_norm)
        self.optimizer.step()
        self.t += 1
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss of step {self.t} of task {self.k + 1} is {value}; lower --learning-rate or --strength"
            )
        return {"loss": value}

    def end(self) -> bool:
        """See `Learner.end`."""
        done = self.consolidate(self.pieces)
        self.pieces += 1
        self.in_stage = not done
        return done

    def policy(self, k: int) -> Policy:
        """See `Learner.policy`."""
        return ModelPolicy(self.model)

    def sizes(self) -> Sizes:
        """See `Learner.sizes`."""
        return Sizes(self.model.numbers(), self.model.numbers())

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        state = {
            "k": self.k,
            "t": self.t,
            "pieces": self.pieces,
            "in_stage": self.in_stage,
            "model": self.model.state_dict(),
        }
        if self.in_stage:  # each task has a fresh optimiser
            state["optimizer"] = self.optimizer.state_dict()
        copied: dict[str, Any] = copy_tensors(state)
        return copied

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Learner.load`."""
        self.k, self.t, self.pieces = state["k"], state["t"], state["pieces"]
        self.in_stage = state["in_stage"]
        self.model.load_state_dict(state["model"])
        if self.k >= 0:
            self.data = self.setup.data(self.k)
        if self.in_stage:
            self.make_optimizer()
            self.optimizer.load_state_dict(copy_tensors(state["optimizer"]))
