"""Draws a strip of frames for each family of tasks: ``python docs/make_pictures.py``, into docs/pictures/<Family>.png.

The arm keeps still. What it should do to the objects is shown, where a picture of the task needs it, by putting them
there. Seeds and moments are fixed below; needs a Vulkan driver that SAPIEN can draw with.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from mani_skill.utils import sapien_utils
from mani_skill.utils.geometry.rotation_conversions import quaternion_raw_multiply
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.env import MemoryEnv

SIZE = 320  # pixels of a frame
GAP = 4  # pixels between frames
CAPTION_HEIGHT, FONT_SIZE = 28, 18  # pixels
SHADE_BITS = 6  # of a colour channel: what wood grain has below that makes large PNGs

Task = MemoryEnv[Any]
Change = Callable[[Task], dict[int, Tensor]]
"""Gives the poses (7,) that some objects, by their number, are put at."""


@dataclass(frozen=True)
class Frame:
    """What is drawn at time ``t`` in control steps, after ``change``; ``caption`` may name the ``{prompt}`` in degrees."""

    t: int
    caption: str
    change: Change | None = None


@dataclass(frozen=True)
class Camera:
    """Where the camera is and what it looks at, m, and its field of view, rad."""

    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    fov: float


WIDE = Camera((0.7, 0.0, 0.62), (-0.04, 0.0, 0.06), 0.8)
"""Takes in the arc of objects."""
NEAR = Camera((0.7, 0.0, 0.7), (0.0, 0.0, 0.08), 0.52)
"""Takes in what stands in the middle of the table."""
AHEAD = Camera((0.8, 0.0, 0.75), (0.08, 0.0, 0.08), 0.55)
"""Takes in the middle of the table and what lies ahead of it."""

ACROSS = Camera((0.85, -0.2, 0.75), (-0.1, -0.22, 0.06), 0.95)
"""Takes in the way of a ball that rolls across the table."""


@dataclass(frozen=True)
class Strip:
    """The frames of one episode: of env 0 at ``reset(seed=seed)``, in the order of time."""

    env_id: str
    seed: int
    frames: Sequence[Frame]
    camera: Camera = WIDE


def lifted_mug(task: Task) -> dict[int, Tensor]:
    """The right mug, over the ball that it covered."""
    k = 1 + int(task.task_state.target)
    pose = task.object_layout.read()[0, k, :7].clone()
    pose[2] += 0.15
    return {k: pose}


def ball_on_disc(task: Task) -> dict[int, Tensor]:
    pose = task.object_layout.read()[0, 0, :7].clone()
    pose[:2] = task.task_state.goal[0, :2]
    return {0: pose}


def ball_in_hand(task: Task) -> dict[int, Tensor]:
    return {0: task.agent.tcp.pose.raw_pose[0].clone()}


def cube_on_goal(task: Task) -> dict[int, Tensor]:
    pose = task.object_layout.read()[0, 0, :7].clone()
    pose[:2] = task.task_state.goal[0]
    return {0: pose}


def cube_at_start(task: Task) -> dict[int, Tensor]:
    pose = task.object_layout.read()[0, 0, :7].clone()
    pose[:3] = task.task_state.start[0]
    return {0: pose}


def turned_peg(task: Task) -> dict[int, Tensor]:
    """The peg, turned about the vertical by the angle that the prompt asks for."""
    pose = task.object_layout.read()[0, 0, :7].clone()
    half = prompted_angle(task) / 2
    turn = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])
    pose[3:] = quaternion_raw_multiply(turn, pose[3:])
    return {0: pose}


def turned_and_moved_peg(task: Task) -> dict[int, Tensor]:
    pose = turned_peg(task)[0]
    pose[:2] += torch.tensor([-0.08, 0.08])
    return {0: pose}


def prompted_angle(task: Task) -> float:
    """The prompt of a task whose prompt is an angle, rad; 0 where there is no prompt."""
    prompt = task.prompt(task.task_state)
    return 0.0 if prompt is None else float(prompt[0, 0])


def cue_delay_response(response: str) -> tuple[Frame, ...]:
    """Of the tasks with one cue of 5 steps and a delay of 5."""
    return Frame(0, "cue: t = 0"), Frame(7, "delay: t = 7"), Frame(10, response)


def one_by_one(response: str) -> tuple[Frame, ...]:
    """Of the tasks that show three cubes one after another, each for 5 steps, then nothing for 5 steps."""
    return *(Frame(5 * k, f"cue: t = {5 * k}") for k in range(3)), Frame(20, response)


STRIPS: dict[str, Strip] = {
    "ShellGame": Strip(
        "ShellGamePick-v0",
        0,
        (
            Frame(0, "cue: t = 0"),
            Frame(5, "response: which mug?"),
            Frame(6, "the right one, lifted", lifted_mug),
        ),
        NEAR,
    ),
    "Intercept": Strip(
        "InterceptMedium-v0",
        0,
        (Frame(0, "t = 0: a ball rolls in"), Frame(15, "t = 15"), Frame(30, "guided into the disc", ball_on_disc)),
        ACROSS,
    ),
    "InterceptGrab": Strip(
        "InterceptGrabMedium-v0",
        1,
        (Frame(0, "t = 0: a ball rolls in"), Frame(15, "t = 15"), Frame(30, "caught and lifted", ball_in_hand)),
        ACROSS,
    ),
    "RotateLenient": Strip(
        "RotateLenientPosNeg-v0",
        7,
        (Frame(0, "t = 0: turn by {prompt:+.0f}°"), Frame(3, "turned, here or there", turned_and_moved_peg)),
        NEAR,
    ),
    "RotateStrict": Strip(
        "RotateStrictPos-v0",
        3,
        (Frame(0, "t = 0: turn by {prompt:+.0f}°"), Frame(3, "turned about its centre", turned_peg)),
        NEAR,
    ),
    "TakeItBack": Strip(
        "TakeItBack-v0",
        2,
        (
            Frame(0, "t = 0: to the disc"),
            Frame(3, "it turns magenta:", cube_on_goal),
            Frame(5, "back to the start", cube_at_start),
        ),
        AHEAD,
    ),
    "RememberColor": Strip("RememberColor9-v0", 1, cue_delay_response("response: which one?")),
    "RememberShape": Strip("RememberShape9-v0", 1, cue_delay_response("response: which one?")),
    "RememberShapeAndColor": Strip("RememberShapeAndColor5x3-v0", 1, cue_delay_response("response: which one?")),
    "BunchOfColors": Strip("BunchOfColors5-v0", 0, cue_delay_response("response: touch all 5"), NEAR),
    "SeqOfColors": Strip("SeqOfColors3-v0", 4, one_by_one("response: touch all 3"), NEAR),
    "ChainOfColors": Strip("ChainOfColors3-v0", 1, one_by_one("response: in this order"), NEAR),
}


def step(env: Any) -> None:
    """A control step in which the arm stays where it is, the gripper open."""
    action = torch.zeros(1, env.action_space.shape[-1])
    action[:, -1] = 1
    env.step(action)


def put(env: Any, poses: dict[int, Tensor]) -> None:
    """Puts objects at poses; the task hears of it in the step that follows."""
    task: Task = env.unwrapped
    home = task.object_layout.read()[..., :7].clone()
    chosen = torch.zeros(home.shape[:2], dtype=torch.bool)
    for k, pose in poses.items():
        home[0, k], chosen[0, k] = pose, True
    task.object_layout.apply(chosen, torch.ones_like(chosen), home)


def draw_frames(strip: Strip) -> list[Image.Image]:
    """The frames of a strip."""
    camera = {
        "width": SIZE,
        "height": SIZE,
        "fov": strip.camera.fov,
        "pose": sapien_utils.look_at(strip.camera.eye, strip.camera.target),
    }
    env: Any = gym.make(strip.env_id, num_envs=1, render_mode="rgb_array", human_render_camera_configs=camera)
    env.reset(seed=strip.seed)
    frames, t = [], 0
    for frame in strip.frames:
        # a change is made one step before, so that the task has seen it
        for now in range(t, frame.t):
            if frame.change is not None and now == frame.t - 1:
                put(env, frame.change(env.unwrapped))
            step(env)
        t = frame.t
        degrees = math.degrees(prompted_angle(env.unwrapped))
        picture = Image.fromarray(env.render()[0].cpu().numpy())
        frames.append(captioned(picture, frame.caption.format(prompt=degrees)))
    env.close()
    return frames


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
    """Draws a picture of each family of tasks."""

    out: Path = Path(__file__).parent / "pictures"
    """The folder to write to."""
    family: tuple[str, ...] = ()
    """Only these families; by default all that exist."""


def main(argv: Sequence[str] | None = None) -> int:
    """Draws and writes; the exit code is 2 where a family is not known."""
    args = tyro.cli(Args, args=argv)
    existing = list(dict.fromkeys(CATALOG[env_id].family for env_id in mikasa_robo.TASKS))
    wanted = args.family or [family for family in existing if family in STRIPS]
    unknown = [family for family in wanted if family not in existing or family not in STRIPS]
    if unknown:
        print(f"--family {' '.join(unknown)}: use some of {', '.join(f for f in existing if f in STRIPS)}")
        return 2
    warnings.filterwarnings("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    for family in wanted:
        path = args.out / f"{family}.png"
        side_by_side(draw_frames(STRIPS[family])).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
