"""On an NVIDIA GPU with Vulkan: images of environments that the CPU simulates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch
from task_helpers import Env

import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_robo.sim.render import rendering_problem

pytestmark = pytest.mark.gpu
N = 3
SETTINGS: dict[str, Any] = {"obs_mode": "rgb+joints", "sim_backend": "physx_cpu", "render_backend": "gpu"}


@pytest.fixture(scope="module", autouse=True)
def _the_gpu_draws() -> None:
    if (problem := rendering_problem("cuda")) is not None:
        pytest.skip(f"SAPIEN cannot draw on the GPU: {problem}")


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    made = gym.make("RememberColor3-v0", num_envs=N, **SETTINGS)
    yield made
    made.close()


def test_images_stay_on_the_gpu_and_all_else_on_the_cpu(env: Env) -> None:
    obs, info = env.reset(seed=0)
    for _ in range(2):
        assert obs["rgb"].device.type == "cuda"
        assert (obs["rgb"].dtype, obs["rgb"].shape) == (torch.uint8, (N, 128, 128, 6))
        assert obs["joints"].device.type == "cpu"
        assert all(not torch.is_tensor(value) or value.device.type == "cpu" for value in info.values())
        obs, reward, terminated, truncated, info = env.step(torch.zeros(N, env.action_space.shape[-1]))
        assert {value.device.type for value in (reward, terminated, truncated)} == {"cpu"}
    assert env.unwrapped.robot_visuals == "low_poly"


def test_images_are_those_of_single_environments(env: Env) -> None:
    obs, _ = env.reset(seed=[5, 6, 7])
    assert not torch.equal(obs["rgb"][0], obs["rgb"][1])
    single = gym.make("RememberColor3-v0", num_envs=1, **SETTINGS)
    for i in range(N):
        alone, _ = single.reset(seed=5 + i)
        # The drivers may round differently from one image to the next.
        difference = (obs["rgb"][i].int() - alone["rgb"][0].to("cuda").int()).abs()
        assert float(difference.float().mean()) < 0.1, f"environment {i}"
    single.close()


def test_the_cue_is_seen_and_then_hidden() -> None:
    """While the arm rests the image changes only when the cue goes and when the choices come."""
    env: Env = gym.make("RememberColor3-v0", num_envs=N, arm="held", **SETTINGS)
    seen = [env.reset(seed=0)[0]["rgb"][..., :3].int()]
    rest = torch.zeros(N, env.action_space.shape[-1])
    seen += [env.step(rest)[0]["rgb"][..., :3].int() for _ in range(10)]
    change = torch.stack([(b - a).abs().amax(dim=(1, 2, 3)) for a, b in itertools.pairwise(seen)])  # (10, N)
    assert bool((change[[4, 9]] > 50).all()), "step 5 hides the cue, step 10 shows the choices"
    others = [t for t in range(10) if t not in (4, 9)]
    assert bool((change[others] < 30).all())
    env.close()


def test_render_gives_frames() -> None:
    filmed: Env = gym.make("RememberColor3-v0", num_envs=N, sim_backend="physx_cpu", render_mode="rgb_array")
    filmed.reset(seed=0)
    frames = torch.as_tensor(filmed.render())
    assert frames.shape[0] == N
    assert frames.dtype == torch.uint8
    assert float(frames.float().std()) > 10, "not one colour"
    filmed.close()
