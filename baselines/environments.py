"""How the baselines make their environments and prepare them for training."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from mikasa_robo.sim.render import RenderingUnavailableError, require_rendering

from .arguments import ArgumentError
from .spaces import Obs, flatten, map_obs, stack_obs
from .team import Team

__all__ = [
    "LONGEST",
    "ContinueAfterSuccess",
    "EnvFactory",
    "GymnasiumVectorEnv",
    "check_env_id",
    "is_robot_task",
    "make_env",
    "make_gymnasium_env",
    "reset_with",
    "stagger",
]

LONGEST = 100_000
"""Steps that an episode is supposed to end within where its length is not known."""

EnvFactory = Callable[[int, str | None], Any]
"""(num_envs, render_mode) to a batched environment: one that behaves as ManiSkill's do, without automatic resets, or a
`GymnasiumVectorEnv`."""


class ContinueAfterSuccess(gym.Wrapper[Any, Any, Any, Any]):
    """Lets only a failure terminate an episode (see ``--train-to-horizon``)."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        fail = info.get("fail")
        kept = torch.zeros_like(torch.as_tensor(terminated)) if fail is None else fail.clone()
        return obs, reward, kept, truncated, info


class GymnasiumVectorEnv:
    """A Gymnasium vector environment in the form that ManiSkillVectorEnv has: tensors, and resets in the same step.

    Observations are what `flatten` makes of them; continuous actions come in [-1, 1] and are brought to the bounds of
    the space, discrete ones (N, A) count from 0. ``info`` speaks of the step just played, whether a reset followed it or
    not: ``episode`` holds return and length so far, ``final_observation`` what was seen last where an episode ended, and
    ``success`` what the environment told of it, if it tells.

    Args:
        env: made with ``AutoresetMode.SAME_STEP``.
        horizon: the most steps that an episode can take.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], horizon: int | None) -> None:
        if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise ValueError(f"{env} has autoreset_mode {env.metadata.get('autoreset_mode')}; make it with SAME_STEP")
        self.env = env
        self.horizon = horizon
        self.num_envs = env.num_envs
        self.device = torch.device("cpu")
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self._returns = torch.zeros(self.num_envs)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64)
        self._tells_success = False

    @property
    def unwrapped(self) -> GymnasiumVectorEnv:
        """Itself."""
        return self

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Starts new episodes, in all environments or in ``options["env_idx"]`` (b,) only."""
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None:
            mask[:] = False
            mask[options["env_idx"].cpu().numpy()] = True
            obs, _ = self.env.reset(options={"reset_mask": mask})
        else:
            obs, _ = self.env.reset(seed=seed)  # type: ignore[arg-type]  # SyncVectorEnv and mikasa_base take lists
        self._returns[mask] = 0.0
        self._lengths[mask] = 0
        return self._tensors(obs), {}

    def step(self, action: Tensor) -> tuple[Obs, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Plays a step; an environment whose episode is over shows the first observation of the next one."""
        raw, reward, terminated, truncated, raw_info = self.env.step(self._action(action))
        obs = self._tensors(raw)
        rewards = torch.as_tensor(reward, dtype=torch.float32)
        ends, cuts = torch.as_tensor(terminated), torch.as_tensor(truncated)
        # An end that is both is a true one.
        cuts = cuts & ~ends
        over = ends | cuts
        self._returns += rewards
        self._lengths += 1
        info: dict[str, Any] = {"episode": {"return": self._returns.clone(), "episode_len": self._lengths.clone()}}
        final_info = raw_info.get("final_info", {})
        self._tells_success |= "success" in raw_info or "success" in final_info
        if self._tells_success:
            success = _success(raw_info, self.num_envs) & ~over | _success(final_info, self.num_envs) & over
            info["success"] = success
            info["episode"]["success_once"] = success
        if over.any():
            finals = {name: value.clone() for name, value in flatten(obs).items()}
            for i in over.nonzero().squeeze(1).tolist():
                for name, leaf in flatten(raw_info["final_obs"][i]).items():
                    finals[name][i] = torch.as_tensor(np.asarray(leaf))
            info["final_observation"] = finals if isinstance(obs, dict) else finals[""]
            self._returns[over] = 0.0
            self._lengths[over] = 0
        return obs, rewards, ends, cuts, info

    def render(self) -> Tensor:
        """Pictures (N, H, W, 3) uint8."""
        return torch.from_numpy(np.stack(self.env.render()))  # type: ignore[arg-type]

    def close(self) -> None:
        """Closes the environments."""
        self.env.close()

    def _tensors(self, raw: Any) -> Obs:
        leaves = {name: torch.as_tensor(np.asarray(leaf)) for name, leaf in flatten(raw).items()}
        leaves = {name: leaf.float() if leaf.dtype == torch.float64 else leaf for name, leaf in leaves.items()}
        return leaves[""] if list(leaves) == [""] else leaves

    def _action(self, action: Tensor) -> Any:
        space, values = self.single_action_space, action.cpu().numpy()
        if isinstance(space, gym.spaces.Box):
            values = values.reshape(self.num_envs, *space.shape)
            bounded = np.isfinite(space.low) & np.isfinite(space.high)
            low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
            return (low + (values + 1.0) * 0.5 * (high - low)).astype(space.dtype)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return values.reshape(self.num_envs, *space.shape) + space.start
        return values[:, 0] + space.start  # type: ignore[attr-defined]


def _success(info: dict[str, Any], n: int) -> Tensor:
    told = info.get("success")
    if told is None:
        return torch.zeros(n, dtype=torch.bool)
    return torch.as_tensor(np.asarray(told, dtype=np.bool_) & np.asarray(info.get("_success", True)))


def is_robot_task(env_id: str) -> bool:
    """Whether the ID is one of ManiSkill's registry, so that it makes a batch of its own."""
    from mani_skill.utils.registration import REGISTERED_ENVS

    import mikasa_robo

    return env_id in REGISTERED_ENVS or env_id in mikasa_robo.CATALOG


def make_env(
    num_envs: int,
    render_mode: str | None,
    *,
    env_id: str,
    reward_mode: str,
    control_mode: str,
    sim_backend: str,
    obs_mode: str = "state",
    env_kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> gym.Env[Any, Any]:
    """A batched robot task, without automatic resets.

    Raises:
        RenderingUnavailableError: ``render_mode`` asks for pictures where SAPIEN cannot draw.
        ValueError: observations of this mode are nested, or the task does not take ``env_kwargs``.
    """
    if render_mode is not None:
        # ManiSkill's own tasks do not ask, and say of a missing Vulkan driver whatever the loader says
        require_rendering(f"render_mode={render_mode!r}", "cuda" if torch.cuda.is_available() else "cpu")
    with _named(env_kwargs):
        env: gym.Env[Any, Any] = gym.make(
            env_id,
            num_envs=num_envs,
            obs_mode=obs_mode,
            reward_mode=reward_mode,
            control_mode=control_mode,
            sim_backend=sim_backend,
            render_mode=render_mode,
            **env_kwargs,
        )
    space = env.get_wrapper_attr("single_observation_space")
    if isinstance(space, gym.spaces.Dict) and set(flatten(space)) != set(space):
        env.close()
        raise ValueError(f"--obs {obs_mode} gives nested observations of {env_id}; use state, or parts joined with '+'")
    return env


@contextlib.contextmanager
def _named(env_kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Says that these were given, where an environment does not take them."""
    try:
        yield
    except TypeError as error:
        if not env_kwargs:
            raise
        raise ValueError(f"--env-kwargs {' '.join(env_kwargs)}: {error}") from error


def make_gymnasium_env(
    num_envs: int, render_mode: str | None, *, env_id: str, env_kwargs: Mapping[str, Any] = MappingProxyType({})
) -> GymnasiumVectorEnv:
    """An environment of mikasa_base, or of Gymnasium; in the form that steps all at once where mikasa_base has one.

    Raises:
        RenderingUnavailableError: ``render_mode`` asks for pictures of what cannot be drawn.
        ValueError: it does not take ``env_kwargs``.
    """
    import mikasa_base

    spec = gym.spec(env_id)
    variant = mikasa_base.VARIANTS.get(env_id)
    kwargs: dict[str, Any] = {**env_kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    with _named(env_kwargs):
        if variant is not None and spec.vector_entry_point is not None:
            env = gym.make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
        else:
            same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
            env = gym.make_vec(env_id, num_envs, vectorization_mode="sync", vector_kwargs=same_step, **kwargs)
    if render_mode is not None and render_mode not in env.metadata.get("render_modes", ()):
        env.close()
        raise RenderingUnavailableError(f"{env_id} cannot be drawn: it has no render_mode={render_mode!r}")
    if variant is None:
        return GymnasiumVectorEnv(env, spec.max_episode_steps)
    # the registry knows how long episodes are with its own arguments; they end by themselves with others, too
    return GymnasiumVectorEnv(env, LONGEST if env_kwargs else variant.steps)


def reset_with(env: Any, seed: int, team: Team) -> tuple[Obs, dict[str, Any]]:
    """Resets all environments; environment i of process r gets the episode r n + i of ``seed``, as one process would.

    Robot tasks of ManiSkill's own know no such numbers: there process r gets a seed of its own.
    """
    from mikasa_robo.core.env import MemoryEnv

    first = team.rows(env.num_envs).start
    if not first:
        return env.reset(seed=seed)
    if isinstance(env.unwrapped, MemoryEnv):
        return env.reset(seed=[(seed, first + i) for i in range(env.num_envs)])
    return env.reset(seed=seed + first)


def check_env_id(env_id: str) -> None:
    """Raises ``ArgumentError``, with the nearest names, where no such task is registered."""
    # For their effect alone: importing them registers their tasks.
    import mani_skill.envs  # noqa: F401

    import mikasa_base  # noqa: F401
    import mikasa_robo

    if env_id not in gym.registry and env_id in mikasa_robo.CATALOG:
        raise ArgumentError(f"--env-id {env_id} is planned but not written yet; `mikasa list` prints those there are")
    if env_id not in gym.registry:
        near = difflib.get_close_matches(env_id, list(gym.registry), n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "`mikasa list` and `mikasa list --suite base` print them"
        )
        raise ArgumentError(f"--env-id {env_id} is not registered; {hint}")


@torch.no_grad()
def stagger(
    env: Any,
    act: Callable[[Any], Tensor],
    obs: Obs,
    groups: int,
    horizon: int,
    begin: Callable[[Tensor], None] | None = None,
    team: Team | None = None,
) -> tuple[Obs, Obs]:
    """Brings groups of environments to different t within one episode.

    Args:
        env: a batched environment with automatic resets, just reset.
        act: maps observations (N, …) to actions (N, A), as the environment takes them, to play meanwhile.
        obs: (N, …) what the reset returned.
        groups: how many values of t there shall be; no more than environments or steps.
        horizon: length of an episode in steps.
        begin: told after each step which environments (N,) bool begin an episode with the observation that follows.
        team: those who train together; the groups are those of all their environments.

    Returns:
        the observation (N, …) to start from and all those seen on the way (S, N, …).
    """
    team = team or Team()
    n, total = env.num_envs, env.num_envs * team.size
    groups = min(groups, total, horizon)
    group_of = (torch.arange(total, device=env.device) * groups // total)[team.rows(n)]
    seen = [map_obs(torch.clone, obs)]
    starts = torch.ones(n, dtype=torch.bool, device=env.device)
    for group in range(1, groups):
        for _ in range(horizon * group // groups - horizon * (group - 1) // groups):
            obs, _, terminated, truncated, _ = env.step(act(obs).to(env.device))
            starts = terminated | truncated
            seen.append(map_obs(torch.clone, obs))
            if begin is not None:
                begin(starts)
        chosen = group_of == group
        if chosen.any():
            obs, _ = env.reset(options={"env_idx": chosen.nonzero().squeeze(1)})
        if begin is not None:
            begin(starts | chosen)
    return obs, stack_obs(seen)
