"""What a run is, whatever the algorithm: environments, the training loop, evaluations, checkpoints, files.

An algorithm is a `Learner`; see `ppo_mlp` and `ppo_lstm`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import functools
import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor

from .arguments import ArgumentError, CommonArgs, read_env_kwargs
from .checkpoints import (
    PPO_LSTM,
    PPO_MLP,
    CheckpointError,
    Checkpoints,
    Policy,
    load_checkpoint,
    save_policy,
    write_atomically,
)
from .environments import (
    LONGEST,
    ContinueAfterSuccess,
    EnvFactory,
    GymnasiumVectorEnv,
    check_env_id,
    is_robot_task,
    make_env,
    make_gymnasium_env,
    reset_with,
    stagger,
)
from .evaluation import Evaluation, evaluate, film, find_horizon, torch_threads
from .loggers import (
    EpisodeStats,
    ProgressBar,
    RunLogger,
    claim_run_dir,
    configure_logging,
    provenance,
    require_free,
    sole_writer,
)
from .networks import ActorCritic
from .presets import choose_preset
from .spaces import Obs
from .team import Team, join_team, team_size

__all__ = ["Batch", "Learner", "LearnerFactory", "Setting", "env_factory", "run_command", "train"]

SHOWN = ("steps_per_second", "train/return", "train/success_once")  # beside the progress bar

log = logging.getLogger(__name__)

Args = TypeVar("Args", bound=CommonArgs)


class Batch(Protocol):
    """What a learner learns from at a time."""

    @property
    def obs(self) -> Obs:
        """(S, N, …) raw."""

    @property
    def last_obs(self) -> Obs:
        """(N, …), where the next batch goes on."""


@dataclasses.dataclass
class Setting:
    """What a learner works with."""

    observation_space: gym.Space[Any]  # that of one environment
    action_space: gym.Space[Any]  # likewise
    num_envs: int  # in this process
    device: torch.device
    generator: torch.Generator  # of actions and minibatches
    team: Team


class Learner(Protocol):
    """An algorithm, with the policy that it trains."""

    optimizer: torch.optim.Optimizer

    @property
    def policy(self) -> Policy:
        """The policy, on its device."""

    def begin(self, starts: Tensor) -> None:
        """Is told in which environments (N,) bool an episode begins with the observation that comes next."""

    def explore(self, obs: Obs) -> Tensor:
        """Plays on without learning: actions (N, A) as the environment takes them, for observations (N, …)."""

    def rollout(self, env: Any, obs: Obs, stats: EpisodeStats) -> Any:
        """Plays from ``obs`` (N, …) on and returns a `Batch`."""

    def update(self, batch: Any) -> dict[str, float]:
        """Learns from a batch; returns figures for the log."""

    def player(self) -> tuple[Callable[[Any], Tensor], Callable[[], None]]:
        """What acts in an evaluation, and what has to be called before each round of episodes."""


LearnerFactory = Callable[[Any, Setting], Learner]


def train(
    args: CommonArgs,
    env_factory: EnvFactory,
    make_learner: LearnerFactory,
    command: Sequence[str] = (),
    team: Team | None = None,
) -> dict[str, Any]:
    """Trains, evaluates and fills the run folder.

    Args:
        args: a run that is to go on has its folder in ``resume``, and its own arguments.
        env_factory: makes environments for training and for evaluation.
        make_learner: makes the algorithm.
        command: the command line, to record.
        team: those who train together.

    Returns:
        What ``final_eval.json`` holds; {} in processes of a team that do not lead it.

    Raises:
        ArgumentError, FileExistsError: an argument cannot be used; nothing has been written.
        CheckpointError: the run cannot go on from its checkpoint, or a checkpoint cannot be written.
    """
    team = team or Team()
    args.check()
    with contextlib.ExitStack() as until_written:
        # Before the checkpoint to go on from is read: a process that still trains there would write newer ones.
        if team.leads and args.resume is not None and args.resume.is_dir():
            until_written.enter_context(sole_writer(args.resume))
        return _train(args, env_factory, make_learner, command, team, until_written)


def _train(
    args: CommonArgs,
    env_factory: EnvFactory,
    make_learner: LearnerFactory,
    command: Sequence[str],
    team: Team,
    until_written: contextlib.ExitStack,
) -> dict[str, Any]:
    """``train``, with what is to be held until the last file of the run is written."""
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    saved = None if args.resume is None else _saved_run(args, args.resume)
    run_dir = args.resolved_run_dir() if args.resume is None else args.resume
    if saved is None and team.leads:
        require_free(run_dir)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            raw_env = stack.enter_context(contextlib.closing(env_factory(args.num_envs, None)))
            eval_env = None
            if team.leads:
                eval_env = stack.enter_context(contextlib.closing(env_factory(args.eval_num_envs, None)))
        except (RuntimeError, ValueError, gym.error.Error) as error:
            raise ArgumentError(f"cannot make --env-id {args.env_id}: {error}") from error
        env: Any = raw_env
        if not isinstance(raw_env, GymnasiumVectorEnv):
            wrapped = ContinueAfterSuccess(raw_env) if args.train_to_horizon else raw_env
            env = ManiSkillVectorEnv(wrapped, record_metrics=True)
        # The simulator has threads of its own; torch's would only take the cores away from them.
        stack.enter_context(torch_threads(1))
        run = _Run(args, env, find_horizon(raw_env), eval_env, make_learner, run_dir, team)
        if saved is not None:
            run.restore(saved)
        elif args.init_from is not None:
            run.begin_with(args.init_from)
        if team.leads:
            if saved is None:
                claim_run_dir(run_dir)
                until_written.enter_context(sole_writer(run_dir))
            log.info("run folder: %s", run_dir)
            wandb = {"project": args.wandb_project, "mode": args.wandb_mode} if args.track else None
            run.logger = RunLogger(run_dir, args.plain(), wandb, None if saved is None else saved["step"])
            stack.callback(run.logger.close)
        run.learn()
        if not team.leads:
            return {}
        final = run.evaluate(args.final_eval_seed)
    result = {
        "env_id": args.env_id,
        "algorithm": args.algorithm,
        "seed": args.seed,
        "training_steps": run.step,
        "wall_time_s": round(run.seconds_before + time.monotonic() - start, 1),
        "final": {"first_seed": args.final_eval_seed, "episodes": args.eval_episodes, **final.summary()},
        "best_during_training": run.best,
        "args": args.plain(),
        **provenance(command),
    }
    write_atomically(run_dir / "final_eval.json", (json.dumps(result, indent=2) + "\n").encode())
    log.info("final evaluation, %s", final.describe())
    if args.video:
        act, begin = run.learner.player()
        film(
            act,
            env_factory,
            run_dir / "video.mp4",
            episodes=args.video_episodes,
            first_seed=args.final_eval_seed,
            device=run.device,
            begin=begin,
        )
    log.info("done in %.0f s: %s", time.monotonic() - start, run_dir)
    return result


class _Run:
    """The state of a run: learner, steps done, the best evaluation so far."""

    def __init__(
        self,
        args: CommonArgs,
        env: Any,
        horizon: int,
        eval_env: Any,
        make_learner: LearnerFactory,
        run_dir: Path,
        team: Team,
    ) -> None:
        self.args, self.env, self.eval_env, self.run_dir = args, env, eval_env, run_dir
        self.logger: RunLogger | None = None
        self.team = team
        self.horizon = horizon
        self.device = torch.device(args.device) if args.device else env.device
        torch.manual_seed(args.seed)  # initial weights
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        setting = Setting(
            env.single_observation_space, env.single_action_space, args.num_envs, self.device, self.generator, team
        )
        try:
            self.learner = make_learner(args, setting)
        except ValueError as error:
            raise ArgumentError(f"--env-id {args.env_id}: {error}") from error
        self.policy: Policy = self.learner.policy
        if args.compile == "cuda-graphs" and self.device.type != "cuda":
            raise ArgumentError(
                f"--compile cuda-graphs needs the networks on a GPU, not on {self.device}; use on or off"
            )
        if args.compile != "off" and self.device.type == "cpu" and not _finds_compiler():
            raise ArgumentError(
                "--compile on needs a C++ compiler on a CPU: install g++, name yours in CXX, or use off"
            )
        if args.compile != "off":
            self.policy.compile_parts(args.compile == "cuda-graphs")
        self.checkpoints = Checkpoints(run_dir, args.keep_checkpoints)
        self.stats = EpisodeStats()
        self.step = 0
        self.updates = 0
        self.best: dict[str, float] | None = None
        self.best_score = -math.inf
        self.seconds_before = 0.0
        self.start = time.monotonic()

    def learn(self) -> None:
        """Trains up to the last step."""
        args, team, optimizer = self.args, self.team, self.learner.optimizer
        update_threads = args.torch_threads or max(1, (os.cpu_count() or 1) // team.size)
        next_eval = _next_multiple(self.step, args.eval_every)
        next_checkpoint = _next_multiple(self.step, args.checkpoint_every)
        bar = ProgressBar(args.total_timesteps) if team.leads else None
        if self.step == 0 and args.checkpoint_every:
            self.save_checkpoint()
        try:
            obs = self.begin_episodes() if self.step < args.total_timesteps else torch.empty(0)
            while self.step < args.total_timesteps:
                clock = [time.monotonic()]
                if args.final_log_std is not None:
                    done = self.step / args.total_timesteps
                    self.policy.limit_log_std((1 - done) * args.init_log_std + done * args.final_log_std)
                batch = self.learner.rollout(self.env, obs, self.stats)
                obs = batch.last_obs
                clock.append(time.monotonic())
                if args.anneal_lr:
                    optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - self.step / args.total_timesteps)
                with torch_threads(update_threads):
                    losses = self.learner.update(batch)
                self.policy.update_normalizer(batch.obs, team)
                clock.append(time.monotonic())
                self.step += args.batch_size
                self.updates += 1
                row = {
                    "step": float(self.step),
                    "wall_time_s": self.seconds_before + clock[2] - self.start,
                    "steps_per_second": args.batch_size / (clock[2] - clock[0]),
                    "rollout_s": clock[1] - clock[0],
                    "update_s": clock[2] - clock[1],
                    **self.stats.pop(),
                    **losses,
                    "learning_rate": optimizer.param_groups[0]["lr"],
                }
                if self.step >= next_eval:
                    next_eval = _next_multiple(self.step, args.eval_every)
                    if team.leads:
                        row |= self.evaluate_and_save()
                    team.wait()
                if self.logger is not None and bar is not None:
                    self.logger.write(row)
                    bar.update(self.step, {name.rpartition("/")[2]: row[name] for name in SHOWN if name in row})
                over = self.step >= args.total_timesteps
                if self.step >= next_checkpoint or (over and args.checkpoint_every):
                    next_checkpoint = _next_multiple(self.step, args.checkpoint_every)
                    self.save_checkpoint()
                    if not over:
                        obs = self.begin_episodes()
            self.save_policy("checkpoint.pt")
        except KeyboardInterrupt:
            self.save_policy("checkpoint.pt")
            raise
        finally:
            if bar is not None:
                bar.close()

    def begin_episodes(self) -> Obs:
        """New episodes in all environments, at different times; which ones follows from the seed and the update."""
        seed = self.args.seed
        if self.updates:
            seed = int(np.random.SeedSequence([seed, self.updates]).generate_state(1)[0]) % 2**31
        obs, _ = reset_with(self.env, seed, self.team)
        self.learner.begin(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device))
        # where the length of an episode is not known, they cannot be spread over it
        groups = self.args.stagger_groups if self.horizon < LONGEST else 1
        obs, seen = stagger(self.env, self.learner.explore, obs, groups, self.horizon, self.learner.begin, self.team)
        if not self.updates:
            self.policy.update_normalizer(_to(seen, self.device), self.team)
        if self.team.leads:
            uncounted = (_length(seen) - 1) * self.args.num_envs * self.team.size
            log.info("staggering the environments took %d uncounted steps", uncounted)
        return obs

    def evaluate(self, first_seed: int) -> Evaluation:
        """Plays the policy in the episodes from ``first_seed`` on."""
        act, begin = self.learner.player()
        return evaluate(
            act,
            self.eval_env,
            episodes=self.args.eval_episodes,
            first_seed=first_seed,
            device=self.device,
            begin=begin,
        )

    def evaluate_and_save(self) -> dict[str, float]:
        """Evaluates, saves the policy, and once more where it is the best so far; returns figures for the log."""
        evaluation = self.evaluate(self.args.eval_seed)
        log.info("step %d, %s", self.step, evaluation.describe())
        summary = evaluation.summary()
        self.save_policy("checkpoint.pt")
        # Among equals the later one: it has seen more.
        if evaluation.score >= self.best_score:
            self.best_score = evaluation.score
            self.best = {"step": self.step, **summary}
            self.save_policy("best.pt")
        return {f"eval/{name}": value for name, value in summary.items()}

    def save_policy(self, name: str) -> None:
        """Writes the policy alone, to be loaded and played."""
        if self.team.leads:
            path = self.run_dir / name
            save_policy(path, self.policy, env_id=self.args.env_id, step=self.step, args=self.args.plain())

    def save_checkpoint(self) -> None:
        """Writes all that the run can go on from."""
        if not self.team.leads:
            return
        self.checkpoints.save(
            self.step,
            {
                "algorithm": self.args.algorithm,
                "args": {**self.args.plain(), "resume": None},
                "team_size": self.team.size,
                "updates": self.updates,
                "policy": self.policy.state_dict(),
                "optimizer": self.learner.optimizer.state_dict(),
                "generator": self.generator.get_state(),
                "episodes": list(self.stats.episodes),
                "best": self.best,
                "best_score": self.best_score,
                "seconds": self.seconds_before + time.monotonic() - self.start,
            },
        )

    def begin_with(self, path: Path) -> None:
        """Takes the weights of a policy that another run left.

        Raises ArgumentError where its networks are others, CheckpointError where the file holds no such policy.
        """
        try:
            payload = load_checkpoint(path, PPO_MLP if isinstance(self.policy, ActorCritic) else PPO_LSTM, self.device)
        except FileNotFoundError as error:
            raise ArgumentError(f"--init-from {path}: there is no such file; name checkpoint.pt of a run") from error
        own, other = self.policy.plain(), payload["network"]
        for name in own:
            if own[name] != other.get(name):
                raise ArgumentError(
                    f"--init-from {path} has {name} {other.get(name)}, and this run {own[name]}; "
                    "both need networks and observations of the same sizes"
                )
        self.policy.load_state_dict(payload["state_dict"])
        log.info("begins with the policy of %s, trained on %s for %d steps", path, payload["env_id"], payload["step"])

    def restore(self, saved: dict[str, Any]) -> None:
        """Takes up what `save_checkpoint` wrote."""
        self.policy.load_state_dict(saved["policy"])
        # a copy: the optimiser would go on in the tensors that were loaded
        self.learner.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.generator.set_state(saved["generator"])
        self.stats.episodes.extend(saved["episodes"])
        self.step, self.updates, self.seconds_before = saved["step"], saved["updates"], saved["seconds"]
        self.best, self.best_score = saved["best"], saved["best_score"]


def _saved_run(args: CommonArgs, run_dir: Path) -> dict[str, Any]:
    if (run_dir / "final_eval.json").exists():
        raise ArgumentError(f"--resume {run_dir} is complete: final_eval.json is there; start a new run instead")
    saved = Checkpoints.load_newest(run_dir)
    if saved["algorithm"] != args.algorithm:
        raise ArgumentError(f"--resume {run_dir} is a run of {saved['algorithm']}, not of {args.algorithm}")
    if saved["team_size"] != team_size():
        raise ArgumentError(f"--resume {run_dir} was started by {saved['team_size']} processes, not {team_size()}")
    return saved


def _finds_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _next_multiple(step: int, every: int) -> float:
    return (step // every + 1) * every if every else math.inf


def _to(obs: Obs, device: torch.device) -> Obs:
    return {k: v.to(device) for k, v in obs.items()} if isinstance(obs, dict) else obs.to(device)


def _length(obs: Obs) -> int:
    return len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)


def parse_args(args_type: type[Args], argv: Sequence[str], program: str) -> Args:
    """The arguments of a command line: of its own, of the preset that fits, or of the run that is to go on.

    Raises ArgumentError or CheckpointError where there is no such preset or run.
    """
    args = tyro.cli(args_type, args=argv, prog=program)
    if args.resume is None:
        preset = choose_preset(args.preset, args.env_id, args.obs, args.algorithm)
        return tyro.cli(args_type, args=argv, prog=program, default=args_type(**preset))
    saved = args_type.parse_plain(_saved_run(args, args.resume)["args"])
    asked = tyro.cli(args_type, args=argv, prog=program, default=saved)
    for field in dataclasses.fields(args_type):
        was, now = getattr(saved, field.name), getattr(asked, field.name)
        if was != now and field.name != "resume":
            option = f"--{field.name.replace('_', '-')}"
            raise ArgumentError(
                f"{option} {now} is not what --resume {args.resume} was started with, {was}; leave it out"
            )
    return asked


def run_command(
    args_type: type[Args],
    run: Callable[[Args, EnvFactory, Sequence[str], Team], Any],
    argv: Sequence[str] | None,
    module: str,
) -> int:
    """The command line of an algorithm, whose ``run`` trains; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    program = f"python -m {module}"
    configure_logging()
    try:
        with join_team() as team:
            args = parse_args(args_type, argv, program)
            args.check()
            if args.resume is None and team.leads:
                require_free(args.resolved_run_dir())
            check_env_id(args.env_id)
            run(args, env_factory(args), [*program.split(), *argv], team)
    except (ArgumentError, CheckpointError, FileExistsError) as error:
        log.error("%s", error)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.error("%s; make room, then go on with --resume", error)
        return 2
    except KeyboardInterrupt:
        log.error("interrupted; the run folder keeps what there was by then")
        return 130
    return 0


def env_factory(args: CommonArgs) -> EnvFactory:
    """What makes the environments of a run. Raises ``ArgumentError`` for options that its kind of environment has not."""
    if is_robot_task(args.env_id):
        return functools.partial(
            make_env,
            env_id=args.env_id,
            reward_mode=args.reward_mode,
            control_mode=args.control_mode,
            sim_backend=args.sim_backend,
            obs_mode=args.obs or args.default_obs,
            env_kwargs=read_env_kwargs(args.env_kwargs),
        )
    if args.obs is not None:
        raise ArgumentError(f"--obs {args.obs} is for robot tasks; {args.env_id} shows what it shows: leave it out")
    return functools.partial(make_gymnasium_env, env_id=args.env_id, env_kwargs=read_env_kwargs(args.env_kwargs))
