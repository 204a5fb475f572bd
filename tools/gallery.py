"""``mikasa gallery``: a looping image of the expert in a task of each family."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from mikasa_robo.catalog import CATALOG, CameraView
from mikasa_robo.terminal import print_error

from .cameras import camera_config
from .env_ids import OptionError, resolve_env_id
from .output import require_folder
from .progress import say

if TYPE_CHECKING:  # the simulator is loaded once the options are known to be good
    from mikasa_robo.video import Images

    from .playing import PolicyPlayer

__all__ = ["Options", "main", "scenes"]

SEEDS = 8
"""Number of episodes to try; the first one in which the expert succeeds is drawn."""
EVERY, MILLISECONDS = 2, 100
"""An image for every second control step, in true speed."""
HOLD = 1500
"""Time for which the last image stays, ms."""
LIMIT = 300_000
"""Largest size of a file, bytes."""
QUALITIES = (75, 60, 45, 30, 15)
"""WebP qualities, best first; the first one with which a file is smaller than `LIMIT` is used."""
SIZES = (64, 1024)  # pixels


def scenes() -> dict[str, tuple[str, CameraView]]:
    """For each family the ID that is drawn and the camera, from the rows that name one."""
    return {row.family: (row.id, row.gallery) for row in CATALOG.values() if row.gallery is not None}


@dataclass
class Options:
    """Draw a looping WebP image of each family of tasks, under 300 kB. Existing images are replaced."""

    family: tuple[str, ...] = ()
    """Only these families, such as ShellGame TakeItBack."""
    env_id: tuple[str, ...] = ()
    """These tasks instead of families; module:ID imports the module first, for a task of your own with an expert."""
    out: Path = Path("docs/gallery")
    """The folder for the images, <family>.webp or <ID>.webp."""
    size: int = 256
    """Height and width, pixels."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa gallery")
    try:
        chosen = _chosen(options)
    except OptionError as error:
        print_error(error)
        return 2

    from mikasa_robo.baselines.files import write_atomically
    from mikasa_robo.sim.render import RenderingUnavailableError

    try:
        for name, (env_id, view) in chosen.items():
            path = options.out / f"{name}.webp"
            say(f"{name}: playing and drawing {env_id}")
            image = encode(*draw(env_id, view, options.size))
            options.out.mkdir(parents=True, exist_ok=True)
            write_atomically(path, image)
            print(f"{path}: {len(image) / 1000:.0f} kB", flush=True)
    except (OptionError, RenderingUnavailableError) as error:
        print_error(error)
        return 2
    return 0


def _chosen(options: Options) -> dict[str, tuple[str, CameraView]]:
    """What to draw, by the name of the file. Raises OptionError for an option that cannot be used."""
    families = scenes()
    unknown = [family for family in options.family if family not in families]
    if unknown:
        raise OptionError(f"--family {' '.join(unknown)}: no such family; use some of {', '.join(families)}")
    if options.family and options.env_id:
        raise OptionError("--family and --env-id exclude each other; leave one out")
    if not SIZES[0] <= options.size <= SIZES[1]:
        raise OptionError(f"--size {options.size} must be a number of pixels from {SIZES[0]} to {SIZES[1]}")
    require_folder(options.out, longest_name=max((f"{name}.webp" for name in families), key=len))
    if not options.env_id:
        return {family: families[family] for family in options.family or families}
    return {env_id: (env_id, _view_of(env_id)) for env_id in map(resolve_env_id, options.env_id)}


def _view_of(env_id: str) -> CameraView:
    """The camera for a task. Raises OptionError where the task has no expert."""
    from mikasa_robo.experts.registry import has_skill

    if not has_skill(env_id):
        raise OptionError(f"--env-id {env_id} has no expert, and the gallery shows the expert; leave it out")
    row, families = CATALOG[env_id], scenes()
    return families[row.family][1] if row.family in families else row.view


def draw(env_id: str, view: CameraView, size: int) -> tuple[list[Images], list[int]]:
    """The images (size, size, 3) of an episode in which the expert succeeds, and how long each stays, ms.

    Raises OptionError where it succeeds in none of the first `SEEDS`.
    """
    from mikasa_robo.utils.wrappers import RenderStepInfoWrapper

    from .playing import load_player, make_player_env, play

    player = load_player("expert")
    seed = _first_success(env_id, player)
    camera = camera_config(view, size)
    env = make_player_env(env_id, 1, player.settings, "rgb_array", human_render_camera_configs=camera)
    with contextlib.closing(env):
        images = [frame.images[0] for frame in play(RenderStepInfoWrapper(env), player, [seed], EVERY)]
    return images, [MILLISECONDS] * (len(images) - 1) + [HOLD]


def _first_success(env_id: str, player: PolicyPlayer) -> int:
    from .playing import make_player_env, play

    env: Any = make_player_env(env_id, SEEDS, player.settings, None)
    with contextlib.closing(env):
        (last,) = play(env, player, range(SEEDS), every=0)
    if not last.success.any():
        raise OptionError(f"--env-id {env_id}: the expert fails in all episodes of the seeds 0 to {SEEDS - 1}")
    return int(last.success.argmax())


def encode(images: Sequence[Images], milliseconds: Sequence[int]) -> bytes:
    """A looping WebP, of the best quality with which it is smaller than `LIMIT`, else of the lowest one."""
    from PIL import Image

    frames = [Image.fromarray(image) for image in images]
    for quality in QUALITIES:
        file = io.BytesIO()
        frames[0].save(
            file,
            "WEBP",
            save_all=True,
            append_images=frames[1:],
            duration=list(milliseconds),
            loop=0,
            quality=quality,
            method=4,
        )
        if file.tell() < LIMIT:
            break
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main())
