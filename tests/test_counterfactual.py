"""What comes into view shows no trace of the cue: with another cue an agent observes the same afterwards, to the last bit.

The same seed and the same actions, once with the cue that was drawn and once with another one. A policy that compared the
last bits could otherwise read the cue from the scene and would need no memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from task_helpers import Env, Record, base, compare, compare_runs, go_to, make, random_actions, row_of, simulation
from torch import Tensor

import mikasa_robo
from mikasa_robo.catalog import CATALOG
from mikasa_robo.core.choice import ChoiceState, ChoiceTask
from mikasa_robo.core.visibility import PARKING_HEIGHT

SEED, N = 7, 4
RESPONSE_STEPS = 8
"""Control steps of the response phase that are played: mistakes do not end an episode here."""
IMAGES = "objects+rgb+depth+segmentation"


def family(env_id: str) -> str:
    return CATALOG[env_id].family


CHOICE = tuple(
    env_id for env_id in mikasa_robo.TASKS if family(env_id).startswith(("Remember", "Bunch", "Seq", "Chain"))
)
SHELLS = tuple(env_id for env_id in mikasa_robo.TASKS if family(env_id).startswith("ShellGame"))
REPLACED = tuple(env_id for env_id in mikasa_robo.TASKS if env_id.endswith("Replaced-v0"))
NO_COUNTERFACTUAL = tuple(env_id for env_id in mikasa_robo.TASKS if env_id not in (*CHOICE, *SHELLS, *REPLACED))
"""Here what has to be remembered *is* where an object is. In the paper's form of Rotate and TakeItBack the object stays
there until it is moved, so another start is another scene afterwards, too. In Intercept the ball is the same body all the
time, and where it comes into view again is what has to be predicted."""
IMAGE_IDS = tuple({family(env_id): env_id for env_id in reversed(CHOICE)}.values())[::-1]
QUICK = ("RememberShape9-v0", "BunchOfColors5-v0", "ChainOfColors3-v0")
"""One ID of each way to show a cue, among them those in which a trace was most often seen."""
FREE_IDS = (*QUICK, *(env_id for env_id in IMAGE_IDS if family(env_id) not in map(family, QUICK)))
PUSH_STEPS = 40


# ---------------------------------------------------------------------- other cues
def other_targets(s: ChoiceState) -> ChoiceState:
    """Other targets, each the next candidate."""
    return dataclasses.replace(s, target=(s.target + 1) % s.home.shape[1])


def other_order(s: ChoiceState) -> ChoiceState:
    """The same targets in another order."""
    return dataclasses.replace(s, target=s.target.flip(1))


def other_mug(s: Any) -> Any:
    """The ball under the next mug."""
    target = (s.target + 1) % 3
    ball = s.places.gather(1, target[:, None, None].expand(-1, 1, 2))[:, 0]
    return dataclasses.replace(s, target=target, ball=ball)


def other_start(s: Any) -> Any:
    """Another start, with the object coming back at the same place."""
    start = s.start.clone()
    start[:, 0] += 0.02
    if start.shape[1] == 7:  # a pose: also another yaw
        start[:, 3:] = torch.tensor([math.cos(0.4), 0.0, 0.0, math.sin(0.4)])
    return dataclasses.replace(s, start=start)


class Cues:
    """Takes the place of a task's `sample`, so that episodes have the cue that was drawn, or another one."""

    def __init__(self, env: Env) -> None:
        self.change: Callable[[Any], Any] | None = None
        task = base(env)
        self._sample = task.sample
        task.sample = self  # type: ignore[method-assign]

    def __call__(self, u: Any) -> Any:
        s = self._sample(u)
        return s if self.change is None else self.change(s)


# ---------------------------------------------------------------------- what an agent can observe
def observable(env: Env, obs: Any) -> Record:
    """The observation, and what `objects` is made of before it is rounded."""
    task = base(env)
    visible, poses = task.visible_poses(task.task_state, task._read_sim(task._elapsed_steps))
    record = {f"obs/{name}": value.clone() for name, value in obs.items()}
    return record | {"visible": visible.clone(), "poses": torch.where(visible[..., None], poses, 0.0)}


def reach_for_a_candidate(env: Env, t: int) -> Tensor:
    """Under ``pd_ee_delta_pos``, ``t`` steps into the response phase: down to the first candidate."""
    return go_to(env, base(env).task_state.home[:, 0])


def push_a_mug(env: Env, t: int) -> Tensor:
    """Down beside the first mug, then along the row, so that the mug is pushed against a ball that is under it."""
    place = torch.nn.functional.pad(base(env).task_state.places[:, 0], (0, 1), value=0.03)
    aside = place.new_tensor([0.0, 0.08 if t < PUSH_STEPS // 2 else -0.15, 0.12 if t < PUSH_STEPS // 4 else 0.0])
    return go_to(env, place + aside)


def play(env: Env, steps: int, act: Callable[[Env, int], Tensor]) -> list[Record]:
    """A seeded episode: what is observable, at t = 0 and after each step."""
    obs, _ = env.reset(seed=SEED)
    seen = [observable(env, obs)]
    for t in range(steps):
        obs, *_ = env.step(act(env, t))
        seen.append(observable(env, obs))
    return seen


def assert_no_trace(
    env_id: str,
    change: Callable[[Any], Any],
    arm: str = "held",
    obs_mode: str = "objects",
    num_envs: int = N,
    response_steps: int = RESPONSE_STEPS,
    respond: Callable[[Env, int], Tensor] = reach_for_a_candidate,
    **kwargs: Any,
) -> None:
    """Fails where, from the first view without the cue on, another cue shows."""
    if arm == "held":
        kwargs["control_mode"] = "pd_ee_delta_pos"
    env = make(env_id, num_envs, obs_mode=obs_mode, arm=arm, on_mistake="ignore", sim_threads=1, **kwargs)
    row, cues = row_of(env), Cues(env)
    first = row.cue + row.delay
    steps = first + response_steps
    moves = random_actions(env, steps, SEED)

    def act(env: Env, t: int) -> Tensor:
        return moves[t] if arm == "free" or t < first else respond(env, t - first)

    drawn = play(env, steps, act)
    state = simulation(env)
    cues.change = change
    other = play(env, steps, act)
    rows = list(range(num_envs))
    shown = any(not torch.equal(a[name], b[name]) for a, b in zip(drawn, other, strict=True) for name in a)
    assert shown, "the other cue has to be seen at all"
    compare_runs(drawn[row.cue :], other[row.cue :], rows)
    if isinstance(base(env), ChoiceTask):
        now = simulation(env)
        of_simulation = [name for name in now if not name.startswith("task/")]
        compare(
            {name: state[name] for name in of_simulation},
            {name: now[name] for name in of_simulation},
            rows,
            rows,
            "end",
        )
    env.close()


@pytest.fixture(scope="module")
def rendered() -> list[Env]:
    """Environments that drew something. While one is held the renderer stays, which takes 14 s of a core to start."""
    return []


def slow_unless_quick(ids: tuple[str, ...]) -> list[Any]:
    return [pytest.param(env_id, marks=[] if env_id in QUICK else pytest.mark.slow) for env_id in ids]


@pytest.mark.parametrize("env_id", slow_unless_quick(CHOICE))
def test_another_cue_leaves_no_trace(env_id: str) -> None:
    assert_no_trace(env_id, other_targets)


@pytest.mark.parametrize("env_id", slow_unless_quick(FREE_IDS))
def test_nor_with_a_free_arm(env_id: str) -> None:
    """One ID of each family: the number of candidates is varied with the held arm."""
    assert_no_trace(env_id, other_targets, "free")


@pytest.mark.parametrize("env_id", ["ChainOfColors3-v0", pytest.param("SeqOfColors5-v0", marks=pytest.mark.slow)])
def test_another_order_leaves_no_trace(env_id: str) -> None:
    assert_no_trace(env_id, other_order, "free")


@pytest.mark.parametrize("env_id", slow_unless_quick(("RememberShape9-v0", "BunchOfColors3-v0")))
def test_nor_in_a_single_environment(env_id: str) -> None:
    assert_no_trace(env_id, other_targets, num_envs=1)


@pytest.mark.parametrize("arm", ["held", pytest.param("free", marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", [pytest.param(i, marks=[] if "Pick" in i else pytest.mark.slow) for i in SHELLS])
def test_the_mugs_show_no_trace_of_the_ball(env_id: str, arm: str) -> None:
    assert_no_trace(env_id, other_mug, arm, respond=lambda env, t: push_a_mug(env, 0))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [env_id for env_id in SHELLS if "Touch" not in env_id])
def test_nor_does_a_mug_that_is_pushed(env_id: str) -> None:
    """Not in Touch, where the touch decides the episode."""
    assert_no_trace(env_id, other_mug, response_steps=PUSH_STEPS, respond=push_a_mug)


@pytest.mark.parametrize("env_id", [pytest.param(i, marks=pytest.mark.slow) for i in REPLACED])
def test_what_comes_back_elsewhere_shows_no_trace_of_its_start(env_id: str) -> None:
    assert_no_trace(env_id, other_start, respond=lambda env, t: go_to(env, base(env).task_state.returned[:, :3]))


@pytest.mark.parametrize(
    "env_id", [pytest.param(i, marks=[] if i == IMAGE_IDS[0] else pytest.mark.slow) for i in IMAGE_IDS]
)
def test_images_show_no_trace(env_id: str, rendered: list[Env]) -> None:
    """At the first views of the delay and of the response, and the last one played. Pictures take most of the time."""
    env = make(env_id, 2, obs_mode=IMAGES, on_mistake="ignore", sim_threads=1, render_workers=0)
    rendered.append(env)
    task, row, cues = base(env), row_of(env), Cues(env)
    looked_at = {row.cue, row.cue + row.delay, row.cue + row.delay + 2}
    runs = []
    for change in (None, other_targets):
        cues.change = change
        task.set_obs_mode("objects")
        env.reset(seed=SEED)
        run = []
        for t, action in enumerate(random_actions(env, max(looked_at), SEED), start=1):
            task.step(action)
            if t in looked_at:
                task.set_obs_mode(IMAGES)
                run.append(observable(env, task.get_obs()))
                task.set_obs_mode("objects")
        runs.append(run)
    env.close()
    compare_runs(runs[0], runs[1], [0, 1])


def test_every_task_is_accounted_for() -> None:
    """A new family has to say what another cue is, or why there is none."""
    assert {family(env_id) for env_id in NO_COUNTERFACTUAL} == {
        "Intercept",
        "InterceptGrab",
        "RotateLenient",
        "RotateStrict",
        "TakeItBack",
    }
    assert len(CHOICE) == 18
    assert len(SHELLS) == 3
    assert len(REPLACED) == 5


# ---------------------------------------------------------------------- cue bodies
def test_without_cue_bodies_a_trace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure itself."""
    monkeypatch.setattr(ChoiceTask, "cue_bodies", False)
    with pytest.raises(AssertionError, match="differs"):
        assert_no_trace("RememberShape9-v0", other_targets, num_envs=8)


def candidates_height(env: Env) -> Tensor:
    """(N, K) z of the objects themselves, m."""
    return torch.stack([actor.pose.p[:, 2] for actor in base(env).objects], dim=1)


def test_the_candidates_are_parked_until_the_response() -> None:
    env = make("RememberColor3-v0", 2, obs_mode="objects")
    task, row = base(env), row_of(env)
    env.reset(seed=SEED)
    for t in range(row.cue + row.delay + 1):
        parked = candidates_height(env) > PARKING_HEIGHT / 2
        assert bool(parked.all()) == (t < row.cue + row.delay), t
        on_view = ~task.object_layout.parked(task.object_layout.read())
        assert torch.equal(on_view, task.layout(task.task_state, task.elapsed_steps)[0])
        env.step(torch.zeros(2, 8))
    env.close()


def test_a_restored_state_shows_its_cue_though_it_does_not_hold_it(rendered: list[Env]) -> None:
    """States hold the task's objects only, as they always did; those of earlier versions held the shown one on the table."""
    env = make("BunchOfColors3-v0", 2, obs_mode=IMAGES, render_workers=0)
    rendered.append(env)
    task = base(env)
    obs, _ = env.reset(seed=SEED)
    before, state = observable(env, obs), task.get_state_dict()
    assert set(state["actors"]) == {"table-workspace", *(actor.name for actor in task.objects)}
    task.set_obs_mode("objects")
    for _ in range(row_of(env).cue):
        env.step(torch.zeros(2, 8))
    assert not bool(task.object_layout.read()[..., 2].lt(1).any())
    task.set_obs_mode(IMAGES)
    task.set_state_dict(state)
    compare_runs([before], [observable(env, task.get_obs())], [0, 1])
    following = observable(env, env.step(torch.zeros(2, 8))[0])

    visible, home = task.layout(task.task_state, torch.zeros(2, dtype=torch.int64))
    for k, actor in enumerate(task.objects):
        state["actors"][actor.name][visible[:, k], :7] = home[visible[:, k], k]
    task.set_state_dict(state)
    compare_runs([before], [observable(env, task.get_obs())], [0, 1])
    assert bool((candidates_height(env) > PARKING_HEIGHT / 2).all())
    compare_runs([following], [observable(env, env.step(torch.zeros(2, 8))[0])], [0, 1])
    env.close()


def test_the_simulation_is_the_same_whether_it_is_drawn_or_not() -> None:
    """Cue bodies are built only where they are drawn."""
    runs = []
    for backend in ("none", "cpu"):
        env = make("RememberShape5-v0", 2, obs_mode="objects", render_backend=backend, on_mistake="ignore")
        assert ("cube_cue" in base(env).scene.actors) == (backend == "cpu")
        env.reset(seed=SEED)
        run = []
        for action in random_actions(env, 14, SEED):
            obs = env.step(action)[0]
            run.append(observable(env, obs) | simulation(env))
        runs.append(run)
        env.close()
    compare_runs(runs[0], runs[1], [0, 1])
