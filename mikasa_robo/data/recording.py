"""Recording: a batch of episodes is played, and each becomes an `Episode`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mikasa_robo.core.observations import parse_modes
from mikasa_robo.rollouts import play_episodes

from .episode import Array, DatasetInfo, Episode
from .store import STATES

__all__ = ["Act", "batch_bytes", "draw_noise", "flatten_state", "parts_of", "record_episodes"]

Act = Callable[[Any, Mapping[str, Any]], Tensor]
"""Maps observations (N, …) and the info that came with them to actions (N, A)."""
NOISE_STREAM = 0x6E6F6973
"""Keeps the noise of an episode apart from what its seed decides in the task."""


def draw_noise(seed: int, mean_std: float, steps: int, width: int) -> tuple[float, Array]:
    """The noise of the episode with a seed, whatever the batch it is played in.

    Its standard deviation is drawn evenly from 0 to twice ``mean_std``, so the data shows small deviations and large ones.

    Args:
        seed: of the episode.
        mean_std: mean of the standard deviations of all episodes.
        steps: T.
        width: A.

    Returns:
        The standard deviation, and the noise (T, A) float32.
    """
    generator = np.random.default_rng([NOISE_STREAM, seed])
    std = 2.0 * mean_std * float(generator.random())
    return std, (std * generator.standard_normal((steps, width))).astype(np.float32)


def parts_of(obs: Any, obs_mode: str) -> dict[str, Tensor]:
    """The parts of an observation that ``obs_mode`` asks for, and the prompt where that mode has one.

    Args:
        obs: of an environment whose mode has these parts and maybe more.
        obs_mode: of `mikasa_robo.core.observations.MODES`, joined with "+".
    """
    if isinstance(obs, Tensor):  # the mode "state" alone
        return {"state": obs}
    modes = parse_modes(obs_mode)
    if not modes.joined:  # that mode in an environment that observes more; it has no prompt
        return {"state": obs["state"]}
    parts = modes.parts
    return {name: value for name, value in obs.items() if name in parts or name == "prompt"}


def flatten_state(nested: Mapping[str, Any], name: str = STATES) -> dict[str, Tensor]:
    """A nested dict of tensors as a flat one, with names joined by "/"."""
    found: dict[str, Tensor] = {}
    for key, value in nested.items():
        path = f"{name}/{key}"
        found |= flatten_state(value, path) if isinstance(value, Mapping) else {path: value}
    return found


def batch_bytes(env: Any) -> int:
    """About how much memory `record_episodes` takes for a batch of ``env``, in bytes. Resets the environment."""
    obs, _ = env.reset(seed=0)
    parts = {"state": obs} if isinstance(obs, Tensor) else obs
    states = flatten_state(env.unwrapped.get_state_dict())
    row = sum(value.nbytes for value in (*parts.values(), *states.values()))
    return int(row * (env.unwrapped.horizon + 1))


class _Steps:
    """Arrays (S, N, …) that are filled step by step. They are made when the first step is known.

    Args:
        count: S.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.arrays: dict[str, Array] = {}

    def put(self, t: int, values: Mapping[str, Tensor]) -> None:
        """Copy (N, …) values to row ``t``."""
        for name, value in values.items():
            row = value.numpy() if value.device.type == "cpu" else value.cpu().numpy()
            if name not in self.arrays:
                self.arrays[name] = np.empty((self._count, *row.shape), row.dtype)
            self.arrays[name][t] = row

    def cut(self, env: int, length: int) -> dict[str, Array]:
        """The first ``length`` rows of one environment, as views."""
        return {name: array[:length, env] for name, array in self.arrays.items()}


def record_episodes(
    env: Any,
    start: Callable[[], Act],
    seeds: Sequence[int],
    info: DatasetInfo,
    *,
    indices: Sequence[int],
    states: bool = True,
    labels: bool = True,
    on_step: Callable[[int], None] | None = None,
) -> Iterator[Episode]:
    """Play one episode in each environment, with noise on the actions, and yield what was recorded.

    Args:
        env: N environments of a robot task with a flat observation.
        start: called after the reset; returns what chooses the actions.
        seeds: N seeds of episodes.
        info: of the dataset. ``obs_mode`` says which parts of the observation are kept, ``noise`` how large the noise is.
        indices: the index of each episode.
        states: keep the states of the simulation too.
        labels: keep the actions without noise as the column "expert_action".
        on_step: called with the number of control steps so far.
    """
    task = env.unwrapped
    horizon, device, width = task.horizon, task.device, task.single_action_space.shape[-1]
    noises = [draw_noise(seed, info.noise, horizon, width) for seed in seeds]
    noise = torch.from_numpy(np.stack([values for _, values in noises], axis=1)).to(device)  # (T, N, A)
    seen, columns, saved = _Steps(horizon + 1), _Steps(horizon + 1), _Steps(horizon + 1)
    done = {name: _Steps(horizon) for name in ("actions", "rewards", "columns")}
    act: list[Act] = []
    t = 0

    def carry_out(obs: Any, step_info: Mapping[str, Any]) -> Tensor:
        label = act[0](obs, step_info).clamp(-1.0, 1.0).to(torch.float32)
        # without noise nothing is added: -0.0 + 0.0 would not be the same to the bit
        action = (label + noise[t]).clamp(-1.0, 1.0) if info.noise else label
        done["actions"].put(t, {"actions": action})
        if labels:
            done["columns"].put(t, {"expert_action": label})
        return action

    lengths = np.zeros(len(seeds), dtype=np.int64)
    ends = {name: np.zeros(len(seeds), dtype=bool) for name in ("success", "fail", "terminated", "truncated")}
    for step in play_episodes(env, carry_out, list(seeds), horizon):
        t = step.t
        seen.put(t, parts_of(step.obs, info.obs_mode))
        columns.put(t, {"phase": step.info["phase"], "oracle_info": step.info["oracle_info"]})
        if states:
            saved.put(t, flatten_state(task.get_state_dict()))
        if t == 0:
            act.append(start())
        else:
            flags = {name: step.flag(name) for name in ("success", "fail")}
            done["rewards"].put(t - 1, {"rewards": step.reward.to(torch.float32)})
            done["columns"].put(t - 1, flags)
            flags |= {"terminated": step.running & step.terminated, "truncated": step.running & step.truncated}
            for name, flag in flags.items():
                ends[name] |= flag.cpu().numpy()
            lengths += step.running.cpu().numpy()
        if on_step is not None:
            on_step(t)
    for i, (seed, index, length) in enumerate(zip(seeds, indices, lengths.tolist(), strict=True)):
        yield Episode(
            index=index,
            seed=seed,
            **{name: bool(flag[i]) for name, flag in ends.items()},
            policy=info.policy,
            noise=noises[i][0],
            instruction=info.instruction,
            observations=seen.cut(i, length + 1),
            actions=done["actions"].cut(i, length)["actions"],
            rewards=done["rewards"].cut(i, length)["rewards"],
            columns=columns.cut(i, length + 1),
            step_columns=done["columns"].cut(i, length),
            states=saved.cut(i, length + 1),
        )
