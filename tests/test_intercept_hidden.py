"""A ball that is hidden on its way: out of sight in every mode, rolling all the same, and to be remembered."""

from __future__ import annotations

import functools
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from task_helpers import base, make, move, simulation, step, still_action
from torch import Tensor

from mikasa_robo.catalog import BLANK_START, CATALOG
from mikasa_robo.experts.evaluation import PolicyMaker, evaluate
from mikasa_robo.experts.policies import Expert, UnfitPolicyError, WindowMemory
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.experts.reward_reading import RewardReader
from mikasa_robo.experts.servoing import Barrier, MeanVelocity, Servo
from mikasa_robo.tasks.rolling_ball import RollingBallTask

pytestmark = pytest.mark.usefixtures("one_torch_thread")

HIDDEN = [row.id for row in CATALOG.values() if row.kwargs.get("blank_steps")]
BLANK = 3
BELOW_THE_HAND = torch.tensor([0.05, 0.02, 0.02, 1.0, 0.0, 0.0, 0.0])


def test_hidden_balls_are_ours_and_need_memory() -> None:
    assert len(HIDDEN) >= 4
    for env_id in HIDDEN:
        row = CATALOG[env_id]
        assert not row.paper


@pytest.mark.parametrize(("env_id", "num_envs"), [("InterceptMedium-v0", 3), ("InterceptGrabMedium-v0", 1)])
def test_a_hidden_ball_is_in_no_observation_and_back_where_it_rolled(env_id: str, num_envs: int) -> None:
    modes = "objects+rgb+depth+segmentation"
    env = make(env_id, num_envs, blank_steps=BLANK, obs_mode=modes)
    task = cast(RollingBallTask[Any], base(env))
    env.reset(seed=3)
    assert task._image_layout is not None
    image, ball = task._image_layout._actors[0], task.objects[0]
    for t in range(1, BLANK_START + BLANK + 3):
        if num_envs > 1 and t >= 2:  # below the hand, where both cameras see it
            move(env, ball, range(num_envs), BELOW_THE_HAND.repeat(num_envs, 1), (0.0, 0.6, 0.0))
        obs = env.step(still_action(env))[0]
        shown = not BLANK_START <= t < BLANK_START + BLANK
        objects = obs["objects"].reshape(num_envs, len(task.objects), -1)
        assert bool((objects[:, 0, 0] == float(shown)).all()), t
        real = task.object_layout.read()[:, 0, :3]
        if shown:
            assert torch.allclose(objects[:, 0, 1:4], real, rtol=0, atol=6e-5), "poses are rounded to 1e-4"
        else:
            assert not bool(objects[:, 0].any())
        assert bool((real[:, 2] < 0.03).all()), "the physical ball stays on the table"
        for camera in range(2):
            seen = obs["segmentation"][..., camera]
            assert not bool((seen == int(ball.per_scene_id[0])).any())
            there = (seen == int(image.per_scene_id[0])).flatten(1).any(dim=1)
            if num_envs > 1 and t >= 2:
                assert bool((there == shown).all()), (t, camera)
            red = obs["rgb"][..., 3 * camera : 3 * camera + 3].to(torch.int64)
            red = (red[..., 0] > 120) & (red[..., 1:].amax(dim=-1) < 60)
            assert shown or not bool(red.any()), (t, camera)
    env.close()


def test_a_ball_that_is_stopped_comes_on_view_and_stays_there() -> None:
    env = make("InterceptMediumHidden-v0", 3, obs_mode="objects+segmentation")
    task = cast(RollingBallTask[Any], base(env))
    env.reset(seed=3)
    assert task._image_layout is not None
    image, ball = task._image_layout._actors[0], task.objects[0]
    stopped, slower = 10, 20
    for t in range(1, slower + 4):
        for row, when, speed in ((1, stopped, 0.0), (2, slower, 0.2)):
            if t >= when:
                move(env, ball, [row], BELOW_THE_HAND[None], (0.0, speed, 0.0))
        if t == slower + 2:  # as fast as at first: what has been found is not hidden again
            move(env, ball, [1], BELOW_THE_HAND[None], (0.0, 0.7, 0.0))
        obs = env.step(still_action(env))[0]
        wanted = torch.tensor([t < BLANK_START, t < BLANK_START or t >= stopped, t < BLANK_START or t >= slower])
        flag = obs["objects"].reshape(3, len(task.objects), -1)[:, 0, 0]
        assert torch.equal(flag == 1, wanted), t
        seen = (obs["segmentation"] == int(image.per_scene_id[0])).flatten(1).any(dim=1)
        assert not bool((seen & ~wanted).any()), t
        assert bool(seen[1:][wanted[1:]].all()) or t < BLANK_START, t
    env.close()


@pytest.mark.parametrize("env_id", ["InterceptMedium-v0", "InterceptGrabMedium-v0"])
def test_a_ball_that_is_stopped_is_perceived_in_both_tasks(env_id: str) -> None:
    env = make(env_id, 2, obs_mode="objects", blank_steps=20)
    env.reset(seed=3)
    ball, stopped = base(env).objects[0], BLANK_START + 2
    for t in range(1, stopped + 3):
        if t >= stopped:
            move(env, ball, [1], BELOW_THE_HAND[None])
        flag = env.step(still_action(env))[0]["objects"].reshape(2, len(base(env).objects), -1)[:, 0, 0]
        assert flag.tolist() == [t < BLANK_START, t < BLANK_START or t >= stopped], t
    env.close()


def test_after_a_partial_reset_a_ball_that_can_be_hidden_is_shown_where_it_starts() -> None:
    env = make("InterceptMediumHidden-v0", 3, obs_mode="none")
    task = cast(RollingBallTask[Any], base(env))
    env.reset(seed=3)
    for _ in range(BLANK_START):
        env.step(still_action(env))
    assert task._image_layout is not None
    before = task._image_layout.read()[:, 0, :3].clone()
    env.reset(seed=[8], options={"env_idx": [2]})
    now = task._image_layout.read()[:, 0, :3]
    assert torch.equal(now[:2], before[:2])
    assert torch.equal(now[2], task.task_state.start[2])
    env.close()


def test_the_disc_does_not_tell_where_a_hidden_ball_began() -> None:
    for env_id, told in (("InterceptMedium-v0", True), ("InterceptMediumHidden-v0", False)):
        env = make(env_id, 64, obs_mode="none")
        env.reset(seed=0)
        state: Any = base(env).task_state
        start, beyond = state.start[:, 0], state.goal[:, 0] - state.start[:, 0]
        assert bool(((beyond - 0.2).abs() < 1e-6).all()) == told
        if not told:
            low, high = base(env).start_x_range
            assert float((state.goal[:, 0] - 0.2).min()) >= low - 1e-6
            assert float((state.goal[:, 0] - 0.2).max()) <= high + 1e-6
            both = torch.stack([start, state.goal[:, 0]])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 0.35, "0.32 is the 99 % limit of independent draws"
        env.close()


def test_a_hidden_ball_rolls_as_one_on_view_does() -> None:
    shown, hidden = (make("InterceptGrabFast-v0", 4, blank_steps=n, obs_mode="objects") for n in (0, 20))
    for env in (shown, hidden):
        env.reset(seed=5)
    for _ in range(30):
        records = [step(env, still_action(env)) for env in (shown, hidden)]
        one, other = (base(env).object_layout.read() for env in (shown, hidden))
        assert torch.equal(one, other)
        assert torch.equal(records[0]["reward"], records[1]["reward"])
    shown.close()
    hidden.close()


def test_a_restored_blank_goes_on_as_it_was() -> None:
    env = make("InterceptGrabFast-v0", 4, blank_steps=6, obs_mode="objects")
    env.reset(seed=1)
    for _ in range(BLANK_START + 2):
        env.step(still_action(env))
    saved = base(env).get_state_dict()
    runs = []
    for again in range(2):
        if again:
            env.reset(seed=9)
            base(env).set_state_dict(saved)
        records = []
        for _ in range(8):
            record = step(env, still_action(env))
            records.append(record | simulation(env))
        runs.append(records)
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one["obs/objects"][:, 0], other["obs/objects"][:, 0]), "the flag"
        for name in ("actors/ball", "actors/ball_image"):
            assert torch.allclose(one[name][:, :3], other[name][:, :3], rtol=0, atol=1e-4), name
    env.close()


def test_a_held_arm_is_held_until_the_ball_is_hidden() -> None:
    env = make("InterceptMediumHidden-v0", 2, arm="held", obs_mode="joints")
    q0 = env.reset(seed=0)[0]["joints"][:, :7].clone()
    for t in range(1, BLANK_START + 3):
        q = env.step(torch.ones(2, 8))[0]["joints"][:, :7]
        moved = float((q - q0).abs().max())
        assert (moved < 0.005) == (t <= BLANK_START), (t, moved)
    env.close()
    with pytest.raises(ValueError, match="arm='held'"):
        gym.make("InterceptMedium-v0", arm="held")


def test_a_ball_that_is_never_hidden_is_refused() -> None:
    with pytest.raises(ValueError, match="blank_steps=86 never hides the ball: an episode of cue_steps=4 ends before"):
        gym.make("InterceptMedium-v0", cue_steps=4, blank_steps=86)
    with pytest.raises(ValueError, match="blank_steps=1 never hides the ball"):  # a held arm would be held to the end
        gym.make("InterceptMediumHidden-v0", arm="held", cue_steps=3, blank_steps=1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"blank_steps": -1}, "blank_steps=-1"),
        ({"blank_steps": 2.5}, r"blank_steps=2\.5"),
        ({"drift_range": (0.1, 0.5)}, r"drift_range=\(0\.1, 0\.5\)"),
        ({"drift_range": 0.1}, r"drift_range=0\.1"),
        ({"start_x_range": (-0.9, -0.1)}, r"start_x_range=\(-0\.9, -0\.1\)"),
        ({"delay_steps": 3}, "delay_steps=3 must be 0: .*blank_steps"),
    ],
)
def test_bad_dials_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        gym.make("InterceptFast-v0", **arguments)


def test_drifts_and_starts_are_drawn_from_their_ranges() -> None:
    env = make("InterceptGrabFast-v0", 64, drift_range=(-0.1, 0.2), start_x_range=(-0.2, 0.05), obs_mode="none")
    env.reset(seed=0)
    drift, start = base(env).task_state.velocity[:, 0], base(env).task_state.start[:, 0]
    assert -0.1 <= float(drift.min()) < -0.05
    assert 0.15 < float(drift.max()) <= 0.2
    assert -0.2 <= float(start.min()) < -0.15
    assert 0.0 < float(start.max()) <= 0.05
    env.close()


def test_what_a_memory_measures_is_what_the_oracle_tells() -> None:
    env = make("InterceptFastHidden-v0", 8, obs_mode="objects")
    whole, oracle = (
        maker(make_skill("InterceptFastHidden-v0", base(env)))
        for maker in (functools.partial(WindowMemory, k=1000), Expert)
    )
    obs, info = env.reset(seed=2)
    whole.reset()
    oracle.reset()
    for t in range(30):
        seen: list[Tensor] = []
        told: list[Tensor] = []
        for policy, kept in ((whole, seen), (oracle, told)):
            cue = policy.cue
            policy.cue = lambda *args, cue=cue, kept=kept: kept.append(cue(*args)) or kept[-1]  # type: ignore
            action = policy.act(obs, info)
            policy.cue = cue  # type: ignore[method-assign]
        if t >= 1:
            assert torch.allclose(seen[0], told[0], atol=0.01), t
        obs, _, _, _, info = env.step(torch.zeros_like(action))
    env.close()


def rate(env_id: str, maker: PolicyMaker, episodes: int = 24, **kwargs: Any) -> float:
    return evaluate(env_id, maker, episodes, episodes, seed=7, **kwargs).rate


@pytest.mark.slow
def test_only_a_memory_catches_a_hidden_ball() -> None:
    env_id = "InterceptFastHidden-v0"
    assert rate(env_id, Expert, arm="held") >= 0.75
    assert rate(env_id, functools.partial(WindowMemory, k=1000)) >= 0.75
    assert rate(env_id, Servo) <= 0.3
    assert rate(env_id, MeanVelocity) <= 0.55
    assert rate("InterceptMediumHidden-v0", Barrier, episodes=48, arm="held") <= 0.45


@pytest.mark.slow
def test_a_ball_on_view_is_caught_by_following_it() -> None:
    for speed in ("Slow", "Medium", "Fast"):
        assert rate(f"Intercept{speed}-v0", Servo) >= 0.6


@pytest.mark.slow
def test_the_dense_reward_tells_the_target() -> None:
    assert rate("RememberColor9-v0", RewardReader, arm="held") >= 0.9


def test_cheats_refuse_tasks_that_they_are_not_for() -> None:
    env = make("ChainOfColors3-v0", 2, obs_mode="objects")
    skill = make_skill("ChainOfColors3-v0", base(env))
    with pytest.raises(ValueError, match="TouchSkill of ChainOfColors: the task must have a single target"):
        RewardReader(skill)
    for policy in (Servo, MeanVelocity, Barrier):
        with pytest.raises(UnfitPolicyError, match=f"{policy.__name__} needs the skill of Intercept or"):
            policy(skill)
    env.close()
    env = make("InterceptMedium-v0", 2, obs_mode="objects")
    with pytest.raises(UnfitPolicyError, match="Barrier needs a ball that is hidden on its way"):
        Barrier(make_skill("InterceptMedium-v0", base(env)))
    env.close()
