"""``mikasa lifelong play``: the policies of a run as they were after some stages, on one of its tasks.

    mikasa lifelong play --run runs/ST1__ft1__1 --task 1 --stages 1 4 --video forgot.mp4

Plays the first task of the stream with the policy after stage 1, which has just learnt it, and with the one after stage 4,
which has learnt three others since. The video shows the same episodes of both side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from mikasa_robo.terminal import print_error

from .errors import LifelongError
from .film import FPS, side_by_side
from .stages import SavedStages
from .stream import DrawableTask, Policy, Scores, TaskStream

__all__ = ["Args", "main"]

VIDEO_EPISODES = 3


@dataclass
class Args:
    """Play a task with the policies that a run had after some of its stages."""

    run: Path
    """Folder of the run, which may still be going on."""
    task: int = 1
    """The task: its place in the stream, counted from 1."""
    stages: tuple[int, ...] = ()
    """After which stages; 0 is before any training. By default after the one that learns the task, and after the last."""
    episodes: int | None = None
    """Episodes, or test items, to play; by default as many as the run's evaluations have."""
    video: Path | None = None
    """Also write this MP4, a new file: the first episodes of each policy side by side, at twice the true speed."""
    video_episodes: int | None = None
    """Episodes in the video, by default 3."""


@dataclass
class _Played:
    """A policy after a stage."""

    stage: int
    label: str
    policy: Policy
    scores: Scores


def _chosen_stages(args: Args, saved: SavedStages) -> tuple[int, ...]:
    if args.stages:
        saved.require(args.stages)
        return tuple(dict.fromkeys(args.stages))
    own = [number for number in saved.numbers if number == args.task]
    return tuple(dict.fromkeys([*own, saved.numbers[-1]]))


def _check(args: Args) -> None:
    for name, value in (("--episodes", args.episodes), ("--video-episodes", args.video_episodes)):
        if value is not None and value < 1:
            raise LifelongError(f"{name} {value} must be at least 1")
    if args.video is None and args.video_episodes is not None:
        raise LifelongError(f"--video-episodes {args.video_episodes} needs --video, the name of the file")
    if args.video is not None:
        from mikasa_robo.tools.extras import require_modules
        from mikasa_robo.tools.output import require_new_file

        if args.video.suffix != ".mp4":
            raise LifelongError(f"--video {args.video} is not the name of an MP4 file; let it end in .mp4")
        require_new_file(args.video, "--video")
        require_modules("train", "imageio", "imageio_ffmpeg")


def _after(stage: int, stream: TaskStream, joint: bool) -> str:
    if stage == 0:
        return "before any training"
    return f"after stage {stage}, {'all tasks' if joint else stream.row.tasks[stage - 1]}"


def _play(args: Args) -> list[_Played]:
    """Evaluate each stage's policy, and print its score."""
    from mikasa_robo.baselines.evaluation import torch_threads

    saved = SavedStages.find(args.run)
    played: list[_Played] = []
    for stage in _chosen_stages(args, saved):
        run, stream, learner = saved.load(stage)
        K = len(stream)
        if not 1 <= args.task <= K:
            raise LifelongError(f"--task {args.task}: {run.stream} has the tasks 1 to {K}")
        task = stream.tasks[args.task - 1]
        if args.video is not None and not isinstance(task, DrawableTask):
            name = stream.row.tasks[args.task - 1]
            raise LifelongError(f"--video {args.video}: {name} cannot be drawn, as the mazes can; leave --video out")
        stream.require_episodes(args.episodes)
        if not played:
            print(f"{run.stream}, {run.learner}, seed {run.seed}: task {args.task}, {stream.row.tasks[args.task - 1]}")
        policy = learner.policy(args.task - 1)
        with torch_threads(run.torch_threads):
            scores = task.evaluate(policy, args.episodes or run.episodes)
        label = _after(stage, stream, run.learner_row.joint)
        print(f"  {label}: {scores.value:.1%} of {scores.trials}")
        played.append(_Played(stage, label, policy, scores))
    if args.video is not None:
        assert isinstance(task, DrawableTask)
        _film(args, args.video, task, played)
    return played


def _film(args: Args, path: Path, task: DrawableTask, played: Sequence[_Played]) -> None:
    from mikasa_robo.video import write_video

    captions = [f"{one.label}: {one.scores.successes} of {one.scores.trials} succeed" for one in played]

    def frames() -> Iterator[NDArray[np.uint8]]:
        for episode in range(VIDEO_EPISODES if args.video_episodes is None else args.video_episodes):
            each = [task.frames(one.policy, episode) for one in played]
            yield from side_by_side(each, captions)

    write_video(path, frames(), FPS, overwrite=False)
    print(f"written: {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    args = tyro.cli(Args, args=argv, prog="mikasa lifelong play", description=__doc__)
    from mikasa_robo.tools.env_ids import OptionError
    from mikasa_robo.video import VideoError

    try:
        _check(args)
        _play(args)
    except (LifelongError, OptionError, ModuleNotFoundError, VideoError) as error:
        print_error(error)
        return 2
    return 0
