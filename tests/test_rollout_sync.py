"""Rollouts never wait for a GPU at a step: the host reads nothing from the device but a few values per rollout."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mikasa_robo import tensors
from mikasa_robo.baselines import ppo_lstm, ppo_mlp
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.protocol import Setup

ALGORITHMS: dict[str, Any] = {
    "ppo-mlp": (ppo_mlp, ppo_mlp.PPOMLP, {"hidden_sizes": (16,)}),
    "ppo-lstm": (ppo_lstm, ppo_lstm.PPOLSTM, {"encoder_sizes": (16,), "lstm_size": 8, "head_sizes": (16,)}),
}
SMALL_COUNT = 3
"""Reads of the host in a whole rollout: whether an episode was truncated, and which."""


class ClockworkEnv:
    """Episodes of different lengths, reset without the host's help; at each step there is a last observation."""

    def __init__(self, n: int, device: str) -> None:
        self.num_envs, self.device = n, torch.device(device)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (2,))
        self.lengths = (torch.arange(n) % 4 + 3).to(device)
        self.even = self.lengths % 2 == 0
        self.t = torch.zeros_like(self.lengths)

    def reset(self) -> Tensor:
        self.t = torch.zeros_like(self.lengths)
        return self._obs()

    def _obs(self) -> Tensor:
        return torch.stack([self.t, self.lengths, self.t * self.lengths], dim=1).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.t = self.t + 1
        over = self.t >= self.lengths
        last = self._obs()
        info = {
            "final_observation": last,
            "episode": {"return": action.sum(dim=1), "episode_len": self.t.clone()},
            "reward_terms": {"move": action[:, 0]},
        }
        self.t = torch.where(over, torch.zeros_like(self.t), self.t)
        return self._obs(), action.sum(dim=1), over & ~self.even, over & self.even, info


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host has to wait for on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        masked = name.startswith(("aten::index.", "aten::index_put")) and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        waits = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
        self.count += masked or name.startswith(waits)
        return func(*args, **(kwargs or {}))


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def learner(algorithm: str, env: ClockworkEnv, num_steps: int) -> Any:
    module, make, sizes = ALGORITHMS[algorithm]
    args = module.Args(num_envs=env.num_envs, num_steps=num_steps, **sizes)
    torch.manual_seed(0)
    generator = torch.Generator(env.device).manual_seed(1)
    spaces = env.single_observation_space, env.single_action_space
    return make(args, Setup(*spaces, env.num_envs, env.device, generator, DistContext()))


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tensors, "reads_wait", lambda device: True)


def host_reads(algorithm: str, steps: int, lists: bool = True) -> int:
    """How often the host reads values of tensors in a rollout. It may make lists of them only if ``lists``."""
    env = ClockworkEnv(8, "cpu")
    learns = learner(algorithm, env, steps)
    obs = env.reset()
    with HostReads() as reads, pytest.MonkeyPatch.context() as patch:
        if not lists:  # tolist() of a CPU tensor is no operation that a dispatch mode sees
            patch.setattr(torch.Tensor, "tolist", lambda self: pytest.fail("tolist() in a rollout"))
        batch = learns.rollout(env, obs, EpisodeStats())
    assert batch.truncated.any()
    return reads.count


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_host_reads_nothing_at_a_step(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_reads(algorithm, 8) < host_reads(algorithm, 32), "on a CPU it may, and so it is seen to be counted"
    as_on_a_gpu(monkeypatch)
    assert host_reads(algorithm, 8, lists=False) == host_reads(algorithm, 32, lists=False) <= SMALL_COUNT


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_rollout_on_a_gpu_records_what_one_on_a_cpu_does(algorithm: str) -> None:
    """The two ways to value truncated episodes: of the rows that matter, and of all rows."""
    found = []
    for gpu in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if gpu:
                as_on_a_gpu(patch)
            env = ClockworkEnv(8, "cpu")
            learns, stats = learner(algorithm, env, 24), EpisodeStats()
            batch = learns.rollout(env, env.reset(), stats)
            row = learns.update(batch)
            found.append((batch, {**row, **stats.pop()}, learns.network.state_dict()))
    (one, row, weights), (other, same_row, same_weights) = found
    for name in ("actions", "log_probs", "rewards", "terminated", "truncated"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    if algorithm == "ppo-mlp":
        assert torch.equal(one.final_obs, other.final_obs)
    else:
        torch.testing.assert_close(one.final_values, other.final_values)
        assert torch.equal(one.final_values != 0, one.truncated)
    assert row.keys() == same_row.keys()
    assert row["train/length"] == same_row["train/length"] > 3
    torch.testing.assert_close(weights, same_weights, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_rollout_does_not_wait_for_the_gpu_at_a_step(algorithm: str) -> None:
    counts = []
    for steps in (8, 32):
        env = ClockworkEnv(8, "cuda")
        learns = learner(algorithm, env, steps)
        learns.rollout(env, env.reset(), EpisodeStats())  # libraries are loaded at their first use
        obs = env.reset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                learns.rollout(env, obs, EpisodeStats())
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchronizing" in str(warning.message) for warning in caught))
    assert counts[0] == counts[1] <= SMALL_COUNT
