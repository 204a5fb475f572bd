"""The arguments that all algorithms have, and checks of them that are made before a run has created anything."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch

from .team import team_size

__all__ = ["ArgumentError", "CommonArgs", "device_works", "nearest_divisor", "read_env_kwargs", "require"]

TAKEN = {
    "obs_mode": "--obs",
    "sim_backend": "--sim-backend",
    "control_mode": "--control-mode",
    "reward_mode": "--reward-mode",
    "num_envs": "--num-envs",
}
"""Arguments of environments that have an option of their own."""
NOT_OFFERED = (
    "id",
    "render_mode",
    "max_episode_steps",
    "vectorization_mode",
    "vector_kwargs",
    "autoreset_mode",
    "wrappers",
    "disable_env_checker",
    "reconfiguration_freq",
)
"""Arguments of environments that training sets, or relies on as they are."""


class ArgumentError(ValueError):
    """An argument cannot be used; the message names it, its value and the fix."""


def require(args: object, names: str, holds: Callable[[Any], bool], advice: str) -> None:
    """Raises ``ArgumentError`` unless ``holds`` is true of each of the named (space-separated) fields of ``args``.

    Infinity and NaN are never accepted.
    """
    for name in names.split():
        value = getattr(args, name)
        if (isinstance(value, float) and not math.isfinite(value)) or not holds(value):
            raise ArgumentError(f"--{name.replace('_', '-')} {value} cannot be used; {advice}")


def device_works(device: str | None) -> bool:
    """Whether torch can put a tensor on ``device``; None, the environment's own, always works."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


def nearest_divisor(number: int, wish: int) -> int:
    """The divisor of ``number`` nearest to ``wish``.

    >>> nearest_divisor(4096, 10)
    8
    """
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wish))


def read_env_kwargs(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of an environment from words NAME=VALUE; values that are JSON are read so, others are text.

    >>> read_env_kwargs(["arm=held", "delay_steps=20"])
    {'arm': 'held', 'delay_steps': 20}

    Raises ArgumentError where a word is none of these, a name comes twice, or the argument is not to be given here.
    """
    kwargs: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.isidentifier():
            raise ArgumentError(f"--env-kwargs {word} is not NAME=VALUE; write for example arm=held delay_steps=20")
        if name in TAKEN:
            raise ArgumentError(f"--env-kwargs {word}: use {TAKEN[name]}")
        if name in NOT_OFFERED:
            raise ArgumentError(f"--env-kwargs {word}: training sets {name} itself; leave it out")
        if name in kwargs:
            raise ArgumentError(f"--env-kwargs {word}: {name} stands there twice; leave one out")
        try:
            kwargs[name] = json.loads(text)
        except ValueError:
            kwargs[name] = text
    return kwargs


_Args = TypeVar("_Args", bound="CommonArgs")


@dataclass
class CommonArgs:
    """What every algorithm can be told."""

    algorithm: ClassVar[str]
    """Its name on the command line."""
    default_obs: ClassVar[str]
    """What robot tasks show it unless told otherwise."""

    env_id: str = "RememberColor3-v0"
    """Which task; `mikasa list` prints those of robots, `mikasa list --suite base` the small environments."""
    seed: int = 1
    """Seeds the learner and the training environments."""
    total_timesteps: int = 600_000
    """Environment steps of training, all environments together."""
    num_envs: int = 64
    """Environments that are stepped together; under torchrun, in each process."""
    run_dir: Path | None = None
    """Where the run's files go, a new or empty folder; by default runs/<env-id>__<algorithm>__<seed>__<time>."""
    resume: Path | None = None
    """Folder of a run to go on with from its newest checkpoint, with the arguments it was started with."""
    preset: str = "auto"
    """Hyper-parameters for a family of tasks, by their name in presets.py; other options on the command line win. auto
    chooses by the task, none leaves all at their defaults."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the task's own as NAME=VALUE, such as arm=held delay_steps=20; evaluations and videos of the policy get
    them too."""
    init_from: Path | None = None
    """A policy to begin with instead of random weights: checkpoint.pt of another run of this algorithm, with networks and
    observations of the same sizes. Its normalisation comes with it. For a curriculum, or one task after another."""

    obs: str | None = None
    """What a robot task shows: state, objects+joints, rgb+joints, or other parts joined with '+'. By default state for
    PPO-MLP and objects+joints for PPO-LSTM. Of no meaning to other environments, which show what they show."""
    sim_backend: str = "auto"
    """Robot tasks: physics backend; auto takes the GPU where CUDA is there, else the batched CPU simulator."""
    control_mode: str = "pd_joint_delta_pos"
    """Robot tasks: the robot's controller."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
    """Robot tasks: the reward to learn from."""
    train_to_horizon: bool = True
    """Robot tasks: let training episodes go on after a success, to their time limit. The dense reward pays every step and
    most at success, so an episode that success ends pays less than one spent hovering beside it, and a policy learns to
    hover. Going on, success pays 1 a step for as long as it lasts. A failure still ends the episode, and so forfeits the
    rest. Evaluation always uses the task's own terminations."""
    stagger_groups: int = 8
    """Before learning, environments are reset in this many groups at different times, spread over one episode.
    Otherwise all of them would always be at the same t, and a rollout would hold one part of the task only."""

    num_steps: int = 64
    """Steps of each environment in one rollout."""
    num_minibatches: int = 8
    """Minibatches in an epoch; must divide num_envs x num_steps."""
    update_epochs: int = 8
    """Passes over a rollout in one update."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    anneal_lr: bool = True
    """Let the learning rate fall linearly to 0 over the run, so that the last policy is a settled one."""
    gamma: float = 0.9
    """Discount. The shaped reward needs no long view: 0.9 looks about 10 steps ahead."""
    gae_lambda: float = 0.9
    """Trace decay of the advantage estimate."""
    clip_range: float = 0.2
    """How far the probability ratio may leave 1 before its gradient stops."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    target_kl: float = 0.1
    """An update stops early once the policy has moved this far (approximate KL divergence); 0 switches this off."""
    normalize_advantages: bool = True
    """Give the advantages of each minibatch mean 0 and standard deviation 1."""
    normalize_obs: bool = True
    """Normalise observations by their running mean and standard deviation, which are kept in the checkpoint."""
    init_log_std: float = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""
    final_log_std: float | None = None
    """An upper bound on that logarithm which falls linearly from init_log_std to this at the end of the run; by default
    there is none. For tasks that ask the robot to come to rest, which wide exploration hardly ever lets it do."""
    device: str | None = None
    """Where the networks live; by default where the environment's tensors are."""
    compile: Literal["off", "on", "cuda-graphs"] = "off"
    """Compile the networks with torch.compile; cuda-graphs, on a GPU, records them as CUDA graphs too (its mode
    reduce-overhead). The first update then takes longer. On a CPU it needs a C++ compiler."""
    torch_threads: int = 0
    """Torch threads of an update; 0 means one per core. While the simulator runs, torch has one."""

    checkpoint_every: int = 100_000
    """Write a checkpoint that --resume can go on from each time so many environment steps have passed; 0 writes none.
    All environments begin new episodes then, as no simulator can be saved to the last bit: that way a run that was killed
    and resumed takes the same course as one that was not."""
    keep_checkpoints: int = 2
    """How many of these checkpoints are kept, the newest ones."""
    eval_every: int = 100_000
    """Evaluate each time so many environment steps have passed; 0 leaves the final evaluation only."""
    eval_episodes: int = 100
    """Episodes of each evaluation."""
    eval_num_envs: int = 50
    """Environments of the evaluation; the episodes are the same whatever the number."""
    eval_seed: int = 1_000_000
    """Episode k of an evaluation during training has the seed eval_seed + k."""
    final_eval_seed: int = 2_000_000
    """The same for the final evaluation: other episodes than those by which best.pt was chosen."""
    video: bool = True
    """Film the final policy, where the machine can draw."""
    video_episodes: int = 4
    """Episodes in the video, side by side."""

    track: bool = False
    """Log to Weights & Biases as well."""
    wandb_project: str = "mikasa"
    """Its project."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """Whether Weights & Biases may use the network; offline runs can be sent later with `wandb sync`."""

    @property
    def batch_size(self) -> int:
        """Transitions in one rollout, those of all processes together."""
        return self.num_envs * self.num_steps * team_size()

    def check(self) -> None:
        """Raises ``ArgumentError`` where a value cannot work, before anything has been made."""
        for minimum, names in (
            (1, "num_envs num_steps num_minibatches update_epochs stagger_groups keep_checkpoints"),
            (1, "eval_episodes eval_num_envs video_episodes"),
            (0, "seed eval_every checkpoint_every eval_seed final_eval_seed torch_threads"),
            (0, "entropy_coef value_coef target_kl"),
        ):
            require(self, names, functools.partial(operator.le, minimum), f"use at least {minimum}")
        require(self, "gamma gae_lambda", lambda value: 0.0 <= value <= 1.0, "use a value from 0 to 1")
        require(self, "learning_rate clip_range max_grad_norm", lambda value: value > 0.0, "use a value above 0")
        require(self, "init_log_std", lambda value: True, "use a number")
        if self.final_log_std is not None:
            require(self, "final_log_std", lambda value: value <= self.init_log_std, "use at most --init-log-std")
        self.check_minibatches()
        read_env_kwargs(self.env_kwargs)
        if self.total_timesteps < self.batch_size:
            raise ArgumentError(
                f"--total-timesteps {self.total_timesteps} is less than one rollout of {self.batch_size} steps; "
                f"use at least {self.batch_size}, or fewer --num-envs or --num-steps"
            )
        require(self, "device", device_works, "use cpu, or leave it out")
        if self.compile == "cuda-graphs" and not torch.cuda.is_available():
            raise ArgumentError("--compile cuda-graphs needs a GPU, and torch sees none; use on or off")
        if self.track:
            importlib.import_module("wandb")  # where it is missing, that comes out before there is a run folder

    def check_minibatches(self) -> None:
        """Raises ``ArgumentError`` where a rollout cannot be shared out to minibatches."""
        raise NotImplementedError

    def resolved_run_dir(self) -> Path:
        """The folder of the run; a default one carries the time, so ask once."""
        if self.run_dir is not None:
            return self.run_dir
        return Path("runs") / f"{self.env_id}__{self.algorithm}__{self.seed}__{time.strftime('%Y%m%d-%H%M%S')}"

    def plain(self) -> dict[str, Any]:
        """All arguments as JSON-ready values."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def parse_plain(cls: type[_Args], plain: Mapping[str, Any]) -> _Args:
        """From what `plain` gave."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        for name in ("run_dir", "resume", "init_from"):  # runs of former versions have not all
            values[name] = None if values.get(name) is None else Path(values[name])
        return cls(**values)
