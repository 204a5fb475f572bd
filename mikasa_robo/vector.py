"""A task as one `gymnasium.vector.VectorEnv`, which is what ``gymnasium.make_vec`` returns."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

import mikasa_robo
from mikasa_robo.checks import one_of
from mikasa_robo.core.seeds import Seed, fresh_seed
from mikasa_robo.sim.backend import checked_env_idx
from mikasa_robo.sim.call_arguments import checked_action, checked_options
from mikasa_robo.workers.nested import is_batched, map_leaves

__all__ = ["TaskVectorEnv", "make_single_env", "make_vector_env"]

To = Literal["numpy", "torch"]
NUMBERS = (Tensor, np.ndarray, np.generic, bool, int, float)
VECTOR_ARGUMENTS = ("autoreset_mode", "to", "num_workers", "num_envs")


class TaskVectorEnv(VectorEnv[Any, Any, Any]):
    """A batched task as Gymnasium's vector environment.

    ``gymnasium.make_vec(env_id, num_envs=N)`` makes one. Make it from a batched environment yourself to put wrappers of
    `mikasa_robo.utils.wrappers` in between.

    Observation: as the task's, see `MemoryEnv`: arrays with a leading axis of N, or a dict of such arrays.
    Action: float32 (N, A), as the task's, see `MemoryEnv`.
    Reward: (N,) float32. Termination and truncation: (N,) bool.
    Info: Gymnasium's vector form. Each entry is an array (N, …), or a dict of such arrays, and ``_name`` (N,) bool says
    which environments have the entry ``name``; for the others it holds zeros.

    Args:
        env: a batched task, such as ``gymnasium.make`` or `mikasa_robo.make_env` returns.
        autoreset_mode: when an environment whose episode is over starts the next one; an `AutoresetMode` or its value.
            ``"NextStep"``: with the next `step`, which ignores the environment's action and returns the first
            observation with reward 0. ``"SameStep"``: at once. ``info["final_obs"]`` and ``info["final_info"]`` are then
            the last observation and info of the episodes that are over, where ``info["_final_obs"]`` says so:
            ``final_obs`` is an array (N,) of objects, each an observation or None, and with ``to="torch"`` a batch like
            the observation itself, whose other rows are the present observation.
            ``"Disabled"``: never; `reset` them with ``options={"reset_mask": terminated | truncated}``.
            With ``"NextStep"`` a wrapper inside sees one step more of an episode that is over, unless all are: the whole
            batch is simulated, there with a zero action, before the new episode begins. Use ``"SameStep"`` around
            wrappers that record or count steps.
        to: ``"numpy"`` returns NumPy arrays. ``"torch"`` returns tensors on the environment's device, `device`.

    Raises:
        TypeError: ``env`` is not a batched task.
        ValueError: an argument is not known, or the task builds its scene anew after some resets.
    """

    def __init__(
        self, env: gym.Env[Any, Any], *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, to: To = "numpy"
    ) -> None:
        from mikasa_robo.utils.wrappers import UnbatchWrapper

        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        self.autoreset_mode = AutoresetMode(one_of("autoreset_mode", mode, [m.value for m in AutoresetMode]))
        self.to: str = one_of("to", to, get_args(To))
        if not isinstance(env, gym.Env) or not env.has_wrapper_attr("single_observation_space"):
            raise TypeError(
                f"TaskVectorEnv takes a batched task, such as gymnasium.make('RememberColor3-v0', num_envs=8), not {env!r}"
            )
        inner: Any = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, UnbatchWrapper):
                raise TypeError(
                    f"TaskVectorEnv takes a batched task, and UnbatchWrapper takes the batch axis off: {env!r}"
                )
            inner = inner.env
        self.env: Any = env
        """The batched task. Its results are tensors, and it does not reset environments by itself."""
        self.num_envs: int = env.get_wrapper_attr("num_envs")
        self.device: torch.device = env.get_wrapper_attr("device")
        freq = env.get_wrapper_attr("reconfiguration_freq")
        if freq and self.num_envs > 1:
            raise ValueError(
                f"reconfiguration_freq={freq} builds all environments anew, and episodes of a batch end at different "
                "times: leave it out, or use num_envs=1"
            )
        self.metadata = {
            "render_fps": env.get_wrapper_attr("control_freq"),
            **env.metadata,
            "autoreset_mode": self.autoreset_mode,
        }
        self.render_mode = env.render_mode
        self.single_observation_space = env.get_wrapper_attr("single_observation_space")
        self.single_action_space = env.get_wrapper_attr("single_action_space")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._seeded = torch.zeros_like(self._over)

    # ------------------------------------------------------------------ the environment
    def reset(self, *, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in those of ``options["reset_mask"]``.

        Args:
            seed: an int: environment i gets the i-th episode of this seed, whatever N is. A list with one seed for each
                of the N environments: environment i gets the episode that a single environment would get with that seed.
                None: each environment goes on with its own generator; at the first reset a seed is drawn at random. See
                `MemoryEnv.reset`.
            options: ``"reset_mask"`` (N,) bool, or ``"env_idx"`` (b,) whole numbers, names the environments to reset; all
                others are the task's. It is not changed.

        Returns:
            the observations of all N environments, and the infos of those that were reset.
        """
        options = checked_options(options)
        rows = self._take_rows(options)
        if seed is None:
            seed = self._first_seed(rows)
        mask = None
        if rows is None:
            obs, info = self.env.reset(seed=seed, options=options)
            self._over = torch.zeros_like(self._over)
        else:
            obs, info = self._reset_rows(rows, seed, options)
            mask = torch.zeros_like(self._over)
            mask[rows] = True
            self._over = self._over & ~mask
        self._seeded = torch.ones_like(self._over) if mask is None else self._seeded | mask
        if isinstance(seed, int):
            super().reset(seed=seed)  # seeds `np_random`, which no task uses
        return self._given(obs), self._infos([(info, mask)])

    def _first_seed(self, rows: Tensor | None) -> int | None:
        """A seed drawn at random for environments that are reset for the first time, all or ``rows``; None for later resets.

        ManiSkill would give them the same one in every process.
        """
        first = ~self._seeded if rows is None else ~self._seeded[rows]
        if first.all():
            return fresh_seed()
        if first.any():  # the others go on with their own generators
            new = _named_by(first) if rows is None else rows[first]
            self._reset_rows(new, fresh_seed())
            self._seeded[new] = True
        return None

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Plays a step in all environments.

        Args:
            actions: (N, A) array or tensor; rows of environments that only start an episode are ignored. None steps without
                an action; a dict is ManiSkill's, and its control mode is for all environments until all are reset.

        Returns:
            observation, reward (N,) float32, terminated (N,) bool, truncated (N,) bool, infos.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset; or, with autoreset disabled, an episode is over.
        """
        over = self._over
        if not over.any():
            return self._played(actions)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of envs {over.nonzero().flatten().tolist()} are over and autoreset_mode is 'Disabled': "
                "reset them with options={'reset_mask': terminated | truncated}"
            )
        if over.all():
            # nothing is left to be simulated
            obs, info = self._reset_rows(_named_by(over))
            self._over = none = torch.zeros_like(over)
            results = (obs, none.to(torch.float32), none, none)
            return (*map(self._given, results), self._infos([(info, None)]))
        actions = checked_action(actions, self.single_action_space.shape or (), self.num_envs)
        if isinstance(actions, Mapping):
            actions = {**actions, "action": self._without(actions["action"], over)}
        elif actions is not None:
            actions = self._without(actions, over)
        _, reward, terminated, truncated, step_info = self.env.step(actions)
        obs, info = self._reset_rows(_named_by(over))
        terminated, truncated = terminated & ~over, truncated & ~over
        self._over = terminated | truncated
        results = (obs, reward.masked_fill(over, 0.0), terminated, truncated)
        return (*map(self._given, results), self._infos([(step_info, ~over), (info, over)]))

    def _without(self, actions: Any, over: Tensor) -> Tensor:
        """The actions with zeros for the environments that only start an episode."""
        return torch.as_tensor(actions, device=self.device).masked_fill(over[:, None], 0.0)

    def _played(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A step in which no environment has yet to start an episode."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        over = terminated | truncated
        parts: list[tuple[Mapping[str, Any], Tensor | None]] = [(info, None)]
        final: dict[str, Any] = {}
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._over = over
        elif over.any():
            mask = self._given(over)
            final = {
                "final_obs": self._final_obs(obs, over),
                "_final_obs": mask,
                "final_info": self._infos([(info, over)]),
                "_final_info": mask,
            }
            obs, reset_info = self._reset_rows(_named_by(over))
            parts = [(info, ~over), (reset_info, over)]
        results = (obs, reward, terminated, truncated)
        return (*map(self._given, results), self._infos(parts) | final)

    def render(self) -> tuple[np.ndarray, ...] | None:
        """The images of all environments, each (H, W, 3) uint8; None where a window shows them."""
        images = self.env.render()
        if not isinstance(images, Tensor | np.ndarray):
            return None
        batch = images.cpu().numpy() if isinstance(images, Tensor) else images
        return tuple(batch if batch.ndim == 4 else batch[None])

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the task."""
        self.env.close()

    # ------------------------------------------------------------------ inside
    def _take_rows(self, options: dict[str, Any]) -> Tensor | None:
        """The environments that the options name, (b,) int64 in their order; None for all. Takes them out of ``options``."""
        named = [name for name in ("reset_mask", "env_idx") if name in options]
        if not named:
            return None
        if len(named) == 2:
            raise ValueError("options has both 'reset_mask' and 'env_idx': give one of them")
        given = options.pop(named[0])
        if named == ["reset_mask"]:
            try:
                mask = torch.as_tensor(given)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"options['reset_mask']={given!r} is no mask: give ({self.num_envs},) bool") from error
            if mask.dtype != torch.bool or mask.shape != (self.num_envs,):
                raise ValueError(
                    f"options['reset_mask'] is {mask.dtype} of shape {tuple(mask.shape)}: give ({self.num_envs},) bool"
                )
            rows = _named_by(mask.to(self.device))
        else:
            rows = checked_env_idx(given, self.num_envs, self.device)
        if not len(rows):
            raise ValueError(f"options[{named[0]!r}] names no environment: name one, or leave it out to reset all")
        return rows

    def _reset_rows(
        self, rows: Tensor, seed: Seed | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if (
            isinstance(seed, Sequence | np.ndarray | Tensor)
            and not isinstance(seed, str | bytes)
            and getattr(seed, "ndim", None) != 0
        ):
            if len(seed) != self.num_envs:
                raise ValueError(
                    f"seed holds {len(seed)} seeds for {self.num_envs} environments: give one for each, or an int"
                )
            seed = [seed[i] for i in rows.tolist()]
        return self.env.reset(seed=seed, options={**(options or {}), "env_idx": rows})

    def _given(self, value: Any) -> Any:
        """What the task returned, as arrays or tensors of the caller's own."""
        return map_leaves(_to_numpy if self.to == "numpy" else _to_torch, value)

    def _final_obs(self, obs: Any, over: Tensor) -> Any:
        """The last observations: Gymnasium's array (N,) of objects, or tensors (N, …) of all environments."""
        given = self._given(obs)
        if self.to == "torch":
            return given
        finals = np.full(self.num_envs, None, dtype=object)
        for i in over.nonzero().flatten().tolist():
            finals[i] = map_leaves(operator.itemgetter(i), given)
        return finals

    def _infos(self, parts: Sequence[tuple[Mapping[str, Any], Tensor | None]]) -> dict[str, Any]:
        """Gymnasium's vector form of infos: each of ``parts`` holds for the environments of its mask, None: for all."""
        everyone = torch.ones_like(self._over)
        infos: dict[str, Any] = {}
        for name in dict.fromkeys(name for info, _ in parts for name in info):
            own = [(info[name], mask) for info, mask in parts if name in info]
            if all(isinstance(value, Mapping) for value, _ in own):
                infos[name] = self._infos(own)
            elif all(isinstance(value, NUMBERS) for value, _ in own):
                infos[name] = self._given(self._joined(own))
            else:
                infos[name] = np.full(self.num_envs, None, dtype=object)
                for value, mask in own:
                    for i in (everyone if mask is None else mask).nonzero().flatten().tolist():
                        infos[name][i] = value
            masks = [everyone if mask is None else mask for _, mask in own]
            infos[f"_{name}"] = self._given(functools.reduce(torch.logical_or, masks))
        return infos

    def _joined(self, parts: Sequence[tuple[Any, Tensor | None]]) -> Tensor:
        """One entry (N, …) from the entries of several infos, each for the environments of its mask; zeros elsewhere."""
        joined: Tensor | None = None
        for value, mask in parts:
            rows = torch.as_tensor(value, device=self.device)
            if not is_batched(value, self.num_envs):
                rows = rows.expand(self.num_envs, *rows.shape)  # one value for the whole batch
            if mask is not None:
                others = torch.zeros_like(rows) if joined is None else joined
                rows = torch.where(mask.reshape(-1, *[1] * (rows.ndim - 1)), rows, others)
            joined = rows
        assert joined is not None
        return joined


def _named_by(mask: Tensor) -> Tensor:
    """The environments (b,) int64 where ``mask`` (N,) is True."""
    return mask.nonzero().flatten()


def _to_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, Tensor):
        return leaf.cpu().numpy() if leaf.device.type != "cpu" else leaf.numpy().copy()
    return np.array(leaf)


def _to_torch(leaf: Any) -> Tensor:
    return torch.as_tensor(leaf).clone()


def make_vector_env(
    num_envs: int,
    *,
    env_id: str,
    task: str | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    to: To = "numpy",
    num_workers: int | None = None,
    **kwargs: Any,
) -> TaskVectorEnv:
    """Make the batch of a task for ``gymnasium.make_vec(env_id, num_envs, **kwargs)``.

    Args:
        num_envs: N.
        env_id: the task's ID. ``gymnasium.make_vec`` gives it, and ``task``, its class.
        autoreset_mode, to: as in `TaskVectorEnv`.
        num_workers, **kwargs: as in `mikasa_robo.make_env`: all that ``gymnasium.make`` takes.
    """
    settings = {"autoreset_mode": autoreset_mode, "to": to}
    env = mikasa_robo.make_env(env_id, num_envs, num_workers=num_workers, **kwargs)
    try:
        return TaskVectorEnv(env, **settings)  # type: ignore[arg-type]
    except BaseException:
        env.close()
        raise


def make_single_env(*, env_id: str, task: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one environment without a batch axis, for ``gymnasium.make_vec`` with "sync" or "async".

    Args:
        env_id: the task's ID.
        task: its class, ``"module:Class"``. The ID may be unknown in another process.
        **kwargs: the task's.
    """
    from mikasa_robo.utils.wrappers import BatchedTimeLimit, UnbatchWrapper

    wrong = [name for name in VECTOR_ARGUMENTS if name in kwargs]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: gymnasium.make_vec({env_id!r}) takes this without vectorization_mode; with 'sync' and "
            f"'async' give vector_kwargs={{'autoreset_mode': …}}. For gymnasium.make use gymnasium.spec({env_id!r}) itself, "
            "no deep copy of it"
        )
    creator: Callable[..., Any] = load_env_creator(task)

    return UnbatchWrapper(BatchedTimeLimit(creator(**kwargs)))
