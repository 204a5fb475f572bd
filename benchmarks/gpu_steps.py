"""Steps and resets a task on one backend and checks the results; for scripts/gpu_check.sh.

    python benchmarks/gpu_steps.py physx_cuda 64
    python benchmarks/gpu_steps.py physx_cpu 16 rgb+joints

Prints the speed of steps, and how many steps a partial reset of a quarter of the environments takes. The GPU draws images.
"""

from __future__ import annotations

import sys
import time
from typing import Any, cast

import gymnasium as gym
import torch

import mikasa_robo  # noqa: F401  (registers the tasks)
from mikasa_robo.core.env import MemoryEnv

STEPS, RESETS = 100, 5


def main(backend: str, num_envs: int, obs_mode: str = "state") -> None:
    """Makes the environment, runs it and prints the measurements."""
    drawing = {"render_backend": "gpu"} if "rgb" in obs_mode else {}
    made: Any = gym.make("RememberColor3-v0", num_envs=num_envs, sim_backend=backend, obs_mode=obs_mode, **drawing)
    env = cast(MemoryEnv[Any], made.unwrapped)
    obs, _ = made.reset(seed=0)
    generator = torch.Generator(env.device).manual_seed(0)
    actions = torch.rand(STEPS, *made.action_space.shape, generator=generator, device=env.device) * 2 - 1
    some = torch.arange(0, num_envs, 4, device=env.device)
    for action in actions[:10]:
        made.step(action)
    made.reset(options={"env_idx": some})

    start = _now()
    for action in actions:
        obs, reward, *_ = made.step(action)
    step_s = (_now() - start) / STEPS
    start = _now()
    for _ in range(RESETS):
        obs, _ = made.reset(options={"env_idx": some})
    reset_s = (_now() - start) / RESETS

    parts = list(obs.values()) if isinstance(obs, dict) else [obs]
    assert all(bool(torch.isfinite(part).all()) for part in (*parts, reward)), (
        "an observation or a reward is not finite"
    )
    assert bool((env.elapsed_steps[some] == 0).all()), "a partial reset starts its environments anew"
    hidden = env.object_layout.parked(env.object_layout.read())
    visible, _ = env.layout(env.task_state, env.elapsed_steps)
    assert torch.equal(hidden, ~visible), "what is hidden is away, and nothing else"
    print(
        f"result: {num_envs / step_s:.0f} env-steps/s; a partial reset of {len(some)} costs {reset_s / step_s:.1f} steps"
    )
    made.close()


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
