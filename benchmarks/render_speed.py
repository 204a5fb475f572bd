"""Speed of environments with image observations without a GPU, compared with plain ManiSkill in the same scene.

    python benchmarks/render_speed.py --markdown docs/results/render_speed.md

All of them render ``rgb`` from two cameras of 128 x 128 pixels at every step on the CPU, with the same random actions and
a reset every 50 steps. The baseline is `PlainScene`, written against ManiSkill alone: its ``num_envs=1``
(the only number possible on a CPU) with the table, the robot, the three cubes, the cameras and the frequencies of
RememberColor3-v0, but with no task, no reward and no memory. It is compared with RememberColor3-v0 with the stock robot,
and with the low-poly robot for each of ``--num-envs``. The row "one thread" is a batch with ``sim_threads=1``, which one
process simulates and draws; by default, processes draw a batch on all cores. Every round measures all in turn. The ratio
is the median over the rounds of the ratio within a round, so that a machine that is busy for a while slows down all of
them alike.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import sapien
import torch
import tyro
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.building.actors import build_cube
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs.types import SimConfig
from tables import in_markdown, plain, write_csv, write_text

import mikasa_robo  # noqa: F401  (registers the tasks)

TASK = "RememberColor3-v0"
EPISODE = 50
GOAL, GOAL_ENVS = 5.0, 16
GOAL_CORES = 1.45
"""How many times as fast as one thread the default should be on two cores or more."""
ONE_THREAD = "low-poly robot, one thread"
HEADER = ("", "envs", "env-steps/s", "slowest round", "ms an env-step", "x ManiSkill", "build s", "note")


@dataclass
class Args:
    """Measures env-steps/s with images of two cameras, rendered without a GPU, compared with plain ManiSkill."""

    num_envs: tuple[int, ...] = (1, 4, GOAL_ENVS)
    """How many environments side by side, with the low-poly robot."""
    rounds: int = 5
    """Measurements of each."""
    seconds: float = 3.0
    """Shortest duration of a measurement, s."""
    profile: bool = False
    """Measure instead the CPU time of an image while parts are removed from the scene one after another."""
    csv: Path | None = None
    """Also write the table to this CSV file; an existing file is replaced."""
    markdown: Path | None = None
    """Also write the table to this Markdown file; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        for name, value in {"rounds": self.rounds, "num_envs": min(self.num_envs, default=0)}.items():
            if value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: use at least 1")


class PlainScene(BaseEnv):
    """The scene of `TASK` as ManiSkill simulates and renders it, without any code of this project."""

    SUPPORTED_ROBOTS = ("panda_wristcam",)
    SUPPORTED_REWARD_MODES = ("none",)

    @property
    def _default_sim_config(self) -> SimConfig:
        return SimConfig(sim_freq=100, control_freq=20)

    @property
    def _default_sensor_configs(self) -> list[CameraConfig]:
        pose = sapien_utils.look_at(eye=[0.3, 0, 0.6], target=[-0.1, 0, 0.1])
        return [CameraConfig("base_camera", pose=pose, width=128, height=128, fov=np.pi / 2, near=0.01, far=100)]

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(p=[-0.615, 0, 0]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        self.table_scene = TableSceneBuilder(self)
        self.table_scene.build()
        self.cubes = [
            build_cube(self.scene, 0.02, color, name, initial_pose=sapien.Pose(p=[0, y, 0.02]))
            for name, color, y in (
                ("red", [1, 0, 0, 1], -0.1),
                ("lime", [0, 1, 0, 1], 0.0),
                ("blue", [0, 0, 1, 1], 0.1),
            )
        ]

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict[str, Any]) -> None:
        self.agent.reset(torch.tensor([0.0, 0, 0, -2 * np.pi / 3, 0, 2 * np.pi / 3, np.pi / 4, 0.04, 0.04]))
        self.agent.robot.set_pose(sapien.Pose(p=[-0.615, 0, 0]))

    def evaluate(self) -> dict[str, Any]:
        """There is no success or failure."""
        return {}

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, Any]:
        return {}


@dataclass
class Contender:
    """Something to measure, already built and warm."""

    name: str
    env: Any
    build_s: float
    note: str
    steps: int = 0
    rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.num_envs = int(self.env.num_envs)
        self._actions = torch.rand(EPISODE, self.num_envs, 8, generator=generator) * 2 - 1
        for _ in range(2):
            self.step()

    def step(self) -> None:
        """One control step, with a reset of all environments where their episode is over."""
        if self.steps % EPISODE == 0:
            self.env.reset()
        self.env.step(self._actions[self.steps % EPISODE])
        self.steps += 1

    def measure(self, seconds: float) -> None:
        """One round."""
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or done == 0:
            self.step()
            done += 1
        self.rates.append(done * self.num_envs / elapsed)


def build(name: str, note: str, make: Callable[[], Any]) -> Contender:
    """Builds and warms up."""
    start = time.perf_counter()
    env = make()
    env.reset(seed=0)
    build_s = time.perf_counter() - start
    print(f"built {name}, {env.num_envs} env", file=sys.stderr)
    return Contender(name, env, build_s, note)


COMMON: dict[str, Any] = {
    "obs_mode": "rgb",
    "control_mode": "pd_joint_delta_pos",
    "sim_backend": "physx_cpu",
    "render_backend": "cpu",
}


def ours(num_envs: int, robot_visuals: str, **arguments: Any) -> Any:
    """The task as this project simulates and draws it."""
    return gym.make(TASK, num_envs=num_envs, robot_visuals=robot_visuals, **arguments, **COMMON).unwrapped


def plain_scene() -> Any:
    """The same scene as ManiSkill simulates and draws it."""
    return PlainScene(num_envs=1, robot_uids="panda_wristcam", reward_mode="none", **COMMON)


def contenders(args: Args) -> list[Contender]:
    """The baseline first."""
    # the first environment of a process also pays for its libraries and shaders
    ours(1, "low_poly").close()
    built = [
        build("ManiSkill", "the same scene, no task", plain_scene),
        build(TASK, "stock robot", functools.partial(ours, 1, "stock")),
    ]
    if GOAL_ENVS in args.num_envs:
        built.append(build(TASK, ONE_THREAD, functools.partial(ours, GOAL_ENVS, "low_poly", sim_threads=1)))
    return built + [build(TASK, "low-poly robot", functools.partial(ours, n, "low_poly")) for n in args.num_envs]


def ratio(contender: Contender, baseline: Contender) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(contender.rates, baseline.rates, strict=True))


def table(measured: Sequence[Contender]) -> list[list[str]]:
    """Header and rows, in the order given; the first is what the others are compared with."""
    rows = [list(HEADER)]
    for c in measured:
        best = max(c.rates)
        rows.append(
            [
                c.name,
                str(c.num_envs),
                f"{best:.1f}",
                f"{min(c.rates):.1f}",
                f"{1000 / best:.2f}",
                f"{ratio(c, measured[0]):.2f}",
                f"{c.build_s:.2f}",
                c.note,
            ]
        )
    return rows


def circumstances(args: Args) -> str:
    """What this was measured with."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mani-skill", "sapien", "torch"))
    renderer = next((x for x in sapien.render.get_device_summary().splitlines() if x.startswith("GPU:")), "").strip()
    return (
        f"obs_mode=rgb, two cameras of 128 x 128, drawn by {renderer.removeprefix('GPU: ')}; {cores()} cores, Python "
        f"{platform.python_version()}, {versions}; best of {args.rounds} rounds; x ManiSkill: median of the ratios "
        "within a round."
    )


PARTS = (
    ("camera on the hand", ("camera_link",)),
    ("robot", ("panda_",)),
    ("ground", ("ground",)),
    ("table", ("table",)),
    ("cubes", ("cube", "red", "lime", "blue")),
)
"""What can be taken from a scene, and words in the names of its entities."""


def cpu_ms(camera: Any, args: Args) -> float:
    """CPU time of a picture of one camera, of all threads together, in the best round."""
    best = float("inf")
    for _ in range(args.rounds):
        done, start, begun = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - begun < args.seconds / 10 or done == 0:
            camera.take_picture()
            camera.get_picture("Color")
            done += 1
        best = min(best, 1000 * (time.process_time() - start) / done)
    return best


def profile(name: str, env: Any, args: Args) -> list[list[str]]:
    """A row for the whole scene of ``env`` and one for what is left after each of `PARTS`; columns as in `main`."""
    (scene,) = env.scene.sub_scenes
    cameras = [sensor.camera._render_cameras[0] for sensor in env.scene.sensors.values()]
    bodies = {e: e.find_component_by_type(sapien.render.RenderBodyComponent) for e in scene.entities}
    rows = []
    for left_out, words in (("", ()), *PARTS):
        gone = 0
        for entity, body in bodies.items():
            if body is not None and body.is_enabled and any(word in entity.name for word in words):
                meshes = [s for s in body.render_shapes if isinstance(s, sapien.render.RenderShapeTriangleMesh)]
                gone += sum(len(part.triangles) for mesh in meshes for part in mesh.parts)
                body.disable()
        scene.update_render()
        what = f"… without the {left_out}" if left_out else name
        rows.append([what, f"{gone:,}" if gone else "", *(f"{cpu_ms(camera, args):.2f}" for camera in cameras)])
    return rows


def verdict(measured: Sequence[Contender]) -> str:
    """Whether the goals hold; empty where they were not measured."""
    found = [c for c in measured if c.num_envs == GOAL_ENVS and c.note != ONE_THREAD]
    one_thread = [c for c in measured if c.note == ONE_THREAD]
    if not found:
        return ""
    goals = [("ManiSkill", ratio(found[0], measured[0]), GOAL)]
    if one_thread and cores() > 1:
        goals.append((f"one thread on {cores()} cores", ratio(found[0], one_thread[0]), GOAL_CORES))
    said = [f"{n:.2f} x {what} (goal >= {goal:g}): {'yes' if n >= goal else 'NO'}" for what, n, goal in goals]
    return f"At {GOAL_ENVS} environments {'; '.join(said)}"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def speed_table(args: Args) -> tuple[list[list[str]], str]:
    """Measures; the table and the verdict."""
    measured = contenders(args)
    for i in range(args.rounds):
        for contender in measured:
            contender.measure(args.seconds)
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr)
    for contender in measured:
        contender.env.close()
    return table(measured), verdict(measured)


def profile_table(args: Args) -> tuple[list[list[str]], str]:
    """Measures; the table and what its columns mean."""
    rows = [["drawn", "triangles fewer", "base camera, ms", "hand camera, ms"]]
    for name, make in (("ManiSkill", plain_scene), (f"{TASK}, low-poly", functools.partial(ours, 1, "low_poly"))):
        env = make()
        env.reset(seed=0)
        rows += profile(name, env, args)
        env.close()
    return (
        rows,
        f"CPU time of a picture, best of {args.rounds} rounds; a row leaves out what all rows above it leave out.",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = tyro.cli(Args, args=argv)
    args.check()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # the arrays are small
    rows, said = profile_table(args) if args.profile else speed_table(args)
    print("\n".join([circumstances(args), "", plain(rows), "", said]))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.markdown is not None:
        write_text(args.markdown, f"{circumstances(args)}\n\n{in_markdown(rows)}\n")


if __name__ == "__main__":
    main()
