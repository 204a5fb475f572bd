"""Colours that can be told apart, a mug that hides its ball, and both as the cameras see them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from task_helpers import Env, base, make, still_action
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, MUG_HEIGHT, MUG_INNER_RADIUS, MUG_RADIUS
from mikasa_robo.assets.palette import COLORS, rgba
from mikasa_robo.core.env import ARM_JOINTS, START_QPOS
from mikasa_robo.core.seeds import episode_keys
from mikasa_robo.tasks.remember_color import RememberColor

LEAST_DIFFERENCE = 20.0
"""CIELAB distance (CIE76) of two colours that differ plainly: about ten times what an observer just notices."""


def lab(rgb: np.ndarray) -> np.ndarray:
    """sRGB (…, 3) in 0…255 to CIELAB under D65."""
    value = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ matrix.T / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


def differences(colors: dict[str, np.ndarray]) -> dict[tuple[str, str], float]:
    """CIELAB distance of every two."""
    return {
        (a, b): float(np.linalg.norm(lab(colors[a]) - lab(colors[b]))) for a, b in itertools.combinations(colors, 2)
    }


def test_lab_is_the_known_one() -> None:
    assert np.allclose(lab(np.array([255, 255, 255])), [100, 0, 0], atol=0.1)
    assert np.allclose(lab(np.array([255, 0, 0])), [53.2, 80.1, 67.2], atol=0.2)


def test_the_palette_has_nine_colours_in_order_and_all_differ() -> None:
    names = ["red", "lime", "blue", "yellow", "magenta", "cyan", "maroon", "olive", "teal"]
    assert list(COLORS) == names
    found = differences({name: np.array(color) for name, color in COLORS.items()})
    assert len(found) == 36
    assert min(found.values()) >= LEAST_DIFFERENCE, min(found, key=found.__getitem__)
    for name, color in COLORS.items():
        assert rgba(name) == [*(channel / 255 for channel in color), 1.0]
    with pytest.raises(KeyError, match="purple"):
        rgba("purple")


# ---------------------------------------------------------------------- the mug
@pytest.fixture(scope="module")
def shells() -> Iterator[Env]:
    """One environment with the mugs on the table."""
    env = make("ShellGameTouch-v0", 1)
    env.reset(seed=0)
    yield env
    env.close()


@dataclass
class Box:
    """One of the boxes of a mug that collide, in the mug's frame."""

    half: np.ndarray  # (3,) m
    turn: np.ndarray  # (3, 3)
    middle: np.ndarray  # (3,) m

    def local(self, points: np.ndarray) -> np.ndarray:
        """(P, 3) points in the box's frame."""
        return (points - self.middle) @ self.turn

    def corners(self) -> np.ndarray:
        signs = np.array(list(itertools.product((-1, 1), repeat=3)))
        return (signs * self.half) @ self.turn.T + self.middle

    def distance(self, points: np.ndarray) -> np.ndarray:
        """(P,) m from the box, 0 inside."""
        return np.linalg.norm(np.maximum(np.abs(self.local(points)) - self.half, 0), axis=1)

    def stops(self, origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """(P,) bool: rays from ``origin`` that meet the box."""
        start, along = self.local(origin[None]), directions @ self.turn
        with np.errstate(divide="ignore", invalid="ignore"):
            one, two = (-self.half - start) / along, (self.half - start) / along
        enter, leave = np.minimum(one, two).max(axis=1), np.maximum(one, two).min(axis=1)
        return (enter <= leave) & (leave >= 0)


def mug_parts(env: Env) -> list[Box]:
    """The boxes of a mug that collide."""
    parts = []
    for shape in base(env).objects[1]._bodies[0].collision_shapes:
        matrix = shape.local_pose.to_transformation_matrix().astype(np.float64)
        parts.append(Box(np.asarray(shape.half_size, dtype=np.float64), matrix[:3, :3], matrix[:3, 3]))
    return parts


def test_a_mug_has_the_size_it_says_and_a_ball_fits_inside(shells: Env) -> None:
    parts = mug_parts(shells)
    assert len(parts) > 6
    corners = np.concatenate([part.corners() for part in parts])
    assert corners[:, 2].min() == pytest.approx(-MUG_HEIGHT / 2, abs=1e-6)
    assert corners[:, 2].max() == pytest.approx(MUG_HEIGHT / 2, abs=1e-6)
    # a polygon round a circle: its corners stand out by a little
    assert np.hypot(corners[:, 0], corners[:, 1]).max() < 1.12 * MUG_RADIUS  # an octagon
    angle = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    play = MUG_INNER_RADIUS - BALL_RADIUS - 1e-4
    assert play > 0.003
    for offset in (0.0, play):
        height = np.full_like(angle, -MUG_HEIGHT / 2 + BALL_RADIUS)
        centres = np.stack([offset * np.cos(angle), offset * np.sin(angle), height], axis=1)
        clear = np.min([part.distance(centres) for part in parts], axis=0)
        assert clear.min() >= BALL_RADIUS, "the ball is in a wall"


def test_a_ball_finds_no_way_out_of_a_mug(shells: Env) -> None:
    """Seen from the ball's middle a mug is closed but for the table's side."""
    parts = mug_parts(shells)
    directions = np.random.default_rng(0).normal(size=(4000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    origin = np.array([0.0, 0.0, -MUG_HEIGHT / 2 + BALL_RADIUS])
    # height at which a ray gets to the wall: walls may end 1 mm above the table
    sideways = np.maximum(np.linalg.norm(directions[:, :2], axis=1), 1e-9)
    outward = directions[origin[2] + directions[:, 2] * MUG_INNER_RADIUS / sideways > -MUG_HEIGHT / 2 + 0.003]
    assert 2000 < len(outward) < 4000
    assert bool(np.any([part.stops(origin, outward) for part in parts], axis=0).all())


# ---------------------------------------------------------------------- what the cameras see
@pytest.fixture(scope="module")
def nine() -> Iterator[Env]:
    """Nine environments, drawn, with all cubes on the table after a step."""
    env = make("RememberColor9-v0", 9, obs_mode="rgb+segmentation", cue_steps=1, delay_steps=0)
    yield env
    env.close()


def seeds_of_each_cue(task: RememberColor) -> list[int]:
    """For each colour a seed whose episode has it as its cue, found without a picture."""
    found: dict[int, int] = {}
    everybody = torch.arange(task.num_envs)
    for first in range(0, 270, task.num_envs):
        seeds = list(range(first, first + task.num_envs))
        task._generators.seed(everybody, episode_keys(seeds, everybody.tolist()))
        u = task._draw(everybody, ARM_JOINTS + task.draws)
        u.take(ARM_JOINTS)
        found = {int(cue): seed for cue, seed in zip(task.oracle(task.sample(u)), seeds, strict=True)} | found
    return [found[color] for color in range(len(COLORS))]


@pytest.mark.render
def test_the_nine_cubes_differ_plainly_in_the_picture(nine: Env) -> None:
    """Mean colour of each cube's pixels in the base camera's 128 x 128 picture, pairwise at least 20 apart in CIELAB.

    First each cube as the cue, alone; then all on the table.
    """
    task = cast(RememberColor, base(nine))
    obs, info = nine.reset(seed=seeds_of_each_cue(task))
    assert info["oracle_info"].flatten().tolist() == list(range(9))
    assert obs["rgb"].shape == (9, 128, 128, 6)
    means: dict[str, np.ndarray] = {}
    for target, name in enumerate(COLORS):
        on_view = [obs["segmentation"][target, ..., 0] == int(cube.per_scene_id[target]) for cube in task.objects]
        counts = [int(mask.sum()) for mask in on_view]
        assert counts[target] > 15, "the cue cannot be seen"
        assert sum(counts) == counts[target], "something else is on view"
        means[name] = obs["rgb"][target, ..., :3][on_view[target]].numpy().astype(np.float64).mean(axis=0)
    found = differences(means)
    worst = min(found, key=found.__getitem__)
    assert found[worst] >= LEAST_DIFFERENCE, (worst, found[worst])

    nine.reset(seed=3)
    obs = nine.step(still_action(nine))[0]
    for i in range(2):
        rgb, segmentation = obs["rgb"][i, ..., :3].numpy(), obs["segmentation"][i, ..., 0].numpy()
        means = {}
        for name, cube in zip(COLORS, task.objects, strict=True):
            pixels = rgb[segmentation == int(cube.per_scene_id[i])]
            if len(pixels) >= 8:  # the arm may stand before a cube
                means[name] = pixels.astype(np.float64).mean(axis=0)
        assert len(means) >= 8, f"only {sorted(means)} are seen"
        found = differences(means)
        worst = min(found, key=found.__getitem__)
        assert found[worst] >= LEAST_DIFFERENCE, (worst, found[worst], means[worst[0]], means[worst[1]])


CAMERAS = ("base_camera", "hand_camera")


def ball_pixels(env: Env, obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """(N,) pixels of the ball in each camera's picture."""
    ball = base(env).objects[0].per_scene_id
    return {
        name: (obs["segmentation"][..., k] == ball[:, None, None]).sum(dim=(1, 2)) for k, name in enumerate(CAMERAS)
    }


@pytest.mark.render
@pytest.mark.slow
def test_no_camera_sees_the_ball_under_its_mug() -> None:
    """For 200 random poses of the arm; before t = 5 the ball is seen."""
    env = make("ShellGameTouch-v0", 4, obs_mode="rgb+segmentation")
    task = base(env)
    obs, _ = env.reset(seed=5)
    assert obs["segmentation"].shape == (4, 128, 128, 2)
    assert tuple(task.scene.sensors) == CAMERAS
    assert bool((ball_pixels(env, obs)["base_camera"] > 3).all())
    for _ in range(5):
        obs = env.step(still_action(env))[0]
    generator = torch.Generator().manual_seed(1)
    mugs_seen = {"base_camera": 0, "hand_camera": 0}
    saved = {kind: {n: v.clone() for n, v in group.items()} for kind, group in task.get_state_dict().items()}
    robot = next(iter(saved["articulations"]))
    for _ in range(50):
        state = {kind: {n: v.clone() for n, v in group.items()} for kind, group in saved.items()}
        spread = torch.tensor([0.6, 0.5, 0.5, 0.5, 0.6, 0.6, 1.0])
        qpos = torch.tensor(START_QPOS, dtype=torch.float32).repeat(4, 1)
        qpos[:, :7] += (torch.rand(4, 7, generator=generator) * 2 - 1) * spread
        state["articulations"][robot][:, 13 : 13 + 9] = qpos
        state["articulations"][robot][:, 22:] = 0
        task.set_state_dict(state)
        assert torch.allclose(task.agent.robot.get_qpos(), qpos, atol=1e-5)
        obs = task.get_obs(task.get_info())
        for name, count in ball_pixels(env, obs).items():
            assert not bool(count.any()), f"{name} sees the ball"
            segmentation = obs["segmentation"][..., CAMERAS.index(name)]
            for mug in task.objects[1:]:
                mugs_seen[name] += int((segmentation == mug.per_scene_id[:, None, None]).sum())
    assert mugs_seen["base_camera"] > 10_000
    assert mugs_seen["hand_camera"] > 1000, "the wrist's camera never looked at a mug"
    env.close()
