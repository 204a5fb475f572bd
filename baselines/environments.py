"""Making environments for the baselines, and preparing them for training."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from mikasa_robo.checks import whole_number
from mikasa_robo.deprecation import deprecated_names
from mikasa_robo.sim.render import RenderingUnavailableError, drawing_device, require_rendering

from .arguments import MOST_ENVS, ArgumentError, CommonArgs
from .distributed import DistContext
from .env_wrappers import GymnasiumVectorEnv
from .spaces import Obs, flatten

__all__ = [
    "UNKNOWN_HORIZON",
    "EnvFactory",
    "check_env_id",
    "check_workers",
    "choose_obs_mode",
    "derived_seed",
    "is_maniskill_task",
    "is_robot_task",
    "make_gymnasium_env",
    "make_training_env",
    "reset_with",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "make_env": "make_training_env",
        "LONGEST": "UNKNOWN_HORIZON",
        "ContinueAfterSuccess": f"{__package__}.env_wrappers:ContinueAfterSuccess",
        "ShowStateToCritic": f"{__package__}.env_wrappers:ShowStateToCritic",
        "StaggeredEpisodes": f"{__package__}.env_wrappers:StaggeredEpisodes",
    },
)

UNKNOWN_HORIZON = 100_000
"""Upper bound of the length of an episode, in steps, where the environment does not say how long one is."""

LIBRARIES = ("gymnasium", "mani_skill", "mikasa_base", "mikasa_robo")
"""Packages whose environments raise only where an argument cannot be used."""

EnvFactory = Callable[[int, str | None], Any]
"""(num_envs, render_mode) to a batched environment: one with ManiSkill's interface, without automatic resets, or a
`GymnasiumVectorEnv`."""


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
        require_rendering(f"render_mode={render_mode!r}", drawing_device())
    kwargs: dict[str, Any] = {
        "num_envs": num_envs,
        "obs_mode": obs_mode,
        "reward_mode": reward_mode,
        "control_mode": control_mode,
        "sim_backend": sim_backend,
        "render_mode": render_mode,
        **env_kwargs,
    }
    draws = render_mode is not None or bool(set(VISUAL) & set(obs_mode.split("+")))
    if gpu is not None:
        on_gpu = num_workers is None and choose_sim_backend(sim_backend, num_envs, draws=draws) == "physx_cuda"
        if on_gpu:
            kwargs["sim_backend"] = f"physx_cuda:{gpu}"
        if draws and drawing_device() == "cuda":
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
    except (ArithmeticError, AttributeError, EOFError, ImportError, LookupError, OSError) as error:
        # Files or packages that ManiSkill did not install (EOFError: it asks whether to download them, and nobody answers).
        raise ValueError(
            f"ManiSkill cannot make {env_id} ({type(error).__name__}: {error}). If it lacks files, get them with "
            f"`python -m mani_skill.utils.download_asset NAME`, where NAME is {env_id}, or that of its robot or scene; "
            "otherwise choose another task"
        ) from error
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
    try:
        with _named(env_id, env_kwargs):
            if variant is not None and spec.vector_entry_point is not None:
                env = gym.make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
            else:
                same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
                env = gym.make_vec(env_id, num_envs, vectorization_mode="sync", vector_kwargs=same_step, **kwargs)
    except (TypeError, ValueError) as error:
        # An environment that draws nothing need not have this argument.
        if render_mode is None or "unexpected keyword argument 'render_mode'" not in str(error):
            raise
        raise RenderingUnavailableError(f"{env_id} has no render_mode={render_mode!r}") from error
    if render_mode is not None and render_mode not in env.metadata.get("render_modes", ()):
        env.close()
        raise RenderingUnavailableError(f"{env_id} has no render_mode={render_mode!r}")
    if variant is None:
        return GymnasiumVectorEnv(env, spec.max_episode_steps)
    # With other arguments episodes may be longer than the registry says; they still end by themselves.
    return GymnasiumVectorEnv(env, UNKNOWN_HORIZON if env_kwargs else variant.steps)


def reset_with(env: Any, seed: int, dist: DistContext) -> tuple[Obs, dict[str, Any]]:
    """Reset all environments. Environment i of process r gets the episode that environment r n + i gets in one process.

    ManiSkill's own tasks do not support that; with them process r gets another seed. In other environments than robot tasks
    each has a seed of its own that follows from both, because with seed + i two runs of neighbouring seeds would train on
    the same episodes.
    """
    from mikasa_robo.core.env import MemoryEnv
    from mikasa_robo.workers.env import WorkerEnv

    first = dist.own(env.num_envs).start
    if isinstance(env.unwrapped, GymnasiumVectorEnv):
        return env.reset(seed=[derived_seed(seed, first + i) for i in range(env.num_envs)])
    if not first:
        return env.reset(seed=seed)
    if isinstance(env.unwrapped, MemoryEnv | WorkerEnv):
        return env.reset(seed=[(seed, first + i) for i in range(env.num_envs)])
    return env.reset(seed=seed + first)


def derived_seed(seed: int, number: int) -> int:
    """A seed that follows from both, far from those of evaluations and datasets: they are below 400,000,000."""
    drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    return 10**9 + drawn % (2**31 - 10**9)


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
