"""Calls of the library: ``gymnasium.make`` with changed arguments, resets and steps, and damaged checkpoints."""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from fuzz_files import damage
from fuzz_values import pick, value, value_like

import mikasa_base
import mikasa_robo
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import VARIANTS
from mikasa_robo.baselines.checkpoints import load_policy, read_policy

__all__ = ["FindError", "checkpoint_case", "env_case", "make_case"]

ROBO_IDS = tuple(mikasa_robo.TASKS)
BASE_IDS = tuple(name for name, variant in VARIANTS.items() if missing_dependency(variant.row) is None)
OWN_BASE_IDS = tuple(name for name in BASE_IDS if VARIANTS[name].row.extra is None)
NATIVE_BASE_IDS = tuple(name for name in OWN_BASE_IDS if VARIANTS[name].row.vector_entry_point is not None)
"""Batched by this package. The others' batches are Gymnasium's, with its errors."""
ROBO_DEFAULTS: dict[str, Any] = {
    "num_envs": 2, "obs_mode": "state", "reward_mode": "dense", "control_mode": "pd_joint_delta_pos", "render_mode": None,
    "sim_backend": "auto", "render_backend": "auto", "sim_threads": 1, "sim_debug": False, "robot_visuals": "stock",
    "parallel_in_single_scene": False, "cue_steps": 1, "delay_steps": 1, "response_steps": 3, "on_mistake": "fail",
    "arm": "free", "reward_scales": {"reach": 1.0}, "robot_init_qpos_noise": 0.02, "robot_uids": "panda",
    "sim_config": {"sim_freq": 100}, "sensor_configs": {"width": 64}, "human_render_camera_configs": {"fov": 1.0},
    "viewer_camera_configs": {}, "enable_shadow": False, "reconfiguration_freq": 0, "shader_dir": "default",
    "enhanced_determinism": False, "max_episode_steps": 5, "foo": 1,
}  # fmt: skip
READ_BY_GYMNASIUM = {"render_mode": (None, "rgb_array", "foo"), "max_episode_steps": (None, 5)}
MOST_ENVS_MADE = 8


class FindError(Exception):
    """Something that should not be; the message says what."""


def make_case(rng: random.Random, base: bool, vector: bool = False) -> tuple[str, dict[str, Any]]:
    """An ID, and arguments for gymnasium.make of which some are good."""
    if base:
        # Other packages' environments check their arguments as they like.
        env_id = pick(rng, NATIVE_BASE_IDS if vector else OWN_BASE_IDS)
        defaults = {**_signature(env_id), "render_mode": "rgb_array", "foo": 1, "max_episode_steps": 5}
    else:
        env_id, defaults = pick(rng, ROBO_IDS), ROBO_DEFAULTS
    names = rng.sample(list(defaults), min(len(defaults), rng.choice((0, 1, 1, 1, 2, 3))))
    kwargs = {name: value_like(rng, defaults[name]) for name in names}
    for name, choices in READ_BY_GYMNASIUM.items():
        if name in kwargs:
            kwargs[name] = rng.choice(choices)
    if base:
        return env_id, kwargs
    sensible = isinstance(kwargs.get("num_envs"), int) and kwargs["num_envs"] < 10**6
    if sensible and kwargs["num_envs"] > MOST_ENVS_MADE:
        kwargs["num_envs"] = MOST_ENVS_MADE
    return env_id, {"num_envs": rng.choice((1, 2)), "sim_backend": "physx_cpu", "sim_threads": 1, **kwargs}


@functools.cache
def _signature(env_id: str) -> dict[str, Any]:
    row = VARIANTS[env_id].row
    module, _, name = row.entry_point.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    named = {
        p.name: None if p.default is p.empty else p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
    }
    return {**named, **VARIANTS[env_id].kwargs}


def env_case(rng: random.Random, show: Callable[[str], None], base: bool, vector: bool) -> None:
    """Make an environment and reset and step it, with bad arguments and good ones."""
    env_id, kwargs = make_case(rng, base, vector)
    call = "make_vec" if vector else "make"
    if vector:
        kwargs = {"num_envs": rng.choice((1, 2, 3)), **kwargs} if base else kwargs
    show(f"gymnasium.{call}({env_id!r}, **{kwargs!r})")
    env = attempt(
        lambda: getattr(gym, call)(env_id, **kwargs), {env_id, VARIANTS[env_id].row.name if base else "", *kwargs}
    )
    if env is None:
        return
    try:
        env.action_space.seed(rng.randrange(2**31))
        env.reset(seed=0)  # Gymnasium's checker fails for good where the first reset or step is refused
        env.step(env.action_space.sample())
        for _ in range(rng.randrange(4)):
            _use(rng, show, env)
        show("reset(seed=0), step(a sample)")
        env.reset(seed=0)
        env.step(env.action_space.sample())
    finally:
        env.close()


def _use(rng: random.Random, show: Callable[[str], None], env: Any) -> None:
    """Reset or step with any arguments; afterwards the environment has to work."""
    if rng.random() < 0.5:
        arguments: dict[str, Any] = {}
        if rng.random() < 0.6:
            arguments["seed"] = value_like(rng, [0, 1])
        if rng.random() < 0.6:
            key = rng.choice(("env_idx", "env_ids", "reconfigure", "reset_mask", "reset_to_env_states", "foo"))
            arguments["options"] = value(rng) if rng.random() < 0.2 else {key: value_like(rng, [0])}
        show(f"reset(**{arguments!r})")
        attempt(lambda: env.reset(**arguments), {"seed", "options", "reset", *_keys(arguments.get("options"))})
    else:
        env.reset(seed=1)
        action = _action(rng, env.action_space.sample())
        show(f"step({action!r})")
        attempt(lambda: env.step(action), {"action", "reset"})


def _keys(options: Any) -> set[str]:
    return {str(key) for key in options} if isinstance(options, dict) else set()


def _action(rng: random.Random, sample: Any) -> Any:
    if not isinstance(sample, np.ndarray) or sample.dtype.kind != "f" or rng.random() < 0.3:
        return sample if rng.random() < 0.1 else value(rng)
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda a: a * np.nan,
        lambda a: a * np.inf,
        lambda a: a * 1e30,
        lambda a: a.tolist(),
        lambda a: a[..., :-1],
        lambda a: a[None],
        lambda a: a.astype(str),
        lambda a: a.astype(np.float64),
        lambda a: a.astype(int),
        lambda a: torch.tensor(a, requires_grad=True),
        lambda a: {"action": a},
        lambda a: tuple(a),
        lambda a: a.T,
        lambda a: np.repeat(a, 3, axis=0),
    )
    return pick(rng, changes)(sample)


def attempt(call: Callable[[], Any], names: set[str]) -> Any:
    """The result of ``call``; None where it raises a documented exception. Raises FindError for any other one.

    A documented exception is a ValueError, TypeError, IndexError or gymnasium.error.Error, or a RuntimeError of this
    package (such as `RenderingUnavailableError`). Its message names one of ``names``.
    """
    try:
        return call()
    except Exception as error:
        raised_in = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        ours = any(part in raised_in for part in _OURS)
        documented = isinstance(error, (ValueError, TypeError, IndexError, gym.error.Error)) or (
            isinstance(error, RuntimeError) and ours and not isinstance(error, NotImplementedError | RecursionError)
        )
        if not documented:
            raise FindError(f"{type(error).__name__} is not documented") from error
        if not any(name and name.lower() in str(error).lower() for name in names):
            raise FindError(f"the message names none of {', '.join(sorted(names))}") from error
        return None


_OURS = (*(str(Path(module.__file__ or "").parent) for module in (mikasa_robo, mikasa_base)), "/baselines/", "/tools/")


def checkpoint_case(rng: random.Random, show: Callable[[str], None]) -> None:
    """Load a damaged checkpoint in the current folder. One that loads has the weights of the good one."""
    good = Path("run/checkpoint.pt")
    how = rng.choice(("truncated", "flipped", "flipped", "noise", "hostile", "nan", "entries", "entries"))
    path = Path("damaged.pt")
    path.write_bytes(damage(rng, good.read_bytes(), how))
    show(f"load_policy of a checkpoint with {how}")
    policy = attempt_checkpoint(path)
    if policy is None:
        return
    if how in ("hostile", "nan"):
        raise FindError("the checkpoint was loaded")
    if how != "entries":
        before, after = (read_policy(p)["state_dict"] for p in (good, path))
        if before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before):
            raise FindError("the checkpoint was loaded, and has other weights")


def attempt_checkpoint(path: Path) -> Any:
    """The policy in a file; None where it is refused with a CheckpointError that names the file."""
    from mikasa_robo.baselines.checkpoints import CheckpointError

    try:
        return load_policy(path)
    except CheckpointError as error:
        if str(path) not in str(error):
            raise FindError("the message does not name the file") from error
        return None
