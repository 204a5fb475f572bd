"""The arguments of the algorithms that learn from a dataset. Importing this module does not load torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import tyro

from .arguments import ArgumentError, CommonArgs, refuse_noise, refuse_without, require, require_one_process
from .memory_arguments import MemoryArgs

__all__ = ["DTArgs", "IQLArgs", "OfflineArgs", "RATEArgs", "SequenceArgs"]

MOST_WIDTH, MOST_LAYERS, MOST_STEPS = 8192, 64, 100_000


@dataclass
class OfflineArgs(CommonArgs):
    """What learning from a dataset needs. Nothing is played but evaluations: a step of the run is a gradient step."""

    default_obs: ClassVar[str] = "objects+joints"
    default_network: ClassVar[str] = "tokens"
    plays: ClassVar[bool] = False
    buffer_episodes: ClassVar[int] = 10_000_000
    """All episodes of the dataset are kept."""

    dataset: str | None = None
    """The folder that `mikasa collect` made; required."""
    validation_share: float = 0.0
    """Share of the dataset's episodes that are not learnt from. The log has their losses, with "validation/" before the
    names. Where these rise while those of training fall, the policy learns its data by heart."""
    total_timesteps: int = 10_000
    """Gradient steps. Other options that count steps count these, too."""
    num_envs: tyro.conf.Suppress[int] = 1
    """Nothing is played in training, so this and the next three do nothing."""
    train_to_horizon: tyro.conf.Suppress[bool] = True
    stagger_groups: tyro.conf.Suppress[int] = 8
    exact_resume: tyro.conf.Suppress[bool] = False
    num_steps: int = 100
    """Gradient steps from one row of the log to the next."""
    checkpoint_every: int = 2_000
    """Write a checkpoint for --resume each time this many gradient steps have passed; 0 writes none. A run that was killed
    and resumed ends with the same weights as one that was not."""
    eval_every: int | None = 0
    """Evaluate each time this many gradient steps have passed; 0 evaluates only at the end."""
    learning_rate: float = 5e-4
    """Step size of Adam."""
    anneal_lr: bool = True
    """Decrease the learning rate to 0 over the run, as --lr-schedule says."""
    lr_schedule: Literal["cosine", "linear"] = "cosine"
    """How --anneal-lr decreases the learning rate to 0 over the run. It changes from one row of the log to the next."""
    batch_episodes: int = 32
    """Whole episodes in a minibatch."""
    max_grad_norm: float = 1.0
    """Maximum norm of the gradient; larger gradients are scaled down to it."""
    reward: Literal["success", "dense"] = "success"
    """What returns are sums of: 1 at the first success and else 0, or the dense rewards that the dataset holds. Episodes of
    a dataset end at a success, so with dense rewards a slow success has a higher return than a quick one."""
    memory_size: int = 128
    """Width of the memory."""
    token_size: int = 64
    """Size of the token that an object becomes."""
    head_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers between memory and action."""
    query_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers between memory and the queries to the objects; by default the queries are linear."""
    tcp_token: bool = False
    """Give the memory and the policy the token of the object at the hand as well, as `mikasa train bc` does."""
    sum_token: bool = False
    """Give the memory the sum of the objects' tokens as well, as `mikasa train bc` does."""
    oracle_weight: float = 0.0
    """Weight of an auxiliary loss: a linear read-out of what has to be remembered from the output of the policy's memory, as
    `mikasa train bc` has it. The policy is not changed by it."""
    oracle_as_set: bool = False
    """With --oracle-weight, where several targets are touched in any order (BunchOfColors, SeqOfColors): the read-out tells
    which the targets are, and not in which order they were shown, which the task does not need."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        if self.dataset is None:
            raise ArgumentError(f"{self.algorithm} learns from data: name a folder of `mikasa collect` with --dataset")
        if not os.path.isdir(self.dataset):
            raise ArgumentError(f"--dataset {self.dataset} is no folder; name one that `mikasa collect` made")
        require(self, "validation_share", lambda value: 0.0 <= value < 1.0, "use 0 to less than 1")
        require_one_process(self.algorithm)
        if self.train_env_kwargs:
            words = " ".join(self.train_env_kwargs)
            raise ArgumentError(f"--train-env-kwargs {words} cannot be used: nothing is played; use --env-kwargs")
        require(self, "batch_episodes", lambda value: value >= 1, "use at least 1")
        require(self, "memory_size token_size", lambda value: 1 <= value <= MOST_WIDTH, f"use 1 to {MOST_WIDTH}")
        require(self, "head_sizes query_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
        require(self, "max_grad_norm", lambda value: value > 0.0, "use a value above 0")
        require(self, "oracle_weight", lambda value: value >= 0.0, "use at least 0")
        refuse_without(self, "oracle_as_set", "--oracle-weight", self.oracle_weight > 0.0)
        refuse_without(self, "lr_schedule", "--anneal-lr", self.anneal_lr)
        refuse_noise(self)


@dataclass
class SequenceArgs(OfflineArgs):
    """What models of returns-to-go, observations and actions need."""

    default_network: ClassVar[str] = "sequence"
    sequence_model: ClassVar[str]
    """Name in `sequence_policy.MODELS`."""
    bptt: ClassVar[int] = 0
    target_weight: ClassVar[float] = 0.0

    target_quantile: float = 0.9
    """In evaluations the policy is to reach, from each step on, this quantile of the returns-to-go that the dataset has at
    that step; an episode that has ended counts with its last one. The policy is not given the rewards of an evaluation,
    because they can tell what has to be remembered."""
    layers: int = 2
    """Layers of the transformer."""
    heads: int = 4
    """Attention heads of each layer."""
    loss: Literal["huber", "mse"] = "huber"
    """Distance of an action to the expert's: squared, or (huber) linear from --huber-delta on."""
    huber_delta: float = 0.5
    """See --loss."""

    def model_kwargs(self) -> dict[str, Any]:
        """The options of the sequence model."""
        return {"layers": self.layers, "heads": self.heads}

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "target_quantile", lambda value: 0.0 <= value <= 1.0, "use 0 to 1")
        require(self, "layers heads", lambda value: 1 <= value <= MOST_LAYERS, f"use 1 to {MOST_LAYERS}")
        require(self, "huber_delta", lambda value: value > 0.0, "use a value above 0")
        refuse_without(self, "huber_delta", "--loss huber", self.loss == "huber")


@dataclass
class DTArgs(SequenceArgs):
    """Train a decision transformer on a dataset (Chen et al., 2021)."""

    algorithm: ClassVar[str] = "dt"
    sequence_model: ClassVar[str] = "decision"

    context: int = 200
    """Steps that each layer attends to. In longer episodes the oldest are forgotten."""

    def model_kwargs(self) -> dict[str, Any]:
        """The options of the sequence model."""
        return {**super().model_kwargs(), "context": self.context}

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "context", lambda value: 1 <= value <= MOST_STEPS, f"use 1 to {MOST_STEPS}")


@dataclass
class RATEArgs(SequenceArgs):
    """Train a recurrent action transformer with memory on a dataset (Cherepanov et al., 2023)."""

    algorithm: ClassVar[str] = "rate"
    sequence_model: ClassVar[str] = "rate"

    segment: int = 10
    """Steps of a segment. Only the memory passes from one to the next."""
    memory_tokens: int = 5
    """Memory tokens before and after a segment."""

    def model_kwargs(self) -> dict[str, Any]:
        """The options of the sequence model."""
        return {**super().model_kwargs(), "segment": self.segment, "memory_tokens": self.memory_tokens}

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "segment memory_tokens", lambda value: 1 <= value <= MOST_STEPS, f"use 1 to {MOST_STEPS}")


@dataclass
class IQLArgs(OfflineArgs, MemoryArgs):
    """Train with implicit Q-learning on a dataset (Kostrikov et al., 2021). Policy and critic have a memory each."""

    algorithm: ClassVar[str] = "iql"

    bptt: int = 0
    """Gradients go back at most to the last multiple of this many steps. 0: through whole episodes."""
    gamma: float = 0.99
    """Discount factor."""
    expectile: float = 0.7
    """The value of a state is this expectile of the Q values of the actions that the dataset has there; 0.5 is the mean."""
    temperature: float = 3.0
    """Beta of the paper: actions are imitated with the weight exp(beta (Q - V)); 0 is behaviour cloning."""
    most_weight: float = 100.0
    """Upper bound of that weight."""
    target_rate: float = 0.005
    """The target network moves this share of the way to the critic after each gradient step."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "bptt", lambda value: value >= 0, "use the number of steps, or 0 for whole episodes")
        require(self, "gamma", lambda value: 0.0 <= value < 1.0, "use a value from 0 to less than 1")
        require(self, "expectile", lambda value: 0.0 < value < 1.0, "use a value between 0 and 1")
        require(self, "temperature", lambda value: value >= 0.0, "use at least 0")
        require(self, "most_weight", lambda value: value > 0.0, "use a value above 0")
        require(self, "target_rate", lambda value: 0.0 < value <= 1.0, "use a value above 0, at most 1")
