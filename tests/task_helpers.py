"""What the tests of the tasks share: making and stepping environments, comparing them, bringing success about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import gymnasium as gym
import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

import mikasa_robo
from mikasa_robo.assets.bodies import BALL_RADIUS
from mikasa_robo.catalog import CATALOG, TaskSpec
from mikasa_robo.core import rewards
from mikasa_robo.core.choice import ChoiceTask
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.tasks.intercept import Intercept
from mikasa_robo.tasks.intercept_grab import InterceptGrab
from mikasa_robo.tasks.rotate import Rotate, heading
from mikasa_robo.tasks.shell_game import ShellGame
from mikasa_robo.tasks.take_it_back import TakeItBack

Env: TypeAlias = Any
"""What gymnasium.make returns. Its own type knows one seed, one reward and one flag; ours are a batch of each."""
Record = dict[str, Tensor]
N = 8
HIDDEN_HEIGHT = 110.0
"""An object that is farther away than this, m, is behind the far plane (100 m) of every camera over the table."""


def one_id_per_mechanic() -> tuple[str, ...]:
    """The first ID of each combination of class and skill: the IDs of a family else differ in numbers only."""
    rows = [CATALOG[env_id] for env_id in mikasa_robo.TASKS]
    first = {(row.family, row.entry_point, row.skill): row.id for row in reversed(rows)}
    return tuple(row.id for row in rows if row.id in first.values())


def one_id_per_family() -> tuple[str, ...]:
    """The first ID of each family."""
    first = {CATALOG[env_id].family: env_id for env_id in reversed(mikasa_robo.TASKS)}
    return tuple(env_id for env_id in mikasa_robo.TASKS if env_id in first.values())


MECHANICS = one_id_per_mechanic()
FAMILIES = one_id_per_family()
if len(MECHANICS) < 14 or len(FAMILIES) < 12:
    raise AssertionError(f"tests over {MECHANICS} and {FAMILIES} would pass without testing the suite")


def make(task_id: str, num_envs: int, **kwargs: Any) -> Env:
    """The task with the simulator's strict debug switch on."""
    return gym.make(task_id, num_envs=num_envs, sim_debug=True, **kwargs)


def base(env: Env) -> MemoryEnv[Any]:
    """The task itself, without wrappers."""
    return cast(MemoryEnv[Any], env.unwrapped)


def row_of(env: Env) -> TaskSpec:
    """The catalog row of a task made through its ID."""
    assert env.spec is not None
    return CATALOG[env.spec.id]


def plain_phase(row: TaskSpec, t: int) -> int:
    """0 cue, 1 delay, 2 response at step ``t``, from the catalog alone."""
    return 0 if t < row.cue else 1 if t < row.cue + row.delay else 2


def flatten(values: Mapping[str, Any], prefix: str = "") -> Record:
    """Nested dicts of tensors as one dict of copies; what is no tensor is left out."""
    flat: Record = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        elif isinstance(value, Tensor):
            flat[prefix + name] = value.clone()
    return flat


def simulation(env: Env) -> Record:
    """The whole saved state, row by row: simulation, task and t."""
    return flatten(base(env).get_state_dict())


def random_actions(env: Env, steps: int, seed: int, num_envs: int | None = None) -> Tensor:
    """(steps, N, A) actions: a drift of each environment's own plus noise, so that arms go places and hit things."""
    generator = torch.Generator().manual_seed(seed)
    count = base(env).num_envs if num_envs is None else num_envs
    assert env.action_space.shape is not None
    size = env.action_space.shape[-1]
    drift = torch.rand(1, count, size, generator=generator) * 1.2 - 0.6
    noise = torch.rand(steps, count, size, generator=generator) * 1.6 - 0.8
    return (drift + noise).clamp(-1, 1)


def still_action(env: Env, gripper: float = 1.0) -> Tensor:
    """(N, A) of zeros with the gripper open (1) or closed (-1): the arm stays where it is under delta control."""
    assert env.action_space.shape is not None
    action = torch.zeros(base(env).num_envs, env.action_space.shape[-1])
    action[:, -1] = gripper
    return action


def step(env: Env, action: Tensor) -> Record:
    """One step; everything it returns, copied: obs, reward, terminated, truncated, info/…"""
    obs, reward, terminated, truncated, info = env.step(action)
    outcome = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}
    return flatten(outcome) | flatten(info, "info/")


def rollout(env: Env, actions: Tensor) -> list[Record]:
    """`step` for each of ``actions`` (steps, N, A)."""
    return [step(env, action) for action in actions]


def difference(a: Tensor, b: Tensor) -> str:
    """Where and by how much two tensors of the same shape differ, in a line."""
    places = torch.nonzero(a != b).tolist()
    largest = float((a.to(torch.float64) - b.to(torch.float64)).abs().max())
    return f"at {len(places)} places ({places[:4]}…) by up to {largest:.3g}"


def compare(one: Record, other: Record, rows: Sequence[int], other_rows: Sequence[int], where: str) -> None:
    """Fails, naming the entry, where rows of two records are not the same to the last bit."""
    assert one.keys() == other.keys(), f"{where}: {sorted(one.keys() ^ other.keys())}"
    assert len(rows) == len(other_rows) > 0
    for name, value in one.items():
        a, b = value[list(rows)], other[name][list(other_rows)]
        assert a.dtype == b.dtype, f"{where}: {name} is {a.dtype} and {b.dtype}"
        assert torch.equal(a, b), f"{where}: {name} differs {difference(a, b)}"


def compare_runs(
    one: list[Record], other: list[Record], rows: Sequence[int], other_rows: Sequence[int] | None = None
) -> None:
    """`compare` for every step of two rollouts."""
    assert len(one) == len(other) > 0
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        compare(a, b, rows, rows if other_rows is None else other_rows, f"step {t + 1}")


def stagger(env: Env, seed: int, scale: float = 1.0) -> None:
    """Brings the environments to different t, by partial resets: the response, the delay, the cue and the first frame.

    Environment i is in group i % 4; afterwards the groups' t is response start + 3, cue + delay // 2, cue // 2 and 0.
    """
    task, row = base(env), row_of(env)
    first = row.cue + row.delay
    if not row.response:  # the information is on view to the end: two other moments
        first = row.cue // 2
    wanted = (first + 3, row.cue + row.delay // 2 if row.response else row.cue // 3, min(row.cue // 2, first), 0)
    env.reset(seed=seed)
    actions = random_actions(env, wanted[0], seed) * scale
    for done in range(wanted[0] + 1):
        for group, t in enumerate(wanted):
            if group and wanted[0] - t == done:
                members = list(range(group, task.num_envs, 4))
                env.reset(seed=[seed + 1000 * group + i for i in members], options={"env_idx": members})
        if done < wanted[0]:
            env.step(actions[done])
    expected = torch.tensor([wanted[i % 4] for i in range(task.num_envs)])
    assert torch.equal(task.elapsed_steps.to(torch.int64), expected)


def move(
    env: Env, actor: Actor, rows: Sequence[int], pose: Tensor, velocity: Sequence[float] = (0.0, 0.0, 0.0)
) -> None:
    """Puts ``actor`` of some environments (batched simulation only) at ``pose`` (b, 7) with a linear velocity."""
    px = base(env).scene.px
    data = px.cuda_rigid_dynamic_data.torch()
    index = actor._body_data_index[list(rows)]
    data[index] = torch.cat([pose, torch.tensor([*velocity, 0.0, 0.0, 0.0]).expand(len(rows), 6)], dim=1)
    px.gpu_apply_rigid_dynamic_data()
    px.gpu_fetch_rigid_dynamic_data()


def _succeed_choice(env: Env, rows: Sequence[int]) -> None:
    task = cast(ChoiceTask, base(env))
    state = task.task_state
    for i in rows:
        state.counted[i, state.target[i]] = True


def _succeed_shells(env: Env, rows: Sequence[int]) -> None:
    task = cast(ShellGame, base(env))
    state = task.task_state
    for i in rows:
        target = int(state.target[i])
        if task.mode == "touch":
            state.counted[i, target] = True
            continue
        x, y = state.places[i, target].tolist()
        place = [x + 0.2, y, 0.04] if task.mode == "push" else [x, y, 0.5]
        move(env, task.objects[1 + target], [i], torch.tensor([[*place, 1.0, 0.0, 0.0, 0.0]]))


def _succeed_take_it_back(env: Env, rows: Sequence[int]) -> None:
    task = cast(TakeItBack, base(env))
    state, index = task.task_state, list(rows)
    state.reached[index] = True
    state.rested[index] = 1
    upright = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(index), 4)
    move(env, task.objects[0], index, torch.cat([state.start[index], upright], dim=1))


def _succeed_rotate(env: Env, rows: Sequence[int]) -> None:
    # the peg lies still where it lay: had it been turned by the angle before, the episode would be won
    state, index = cast(Rotate, base(env)).task_state, list(rows)
    move(env, base(env).objects[0], index, state.start[index])
    state.heading[index] = heading(state.start[index, 3:]).to(torch.float32)
    state.turned[index] = state.target[index]
    state.rested[index] = 1


def _succeed_intercept(env: Env, rows: Sequence[int]) -> None:
    task, index = cast(Intercept, base(env)), list(rows)
    pose = torch.tensor([0.0, 0.0, BALL_RADIUS, 1.0, 0.0, 0.0, 0.0]).repeat(len(index), 1)
    pose[:, :2] = task.task_state.goal[index]
    move(env, task.objects[0], index, pose)


def _succeed_intercept_grab(env: Env, rows: Sequence[int]) -> None:
    """The open hand of `still_action` can hold nothing: the ball is thrown up such that the step's end finds it where its
    beginning did, and at that moment the sensor feels it at both fingers."""
    task, index = cast(InterceptGrab, base(env)), list(rows)
    pose = torch.tensor([0.3, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0]).repeat(len(index), 1)
    move(env, task.objects[0], index, pose, velocity=(0.0, 0.0, 9.81 / task.control_freq / 2))
    sensor = task._touch_sensor
    assert sensor is not None
    read = sensor.read

    def feel() -> Tensor:
        sensor.read = read  # type: ignore[method-assign]
        force = read()
        force[index, 1:] = 1.0
        return force

    sensor.read = feel  # type: ignore[method-assign]


SUCCEED: dict[Any, Callable[[Env, Sequence[int]], None]] = {
    ChoiceTask: _succeed_choice,
    ShellGame: _succeed_shells,
    Intercept: _succeed_intercept,
    InterceptGrab: _succeed_intercept_grab,
    Rotate: _succeed_rotate,
    TakeItBack: _succeed_take_it_back,
}
"""For a class of tasks what changes its state so that some environments, in their response phase and with the arm at rest,
succeed at the next step. Tasks without a line are declared successful."""


def bring_success(env: Env, rows: Sequence[int]) -> None:
    """Makes environments ``rows`` succeed at the next step with `still_action`."""
    for kind, succeed in SUCCEED.items():
        if isinstance(base(env), kind):
            succeed(env, rows)
            return
    _declare_success(env, rows)


def _declare_success(env: Env, rows: Sequence[int]) -> None:
    """For a task without a line in `SUCCEED`: its own `outcome`, with success in ``rows`` at the next step."""
    task, index = base(env), list(rows)
    own, due = task.outcome, task.elapsed_steps[index] + 1

    def outcome(s: Any, data: StepData) -> dict[str, Tensor]:
        result = own(s, data)
        if not torch.equal(data.elapsed[index], due):
            task.outcome = own  # type: ignore[method-assign]
            return result
        success = result["success"].clone()
        success[index] = ~result["fail"][index]
        return result | {"success": success}

    task.outcome = outcome  # type: ignore[method-assign]


def can_fail(env: Env) -> bool:
    """Whether the task knows mistakes."""
    return "mistaken" in vars(base(env).task_state)


def bring_failure(env: Env, rows: Sequence[int]) -> None:
    """Enters a mistake for environments ``rows``."""
    base(env).task_state.mistaken[list(rows)] = True


def chi_square_p(counts: Tensor) -> float:
    """Probability of counts at least as uneven as these if all categories are equally likely."""
    observed = counts.to(torch.float64).flatten()
    expected = observed.sum() / len(observed)
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def go_to(env: Env, target: Tensor, gripper: float = -1.0, reach: float = 0.1, speed: float = 0.5) -> Tensor:
    """(N, 4) action of ``pd_ee_delta_pos`` towards ``target`` (N, 3) for the tool centre point, gripper closed (-1)."""
    delta = (target - base(env).agent.tcp.pose.p) / reach
    size = torch.linalg.norm(delta, dim=1, keepdim=True).clamp(min=1e-9)
    delta = delta * (size.clamp(max=speed) / size)
    return torch.cat([delta, torch.full((len(delta), 1), gripper)], dim=1)


def paid(task: MemoryEnv[Any], s: Any, data: StepData) -> Tensor:
    """(N,) dense reward of ``data``, after a look at the range of its terms."""
    verdict, terms = task.outcome(s, data), task.reward_terms(s, data)
    for name, term in terms.items():
        assert bool(((term >= 0) & (term <= 1)).all()), name
    weighted = rewards.weigh(terms, task.reward_scales, verdict["success"], verdict["fail"], data.responding)
    return rewards.total(weighted)


def paid_once(task: MemoryEnv[Any], info: dict[str, Any]) -> Tensor:
    """(N,) the part of this step's normalized reward that is paid once, for a touch among several; else zeros."""
    once = [info["reward_terms"][name] for name in task.paid_once]
    return rewards.normalized(sum(once, torch.zeros(task.num_envs, device=task.device)), task.reward_scales)


def collected(reward: Tensor, once: Tensor) -> Tensor:
    """Rewards (T, …) in which what is paid once, ``once`` (T, …), counts from then on."""
    return reward + once.cumsum(dim=0) - once
