"""The arguments of PPO-MLP, PPO-LSTM and PPO with any memory. Importing this module does not load torch, so that
``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .arguments import ArgumentError, CommonArgs, nearest_divisor, refuse_without, require, world_size
from .memory_arguments import MemoryArgs, MemoryName

__all__ = ["PPOArgs", "PPOLSTMArgs", "PPOMLPArgs", "PPOMemoryArgs", "RecurrentPPOArgs"]


MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 1e-2
"""Bounds of the learning rate with --lr-schedule kl-adaptive."""
MOST_WORTH = 1e6
"""Largest --success-worth, within which returns keep their precision."""


@dataclass
class PPOArgs(CommonArgs):
    """The arguments of PPO."""

    num_minibatches: int = 8
    """Minibatches in an epoch; must divide num_envs x num_steps."""
    update_epochs: int = 8
    """Passes over a rollout in one update."""
    gamma: float = 0.9
    """Discount. The shaped reward needs no long view: 0.9 looks about 10 steps ahead."""
    gae_lambda: float = 0.9
    """Trace decay of the advantage estimate."""
    clip_range: float = 0.2
    """Range around 1 beyond which the probability ratio has no gradient."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient; larger gradients are scaled down to it."""
    target_kl: float = 0.1
    """An update stops early once the policy has moved this far (approximate KL divergence); 0 turns this off."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0 and standard deviation 1."""
    final_log_std: float | None = None
    """Upper bound of the logarithm of the standard deviation at the end of the run; the bound decreases linearly from
    init_log_std. By default there is no bound, except with state-dependent noise and --init-from: then that of the earlier
    run stays, unless --reset-noise is given. For tasks in which the robot must come to rest, which strong exploration
    noise prevents."""

    success_worth: float | None = None
    """Robot tasks: a success ends a training episode, whatever --train-to-horizon says, and its step pays so many times its
    reward. No step is spent on waiting after a success, and no mistake after it counts. Staying there for ever would be
    worth 1 / (1 - gamma). With a smaller number, what comes before the success counts for more. It must be worth more than
    hovering near the goal."""

    potential_shaping: bool = False
    """Tasks of this package, with --success-worth: the dense reward pays for the change of its terms in a step, not for the
    terms themselves. So hovering near the goal earns nothing, and a mistake costs what was earned by coming near."""

    exploration: Literal["gaussian", "state-dependent", "gsde", "smooth"] = "gaussian"
    """Noise of continuous actions. gaussian: independent at each step, with one learned standard deviation for each
    component. state-dependent: with standard deviations that the actor computes from what it sees. gsde: generalised
    state-dependent exploration, a random function of the actor's features that stays the same for some steps. smooth:
    correlated from step to step."""
    gsde_interval: int = 8
    """Steps for which gsde keeps its random function."""
    noise_correlation: float = 0.8
    """Correlation of smooth noise from one step to the next."""

    normalize_returns: bool = False
    """The critic predicts in units of the running mean and standard deviation of its targets (PopArt), which the checkpoint
    holds. --value-coef, --value-clip and --huber-delta are then in that unit too."""
    value_loss: Literal["mse", "clipped", "huber"] = "mse"
    """Loss of the critic: half the squared error; the larger of that and the error of a value that moved at most
    --value-clip in this update; or half the squared error that becomes linear from --huber-delta on."""
    value_clip: float = 0.2
    """See --value-loss clipped; in units of the return."""
    huber_delta: float = 1.0
    """See --value-loss huber; in units of the return."""
    anneal_lr: bool = True
    """Decrease the learning rate linearly to 0 over the run, with --lr-schedule linear."""
    lr_schedule: Literal["linear", "kl-adaptive"] = "linear"
    """linear: --anneal-lr decreases the learning rate to 0. kl-adaptive: before each minibatch but the first of an update it
    is divided by 1.5 where the policy has moved more than twice --desired-kl in this update, and multiplied by 1.5 where it
    has moved less than half of it, within 1e-5 to 1e-2; --anneal-lr then does nothing."""
    desired_kl: float = 0.01
    """See --lr-schedule kl-adaptive."""
    separate_grad_norms: bool = False
    """Limit the norm of the critic's gradient and that of all other parameters apart, each by --max-grad-norm."""
    value_warmup_steps: int = 0
    """In so many environment steps at the beginning only the critic and the read-out of --oracle-weight learn, and the
    policy stays as it is. For --init-from, where they are new and their errors would spoil the policy. The statistics of
    --normalize-obs go on."""
    reset_noise: bool = False
    """With --init-from: begin with the noise of --init-log-std. Otherwise that of the policy goes on if PPO has trained it,
    and --init-log-std has no effect."""

    curriculum_share: float = 1.0
    """Share of --total-timesteps for which training uses --train-env-kwargs. Then all environments start new episodes of the
    task itself, as evaluations play it. With 1 they are used to the end."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "curriculum_share", lambda value: 0.0 < value <= 1.0, "use a value above 0, at most 1")
        if self.curriculum_share < 1.0 and not self.train_env_kwargs:
            raise ArgumentError(
                f"--curriculum-share {self.curriculum_share:g} needs a curriculum; add --train-env-kwargs, or leave it out"
            )
        if self.success_worth is not None:
            require(
                self,
                "success_worth",
                lambda value: 0.0 < value <= MOST_WORTH,
                f"use a value above 0, at most {MOST_WORTH:g}",
            )
        if self.potential_shaping:
            self._check_potential_shaping()
        require(self, "gsde_interval", lambda value: value >= 1, "use at least 1")
        require(self, "noise_correlation", lambda value: 0.0 <= value < 1.0, "use a value from 0 to below 1")
        require(self, "value_clip huber_delta desired_kl", lambda value: value > 0.0, "use a value above 0")
        refuse_without(self, "gsde_interval", "--exploration gsde", self.exploration == "gsde")
        refuse_without(self, "noise_correlation", "--exploration smooth", self.exploration == "smooth")
        refuse_without(self, "value_clip", "--value-loss clipped", self.value_loss == "clipped")
        refuse_without(self, "huber_delta", "--value-loss huber", self.value_loss == "huber")
        refuse_without(self, "desired_kl", "--lr-schedule kl-adaptive", self.lr_schedule == "kl-adaptive")
        if self.lr_schedule == "kl-adaptive" and self.resume is None:  # a run of an earlier version may have any
            low, high = MIN_LEARNING_RATE, MAX_LEARNING_RATE
            require(
                self, "learning_rate", lambda rate: low <= rate <= high, f"use {low:g} to {high:g} with kl-adaptive"
            )
        require(
            self,
            "value_warmup_steps",
            lambda value: 0 <= value < self.total_timesteps,
            "use 0 to less than --total-timesteps, or the policy never learns",
        )
        require(
            self,
            "reset_noise",
            lambda value: not value or self.init_from is not None,
            "use it with --init-from only: every other run begins with --init-log-std",
        )
        if self.exploration == "state-dependent":
            require(self, "init_log_std", lambda value: -5.0 < value < 1.0, "use -5 to 1 with state-dependent")
        require(self, "update_epochs", lambda value: value >= 1, "use at least 1")
        require(self, "entropy_coef value_coef target_kl", lambda value: value >= 0, "use at least 0")
        require(self, "gamma gae_lambda", lambda value: 0.0 <= value <= 1.0, "use a value from 0 to 1")
        require(self, "clip_range max_grad_norm", lambda value: value > 0.0, "use a value above 0")
        if self.final_log_std is not None:
            most = self.init_log_std
            require(
                self,
                "final_log_std",
                lambda value: -20 <= value <= most,
                f"use -20 to --init-log-std, which is {most:g}",
            )

    def _check_potential_shaping(self) -> None:
        if self.success_worth is None:
            raise ArgumentError(
                "--potential-shaping ends episodes at a success, and needs what it is worth: add --success-worth 1"
            )
        if self.reward_mode == "sparse":
            raise ArgumentError(
                "--potential-shaping changes the dense reward; leave out --reward-mode sparse, or add --no-potential-shaping"
            )
        if self.num_workers is not None:
            raise ArgumentError(
                "--potential-shaping reads the reward where the simulation is; leave --num-workers out, or add "
                "--no-potential-shaping"
            )

    def asked_of_network(self) -> dict[str, str]:
        """The options that not every network takes, see `PolicyNetwork.ppo_options`: field name to option."""
        asked = {}
        if self.exploration != "gaussian":
            asked["exploration"] = f"--exploration {self.exploration}"
        if self.normalize_returns:
            asked["normalize_returns"] = "--normalize-returns"
        if self.critic_obs is not None:
            asked["critic_obs"] = "--critic-obs"
        return asked

    def check_batch(self) -> None:
        """Raise ArgumentError where a rollout cannot be divided into minibatches."""
        require(self, "num_minibatches", lambda value: value >= 1, "use at least 1")
        self.check_minibatches()
        super().check_batch()

    def check_minibatches(self) -> None:
        """Raise ArgumentError where a rollout cannot be divided into minibatches."""
        raise NotImplementedError


@dataclass
class PPOMLPArgs(PPOArgs):
    """Train PPO with a network without memory."""

    algorithm: ClassVar[str] = "ppo-mlp"
    default_obs: ClassVar[str] = "state"
    default_network: ClassVar[str] = "mlp"

    memory: str = "none"
    """Always none: `mikasa train ppo` trains the other memories."""
    hidden_sizes: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critic."""
    fine_inputs: float = 0.0
    """F: the network also sees tanh(z / F) of each number of the observation, where z is the number divided by its running
    standard deviation. So it tells small values apart, such as distances of 1 and 2 cm. 0.0: it does not."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        if self.memory != "none":
            raise ArgumentError(
                f"--memory {self.memory} cannot be used: ppo-mlp has no memory; "
                f"use `mikasa train ppo --memory {self.memory}`"
            )
        require(self, "hidden_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
        require(self, "fine_inputs", lambda value: value >= 0, "use a positive number, or 0 to leave it out")
        if self.fine_inputs and not self.normalize_obs:
            raise ArgumentError(
                f"--fine-inputs {self.fine_inputs} needs the running standard deviation; leave out --no-normalize-obs"
            )

    def asked_of_network(self) -> dict[str, str]:
        """See `PPOArgs.asked_of_network`."""
        return super().asked_of_network() | ({"fine_inputs": "--fine-inputs"} if self.fine_inputs else {})

    def check_minibatches(self) -> None:
        """Raise ArgumentError where a rollout cannot be divided into minibatches."""
        if self.batch_size % self.num_minibatches:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} does not divide the batch, --num-envs {self.num_envs} x "
                f"--num-steps {self.num_steps} = {self.batch_size}; "
                f"use {nearest_divisor(self.batch_size, self.num_minibatches)}"
            )
        if self.batch_size // self.num_minibatches < 2 and self.normalize_advantages:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} leaves one transition to a minibatch, too few to normalise "
                f"its advantage; use at most {self.batch_size // 2}, or --no-normalize-advantages"
            )


@dataclass
class RecurrentPPOArgs(PPOArgs, MemoryArgs):
    """The arguments of PPO with a recurrent network."""

    default_obs: ClassVar[str] = "objects+joints"

    num_minibatches: int = 8
    """Minibatches in an epoch, each of whole rollouts of some of the environments; must divide num_envs."""
    gamma: float = 0.99
    """Discount factor. It is high because remembering pays late in an episode."""
    gae_lambda: float = 0.95
    """Trace decay of the advantage estimate."""
    memory: MemoryName = "lstm"
    encoder_sizes: tuple[int, ...] = (128,)
    """Widths of the layers between an observation and the memory, at least one."""
    head_sizes: tuple[int, ...] = (128,)
    """Widths of the hidden layers of actor and critic, after the memory."""
    token_size: int = 64
    """Size of the token that an object becomes, with --network tokens."""
    query_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers between memory and the queries to the objects, with --network tokens; by default the
    queries are linear."""
    tcp_token: bool = False
    """With --network tokens, give the memory, the actor and the critic the token of the object at the hand as well."""
    sum_token: bool = False
    """With --network tokens, give the memory the sum of the objects' tokens as well."""
    critic_obs: Literal["state"] | None = None
    """What the critic sees besides what the actor and the memory see: state, the full state of a robot task, or nothing.
    Only training needs it; the policy acts on --obs alone."""
    oracle_weight: float = 0.0
    """Weight of an auxiliary loss, for robot tasks: a linear read-out, from the memory, of what has to be remembered, after
    the cue; cross-entropy for whole numbers, else mean squared error. It teaches the memory what to hold. Only training
    needs it, and the policy is not changed by it. The read-out has a learning rate of its own, which --anneal-lr does not
    change."""
    oracle_as_set: bool = False
    """With --oracle-weight, where several targets are touched in any order (BunchOfColors, SeqOfColors): the read-out tells
    which the targets are, and not in which order they were shown, which the task does not need."""

    @property
    def run_name(self) -> str:
        """PPO and its memory."""
        return f"ppo-{self.memory.rpartition(':')[2]}"

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "encoder_sizes", lambda widths: min(widths, default=0) >= 1, "use widths of at least 1")
        require(self, "head_sizes query_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
        require(self, "token_size", lambda width: width >= 1, "use at least 1")
        require(self, "oracle_weight", lambda weight: weight >= 0.0, "use at least 0")
        refuse_without(self, "oracle_as_set", "--oracle-weight", self.oracle_weight > 0.0)
        if self.oracle_weight and self.num_workers is not None:
            raise ArgumentError(
                f"--oracle-weight {self.oracle_weight} reads the oracle where the simulation is; leave --num-workers out"
            )
        if self.critic_obs is not None and self.num_workers is not None:
            raise ArgumentError(
                f"--critic-obs {self.critic_obs} reads the state where the simulation is; leave --num-workers out"
            )

    def check_minibatches(self) -> None:
        """Raise ArgumentError where the environments cannot be divided into minibatches."""
        num_envs = self.num_envs * world_size()
        if num_envs % self.num_minibatches:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} does not divide the number of environments, {num_envs}; "
                f"use {nearest_divisor(num_envs, self.num_minibatches)}"
            )
        if self.batch_size // self.num_minibatches < 2 and self.normalize_advantages:
            raise ArgumentError(
                f"--num-minibatches {self.num_minibatches} leaves one transition to a minibatch, too few to normalise "
                "its advantage; use more --num-steps, or --no-normalize-advantages"
            )


@dataclass
class PPOMemoryArgs(RecurrentPPOArgs):
    """Train PPO with any memory."""

    algorithm: ClassVar[str] = "ppo"
    default_network: ClassVar[str] = "recurrent"

    memory_size: int = 128
    """Width of the memory."""

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "memory_size", lambda width: width >= 1, "use at least 1")


@dataclass
class PPOLSTMArgs(RecurrentPPOArgs):
    """Train PPO with a recurrent network, which can remember."""

    algorithm: ClassVar[str] = "ppo-lstm"
    default_network: ClassVar[str] = "lstm"

    size_field: ClassVar[str] = "lstm_size"

    lstm_size: int = 128
    """Width of the LSTM, or of the memory in its place."""

    @property
    def run_name(self) -> str:
        """PPO and its memory."""
        return self.algorithm if self.memory == "lstm" else super().run_name

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        super().check()
        require(self, "lstm_size", lambda width: width >= 1, "use at least 1")
