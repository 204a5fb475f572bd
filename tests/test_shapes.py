"""Nine shapes: their size and weight, that they rest, that a hand meets them, and that they differ in the pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import sapien
import sapien.physx as physx
import sapien.render
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import sapien_utils
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs import Actor, Pose
from mani_skill.utils.structs.types import SimConfig
from torch import Tensor

from mikasa_robo.assets import shapes
from mikasa_robo.assets.palette import rgba
from mikasa_robo.assets.shapes import CIRCUMRADIUS, MASS, SHAPES, build_shape, resting_height, shape_codes
from mikasa_robo.sim.env import batched

Array = npt.NDArray[np.float64]

START_QPOS = (0.0, 0.0, 0.0, -2 * np.pi / 3, 0.0, 2 * np.pi / 3, np.pi / 4, 0.04, 0.04)
HAND = (0.00875, 0.0152)
"""Half the size of the tips of the Panda's closed fingers, m: they open along y."""
PIECES = {
    "cube": 1,
    "sphere": 1,
    "cylinder": 1,
    "cross": 3,
    "torus": 8,
    "star": 5,
    "pyramid": 1,
    "t_shape": 2,
    "crescent": 6,
}


class ShapesOnTheTable(BaseEnv):
    """The shapes on the table, 15 cm apart beside the robot, and waiting a box of the size of a closed hand and the
    shapes in further colours. There is nothing to do. The cameras are those of the tasks.
    """

    SUPPORTED_REWARD_MODES = ("none",)
    SUPPORTED_ROBOTS: ClassVar = ["panda", "panda_wristcam"]

    def __init__(self, *args: Any, colors: Sequence[str] = ("red",), drop: float = 0.0, **kwargs: Any) -> None:
        self.colors, self.drop = colors, drop
        super().__init__(*args, **kwargs)

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
        self.sets = {
            color: {
                shape: build_shape(self.scene, shape, f"{color} {shape}", rgba(color), parked)
                for parked, shape in enumerate(SHAPES, start=len(SHAPES) * number)
            }
            for number, color in enumerate(self.colors)
        }
        self.shapes = self.sets[self.colors[0]]
        builder = self.scene.create_actor_builder()
        builder.add_box_collision(half_size=[*HAND, 0.01], density=2000)
        builder.initial_pose = sapien.Pose(p=[0, -1, 1000])
        self.hand = builder.build_dynamic(name="hand")

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        self.agent.reset(torch.tensor(START_QPOS, dtype=torch.float32).repeat(len(env_idx), 1))
        self.agent.robot.set_pose(sapien.Pose(p=[-0.615, 0, 0]))
        self.table_scene.table.set_pose(self.table_scene.table.initial_pose)
        for shape, actor in self.shapes.items():
            place = self.place(shape).repeat(len(env_idx), 1)
            place[:, 2] += self.drop * (env_idx % 2)  # in every second environment it falls
            actor.set_pose(Pose.create_from_pq(place))

    @staticmethod
    def place(shape: str) -> Tensor:
        """(1, 3) where a shape stands, m."""
        k = SHAPES.index(shape)
        return torch.tensor([[-0.1 + 0.15 * (k % 3), 0.2 + 0.15 * (k // 3), resting_height(shape)]])

    def evaluate(self) -> dict[str, Any]:
        return {}


def table(num_envs: int, **kwargs: Any) -> Any:
    """The scene above, reset, with the simulator's strict debug switch on."""
    settings: dict[str, Any] = {"obs_mode": "none", "sim_debug": True, "reward_mode": "none", "robot_uids": "panda"}
    env: Any = batched(ShapesOnTheTable)(num_envs=num_envs, sim_backend="physx_cpu", **{**settings, **kwargs})
    env.reset(seed=0)
    return env


@pytest.fixture(scope="module")
def still() -> Iterator[Any]:
    """One environment that nobody steps."""
    env = table(1)
    yield env
    env.close()


# ---------------------------------------------------------------------- what they are made of
@dataclass
class Piece:
    """One convex piece of a shape that collides, in the shape's frame."""

    corners: Array  # (V, 3) m, of a polyhedron; of the ball and the cylinder, points all over the surface
    normals: Array  # (F, 3) of planes that hold the piece
    limits: Array  # (F,) m
    volume: float  # m³

    def holds(self, points: Array, margin: float = 0.0) -> npt.NDArray[np.bool_]:
        """(P,) bool: points (P, 3) in the piece, ``margin`` m and more from its surface."""
        return np.asarray((points @ self.normals.T <= self.limits - margin).all(axis=1))


def piece(shape: Any) -> Piece:
    """A collision shape as points and planes."""
    if isinstance(shape, physx.PhysxCollisionShapeBox):
        half = np.asarray(shape.half_size, dtype=np.float64)
        points = np.array(list(itertools.product((-1, 1), repeat=3))) * half
        normals, volume = np.concatenate([np.eye(3), -np.eye(3)]), float(8 * half.prod())
    elif isinstance(shape, physx.PhysxCollisionShapeSphere):
        spiral = np.arange(1001)
        up, turn = 1 - spiral / 500, math.pi * (1 + math.sqrt(5)) * spiral
        normals = np.stack([np.sqrt(1 - up**2) * np.cos(turn), np.sqrt(1 - up**2) * np.sin(turn), up], axis=1)
        points, volume = normals * shape.radius, 4 / 3 * math.pi * shape.radius**3
    elif isinstance(shape, physx.PhysxCollisionShapeCylinder):
        turn = np.linspace(0, 2 * math.pi, 256, endpoint=False)
        circle = np.stack([np.zeros_like(turn), np.cos(turn), np.sin(turn)], axis=1)  # round x
        points = np.concatenate(
            [circle * shape.radius + [end, 0, 0] for end in (-shape.half_length, shape.half_length)]
        )
        normals = np.concatenate([circle, [[1.0, 0, 0], [-1.0, 0, 0]]])
        volume = math.pi * shape.radius**2 * 2 * shape.half_length
    else:
        assert isinstance(shape, physx.PhysxCollisionShapeConvexMesh)
        points = np.asarray(shape.vertices, dtype=np.float64) * shape.scale
        a, b, c = points[shape.triangles].transpose(1, 0, 2)
        normals, volume = np.cross(b - a, c - a), float((a * np.cross(b, c)).sum() / 6)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    matrix = shape.local_pose.to_transformation_matrix().astype(np.float64)
    points, normals = points @ matrix[:3, :3].T + matrix[:3, 3], normals @ matrix[:3, :3].T
    return Piece(points, normals, (points @ normals.T).max(axis=0), volume)


def pieces(actor: Actor) -> list[Piece]:
    """What collides of an actor."""
    return [piece(shape) for shape in actor._bodies[0].collision_shapes]


def test_the_nine_names_are_in_order_and_others_are_refused(still: Any) -> None:
    names = ("cube", "sphere", "cylinder", "cross", "torus", "star", "pyramid", "t_shape", "crescent")
    assert names == SHAPES
    assert torch.equal(shape_codes([2, 0]), torch.eye(9)[[2, 0]])
    with pytest.raises(KeyError, match=r"no shape 'moebius'.*t_shape, crescent"):
        resting_height("moebius")
    with pytest.raises(KeyError, match=r"no shape 'moebius'.*t_shape, crescent"):
        build_shape(still.scene, "moebius", "strip", rgba("red"), parked=9)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_the_size_it_says(still: Any, shape: str) -> None:
    corners = np.concatenate([part.corners for part in pieces(still.shapes[shape])])
    assert corners[:, 2].min() == pytest.approx(-resting_height(shape), abs=1e-5)
    assert corners[:, 2].max() == pytest.approx(resting_height(shape), abs=1e-5)
    assert 0.03 <= 2 * resting_height(shape) <= 0.055
    reach = np.hypot(corners[:, 0], corners[:, 1])
    if shape == "sphere":  # it would be too high
        assert reach.max() == pytest.approx(resting_height(shape), abs=1e-5)
        return
    assert reach.max() == pytest.approx(CIRCUMRADIUS, abs=1e-5)
    # no smaller circle holds it: the corners that reach the circle leave no half of it free
    angles = np.sort(np.arctan2(corners[:, 1], corners[:, 0])[reach > CIRCUMRADIUS - 1e-5])
    assert np.diff(angles, append=angles[0] + 2 * math.pi).max() <= math.pi + 1e-3


@pytest.mark.parametrize("shape", ["star", "pyramid", "torus", "crescent"])
def test_the_engine_leaves_no_corner_out(still: Any, shape: str) -> None:
    for cooked, hull in zip(pieces(still.shapes[shape]), shapes._parts(shape), strict=True):
        assert isinstance(hull, shapes._Hull)
        assert len(cooked.corners) == len(hull.corners)
        between = np.linalg.norm(cooked.corners[:, None] - hull.corners[None], axis=-1)
        assert between.min(axis=0).max() < 1e-7


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_made_of_few_pieces_that_do_not_overlap(still: Any, shape: str) -> None:
    parts = pieces(still.shapes[shape])
    assert len(parts) == PIECES[shape]
    half = [CIRCUMRADIUS, CIRCUMRADIUS, resting_height(shape)]
    points = np.random.default_rng(0).uniform(-1, 1, size=(40000, 3)) * half
    inside = np.sum([part.holds(points, margin=1e-6) for part in parts], axis=0)
    assert inside.max() == 1
    # the points count the volume in another way than the triangles
    counted = inside.mean() * 8 * np.prod(half)
    assert counted == pytest.approx(sum(part.volume for part in parts), rel=0.03)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_shapes_weigh_the_same_spread_evenly(still: Any, shape: str) -> None:
    parts, body = pieces(still.shapes[shape]), still.shapes[shape]._bodies[0]
    assert body.mass == pytest.approx(MASS, rel=1e-6)
    density = MASS / sum(part.volume for part in parts)
    assert 200 < density < 1050
    # moments of inertia about the centre of mass, from random points, against the engine's
    half = [CIRCUMRADIUS, CIRCUMRADIUS, resting_height(shape)]
    points = np.random.default_rng(1).uniform(-1, 1, size=(60000, 3)) * half
    inside = points[np.any([part.holds(points) for part in parts], axis=0)]
    assert np.allclose(inside.mean(axis=0), body.cmass_local_pose.p, atol=4e-4)
    cov = np.cov(inside.T, bias=True)
    expected = np.sort(np.linalg.eigvalsh(MASS * (np.trace(cov) * np.eye(3) - cov)))
    assert np.allclose(np.sort(body.inertia), expected, rtol=0.03)


def closed_hand(yaw: float, z: float) -> Array:
    """(P, 3) points all over the tips of the closed fingers, at height ``z``, turned by ``yaw`` rad."""
    across, along = np.linspace(-HAND[0], HAND[0], 71), np.linspace(-HAND[1], HAND[1], 121)
    x, y = np.repeat(across, len(along)), np.tile(along, len(across))
    c, s = math.cos(yaw), math.sin(yaw)
    return np.stack([c * x - s * y, s * x + c * y, np.full_like(x, z)], axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_closed_hand_that_comes_down_on_the_origin_meets_the_shape(still: Any, shape: str) -> None:
    """However it is turned, also where the torus has its hole and the crescent its mouth, and near the top."""
    parts = pieces(still.shapes[shape])
    for yaw in np.linspace(0, math.pi, 24, endpoint=False):
        tips = closed_hand(yaw, resting_height(shape) - 0.003)
        met = np.any([part.holds(tips) for part in parts], axis=0)
        assert met.mean() > 0.003, f"missed at {math.degrees(yaw):.0f}°"


def test_it_waits_at_its_place_and_is_pushed_out_slowly_enough(still: Any) -> None:
    for parked, actor in enumerate(still.shapes.values()):
        assert actor.initial_pose.raw_pose[0].tolist() == [0, parked, 1000, 1, 0, 0, 0]
        assert actor._bodies[0].get_max_depenetration_velocity() == 5.0
        assert actor.px_body_type == "dynamic"


# ---------------------------------------------------------------------- on the table
def tilt(actor: Actor) -> Tensor:
    """(N,) degrees by which an actor is turned from no rotation."""
    return torch.rad2deg(2 * torch.asin(actor.pose.q[:, 1:].norm(dim=1).clamp(max=1)))


@pytest.mark.parametrize("num_envs", [1, 4])
def test_all_shapes_rest(num_envs: int) -> None:
    """For 5 s, put down or dropped from 2 mm; alone in ManiSkill's own simulation and in a batch."""
    env = table(num_envs, drop=0.002)
    for _ in range(100):
        env.step(None)
    for shape, actor in env.shapes.items():
        moved = (actor.pose.p - env.place(shape)).norm(dim=1)
        assert float(moved.max()) < 1e-3, (shape, moved)
        assert float(tilt(actor).max()) < 1.0, (shape, tilt(actor))
        assert float(actor.linear_velocity.norm(dim=1).max()) < 1e-3, shape
        assert float(actor.angular_velocity.norm(dim=1).max()) < 0.02, shape
    env.close()


def test_a_sphere_that_was_pushed_comes_to_rest() -> None:
    """With one of its two dampings alone it would roll at more than 8 cm/s after 2.5 s."""
    env = table(2)
    sphere = env.shapes["sphere"]
    start = torch.tensor([[0.0, -0.1, resting_height("sphere")]]).repeat(2, 1)
    sphere.set_pose(Pose.create_from_pq(start))
    sphere.set_linear_velocity(torch.tensor([[0.0, -0.5, 0.0]]).repeat(2, 1))
    env.scene._gpu_apply_all()
    env.scene._gpu_fetch_all()
    for _ in range(50):
        env.step(None)
    assert float(sphere.linear_velocity.norm(dim=1).max()) < 0.05
    for _ in range(110):
        env.step(None)
    rolled = (sphere.pose.p - start).norm(dim=1)
    assert bool(((rolled > 0.1) & (rolled < 0.5)).all()), rolled
    assert float(sphere.linear_velocity.norm(dim=1).max()) < 1e-3
    assert float(sphere.angular_velocity.norm(dim=1).max()) < 0.02
    env.close()


def test_a_box_on_top_is_felt() -> None:
    """A box of the size of a closed hand falls 3 mm onto the middle of each shape, a shape in each environment."""
    env = table(len(SHAPES))
    tops = torch.cat([env.place(shape) + torch.tensor([0, 0, resting_height(shape) + 0.013]) for shape in SHAPES])
    env.hand.set_pose(Pose.create_from_pq(tops))
    env.scene._gpu_apply_all()
    env.scene._gpu_fetch_all()
    felt = torch.zeros(len(SHAPES), len(SHAPES))
    for _ in range(6):
        env.step(None)
        forces = [env.scene.get_pairwise_contact_forces(env.hand, actor).norm(dim=1) for actor in env.shapes.values()]
        felt = torch.maximum(felt, torch.stack(forces, dim=1))
    weight = 2000 * 8 * HAND[0] * HAND[1] * 0.01 * 9.81
    for k, shape in enumerate(SHAPES):
        assert felt[k, k] > 0.3 * weight, (shape, felt[k, k])
    assert not felt[~torch.eye(len(SHAPES), dtype=torch.bool)].any(), "a shape was felt where none was touched"
    env.close()


# ---------------------------------------------------------------------- what the cameras see
PLAIN = 40
"""Two pixels differ plainly where a channel differs by more, of 255."""
LEAST: dict[str, dict[str, tuple[int, float]]] = {
    "red": {"hand_camera": (18, 0.28), "base_camera": (10, 0.40)},
    "teal": {"hand_camera": (9, 0.14), "base_camera": (5, 0.30)},
}
"""Pixels that differ at least between two shapes, also as a share of those of the smaller one.

Measured: red 25 (37 %) in the hand's picture and 14 (50 %) in the base camera's; teal, dark on all sides and so told by
outline alone, 14 (20 %) and 8 (44 %).
"""


@pytest.fixture(scope="module")
def drawn() -> Iterator[Any]:
    """Two environments, drawn, each with the shapes in both colours."""
    env = table(2, colors=list(LEAST), obs_mode="rgb+segmentation", robot_uids="panda_wristcam")
    yield env
    env.close()


def look(env: Any, shape: str) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]:
    """Each camera's pictures (2, 128, 128, 3), and where they show the shape, which stands alone in the middle.

    It is there in the first colour in the first environment and in the second colour in the second.
    """
    ids = []
    for number, actors in enumerate(env.sets.values()):
        for other, actor in actors.items():
            place = actor.initial_pose.p.repeat(2, 1)
            if other == shape:
                place[number] = torch.tensor([0.0, 0.0, resting_height(shape)])
                ids.append(actor.per_scene_id[number])
            actor.set_pose(Pose.create_from_pq(place))
    env.scene._gpu_apply_all()
    env.scene._gpu_fetch_all()
    return {
        name: (
            camera["rgb"].numpy().astype(np.int64),
            (camera["segmentation"][..., 0] == torch.stack(ids)[:, None, None]).numpy(),
        )
        for name, camera in env.get_obs({})["sensor_data"].items()
    }


@pytest.mark.render
def test_every_two_shapes_differ_plainly_in_both_pictures(drawn: Any) -> None:
    views = {shape: look(drawn, shape) for shape in SHAPES}
    for (number, limits), camera in itertools.product(enumerate(LEAST.values()), ("hand_camera", "base_camera")):
        least, share = limits[camera]
        for one, two in itertools.combinations(SHAPES, 2):
            (a, in_a), (b, in_b) = (
                (pictures[number], on[number]) for pictures, on in (views[one][camera], views[two][camera])
            )
            differing, smaller = int((np.abs(a - b).max(axis=-1) > PLAIN).sum()), min(in_a.sum(), in_b.sum())
            assert smaller > 15, f"{camera} hardly sees {one} or {two}"
            assert differing >= max(least, share * smaller), (camera, number, one, two, differing, smaller)
    for shape, view in views.items():
        for name, (_, on) in view.items():
            assert np.array_equal(on[0], on[1]), f"{name} sees another {shape} in the second environment"


@pytest.mark.render
def test_what_is_drawn_is_what_collides(drawn: Any) -> None:
    for shape, actor in drawn.shapes.items():
        for entity, body in zip(actor._objs, actor._bodies, strict=True):
            visible = entity.find_component_by_type(sapien.render.RenderBodyComponent).render_shapes
            hulls = [s for s in body.collision_shapes if isinstance(s, physx.PhysxCollisionShapeConvexMesh)]
            solids = [s for s in body.collision_shapes if not isinstance(s, physx.PhysxCollisionShapeConvexMesh)]
            meshes = [s for s in visible if isinstance(s, sapien.render.RenderShapeTriangleMesh)]
            others = [s for s in visible if not isinstance(s, sapien.render.RenderShapeTriangleMesh)]
            assert (len(meshes), len(others)) == (min(len(hulls), 1), len(solids)), shape
            for solid, other in zip(solids, others, strict=True):
                assert np.allclose(solid.local_pose.p, other.local_pose.p, atol=1e-7)
                assert np.allclose(solid.local_pose.q, other.local_pose.q, atol=1e-7)
                sizes = [name for name in ("half_size", "radius", "half_length") if hasattr(solid, name)]
                assert sizes
                for name in sizes:
                    assert np.allclose(getattr(solid, name), getattr(other, name), atol=1e-7)
            for mesh in meshes:
                (part,) = mesh.parts
                seen = np.asarray(part.vertices, dtype=np.float64)[part.triangles]  # (T, 3, 3)
                felt = np.concatenate([(s.vertices * s.scale)[s.triangles] for s in hulls])
                assert np.allclose(seen, felt, atol=1e-7)
                # counterclockwise from outside, or the renderer would draw the far side
                volume = (seen[:, 0] * np.cross(seen[:, 1], seen[:, 2])).sum() / 6
                assert volume == pytest.approx(sum(piece(s).volume for s in hulls), rel=1e-5)
                outward = np.cross(seen[:, 1] - seen[:, 0], seen[:, 2] - seen[:, 0])
                outward /= np.linalg.norm(outward, axis=1, keepdims=True)
                assert np.allclose(np.asarray(part.get_vertex_normal()).reshape(-1, 3, 3), outward[:, None], atol=1e-3)
