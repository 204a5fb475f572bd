"""How the baselines make their environments and prepare them for training."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from mikasa_robo.sim.render import require_rendering

from .arguments import ArgumentError

__all__ = ["ContinueAfterSuccess", "EnvFactory", "check_env_id", "make_env", "stagger"]

EnvFactory = Callable[[int, str | None], gym.Env[Any, Any]]
"""(num_envs, render_mode) to a batched environment without automatic resets."""


class ContinueAfterSuccess(gym.Wrapper[Any, Any, Any, Any]):
    """Lets only a failure terminate an episode (see ``--train-to-horizon``)."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        fail = info.get("fail")
        kept = torch.zeros_like(torch.as_tensor(terminated)) if fail is None else fail.clone()
        return obs, reward, kept, truncated, info


def make_env(
    num_envs: int, render_mode: str | None, *, env_id: str, reward_mode: str, control_mode: str, sim_backend: str
) -> gym.Env[Any, Any]:
    """A batched task with `state` observations, without automatic resets.

    Raises:
        RenderingUnavailableError: ``render_mode`` asks for pictures where SAPIEN cannot draw.
    """
    if render_mode is not None:
        # ManiSkill's own tasks do not ask, and say of a missing Vulkan driver whatever the loader says
        require_rendering(f"render_mode={render_mode!r}", "cuda" if torch.cuda.is_available() else "cpu")
    return gym.make(
        env_id,
        num_envs=num_envs,
        obs_mode="state",
        reward_mode=reward_mode,
        control_mode=control_mode,
        sim_backend=sim_backend,
        render_mode=render_mode,
    )


def check_env_id(env_id: str) -> None:
    """Raises ``ArgumentError``, with the nearest names, where no such task is registered."""
    # For their effect alone: importing them registers their tasks.
    import mani_skill.envs  # noqa: F401

    import mikasa_robo

    if env_id not in gym.registry and env_id in mikasa_robo.CATALOG:
        raise ArgumentError(f"--env-id {env_id} is planned but not written yet; `mikasa list` prints those there are")
    if env_id not in gym.registry:
        near = difflib.get_close_matches(env_id, list(gym.registry), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`mikasa list` prints those there are"
        raise ArgumentError(f"--env-id {env_id} is not registered; {hint}")


@torch.no_grad()
def stagger(env: Any, act: Callable[[Tensor], Tensor], obs: Tensor, groups: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Brings groups of environments to different t within one episode.

    Args:
        env: a batched environment with automatic resets, just reset.
        act: maps observations (N, D) to actions (N, A) to play meanwhile.
        obs: (N, D) what the reset returned.
        groups: how many values of t there shall be; no more than environments or steps.
        horizon: length of an episode in steps.

    Returns:
        the observation (N, D) to start from and all those seen on the way (S, N, D).
    """
    n = obs.shape[0]
    groups = min(groups, n, horizon)
    group_of = torch.arange(n, device=obs.device) * groups // n
    seen = [obs.clone()]
    for group in range(1, groups):
        for _ in range(horizon * group // groups - horizon * (group - 1) // groups):
            obs, _, _, _, _ = env.step(act(obs).clamp(-1.0, 1.0).to(env.device))
            seen.append(obs.clone())
        obs, _ = env.reset(options={"env_idx": (group_of == group).nonzero().squeeze(1)})
    return obs, torch.stack(seen)
