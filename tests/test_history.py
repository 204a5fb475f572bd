"""A reset leaves no trace: an episode in an environment that was used before is that of a new one, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from task_helpers import Record, make, one_id_per_family, random_actions, row_of, simulation, step
from torch import Tensor

import mikasa_robo
from mikasa_robo.experts.policies import OBS_MODE, Expert
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.rollouts import play_episodes
from mikasa_robo.sim.env import BatchedSimMixin

SEED, OTHER = 7, 3
QUICK = {*one_id_per_family(), "BunchOfColors7-v0", "RememberColor9-v0", "RememberShape9-v0", "InterceptMedium-v0"}
QUICK |= {"RotateLenientPosReplaced-v0", "TakeItBackReplaced-v0"}
"""One ID of each family, those in which a trace was most often seen, and those whose object comes back elsewhere."""
RESPONSE_STEPS = 8
"""Control steps of the response phase that are played: mistakes do not end an episode here."""


def play(env: Any, actions: Tensor) -> list[Record]:
    """Everything that a seeded episode tells, with the states."""
    obs, _ = env.reset(seed=SEED)
    start = {"obs": obs.clone()} | simulation(env)
    return [start] + [step(env, action) | simulation(env) for action in actions]


def first_difference(one: list[Record], other: list[Record], rows: list[int] | None = None) -> str | None:
    """Step and entries at which two rollouts are not the same to the last bit, in ``rows`` of the second; None: nowhere."""
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.keys() == b.keys()
        chosen = slice(None) if rows is None else rows
        names = [name for name in a if not torch.equal(a[name][chosen], b[name][chosen])]
        if names:
            return f"t = {t}: {', '.join(names[:4])}"
    return None


def new(env_id: str, num_envs: int = 2, **kwargs: Any) -> Any:
    return make(env_id, num_envs, sim_threads=1, on_mistake="ignore", render_backend="none", **kwargs).unwrapped


def episode(env: Any, seed: int) -> Tensor:
    """Random actions over the cue, the delay and some of the response; over half of an episode that is all cue."""
    row = row_of(env)
    return random_actions(env, row.cue // 2 if not row.response else row.cue + row.delay + RESPONSE_STEPS, seed)


def use(env: Any) -> None:
    """Plays another episode, in which objects are shown, hidden and touched."""
    env.reset(seed=OTHER)
    for action in episode(env, OTHER):
        env.step(action)


@pytest.mark.parametrize(
    "env_id",
    [pytest.param(env_id, marks=[] if env_id in QUICK else pytest.mark.slow) for env_id in mikasa_robo.TASKS],
)
def test_a_used_environment_plays_what_a_new_one_plays(env_id: str) -> None:
    env = new(env_id)
    actions = episode(env, SEED)
    # the first time is also the history of the second
    assert first_difference(play(env, actions), play(env, actions)) is None
    env.close()


@pytest.mark.parametrize("env_id", ["ShellGameTouch-v0", "BunchOfColors7-v0", "RememberShapeAndColor5x3-v0"])
def test_so_does_a_single_environment_of_maniskill(env_id: str) -> None:
    env = new(env_id, 1)
    actions = episode(env, SEED)
    fresh = play(env, actions)
    use(env)
    assert first_difference(fresh, play(env, actions)) is None
    env.close()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_object_that_was_held_at_the_end_leaves_no_trace(num_envs: int) -> None:
    """PhysX keeps the time until a body may fall asleep with the body, not with the scene."""

    def play_expert(env: Any, seed: int) -> list[Tensor]:
        expert = Expert(make_skill("ShellGamePick-v0", env))
        return [env.get_state().clone() for _ in play_episodes(env, expert.act, seed, row_of(env).horizon)]

    env = new("ShellGamePick-v0", num_envs, obs_mode=OBS_MODE)
    fresh = play_expert(env, 2)
    env.close()
    env = new("ShellGamePick-v0", num_envs, obs_mode=OBS_MODE)
    for seed in (0, 1):
        play_expert(env, seed)
    again = play_expert(env, 2)
    env.close()
    assert len(again) == len(fresh) > 20
    assert all(map(torch.equal, again, fresh))


@pytest.mark.parametrize("env_id", ["ShellGameTouch-v0", "BunchOfColors7-v0", "RememberShape9-v0"])
def test_a_partial_reset_leaves_no_trace_and_touches_no_other_environment(env_id: str) -> None:
    env = new(env_id, 3)
    actions = episode(env, SEED)
    fresh = play(env, actions)
    env.reset(seed=[(SEED, 0), (OTHER, 1), (OTHER, 2)])
    others = [step(env, action) | simulation(env) for action in actions[:13]]
    env.reset(seed=[(SEED, 0), (OTHER, 1), (OTHER, 2)])
    again = [step(env, action) | simulation(env) for action in actions[:6]]
    # environment 1 starts anew in the middle of the other episodes
    env.reset(seed=[(SEED, 1)], options={"env_idx": [1]})
    here = [{"obs": env.get_obs().clone()} | simulation(env)]
    moves = actions.clone()
    moves[:, 1], moves[: len(actions) - 6, 0] = actions[:, 1], actions[6:, 0]
    here += [step(env, action) | simulation(env) for action in moves]
    assert first_difference(fresh, here, [1]) is None
    assert first_difference(others, again + here[1:8], [0]) is None
    env.close()


@pytest.mark.parametrize("env_id", ["ShellGameTouch-v0", "InterceptSlow-v0", "BunchOfColors7-v0"])
def test_a_reset_that_follows_a_reset_changes_nothing(env_id: str) -> None:
    """A scene in which nothing was simulated is not replaced, though its bodies were moved."""
    env = new(env_id)
    actions = episode(env, SEED)[:12]
    fresh = play(env, actions)
    env.close()
    env = new(env_id)
    env.reset(seed=OTHER)
    env.reset()
    assert first_difference(fresh, play(env, actions)) is None
    env.close()


def test_without_new_scenes_a_trace_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure itself: with the reset of ManiSkill alone, `use` shows in the next episode."""
    monkeypatch.setattr(BatchedSimMixin, "_clear_sim_history", BatchedSimMixin._clear_sim_state)
    env = new("RememberShape9-v0")
    actions = episode(env, SEED)
    fresh = play(env, actions)
    use(env)
    assert first_difference(fresh, play(env, actions)) is not None
    env.close()


def test_bodies_that_move_to_a_new_scene_keep_their_numbers_and_their_order() -> None:
    env = new("RememberColor3-v0")
    env.reset(seed=SEED)

    def bodies() -> list[list[tuple[str, int]]]:
        return [[(entity.name, entity.per_scene_id) for entity in scene.entities] for scene in env.scene.sub_scenes]

    before, scenes = bodies(), list(map(id, env.scene.sub_scenes))
    env.step(torch.zeros(2, 8))
    env.reset(options={"env_idx": [1]})
    assert bodies() == before
    assert id(env.scene.sub_scenes[0]) == scenes[0], "only the one that was reset"
    assert env.scene.px._systems == [scene.physx_system for scene in env.scene.sub_scenes]
    assert env.scene.px.timestep == pytest.approx(0.01)
    env.close()
