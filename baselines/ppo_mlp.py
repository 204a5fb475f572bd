"""PPO with an MLP policy (Schulman et al., 2017, arXiv 1707.06347) on batched environments, from `state` observations.

    python -m baselines.ppo_mlp --env-id RememberColor3-v0        # the same: mikasa train ppo-mlp --env-id ...

Top to bottom: the arguments, a rollout, an update, the training loop, the command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import logging
import math
import operator
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import torch
import tyro
from torch import Tensor, nn

from .advantages import compute_gae
from .arguments import ArgumentError, device_works, nearest_divisor, require
from .checkpoints import save_policy, write_atomically
from .environments import ContinueAfterSuccess, EnvFactory, check_env_id, make_env, stagger
from .evaluation import evaluate, film, find_horizon, torch_threads
from .loggers import EpisodeStats, ProgressBar, RunLogger, claim_run_dir, configure_logging, provenance, require_free
from .networks import ActorCritic

__all__ = ["Args", "ArgumentError", "main", "train"]

SHOWN = ("steps_per_second", "train/return", "train/success_once")  # beside the progress bar

log = logging.getLogger(f"{__package__}.ppo_mlp")


@dataclass
class Args:
    """Trains PPO with an MLP policy on the `state` observations of one task."""

    env_id: str = "RememberColor3-v0"
    """Which task; `mikasa list` prints them."""
    seed: int = 1
    """Seeds the learner and the training environments."""
    total_timesteps: int = 600_000
    """Environment steps of training, all environments together."""
    num_envs: int = 64
    """Environments that are stepped together."""
    run_dir: Path | None = None
    """Where the run's files go, a new or empty folder; by default runs/<env-id>__ppo-mlp__<seed>__<time>."""

    sim_backend: str = "auto"
    """Physics backend: auto takes the GPU where CUDA is there, else the batched CPU simulator."""
    control_mode: str = "pd_joint_delta_pos"
    """The robot's controller."""
    reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
    """The reward to learn from."""
    train_to_horizon: bool = True
    """Let training episodes go on after a success, to their time limit. The dense reward pays every step and most at
    success, so an episode that success ends pays less than one spent hovering beside it, and a policy learns to hover.
    Going on, success pays 1 a step for as long as it lasts. A failure still ends the episode, and so forfeits the rest.
    Evaluation always uses the task's own terminations."""
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
    hidden_sizes: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critic."""
    init_log_std: float = -0.5
    """Logarithm of the initial standard deviation of the actions."""
    device: str | None = None
    """Where the networks live; by default where the environment's tensors are."""
    torch_threads: int = 0
    """Torch threads of an update; 0 means one per core. While the simulator runs, torch has one."""

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
        """Transitions in one rollout."""
        return self.num_envs * self.num_steps

    def check(self) -> None:
        """Raises ``ArgumentError`` where a value cannot work, before anything has been made."""
        for minimum, names in (
            (1, "num_envs num_steps num_minibatches update_epochs stagger_groups"),
            (1, "eval_episodes eval_num_envs video_episodes"),
            (0, "seed eval_every eval_seed final_eval_seed torch_threads entropy_coef value_coef target_kl"),
        ):
            require(self, names, functools.partial(operator.le, minimum), f"use at least {minimum}")
        require(self, "gamma gae_lambda", lambda value: 0.0 <= value <= 1.0, "use a value from 0 to 1")
        require(self, "learning_rate clip_range max_grad_norm", lambda value: value > 0.0, "use a value above 0")
        require(self, "hidden_sizes", lambda widths: min(widths, default=1) >= 1, "use widths of at least 1")
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
        if self.total_timesteps < self.batch_size:
            raise ArgumentError(
                f"--total-timesteps {self.total_timesteps} is less than one rollout of {self.batch_size} steps; "
                f"use at least {self.batch_size}, or fewer --num-envs or --num-steps"
            )
        require(self, "device", device_works, "use cpu, or leave it out")
        if self.track:
            importlib.import_module("wandb")  # where it is missing, that comes out before there is a run folder
        require_free(self.resolved_run_dir())

    def resolved_run_dir(self) -> Path:
        """The folder of the run; a default one carries the time, so ask once."""
        if self.run_dir is not None:
            return self.run_dir
        return Path("runs") / f"{self.env_id}__ppo-mlp__{self.seed}__{time.strftime('%Y%m%d-%H%M%S')}"

    def plain(self) -> dict[str, Any]:
        """All arguments as JSON-ready values."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }


@dataclass
class Rollout:
    """S steps of N environments, on the learner's device."""

    obs: Tensor  # (S, N, D) raw
    actions: Tensor  # (S, N, A) as sampled, before clamping
    log_probs: Tensor  # (S, N)
    rewards: Tensor  # (S, N)
    terminated: Tensor  # (S, N) bool
    truncated: Tensor  # (S, N) bool
    last_obs: Tensor  # (N, D), where the next rollout goes on
    final_obs: Tensor  # (K, D) last observations of truncated episodes, in the order of truncated.nonzero()


@torch.no_grad()
def rollout(
    env: Any,
    policy: ActorCritic,
    obs: Tensor,
    num_steps: int,
    generator: torch.Generator,
    stats: EpisodeStats,
) -> Rollout:
    """Plays ``num_steps`` steps from ``obs`` (N, D) with sampled actions and automatic resets."""
    device = policy.log_std.device
    n, steps = obs.shape[0], num_steps
    observations = torch.empty((steps, n, policy.obs_dim), device=device)
    actions = torch.empty((steps, n, policy.action_dim), device=device)
    log_probs, rewards = torch.empty((2, steps, n), device=device).unbind()
    terminated, truncated = torch.empty((2, steps, n), dtype=torch.bool, device=device).unbind()
    final_obs = [torch.empty((0, policy.obs_dim), device=device)]
    for t in range(steps):
        observations[t] = obs
        actions[t], log_probs[t] = policy.sample(observations[t], generator)
        obs, reward, ends, cuts, info = env.step(actions[t].clamp(-1.0, 1.0).to(env.device))
        rewards[t], terminated[t], truncated[t] = reward, ends, cuts
        if cuts.any():
            final_obs.append(info["final_observation"][cuts].to(device))
        stats.record(info, ends | cuts)
    return Rollout(
        observations,
        actions,
        log_probs,
        rewards,
        terminated,
        truncated,
        obs.to(device, copy=True),
        torch.cat(final_obs),
    )


def update(
    policy: ActorCritic, optimizer: torch.optim.Optimizer, batch: Rollout, args: Args, generator: torch.Generator
) -> dict[str, float]:
    """One PPO update from a rollout; returns figures for the log."""
    with torch.no_grad():
        obs = policy.normalize(batch.obs)  # once: the normaliser does not change during an update
        values = policy.critic(obs).squeeze(-1)
        final_values = torch.zeros_like(values)
        final_values[batch.truncated] = policy.value(batch.final_obs)
        advantages, returns = compute_gae(
            batch.rewards,
            values,
            policy.value(batch.last_obs),
            final_values,
            batch.terminated,
            batch.truncated,
            args.gamma,
            args.gae_lambda,
        )
    flat = [x.flatten(0, 1) for x in (obs, batch.actions, batch.log_probs, advantages, returns)]
    metrics: list[Tensor] = []
    stopped = False
    for _ in range(args.update_epochs):
        order = torch.randperm(args.batch_size, generator=generator, device=obs.device)
        for index in order.chunk(args.num_minibatches):
            mb_obs, mb_actions, mb_log_probs, mb_advantages, mb_returns = (x[index] for x in flat)
            log_prob, entropy, value = policy.evaluate(mb_obs, mb_actions)
            log_ratio = log_prob - mb_log_probs
            ratio = log_ratio.exp()
            with torch.no_grad():
                approx_kl = (ratio - 1.0 - log_ratio).mean()  # Schulman's low-variance estimate
                clipped = ((ratio - 1.0).abs() > args.clip_range).float().mean()
            if args.target_kl > 0.0 and approx_kl > args.target_kl:
                stopped = True
                break
            if args.normalize_advantages:
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
            bounded = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
            policy_loss = -torch.minimum(ratio * mb_advantages, bounded * mb_advantages).mean()
            value_loss = 0.5 * (value - mb_returns).square().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
            optimizer.step()
            metrics.append(torch.stack([policy_loss, value_loss, entropy, approx_kl, clipped]).detach())
        if stopped:
            break
    # The ratio of the first minibatch is 1, so at least one has been counted.
    if not torch.stack(metrics).isfinite().all():
        raise FloatingPointError("infinite or NaN losses in an update; lower --learning-rate, or look at the rewards")
    names = ("loss/policy", "loss/value", "loss/entropy", "loss/approx_kl", "loss/clip_fraction")
    row = dict(zip(names, torch.stack(metrics).mean(dim=0).tolist(), strict=True))
    row["loss/explained_variance"] = float(1.0 - (returns - values).var() / returns.var().clamp_min(1e-12))
    row["loss/gradient_steps"] = float(len(metrics))
    row["loss/action_std"] = float(policy.log_std.detach().exp().mean())
    return row


def train(args: Args, env_factory: EnvFactory, command: Sequence[str] = ()) -> dict[str, Any]:
    """Trains, evaluates and fills the run folder.

    Returns:
        What ``final_eval.json`` holds; ``command`` is the command line to record there.

    Raises:
        ArgumentError, FileExistsError: an argument cannot be used; nothing has been written.
    """
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    args.check()
    run_dir = args.resolved_run_dir()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            raw_env = stack.enter_context(contextlib.closing(env_factory(args.num_envs, None)))
            eval_env = stack.enter_context(contextlib.closing(env_factory(args.eval_num_envs, None)))
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"cannot make --env-id {args.env_id}: {error}") from error
        claim_run_dir(run_dir)
        log.info("run folder: %s", run_dir)
        wandb = {"project": args.wandb_project, "mode": args.wandb_mode} if args.track else None
        logger = RunLogger(run_dir, args.plain(), wandb)
        stack.callback(logger.close)
        wrapped = ContinueAfterSuccess(raw_env) if args.train_to_horizon else raw_env
        env = ManiSkillVectorEnv(wrapped, record_metrics=True)
        # The simulator has threads of its own; torch's would only take the cores away from them.
        stack.enter_context(torch_threads(1))
        policy, step, best = learn(args, env, eval_env, run_dir, logger)
        seed, device = args.final_eval_seed, policy.log_std.device
        final = evaluate(policy.act, eval_env, episodes=args.eval_episodes, first_seed=seed, device=device)
    result = {
        "env_id": args.env_id,
        "algorithm": "ppo-mlp",
        "seed": args.seed,
        "training_steps": step,
        "wall_time_s": round(time.monotonic() - start, 1),
        "final": {"first_seed": seed, "episodes": args.eval_episodes, **final.summary()},
        "best_during_training": best,
        "args": args.plain(),
        **provenance(command),
    }
    write_atomically(run_dir / "final_eval.json", (json.dumps(result, indent=2) + "\n").encode())
    log.info("final evaluation, %s", final.describe())
    if args.video:
        video = run_dir / "video.mp4"
        film(policy.act, env_factory, video, episodes=args.video_episodes, first_seed=seed, device=device)
    log.info("done in %.0f s: %s", time.monotonic() - start, run_dir)
    return result


def learn(
    args: Args, env: Any, eval_env: gym.Env[Any, Any], run_dir: Path, logger: RunLogger
) -> tuple[ActorCritic, int, dict[str, float] | None]:
    """The training loop; returns the policy, the environment steps taken and the figures of the best evaluation."""
    device = torch.device(args.device) if args.device else env.device
    torch.manual_seed(args.seed)  # initial weights
    generator = torch.Generator(device).manual_seed(args.seed)  # actions and minibatches
    obs, _ = env.reset(seed=args.seed)
    policy = ActorCritic(
        obs.shape[-1], env.single_action_space.shape[0], args.hidden_sizes, args.normalize_obs, args.init_log_std
    ).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate, eps=1e-5)
    update_threads = args.torch_threads or os.cpu_count() or 1

    def explore(obs: Tensor) -> Tensor:
        return policy.sample(obs.to(device), generator)[0]

    obs, seen = stagger(env, explore, obs, args.stagger_groups, find_horizon(eval_env))
    policy.update_normalizer(seen.to(device))
    log.info("staggering the environments took %d uncounted steps", (seen.shape[0] - 1) * args.num_envs)
    step = 0
    next_eval = args.eval_every or math.inf
    stats = EpisodeStats()
    best: dict[str, float] | None = None
    start = time.monotonic()
    bar = ProgressBar(args.total_timesteps)

    def save(name: str) -> None:
        save_policy(run_dir / name, policy, env_id=args.env_id, step=step, args=args.plain())

    try:
        while step < args.total_timesteps:
            clock = [time.monotonic()]
            batch = rollout(env, policy, obs, args.num_steps, generator, stats)
            obs = batch.last_obs
            clock.append(time.monotonic())
            if args.anneal_lr:
                optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - step / args.total_timesteps)
            with torch_threads(update_threads):
                losses = update(policy, optimizer, batch, args, generator)
            policy.update_normalizer(batch.obs)
            clock.append(time.monotonic())
            step += args.batch_size
            row = {
                "step": float(step),
                "wall_time_s": clock[2] - start,
                "steps_per_second": args.batch_size / (clock[2] - clock[0]),
                "rollout_s": clock[1] - clock[0],
                "update_s": clock[2] - clock[1],
                **stats.pop(),
                **losses,
                "learning_rate": optimizer.param_groups[0]["lr"],
            }
            if step >= next_eval:
                next_eval = (step // args.eval_every + 1) * args.eval_every
                seed = args.eval_seed
                evaluation = evaluate(policy.act, eval_env, episodes=args.eval_episodes, first_seed=seed, device=device)
                log.info("step %d, %s", step, evaluation.describe())
                summary = evaluation.summary()
                row |= {f"eval/{name}": value for name, value in summary.items()}
                save("checkpoint.pt")
                # Among equals the later one: it has seen more.
                if best is None or summary["success_once"] >= best["success_once"]:
                    best = {"step": step, **summary}
                    save("best.pt")
            logger.write(row)
            bar.update(step, {name.rpartition("/")[2]: row[name] for name in SHOWN if name in row})
        save("checkpoint.pt")
    except KeyboardInterrupt:
        save("checkpoint.pt")
        raise
    finally:
        bar.close()
    return policy, step, best


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    program = f"python -m {__package__}.ppo_mlp"
    args = tyro.cli(Args, args=argv, prog=program)
    configure_logging()
    try:
        args.check()
        check_env_id(args.env_id)
        env_factory = functools.partial(
            make_env,
            env_id=args.env_id,
            reward_mode=args.reward_mode,
            control_mode=args.control_mode,
            sim_backend=args.sim_backend,
        )
        train(args, env_factory, [*program.split(), *argv])
    except (ArgumentError, FileExistsError) as error:
        log.error("%s", error)
        return 2
    except KeyboardInterrupt:
        log.error("interrupted; the run folder keeps what there was by then")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
