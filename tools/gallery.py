"""``mikasa gallery``: a looping picture of each family of tasks, as the expert does it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from PIL import Image

import mikasa_robo
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.utils.wrappers import RenderStepInfoWrapper

from .record import WHOLE_TABLE, Pictures, Player, View, play

__all__ = ["SCENES", "main"]

SEEDS = 8
"""The first of so many episodes in which the expert succeeds is drawn."""
EVERY, MILLISECONDS = 2, 100
"""A picture for each second control step, in true speed."""
HOLD = 1500
"""For how long the last picture stays, ms."""
LIMIT = 300_000
"""Largest size of a file, bytes."""
QUALITIES = (75, 60, 45, 30, 15)
"""Of WebP, best first: the first one that keeps to `LIMIT` is taken."""

NEAR = View((0.7, 0.0, 0.72), (-0.02, 0.0, 0.12), 0.6)
"""Takes in what lies in the middle of the table."""
ARC = View((0.7, 0.0, 0.65), (-0.05, 0.0, 0.1), 0.78)
"""Takes in an arc of objects."""
AHEAD = View((0.85, 0.0, 0.75), (0.07, 0.0, 0.1), 0.6)
"""Takes in the middle of the table and what lies ahead of it."""

SCENES: dict[str, tuple[str, View]] = {
    "ShellGame": ("ShellGamePick-v0", NEAR),
    "Intercept": ("InterceptMedium-v0", WHOLE_TABLE),
    "InterceptGrab": ("InterceptGrabMedium-v0", WHOLE_TABLE),
    "RotateLenient": ("RotateLenientPos-v0", NEAR),
    "RotateStrict": ("RotateStrictPosNeg-v0", NEAR),
    "TakeItBack": ("TakeItBack-v0", AHEAD),
    "RememberColor": ("RememberColor5-v0", ARC),
    "RememberShape": ("RememberShape9-v0", ARC),
    "RememberShapeAndColor": ("RememberShapeAndColor3x3-v0", ARC),
    "BunchOfColors": ("BunchOfColors3-v0", NEAR),
    "SeqOfColors": ("SeqOfColors3-v0", NEAR),
    "ChainOfColors": ("ChainOfColors3-v0", NEAR),
}
"""Each family's task that is drawn, and from where."""


@dataclass
class Options:
    """Draw a looping picture of each family of tasks, as its expert does it. Pictures of the same names are replaced."""

    out: Path = Path("docs/gallery")
    """The folder for the pictures, <Family>.webp each."""
    family: tuple[str, ...] = ()
    """Only these families."""
    size: int = 256
    """Height and width, pixels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` and returns its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa gallery")
    problem = _problem(options)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    try:
        for family in options.family or SCENES:
            path = options.out / f"{family}.webp"
            picture = encode(*draw(*SCENES[family], options.size))
            options.out.mkdir(parents=True, exist_ok=True)
            _replace(path, picture)
            print(f"{path}: {len(picture) / 1000:.0f} kB")
    except RenderingUnavailableError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _problem(options: Options) -> str | None:
    unknown = [family for family in options.family if family not in SCENES]
    if unknown:
        return f"--family {' '.join(unknown)}: use some of {', '.join(SCENES)}"
    if not 64 <= options.size <= 1024:
        return f"--size {options.size} must be a number of pixels from 64 to 1024"
    if options.out.exists() and not options.out.is_dir():
        return f"--out {options.out} is no folder: choose another name"
    return None


def draw(env_id: str, view: View, size: int) -> tuple[list[Pictures], list[int]]:
    """The pictures (size, size, 3) of an episode in which the expert succeeds, and how long each stays, ms.

    Raises RuntimeError where it succeeds in none of the first `SEEDS`.
    """
    player = Player("expert")
    seed = _first_success(env_id, player)
    env: Any = mikasa_robo.make_env(
        env_id,
        1,
        obs_mode=player.obs_mode,
        render_mode="rgb_array",
        human_render_camera_configs=view.camera(size),
    )
    with contextlib.closing(env):
        pictures = [frame.pictures[0] for frame in play(RenderStepInfoWrapper(env), player, [seed], EVERY)]
    return pictures, [MILLISECONDS] * (len(pictures) - 1) + [HOLD]


def _first_success(env_id: str, player: Player) -> int:
    env: Any = mikasa_robo.make_env(env_id, SEEDS, obs_mode=player.obs_mode)
    with contextlib.closing(env):
        (last,) = play(env, player, range(SEEDS), every=0)
    if not last.success.any():
        raise RuntimeError(f"the expert of {env_id} succeeds in none of the episodes of the seeds 0 to {SEEDS - 1}")
    return int(last.success.argmax())


def encode(pictures: Sequence[Pictures], milliseconds: Sequence[int]) -> bytes:
    """A looping WebP, as good as `LIMIT` allows or, where none keeps to it, the smallest."""
    images = [Image.fromarray(picture) for picture in pictures]
    for quality in QUALITIES:
        file = io.BytesIO()
        images[0].save(
            file,
            "WEBP",
            save_all=True,
            append_images=images[1:],
            duration=list(milliseconds),
            loop=0,
            quality=quality,
            method=4,
        )
        if file.tell() < LIMIT:
            break
    return file.getvalue()


def _replace(path: Path, data: bytes) -> None:
    """Writes a file in one go: a crash leaves the old one."""
    partial = path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
