"""``mikasa record``: videos of episodes, with what there is to know about them written on the pictures."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
import tyro
from mani_skill.utils import sapien_utils
from numpy.typing import NDArray

import mikasa_robo
from mikasa_robo.baselines import ppo_lstm
from mikasa_robo.baselines.arguments import read_env_kwargs
from mikasa_robo.baselines.checkpoints import CheckpointError, load_policy, load_recurrent_policy
from mikasa_robo.baselines.spaces import ObservationLayout
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.policies import OBS_MODE
from mikasa_robo.experts.registry import has_skill, make_skill
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.utils.wrappers import (
    DebugRewardWrapper,
    RenderRewardInfoWrapper,
    RenderStepInfoWrapper,
    with_task_info,
)

from .evaluate import read_subject
from .expert import PolicyName, policy_maker

__all__ = ["Frame", "Player", "main", "play"]

OverlayName = Literal["all", "none", "task", "step", "reward", "terms"]
OVERLAYS: dict[str, Callable[[Any], gym.Env[Any, Any]]] = {
    "task": with_task_info,
    "step": RenderStepInfoWrapper,
    "reward": RenderRewardInfoWrapper,
    "terms": DebugRewardWrapper,
}
CONTROL_MODE = "pd_joint_delta_pos"
"""Of the scripted policies."""
FPS = 20
"""Frames a second: as many as control steps, so that a video shows the true speed."""
HOLD = FPS
"""Frames for which the last picture of an episode stays."""
AT_A_TIME = 4
"""Episodes that are simulated and drawn side by side, each for a video of its own."""
SIZES = (128, 2048)  # pixels

Pictures = NDArray[np.uint8]
Point = tuple[float, float, float]


@dataclass(frozen=True)
class View:
    """From where a task is filmed: the camera's place and what it looks at, m, its field of view, rad."""

    eye: Point
    target: Point
    fov: float

    def camera(self, size: int) -> dict[str, Any]:
        """What ``human_render_camera_configs`` of a task takes, for pictures (size, size, 3)."""
        return {"width": size, "height": size, "fov": self.fov, "pose": sapien_utils.look_at(self.eye, self.target)}


WHOLE_TABLE = View((0.85, -0.15, 0.75), (-0.1, -0.17, 0.06), 1.05)
"""Takes in the way of a ball that rolls across the table."""
VIEWS: dict[str, View] = {"Intercept": WHOLE_TABLE, "InterceptGrab": WHOLE_TABLE}
"""Of families that the usual view shows in part only."""
USUAL_VIEW = View((0.75, 0.0, 0.75), (-0.12, 0.0, 0.08), 0.9)


@dataclass
class Options:
    """Record videos of a policy, an MP4 for each episode. Nothing that exists is overwritten."""

    env_id: str
    """The task."""
    policy: str = "expert"
    """expert, or a twin of it (forgetful, memoryless, sweeper, embodied, random), or the checkpoint file of a policy that
    was trained on `state`."""
    episodes: int = 3
    """How many; episode k is that of the seed `seed` + k."""
    overlay: tuple[OverlayName, ...] = ("all",)
    """What is written on the pictures: task (what is to be remembered, phase, mistakes), step, reward, terms (of the
    reward); all of it or none."""
    tiled: bool = False
    """Makes one video with all episodes side by side; those that are over stand still."""
    seed: int = 0
    """Of the first episode."""
    arm: Literal["free", "held"] | None = None
    """held keeps the arm still until the response phase; by default as the policy was trained; free for a scripted one."""
    size: int = 512
    """Height and width of an episode's picture, pixels."""
    out: Path = Path("videos")
    """The folder for the videos."""

    def files(self) -> list[Path]:
        """The videos to make."""
        policy = self.policy if self.policy in get_args(PolicyName) else Path(self.policy).stem
        name = f"{self.env_id}_{policy}_seed{self.seed}"
        if self.tiled:
            return [self.out / f"{name}_tiled{self.episodes}.mp4"]
        return [self.out / f"{self.env_id}_{policy}_seed{self.seed + k}.mp4" for k in range(self.episodes)]


@dataclass
class Frame:
    """What `play` gives at each control step."""

    pictures: Pictures  # (N, H, W, 3) uint8
    running: NDArray[np.bool_]  # (N,) the episode was not over before this step
    success: NDArray[np.bool_]  # (N,) there was a success so far


class UnsuitablePolicyError(ValueError):
    """A policy was trained on another task than the one it is to act in."""


class Player:
    """A policy by its name or its checkpoint, for a batch of environments.

    Raises:
        CheckpointError, FileNotFoundError: there is no policy in the file.
    """

    def __init__(self, policy: str) -> None:
        self.scripted = policy in get_args(PolicyName)
        self._name = policy
        self.obs_mode = OBS_MODE
        """What the policy looks at."""
        self.control_mode = CONTROL_MODE
        """The robot's controller that it acts through."""
        self.env_kwargs: dict[str, Any] = {}
        """Arguments of the task that it was trained with."""
        if not self.scripted:
            trained = read_subject(Path(policy)).args
            self.obs_mode = trained.obs or trained.default_obs
            self.control_mode = trained.control_mode
            self.env_kwargs = read_env_kwargs(trained.env_kwargs)
            self._recurrent = trained.algorithm == ppo_lstm.Args.algorithm
            self._network: Any = load_recurrent_policy(policy) if self._recurrent else load_policy(policy)

    def begin(self, env: gym.Env[Any, Any]) -> Callable[[Any, dict[str, Any]], Any]:
        """What maps an observation and the info that came with it to actions, for one episode in each environment.

        Raises UnsuitablePolicyError, see `require_fit`.
        """
        task: Any = env.unwrapped
        if self.scripted:
            name: Any = self._name
            policy = policy_maker(name)(make_skill(task.spec.id, task))
            policy.reset()
            return policy.act
        self.require_fit(env)
        network = self._network.to(task.device)
        # a player of its own for each round of episodes: it begins with an empty memory
        act = ppo_lstm.Player(network).act if self._recurrent else network.act
        return lambda obs, info: act(obs)

    def require_fit(self, env: gym.Env[Any, Any]) -> None:
        """Raises UnsuitablePolicyError where the checkpoint was trained on something else than ``env``."""
        if self.scripted:
            return
        task: Any = env.unwrapped
        layout = ObservationLayout.of(task.single_observation_space)
        expected = self._network.obs_dim, self._network.action_dim
        found = layout.width, task.single_action_space.shape[-1]
        if expected != found or layout != self._network.layout:
            raise UnsuitablePolicyError(
                f"--policy {self._name} maps {expected[0]} numbers to {expected[1]}, {task.spec.id} needs {found[0]} to "
                f"{found[1]}: it was trained on another task"
            )


@torch.no_grad()
def play(env: Any, player: Player, seeds: Sequence[int], every: int = 1) -> Iterator[Frame]:
    """One episode in each environment, until all are over, drawn at each ``every``-th control step and at the last.

    Args:
        env: a batch of tasks, with overlays or without.
        player: what acts.
        seeds: of each environment's episode.
        every: 0 draws nothing, and gives the last frame only, without pictures.
    """
    obs, info = env.reset(seed=list(seeds))
    act = player.begin(env)
    running = np.ones(len(seeds), dtype=bool)
    success = np.zeros(len(seeds), dtype=bool)
    nothing = np.zeros((len(seeds), 0, 0, 3), dtype=np.uint8)
    if every:
        yield Frame(_drawn(env), running, success)
    for t in range(1, env.unwrapped.horizon + 1):
        obs, _, terminated, truncated, info = env.step(act(obs, info))
        success = success | (info["success"].cpu().numpy() & running)
        after = running & ~(terminated | truncated).cpu().numpy()
        # an episode that ends between two of the steps that are drawn is drawn at its end as well
        if every and (t % every == 0 or (after != running).any()):
            yield Frame(_drawn(env), running, success)
        running = after
        if not running.any():
            break
    if not every:
        yield Frame(nothing, running, success)


def _drawn(env: Any) -> Pictures:
    pictures: Pictures = torch.as_tensor(env.render()).cpu().numpy()
    return pictures


class Video:
    """An MP4 that gets its name only once it is whole, and never takes that of another file."""

    def __init__(self, path: Path) -> None:
        import imageio.v2 as imageio

        self.path = path
        self._partial = path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name}")
        self._writer: Any = imageio.get_writer(self._partial, format="FFMPEG", fps=FPS, macro_block_size=2)
        self._last: Pictures | None = None

    def add(self, picture: Pictures) -> None:
        """Appends a picture (H, W, 3)."""
        self._writer.append_data(picture)
        self._last = picture

    def finish(self) -> None:
        """Shows the last picture for a while and gives the file its name. Raises FileExistsError where that is taken."""
        for _ in range(HOLD if self._last is not None else 0):
            self._writer.append_data(self._last)
        self._writer.close()
        self.path.touch(exist_ok=False)  # claims the name, whoever else may want it
        os.replace(self._partial, self.path)

    def discard(self) -> None:
        """Removes what has no name of its own."""
        self._writer.close()
        self._partial.unlink(missing_ok=True)


def record(options: Options, player: Player) -> Iterator[str]:
    """Makes the videos and says of each what it shows."""
    batches = 1 if options.tiled else -(-options.episodes // AT_A_TIME)
    n = -(-options.episodes // batches)
    view = VIEWS.get(CATALOG[options.env_id].family, USUAL_VIEW)
    kwargs: dict[str, Any] = {**player.env_kwargs, **({"arm": options.arm} if options.arm else {})}
    env: Any = mikasa_robo.make_env(
        options.env_id,
        n,
        obs_mode=player.obs_mode,
        control_mode=player.control_mode,
        render_mode="rgb_array",
        human_render_camera_configs=view.camera(options.size),
        **kwargs,
    )
    with contextlib.closing(env):
        for name in OVERLAYS if options.overlay == ("all",) else options.overlay:
            env = OVERLAYS[name](env) if name != "none" else env
        player.require_fit(env)
        options.out.mkdir(parents=True, exist_ok=True)
        for batch in range(batches):
            seeds = [options.seed + batch * n + i for i in range(n)]
            files = options.files()[batch * n : (batch + 1) * n]
            won = _film_tiled(env, player, seeds, files[0]) if options.tiled else _film(env, player, seeds, files)
            for path, text in zip(files, won, strict=True):
                yield f"{path}: {text}"


def _film(env: Any, player: Player, seeds: Sequence[int], files: Sequence[Path]) -> list[str]:
    """A video of each of the first episodes, as many as there are ``files``."""
    with contextlib.ExitStack() as stack:
        videos = [Video(path) for path in files]
        for video in videos:
            stack.callback(video.discard)
        lengths = np.zeros(len(seeds), dtype=int)
        for frame in play(env, player, seeds):
            lengths += frame.running
            for i, video in enumerate(videos):
                if frame.running[i]:
                    video.add(frame.pictures[i])
        for video in videos:
            video.finish()
    words = ["success" if won else "no success" for won in frame.success]
    return [f"{words[i]} in {lengths[i] - 1} steps" for i in range(len(files))]


def _film_tiled(env: Any, player: Player, seeds: Sequence[int], path: Path) -> list[str]:
    """One video of all episodes."""
    from mani_skill.utils.visualization.misc import tile_images

    rows = max(1, round(len(seeds) ** 0.5))
    video = Video(path)
    with contextlib.ExitStack() as stack:
        stack.callback(video.discard)
        shown: Pictures | None = None
        for frame in play(env, player, seeds):
            still = ~frame.running[:, None, None, None]
            shown = frame.pictures if shown is None else np.where(still, shown, frame.pictures)
            video.add(tile_images(list(shown), nrows=rows))
        video.finish()
    return [f"{int(frame.success.sum())} of {len(seeds)} episodes with success"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` and returns its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa record")
    problem = _problem(options)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    try:
        for line in record(options, Player(options.policy)):
            print(line)
    except (CheckpointError, UnsuitablePolicyError, RenderingUnavailableError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _problem(options: Options) -> str | None:
    if options.env_id not in CATALOG:
        return f"--env-id {options.env_id}: there is no such task; `mikasa list` shows all"
    scripted = get_args(PolicyName)
    if options.policy in scripted and not has_skill(options.env_id):
        return f"--policy {options.policy}: {options.env_id} has no scripted policy; give a checkpoint"
    if options.policy not in scripted and not Path(options.policy).is_file():
        return f"--policy {options.policy}: is no file; give a checkpoint or one of {', '.join(scripted)}"
    if options.episodes < 1:
        return f"--episodes {options.episodes} must be at least 1"
    if options.seed < 0:
        return f"--seed {options.seed} must be at least 0"
    if not SIZES[0] <= options.size <= SIZES[1] or options.size % 2:
        return f"--size {options.size} must be an even number of pixels from {SIZES[0]} to {SIZES[1]}"
    if len(options.overlay) != len(set(options.overlay)) or (
        len(options.overlay) > 1 and {"all", "none"} & {*options.overlay}
    ):
        return f"--overlay {' '.join(options.overlay)}: give all, none or some of {', '.join(OVERLAYS)}, each once"
    if options.arm == "held" and not CATALOG[options.env_id].response:
        return f"--arm held would hold the arm for ever: {options.env_id} is acted in while its cue is on view"
    if options.out.exists() and not options.out.is_dir():
        return f"--out {options.out} is no folder: choose another name"
    taken = [str(path) for path in options.files() if path.exists()]
    if taken:
        return f"--out {options.out} holds {', '.join(taken)} already: choose another folder, or move them away"
    return None
