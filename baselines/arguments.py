"""The arguments that all algorithms have, and their checks, which run before anything is created."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import operator
import os
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from mikasa_robo.data.seeds import EVALUATION_SEEDS
from mikasa_robo.deprecation import renamed_attributes

from .option_words import ArgumentError, option_words, read_env_kwargs, read_kwargs

__all__ = [
    "ArgumentError",
    "CommonArgs",
    "changed_option",
    "device_works",
    "nearest_divisor",
    "non_default_options",
    "read_env_kwargs",
    "read_kwargs",
    "refuse_without",
    "require",
    "require_buffer_to_resume",
    "require_one_process",
    "require_training_seed",
    "world_size",
]

OF_SOME_ALGORITHMS = ("critic_obs", "success_worth", "potential_shaping", "curriculum_share")
"""Fields of `CommonArgs` that training reads, and only some algorithms offer."""

MOST_ENVS = 65_536
MOST_STEPS = 1_000_000
MOST_TILES = 256
MOST_SEED = 2**32 - 1
"""NumPy's and some environments' limit."""
FINAL_EPISODES = 100
"""Episodes of the final evaluation, where the user does not choose."""
MOST_THREADS = 1024
MOST_WORKERS_PER_CORE = 16


def changed_option(saved: Any, asked: Any) -> str | None:
    """Why a run cannot go on with other arguments: the first option that differs; None where there is none.

    Args:
        saved: the arguments that it was started with, a dataclass.
        asked: those of the command line, whose ``resume`` is the run's folder.
    """
    for field in dataclasses.fields(saved):
        was, now = getattr(saved, field.name), getattr(asked, field.name)
        if was != now and field.name != "resume":
            option = f"--{field.name.replace('_', '-')}"
            return f"{option} {now} differs from {was}, with which {asked.resume} was started; leave it out"
    return None


def require(args: object, names: str, holds: Callable[[Any], bool], advice: str) -> None:
    """Raise ArgumentError unless ``holds`` is true of each of the fields of ``args`` named in ``names``, a
    space-separated list. Infinity and NaN are never accepted."""
    for name in names.split():
        value = getattr(args, name)
        if (isinstance(value, float) and not math.isfinite(value)) or not holds(value):
            raise ArgumentError(f"--{name.replace('_', '-')} {value} cannot be used; {advice}")


def non_default_options(args: Any, names: str) -> Iterator[str]:
    """The options among the fields ``names``, separated by spaces, that differ from their defaults, as they are typed."""
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name in names.split() and value != field.default:
            yield " ".join(option_words(field.name, value))


def refuse_without(args: Any, names: str, needs: str, given: bool) -> None:
    """Raise ArgumentError where one of the options ``names`` differs from its default, although nothing reads it.

    Not for a run that is resumed: one of an earlier version may have begun with it.

    Args:
        args: the arguments of the run, a dataclass.
        names: fields of the arguments, separated by spaces.
        needs: the option without which they do nothing, such as "--value-loss huber".
        given: whether that option is given.
    """
    for option in () if given or args.resume is not None else non_default_options(args, names):
        raise ArgumentError(f"{option} does nothing without {needs}; add that, or leave {option} out")


def refuse_options(args: Any, names: str, where: str | None = None) -> None:
    """Raise ArgumentError where one of the options ``names`` differs from its default: the network of the run ignores it.

    Args:
        args: the arguments of the run.
        names: fields of the arguments, separated by spaces.
        where: where they are ignored, such as "with --network mlp"; None: with the network of the run.
    """
    where = f"with --network {args.network_name}" if where is None else where
    for option in non_default_options(args, names):
        raise ArgumentError(f"{option} does nothing {where}; leave it out")


def refuse_noise(args: Any) -> None:
    """Raise ArgumentError where ``--init-log-std`` is given to an algorithm that never samples from its policy.

    Not for a run that is resumed, as in `refuse_without`.
    """
    if args.resume is None:
        refuse_options(args, "init_log_std", f"in {args.algorithm}, which takes the most likely actions")


def device_works(device: str | None) -> bool:
    """Whether torch can put a tensor on ``device``; None stands for the device of the environment."""
    import torch  # not above: `--help` must not load it

    try:
        return torch.zeros(1, device=device).item() == 0.0  # a "meta" tensor has no value
    except Exception:  # what torch raises depends on the device
        return False


def nearest_divisor(number: int, wish: int) -> int:
    """The divisor of ``number`` that is nearest to ``wish``.

    >>> nearest_divisor(4096, 10)
    8
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return min((*small, *(number // d for d in reversed(small))), key=lambda d: abs(d - wish))


def world_size() -> int:
    """Number of processes that `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def evaluation_seeds(args: Mapping[str, Any]) -> dict[str, range]:
    """The seeds that a run is judged by, and those that choose its best.pt, by what plays them.

    Args:
        args: the values of eval_episodes, eval_seed and final_eval_seed.
    """
    episodes = FINAL_EPISODES if args["eval_episodes"] is None else args["eval_episodes"]
    first, final = args["eval_seed"], args["final_eval_seed"]
    return {
        "`mikasa eval`": EVALUATION_SEEDS,
        f"--final-eval-seed {final}": range(final, final + episodes),
        f"--eval-seed {first}": range(first, first + episodes),
    }


def require_training_seed(seed: int, args: Mapping[str, Any], processes: int = 1) -> None:
    """Raise ArgumentError where a run with this seed may train on an episode of `evaluation_seeds`.

    Environment i of a robot task begins with the i-th episode of the seed s, and episode k of an evaluation is the first
    of the seed that belongs to k. So they meet where s is one of those seeds. ManiSkill's own tasks begin with other seeds
    in other processes: s, s + N, s + 2 N and so on for N environments in each.

    Args:
        seed: s.
        args: the values of num_envs and of what `evaluation_seeds` needs; others are not read.
        processes: how many train together.
    """
    for name, played in evaluation_seeds(args).items():
        if any(seed + process * args["num_envs"] in played for process in range(processes)):
            raise ArgumentError(
                f"--seed {seed} cannot be used: training would play episodes of the evaluations of {name}, which have "
                f"the seeds {played[0]} to {played[-1]}; use a seed outside of these"
            )


def require_choosing_seeds(args: Mapping[str, Any]) -> None:
    """Raise ArgumentError where best.pt would be chosen by an episode that it is judged by.

    Args:
        args: see `evaluation_seeds`.
    """
    *judging, (name, choosing) = evaluation_seeds(args).items()
    for judge, played in judging:
        if choosing.start < played.stop and played.start < choosing.stop:
            raise ArgumentError(
                f"{name} cannot be used: the evaluations that choose best.pt would play episodes of {judge}, "
                f"which have the seeds {played[0]} to {played[-1]}; leave it out"
            )


def require_one_process(algorithm: str) -> None:
    """Raise ArgumentError where `torchrun` started several processes."""
    if world_size() > 1:
        raise ArgumentError(f"{algorithm} trains in one process; start it without torchrun")


def require_buffer_to_resume(args: Any) -> None:
    """Raise ArgumentError where a run is to be resumed exactly, and its checkpoints leave out what it learns from."""
    if args.exact_resume and not args.checkpoint_buffer and args.resume is None:
        raise ArgumentError(
            "--exact-resume needs the buffer in the checkpoints, and --no-checkpoint-buffer, or the preset, leaves it out; "
            "add --checkpoint-buffer, or leave --exact-resume out"
        )


_Args = TypeVar("_Args", bound="CommonArgs")


@renamed_attributes({"plain": "to_dict", "parse_plain": "from_dict", "resolved_run_dir": "default_run_dir"})
@dataclass
class CommonArgs:
    """The arguments that every algorithm has. Those of an algorithm derive from it."""

    algorithm: ClassVar[str]
    """Name of the algorithm in the registry."""
    default_obs: ClassVar[str] = "state"
    """Observation mode of the tasks of this package where ``--obs`` is not given."""
    default_network: ClassVar[str] = "mlp"
    """Name of the network in the registry where ``--network`` is not given."""
    plays: ClassVar[bool] = True
    """Whether environments are stepped in training, and not only in evaluations."""

    env_id: str = "RememberColor3-v0"
    """The environment: an ID of `mikasa list` or `mikasa list --suite base`, of ManiSkill or of Gymnasium. For an
    environment of your own write module:ID; the module is imported and has to register the ID."""
    seed: int = 1
    """Seed of the learner and of the training environments."""
    total_timesteps: int = 600_000
    """Environment steps of training, summed over all environments."""
    num_envs: int = 64
    """Number of environments that are stepped together; under torchrun, in each process."""
    num_steps: int = 64
    """Steps of each environment in one rollout."""
    run_dir: Path | None = None
    """Folder for the files of the run, new or empty; by default runs/<env-id>__<algorithm>__<seed>__<time>, where ppo is
    followed by its memory."""
    variant: str | None = None
    """A name for these settings of the algorithm, which `mikasa report` shows in its place. It changes nothing else;
    sweeps set it."""
    resume: Path | None = None
    """Folder of a run to continue from its newest checkpoint, with the arguments that it was started with."""
    preset: str = "auto"
    """Hyper-parameters for a group of tasks: robo-state, robo-numbers, robo-pictures, base-diagnostic or base-complex. Other
    options on the command line take precedence. auto chooses by the task and --obs, none leaves all options at their
    defaults."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment as NAME=VALUE, such as arm=held delay_steps=20. Evaluations and videos use them too."""
    train_env_kwargs: tuple[str, ...] = ()
    """Likewise, for the training environments only: evaluations and videos play the task without them. They replace those of
    --env-kwargs with the same name. For a curriculum, such as start_counted=2."""
    network: str | None = None
    """The network: mlp (the default of ppo-mlp), lstm (of ppo-lstm), recurrent (of ppo), tokens (of dagger, bc and iql),
    sequence (of dt and rate), sac (of sac), or module:NAME for one that a module of your own registers."""
    network_kwargs: tuple[str, ...] = ()
    """Arguments of a network of your own as NAME=VALUE."""
    init_from: Path | None = None
    """A policy to start from instead of random weights: checkpoint.pt of another run with the same network and
    observations of the same sizes. Its normalisation is used as well. For a curriculum, several tasks in turn, or
    reinforcement learning after imitation; see --value-warmup-steps of PPO."""

    obs: str | None = None
    """Observations of a robot task: state, objects+joints, rgb+joints, or other parts joined with '+'. By default state for
    ppo-mlp and sac, objects+joints for the others (state for ManiSkill's own tasks). Other environments do not take this
    option."""
    sim_backend: str = "auto"
    """Robot tasks: physics backend. auto chooses the GPU if CUDA and PhysX's library for GPUs are available,
    else the batched CPU simulator."""
    num_workers: int | None = None
    """Tasks of this package: simulate the environments on the CPU in this many processes, at most --num-envs; by default
    in this process. Results are the same. For CPUs with more cores than the threads of one process can use."""
    control_mode: str = "pd_joint_delta_pos"
    """Robot tasks: controller of the robot."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
    """Robot tasks: the reward to learn from."""
    train_to_horizon: bool = True
    """Robot tasks: training episodes continue after a success, up to their time limit. The dense reward pays at every step
    and most at success. If success ended the episode, a policy would earn more by hovering next to the goal, and would
    learn that. A failure still ends the episode. Evaluations always use the task's own terminations."""
    stagger_groups: int = 8
    """The first episodes are cut short at this many different times, so that environments are spread over the steps of an
    episode. Otherwise all would be at the same step, and a rollout would show only one part of the task. Their steps are
    learnt from like all others."""

    learning_rate: float = 3e-4
    """Step size of the optimizer."""
    anneal_lr: bool = True
    """Decrease the learning rate linearly to 0 over the run."""
    normalize_obs: bool = True
    """Normalise observations by their running mean and standard deviation, which the checkpoint holds."""
    init_log_std: float = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""
    device: str | None = None
    """Device of the networks; by default that of the environment's tensors."""
    compile: Literal["off", "on", "cuda-graphs"] = "off"
    """Compile the networks with torch.compile. cuda-graphs (on a GPU) records them as CUDA graphs too, as torch's mode
    reduce-overhead does. The first update takes longer. On a CPU this needs a C++ compiler."""
    torch_threads: int = 0
    """Torch threads of an update; 0 uses one per core. During a rollout torch uses one thread."""

    checkpoint_every: int = 100_000
    """Write a checkpoint for --resume each time this many environment steps have passed; 0 writes none. A resumed run
    continues with everything that was learnt, in new episodes."""
    keep_checkpoints: int = 2
    """Number of these checkpoints to keep, the newest ones."""
    exact_resume: bool = False
    """All environments start new episodes at each checkpoint. On a CPU, a run that is killed and resumed then ends with the
    same weights, bit for bit, as one that is not: no simulator can be saved to the last bit. The price: at each checkpoint
    the running episodes are broken off, and the first of the new ones cut short as at the start of a run. Keep
    --checkpoint-every at many times --num-envs times the length of an episode. Networks with dropout need
    --torch-threads 1."""
    eval_every: int | None = None
    """Evaluate each time this many environment steps have passed; 0 evaluates only at the end. By default as often as takes
    2.5 % of the steps that are simulated, and 100,000 where the length of an episode is not known."""
    eval_episodes: int | None = None
    """Episodes of each evaluation. By default 100; without --eval-every those during training play 50, or fewer (at least
    10) where a run would otherwise be evaluated less than three times."""
    eval_num_envs: int = 50
    """Environments of an evaluation, at most; only the episodes of ManiSkill's own tasks depend on their number."""
    eval_seed: int = 1_000_000
    """Episode k of an evaluation during training has the seed eval_seed + k."""
    final_eval_seed: int = EVALUATION_SEEDS.start
    """Likewise for the final evaluation, so that best.pt is not judged by the episodes that it was chosen by."""
    video: bool = True
    """Record a video of the final policy, where the machine can render."""
    video_episodes: int = 4
    """Episodes in the video, side by side."""

    track: bool = False
    """Log to Weights & Biases too."""
    wandb_project: str = "mikasa"
    """Project at Weights & Biases."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """Whether Weights & Biases may use the network; offline runs can be sent later with `wandb sync`."""

    critic_obs: tyro.conf.Suppress[Literal["state"] | None] = None
    """What the critic alone sees in training; algorithms that have this option show it."""
    success_worth: tyro.conf.Suppress[float | None] = None
    """What ends a training episode at its success; algorithms that have this option show it."""
    potential_shaping: tyro.conf.Suppress[bool] = False
    """Whether the dense reward pays for changes; algorithms that have this option show it."""
    curriculum_share: tyro.conf.Suppress[float] = 1.0
    """When --train-env-kwargs end; algorithms that have this option show it."""
    env_module: tyro.conf.Suppress[str | None] = None
    """Module that --env-id named."""
    algorithm_module: tyro.conf.Suppress[str | None] = None
    """Module that registers the algorithm, where it is not part of this package."""
    network_module: tyro.conf.Suppress[str | None] = None
    """Module that registers the network, where it is not part of this package."""

    @property
    def batch_size(self) -> int:
        """Transitions of one rollout, summed over all processes."""
        return self.num_envs * self.num_steps * world_size()

    @property
    def network_name(self) -> str:
        """Name of the network in the registry."""
        return self.network or self.default_network

    def why_no_workers(self) -> str | None:
        """Why the algorithm cannot simulate in worker processes (``--num-workers``); None if it can."""
        return None if self.plays else f"{self.algorithm} simulates nothing in training"

    def asked_of_network(self) -> dict[str, str]:
        """The options that not every network takes, by the names of their fields; an algorithm that has such adds them."""
        return {}

    def read_network_kwargs(self) -> dict[str, Any]:
        """The arguments of ``--network-kwargs``."""
        return read_kwargs(self.network_kwargs, "--network-kwargs")

    def check(self) -> None:
        """Raise ArgumentError where a value cannot be used, before anything is created."""
        for minimum, names in (
            (1, "stagger_groups keep_checkpoints eval_episodes"),
            (0, "eval_every checkpoint_every"),
        ):
            given = " ".join(name for name in names.split() if getattr(self, name) is not None)
            require(self, given, functools.partial(operator.le, minimum), f"use at least {minimum}")
        for low, high, names in (
            (1, MOST_ENVS, "num_envs eval_num_envs"),
            (1, MOST_STEPS, "num_steps"),
            (1, MOST_TILES, "video_episodes"),
            (0, MOST_SEED, "seed"),
            (0, MOST_SEED // 2, "eval_seed final_eval_seed"),
            (0, MOST_THREADS, "torch_threads"),
            (-20, 10, "init_log_std"),
        ):
            require(self, names, lambda value: low <= value <= high, f"use {low} to {high}")  # noqa: B023
        if self.resume is None:  # a run of an earlier version may have begun with any seed
            require_training_seed(self.seed, vars(self), world_size())
            require_choosing_seeds(vars(self))
        require(self, "learning_rate", lambda value: 0.0 < value <= 1.0, "use a value above 0, at most 1")
        refuse_without(self, "exact_resume keep_checkpoints", "--checkpoint-every", self.checkpoint_every > 0)
        refuse_without(self, "wandb_project wandb_mode", "--track", self.track)
        self._check_optional()
        read_env_kwargs(self.env_kwargs)
        read_env_kwargs(self.train_env_kwargs, "--train-env-kwargs")
        self.read_network_kwargs()
        require(self, "device", device_works, "use cpu, or leave it out")
        if self.num_workers is not None:
            if (reason := self.why_no_workers()) is not None:
                raise ArgumentError(f"--num-workers {self.num_workers} cannot be used: {reason}; leave it out")
            most = min(self.num_envs, MOST_WORKERS_PER_CORE * (os.cpu_count() or 1))
            require(
                self, "num_workers", lambda value: 1 <= value <= most, f"use 1 to {most}: --num-envs, and the cores"
            )
        if self.compile == "cuda-graphs":
            import torch

            if not torch.cuda.is_available():
                raise ArgumentError("--compile cuda-graphs needs a GPU, and torch finds none; use on or off")
        if self.track:
            importlib.import_module("wandb")  # if it is missing, fail before there is a run folder
        self.check_batch()

    def _check_optional(self) -> None:
        """Raise ArgumentError for an option that only other algorithms have. The command line does not offer it."""
        own = {name for base in type(self).__mro__ if base is not CommonArgs for name in inspect.get_annotations(base)}
        for name in OF_SOME_ALGORITHMS:
            value = getattr(self, name)
            if name not in own and value != getattr(CommonArgs, name):
                raise ArgumentError(f"{self.algorithm} has no option {name} (given: {value}); leave it out")

    def check_batch(self) -> None:
        """Raise ArgumentError where the sizes of rollouts and minibatches do not fit; an algorithm may check more."""
        if self.total_timesteps < self.batch_size:
            what, fewer = "one rollout of", "--num-envs or --num-steps"
            if not self.plays:
                what, fewer = "one row of the log, which stands for", "--num-steps"
            raise ArgumentError(
                f"--total-timesteps {self.total_timesteps} is less than {what} {self.batch_size} steps; "
                f"use at least {self.batch_size}, or fewer {fewer}"
            )

    @property
    def run_name(self) -> str:
        """What is trained, in the name of the run's folder."""
        return self.algorithm

    def default_run_dir(self) -> Path:
        """``run_dir``, or where that is None a folder with the present time in its name."""
        if self.run_dir is not None:
            return self.run_dir
        return Path("runs") / f"{self.env_id}__{self.run_name}__{self.seed}__{time.strftime('%Y%m%d-%H%M%S')}"

    def to_dict(self) -> dict[str, Any]:
        """All arguments as JSON-ready values."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls: type[_Args], values: Mapping[str, Any]) -> _Args:
        """The arguments that `to_dict` described; ones that a former version did not have get their defaults.

        Raises:
            ArgumentError: this version does not have one of the arguments, or it has a value of another type.
        """
        unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ArgumentError(
                f"{cls.algorithm} has no argument {', '.join(sorted(unknown))} in this version; "
                "use the version that trained it"
            )
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        hints = get_type_hints(cls)
        for name, value in arguments.items():
            if not _fits(value, hints[name]):
                raise ArgumentError(f"the argument {name} of {cls.algorithm} cannot be {value!r}")
        for name in ("run_dir", "resume", "init_from"):
            arguments[name] = None if arguments.get(name) is None else Path(arguments[name])
        return cls(**arguments)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is one of a field with this type. Types that arguments do not have are not checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint in (str, bool, Path, type(None)):
        return isinstance(value, str if hint is Path else hint)
    return True
