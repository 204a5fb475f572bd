"""Where hidden and shown objects are put: which rows of the simulator's buffer, and relative to which origin."""

from __future__ import annotations

import weakref
from typing import Any, cast

import pytest
import torch
from task_helpers import base, make, random_actions
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.core import visibility
from mikasa_robo.core.visibility import PARKING_HEIGHT, ObjectLayout

N, K = 4, 3
OFFSETS = torch.tensor([[-5.0, -5.0, 0.0], [0.0, -5.0, 0.0], [-5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


class Buffer:
    """Stands for the simulator: a buffer of rows that are in the world's frame, and the calls it got."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.applied, self.fetched = data, cast(list[list[int]], []), 0
        self.cuda_rigid_dynamic_data = self

    def torch(self) -> Tensor:
        return self.data

    def gpu_apply_rigid_dynamic_data(self, index: Tensor) -> None:
        assert index.dtype == torch.int32
        self.applied.append(sorted(index.tolist()))

    def gpu_fetch_rigid_dynamic_data(self) -> None:
        self.fetched += 1


class Scene:
    gpu_sim_enabled = True
    device = torch.device("cpu")

    def __init__(self, single_scene: bool) -> None:
        self.parallel_in_single_scene = single_scene
        self.scene_offsets = OFFSETS
        # the last row is of something else
        self.px = Buffer(torch.randn(N * K + 1, 13, generator=torch.Generator().manual_seed(0)))


class Thing:
    def __init__(self, index: int, kind: str) -> None:
        self.name, self.px_body_type = str(index), kind
        self._body_data_index = torch.arange(N) * K + index


def layout_of(single_scene: bool) -> tuple[ObjectLayout, Buffer]:
    scene: Any = Scene(single_scene)
    things: Any = [Thing(0, "dynamic"), Thing(1, "kinematic"), Thing(2, "dynamic")]
    return ObjectLayout(scene, things), scene.px


def homes() -> Tensor:
    poses = torch.zeros(N, K, 7)
    poses[..., :3] = torch.rand(N, K, 3, generator=torch.Generator().manual_seed(1))
    poses[..., 3] = 1
    return poses


def put_some() -> tuple[Tensor, Tensor]:
    put = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], dtype=torch.bool)
    visible = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)
    return put, visible


@pytest.mark.parametrize("single_scene", [False, True])
@pytest.mark.parametrize("reads_wait", [False, True])
def test_objects_are_put_relative_to_their_scene(
    single_scene: bool, reads_wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "reads_wait", lambda device: reads_wait)
    layout, px = layout_of(single_scene)
    before, world = layout.read(), px.data.clone()
    offsets = OFFSETS[:, None] if single_scene else torch.zeros(1, 1, 3)
    assert torch.allclose(before[..., :3], world[: N * K].reshape(N, K, 13)[..., :3] - offsets)
    put, visible = put_some()
    layout.apply(put, visible, homes())
    now = layout.read()
    assert torch.allclose(now[put & visible][:, :7], homes()[put & visible])
    hidden = now[put & ~visible]
    assert bool((hidden[:, 2] == PARKING_HEIGHT).all())
    assert float(hidden[:, :2].abs().max()) < K, "parked above its own table"
    assert not bool(now[put][:, 7:].any()), "at rest"
    # to the last bit: a pose that is set anew through its offset would not be the same
    kept = torch.cat([~put.flatten(), torch.tensor([True])])
    assert torch.equal(px.data[kept], world[kept])
    expected = list(range(N * K)) if reads_wait else torch.nonzero(put.flatten()).flatten().tolist()
    assert px.applied == [expected], "one apply, of objects only"
    assert px.fetched == 1


def test_the_rows_of_an_index_buffer_are_alive_when_they_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAPIEN's array on a GPU holds the address of a tensor, and not the tensor."""
    monkeypatch.setattr(tensors, "reads_wait", lambda device: True)
    monkeypatch.setattr(visibility, "as_index_buffer", weakref.ref)
    layout, px = layout_of(False)
    applied = px.gpu_apply_rigid_dynamic_data
    px.gpu_apply_rigid_dynamic_data = lambda address: applied(address())  # type: ignore[assignment, method-assign, operator]
    put, visible = put_some()
    for _ in range(2):
        layout.apply(put, visible, homes())
    assert px.applied == [list(range(N * K))] * 2


def test_nothing_is_applied_where_nothing_is_put() -> None:
    layout, px = layout_of(False)
    layout.apply(torch.zeros(N, K, dtype=torch.bool), torch.ones(N, K, dtype=torch.bool), homes())
    assert not px.applied
    assert not px.fetched


@pytest.mark.parametrize("single_scene", [False, True])
def test_a_reset_writes_the_rows_of_its_environments(single_scene: bool) -> None:
    layout, px = layout_of(single_scene)
    before = layout.read()
    envs = torch.tensor([2, 0])
    velocity = torch.full((2, K, 6), 0.5)
    _, visible = put_some()
    layout.reset(visible[envs], homes()[envs], velocity, envs)
    now = layout.read()
    assert torch.equal(now[[1, 3]], before[[1, 3]])
    shown = visible[envs]
    assert torch.allclose(now[envs][shown][:, :7], homes()[envs][shown])
    assert bool((now[envs][~shown][:, 2] == PARKING_HEIGHT).all())
    assert bool((now[envs][:, [0, 2], 7:] == 0.5).all())
    assert not bool(now[envs][:, 1, 7:].any()), "a kinematic object has no velocity"
    assert not px.applied, "the reset applies it"
    layout.reset(visible, homes())
    assert not bool(layout.read()[..., 7:].any())


def test_environments_in_one_scene_play_the_same_episodes() -> None:
    """Distances between hand and objects too, which are wrong by 5 m a row where scene offsets are forgotten."""
    envs = [
        make("TakeItBack-v0", 3, obs_mode="state+objects", sim_backend="physx_cpu", parallel_in_single_scene=single)
        for single in (False, True)
    ]
    assert bool(base(envs[1]).scene.scene_offsets.any())
    for t, action in enumerate(random_actions(envs[0], 6, seed=0)):
        if t in (0, 3):
            options = {"env_idx": [1]} if t else None
            apart, together = (env.reset(seed=[4] if t else 3, options=options)[0] for env in envs)
        else:
            apart, together = (env.step(action)[0] for env in envs)
        for name, value in apart.items():
            assert torch.allclose(value, together[name], atol=5e-3), (t, name)
    for env in envs:
        env.close()


@pytest.mark.parametrize("count", [2, 18, 30, 60])
def test_parking_places_of_environments_in_one_world_are_apart(count: int) -> None:
    places = torch.cat([visibility.parking_poses(count, compact=True)[:, :3] + offset for offset in OFFSETS])
    apart = torch.cdist(places, places) + torch.eye(len(places))
    assert float(apart.min()) >= 0.5 - 1e-3


def test_hidden_objects_of_environments_in_one_world_do_not_touch() -> None:
    """Fifteen objects in a row would stand where those of the next environment in y are parked."""
    fallen = []
    for single in (False, True):
        env = make(
            "RememberShapeAndColor5x3-v0", 4, obs_mode="none", sim_backend="physx_cpu", parallel_in_single_scene=single
        )
        env.reset(seed=3)
        for _ in range(2):
            env.step(torch.zeros(4, 8))
        fallen.append(base(env)._speeds.clone())
        env.close()
    assert torch.allclose(fallen[0], fallen[1], atol=0.02), "what is hidden only falls, for one control step at a time"


def test_objects_that_cannot_move_are_refused() -> None:
    scene: Any = Scene(False)
    things: Any = [Thing(0, "static")]
    with pytest.raises(ValueError, match="0 is static"):
        ObjectLayout(scene, things)
