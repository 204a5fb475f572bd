"""Draw a strip of frames for each family of tasks: ``python docs/make_pictures.py``, into docs/pictures/<Family>.png.

A strip shows an episode in which the expert succeeds: the cue, the delay, the beginning of the response and the success.
The arm is held until the response. Needs a Vulkan driver that SAPIEN can render with.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from PIL import Image, ImageDraw, ImageFont, ImageOps

import mikasa_robo
from mikasa_robo.catalog import CATALOG, TaskSpec
from mikasa_robo.experts.policies import OBS_MODE, Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.tools.cameras import camera_config
from mikasa_robo.tools.gallery import scenes

SIZE = 320  # pixels of a frame
GAP = 4  # pixels between frames
CAPTION_HEIGHT, FONT_SIZE = 28, 18  # pixels
SHADE_BITS = 6  # of a colour channel: finer shades of the wood grain make large PNGs
SEEDS = 8
"""The strip shows the first of this many episodes in which the expert succeeds."""
MOST_CUES = 3
"""Cues of a sequence that are drawn."""


@dataclass(frozen=True)
class Frame:
    """What is drawn at time ``t``, in control steps."""

    t: int
    caption: str


def families() -> dict[str, TaskSpec]:
    """The row of each family that the documentation shows."""
    return {family: CATALOG[env_id] for family, (env_id, _) in scenes().items()}


def frames_of(row: TaskSpec, success: int) -> list[Frame]:
    """The frames of an episode that succeeds at t = ``success``, in the order of time."""
    if row.response:
        frames = [Frame(k * row.cue // row.cues, "cue") for k in range(min(row.cues, MOST_CUES))]
        if row.delay:
            frames.append(Frame(row.cue + row.delay // 2, "delay"))
        if row.cue + row.delay > 1:
            frames.append(Frame(row.cue + row.delay, "response"))
    else:
        frames = [Frame(0, "cue")]
    if len(frames) < 3:
        frames.append(Frame((frames[-1].t + success) // 2, "response" if row.response else "cue"))
    return [*frames, Frame(success, "success")]


def task_kwargs(row: TaskSpec) -> dict[str, Any]:
    """Arguments with which a strip's task is made."""
    return {"obs_mode": OBS_MODE, **({"arm": "held"} if row.response else {})}


@torch.no_grad()
def first_success(row: TaskSpec) -> tuple[int, int]:
    """The seed of the first episode in which the expert succeeds, and t at its success.

    Raises:
        RuntimeError: the expert does not succeed in any of the seeds below `SEEDS`.
    """
    env: Any = mikasa_robo.make_env(row.id, SEEDS, **task_kwargs(row))
    expert = Expert(make_skill(row.id, env.unwrapped))
    obs, info = env.reset(seed=list(range(SEEDS)))
    expert.reset()
    first = torch.zeros(SEEDS, dtype=torch.int64)
    for t in range(1, env.unwrapped.horizon + 1):
        obs, _, _, _, info = env.step(expert.act(obs, info))
        first[info["success"].cpu() & (first == 0)] = t
    env.close()
    if not first.any():
        raise RuntimeError(f"the expert of {row.id} does not succeed in the episodes of the seeds 0 to {SEEDS - 1}")
    seed = int((first > 0).to(torch.int64).argmax())
    return seed, int(first[seed])


@torch.no_grad()
def draw_frames(row: TaskSpec) -> list[Image.Image]:
    """The frames of a family's strip."""
    seed, success = first_success(row)
    assert row.gallery is not None
    camera = camera_config(row.gallery, SIZE)
    env: Any = mikasa_robo.make_env(
        row.id, 1, render_mode="rgb_array", human_render_camera_configs=camera, **task_kwargs(row)
    )
    expert = Expert(make_skill(row.id, env.unwrapped))
    obs, info = env.reset(seed=[seed])
    expert.reset()
    pictures, t = [], 0
    for frame in frames_of(row, success):
        for _ in range(t, frame.t):
            obs, _, _, _, info = env.step(expert.act(obs, info))
        t = frame.t
        prompt = f", {row.prompt} {float(info['prompt'][0, 0]):+.2f}" if row.prompt and t == 0 else ""
        picture = Image.fromarray(env.render()[0].cpu().numpy())
        pictures.append(captioned(picture, f"{frame.caption}: t = {t}{prompt}"))
    env.close()
    return pictures


def captioned(picture: Image.Image, text: str) -> Image.Image:
    """The picture over a line of text, (SIZE, SIZE + CAPTION_HEIGHT)."""
    frame = Image.new("RGB", (SIZE, SIZE + CAPTION_HEIGHT), (32, 32, 32))
    frame.paste(ImageOps.posterize(picture, SHADE_BITS), (0, 0))
    font = ImageFont.load_default(FONT_SIZE)
    ImageDraw.Draw(frame).text((6, SIZE + 3), text, fill=(255, 255, 255), font=font)
    return frame


def side_by_side(frames: Sequence[Image.Image]) -> Image.Image:
    """The frames in a row on white."""
    strip = Image.new("RGB", (len(frames) * (SIZE + GAP) - GAP, SIZE + CAPTION_HEIGHT), (255, 255, 255))
    for i, frame in enumerate(frames):
        strip.paste(frame, (i * (SIZE + GAP), 0))
    return strip


@dataclass
class Args:
    """Draw a strip of frames for each family of tasks."""

    out: Path = Path(__file__).parent / "pictures"
    """The folder to write to."""
    family: tuple[str, ...] = ()
    """Only these families."""


def main(argv: Sequence[str] | None = None) -> int:
    """Draw and write the strips. Returns the exit code, 2 if a family is not known."""
    args = tyro.cli(Args, args=argv)
    rows = families()
    unknown = [family for family in args.family if family not in rows]
    if unknown:
        print(f"--family {' '.join(unknown)}: use some of {', '.join(rows)}")
        return 2
    warnings.filterwarnings("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    for family in args.family or rows:
        path = args.out / f"{family}.png"
        side_by_side(draw_frames(rows[family])).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
