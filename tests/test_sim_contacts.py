"""Contact queries look into few of the contacts and give to the last bit what adding up all of them gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils import sapien_utils
from mani_skill.utils.structs import Actor, Link
from torch import Tensor

from mikasa_robo.sim.env import make

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

N = 5
STEPS = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[BaseEnv]:
    env = make(
        "StackCube-v1", num_envs=N, obs_mode="state", control_mode="pd_ee_delta_pos", sim_debug=True, sim_threads=2
    )
    env.reset(seed=4)
    yield env
    env.close()


def rummage(env: BaseEnv, generator: torch.Generator) -> Tensor:
    """Actions that push the hand into one cube or the other, at random, and open and close it."""
    cubes = torch.stack([env.cubeA.pose.p, env.cubeB.pose.p])
    nearest = cubes[torch.randint(2, (N,), generator=generator), torch.arange(N)]
    below = nearest - torch.tensor([0.0, 0.0, 0.04]) * (torch.rand(N, 1, generator=generator) < 0.5)
    move = (below - env.agent.tcp.pose.p) / 0.1 + 0.5 * torch.randn(N, 3, generator=generator)
    gripper = torch.rand(N, 1, generator=generator) * 2 - 1
    return torch.cat([move.clamp(-1, 1), gripper], dim=1)


def all_pairs(env: BaseEnv) -> list[tuple[Actor | Link, Actor | Link]]:
    links = [env.agent.robot.links_map[name] for name in ("panda_hand", "panda_leftfinger", "panda_rightfinger")]
    cubes, table = [env.cubeA, env.cubeB], env.table_scene.table
    pairs = [(link, cube) for link in links for cube in cubes]
    return [
        *pairs,
        (cubes[0], links[1]),
        (cubes[0], cubes[1]),
        (cubes[1], cubes[0]),
        (cubes[0], table),
        (links[1], table),
    ]


def every_contact_added_up(env: BaseEnv, one: Actor | Link, other: Actor | Link | None) -> Tensor:
    """(N, 3) by ManiSkill's functions for a single environment, over the whole list of contacts."""
    totals = []
    for i, system in enumerate(env.scene.px._systems):
        contacts, entity = system.get_contacts(), one._bodies[i].entity
        if other is None:
            found = sapien_utils.get_cpu_actor_contacts(contacts, entity)
            totals.append(sapien_utils.compute_total_impulse(found))
        else:
            totals.append(sapien_utils.get_pairwise_contact_impulse(contacts, entity, other._bodies[i].entity))
    return torch.from_numpy(np.stack(totals)).to(torch.float32)


def test_queries_equal_the_sum_of_all_contacts(stack: BaseEnv) -> None:
    """Of pairs in either order, of the hand, of two objects, of an object with the table; and of single bodies."""
    px, generator = stack.scene.px, torch.Generator().manual_seed(0)
    pairs = all_pairs(stack)
    bodies = [stack.cubeA, stack.cubeB, pairs[0][0]]
    pair_query = px.gpu_create_contact_pair_impulse_query(
        [bodies for one, other in pairs for bodies in zip(one._bodies, other._bodies, strict=True)]
    )
    body_query = px.gpu_create_contact_body_impulse_query([body for thing in bodies for body in thing._bodies])
    state = stack.get_state_dict()
    state["actors"]["cubeA"][0] = state["actors"]["cubeB"][0]
    state["actors"]["cubeA"][0, 2] += 0.04  # in env 0 one cube stands on the other
    stack.set_state_dict(state)
    met = torch.zeros(len(pairs), dtype=torch.int64)
    silent = 0
    for t in range(STEPS):
        if t == 40:
            stack.reset(options={"env_idx": [1, 3]})
        stack.step(rummage(stack, generator))
        px.gpu_query_contact_pair_impulses(pair_query)
        px.gpu_query_contact_body_impulses(body_query)
        by_pair = pair_query.cuda_impulses.torch().reshape(len(pairs), N, 3)
        by_body = body_query.cuda_impulses.torch().reshape(len(bodies), N, 3)
        for k, (one, other) in enumerate(pairs):
            assert torch.equal(by_pair[k], every_contact_added_up(stack, one, other)), (t, one.name, other.name)
        for k, one in enumerate(bodies):
            assert torch.equal(by_body[k], every_contact_added_up(stack, one, None)), (t, one.name)
        met += by_pair.any(dim=2).sum(dim=1)
        silent += int((~by_pair.any(dim=2)).sum())
    assert (met > 0).all(), f"some pairs never touched: {met.tolist()}"
    assert silent, "everything touched all the time: nothing was left out"


def test_only_contacts_that_are_asked_about_are_kept(stack: BaseEnv) -> None:
    """In most steps the cubes touch the table only, and a query about the hand keeps none of that."""
    px = stack.scene.px
    reader = type(px._contacts)(px._layout, px._systems, px._strictness)
    hand = stack.agent.robot.links_map["panda_hand"]
    query = reader.create_query(list(zip(hand._bodies, stack.cubeA._bodies, strict=True)))
    stack.reset(seed=4)
    stack.step(None)
    px.step_finish()
    assert all(system.get_contacts() for system in px._systems), "the cubes should lie on the table"
    reader.fill(query)
    assert reader._found == [{}] * N
    assert not query.cuda_impulses.torch().any()


def test_a_query_made_after_the_step_sees_the_step(stack: BaseEnv) -> None:
    stack.reset(seed=4)
    for _ in range(3):
        stack.step(None)
    stack.scene.px.step_finish()
    ground = stack.scene.px.gpu_create_contact_pair_impulse_query(
        list(zip(stack.cubeA._bodies, stack.table_scene.table._bodies, strict=True))
    )
    stack.scene.px.gpu_query_contact_pair_impulses(ground)
    impulses = ground.cuda_impulses.torch()
    assert (impulses[:, 2] > 0).all()
    assert torch.equal(impulses, every_contact_added_up(stack, stack.cubeA, stack.table_scene.table))


def test_moving_a_body_after_the_step_keeps_the_answer(stack: BaseEnv) -> None:
    """The answer is about the last substep; where a body was put since does not matter."""
    px: Any = stack.scene.px
    query = px.gpu_create_contact_body_impulse_query(stack.cubeA._bodies)
    stack.reset(seed=4)
    for _ in range(3):
        stack.step(None)
    px.gpu_query_contact_body_impulses(query)
    before = query.cuda_impulses.torch().clone()
    assert (before[:, 2] > 0).all()
    state = stack.get_state_dict()
    state["actors"]["cubeA"][:, 2] += 1.0
    stack.set_state_dict(state)
    px.gpu_query_contact_body_impulses(query)
    assert torch.equal(query.cuda_impulses.torch(), before)
    stack.step(None)
    px.gpu_query_contact_body_impulses(query)
    assert not query.cuda_impulses.torch().any(), "the cubes are in the air"


def test_a_pair_named_twice_fills_both_rows(stack: BaseEnv) -> None:
    px = stack.scene.px
    pair = (stack.cubeA._bodies[2], stack.table_scene.table._bodies[2])
    query = px.gpu_create_contact_pair_impulse_query([pair, pair[::-1], pair])
    stack.reset(seed=4)
    for _ in range(3):
        stack.step(None)
    px.gpu_query_contact_pair_impulses(query)
    first, turned, again = query.cuda_impulses.torch()
    assert first[2] > 0
    assert torch.equal(first, again)
    assert torch.equal(first, -turned)
