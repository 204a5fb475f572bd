"""Nothing that a policy may look at tells the cue while it is hidden: neither pictures nor joints nor objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from task_helpers import FAMILIES, base, make, random_actions, row_of
from torch import Tensor

import mikasa_robo

DELAYED = [env_id for env_id in FAMILIES if mikasa_robo.CATALOG[env_id].delay]


def test_all_families_with_a_hidden_discrete_cue_are_here() -> None:
    families = {mikasa_robo.CATALOG[env_id].family for env_id in DELAYED}
    assert families == {
        "RememberColor",
        "RememberShape",
        "RememberShapeAndColor",
        "BunchOfColors",
        "SeqOfColors",
        "ChainOfColors",
    }


@pytest.mark.render
@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["RememberColor3-v0", "RememberShapeAndColor3x2-v0", "ChainOfColors3-v0"])
def test_in_the_delay_two_episodes_with_other_cues_look_the_same_to_the_pixel(env_id: str) -> None:
    """The same seed and actions, another cue: images of both cameras, joints and objects at every t of the delay.

    Three families stand for all that hide by the same layout; test_observations.py compares the numbers of every one.
    """
    env = make(env_id, 2, obs_mode="rgb+objects+joints")
    task: Any = base(env)
    row = row_of(env)
    env.reset(seed=[4, 4])
    state = task.task_state
    state.target[1] = (state.target[1] + 1) % state.home.shape[1]
    actions = random_actions(env, row.cue + row.delay, seed=2, num_envs=1).repeat(1, 2, 1) * 0.5
    draw, compared = task.get_obs, 0

    def only_what_is_compared(*args: object, **kwargs: object) -> dict[str, Tensor]:
        return {}

    for t, action in enumerate(actions, start=1):
        task.get_obs = only_what_is_compared  # pictures of the rest of the episode would take most of the time
        env.step(action)
        task.get_obs = draw
        if t == row.cue - 1:
            obs = task.get_obs()
            assert not torch.equal(obs["rgb"][0], obs["rgb"][1]), "the cue cannot be seen"
            assert not torch.equal(obs["objects"][0], obs["objects"][1])
        if row.cue <= t < row.cue + row.delay:
            obs = task.get_obs()
            assert set(obs) == {"rgb", "objects", "joints"}
            for name, value in obs.items():
                assert torch.equal(value[0], value[1]), (name, t)
            compared += 1
    assert compared == row.delay
    env.close()


@pytest.mark.render
@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["RememberColor3-v0", "ChainOfColors3-v0"])
def test_in_the_response_pictures_differ_in_nothing_but_what_the_task_shows(env_id: str) -> None:
    """All candidates are on view, wherever the cue: with the same places, the pictures are the same."""
    env = make(env_id, 2, obs_mode="rgb")
    task: Any = base(env)
    row = row_of(env)
    env.reset(seed=[4, 4])
    state = task.task_state
    state.target[1] = (state.target[1] + 1) % state.home.shape[1]
    task.get_obs, draw = (lambda *args, **kwargs: {}), task.get_obs
    for _ in range(row.cue + row.delay + 2):
        env.step(torch.zeros(2, 8))
    task.get_obs = draw
    obs = task.get_obs()
    assert torch.equal(obs["rgb"][0], obs["rgb"][1])
    env.close()
