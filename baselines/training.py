"""A training run, whatever the algorithm: environments, the loop, evaluations, checkpoints, files.

An algorithm is a `protocol.Algorithm`; see `ppo_mlp` and `ppo_lstm`. The command line is in `command`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from mikasa_robo.checks import NaNActionError
from mikasa_robo.core.generators import continue_generator
from mikasa_robo.deprecation import deprecated_names
from mikasa_suite import finish_first

from .arguments import ArgumentError, CommonArgs, world_size
from .checkpoints import CheckpointError, Checkpoints, read_evaluation, require_finite, save_policy
from .distributed import DistContext
from .divergence import diverged
from .environments import EnvFactory, derived_seed, is_maniskill_task, reset_with
from .evaluation import Evaluation, EvaluationPlan, evaluate, film, in_eval_mode, plan_evaluations, torch_threads
from .files import write_atomically
from .loggers import EpisodeStats, ProgressBar, RunLogger, claim_run_dir, provenance, require_free, sole_writer
from .policy_network import PolicyNetwork
from .protocol import Algorithm, Setup
from .registry import RegistryError, get_algorithm
from .spaces import Obs
from .training_envs import TrainingEnvs, require_same_spaces
from .warm_start import start_from

__all__ = ["saved_run", "train"]

__getattr__ = deprecated_names(
    __name__,
    {
        "Setting": f"{__package__}.protocol:Setup",
        "Learner": f"{__package__}.protocol:Algorithm",
        "parse_args": f"{__package__}.command:parse_args",
        "env_factory": f"{__package__}.command:env_factory",
    },
)

EXACT_EPISODES = 20
"""Episodes of each environment between two checkpoints, below which ``--exact-resume`` warns of its price."""
PROGRESS_BAR_FIGURES = ("steps_per_second", "train/return", "train/success_once")

log = logging.getLogger(__name__)


def train(
    args: CommonArgs,
    env_factory: EnvFactory,
    command: Sequence[str] = (),
    dist: DistContext | None = None,
    train_env_factory: EnvFactory | None = None,
) -> dict[str, Any]:
    """Train, evaluate and fill the run folder.

    Args:
        args: the arguments of the registered algorithm ``args.algorithm``. To continue a run, they are the arguments that
            it was started with, and ``resume`` is its folder.
        env_factory: makes the environments for evaluation and video.
        command: the command line, for the provenance of the result.
        dist: this process among those that train together.
        train_env_factory: makes the environments for training, see ``--train-env-kwargs``; None: ``env_factory`` does.

    Returns:
        The content of ``final_eval.json``; {} in processes other than the main one.

    Raises:
        ArgumentError, FileExistsError: an argument cannot be used; nothing has been written.
        CheckpointError: the run cannot continue from its checkpoint, or a checkpoint cannot be written.
        FloatingPointError: a loss, or what the network gives, is infinite or NaN.
    """
    dist = dist or DistContext()
    args.check()
    if args.train_env_kwargs and train_env_factory is None:
        raise ArgumentError(
            f"--train-env-kwargs {' '.join(args.train_env_kwargs)}: give train() a train_env_factory for them"
        )
    with contextlib.ExitStack() as until_written:
        # Lock before reading the checkpoint: a process that still trains there would write newer ones.
        if dist.is_main and args.resume is not None and args.resume.is_dir():
            until_written.enter_context(sole_writer(args.resume))
        return _train(args, env_factory, train_env_factory or env_factory, command, dist, until_written)


def _train(
    args: CommonArgs,
    env_factory: EnvFactory,
    train_env_factory: EnvFactory,
    command: Sequence[str],
    dist: DistContext,
    until_written: contextlib.ExitStack,
) -> dict[str, Any]:
    """`train`; ``until_written`` holds the lock until the last file of the run is written."""
    saved = None if args.resume is None else saved_run(args.resume, args.algorithm)
    run_dir = args.default_run_dir() if args.resume is None else args.resume
    if saved is None and dist.is_main:
        require_free(run_dir)
    start = time.monotonic()
    made_by = provenance(command)  # of the code that is loaded: files may change until the end of the run
    with contextlib.ExitStack() as stack:
        try:
            step = 0 if saved is None else saved["step"]
            envs = TrainingEnvs(args, env_factory, train_env_factory, dist, step)
            stack.callback(envs.close)
            # The curriculum may have had episodes of another length, and a resumed run is evaluated as often as before.
            horizon = envs.horizon if saved is None else saved["horizon"] or envs.horizon
            plan = plan_evaluations(args, horizon)
            eval_env = None
            if dist.is_main:
                eval_env = stack.enter_context(contextlib.closing(env_factory(plan.num_envs, None)))
                if args.train_env_kwargs:
                    require_same_spaces(args, envs.raw, eval_env)
        except ArgumentError:
            raise
        except (RuntimeError, ValueError, gym.error.Error) as error:
            own = f" with --train-env-kwargs {' '.join(args.train_env_kwargs)}" if args.train_env_kwargs else ""
            raise ArgumentError(f"cannot make --env-id {args.env_id}{own}: {error}") from error
        # The simulator has its own threads; torch's would only take cores away from them.
        stack.enter_context(torch_threads(1))
        run = _Run(args, envs, eval_env, plan, run_dir, dist, start)
        if saved is not None:
            try:
                run.restore(saved)
            except ArgumentError:  # another dataset, which is no fault of the checkpoint
                raise
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"--resume {run_dir}: the newest checkpoint does not fit this run ({type(error).__name__}: {error}); "
                    "move it away to continue from an older one, or start a new run"
                ) from error
        elif args.init_from is not None:
            run.began_from = start_from(run.network, args, args.init_from, run.device)
        if dist.is_main:
            if saved is None:
                claim_run_dir(run_dir)
                until_written.enter_context(sole_writer(run_dir))
            log.info("run folder: %s", run_dir)
            if (
                args.exact_resume
                and 0 < args.checkpoint_every < EXACT_EPISODES * envs.horizon * args.num_envs * dist.size
            ):
                log.warning(
                    "--exact-resume breaks off all episodes each %d steps, of which one episode in each environment takes "
                    "%d; use a larger --checkpoint-every",
                    max(args.checkpoint_every, args.batch_size),
                    envs.horizon * args.num_envs * dist.size,
                )
            wandb = {"project": args.wandb_project, "mode": args.wandb_mode} if args.track else None
            try:
                run.logger = RunLogger(run_dir, args.to_dict(), wandb, None if saved is None else saved["step"])
            except ArgumentError:
                if saved is None:  # what was written so far would only stand in the way of the same command
                    shutil.rmtree(run_dir, ignore_errors=True)
                raise
            stack.callback(run.logger.close)
        with finish_first():  # an interrupted run saves its policy
            run.learn()
        if not dist.is_main:
            return {}
        final = run.evaluate(args.final_eval_seed, plan.final_episodes)
    result = {
        "env_id": args.env_id,
        "algorithm": args.algorithm,
        "seed": args.seed,
        "training_steps": run.step,
        "init_from": run.began_from,
        "dataset_sha256": getattr(run.algorithm, "dataset_digest", None),
        "wall_time_s": round(run.seconds(time.monotonic()), 1),
        "final": {
            "first_seed": args.final_eval_seed,
            "episodes": plan.final_episodes,
            "num_envs": plan.num_envs,
            **final.summary(),
        },
        "best_during_training": run.best,
        "args": args.to_dict(),
        **made_by,
    }
    write_atomically(run_dir / "final_eval.json", (json.dumps(result, indent=2) + "\n").encode())
    log.info("final evaluation, %s", final.describe())
    if args.video:
        video, policy = run_dir / "video.mp4", run.algorithm.eval_policy()
        first_seed = args.final_eval_seed
        with in_eval_mode(run.network):
            film(policy, env_factory, video, episodes=args.video_episodes, first_seed=first_seed, device=run.device)
    log.info("done in %.0f s: %s", time.monotonic() - start, run_dir)
    return result


def network_device(args: CommonArgs, env: Any, eval_env: Any) -> torch.device:
    """Where the networks of a run are.

    Args:
        args: of the run.
        env: the environments of training.
        eval_env: those of evaluations; None in a process that evaluates nothing.
    """
    if args.device:
        return torch.device(args.device)
    # Where nothing is played, training has one environment, which "auto" simulates on the CPU of a machine with a GPU.
    used = env if args.plays or eval_env is None else eval_env.unwrapped
    return torch.device(used.device)


class _Run:
    """The state of a run: the algorithm, the number of steps, the best evaluation so far."""

    def __init__(
        self,
        args: CommonArgs,
        envs: TrainingEnvs,
        eval_env: Any,
        plan: EvaluationPlan,
        run_dir: Path,
        dist: DistContext,
        start: float,
    ) -> None:
        self.args, self.envs, self.eval_env, self.plan, self.run_dir = args, envs, eval_env, plan, run_dir
        self.logger: RunLogger | None = None
        self.dist = dist
        self.env = env = envs.env
        self.device = network_device(args, env, eval_env)
        if args.compile == "cuda-graphs" and self.device.type != "cuda":
            raise ArgumentError(
                f"--compile cuda-graphs needs the networks on a GPU, not on {self.device}; use on or off"
            )
        if args.compile != "off" and self.device.type == "cpu" and not _has_compiler():
            raise ArgumentError(
                "--compile on needs a C++ compiler on a CPU: install g++, name yours in CXX, or use off"
            )
        torch.manual_seed(args.seed)  # initial weights
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        setup = Setup(
            env.single_observation_space, env.single_action_space, args.num_envs, self.device, self.generator, dist, env
        )
        try:
            self.algorithm: Algorithm = get_algorithm(args.algorithm).load()(args, setup)
        except ArgumentError:
            raise
        except RegistryError as error:
            raise ArgumentError(str(error)) from error
        except ValueError as error:
            raise ArgumentError(f"--env-id {args.env_id}: {error}") from error
        self.network = self.algorithm.network
        if args.compile != "off":
            self.network.compile_parts(args.compile == "cuda-graphs")
        self.checkpoints = Checkpoints(run_dir, args.keep_checkpoints)
        self.began_from: dict[str, Any] | None = None
        self.stats = EpisodeStats()
        self.step = 0
        self.updates = 0
        self.best: dict[str, float] | None = None
        self.best_score = -math.inf
        self.seconds_before = 0.0
        self.start = start

    def learn(self) -> None:
        """Train up to the last step."""
        args, dist, algorithm = self.args, self.dist, self.algorithm
        update_threads = args.torch_threads or max(1, (os.cpu_count() or 1) // dist.size)
        next_eval = _next_multiple(self.step, self.plan.every)
        next_checkpoint = _next_multiple(self.step, args.checkpoint_every)
        bar = ProgressBar(args.total_timesteps) if dist.is_main else None
        if self.step == 0 and args.checkpoint_every:
            self.save_checkpoint()
        try:
            obs = self.start_episodes() if self.step < args.total_timesteps else torch.empty(0)
            written = time.monotonic()
            while self.step < args.total_timesteps:
                clock = [time.monotonic()]
                algorithm.schedule(self.step / args.total_timesteps)
                try:
                    batch = algorithm.rollout(self.env, obs, self.stats)
                except NaNActionError as error:
                    raise diverged(f"{error}: the policy gives NaN", learnt_before=self.updates > 0) from error
                obs = batch.last_obs
                clock.append(time.monotonic())
                # Nobody has told a new network what observations look like: learn that before the first update.
                first = self.updates == 0 and args.init_from is None
                if first:
                    self.network.update_normalizer(batch.obs, dist)
                elif self.updates == 0 and isinstance(self.network, PolicyNetwork):
                    self.network.begin_normalizers(batch.obs, dist)  # the critic may be new, with --init-from
                with torch_threads(update_threads):
                    losses = algorithm.update(batch)
                if not first:
                    self.network.update_normalizer(batch.obs, dist)
                clock.append(time.monotonic())
                self.step += args.batch_size
                self.updates += 1
                row: dict[str, float] = {}
                if self.step >= next_eval:
                    next_eval = _next_multiple(self.step, self.plan.every)
                    if dist.is_main:
                        row = self.evaluate_and_save()
                    dist.wait()
                now, before = time.monotonic(), written
                written = now
                rollout_s, update_s = clock[1] - clock[0], clock[2] - clock[1]
                row = {
                    "step": float(self.step),
                    "wall_time_s": self.seconds(now),
                    "steps_per_second": self.step / self.seconds(now),
                    "rollout_s": rollout_s,
                    "update_s": update_s,
                    # evaluation and logging, and the checkpoint that followed the last row
                    "other_s": now - before - rollout_s - update_s,
                    **self.stats.pop(),
                    **losses,
                    **row,
                }
                if self.logger is not None and bar is not None:
                    self.logger.write(row)
                    shown = {name.rpartition("/")[2]: row[name] for name in PROGRESS_BAR_FIGURES if name in row}
                    bar.update(self.step, shown)
                over = self.step >= args.total_timesteps
                anew = not over and self.envs.advance(self.step)
                if anew:
                    log.info("step %d: training now plays the task itself", self.step)
                    self.stats.episodes.clear()  # from here on the log tells of the task
                if self.step >= next_checkpoint or (over and args.checkpoint_every):
                    next_checkpoint = _next_multiple(self.step, args.checkpoint_every)
                    self.save_checkpoint()
                    anew = anew or (args.exact_resume and not over)
                if anew:
                    obs = self.start_episodes()
            self.save_policy("checkpoint.pt")
        except KeyboardInterrupt:
            self.save_policy("checkpoint.pt")
            raise
        finally:
            if bar is not None:
                bar.close()

    def seconds(self, now: float) -> float:
        """Wall time of the run so far, in all its processes one after another."""
        return self.seconds_before + now - self.start

    def start_episodes(self) -> Obs:
        """New episodes in all environments; they follow from the seed and the number of updates."""
        seed = self.args.seed
        if self.updates:
            seed = int(np.random.SeedSequence([seed, self.updates]).generate_state(1)[0]) % 2**31
        obs, _ = reset_with(self.env, seed, self.dist)
        if is_maniskill_task(self.args.env_id):
            # These draw the episodes of automatic resets from torch's global generator. Without this all processes would
            # draw the same, and a resumed run those of the beginning.
            torch.manual_seed(derived_seed(seed, self.dist.rank))
        self.algorithm.on_episode_start(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device))
        return obs

    def evaluate(self, first_seed: int, episodes: int) -> Evaluation:
        """Play the policy in the episodes from ``first_seed`` on."""
        policy = self.algorithm.eval_policy()
        with in_eval_mode(self.network):  # as `mikasa eval` plays it
            return evaluate(policy, self.eval_env, episodes=episodes, first_seed=first_seed, device=self.device)

    def evaluate_and_save(self) -> dict[str, float]:
        """Evaluate and save the policy, also as the best one if it is; returns figures for the log."""
        evaluation = self.evaluate(self.args.eval_seed, self.plan.episodes)
        log.info("step %d, %s", self.step, evaluation.describe())
        summary = evaluation.summary()
        self.save_policy("checkpoint.pt")
        # Among equals the later one: it has seen more.
        score = evaluation.score
        if score >= self.best_score:
            self.best_score = score
            self.best = {"step": self.step, **summary}
            self.save_policy("best.pt", {"score": score, **summary})
        return {f"eval/{name}": value for name, value in summary.items()}

    def save_policy(self, name: str, evaluation: dict[str, float] | None = None) -> None:
        """Write the network alone, for evaluation."""
        if self.dist.is_main:
            save_policy(self.run_dir / name, self.network, self.args, self.step, evaluation)

    def save_checkpoint(self) -> None:
        """Write everything that the run can continue from."""
        if not self.dist.is_main:
            return
        self.checkpoints.save(
            self.step,
            {
                "algorithm": self.args.algorithm,
                "args": {**self.args.to_dict(), "resume": None},
                "world_size": self.dist.size,
                "horizon": self.plan.horizon,
                "updates": self.updates,
                "policy": self.network.state_dict(),
                "algorithm_state": self.algorithm.state_dict(),
                "generator": self.generator.get_state(),
                "torch_generators": _torch_generators(self.device),
                "episodes": list(self.stats.episodes),
                "init_from": self.began_from,
                "best": self.best,
                "best_score": self.best_score,
                "seconds": self.seconds(time.monotonic()),
            },
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from what `save_checkpoint` wrote."""
        self.network.load_state_dict(saved["policy"])
        require_finite(self.network)
        self.algorithm.load_state_dict(saved["algorithm_state"])
        if not continue_generator(self.generator, saved["generator"], derived_seed(self.args.seed, saved["updates"])):
            log.info("the checkpoint is of another kind of device: random numbers begin anew")
        _restore_torch_generators(saved.get("torch_generators", {}), self.device)  # an older checkpoint has none
        self.stats.episodes.extend(saved["episodes"])
        self.step, self.updates, self.seconds_before = saved["step"], saved["updates"], saved["seconds"]
        self.best, self.best_score = saved["best"], saved["best_score"]
        # The run may have gone on after this checkpoint, and found a better policy before it broke off.
        if (found := read_evaluation(self.run_dir / "best.pt")) is not None:
            step, summary = found
            score = summary.pop("score", math.nan)
            if score >= self.best_score:
                self.best_score, self.best = score, {"step": step, **summary}
        self.began_from = saved.get("init_from")  # an older checkpoint does not tell


def _torch_generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own generators, from which dropout draws, on the CPU and on ``device``."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_torch_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Continue from what `_torch_generators` returned, maybe on another kind of device."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def saved_run(run_dir: Path, algorithm: str) -> dict[str, Any]:
    """The newest checkpoint of a run of this algorithm that is not complete.

    Raises:
        ArgumentError: the run is complete, or was started with another algorithm or number of processes.
        CheckpointError: there is no checkpoint that can be read.
    """
    if os.path.exists(run_dir / "final_eval.json"):  # no error for a name that no folder can have
        raise ArgumentError(f"--resume {run_dir} is complete: final_eval.json is there; start a new run instead")
    saved = Checkpoints.load_newest(run_dir)
    if saved["algorithm"] != algorithm:
        raise ArgumentError(f"--resume {run_dir} is a run of {saved['algorithm']}, not of {algorithm}")
    if saved["world_size"] != world_size():
        raise ArgumentError(f"--resume {run_dir} was started by {saved['world_size']} processes, not {world_size()}")
    return saved


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _next_multiple(step: int, every: int) -> float:
    return (step // every + 1) * every if every else math.inf
