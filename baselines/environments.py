"""Making environments for the baselines, and preparing them for training."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from mikasa_robo.checks import whole_number
from mikasa_robo.deprecation import deprecated_names
from mikasa_robo.sim.render import RenderingUnavailableError, require_rendering

from .arguments import MOST_ENVS, ArgumentError, CommonArgs
from .critics import CRITIC_STATE
from .distributed import DistContext
from .spaces import Obs, flatten, map_tensors

__all__ = [
    "UNKNOWN_HORIZON",
    "ContinueAfterSuccess",
    "EnvFactory",
    "GymnasiumVectorEnv",
    "ShowStateToCritic",
    "StaggeredEpisodes",
    "check_env_id",
    "check_workers",
    "choose_obs_mode",
    "is_maniskill_task",
    "is_robot_task",
    "make_gymnasium_env",
    "make_training_env",
    "reset_with",
]

__getattr__ = deprecated_names(__name__, {"make_env": "make_training_env", "LONGEST": "UNKNOWN_HORIZON"})

UNKNOWN_HORIZON = 100_000
"""Upper bound of the length of an episode, in steps, where the environment does not say how long one is."""

LIBRARIES = ("gymnasium", "mani_skill", "mikasa_base", "mikasa_robo")
"""Packages whose environments raise only where an argument cannot be used."""

EnvFactory = Callable[[int, str | None], Any]
"""(num_envs, render_mode) to a batched environment: one with ManiSkill's interface, without automatic resets, or a
`GymnasiumVectorEnv`."""


class ContinueAfterSuccess(gym.Wrapper[Any, Any, Any, Any]):
    """Only a failure terminates an episode; see ``--train-to-horizon``."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        fail = info.get("fail")
        kept = torch.zeros_like(torch.as_tensor(terminated)) if fail is None else fail.clone()
        return obs, reward, kept, truncated, info


class ShowStateToCritic(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the full state of a task to its observations, under the key `critics.CRITIC_STATE`; see ``--critic-obs``.

    An observation that is one tensor becomes a dict, with the tensor under "".

    Args:
        env: a batched task of this package, without automatic resets.

    Raises:
        ValueError: it is another environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        from mikasa_robo.core.env import MemoryEnv

        if not isinstance(env.unwrapped, MemoryEnv):
            raise ValueError("--critic-obs state is for the robot tasks of `mikasa list`; leave it out")
        super().__init__(env)
        self._task: MemoryEnv[Any] = env.unwrapped
        shown = env.get_wrapper_attr("single_observation_space")
        parts = shown.spaces if isinstance(shown, gym.spaces.Dict) else {"": shown}
        size = self._state(self._task.get_info()).shape[1]
        state = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        # Gymnasium would sort the parts of a plain dict, and the network of an evaluation has them in the task's own order.
        self.single_observation_space = gym.spaces.Dict(OrderedDict({**parts, CRITIC_STATE: state}))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self._task.num_envs)

    def _state(self, info: dict[str, Any]) -> Tensor:
        from mikasa_robo.core import observations

        return observations.observe(self._task, "state", info)["state"]

    def _with_state(self, obs: Obs, info: dict[str, Any]) -> Obs:
        return {**(obs if isinstance(obs, dict) else {"": obs}), CRITIC_STATE: self._state(info)}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_state(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_state(obs, info), reward, terminated, truncated, info


class GymnasiumVectorEnv:
    """A Gymnasium vector environment with the interface of ManiSkillVectorEnv: tensors, and resets in the same step.

    Observations are flattened, see `flatten`. Continuous actions are given in [-1, 1] and scaled to the bounds of the
    space; discrete actions (N, A) count from 0. ``info`` describes the step just played, even where a reset followed it:
    ``episode`` holds return and length so far, ``final_observation`` the last observation where an episode ended, and
    ``success`` what the environment reported, if it reports success.

    Args:
        env: made with ``AutoresetMode.SAME_STEP``.
        horizon: maximum number of steps of an episode.
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
        self._reports_success = False

    @property
    def unwrapped(self) -> GymnasiumVectorEnv:
        """This object."""
        return self

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes, in all environments or in ``options["env_idx"]`` (b,) only."""
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
        """Play a step; an environment whose episode is over returns the first observation of the next one."""
        raw, reward, terminated, truncated, raw_info = self.env.step(self._action(action))
        obs = self._tensors(raw)
        rewards = torch.as_tensor(reward, dtype=torch.float32)
        ends, cuts = torch.as_tensor(terminated), torch.as_tensor(truncated)
        # An episode that is both terminated and truncated counts as terminated.
        cuts = cuts & ~ends
        over = ends | cuts
        self._returns += rewards
        self._lengths += 1
        info: dict[str, Any] = {"episode": {"return": self._returns.clone(), "episode_len": self._lengths.clone()}}
        final_info = raw_info.get("final_info", {})
        self._reports_success |= "success" in raw_info or "success" in final_info
        if self._reports_success:
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
        """Images (N, H, W, 3) uint8."""
        return torch.from_numpy(np.stack(self.env.render()))  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the environments."""
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
    success = info.get("success")
    if success is None:
        return torch.zeros(n, dtype=torch.bool)
    return torch.as_tensor(np.asarray(success, dtype=np.bool_) & np.asarray(info.get("_success", True)))


def is_robot_task(env_id: str) -> bool:
    """Whether the registered environment is a task on ManiSkill, which simulates a batch by itself."""
    import mikasa_robo

    return env_id in mikasa_robo.CATALOG or is_maniskill_task(env_id)


def is_maniskill_task(env_id: str) -> bool:
    """Whether the ID is registered with ManiSkill and not one of this package's catalog."""
    from mani_skill.utils.registration import REGISTERED_ENVS

    import mikasa_robo

    return env_id in REGISTERED_ENVS and env_id not in mikasa_robo.CATALOG


def choose_obs_mode(args: CommonArgs) -> str:
    """Observation mode of a robot task: ``--obs``, or the default of the algorithm (ManiSkill's own tasks: state)."""
    return args.obs or ("state" if is_maniskill_task(args.env_id) else args.default_obs)


def make_training_env(
    num_envs: int,
    render_mode: str | None,
    *,
    env_id: str,
    reward_mode: str,
    control_mode: str,
    sim_backend: str,
    obs_mode: str = "state",
    env_kwargs: Mapping[str, Any] = MappingProxyType({}),
    gpu: int | None = None,
    num_workers: int | None = None,
) -> gym.Env[Any, Any]:
    """A batched robot task, of this package or of ManiSkill, without automatic resets.

    Args:
        num_envs: N.
        render_mode: ``"rgb_array"`` for an environment that renders.
        env_id, reward_mode, control_mode, sim_backend, obs_mode, env_kwargs: as in `arguments.CommonArgs`.
        gpu: CUDA device to simulate and render on, where ``sim_backend`` is on the GPU and names none.
        num_workers: simulate in this many processes on the CPU, or in ``num_envs`` if that is less. An environment that
            renders videos is always in this process.

    Raises:
        RenderingUnavailableError: ``render_mode`` needs images, and SAPIEN cannot render here.
        ValueError: observations of this mode are nested, or the task does not take one of the arguments.
    """
    import mikasa_robo
    from mikasa_robo.core.observations import VISUAL
    from mikasa_robo.sim.backend import choose_sim_backend

    if render_mode is not None:
        # ManiSkill's own tasks do not check, and their error shows whatever the Vulkan loader says.
        require_rendering(f"render_mode={render_mode!r}", "cuda" if torch.cuda.is_available() else "cpu")
    kwargs: dict[str, Any] = {
        "num_envs": num_envs,
        "obs_mode": obs_mode,
        "reward_mode": reward_mode,
        "control_mode": control_mode,
        "sim_backend": sim_backend,
        "render_mode": render_mode,
        **env_kwargs,
    }
    if gpu is not None and num_workers is None and choose_sim_backend(sim_backend, num_envs) == "physx_cuda":
        kwargs["sim_backend"] = f"physx_cuda:{gpu}"
    if gpu is not None and (render_mode is not None or set(VISUAL) & set(obs_mode.split("+"))):
        kwargs.setdefault("render_backend", f"sapien_cuda:{gpu}")
    make: Callable[..., gym.Env[Any, Any]] = _make_maniskill_task if is_maniskill_task(env_id) else gym.make
    if num_workers is not None and render_mode is None:
        make = functools.partial(mikasa_robo.make_env, num_workers=min(num_workers, num_envs))
    with _named(env_id, env_kwargs):
        env = make(env_id, **kwargs)
    space = env.get_wrapper_attr("single_observation_space")
    if isinstance(space, gym.spaces.Dict) and set(flatten(space)) != set(space):
        env.close()
        raise ValueError(f"--obs {obs_mode} gives nested observations of {env_id}; use state, or parts joined with '+'")
    return env


def _make_maniskill_task(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """One of ManiSkill's own tasks, with batched simulation on CPU too and with its time limit."""
    from mani_skill.utils.registration import REGISTERED_ENVS, TimeLimitWrapper

    from mikasa_robo.sim.env import make

    spec = REGISTERED_ENVS[env_id]
    if spec.max_episode_steps is None:
        raise ValueError(f"{env_id} has no time limit; register it with max_episode_steps")
    try:
        env = make(env_id, **kwargs)
    except (AssertionError, NotImplementedError) as error:  # ManiSkill's way to refuse a control, reward or obs mode
        modes = ", ".join(f"{name}={kwargs[name]}" for name in ("obs_mode", "reward_mode", "control_mode"))
        raise ValueError(f"{env_id} does not take one of {modes}: {error}") from error
    return TimeLimitWrapper(env, spec.max_episode_steps)


@contextlib.contextmanager
def _named(env_id: str, env_kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of making an environment into ValueErrors that name ``env_kwargs``.

    In an environment of the user's own only those about unknown arguments: the others may be errors in its code.
    """
    try:
        yield
    except (RuntimeError, ValueError, gym.error.Error):
        raise
    except Exception as error:
        entry_point = gym.spec(env_id).entry_point
        known = isinstance(entry_point, str) and entry_point.split(".")[0] in LIBRARIES
        if not known and not (isinstance(error, TypeError) and env_kwargs):
            raise
        given = f"--env-kwargs {' '.join(env_kwargs)}: " if env_kwargs else ""
        raise ValueError(f"{given}{str(error) or type(error).__name__}") from error


def make_gymnasium_env(
    num_envs: int, render_mode: str | None, *, env_id: str, env_kwargs: Mapping[str, Any] = MappingProxyType({})
) -> GymnasiumVectorEnv:
    """A batch of an environment of mikasa_base or Gymnasium, vectorised natively where mikasa_base can.

    Raises:
        RenderingUnavailableError: the environment has no such ``render_mode``.
        ValueError: it does not take one of ``env_kwargs``.
    """
    import mikasa_base

    spec = gym.spec(env_id)
    variant = mikasa_base.VARIANTS.get(env_id)
    kwargs: dict[str, Any] = {**env_kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    if variant is None and spec.max_episode_steps is None:
        raise ValueError(f"{env_id} has no time limit; register it with max_episode_steps")
    whole_number("num_envs", num_envs, 1, MOST_ENVS)
    with _named(env_id, env_kwargs):
        if variant is not None and spec.vector_entry_point is not None:
            env = gym.make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
        else:
            same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
            env = gym.make_vec(env_id, num_envs, vectorization_mode="sync", vector_kwargs=same_step, **kwargs)
    if render_mode is not None and render_mode not in env.metadata.get("render_modes", ()):
        env.close()
        raise RenderingUnavailableError(f"{env_id} has no render_mode={render_mode!r}")
    if variant is None:
        return GymnasiumVectorEnv(env, spec.max_episode_steps)
    # With other arguments episodes may be longer than the registry says; they still end by themselves.
    return GymnasiumVectorEnv(env, UNKNOWN_HORIZON if env_kwargs else variant.steps)


def reset_with(env: Any, seed: int, dist: DistContext) -> tuple[Obs, dict[str, Any]]:
    """Reset all environments. Environment i of process r gets the episode that environment r n + i gets in one process.

    ManiSkill's own tasks do not support that; with them process r gets another seed.
    """
    from mikasa_robo.core.env import MemoryEnv
    from mikasa_robo.workers.env import WorkerEnv

    first = dist.own(env.num_envs).start
    if not first:
        return env.reset(seed=seed)
    if isinstance(env.unwrapped, MemoryEnv | WorkerEnv):
        return env.reset(seed=[(seed, first + i) for i in range(env.num_envs)])
    return env.reset(seed=seed + first)


def check_env_id(env_id: str, env_module: str | None = None) -> None:
    """Raise ArgumentError, with similar IDs, where the ID is not registered.

    Args:
        env_id: without a module.
        env_module: the module that registers it, as a checkpoint has it. It is not imported, only named in the error.
    """
    # Importing these registers their tasks.
    import mani_skill.envs  # noqa: F401

    import mikasa_base  # noqa: F401
    import mikasa_robo  # noqa: F401

    if env_id in gym.registry:
        return
    if env_module is not None:
        raise ArgumentError(
            f"{env_id} is registered by the module {env_module}, which is imported only if you name it; "
            f"add --env-id {env_module}:{env_id}"
        )
    near = difflib.get_close_matches(env_id, list(gym.registry), n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "see `mikasa list` and `mikasa list --suite base`, or write module:ID"
    )
    raise ArgumentError(f"--env-id {env_id} is not registered; {hint}")


def check_workers(env_id: str, num_workers: int, sim_backend: str) -> None:
    """Raise ArgumentError where worker processes cannot simulate this environment with this backend."""
    import mikasa_robo
    from mikasa_robo.sim.backend import CUDA_NAMES

    if env_id not in mikasa_robo.CATALOG:
        raise ArgumentError(
            f"--num-workers {num_workers} is only for the robot tasks of `mikasa list`, and {env_id} is not one of them; "
            "leave it out"
        )
    if sim_backend.split(":")[0] in CUDA_NAMES:
        raise ArgumentError(
            f"--num-workers {num_workers} --sim-backend {sim_backend}: on a GPU one process simulates all environments; "
            "leave --num-workers out, or use --sim-backend physx_cpu"
        )


class StaggeredEpisodes:
    """A batched environment with automatic resets whose episodes get out of phase without a step that training loses.

    After a reset of all environments, group g of G ends its first episode when g / G of an episode have passed, as if by a
    time limit. From then on the groups are spread over the steps of an episode. ``info["cut_short"]`` (N,) bool marks the
    episodes that ended for this reason; it is missing at most steps. Everything else is as ``env`` has it.

    Args:
        env: a batched environment with automatic resets.
        groups: G; at most the number of environments and of steps of an episode. With 1 no episode is cut short.
        horizon: length of an episode in steps.
        dist: the processes that train together; groups are made of all their environments.
    """

    def __init__(self, env: Any, groups: int, horizon: int, dist: DistContext | None = None) -> None:
        dist = dist or DistContext()
        self.env = env
        n, total = env.num_envs, env.num_envs * dist.size
        groups = min(groups, total, horizon)
        group_of = (torch.arange(total, device=env.device) * groups // total)[dist.own(n)]
        self._members = {horizon * group // groups: group_of == group for group in range(1, groups)}
        self._elapsed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes; a reset of all environments staggers them anew."""
        if options is None or "env_idx" not in options:
            self._elapsed = 0
        result: tuple[Obs, dict[str, Any]] = self.env.reset(seed=seed, options=options)
        return result

    def step(self, action: Tensor) -> tuple[Obs, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Play a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._elapsed += 1
        if self._elapsed in self._members:
            chosen = self._members[self._elapsed] & ~(terminated | truncated)
            rows = chosen.nonzero().squeeze(1)
            if len(rows):
                if "final_observation" not in info:
                    info["final_observation"] = map_tensors(torch.clone, obs)
                obs, _ = self.env.reset(options={"env_idx": rows})
                info["cut_short"] = chosen
                truncated = truncated | chosen
        return obs, reward, terminated, truncated, info
