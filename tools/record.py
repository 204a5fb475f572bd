"""``mikasa record``: videos of episodes, with what there is to know about them written on the images."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from mikasa_robo.catalog import CATALOG
from mikasa_robo.deprecation import deprecated_names
from mikasa_robo.experts.makers import EARLIER_NAMES, POLICY_NAMES
from mikasa_robo.terminal import print_error

from .cameras import camera_for
from .env_ids import OptionError, read_task_kwargs, resolve_env_id
from .output import require_new_files
from .progress import say

if TYPE_CHECKING:  # torch and the simulator are loaded once the options are known to be good
    from .playing import PolicyPlayer

__all__ = ["Options", "main", "record"]

OverlayName = Literal["all", "none", "task", "step", "reward", "terms"]
OVERLAYS = ("task", "step", "reward", "terms")
"""In the order in which they are written."""
ANY_TASK = ("step", "reward")
"""Overlays that fit tasks of ManiSkill's own as well."""
HOLD = 20
"""Frames for which the last image of an episode stays: a second."""
AT_A_TIME = 4
"""Episodes that are simulated and drawn together, each for a video of its own."""
SIZES = (128, 2048)  # pixels
REFUSED = {
    "arm": "use --arm {value}",
    "num_envs": "use --episodes; leave it out",
    "obs_mode": "the policy says what it sees; leave it out",
    "control_mode": "the policy says how it acts; leave it out",
    "reward_mode": "it is that of the policy's training; leave it out",
    "human_render_camera_configs": "the task has a camera of its own; leave it out",
}
"""Arguments of environments that cannot be given, and what to do instead."""
MOST_TILES, MOST_VIDEOS = 256, 10_000
MOST_SEED = 2**31


@dataclass
class Options:
    """Record videos of a policy, an MP4 for each episode. No existing file is overwritten."""

    env_id: str
    """The task, or another environment that is registered; module:ID imports the module first, for one of your own."""
    policy: str = "expert"
    """expert, a variant of it (window, memoryless, exhaustive, posture), random, or the checkpoint of a trained policy:
    its file, or the folder of its run, which gives its name to the videos.
    Environments that are not robot tasks take random or a checkpoint."""
    algorithm: str | None = None
    """Only needed for a checkpoint of an algorithm of your own, as module:NAME."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""
    episodes: int = 3
    """Number of episodes; episode k has the seed `seed` + k."""
    overlay: tuple[OverlayName, ...] = ("all",)
    """What to write on the images: task (what is to be remembered, phase, mistakes), step, reward, terms (of the reward);
    all that fit the task, or none."""
    tiled: bool = False
    """Make one video with all episodes side by side; those that are over show their last image."""
    seed: int = 0
    """Seed of the first episode."""
    arm: Literal["free", "held"] | None = None
    """held keeps the arm still until the response phase; by default as the policy was trained; free for a scripted one."""
    sim_backend: str | None = None
    """Physics backend, such as physx_cpu; by default as the policy was trained; auto for a scripted one."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment, as NAME=VALUE, such as delay_steps=50. They replace those that a policy was trained
    with."""
    size: int = 512
    """Height and width of an episode's images, pixels. Environments that are not robot tasks have images of their own size,
    which are enlarged up to this."""
    out: Path = Path("videos")
    """The folder for the videos."""

    def files(self) -> list[Path]:
        """The videos to make. Their names have the ID without its module."""
        env_id = self.env_id.rpartition(":")[2]
        policy = self._policy_name()
        name = f"{env_id}_{policy}_seed{self.seed}"
        if self.tiled:
            return [self.out / f"{name}_tiled{self.episodes}.mp4"]
        return [self.out / f"{env_id}_{policy}_seed{self.seed + k}.mp4" for k in range(self.episodes)]

    def _policy_name(self) -> str:
        """The policy's part of the names: a run's folder has a name of its own, its file is nearly always checkpoint.pt."""
        if self.policy in POLICY_NAMES:
            return self.policy
        if os.path.isdir(self.policy):
            return os.path.basename(os.path.abspath(self.policy))  # the folder may be "."
        return Path(self.policy).stem


def record(options: Options, player: PolicyPlayer) -> Iterator[str]:
    """Make the videos of a robot task, and yield a line on each. ``options.env_id`` is a bare ID, of a registered task."""
    from .playing import film_tiled, make_player_env

    batches = 1 if options.tiled else -(-options.episodes // AT_A_TIME)
    n = -(-options.episodes // batches)
    row = CATALOG.get(options.env_id)
    camera = camera_for(row, options.size)
    settings = player.settings
    if options.sim_backend is not None:
        settings = dataclasses.replace(settings, sim_backend=options.sim_backend)
    own = read_task_kwargs(options.env_kwargs, REFUSED) | ({} if options.arm is None else {"arm": options.arm})
    say(f"making {n} environments of {options.env_id}")
    env = make_player_env(options.env_id, n, settings, "rgb_array", human_render_camera_configs=camera, **own)
    with contextlib.closing(env):
        env = _with_overlays(env, options.overlay)
        player.require_fit(env)
        for file in options.files():
            file.parent.mkdir(parents=True, exist_ok=True)  # an ID with a namespace names a folder
        for batch in range(batches):
            seeds = [options.seed + batch * n + i for i in range(n)]
            files = options.files()[batch * n : (batch + 1) * n]
            if options.tiled:
                success = film_tiled(env, player, seeds, files[0], HOLD)
                yield f"{files[0]}: {int(success.sum())} of {n} episodes with success"
            else:
                yield from _film(env, player, seeds, files)


def _with_overlays(env: Any, names: Sequence[OverlayName]) -> Any:
    """``env`` with overlays. Raises OptionError for one that does not fit the task."""
    from mikasa_robo.core.env import MemoryEnv
    from mikasa_robo.utils.wrappers import (
        DebugRewardWrapper,
        RenderRewardInfoWrapper,
        RenderStepInfoWrapper,
        with_task_info,
    )

    wrap = {
        "task": with_task_info,
        "step": RenderStepInfoWrapper,
        "reward": RenderRewardInfoWrapper,
        "terms": DebugRewardWrapper,
    }
    fitting = OVERLAYS if isinstance(env.unwrapped, MemoryEnv) else ANY_TASK
    for name in fitting if "all" in names else names:
        if name == "none":
            continue
        if name not in fitting:
            raise OptionError(
                f"--overlay {name} is for MIKASA's tasks; for {env.unwrapped.spec.id} use {', '.join(fitting)} or none"
            )
        env = wrap[name](env)
    return env


def _film(env: Any, player: PolicyPlayer, seeds: Sequence[int], files: Sequence[Path]) -> Iterator[str]:
    """Make a video of each of the first episodes, as many as there are ``files``."""
    import numpy as np

    from mikasa_robo.video import VideoWriter

    from .playing import play

    with contextlib.ExitStack() as stack:
        videos = [stack.enter_context(VideoWriter(path, hold=HOLD)) for path in files]
        lengths = np.zeros(len(seeds), dtype=int)
        for frame in play(env, player, seeds):
            lengths += frame.running
            for i, video in enumerate(videos):
                if frame.running[i]:
                    video.add(frame.images[i])
    for path, success, length in zip(files, frame.success, lengths, strict=False):
        yield f"{path}: {'success' if success else 'no success'} in {length - 1} steps"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa record")
    try:
        _check(options)
    except OptionError as error:
        print_error(error)
        return 2

    say("loading the simulator")
    from mikasa_robo.baselines.checkpoints import CheckpointError
    from mikasa_robo.baselines.files import find_policy_file
    from mikasa_robo.baselines.networks import NaNPolicyError
    from mikasa_robo.sim.render import RenderingUnavailableError
    from mikasa_robo.video import VideoError

    from .checkpoint import import_foreign
    from .playing import UnsuitablePolicyError, load_player

    try:
        import_foreign(options.algorithm, options.network, options.memory)
        found = options.policy  # stays as it was asked for in ``options``: the names of the videos were checked with it
        if options.policy not in POLICY_NAMES:
            found = str(find_policy_file(Path(options.policy)))
            if found != options.policy:  # the folder of a run
                print(f"policy: {found}")
        options = dataclasses.replace(options, env_id=_resolve(options))
        robot_task = _is_robot_task(options.env_id)
        (_check_policy if robot_task else _check_gymnasium)(options)
        for line in (record if robot_task else _record_gymnasium)(options, load_player(found, options.memory)):
            print(line, flush=True)
    except (
        OptionError,
        CheckpointError,
        FileNotFoundError,
        NaNPolicyError,
        UnsuitablePolicyError,
        RenderingUnavailableError,
        VideoError,
    ) as error:
        print_error(error)
        return 2
    return 0


def _resolve(options: Options) -> str:
    """The bare ID of a registered task. Raises OptionError if there is no such task."""
    if options.policy not in POLICY_NAMES and ":" not in options.env_id:
        from .checkpoint import read_checkpoint, resolve_checkpoint_env_id

        checkpoint = read_checkpoint(Path(options.policy))
        if checkpoint.env_id == options.env_id:  # it may know the module that has to be named
            return resolve_checkpoint_env_id(checkpoint, None)
    return resolve_env_id(options.env_id)


def _check(options: Options) -> None:
    """Check what does not depend on the task. Raises OptionError."""
    if options.policy not in POLICY_NAMES and not os.path.exists(options.policy):
        names = ", ".join(name for name in POLICY_NAMES if name not in EARLIER_NAMES)
        raise OptionError(f"--policy {options.policy} is not a file; give a checkpoint, or one of {names}")
    most = MOST_TILES if options.tiled else MOST_VIDEOS
    if not 1 <= options.episodes <= most:
        raise OptionError(f"--episodes {options.episodes} must be from 1 to {most}")
    if not 0 <= options.seed <= MOST_SEED:
        raise OptionError(f"--seed {options.seed} must be from 0 to {MOST_SEED}")
    if not SIZES[0] <= options.size <= SIZES[1] or options.size % 2:
        raise OptionError(f"--size {options.size} must be an even number of pixels from {SIZES[0]} to {SIZES[1]}")
    if len(options.overlay) != len(set(options.overlay)) or (
        len(options.overlay) > 1 and {"all", "none"} & {*options.overlay}
    ):
        words = " ".join(options.overlay)
        raise OptionError(f"--overlay {words}: give all, none, or some of {', '.join(OVERLAYS)}, each once")
    read_task_kwargs(options.env_kwargs, REFUSED)
    require_new_files(options.out, options.files())


def _is_robot_task(env_id: str) -> bool:
    import mikasa_base

    if env_id in CATALOG or env_id in mikasa_base.VARIANTS:  # no need for ManiSkill to know
        return env_id in CATALOG
    from mikasa_robo.baselines.environments import is_robot_task

    return is_robot_task(env_id)


def _check_gymnasium(options: Options) -> None:
    """Raises OptionError for an option that is for robot tasks only."""
    env_id = options.env_id
    if options.policy in POLICY_NAMES and options.policy != "random":
        raise OptionError(
            f"--policy {options.policy}: {env_id} is not a robot task and has no expert; use random, or a checkpoint"
        )
    for name in ("arm", "sim_backend"):
        if (value := getattr(options, name)) is not None:
            raise OptionError(f"--{name.replace('_', '-')} {value} is for robot tasks; leave it out for {env_id}")
    for overlay in options.overlay:
        if overlay not in ("all", "none", *ANY_TASK):
            raise OptionError(
                f"--overlay {overlay} is for MIKASA's robot tasks; for {env_id} use {', '.join(ANY_TASK)} or none"
            )


def _record_gymnasium(options: Options, player: Any) -> Iterator[str]:
    """`record` for other environments."""
    from . import record_gymnasium

    overlay = ANY_TASK if "all" in options.overlay else options.overlay
    actor = record_gymnasium.RandomActor() if options.policy == "random" else record_gymnasium.CheckpointActor(player)
    seeds = [options.seed + k for k in range(options.episodes)]
    return record_gymnasium.record(
        options.env_id,
        actor,
        seeds,
        options.files(),
        size=options.size,
        overlay=overlay,
        tiled=options.tiled,
        env_kwargs=read_task_kwargs(options.env_kwargs, REFUSED),
    )


def _check_policy(options: Options) -> None:
    """Raises OptionError where the task has no such policy, or cannot hold the arm."""
    row = CATALOG.get(options.env_id)
    if options.policy in POLICY_NAMES:
        from mikasa_robo.experts.registry import has_skill

        if not has_skill(options.env_id):
            raise OptionError(
                f"--policy {options.policy}: {options.env_id} has no expert, so no scripted policy; give a checkpoint"
            )
    if options.arm is not None and row is None:
        raise OptionError(f"--arm {options.arm} is for MIKASA's tasks; leave it out for {options.env_id}")
    if options.arm == "held" and row is not None and not row.can_hold_arm:
        raise OptionError(
            f"--arm held would hold the arm for the whole episode: {options.env_id} has no response phase; leave it out"
        )


__getattr__ = deprecated_names(
    __name__,
    {
        "Frame": "mikasa_robo.tools.playing:Frame",
        "Player": "mikasa_robo.tools.playing:load_player",
        "UnsuitablePolicyError": "mikasa_robo.tools.playing:UnsuitablePolicyError",
        "Video": "mikasa_robo.video:VideoWriter",
        "View": "mikasa_robo.catalog:CameraView",
        "play": "mikasa_robo.tools.playing:play",
    },
)


if __name__ == "__main__":
    sys.exit(main())
