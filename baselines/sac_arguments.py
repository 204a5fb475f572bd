"""The arguments of SAC. Importing this module does not load torch, so ``--help`` is quick."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from .arguments import ArgumentError, CommonArgs, refuse_without, require, require_buffer_to_resume, require_one_process

__all__ = ["SACArgs"]

MOST_CRITICS = 64
MOST_TRANSITIONS = 100_000_000
MOST_UPDATES_PER_STEP = 64
LOG_STD_RANGE = -10.0, 2.0
"""Range of the logarithm of the standard deviation of actions before squashing."""


@dataclass
class SACArgs(CommonArgs):
    """Train SAC, off policy. With --expert-steps or --dataset each minibatch also has transitions of an expert (RLPD)."""

    algorithm: ClassVar[str] = "sac"
    default_obs: ClassVar[str] = "state"
    default_network: ClassVar[str] = "sac"

    total_timesteps: int = 300_000
    """Environment steps of training, summed over all environments, those of --expert-steps among them."""
    num_steps: int = 8
    """Steps of each environment between two series of gradient steps."""
    anneal_lr: bool = False
    """Decrease the learning rate linearly to 0 over the run."""

    expert_steps: int = 0
    """In so many environment steps at the beginning the expert of the task acts, with noise. Its transitions are kept apart
    and are a part of each minibatch."""
    expert_noise: float = 0.2
    """The expert's actions are carried out with Gaussian noise. In each episode its standard deviation is drawn from 0 to
    twice this."""
    dataset: str | None = None
    """Transitions of an expert from this folder of `mikasa collect`, in place of those of --expert-steps or beside them."""
    expert_ratio: float = 0.5
    """Share of the expert's transitions in a minibatch, where there are any."""
    random_steps: int = 4096
    """In so many environment steps, after those of the expert, actions are drawn uniformly. No gradient step is taken
    before they are over."""

    gamma: float = 0.99
    """Discount."""
    utd_ratio: float = 0.125
    """Gradient steps of the critics for each environment step (update-to-data ratio)."""
    policy_delay: int = 2
    """Gradient steps of the critics for each of the actor and of the temperature."""
    batch_transitions: int = 256
    """Transitions in a minibatch."""
    buffer_transitions: int = 1_000_000
    """Transitions of the agent that are kept, the newest ones; minibatches are drawn from them."""
    checkpoint_buffer: bool = True
    """Checkpoints hold the kept transitions of the agent too. Without them a resumed run begins to gather anew. Those of the
    expert are always saved."""
    tau: float = 0.005
    """Share by which the target critics move to the critics after each gradient step."""
    num_critics: int = 4
    """Critics. The actor follows their mean."""
    min_critics: int = 2
    """A target is the minimum over so many of the target critics, drawn at random for each minibatch."""
    critic_layer_norm: bool = True
    """Normalise the layers of the critics, which bounds what they say about actions that nobody has tried."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    init_temperature: float = 0.01
    """Weight of the entropy at first, in units of the reward. Rewards of robot tasks are at most 1 a step and far less at
    first, and the temperature falls slowly: a large one leaves nothing but noise for thousands of gradient steps."""
    target_entropy: float | None = None
    """The temperature is learnt so that the mean entropy of the policy, in nats, comes here; by default minus the number of
    components of an action. For a Gaussian that is a standard deviation of 0.09 each: with it an arm can come to rest."""
    entropy_backup: bool = True
    """Count the entropy of later actions as reward."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require_one_process(self.algorithm)
        require_buffer_to_resume(self)
        self._check_expert()
        require(self, "expert_steps random_steps", lambda value: value >= 0, "use at least 0")
        require(self, "expert_noise", lambda value: value >= 0.0, "use at least 0")
        require(self, "expert_ratio gamma", lambda value: 0.0 <= value <= 1.0, "use a value from 0 to 1")
        with_expert = self.expert_steps > 0 or self.dataset is not None
        refuse_without(self, "expert_ratio", "--expert-steps or --dataset", with_expert)
        refuse_without(self, "expert_noise", "--expert-steps", self.expert_steps > 0)
        require(self, "tau", lambda value: 0.0 < value <= 1.0, "use a value above 0, at most 1")
        most = MOST_UPDATES_PER_STEP
        require(self, "utd_ratio", lambda value: 0.0 < value <= most, f"use a value above 0, at most {most}")
        require(self, "policy_delay", lambda value: value >= 1, "use at least 1")
        most = MOST_TRANSITIONS
        require(self, "batch_transitions", lambda value: 2 <= value <= most, f"use 2 to {most}")
        require(self, "buffer_transitions", lambda value: 1 <= value <= most, f"use 1 to {most}")
        require(self, "num_critics", lambda value: 1 <= value <= MOST_CRITICS, f"use 1 to {MOST_CRITICS}")
        require(self, "min_critics", lambda value: 1 <= value <= self.num_critics, "use 1 to --num-critics")
        require(self, "hidden_sizes", lambda widths: min(widths, default=0) >= 1, "use at least one, each at least 1")
        low, high = LOG_STD_RANGE
        # Beyond it the clamp lets no gradient through, so that the noise would never change.
        require(self, "init_log_std", lambda value: low < value < high, f"use a value between {low:g} and {high:g}")
        require(self, "init_temperature", lambda value: value > 0.0, "use a value above 0")
        if self.target_entropy is not None:
            require(self, "target_entropy", lambda value: abs(value) <= 1e4, "use nats, such as -8")
        first = self.expert_steps + self.random_steps
        if first >= self.total_timesteps:
            raise ArgumentError(
                f"--expert-steps {self.expert_steps} and --random-steps {self.random_steps} leave nothing of "
                f"--total-timesteps {self.total_timesteps} to learn in; use more than {first} --total-timesteps"
            )

    def _check_expert(self) -> None:
        if self.dataset is not None and not os.path.isdir(self.dataset):
            raise ArgumentError(f"--dataset {self.dataset} is no folder; name one that `mikasa collect` made")
        if self.dataset is not None and self.train_env_kwargs:
            words = " ".join(self.train_env_kwargs)
            raise ArgumentError(
                f"--train-env-kwargs {words} cannot be used with --dataset: its transitions would have another reward, or "
                "other rules, than those of training; leave one of them out"
            )
        if not self.expert_steps:
            return
        if self.num_workers is not None:
            raise ArgumentError(
                f"--num-workers {self.num_workers} cannot be used: the expert acts where the simulation is; leave it out, "
                "or use --dataset in place of --expert-steps"
            )
        if self.control_mode != "pd_joint_delta_pos":
            raise ArgumentError(
                f"--control-mode {self.control_mode} cannot be used: the experts' actions are of pd_joint_delta_pos"
            )
