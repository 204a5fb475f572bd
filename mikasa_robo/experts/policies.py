"""The expert and policies without memory: the same skill, with different sources of what has to be remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.checks import whole_number
from mikasa_robo.core.env import ARM_JOINTS, START_QPOS
from mikasa_robo.core.generators import continue_generator
from mikasa_robo.core.pcg import BatchedPCG64
from mikasa_robo.core.phases import CUE
from mikasa_robo.deprecation import deprecated_names, rename_hooks

from .arm import Arm
from .skill import History, Skill, View, look

OBS_MODE = "objects"
"""The observation mode of all these policies. The expert also reads the oracle in ``info``."""
TRY_STEPS = 3
"""Number of steps for which `ExhaustiveSearch` stays at a candidate."""
WRIST_RANGE = 0.16
"""How far `PostureMemory` turns the last joint from its start, rad: five steps of cue at 0.04 rad a step."""


class UnfitPolicyError(ValueError):
    """A policy was made for the skill of a task that it cannot play."""


class Policy(ABC):
    """Acts in all environments of a batch.

    Call `reset` whenever episodes begin.

    Args:
        skill: how the task is done.
        seed: of the policy's own random numbers, with which it guesses.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        rename_hooks(cls, {"content": "cue"})

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        self.skill = skill
        self._generator = torch.Generator(device=skill.device).manual_seed(seed)
        self._own_generators: BatchedPCG64 | None = None
        n = skill.num_envs
        self._all = torch.arange(n, device=skill.device)
        self._u = torch.zeros(n, skill.draws, device=skill.device)
        self._objects = len(skill.task.objects)

    def reset(self, env_idx: Tensor | None = None) -> None:
        """Begin episodes in the environments ``env_idx`` (b,); None: in all."""
        index = self._all if env_idx is None else env_idx
        # a guess lasts for the whole episode
        self._u[index] = self._uniforms(self.skill.draws, index)
        self.skill.reset(index)

    def seed(self, entropy: Sequence[Sequence[int]]) -> None:
        """Give each environment random numbers of its own, which depend on its entropy alone and not on N.

        They go on over its episodes, and do not depend on when other environments begin theirs. Call it before `reset`,
        which draws a guess. Without it all environments share one generator, and depend on each other.

        Args:
            entropy: N seeds, as for ``numpy.random.SeedSequence``.
        """
        self._own_generators = BatchedPCG64(self.skill.num_envs, self.skill.device)
        self._own_generators.seed(self._all, entropy)

    def state_dict(self) -> dict[str, Any]:
        """The state of the random numbers that all environments share, to go on with in another process."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; on another kind of device the random numbers begin anew."""
        continue_generator(self._generator, state["generator"], self._generator.initial_seed())

    def _uniforms(self, columns: int, index: Tensor) -> Tensor:
        """The next random numbers of the environments ``index`` (b,), (b, columns) float32 in [0, 1)."""
        if self._own_generators is None:  # drawn for all, so that a reset of any of them takes as many numbers
            n, device = self.skill.num_envs, self.skill.device
            return torch.rand(n, columns, device=device, generator=self._generator)[index]
        u = self._own_generators.random(index, columns)
        return u.to(torch.float32).clamp(max=1.0 - 2.0**-24)  # rounding must not make it 1

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        """The action (N, 8) for an observation of mode `OBS_MODE` and the info that came with it."""
        view = look(obs, self._objects)
        return self.skill.act(view, self.cue(view, info), info)

    @abstractmethod
    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        """What the policy believes the cue was, (N, size)."""


class Expert(Policy):
    """Reads the cue from the oracle."""

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        return self.skill.from_oracle(view, info)


class WindowMemory(Policy):
    """Remembers the present view and the ``k`` before it, and guesses what they do not show.

    With ``k = 0`` it has no memory at all; with a ``k`` as long as the episode it has a perfect one.

    Raises:
        ValueError: ``k`` is negative or not a whole number.
    """

    def __init__(self, skill: Skill, seed: int = 0, *, k: int) -> None:
        self.k = whole_number("k", k, unit="views")
        super().__init__(skill, seed)
        self._views: list[View] = []
        self._age = torch.zeros(skill.num_envs, dtype=torch.int64, device=skill.device)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        self._age[slice(None) if env_idx is None else env_idx] = 0

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        self._views = [*self._views, view][-(self.k + 1) :]
        self._age += 1
        back = torch.arange(len(self._views) - 1, -1, -1, device=self._age.device)[:, None]
        return self.skill.from_history(History(self._views, back < self._age, self._age - 1), self._u)


class ExhaustiveSearch(Policy):
    """Ignores the cue and tries all candidates one after another, in a random order.

    If the task has no candidates to try (`Skill.candidates` is 0), it guesses.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        super().__init__(skill, seed)
        n = max(skill.candidates, 1)
        self._order = torch.zeros(skill.num_envs, n, dtype=torch.int64, device=skill.device)
        self._position = torch.zeros(skill.num_envs, dtype=torch.int64, device=skill.device)
        self._tried_for = torch.zeros_like(self._position)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        index = self._all if env_idx is None else env_idx
        order = self._uniforms(self._order.shape[1], index).argsort(dim=1)
        self._order[index], self._position[index], self._tried_for[index] = order, 0, 0

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        if not self.skill.candidates:
            valid = torch.ones(1, self.skill.num_envs, dtype=torch.bool, device=self.skill.device)
            return self.skill.from_history(History([view], valid), self._u)
        cue = self.skill.attempt(self._order.gather(1, self._position[:, None])[:, 0])
        tried = self.skill.tried(view, cue, info)
        self._tried_for = torch.where(tried, self._tried_for + 1, torch.zeros_like(self._tried_for))
        over = self._tried_for > TRY_STEPS
        self._position = (self._position + over).clamp(max=self._order.shape[1] - 1)
        self._tried_for[over] = 0
        return cue


class PostureMemory(Policy):
    """Remembers nothing itself, but turns its last joint by an angle that encodes the cue, and reads the cue from there."""

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view, skill = look(obs, self._objects), self.skill
        levels = skill.levels
        angle = view.joints[:, ARM_JOINTS - 1]
        spread = torch.linspace(-WRIST_RANGE, WRIST_RANGE, max(levels, 2), device=angle.device) + START_QPOS[6]
        read = (angle[:, None] - spread).abs().argmin(dim=1)
        in_cue = info["phase"] == CUE
        written = torch.where(in_cue, skill.encode(view), read).clamp(max=levels - 1)
        skill.wrist = spread[written] if levels > 1 else None
        action = skill.act(view, skill.decode(written, view, self._u), info)
        if skill.wrist is not None:
            writing = torch.zeros_like(action)  # during the cue no other joint moves
            writing[:, ARM_JOINTS - 1] = Arm.turn(angle, skill.wrist)
            action = torch.where(in_cue[:, None], writing, action)
        return action

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("`act` reads the cue from the posture")


class Random(Policy):
    """Uniform actions."""

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        return self._uniforms(8, self._all) * 2 - 1

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("a random policy has no cue")


__getattr__ = deprecated_names(
    __name__, {"Forgetful": "WindowMemory", "Sweeper": "ExhaustiveSearch", "Embodied": "PostureMemory"}
)
