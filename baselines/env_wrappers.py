"""What training puts around its environments: Gymnasium's in ManiSkill's interface, and how episodes begin and end."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from .critics import CRITIC_STATE
from .distributed import DistContext
from .spaces import Obs, flatten, map_tensors

__all__ = [
    "ContinueAfterSuccess",
    "EndAtSuccess",
    "GymnasiumVectorEnv",
    "PotentialShaping",
    "ShowStateToCritic",
    "StaggeredEpisodes",
]


class ContinueAfterSuccess(gym.Wrapper[Any, Any, Any, Any]):
    """Only a failure terminates an episode; see ``--train-to-horizon``."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        fail = info.get("fail")
        kept = torch.zeros_like(torch.as_tensor(terminated)) if fail is None else fail.clone()
        return obs, reward, kept, truncated, info


class EndAtSuccess(gym.Wrapper[Any, Any, Any, Any]):
    """A success ends an episode and pays for the steps that would follow; see ``--success-worth``.

    Args:
        env: a batched task that ends an episode at its success, without automatic resets.
        worth: a step with success pays so many times its reward.
    """

    def __init__(self, env: gym.Env[Any, Any], worth: float) -> None:
        super().__init__(env)
        self._worth = worth

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        paid = torch.as_tensor(reward)
        success = info.get("success")
        if success is not None:
            paid = torch.where(success, self._worth * paid, paid)
        return obs, paid, terminated, truncated, info


class PotentialShaping(gym.Wrapper[Any, Any, Any, Any]):
    """The dense reward pays for changes, and a success ends an episode; see ``--potential-shaping``.

    The potential P of a state is the sum of the reward's terms there, except those in `TaskHooks.paid_once`. At a success it
    is the most that they can pay together, and after a failure or a reset 0. A step pays gamma P(after) - P(before) (Ng et
    al., 1999, "Policy invariance under reward transformations"), what is paid once, and ``worth`` times the full reward at a
    success. So waiting near the goal earns nothing, and leaving it costs what coming near has earned.

    Args:
        env: a batched task of this package with a dense reward, without automatic resets.
        gamma: discount.
        worth: a success pays so many times the full reward of a step.

    Raises:
        ValueError: it is another environment.
    """

    def __init__(self, env: gym.Env[Any, Any], gamma: float, worth: float) -> None:
        from mikasa_robo.core import rewards
        from mikasa_robo.core.env import MemoryEnv

        task = env.unwrapped
        if not isinstance(task, MemoryEnv):
            raise ValueError("--potential-shaping is for the robot tasks of `mikasa list`; leave it out")
        super().__init__(env)
        scales = task.reward_scales
        self._gamma, self._paid_once = gamma, task.paid_once
        self._full = sum(weight for name, weight in scales.items() if name not in task.paid_once)
        self._success = worth * rewards.maximum(scales)
        self._unit = rewards.maximum(scales) if task.reward_mode == "normalized_dense" else 1.0
        self._potential = torch.zeros(task.num_envs, device=task.device)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._potential = self._potential.clone()
        self._potential[slice(None) if options is None or "env_idx" not in options else options["env_idx"]] = 0.0
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        terms: dict[str, Tensor] = {name: term for name, term in info["reward_terms"].items() if name != "success"}
        zeros = torch.zeros_like(self._potential)
        events = sum((term for name, term in terms.items() if name in self._paid_once), zeros)
        states = sum((term for name, term in terms.items() if name not in self._paid_once), zeros)
        potential = torch.where(info["success"], self._full, states)
        reward = self._gamma * potential - self._potential + events + self._success * info["success"]
        self._potential = potential
        return obs, reward / self._unit, terminated, truncated, info


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
    ``success`` what the environment reported, if it reports success; ``episode`` then holds ``success_once`` too.

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
        self._succeeded = torch.zeros(self.num_envs, dtype=torch.bool)
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
        self._succeeded[mask] = False
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
            self._succeeded |= success
            info["success"] = success
            info["episode"]["success_once"] = self._succeeded.clone()
        if over.any():
            finals = {name: value.clone() for name, value in flatten(obs).items()}
            for i in over.nonzero().squeeze(1).tolist():
                for name, leaf in flatten(raw_info["final_obs"][i]).items():
                    finals[name][i] = torch.as_tensor(np.asarray(leaf))
            info["final_observation"] = finals if isinstance(obs, dict) else finals[""]
            self._returns[over] = 0.0
            self._lengths[over] = 0
            self._succeeded[over] = False
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
            # A component without bounds is [-1, 1], one with a single bound as wide.
            low = np.where(space.low > -np.inf, space.low, np.where(space.high < np.inf, space.high - 2.0, -1.0))
            high = np.where(space.high < np.inf, space.high, low + 2.0)
            return (low + (values + 1.0) * 0.5 * (high - low)).astype(space.dtype)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return values.reshape(self.num_envs, *space.shape) + space.start
        return values[:, 0] + space.start  # type: ignore[attr-defined]


def _success(info: dict[str, Any], n: int) -> Tensor:
    success = info.get("success")
    if success is None:
        return torch.zeros(n, dtype=torch.bool)
    return torch.as_tensor(np.asarray(success, dtype=np.bool_) & np.asarray(info.get("_success", True)))


class StaggeredEpisodes:
    """A batched environment with automatic resets whose episodes get out of phase without a step that training loses.

    After a reset of all environments, group g of G ends its first episode when g / G of an episode have passed, as if by a
    time limit. From then on the groups are spread over the steps of an episode. An environment whose first episode ended
    before that is left alone: it is out of phase already. ``info["cut_short"]`` (N,) bool marks the
    episodes that ended for this reason; it is missing at most steps. Everything else is as ``env`` has it.

    Args:
        env: a batched environment with automatic resets.
        groups: G; at most the number of environments and of steps of an episode. With 1 no episode is cut short.
        horizon: length of an episode in steps.
        dist: the processes that train together; groups are made of all their environments.
    """

    def __init__(self, env: Any, groups: int, horizon: int, dist: DistContext | None = None) -> None:
        self.replace(env, groups, horizon, dist)

    def replace(self, env: Any, groups: int, horizon: int, dist: DistContext | None = None) -> None:
        """Play in other environments from now on; they have to be reset. Arguments as for the class."""
        dist = dist or DistContext()
        self.env = env
        n, total = env.num_envs, env.num_envs * dist.size
        groups = min(groups, total, horizon)
        group_of = (torch.arange(total, device=env.device) * groups // total)[dist.own(n)]
        self._members = {horizon * group // groups: group_of == group for group in range(1, groups)}
        self._begin()

    def _begin(self) -> None:
        self._elapsed = 0
        self._in_first = torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes; a reset of all environments staggers them anew."""
        if options is None or "env_idx" not in options:
            self._begin()
        else:
            self._in_first[options["env_idx"]] = False
        result: tuple[Obs, dict[str, Any]] = self.env.reset(seed=seed, options=options)
        return result

    def step(self, action: Tensor) -> tuple[Obs, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Play a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._elapsed += 1
        self._in_first &= ~(terminated | truncated)
        if self._elapsed in self._members:
            chosen = self._members[self._elapsed] & self._in_first
            rows = chosen.nonzero().squeeze(1)
            if len(rows):
                if "final_observation" not in info:
                    info["final_observation"] = map_tensors(torch.clone, obs)
                obs, _ = self.env.reset(options={"env_idx": rows})
                info["cut_short"] = chosen
                truncated = truncated | chosen
        return obs, reward, terminated, truncated, info
