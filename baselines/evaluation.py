"""Evaluation on a fixed set of episodes, and a video of some of them."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.video import Images, tile_images, write_video

from .environments import EnvFactory, GymnasiumVectorEnv
from .spaces import Obs, flatten, map_obs

__all__ = ["Evaluation", "evaluate", "film", "find_horizon", "record_video", "torch_threads", "wilson_interval"]

log = logging.getLogger(__name__)

Policy = Callable[[Any], Tensor]
"""Maps observations (N, …) to actions (N, A) as the environment takes them; both on the policy's device."""


def _nothing() -> None:
    """What a policy without memory does at the start of an episode."""


@dataclass
class Evaluation:
    """What E episodes came to; episode k was reset with the seed ``first_seed + k``."""

    first_seed: int
    success_once: list[bool]  # (E,) success at some step
    success_at_end: list[bool]  # (E,) success at the last step
    fail_once: list[bool]  # (E,) a mistake at some step; all False where a task cannot be failed
    returns: list[float]  # (E,) sum of rewards
    lengths: list[int]  # (E,) control steps
    tells_success: bool = False  # whether the environment says what success is; where not, the flags are all False

    def summary(self) -> dict[str, float]:
        """Means over the episodes, with the 95 % Wilson interval of the success rate where success is told."""
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
        """What policies are compared by: the success rate, or the mean return where no success is told."""
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


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a success rate; ``z`` is the normal quantile (the default gives 95 %).

    >>> [round(x, 4) for x in wilson_interval(95, 100)]
    [0.8882, 0.9785]
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(
            f"wilson_interval: {successes} successes in {trials} trials; need 0 <= successes <= trials >= 1"
        )
    rate = successes / trials
    denominator = 1.0 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / denominator
    half = z * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4 * trials * trials)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def find_horizon(env: gym.Env[Any, Any] | GymnasiumVectorEnv) -> int:
    """The number of control steps after which ``env`` truncates an episode."""
    horizon = getattr(env.unwrapped, "horizon", None)
    if horizon is None and not isinstance(env, GymnasiumVectorEnv):
        from mani_skill.utils.gym_utils import find_max_episode_steps_value

        horizon = find_max_episode_steps_value(env)
    if horizon is None:
        raise ValueError(f"{env} has no time limit; register it with max_episode_steps or give it a `horizon`")
    return int(horizon)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Runs a block with ``count`` torch threads, and puts the former number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def evaluate(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    *,
    episodes: int,
    first_seed: int,
    device: torch.device,
    begin: Callable[[], None] = _nothing,
) -> Evaluation:
    """Plays ``episodes`` whole episodes, with the environment's own terminations, and reports each.

    Episode k is reset with the seed ``first_seed + k`` by name, so the set of episodes is the same whatever the number
    of environments. Where that does not divide ``episodes``, the surplus of the last round is played and dropped.

    Args:
        policy: see ``Policy``.
        env: a batched environment, as an `EnvFactory` makes it.
        device: where ``policy`` wants its observations.
        begin: called before each round of episodes; a policy with memory forgets then.
    """
    num_envs = int(env.unwrapped.num_envs)  # type: ignore[union-attr]
    result = Evaluation(first_seed, [], [], [], [], [])
    for start in range(0, episodes, num_envs):
        seeds = [first_seed + start + i for i in range(num_envs)]
        keep = min(num_envs, episodes - start)
        begin()
        told, columns = _play(policy, env, seeds, device)
        for name, column in columns.items():
            getattr(result, name).extend(column[:keep].tolist())
        result.tells_success |= told
    return result


def _play(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    seeds: list[int],
    device: torch.device,
    on_step: Callable[[Tensor], None] | None = None,
) -> tuple[bool, dict[str, Tensor]]:
    """One episode in each environment: whether success was told of, and what came out.

    An environment that has finished is stepped on with the others, and what it does is not counted. ``on_step`` gets the
    mask (N,) of those that show their episode: that were running before the step and were not reset by it.
    """
    obs: Obs
    obs, _ = env.reset(seed=seeds)  # type: ignore[arg-type]  # ManiSkill takes a seed per environment
    source = next(iter(flatten(obs).values())).device
    resets = isinstance(env, GymnasiumVectorEnv)
    told = False
    n = len(seeds)
    running = torch.ones(n, dtype=torch.bool, device=source)
    success_once, success_at_end, fail_once = (torch.zeros_like(running) for _ in range(3))
    returns = torch.zeros(n, device=source)
    lengths = torch.zeros(n, dtype=torch.long, device=source)
    for _ in range(find_horizon(env)):
        obs, reward, terminated, truncated, info = env.step(policy(map_obs(lambda x: x.to(device), obs)).to(source))
        told |= "success" in info
        success = _flag(info, "success", running)
        returns += torch.where(running, torch.as_tensor(reward, device=source), torch.zeros_like(returns))
        lengths += running
        success_once |= success & running
        fail_once |= _flag(info, "fail", running) & running
        success_at_end = torch.where(running, success, success_at_end)
        after = running & ~(terminated | truncated)
        if on_step is not None:
            on_step(after if resets else running)
        running = after
        if not running.any():
            return told, {
                "success_once": success_once,
                "success_at_end": success_at_end,
                "fail_once": fail_once,
                "returns": returns,
                "lengths": lengths,
            }
    unfinished = [seed for seed, still in zip(seeds, running.tolist(), strict=True) if still]
    raise RuntimeError(
        f"episodes with the seeds {unfinished} are not over after {find_horizon(env)} steps; "
        "the environment must truncate at its horizon"
    )


def _flag(info: dict[str, Any], name: str, like: Tensor) -> Tensor:
    flag = info.get(name)
    return torch.zeros_like(like) if flag is None else flag


def record_video(
    policy: Policy,
    env: gym.Env[Any, Any] | GymnasiumVectorEnv,
    path: Path,
    *,
    first_seed: int,
    device: torch.device,
    fps: int = 20,
    begin: Callable[[], None] = _nothing,
) -> None:
    """Films one episode per environment, tiled, as an MP4; an episode that is over stands still on its last picture.

    Args:
        env: a batched environment made with ``render_mode="rgb_array"``; ``env.render()`` gives (N, H, W, 3).
    """
    num_envs = int(env.unwrapped.num_envs)  # type: ignore[union-attr]
    pictures: Tensor | None = None
    frames: list[Images] = []

    def film(running: Tensor) -> None:
        nonlocal pictures
        fresh = torch.as_tensor(env.render())
        if fresh.ndim == 3:
            fresh = fresh.unsqueeze(0)
        pictures = fresh if pictures is None else torch.where(running[:, None, None, None], fresh, pictures)
        frames.append(tile_images(pictures.to("cpu", torch.uint8).numpy()))

    begin()
    _play(policy, env, [first_seed + i for i in range(num_envs)], device, on_step=film)
    write_video(path, frames, fps)


def film(
    policy: Policy,
    env_factory: EnvFactory,
    path: Path,
    *,
    episodes: int,
    first_seed: int,
    device: torch.device,
    begin: Callable[[], None] = _nothing,
) -> None:
    """Records a video; where SAPIEN cannot draw, logs one line on what is missing instead. Other errors are the caller's."""
    try:
        with contextlib.closing(env_factory(episodes, "rgb_array")) as env:
            record_video(policy, env, path, first_seed=first_seed, device=device, begin=begin)
    except RenderingUnavailableError as error:
        log.warning("no video: %s", error)
    else:
        log.info("video: %s", path)
