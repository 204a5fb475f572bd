"""The arguments of DAgger and behaviour cloning. Importing this module does not load torch, so ``--help`` is quick."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar, Literal

from mikasa_robo.experts.makers import PolicyName

from .arguments import (
    ArgumentError,
    refuse_noise,
    refuse_without,
    require,
    require_buffer_to_resume,
    require_one_process,
)
from .memory_arguments import MemoryArgs

__all__ = ["BCArgs", "DAggerArgs", "ImitationArgs"]

MOST_UPDATES = 1_000_000
MOST_WIDTH = 8192


@dataclass
class ImitationArgs(MemoryArgs):
    """What learning from an expert's labels needs."""

    default_obs: ClassVar[str] = "objects+joints"
    default_network: ClassVar[str] = "tokens"

    total_timesteps: int = 100_000
    """Environment steps of training, summed over all environments, those of the warm start among them."""
    num_steps: int = 60
    """Steps of each environment in one rollout. Episodes may go on from one rollout to the next."""
    stagger_groups: int = 1
    """Number of groups whose first episodes are cut short at different steps. 1 is enough here, because whole episodes are
    learnt from."""
    train_to_horizon: bool = False
    """Training episodes go on after a success. The expert has nothing more to say then."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    anneal_lr: bool = True
    """Decrease the learning rate to 0 over the run, as --lr-schedule says."""
    lr_schedule: Literal["cosine", "linear"] = "cosine"
    """How --anneal-lr decreases the learning rate to 0 over the run. It changes from one rollout to the next."""

    teacher: PolicyName = "expert"
    """Who labels: expert, or another scripted policy of `mikasa expert`. posture keeps the cue in its last joint; the
    others are worse at the task."""

    memory_size: int = 128
    """Width of the memory."""
    token_size: int = 64
    """Size of the token that an object becomes."""
    head_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers between memory and action."""
    query_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers between memory and the queries to the objects; by default the queries are linear. Tasks
    with several targets need one: what to look for then depends on the cue and on what was touched already."""
    tcp_token: bool = False
    """Give the memory and the policy the token of the object at the hand as well. A memory that has to keep count of what
    was touched, as in BunchOfColors and SeqOfColors, hardly learns it otherwise."""
    sum_token: bool = False
    """Give the memory the sum of the objects' tokens as well. It learns sooner which objects a large set has that is seen at
    once, as in BunchOfColors."""

    batch_episodes: int = 32
    """Whole episodes in a minibatch."""
    updates_per_rollout: int = 100
    """Gradient steps after each rollout."""
    buffer_episodes: int = 2000
    """Episodes that are kept, the newest ones; minibatches are drawn from them."""
    checkpoint_buffer: bool = True
    """Checkpoints hold the kept episodes too. Without them a resumed run begins to gather anew."""
    bptt: int = 0
    """Truncated backpropagation through time: gradients go back at most to the last multiple of this many steps. 0: through
    whole episodes."""
    loss: Literal["huber", "mse"] = "huber"
    """Distance of an action to the expert's: squared, or (huber) linear from --huber-delta on."""
    huber_delta: float = 0.5
    """See --loss."""
    max_grad_norm: float = 1.0
    """Maximum norm of the gradient; larger gradients are scaled down to it."""
    expert_noise: float = 0.2
    """The expert's actions are carried out with Gaussian noise. In each episode its standard deviation is drawn from 0 to
    twice this. Labels stay without noise. So the expert shows how to correct mistakes."""
    ignore_mistakes: bool = False
    """Training episodes go on after a mistake (on_mistake="ignore"), so that the student is labelled there too. Evaluations
    keep the task's own rule."""
    oracle_weight: float = 0.0
    """Weight of an auxiliary loss: a linear read-out of what has to be remembered from the memory, cross-entropy for whole
    numbers, else mean squared error. Learning to hold the cue is then supervised too. The policy is not changed by it."""
    oracle_as_set: bool = False
    """With --oracle-weight, where several targets are touched in any order (BunchOfColors, SeqOfColors): the read-out tells
    which the targets are, and not in which order they were shown, which the task does not need."""
    counted_weight: float = 0.0
    """Tasks with several targets: weight of an auxiliary loss, the cross-entropy of a linear read-out of the targets touched
    so far from the memory. Observations do not show them, so a policy has to remember what it has done already."""
    target_weight: float = 0.0
    """Weight of an auxiliary loss: the cross-entropy between what the first query to the objects finds and the object that
    the expert goes for. It teaches which object to act on. The queries are part of the policy, see --query-sizes."""

    image_pretraining_updates: int | None = None
    """Gradient steps on single frames that teach the image encoder alone, told what has to be remembered. After them it is
    fixed, and episodes are kept as features: other gradient steps cost as much as without images. By default one for eight
    frames, at most 1,000. 0: it learns with the rest, which is slow; then use --buffer-episodes 300 too, because an episode
    of images takes 6 MB."""
    image_pretraining_steps: int | None = None
    """Environment steps that are played before this pretraining; no other gradient step is taken until then. By default
    7,680, or a quarter of --total-timesteps if that is less."""

    @property
    def pretraining_begins(self) -> int:
        """The environment steps after which image encoders are pretrained."""
        return self.image_pretraining_steps or min(7_680, self.total_timesteps // 4)

    def pretraining_updates(self, frames: int) -> int:
        """The gradient steps of that pretraining on so many frames."""
        if self.image_pretraining_updates is None:
            return min(1_000, math.ceil(frames / 8))
        return self.image_pretraining_updates

    def why_no_workers(self) -> str | None:
        """See `CommonArgs.why_no_workers`."""
        if getattr(self, "dataset", None) is not None:
            return f"{self.algorithm} with --dataset simulates nothing in training"
        return "the expert acts where the simulation is"

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require_one_process(self.algorithm)
        if getattr(self, "dataset", None) is None:  # which is read again
            require_buffer_to_resume(self)
        if self.control_mode != "pd_joint_delta_pos":
            raise ArgumentError(
                f"--control-mode {self.control_mode} cannot be used: the experts' actions are of pd_joint_delta_pos"
            )
        require(self, "batch_episodes buffer_episodes", lambda value: value >= 1, "use at least 1")
        require(self, "updates_per_rollout", lambda value: 0 <= value <= MOST_UPDATES, f"use 0 to {MOST_UPDATES}")
        require(self, "bptt", lambda value: value >= 0, "use the number of steps, or 0 for whole episodes")
        require(self, "memory_size token_size", lambda value: 1 <= value <= MOST_WIDTH, f"use 1 to {MOST_WIDTH}")
        require(self, "head_sizes query_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
        require(self, "huber_delta max_grad_norm", lambda value: value > 0.0, "use a value above 0")
        refuse_without(self, "huber_delta", "--loss huber", self.loss == "huber")
        refuse_without(self, "lr_schedule", "--anneal-lr", self.anneal_lr)
        refuse_noise(self)
        weights = "oracle_weight counted_weight target_weight"
        require(self, f"expert_noise {weights}", lambda value: value >= 0.0, "use at least 0")
        refuse_without(self, "oracle_as_set", "--oracle-weight", self.oracle_weight > 0.0)
        if self.image_pretraining_updates is not None:
            most = MOST_UPDATES
            require(self, "image_pretraining_updates", lambda value: 0 <= value <= most, f"use 0 to {most}")
        if self.image_pretraining_steps is None:
            return
        refuse_without(
            self, "image_pretraining_steps", "--image-pretraining-updates", self.image_pretraining_updates != 0
        )
        require(self, "image_pretraining_steps", lambda value: value >= 1, "use at least 1")
        if self.image_pretraining_steps > self.total_timesteps:
            raise ArgumentError(
                f"--image-pretraining-steps {self.image_pretraining_steps} is more than --total-timesteps "
                f"{self.total_timesteps}, so that nothing would be learnt; use fewer"
            )


@dataclass
class DAggerArgs(ImitationArgs):
    """The student acts, and learns the expert's action in each state that it visits (DAgger)."""

    algorithm: ClassVar[str] = "dagger"

    warm_start_steps: int = 7_680
    """In so many environment steps at the beginning the expert itself acts, with noise."""
    warm_start_updates: int = 500
    """Gradient steps of the warm start, spread evenly over its rollouts."""
    beta_steps: int = 0
    """After the warm start the expert acts instead of the student at a share beta of the steps. It falls linearly from 1 to
    0 within this many environment steps; 0: the student acts at once."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "warm_start_steps beta_steps", lambda value: value >= 0, "use at least 0")
        require(self, "warm_start_updates", lambda value: 0 <= value <= MOST_UPDATES, f"use 0 to {MOST_UPDATES}")
        refuse_without(self, "warm_start_updates", "--warm-start-steps", self.warm_start_steps > 0)
        acts = self.warm_start_steps > 0 or self.beta_steps > 0
        refuse_without(self, "expert_noise", "--warm-start-steps or --beta-steps", acts)

        if self.warm_start_steps > self.total_timesteps:
            raise ArgumentError(
                f"--warm-start-steps {self.warm_start_steps} is more than --total-timesteps {self.total_timesteps}; "
                "use fewer, or `mikasa train bc`, in which the expert acts all the time"
            )


@dataclass
class BCArgs(ImitationArgs):
    """Train on noisy episodes of the expert (behaviour cloning)."""

    algorithm: ClassVar[str] = "bc"

    total_timesteps: int = 40_000
    """Environment steps of training, summed over all environments. The expert acts in all of them."""
    updates_per_rollout: int = 300
    """Gradient steps after each rollout."""
    buffer_episodes: int = 10_000
    """Episodes that are kept, the newest ones; minibatches are drawn from them."""
    dataset: str | None = None
    """Learn from this folder of `mikasa collect` instead of playing. Each num_steps x num_envs of the total timesteps then
    stands for a rollout, after which --updates-per-rollout gradient steps are taken."""
    validation_share: float = 0.0
    """Share of the dataset's episodes that are not learnt from. The log has their losses, with "validation/" before the
    names. Where these rise while those of training fall, the policy learns its data by heart."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "validation_share", lambda value: 0.0 <= value < 1.0, "use 0 to less than 1")
        refuse_without(self, "validation_share", "--dataset", self.dataset is not None)
        if self.dataset is not None and not os.path.isdir(self.dataset):
            raise ArgumentError(f"--dataset {self.dataset} is no folder; name one that `mikasa collect` made")
        if self.dataset is not None:
            self._refuse_what_needs_play()
        if self.dataset is not None and self.counted_weight:
            raise ArgumentError(
                f"--counted-weight {self.counted_weight} cannot be used with --dataset: datasets do not hold what was "
                "touched so far; leave one of them out"
            )
        if self.dataset is not None and self.target_weight:
            raise ArgumentError(
                f"--target-weight {self.target_weight} cannot be used with --dataset: datasets do not hold what the expert "
                "goes for; leave one of them out"
            )

    def _refuse_what_needs_play(self) -> None:
        """Raise ArgumentError where an option is given that only matters where the expert plays."""
        for name in ("teacher", "expert_noise", "ignore_mistakes", "train_env_kwargs", "image_pretraining_steps"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                words = " ".join(value) if isinstance(value, tuple) else "" if value is True else value
                option = f"--{name.replace('_', '-')} {words}".rstrip()
                raise ArgumentError(f"{option} cannot be used with --dataset: nothing is played; leave one of them out")
