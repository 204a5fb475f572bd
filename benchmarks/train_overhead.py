"""Steps that training simulates besides those that it learns from: staggering, checkpoints and evaluations.

``python benchmarks/train_overhead.py`` trains PPO-MLP with the default schedule of checkpoints and evaluations, and counts
every step of every environment by what it was for. The environments are counters of steps with episodes as long as those of
RememberColor3-v0, so that 4096 of them can be trained here, and the network is tiny: neither changes what is simulated. A
step of N environments counts as N. The final evaluation is apart, as every run has one. The goal is an overhead of at most
3 %.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from tables import in_markdown, plain, write_csv, write_text
from torch import Tensor

from mikasa_robo.baselines.registry import get_algorithm
from mikasa_robo.baselines.training import train

GOAL = 0.03
HEADER = ("envs", "learnt from", "thrown away", "evaluation", "resets of all", "final evaluation", "overhead", "≤ 3 %")
OBS, ACTIONS = 4, 2


@dataclass
class Args:
    """Counts the simulated steps of training runs by purpose."""

    num_envs: tuple[int, ...] = (64, 1024, 4096)
    """Numbers of environments; a run for each."""
    total_timesteps: int = 600_000
    """Environment steps of training; a run ends with the first whole rollout that reaches them."""
    horizon: int = 60
    """Steps of an episode."""
    exact_resume: bool = False
    """Train with --exact-resume."""
    eval_every: int | None = None
    """--eval-every of the runs, by default its default."""
    csv: Path | None = None
    """Also write the table to this CSV file."""
    markdown: Path | None = None
    """Also write the table to this Markdown file."""


class StepCounter(gym.Env[Tensor, Tensor]):
    """N episodes of which nothing but the steps counts; ManiSkill's conventions, no simulator.

    Args:
        num_envs: N.
        horizon: steps of an episode.
        final_seed: first seed of the final evaluation; None for an environment that trains.
    """

    device = torch.device("cpu")
    reconfiguration_freq = 0

    def __init__(self, num_envs: int, horizon: int, final_seed: int | None) -> None:
        self.num_envs, self.horizon, self._final_seed = num_envs, horizon, final_seed
        self.single_observation_space = gym.spaces.Box(-1.0, 1.0, (OBS,))
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (ACTIONS,))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.elapsed_steps = torch.zeros(num_envs, dtype=torch.long)
        self.counts: Counter[str] = Counter()
        self._purpose = "training"

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Start new episodes, in all environments or in ``options["env_idx"]``."""
        if options is None:
            self.counts["resets of all"] += 1
            self.elapsed_steps[:] = 0
        else:
            self.elapsed_steps[options["env_idx"]] = 0
        if self._final_seed is not None and seed is not None:
            self._purpose = "final" if seed[0] >= self._final_seed else "evaluation"
        return torch.rand(self.num_envs, OBS), {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:  # type: ignore[override]
        """Count a step of all environments."""
        self.counts[self._purpose] += self.num_envs
        self.elapsed_steps += 1
        over = self.elapsed_steps >= self.horizon
        return torch.rand(self.num_envs, OBS), action[:, 0], torch.zeros_like(over), over, {}


def measure(num_envs: int, args: Args) -> tuple[str, ...]:
    """A row of the table: a whole run, counted."""
    made: list[StepCounter] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen: Any = get_algorithm("ppo-mlp").load().args_type
        chosen = chosen(
            num_envs=num_envs,
            total_timesteps=args.total_timesteps,
            exact_resume=args.exact_resume,
            eval_every=args.eval_every,
            hidden_sizes=(4,),
            update_epochs=1,
            num_minibatches=1,
            torch_threads=1,
            video=False,
            run_dir=Path(folder) / "run",
        )

        def make(n: int, render_mode: str | None) -> StepCounter:
            made.append(StepCounter(n, args.horizon, chosen.final_eval_seed if made else None))
            return made[-1]

        learnt = train(chosen, make)["training_steps"]
    training, evaluation = (env.counts for env in made)
    thrown, evaluated = training["training"] - learnt, evaluation["evaluation"]
    overhead = (thrown + evaluated) / (training["training"] + evaluated)
    counts = (learnt, thrown, evaluated, training["resets of all"], evaluation["final"])
    return (str(num_envs), *map(str, counts), f"{overhead:.2%}", "yes" if overhead <= GOAL else "NO")


def problem(args: Args) -> str | None:
    """What is wrong with the arguments, and the fix."""
    for name in ("num_envs", "total_timesteps", "horizon"):
        value = getattr(args, name)
        if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
            return f"--{name.replace('_', '-')} {value} cannot be used; use at least 1"
    least = 64 * max(args.num_envs)
    if args.total_timesteps < least:
        return f"--total-timesteps {args.total_timesteps} is less than one rollout; use at least {least}"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    args = tyro.cli(Args, args=argv, description=__doc__)
    wrong = problem(args)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = [HEADER, *(measure(n, args) for n in args.num_envs)]
    print(plain(rows))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        title = (
            f"Steps that PPO-MLP simulates by default in a run of {args.total_timesteps:,} steps, by purpose; episodes of "
            f"{args.horizon} steps\n(`python benchmarks/train_overhead.py`). The environments count steps and simulate "
            "nothing; the schedule of a run\ndepends on their number and on the length of an episode only. The final "
            "evaluation is not part of the overhead.\n"
        )
        write_text(args.markdown, f"{title}\n{in_markdown(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
