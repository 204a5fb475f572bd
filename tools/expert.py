"""``mikasa expert``: how often a scripted policy succeeds, and a video of it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.makers import PolicyName, policy_maker
from mikasa_robo.terminal import print_error

from .env_ids import OptionError, read_task_kwargs, resolve_env_id
from .output import require_folder
from .progress import Progress, say

if TYPE_CHECKING:  # torch and the simulator are loaded once the options are known to be good
    from mikasa_robo.experts.evaluation import PolicyMaker

__all__ = ["Options", "PolicyName", "film", "main", "policy_maker"]

WINDOW = 1000
REFUSED = {
    "arm": "use --arm {value}",
    "obs_mode": "scripted policies act on objects; leave it out",
    "control_mode": "scripted policies act in pd_joint_delta_pos; leave it out",
    "reward_mode": "success does not depend on it; leave it out",
    "sim_backend": "it is chosen by what this machine has; leave it out",
}
"""Arguments of tasks that cannot be given, and what to do instead."""
MOST_EPISODES, MOST_ENVS, MOST_VIEWS, MOST_SEED = 10**9, 65_536, 1_000_000, 2**31


@dataclass
class Options:
    """Run a scripted policy on a task and print its success rate, with a 95 % Wilson interval."""

    env_id: str
    """The task; module:ID imports the module first, for a task of your own with an expert."""
    policy: PolicyName = "expert"
    """expert reads the oracle; window remembers the last k views, memoryless none; exhaustive tries all candidates; posture
    writes the cue into the arm's posture; random acts at random. The names forgetful, sweeper and embodied still work."""
    k: int | None = None
    """Number of past observations that `window` remembers; by default 1000, which covers a whole episode."""
    episodes: int = 100
    """Episodes to run, rounded up to whole batches of num_envs."""
    num_envs: int = 64
    """Episodes that run at a time."""
    seed: int = 0
    """Seed of the first batch of episodes; it increases by one with each batch."""
    arm: Literal["free", "held"] = "free"
    """held keeps the arm still until the response phase."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the task, as NAME=VALUE, such as delay_steps=50."""
    video: Path | None = None
    """Save the first episode of four environments as an MP4 here, a new file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa expert")
    try:
        _check(options)
        options = dataclasses.replace(options, env_id=resolve_env_id(options.env_id))
        _check_task(options)
    except OptionError as error:
        print_error(error)
        return 2

    say("loading the simulator")

    from mikasa_robo.experts.evaluation import evaluate
    from mikasa_robo.experts.policies import UnfitPolicyError
    from mikasa_robo.sim.render import RenderingUnavailableError, drawing_device, require_rendering

    if options.video is not None:
        try:  # before the episodes, not after them
            require_rendering("--video", drawing_device())
        except RenderingUnavailableError as error:
            print_error(error)
            return 2
    make = policy_maker(options.policy, WINDOW if options.k is None else options.k)
    kwargs = read_task_kwargs(options.env_kwargs, REFUSED) | ({"arm": options.arm} if options.arm != "free" else {})
    try:
        steps = _horizon(options.env_id, kwargs) * -(-options.episodes // options.num_envs)
        with Progress(steps, f"playing {options.episodes} episodes") as progress:
            outcome = evaluate(
                options.env_id, make, options.episodes, options.num_envs, options.seed, on_step=progress.step, **kwargs
            )
    except OptionError as error:
        print_error(error)
        return 2
    except UnfitPolicyError as error:
        print(f"--policy {options.policy} with --env-id {options.env_id}: {error}", file=sys.stderr)
        return 2
    low, high = outcome.interval()
    print(
        f"{options.env_id} {options.policy}: success {outcome.rate:.1%} (95 % interval {low:.1%} to {high:.1%}) in "
        f"{outcome.episodes} episodes, {outcome.failures} ended with a mistake"
        + (f", {outcome.mean_length:.0f} steps to a success on average" if outcome.rate else "")
    )
    if options.video is not None:
        film(options.env_id, make, options.video, options.seed, **kwargs)
        print(f"video: {options.video}")
    return 0


def _check(options: Options) -> None:
    """Check what does not depend on the task. Raises OptionError."""
    for name, low, high in (
        ("episodes", 1, MOST_EPISODES),
        ("num_envs", 1, MOST_ENVS),
        ("k", 0, MOST_VIEWS),
        ("seed", 0, MOST_SEED),
    ):
        if (value := getattr(options, name)) is not None and not low <= value <= high:
            raise OptionError(f"--{name.replace('_', '-')} {value} must be from {low} to {high}")
    if options.k is not None and options.policy not in ("window", "forgetful"):
        raise OptionError(f"--k {options.k} is for --policy window; leave it out with --policy {options.policy}")
    read_task_kwargs(options.env_kwargs, REFUSED)
    if options.video is not None:
        if options.video.suffix.lower() != ".mp4":
            raise OptionError(f"--video {options.video} is no MP4; give a name that ends with .mp4")
        require_folder(options.video.parent, "--video: the folder", options.video.name)
        if options.video.exists():
            raise OptionError(f"--video {options.video} exists already; choose another name, or move it away")


def _horizon(env_id: str, kwargs: dict[str, Any]) -> int:
    """The time limit of an episode, in steps. Raises OptionError where the task cannot be made with these arguments."""
    from mikasa_robo.baselines.evaluation import find_horizon

    from .playing import EnvSettings, make_player_env

    with contextlib.closing(make_player_env(env_id, 1, EnvSettings("objects"), None, **kwargs)) as env:
        return find_horizon(env)


def _check_task(options: Options) -> None:
    """Raises OptionError where the task has no expert, or cannot hold the arm."""
    from mikasa_robo.experts.registry import has_skill

    if not has_skill(options.env_id):
        raise OptionError(
            f"--env-id {options.env_id} has no expert; use a task of `mikasa list`, or give the row of your own a skill"
        )
    if options.arm == "held" and not CATALOG[options.env_id].can_hold_arm:
        raise OptionError(
            f"--arm held would hold the arm for the whole episode: {options.env_id} has no response phase; leave it out"
        )


def film(env_id: str, make_policy: PolicyMaker, path: Path, seed: int = 0, num_envs: int = 4, **kwargs: Any) -> None:
    """Film one episode of ``num_envs`` environments side by side, until all are over, as an MP4.

    ``seed`` is that of the batch, as in `mikasa_robo.experts.evaluation.evaluate`. Raises FileExistsError for a path
    that is taken.
    """
    from .playing import ScriptedPlayer, film_tiled, make_player_env

    player = ScriptedPlayer(make_policy)
    with contextlib.closing(make_player_env(env_id, num_envs, player.settings, "rgb_array", **kwargs)) as env:
        path.parent.mkdir(parents=True, exist_ok=True)
        film_tiled(env, player, seed, path)


if __name__ == "__main__":
    sys.exit(main())
