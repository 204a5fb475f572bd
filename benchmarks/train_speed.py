"""Speed of PPO training, rollout and update together, compared with the alternatives on a CPU.

``python benchmarks/train_speed.py`` trains on RememberColor3-v0 from `state`: PPO-MLP and PPO-LSTM of this project with 64
environments, simulated in the process that trains and in two others (--num-workers 2); the same PPO-MLP with one environment
in ManiSkill's own simulation, which is how ManiSkill's PPO example runs on a CPU; Stable-Baselines3's PPO and sb3-contrib's
RecurrentPPO with one environment (DummyVecEnv), and with 2 and 4 processes (SubprocVecEnv). All use the same number of
transitions, minibatches and epochs in an update, and networks of equal sizes. Every round measures all of them in turn, so
that a machine that is busy for a while slows down all of them alike. A ratio is the median over the rounds. Each is measured
with one torch thread and with two, because a second thread speeds up some and slows down others; the better result counts.
Speeds are over the wall time after the first update, logging included.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from tables import in_markdown, plain, write_csv, write_text

from mikasa_robo.baselines.command import env_factory
from mikasa_robo.baselines.evaluation import torch_threads
from mikasa_robo.baselines.registry import get_algorithm
from mikasa_robo.baselines.training import train

TASK = "RememberColor3-v0"
GOALS = {"ppo-mlp": 7.0, "ppo-lstm": 8.0}
"""The best of ours should be so many times as fast as the best of the others."""
OURS = "ours"
HEADER = ("algorithm", "trained by", "envs", "torch threads", "env-steps/s", "slowest round", "ours is x as fast")
PIP = "pip install 'mikasa-suite[bench]'"


@dataclass
class Args:
    """Measures env-steps/s of training: ours, ManiSkill's way with one environment, and Stable-Baselines3."""

    rounds: int = 3
    """Measurements of each."""
    rollouts: int = 2
    """Rollouts with their updates in a measurement, after one to warm up."""
    num_envs: int = 64
    """Environments of this project's training."""
    transitions: int = 4096
    """Transitions of a rollout; a multiple of num_envs, of 4, and of the minibatches (8; PPO-LSTM: its own default)."""
    processes: tuple[int, ...] = (0, 2, 4)
    """Numbers of processes of Stable-Baselines3, with an environment each; 0 is one environment in the main process."""
    torch_threads: tuple[int, ...] = (1, 2)
    """Numbers of torch threads; each is measured, and the best one counts."""
    algorithms: tuple[str, ...] = ("ppo-mlp", "ppo-lstm")
    """Algorithms to measure."""
    csv: Path | None = None
    """Also write the table to this CSV file."""
    markdown: Path | None = None
    """Also write the table to this Markdown file."""


@dataclass
class Contender:
    """A way of training to measure."""

    algorithm: str
    name: str
    envs: int
    turn: Callable[[int], float]  # trains with so many torch threads and returns its env-steps/s
    rates: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)  # with which these rates were reached

    def take_turn(self, choices: Sequence[int]) -> None:
        """Trains once with each number of torch threads, and keeps the better rate."""
        found = {}
        for threads in choices:
            with torch_threads(threads):
                found[threads] = self.turn(threads)
        best = max(found, key=found.__getitem__)
        self.rates.append(found[best])
        self.threads.append(best)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and logging of the libraries, for a block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


# ---- ours ---------------------------------------------------------------------------------------------------------------


def settings(args: Args, algorithm: str, num_envs: int, threads: int = 1, workers: int | None = None) -> Any:
    """The arguments of our runs: the defaults, without what stops an update early or plays other episodes."""
    return (
        get_algorithm(algorithm)
        .load()
        .args_type(
            env_id=TASK,
            obs="state",
            num_workers=workers,
            preset="none",
            num_envs=num_envs,
            num_steps=args.transitions // num_envs,
            total_timesteps=args.transitions * (args.rollouts + 1),
            target_kl=0.0,
            train_to_horizon=False,
            sim_backend="physx_cpu",
            eval_every=0,
            checkpoint_every=0,
            eval_episodes=1,
            eval_num_envs=1,
            video=False,
            torch_threads=threads,
        )
    )


def ours(args: Args, algorithm: str, num_envs: int, workers: int | None = None) -> Callable[[int], float]:
    """A turn of ours: a short training run, of which progress.csv tells the wall time after each update."""

    def turn(threads: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            chosen = settings(args, algorithm, num_envs, threads, workers)
            chosen.run_dir = Path(folder) / "run"
            train(chosen, env_factory(chosen))
            with (chosen.run_dir / "progress.csv").open(encoding="utf-8", newline="") as file:
                ends = [float(row["wall_time_s"]) for row in csv.DictReader(file)]
        return args.rollouts * args.transitions / (ends[-1] - ends[0])

    return turn


# ---- Stable-Baselines3 --------------------------------------------------------------------------------------------------


class SingleEnv:
    """Makes one environment of a vector of Stable-Baselines3; picklable, so that a fresh process can do it.

    Args:
        fresh: whether it will be made in a process of its own.
    """

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh

    def __call__(self) -> gym.Env[Any, Any]:
        if self.fresh:
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            torch.set_num_threads(1)
        from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

        import mikasa_robo  # noqa: F401  registers the task

        env = gym.make(TASK, num_envs=1, obs_mode="state", reward_mode="normalized_dense", sim_backend="physx_cpu")
        return CPUGymWrapper(env)


def stable_baselines(args: Args, algorithm: str, processes: int, stack: contextlib.ExitStack) -> Callable[[int], float]:
    """A turn of theirs; 0 processes is a DummyVecEnv of one environment."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class Encoder(BaseFeaturesExtractor):
        """The layers before the LSTM that ours has."""

        def __init__(self, observation_space: Any, widths: Sequence[int]) -> None:
            super().__init__(observation_space, widths[-1])
            sizes = [observation_space.shape[0], *widths]
            pairs = itertools.pairwise(sizes)
            self.layers = torch.nn.Sequential(*(m for a, b in pairs for m in (torch.nn.Linear(a, b), torch.nn.Tanh())))

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layers(obs)

    class Clock(BaseCallback):
        """Notes when each rollout begins; an update ends where the next one begins."""

        def __init__(self) -> None:
            super().__init__()
            self.begins: list[float] = []

        def _on_rollout_start(self) -> None:
            self.begins.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    chosen = settings(args, algorithm, args.num_envs)
    envs = max(1, processes)
    env = (
        SubprocVecEnv([SingleEnv(True)] * envs, start_method="spawn") if processes else DummyVecEnv([SingleEnv(False)])
    )
    stack.callback(env.close)
    common: dict[str, Any] = {
        "n_steps": args.transitions // envs,
        "batch_size": args.transitions // chosen.num_minibatches,
        "n_epochs": chosen.update_epochs,
        "learning_rate": chosen.learning_rate,
        "gamma": chosen.gamma,
        "gae_lambda": chosen.gae_lambda,
        "device": "cpu",
        "seed": 0,
    }
    if algorithm == "ppo-mlp":
        widths = list(chosen.hidden_sizes)
        policy: dict[str, Any] = {"net_arch": {"pi": widths, "vf": widths}, "activation_fn": torch.nn.Tanh}
        model: Any = PPO("MlpPolicy", env, policy_kwargs=policy, **common)
    else:
        from sb3_contrib import RecurrentPPO

        heads = list(chosen.head_sizes)
        policy = {
            "net_arch": {"pi": heads, "vf": heads},
            "activation_fn": torch.nn.Tanh,
            "lstm_hidden_size": chosen.lstm_size,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "features_extractor_class": Encoder,
            "features_extractor_kwargs": {"widths": list(chosen.encoder_sizes)},
        }
        model = RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy, **common)

    def turn(threads: int) -> float:  # torch has been told already
        clock = Clock()
        model.learn(args.transitions * (args.rollouts + 1), callback=clock, reset_num_timesteps=False)
        end = time.perf_counter()
        return args.rollouts * args.transitions / (end - clock.begins[1])

    return turn


# ---- the measurement ----------------------------------------------------------------------------------------------------


def contenders(args: Args, algorithm: str, stack: contextlib.ExitStack) -> list[Contender]:
    """Ours first; the others' names begin with that of their project."""
    theirs = "Stable-Baselines3 PPO" if algorithm == "ppo-mlp" else "sb3-contrib RecurrentPPO"
    found = [Contender(algorithm, f"{OURS}, batched CPU", args.num_envs, ours(args, algorithm, args.num_envs))]
    name = f"{OURS}, 2 processes of batched CPU"
    found.append(Contender(algorithm, name, args.num_envs, ours(args, algorithm, args.num_envs, 2)))
    if algorithm == "ppo-mlp":
        name = "ManiSkill, num_envs=1 (the same loop)"
        found.append(Contender(algorithm, name, 1, ours(args, algorithm, 1)))
    for processes in args.processes:
        kind = f"SubprocVecEnv, {processes} processes" if processes else "DummyVecEnv"
        turn = stable_baselines(args, algorithm, processes, stack)
        found.append(Contender(algorithm, f"{theirs}, {kind}", max(1, processes), turn))
    return found


def ratio(first: Contender, other: Contender) -> float:
    """Median over the rounds of how much faster the first one was."""
    return statistics.median(a / b for a, b in zip(first.rates, other.rates, strict=True))


def table(groups: Sequence[Sequence[Contender]]) -> list[tuple[str, ...]]:
    """The header and a row for each contender."""
    rows: list[tuple[str, ...]] = [HEADER]
    for first, *others in groups:
        for c in (first, *others):
            times = f"{ratio(first, c):.2f}"
            threads = str(c.threads[c.rates.index(max(c.rates))])
            rates = f"{max(c.rates):.0f}", f"{min(c.rates):.0f}"
            rows.append((c.algorithm, c.name, str(c.envs), threads, *rates, times))
    return rows


def verdict(group: Sequence[Contender]) -> str:
    """Whether ours is fast enough."""
    own, others = ([c for c in group if c.name.startswith(OURS) == mine] for mine in (True, False))
    best = max(min(ratio(c, other) for other in others) for c in own)
    algorithm = group[0].algorithm
    goal = GOALS[algorithm]
    return f"{algorithm}: {best:.2f} x the best of the others (goal ≥ {goal:g}): {'yes' if best >= goal else 'NO'}"


def problem(args: Args) -> str | None:
    """What is wrong with the arguments, and the fix."""
    for name in ("rounds", "rollouts", "num_envs", "transitions"):
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')} {getattr(args, name)} cannot be used; use at least 1"
    if min(args.torch_threads, default=0) < 1:
        return f"--torch-threads {' '.join(map(str, args.torch_threads))} cannot be used; use numbers of at least 1"
    for algorithm in args.algorithms:
        if algorithm not in ("ppo-mlp", "ppo-lstm"):
            return f"--algorithms {algorithm} is not known; use ppo-mlp, ppo-lstm"
    if args.transitions % args.num_envs or args.transitions % 4:
        return f"--transitions {args.transitions} is not a multiple of --num-envs {args.num_envs} and of 4; use 4096 and 64"
    if not args.processes or min(args.processes) < 0 or any(args.transitions % max(1, n) for n in args.processes):
        given = " ".join(map(str, args.processes))
        return f"--processes {given} cannot be used; use numbers that divide --transitions {args.transitions}, or 0"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    args = tyro.cli(Args, args=argv, description=__doc__)
    missing = [name for name in ("stable_baselines3", "sb3_contrib") if importlib.util.find_spec(name) is None]
    wrong = f"{' and '.join(missing)} is not installed: {PIP}" if missing else problem(args)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    with quiet(), contextlib.ExitStack() as stack:
        groups = [contenders(args, algorithm, stack) for algorithm in args.algorithms]
        for i in range(args.rounds):
            for contender in (c for group in groups for c in group):
                contender.take_turn(args.torch_threads)
                print(f"round {i + 1}: {contender.name} {contender.rates[-1]:.0f} env-steps/s", file=sys.stderr)
    rows = table(groups)
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "mani-skill", "stable-baselines3"))
    cores = len(os.sched_getaffinity(0))
    print(
        f"\n{TASK}, state; rollouts of {args.transitions}; best of {args.rounds} rounds. {cores} cores; {versions}.\n"
    )
    print(plain(rows))
    for group in groups:
        print(verdict(group))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        write_text(args.markdown, in_markdown(rows, text_columns=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
