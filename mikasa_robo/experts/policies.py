"""The expert and its twins: the same skill, with different sources of what has to be remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.core.env import ARM_JOINTS, START_QPOS
from mikasa_robo.core.phases import CUE

from .arm import Arm
from .skill import History, Skill, View, look

OBS_MODE = "objects"
"""What the policies look at; the expert reads the oracle in ``info`` besides."""


TRY_STEPS = 3
"""How many steps the sweeper stays at what it tries."""
WRIST_RANGE = 0.16
"""How far from its start the embodied twin turns its last joint, rad: five steps of cue at 0.04 rad a step."""


class Policy(ABC):
    """Acts in all environments of a batch; told at each reset which episodes begin.

    Args:
        skill: how the task is done.
        seed: of the policy's own random numbers, with which it guesses.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        self.skill = skill
        self._generator = torch.Generator(device=skill.device).manual_seed(seed)
        n = skill.num_envs
        self._u = torch.zeros(n, skill.draws, device=skill.device)
        self._objects = len(skill.task.objects)

    def reset(self, env_idx: Tensor | None = None) -> None:
        """Episodes begin in the environments ``env_idx`` (b,); None: in all."""
        n = self.skill.num_envs
        index = torch.arange(n, device=self.skill.device) if env_idx is None else env_idx
        # one guess for an episode: a guess that changed from step to step would be no attempt at all
        fresh = torch.rand(n, self.skill.draws, device=self.skill.device, generator=self._generator)
        self._u[index] = fresh[index]
        self.skill.reset(index)

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        """The action (N, 8) for an observation of mode `OBS_MODE` and the info that came with it."""
        view = look(obs, self._objects)
        return self.skill.act(view, self.content(view, info), info)

    @abstractmethod
    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        """What the policy believes, (N, size)."""


class Expert(Policy):
    """Reads what has to be remembered from the oracle."""

    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        return self.skill.known(view, info)


class Forgetful(Policy):
    """Remembers the present view and the ``k`` before it, and guesses what they do not tell.

    ``k = 0`` has no memory at all; a ``k`` as long as the episode is a perfect memory.
    """

    def __init__(self, skill: Skill, seed: int = 0, *, k: int) -> None:
        if k < 0:
            raise ValueError(f"k={k} views cannot be remembered: use 0 or more")
        super().__init__(skill, seed)
        self.k = k
        self._views: list[View] = []
        self._age = torch.zeros(skill.num_envs, dtype=torch.int64, device=skill.device)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        self._age[slice(None) if env_idx is None else env_idx] = 0

    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        self._views = [*self._views, view][-(self.k + 1) :]
        self._age += 1
        back = torch.arange(len(self._views) - 1, -1, -1, device=self._age.device)[:, None]
        return self.skill.recall(History(self._views, back < self._age), self._u)


class Sweeper(Policy):
    """Ignores the cue and tries everything, one after another, in a random order.

    Where there is nothing to try one after another (`Skill.candidates` is 0) it is a guess.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        super().__init__(skill, seed)
        n = max(skill.candidates, 1)
        self._order = torch.zeros(skill.num_envs, n, dtype=torch.int64, device=skill.device)
        self._place = torch.zeros(skill.num_envs, dtype=torch.int64, device=skill.device)
        self._pressed = torch.zeros_like(self._place)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        index = slice(None) if env_idx is None else env_idx
        order = torch.rand(self._order.shape, device=self.skill.device, generator=self._generator).argsort(dim=1)
        self._order[index], self._place[index], self._pressed[index] = order[index], 0, 0

    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        if not self.skill.candidates:
            alone = torch.ones(1, self.skill.num_envs, dtype=torch.bool, device=self.skill.device)
            return self.skill.recall(History([view], alone), self._u)
        content = self.skill.attempt(self._order.gather(1, self._place[:, None])[:, 0])
        tried = self.skill.tried(view, content, info)
        self._pressed = torch.where(tried, self._pressed + 1, torch.zeros_like(self._pressed))
        over = self._pressed > TRY_STEPS
        self._place = (self._place + over).clamp(max=self._order.shape[1] - 1)
        self._pressed[over] = 0
        return content


class Embodied(Policy):
    """Remembers nothing, but writes what it sees of the cue into its last joint, and reads it back from there."""

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view, skill = look(obs, self._objects), self.skill
        levels = skill.levels
        angle = view.joints[:, ARM_JOINTS - 1]
        spread = torch.linspace(-WRIST_RANGE, WRIST_RANGE, max(levels, 2), device=angle.device) + START_QPOS[6]
        read = (angle[:, None] - spread).abs().argmin(dim=1)
        cue = info["phase"] == CUE
        written = torch.where(cue, skill.encode(view), read).clamp(max=levels - 1)
        skill.wrist = spread[written] if levels > 1 else None
        action = skill.act(view, skill.decode(written, view, self._u), info)
        if skill.wrist is not None:
            writing = torch.zeros_like(action)  # while the cue is on view nothing else moves
            writing[:, ARM_JOINTS - 1] = Arm.turn(angle, skill.wrist)
            action = torch.where(cue[:, None], writing, action)
        return action

    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("what is believed is in the posture")


class Random(Policy):
    """Uniform actions."""

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        n = self.skill.num_envs
        return torch.rand(n, 8, device=self.skill.device, generator=self._generator) * 2 - 1

    def content(self, view: View, info: Mapping[str, Any]) -> Tensor:
        raise AssertionError("a random policy believes nothing")
