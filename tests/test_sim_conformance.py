"""Env i of a batch does to the last bit what a single ManiSkill env does from the same state under the same actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mani_skill.envs.sapien_env import BaseEnv
from sim_helpers import (
    assert_identical,
    copied,
    differences,
    pick_cube,
    random_actions,
    rows,
    set_exactly,
    step,
    zoo,
)
from torch import Tensor

import mikasa_robo.sim.cpu_systems
import mikasa_robo.sim.stepping
from mikasa_robo.sim.env import make

# ManiSkill asks numpy whether a tensor is NaN
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

N = 8
STEPS = 50
RESET_AT = 20
CASES = [
    ("PickCube-v1", "pd_joint_delta_pos"),
    ("PickCube-v1", "pd_joint_pos"),
    ("PickCube-v1", "pd_ee_delta_pose"),
    ("PickCube-v1", "pd_joint_target_delta_pos"),
    ("PushCube-v1", "pd_joint_pos"),
    ("StackCube-v1", "pd_ee_delta_pose"),
]
"""Every mode and every task, and not all pairs: a controller knows nothing of the task, nor the task of the controller."""


def make_batch(task: str, mode: str) -> BaseEnv:
    batch = make(task, num_envs=N, obs_mode="state", control_mode=mode, sim_debug=True, sim_threads=2)
    batch.reset(seed=3)
    assert batch.scene.px.threads == 2
    return batch


def make_single(task: str, mode: str) -> BaseEnv:
    """ManiSkill's own single env, new for every comparison.

    PhysX keeps contacts and solver warm starts across a reset, so that two single envs with different pasts differ in
    the last bits (a cube that was in the gripper: in the first digits) from the same state on. Equal pasts, equal bits.
    """
    single = make(task, num_envs=1, obs_mode="state", control_mode=mode)
    single.reset(seed=0)
    assert not single.scene.gpu_sim_enabled, "the reference must be ManiSkill's own single-env simulation"
    return single


def eventful_state(env: BaseEnv) -> dict[str, Any]:
    """A state in which things happen: in env 5 a cube falls, spinning; in env 6 the fingers are about to close on it."""
    state = env.get_state_dict()
    cube = state["actors"]["cube" if "cube" in state["actors"] else "cubeA"]
    cube[5, 2] += 0.15
    cube[5, 7:10] = torch.tensor([0.3, 0.1, 0.0])
    cube[5, 10:13] = torch.tensor([2.0, -3.0, 1.0])
    cube[6, :3] = env.agent.tcp.pose.p[6]
    cube[6, 3:7] = env.agent.tcp.pose.q[6]
    state["articulations"][env.agent.robot.name][6, 20:22] = 0.0205  # finger joints; the cube is 0.04 m wide
    return state


@pytest.mark.parametrize(("task", "mode"), CASES)
def test_an_env_of_a_batch_equals_a_single_env(task: str, mode: str) -> None:
    """State, observation, reward and every info entry, over 50 steps; a partial reset of envs 0, 2 changes no other."""
    batch = make_batch(task, mode)
    start = eventful_state(batch)
    again = rows(start, [4, 5])  # what envs 0 and 2 are reset to: 5 has a falling cube
    actions = random_actions(batch, STEPS)
    actions[:30, 6, -1] = -1  # close
    set_exactly(batch, start)
    seen = []
    for t in range(STEPS):
        if t == RESET_AT:
            batch.reset(options={"env_idx": [0, 2], "reset_to_env_states": {"env_states": again}})
        seen.append(step(batch, actions[t]))
    assert not torch.equal(seen[0]["obs"], seen[-1]["obs"])
    if task == "PickCube-v1":
        assert any(s["info"]["is_grasped"][6] for s in seen), "no contact with the gripper was tested"

    for env in (1, 5, 6, 2):
        single = make_single(task, mode)
        set_exactly(single, rows(start, env))
        for t in range(STEPS):
            if env == 2 and t == RESET_AT:
                single.reset(options={"reset_to_env_states": {"env_states": rows(again, 1)}})
            assert_identical(rows(seen[t], env), step(single, actions[t, env : env + 1]), f"env {env}, step {t}: ")
        single.close()
    batch.close()


def test_one_env_can_be_simulated_by_the_batched_simulator() -> None:
    """``physx_cpu_batched`` with one env gives what ManiSkill's single env gives."""
    batched_one = pick_cube(num_envs=1, sim_backend="physx_cpu_batched")
    single = pick_cube(num_envs=1)
    assert batched_one.scene.gpu_sim_enabled
    assert not single.scene.gpu_sim_enabled
    set_exactly(single, batched_one.get_state_dict())
    set_exactly(batched_one, batched_one.get_state_dict())
    for action in random_actions(batched_one, 20):
        assert_identical(step(batched_one, action), step(single, action))
    batched_one.close()
    single.close()


@pytest.mark.parametrize("acting", [True, False], ids=["targets that never change", "no action"])
def test_a_robot_at_rest_sleeps_only_where_a_single_env_sleeps(acting: bool) -> None:
    """PhysX lets a body at rest fall asleep, which a controller prevents by setting its targets every step."""
    batch = make_batch("PickCube-v1", "pd_joint_delta_pos")
    single = make_single("PickCube-v1", "pd_joint_delta_pos")
    start = batch.get_state_dict()
    set_exactly(batch, start)
    set_exactly(single, rows(start, 3))
    hold = torch.zeros(N, 8)
    slept = 0
    for t in range(40):
        ours = step(batch, hold if acting else None)
        assert_identical(rows(ours, 3), step(single, hold[:1] if acting else None), f"step {t}: ")
        slept += all(link.sleeping for link in batch.agent.robot._objs[3].links)
    # else the test could not tell
    assert (slept == 0) is acting
    batch.close()
    single.close()


# ---------------------------------------------------------------------- contact
GROUND = -0.9196429  # the table scene's floor


def test_the_ground_and_the_table_hold_in_every_env() -> None:
    """A cube beside the table falls to the floor and stays there, in env 3 and 7 as in env 0; one in env 5 on the table."""
    batch = make_batch("PickCube-v1", "pd_joint_delta_pos")
    state = batch.get_state_dict()
    beside = [0, 3, 7]
    state["actors"]["cube"][beside, :3] = torch.tensor([1.5, 0.0, GROUND + 0.1])
    state["actors"]["cube"][5, :3] = torch.tensor([0.2, 0.3, 0.1])
    set_exactly(batch, state)
    hold = torch.zeros(N, 8)
    seen = [step(batch, hold) for _ in range(30)]
    height = batch.cube.pose.p[:, 2]
    assert torch.allclose(height[beside], torch.tensor(GROUND + 0.02), atol=1e-3), height
    assert abs(height[5].item() - 0.02) < 1e-3, height
    assert (batch.cube.linear_velocity[[*beside, 5]].abs() < 1e-2).all()
    weight = batch.cube.get_net_contact_forces()[:, 2]
    expected = batch.cube.mass * 9.81
    assert torch.allclose(weight, expected.to(weight.dtype), rtol=0.05), "what holds the cube is not its weight"
    for env in (3, 5):
        single = make_single("PickCube-v1", "pd_joint_delta_pos")
        set_exactly(single, rows(state, env))
        for t in range(30):
            assert_identical(rows(seen[t], env), step(single, hold[:1]), f"env {env}, step {t}: ")
        single.close()
    batch.close()


def grasp_script(env: BaseEnv, t: int) -> Tensor:
    """Over the cube, down, close, up: position control of the hand towards a target of the moment."""
    cube, tcp = env.cube.pose.p, env.agent.tcp.pose.p
    above = torch.tensor([0.0, 0.0, 0.08 if t < 12 else 0.0])
    move = (cube + above - tcp) if t < 28 else torch.tensor([0.0, 0.0, 0.05]).expand(env.num_envs, 3)
    gripper = torch.full((env.num_envs, 1), 1.0 if t < 22 else -1.0)
    return torch.cat([(move / 0.1).clamp(-1, 1), gripper], dim=1)


def forces(env: BaseEnv) -> dict[str, Tensor]:
    """Every way of asking for contact forces."""
    scene, agent = env.scene, env.agent
    return copied(
        {
            "finger1 by cube": scene.get_pairwise_contact_forces(agent.finger1_link, env.cube),
            "cube by finger2": scene.get_pairwise_contact_forces(env.cube, agent.finger2_link),
            "cube by table": scene.get_pairwise_contact_forces(env.cube, env.table_scene.table),
            "impulse": scene.get_pairwise_contact_impulses(agent.finger1_link, env.cube),
            "net on cube": env.cube.get_net_contact_forces(),
            "net on finger": agent.finger1_link.get_net_contact_forces(),
            "robot": agent.robot.get_net_contact_forces(["panda_leftfinger", "panda_rightfinger"]),
            "grasped": agent.is_grasping(env.cube),
        }
    )


def test_contact_forces_of_a_scripted_grasp() -> None:
    """Pairwise and net contact forces and ``is_grasping`` in envs that grasp, and in one whose cube is out of reach."""
    batch = make_batch("PickCube-v1", "pd_ee_delta_pos")
    state = batch.get_state_dict()
    state["actors"]["cube"][:, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    state["actors"]["cube"][2, :3] = torch.tensor([0.4, 0.6, 0.02])
    set_exactly(batch, state)
    actions, seen = [], []
    for t in range(40):
        actions.append(grasp_script(batch, t))
        seen.append(step(batch, actions[-1]) | {"forces": forces(batch)})
    grasped = seen[-1]["forces"]["grasped"]
    assert grasped[[1, 4, 6]].all()
    assert not grasped[2]
    assert seen[-1]["forces"]["finger1 by cube"][1].norm() > 1
    assert (batch.cube.pose.p[[1, 4, 6], 2] > 0.1).all(), "the grasped cubes were not lifted"
    assert any(s["forces"]["cube by table"][1].norm() > 0 for s in seen)
    for env in (1, 4, 2):
        single = make_single("PickCube-v1", "pd_ee_delta_pos")
        set_exactly(single, rows(state, env))
        for t in range(40):
            one = step(single, actions[t][env : env + 1]) | {"forces": forces(single)}
            assert_identical(rows(seen[t], env), one, f"env {env}, step {t}: ")
        single.close()
    batch.close()


# ---------------------------------------------------------------------- kinds of actor
def test_kinematic_static_and_merged_actors() -> None:
    """A scene that differs between envs: poses, writes under a partial reset, and equality with single envs."""
    batch = zoo(4)
    batch.spawn = torch.arange(12.0).reshape(4, 3) * 0.01
    batch.reset(seed=0)
    px = batch.scene.px

    for actor in (batch.box, batch.marker, batch.shape):
        held = torch.stack([torch.tensor([*e.pose.p, *e.pose.q]) for e in actor._objs])
        assert torch.equal(actor.pose.raw_pose, held), actor.name
    assert torch.equal(batch.marker.pose.p, batch.spawn + torch.tensor([0.0, -0.5, 0.3]))
    assert torch.equal(batch.shape.pose.p, batch.spawn + torch.tensor([0.4, -0.5, 0.2]))
    assert torch.equal(batch.machine.qpos[:, 0], batch.spawn[:, 0])
    assert [len(x) for x in px._layout.links if len(x) < 5] == [2, 3, 2, 3], "the two kinds of machine should alternate"
    handle = torch.stack([torch.tensor([*link.entity_pose.p, *link.entity_pose.q]) for link in batch.handle._objs])
    assert torch.equal(batch.handle.pose.raw_pose, handle)
    # a static actor has no row and cannot be moved
    assert torch.allclose(batch.wall.pose.p, torch.tensor([0.5, 0.5, 0.05]))
    with pytest.raises(AssertionError, match="Static objects cannot change poses"):
        batch.wall.set_pose(batch.box.pose)

    actions = random_actions(batch, 30)
    start = batch.get_state_dict()
    set_exactly(batch, start)
    seen = [step(batch, action) for action in actions]
    assert (batch.box.pose.p[:, 2] < 0.06).all(), "the box did not fall"
    assert torch.equal(seen[0]["state"]["actors"]["marker"], seen[-1]["state"]["actors"]["marker"]), "kinematic: stays"
    for env in (1, 2):
        single = zoo(1, first=env)
        single.spawn = batch.spawn[env : env + 1]
        single.reset(seed=0)
        set_exactly(single, rows(start, env))
        for t in range(30):
            # ManiSkill pads merged articulations to the widest in the batch, which a single env does not have
            ours = rows(seen[t], env)
            one = step(single, actions[t][env : env + 1])
            for name in ("actors", "articulations"):
                for key, value in one["state"][name].items():
                    width = value.shape[1]
                    mine = ours["state"][name][key]
                    if mine.shape[1] != width:
                        assert env == 2
                        mine = torch.cat([mine[:, :13], mine[:, 13:14], mine[:, 15:16]], dim=1)
                    assert_identical(mine, value, f"env {env}, step {t}, {key}")
        single.close()

    before = batch.get_state_dict()
    batch.spawn = batch.spawn + 0.2
    batch.reset(options={"env_idx": [1, 3]})
    after = batch.get_state_dict()
    assert_identical(rows(after, [0, 2]), rows(before, [0, 2]), "not reset: ")
    for actor, offset in (
        (batch.marker, [0.0, -0.5, 0.3]),
        (batch.box, [0.0, 0.5, 0.2]),
        (batch.shape, [0.4, -0.5, 0.2]),
    ):
        assert torch.equal(actor.pose.p[[1, 3]], (batch.spawn + torch.tensor(offset))[[1, 3]]), actor.name
    assert (batch.shape.linear_velocity[[1, 3]] == 0).all()
    assert torch.equal(batch.machine.qpos[[1, 3], 0], batch.spawn[[1, 3], 0])
    batch.close()


# ---------------------------------------------------------------------- saving and restoring
def without_time(seen: dict[str, Any]) -> dict[str, Any]:
    """ManiSkill's state holds no step count."""
    return {**seen, "info": {k: v for k, v in seen["info"].items() if k != "elapsed_steps"}}


def test_state_round_trip_and_identical_continuation() -> None:
    """A state that was set reads as it was and continues identically, whatever came between; as in a single env."""
    batch = make_batch("PickCube-v1", "pd_joint_delta_pos")
    single = make_single("PickCube-v1", "pd_joint_delta_pos")
    start = batch.get_state_dict()
    env = 5

    def story(env: BaseEnv, start: dict[str, Any], actions: Tensor) -> list[Any]:
        told: list[Any] = []
        set_exactly(env, start)
        for action in actions[:10]:
            env.step(action)
        saved = env.get_state_dict()
        kept = copied(saved)
        told.append(saved)
        for part in (actions[10:25], actions[25:40], actions[10:25]):
            set_exactly(env, saved)
            assert_identical(saved, kept, "setting a state changed what was passed: ")
            told.append(env.get_state_dict())
            told.append([without_time(step(env, action)) for action in part])
        return told

    actions = random_actions(batch, 40, seed=1)
    saved, restored, first, _, _, _, second = story(batch, start, actions)
    for group, name in (("actors", "cube"), ("articulations", "panda")):
        # PhysX itself keeps a root pose to about a bit
        assert torch.allclose(restored[group][name], saved[group][name], rtol=0, atol=1e-7), name
    for t, (a, b) in enumerate(zip(first, second, strict=True)):
        assert_identical(a, b, f"restored, step {t}: ")
    ours = story(single, rows(start, env), actions[:, env : env + 1])
    for a, b in zip((saved, restored, first, second), (ours[0], ours[1], ours[2], ours[6]), strict=True):
        for x, y in zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]:
            assert_identical(rows(x, env), y, "a single env continues otherwise: ")
    batch.close()
    single.close()


def test_a_state_can_be_set_in_some_envs_only() -> None:
    """Rows of other envs do not change by a bit, neither at once nor later."""
    disturbed, undisturbed = (make_batch("PickCube-v1", "pd_joint_delta_pos") for _ in range(2))
    start = eventful_state(disturbed)
    actions = random_actions(disturbed, 20, seed=2)
    other = rows(start, [0, 2])
    other["actors"]["cube"][:, 0] += 0.03
    other["articulations"]["panda"][:, 13:20] += 0.02
    chosen = torch.tensor([1, 4])
    others = [0, 2, 3, 5, 6, 7]
    set_exactly(disturbed, start)
    set_exactly(undisturbed, start)
    for t, action in enumerate(actions):
        if t == 5:
            before = disturbed.get_state_dict()
            disturbed.set_state_dict(other, env_idx=chosen)
            now = disturbed.get_state_dict()
            assert_identical(rows(now, others), rows(before, others))
            assert torch.allclose(now["actors"]["cube"][chosen], other["actors"]["cube"], rtol=0, atol=1e-7)
            robot = now["articulations"]["panda"][chosen]
            assert torch.allclose(robot, other["articulations"]["panda"], rtol=0, atol=1e-6)
        seen, expected = step(disturbed, action), step(undisturbed, action)
        assert_identical(rows(seen, others), rows(expected, others), f"step {t}: ")
    disturbed.close()
    undisturbed.close()


# ---------------------------------------------------------------------- other ways to the same values
def rollout(env: BaseEnv, steps: int = 20) -> list[dict[str, Any]]:
    env.reset(seed=7)
    set_exactly(env, env.get_state_dict())
    seen = []
    for t, action in enumerate(random_actions(env, steps)):
        if t == 10:
            env.reset(seed=11, options={"env_idx": [1]})
        seen.append(step(env, action))
    return seen


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    env = pick_cube()
    assert env.scene.px._reader.use_packed, "sapien's packed layout has changed: every fetch is slow now"
    assert mikasa_robo.sim.stepping.native_step() is not None, "sapien's C++ step was not found: threads gain nothing"
    seen = rollout(env)
    env.close()
    return seen


def assert_same_rollout(seen: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
    for t, (a, b) in enumerate(zip(seen, reference, strict=True)):
        assert_identical(a, b, f"step {t}: ")


def test_fetching_body_by_body_gives_the_same(reference: list[dict[str, Any]]) -> None:
    """The fall-back for another layout of ``pack()``: every buffer and every step as with the packed bytes."""
    env = pick_cube()
    px = env.scene.px
    px._reader.use_packed = False
    calls: list[int] = []
    original = px._reader._poses_by_getters

    def counted() -> Any:
        calls.append(1)
        return original()

    px._reader._poses_by_getters = counted
    assert_same_rollout(rollout(env), reference)
    assert len(calls) > 20, "the fall-back was not used"

    for action in random_actions(env, 3):
        env.step(action)
    buffers = {}
    for packed in (False, True):
        px._reader.use_packed = packed
        env.scene._gpu_fetch_all()
        buffers[packed] = {"bodies": px._buffers.body_data.clone(), **copied(px._buffers.q)}
    assert_identical(buffers[False], buffers[True])
    env.close()


@pytest.mark.parametrize("both", [True, False], ids=["nowhere", "only in stepping"])
def test_stepping_through_the_binding_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, reference: list[dict[str, Any]], both: bool
) -> None:
    """The fall-back where SAPIEN's C++ step is not to be found; also on threads that share Python's lock."""
    monkeypatch.setattr(mikasa_robo.sim.stepping, "native_step", lambda: None)
    if both:
        monkeypatch.setattr(mikasa_robo.sim.cpu_systems, "native_step", lambda: None)
    env = pick_cube()
    assert env.scene.px.threads == (1 if both else 2)
    assert env.scene.px._steppers[0] == env.scene.px._systems[0].step
    assert_same_rollout(rollout(env), reference)
    env.close()


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_the_number_of_threads_changes_nothing(reference: list[dict[str, Any]], threads: int) -> None:
    """One thread, a number that does not divide the envs, and more than there are envs."""
    env = pick_cube(sim_threads=threads)
    assert env.scene.px.threads == min(threads, 4)
    assert_same_rollout(rollout(env), reference)
    env.close()


def test_the_debug_switch_changes_nothing(reference: list[dict[str, Any]]) -> None:
    env = pick_cube(sim_debug=False)
    assert_same_rollout(rollout(env), reference)
    env.close()


def test_differences_sees_one_bit() -> None:
    """The comparison behind these tests notices the last bit, a missing entry and another dtype."""
    one = torch.ones(3)
    bit = torch.nextafter(one, torch.full((3,), 2.0))
    assert not differences({"a": one}, {"a": one.clone()})
    assert differences({"a": one}, {"a": torch.stack([one[0], one[1], bit[2]])})
    assert differences({"a": one}, {"b": one})
    assert differences({"a": one}, {"a": one.double()})
