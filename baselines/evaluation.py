"""Evaluation on a fixed set of episodes, and a video of some of them."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mikasa_robo.rollouts import EpisodeTotals, Step, play_episodes
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.statistics import wilson_interval
from mikasa_robo.video import FPS, Images, VideoError, write_tiled_video

from .arguments import FINAL_EPISODES, CommonArgs
from .env_wrappers import GymnasiumVectorEnv
from .environments import UNKNOWN_HORIZON, EnvFactory
from .protocol import Policy
from .spaces import Obs, map_tensors

__all__ = [
    "Evaluation",
    "EvaluationPlan",
    "Outcome",
    "evaluate",
    "film",
    "find_horizon",
    "in_eval_mode",
    "join_outcomes",
    "plan_evaluations",
    "play_rounds",
    "record_video",
    "torch_threads",
    "whole_rounds",
    "wilson_interval",
]

log = logging.getLogger(__name__)

EVALUATION_SHARE = 0.025
"""Steps that evaluations during training simulate, as a share of the steps of training, where the user does not choose."""
TRAINING_EPISODES, LEAST_EPISODES = 50, 10
"""Most and fewest episodes of an evaluation during training, where the user does not choose."""
LEAST_EVALUATIONS = 3
"""So often a run is evaluated, where `LEAST_EPISODES` allows it."""


@dataclass
class Evaluation:
    """The results of E episodes; episode k was reset with the seed ``first_seed + k``."""

    first_seed: int
    success_once: list[bool]  # (E,) success at some step
    success_at_end: list[bool]  # (E,) success at the last step
    fail_once: list[bool]  # (E,) failure at some step; all False for a task that has no failure
    returns: list[float]  # (E,) sum of rewards
    lengths: list[int]  # (E,) control steps
    tells_success: bool = False  # whether the environment reports success; where not, the flags are all False

    def summary(self) -> dict[str, float]:
        """Means over the episodes; with the 95 % Wilson interval of the success rate, if the environment reports success."""
        means = {"return": statistics.fmean(self.returns), "length": statistics.fmean(self.lengths)}
        if not self.tells_success:
            return means
        low, high = wilson_interval(sum(self.success_once), len(self.success_once))
        return {
            "success_once": statistics.fmean(self.success_once),
            "success_low": low,
            "success_high": high,
            "success_at_end": statistics.fmean(self.success_at_end),
            "fail_once": statistics.fmean(self.fail_once),
            **means,
        }

    @property
    def score(self) -> float:
        """What policies are compared by: the success rate, or the mean return if the environment reports no success."""
        return statistics.fmean(self.success_once if self.tells_success else self.returns)

    def describe(self) -> str:
        """One line for the log."""
        s = self.summary()
        if not self.tells_success:
            return f"{len(self.returns)} episodes: return {s['return']:.2f}, length {s['length']:.1f}"
        return (
            f"{len(self.returns)} episodes: success {s['success_once']:.1%} (95 % interval {s['success_low']:.1%} to "
            f"{s['success_high']:.1%}), return {s['return']:.2f}, length {s['length']:.1f}"
        )


def find_horizon(env: gym.Env[Any, Any] | GymnasiumVectorEnv) -> int:
    """Number of control steps after which ``env`` truncates an episode. Raises ValueError where it has no time limit."""
    horizon = getattr(env.unwrapped, "horizon", None)
    if horizon is None and not isinstance(env, GymnasiumVectorEnv):
        from mani_skill.utils.gym_utils import find_max_episode_steps_value

        horizon = find_max_episode_steps_value(env)
    if horizon is None:
        raise ValueError(f"{env} has no time limit; register it with max_episode_steps or give it a `horizon`")
    return int(horizon)


@dataclass(frozen=True)
class EvaluationPlan:
    """When a run is evaluated."""

    every: int  # env steps of training between two evaluations; 0 for none before the end
    episodes: int  # of an evaluation during training
    final_episodes: int  # of the one at the end
    num_envs: int  # environments that play them
    horizon: int  # steps of an episode, from which the rest follows


def plan_evaluations(args: CommonArgs, horizon: int) -> EvaluationPlan:
    """When to evaluate a run, so that without ``--eval-every`` evaluations take `EVALUATION_SHARE` of its steps.

    The final evaluation is apart.

    Args:
        args: the arguments of the run.
        horizon: maximum number of steps of an episode; `UNKNOWN_HORIZON` where that is unknown.
    """
    final = FINAL_EPISODES if args.eval_episodes is None else args.eval_episodes
    every, episodes = args.eval_every, final
    if every is None and horizon >= UNKNOWN_HORIZON:
        every = 100_000
        if args.eval_episodes is None:
            episodes = TRAINING_EPISODES
    elif every is None and args.eval_episodes is None:
        allowed = int(EVALUATION_SHARE * args.total_timesteps / (LEAST_EVALUATIONS * horizon))
        episodes = max(LEAST_EPISODES, min(allowed, TRAINING_EPISODES))
    num_envs = min(args.eval_num_envs, episodes)
    if every is None:
        rounds = -(-episodes // num_envs)
        every = math.ceil(rounds * num_envs * horizon / EVALUATION_SHARE)
    return EvaluationPlan(every, episodes, final, num_envs, horizon)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run a block with ``count`` torch threads, and restore the former number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def in_eval_mode(network: Any) -> Iterator[None]:
    """Run a block with a network in eval mode: no dropout, and batch normalisation learns nothing.

    Afterwards each part is in its own former mode: one that is never to be trained may have been in eval mode before.

    Args:
        network: a `torch.nn.Module`; nothing happens to anything else.
    """
    modes = {part: part.training for part in network.modules()} if isinstance(network, torch.nn.Module) else {}
    if modes:
        network.eval()
    try:
        yield
    finally:
        if modes:
            network.train(modes[network])
        for part, mode in modes.items():
            part.training = mode


@dataclass(frozen=True)
class Outcome:
    """The result of one episode; the fields are those of `Evaluation`."""

    success_once: bool
    success_at_end: bool
    fail_once: bool
    returns: float
    lengths: int
    tells_success: bool


def evaluate(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    *,
    episodes: int,
    first_seed: int,
    device: torch.device,
) -> Evaluation:
    """Play ``episodes`` whole episodes, with the environment's own terminations, and report each.

    Episode k is reset with the seed ``first_seed + k``, so the episodes do not depend on the number of environments. Where
    that number does not divide ``episodes``, the surplus episodes of the last round are played and dropped.

    Args:
        policy: see `protocol.Policy`.
        env: a batched environment, as an `EnvFactory` makes it.
        device: where ``policy`` wants its observations.

    Raises:
        NaNPolicyError: the network of the policy gives NaN.
        RuntimeError: an episode is not over at the environment's time limit.
    """
    outcomes: dict[int, Outcome] = {}
    for _ in play_rounds(policy, env, range(episodes), outcomes, first_seed=first_seed, device=device):
        pass
    return join_outcomes([outcomes[k] for k in range(episodes)], first_seed)


def join_outcomes(outcomes: Sequence[Outcome], first_seed: int) -> Evaluation:
    """The evaluation whose episode k is ``outcomes[k]``."""
    columns = {
        name: [getattr(outcome, name) for outcome in outcomes]
        for name in ("success_once", "success_at_end", "fail_once", "returns", "lengths")
    }
    return Evaluation(first_seed, **columns, tells_success=any(outcome.tells_success for outcome in outcomes))


def play_rounds(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    indices: Sequence[int],
    outcomes: dict[int, Outcome],
    *,
    first_seed: int,
    device: torch.device,
) -> Iterator[None]:
    """Play the episodes ``indices``, one in each environment at a time; yields after each such round.

    Args:
        policy, env, device: see `evaluate`.
        indices: which episodes; the surplus environments of the last round play the episodes after the last of them.
        outcomes: gets the outcome of each episode by its index. After an error it holds all episodes that were over.
        first_seed: episode k is reset with the seed ``first_seed + k``.

    Raises:
        RuntimeError: an episode is not over at the environment's time limit.
    """
    num_envs = int(env.unwrapped.num_envs)  # type: ignore[union-attr]
    for start in range(0, len(indices), num_envs):
        chosen = list(indices[start : start + num_envs])
        surplus = range(chosen[-1] + 1, chosen[-1] + 1 + num_envs - len(chosen))
        totals, running = EpisodeTotals(), None
        try:
            for step in _play(policy, env, [first_seed + k for k in (*chosen, *surplus)], device):
                totals.add(step)
                running = step.still_running
        finally:
            if running is not None:
                outcomes.update(_outcomes(totals, chosen, running))
        yield


def whole_rounds(indices: Sequence[int], num_envs: int, episodes: int) -> list[int]:
    """The episodes of the rounds that ``indices`` are in.

    ManiSkill's own tasks draw a whole batch from the seed of its first environment, so that an episode can only be played
    again together with its round.
    """
    rounds = sorted({k // num_envs for k in indices})
    return [k for number in rounds for k in range(number * num_envs, min((number + 1) * num_envs, episodes))]


def _outcomes(totals: EpisodeTotals, chosen: Sequence[int], running: Tensor) -> dict[int, Outcome]:
    """Those of the episodes ``chosen``, in the order of the environments, that are not ``running``."""
    names = ("success_once", "success_at_end", "fail_once", "returns", "lengths")
    rows = zip(*(getattr(totals, name)[: len(chosen)].tolist() for name in names), strict=True)
    return {
        k: Outcome(**dict(zip(names, row, strict=True)), tells_success=totals.reports_success)
        for k, row, runs in zip(chosen, rows, running[: len(chosen)].tolist(), strict=True)
        if not runs
    }


def _play(
    policy: Policy, env: gym.Env[Any, Any] | GymnasiumVectorEnv, seeds: list[int], device: torch.device
) -> Iterator[Step]:
    """One episode in each environment, with its seed. Raises NaNPolicyError where the network gives NaN."""
    unwrapped: Any = env.unwrapped
    policy.on_episode_start()
    if (seed_episodes := getattr(policy, "seed_episodes", None)) is not None:
        seed_episodes(seeds)

    def act(obs: Obs, info: dict[str, Any]) -> Tensor:
        return policy.act(map_tensors(lambda x: x.to(device), obs)).to(unwrapped.device)

    yield from play_episodes(env, act, seeds, find_horizon(env))
    if (require_no_nan := getattr(policy, "require_no_nan", None)) is not None:
        require_no_nan()


def record_video(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    path: Path,
    *,
    first_seed: int,
    device: torch.device,
    fps: int = FPS,
) -> None:
    """Record one episode per environment, tiled, as an MP4; an episode that is over shows its last frame.

    Args:
        policy: see `protocol.Policy`.
        env: a batched environment made with ``render_mode="rgb_array"``; ``env.render()`` returns (N, H, W, 3).
        path: the file.
        first_seed: environment i is reset with the seed ``first_seed + i``.
        device: where ``policy`` wants its observations.
        fps: frames per second.
    """
    resets_itself = isinstance(env, GymnasiumVectorEnv)

    def frames() -> Iterator[tuple[Images, NDArray[np.bool_]]]:
        seeds = [first_seed + i for i in range(env.unwrapped.num_envs)]  # type: ignore[union-attr]
        for step in _play(policy, env, seeds, device):
            if step.t == 0:
                continue
            images: Images = torch.as_tensor(env.render()).to("cpu", torch.uint8).numpy()
            # An environment that resets itself already shows the next episode after the last step of this one.
            showing = step.still_running if resets_itself else step.running
            yield images if images.ndim == 4 else images[None], showing.cpu().numpy()

    write_tiled_video(path, frames(), fps, overwrite=True)


def film(
    policy: Policy,
    env_factory: EnvFactory,
    path: Path,
    *,
    episodes: int,
    first_seed: int,
    device: torch.device,
) -> None:
    """`record_video` in a new environment; where that cannot be drawn, or ffmpeg cannot write, log why instead."""
    try:
        with contextlib.closing(env_factory(episodes, "rgb_array")) as env:
            record_video(policy, env, path, first_seed=first_seed, device=device)
    except (RenderingUnavailableError, VideoError, gym.error.DependencyNotInstalled) as error:
        log.warning("no video: %s", error)
    else:
        log.info("video: %s", path)
