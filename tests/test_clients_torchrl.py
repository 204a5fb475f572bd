"""TorchRL's GymEnv and GymWrapper on the small environments and on the robot tasks."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("torchrl")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensordict.nn import TensorDictModule
    from torchrl.envs import GymEnv, GymWrapper
    from torchrl.envs.utils import check_env_specs

import mikasa_base
import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_base.checks import UnknownArgumentError

SHORT: dict[str, Any] = {
    "cue_steps": 2,
    "delay_steps": 2,
    "response_steps": 4,
    "sim_backend": "physx_cpu_batched",
    "sim_threads": 1,
}
T, N = 8, 4


# ---------------------------------------------------------------------- small environments
@pytest.mark.parametrize("env_id", ["MemoryLengthEasy-v0", "NumpadContinuousEasy-v0"])
def test_gym_env_makes_small_environments(env_id: str) -> None:
    env = GymEnv(env_id)
    env.set_seed(3)
    played = env.rollout(50)
    plain = gym.make(env_id)
    obs = played["observation"].numpy()
    steps = len(obs)
    assert played["next", "done"][-1] or steps == 50
    assert plain.observation_space.contains(obs[0].astype(plain.observation_space.dtype))
    action: Any = played["action"].numpy()
    if isinstance(plain.action_space, gym.spaces.Discrete):
        action = action.argmax(-1)
    # TorchRL's set_seed resets, and so does its rollout
    plain.reset(seed=3)
    plain.reset()
    for t in range(steps):
        again, reward, terminated, truncated, _ = plain.step(_as_action(plain.action_space, action[t]))
        np.testing.assert_allclose(played["next", "observation"][t].numpy(), again, rtol=1e-6)
        assert float(played["next", "reward"][t]) == pytest.approx(float(reward))
        assert bool(played["next", "terminated"][t]) == terminated
        assert bool(played["next", "truncated"][t]) == truncated
    env.close()
    plain.close()


def _as_action(space: gym.Space[Any], action: Any) -> Any:
    return int(action) if isinstance(space, gym.spaces.Discrete) else action


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [v.id for v in mikasa_base.VARIANTS.values() if not v.preset])
def test_every_family_of_small_environments_has_a_rollout(env_id: str) -> None:
    """Tuples of observations need FlattenObservation: TorchRL stacks them, and they have different shapes."""
    for module in mikasa_base.VARIANTS[env_id].row.requires:
        pytest.importorskip(module)
    plain = gym.make(env_id)
    if isinstance(plain.observation_space, gym.spaces.Tuple):
        env = GymWrapper(gym.wrappers.FlattenObservation(plain))
    else:
        env = GymEnv(env_id)
    assert len(env.rollout(3)) >= 1
    env.close()


def test_an_unknown_argument_is_a_type_error_in_pythons_words_and_a_value_error() -> None:
    message = (
        r"MemoryLength.__init__\(\) got an unexpected keyword argument 'frameskip', .*4: its arguments are .*num_bits"
    )
    for kind in (TypeError, ValueError, UnknownArgumentError):
        with pytest.raises(kind, match=message):
            gym.make("MemoryLength-v0", frameskip=4)
    with pytest.raises(UnknownArgumentError, match="unexpected keyword argument 'frameskip'"):
        gym.make_vec("MemoryLength-v0", num_envs=2, frameskip=4)


# ---------------------------------------------------------------------- robot tasks
@pytest.mark.parametrize("obs_mode", ["state", "objects"])
def test_gym_wrapper_keeps_the_true_last_observations(obs_mode: str) -> None:
    batch = gym.make_vec("RememberColor3-v0", num_envs=N, autoreset_mode="Disabled", obs_mode=obs_mode, **SHORT)
    env = GymWrapper(batch)
    check_env_specs(env)
    names = ["observation"] if obs_mode == "state" else ["objects", "joints"]
    steps = 2 * T + 3
    played = env.rollout(steps, break_when_any_done=False)
    assert played["next", "done"].squeeze(-1).nonzero()[:, 1].tolist() == [T - 1, 2 * T - 1] * N
    for name in names:
        now, following = played[name], played["next", name]
        inside = ~played["next", "done"].squeeze(-1)[:, :-1]
        assert torch.equal(now[:, 1:][inside], following[:, :-1][inside])
        assert not torch.equal(now[:, T], following[:, T - 1])
    task: Any = batch.unwrapped.env  # type: ignore[attr-defined]
    env.set_seed(5)
    recorded = iter(played["action"].unbind(1))
    again = env.rollout(T, policy=TensorDictModule(lambda _: next(recorded), names[:1], ["action"]))
    task.reset(seed=5)
    first, _ = task.reset()  # TorchRL's set_seed resets, and so does its rollout
    for t in range(T):
        obs, reward, *_ = task.step(played["action"][:, t])
        assert torch.equal(again["next", "reward"][:, t, 0], reward)
    for name in names:
        assert torch.equal(again[name][:, 0], first[name] if isinstance(first, dict) else first)
        assert torch.equal(again["next", name][:, T - 1], obs[name] if isinstance(obs, dict) else obs)
    env.close()


def test_next_step_autoreset_is_refused_by_torchrl_itself() -> None:
    """The table of docs/other-libraries.md says which mode to give."""
    batch = gym.make_vec("RememberColor3-v0", num_envs=2, **SHORT)
    with pytest.raises(RuntimeError, match="must be one of SAME_STEP or DISABLED"):
        GymWrapper(batch)
    batch.close()
