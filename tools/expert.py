"""``mikasa expert``: how often a scripted policy succeeds, and a video of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.evaluation import PolicyMaker, evaluate
from mikasa_robo.experts.policies import OBS_MODE, ExhaustiveSearch, Expert, PostureMemory, Random, WindowMemory
from mikasa_robo.experts.registry import has_skill, make_skill
from mikasa_robo.sim.render import RenderingUnavailableError, require_rendering, write_video

PolicyName = Literal["expert", "forgetful", "memoryless", "sweeper", "embodied", "random"]


@dataclass
class Options:
    """Run a scripted policy on a task and print its success rate."""

    env_id: str
    """The task."""
    policy: PolicyName = "expert"
    """expert reads the oracle; forgetful remembers the last k views, memoryless none; sweeper tries everything; embodied
    writes the cue into its posture; random acts at random."""
    k: int = 1000
    """How many views before the present one `forgetful` remembers; as many as there are by default."""
    episodes: int = 100
    """Episodes to run, rounded up to whole batches of num_envs."""
    num_envs: int = 64
    """Episodes at a time."""
    seed: int = 0
    """Of the first batch of episodes; the next has the next."""
    arm: Literal["free", "held"] = "free"
    """held keeps the arm still until the response phase."""
    video: Path | None = None
    """Saves the first episode of four environments as an MP4 here, a new file."""


def policy_maker(name: PolicyName, k: int = 1000) -> PolicyMaker:
    """What makes the policy with this name, for a skill."""
    makers: dict[str, Any] = {
        "expert": Expert,
        "forgetful": functools.partial(WindowMemory, k=k),
        "memoryless": functools.partial(WindowMemory, k=0),
        "sweeper": ExhaustiveSearch,
        "embodied": PostureMemory,
        "random": Random,
    }
    maker: PolicyMaker = makers[name]
    return maker


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` and returns its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa expert")
    problem = _problem(options)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    if options.video is not None:
        try:  # before the episodes, not after them
            require_rendering("--video", "cuda" if torch.cuda.is_available() else "cpu")
        except RenderingUnavailableError as error:
            print(error, file=sys.stderr)
            return 2
    make = policy_maker(options.policy, options.k)
    kwargs: dict[str, Any] = {"arm": options.arm} if options.arm != "free" else {}
    outcome = evaluate(options.env_id, make, options.episodes, options.num_envs, options.seed, **kwargs)
    low, high = outcome.interval()
    print(
        f"{options.env_id} {options.policy}: success {outcome.rate:.1%} (95 % interval {low:.1%} to {high:.1%}) in "
        f"{outcome.episodes} episodes, {outcome.failures} ended with a mistake, "
        f"{outcome.mean_length:.0f} steps to a success on average"
    )
    if options.video is not None:
        film(options.env_id, make, options.video, options.seed, **kwargs)
        print(f"video: {options.video}")
    return 0


def _problem(options: Options) -> str | None:
    if options.env_id not in CATALOG or not has_skill(options.env_id):
        return f"--env-id {options.env_id}: no such task with an expert; `mikasa list` shows all tasks"
    for name in ("episodes", "num_envs"):
        if getattr(options, name) < 1:
            return f"--{name.replace('_', '-')} {getattr(options, name)} must be at least 1"
    if options.k < 0:
        return f"--k {options.k} must be at least 0"
    if options.arm == "held" and not CATALOG[options.env_id].response:
        return f"--arm held would hold the arm for ever: {options.env_id} is acted in while its cue is on view"
    if options.video is not None and options.video.exists():
        return f"--video {options.video} exists already: choose another name, or move it away"
    return None


@torch.no_grad()
def film(env_id: str, make_policy: PolicyMaker, path: Path, seed: int = 0, num_envs: int = 4, **kwargs: Any) -> None:
    """Draws one episode of ``num_envs`` environments side by side, until all are over, as an MP4 of 20 frames/s."""
    from mani_skill.utils.visualization.misc import tile_images

    env: Any = mikasa_robo.make_env(env_id, num_envs, obs_mode=OBS_MODE, render_mode="rgb_array", **kwargs)
    task = env.unwrapped
    policy = make_policy(make_skill(env_id, task))
    obs, info = env.reset(seed=seed)
    policy.reset()
    frames, done = [], torch.zeros(num_envs, dtype=torch.bool, device=task.device)
    rows = max(1, round(num_envs**0.5))
    for _ in range(task.horizon):
        frames.append(tile_images(env.render(), nrows=rows).cpu().numpy())
        obs, _, _, _, info = env.step(policy.act(obs, info))
        done |= info["success"] | info["fail"]
        if bool(done.all()):
            break
    frames.append(tile_images(env.render(), nrows=rows).cpu().numpy())
    env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, frames, fps=20)
