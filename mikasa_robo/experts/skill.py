"""How a task is done by a robot that knows what has to be remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.core.env import ARM_JOINTS, MemoryEnv

from .arm import Arm, facing_down

WAITING = (0.0, 0.0, 0.25)
"""Where a hand is that has to keep clear during a delay, m: above whatever will stand on the table again."""


@dataclass
class View:
    """The ``objects`` observation of one instant, taken apart."""

    visible: Tensor  # (N, K) bool
    position: Tensor  # (N, K, 3) m, zeros where not visible
    quaternion: Tensor  # (N, K, 4) wxyz, zeros where not visible
    joints: Tensor  # (N, 25) qpos, qvel, TCP pose
    prompt: Tensor | None  # (N, p)

    @property
    def tcp(self) -> Tensor:
        """(N, 3) place of the tool centre point, m."""
        return self.joints[:, -7:-4]

    @property
    def joint_speed(self) -> Tensor:
        """(N,) largest speed of an arm joint, rad/s."""
        return self.joints[:, 9 : 9 + ARM_JOINTS].abs().amax(dim=1)

    @property
    def fingers(self) -> Tensor:
        """(N,) distance of each finger from closed, m."""
        return self.joints[:, 7:9].mean(dim=1)


def look(obs: Mapping[str, Tensor], objects: int) -> View:
    """The view of an observation that was made with ``obs_mode="objects+…"`` of a task with ``objects`` objects."""
    told = obs["objects"].reshape(len(obs["objects"]), objects, -1)
    return View(told[..., 0] > 0.5, told[..., 1:4], told[..., 4:8], obs["joints"], obs.get("prompt"))


@dataclass
class History:
    """The last W views of every environment, the oldest first and the present one last."""

    views: Sequence[View]
    valid: Tensor  # (W, N) bool: the view is of the running episode

    @property
    def now(self) -> View:
        """The present view."""
        return self.views[-1]

    @property
    def visible(self) -> Tensor:
        """(W, N, K) bool: on view, and of the running episode."""
        return torch.stack([view.visible for view in self.views]) & self.valid[..., None]

    @property
    def position(self) -> Tensor:
        """(W, N, K, 3) m."""
        return torch.stack([view.position for view in self.views])

    @property
    def oldest(self) -> Tensor:
        """(N,) int: index in `views` of the oldest one that is of the running episode."""
        return self.valid.to(torch.int8).argmax(dim=0)


class Skill(ABC):
    """One family's way to act. Of the cue it knows nothing but the ``content`` that it is handed at every step.

    ``content`` (N, `size`) float32 is what a memory has to hold, in a form of the skill's choice.

    Args:
        task: the environment; only constants of the task are read from it, never its state.
    """

    size: int
    """Numbers in the content."""
    draws: int
    """Uniform numbers that a guess takes."""
    candidates: int = 0
    """How many things there are to try one after another; 0 where that makes no sense."""

    def __init__(self, task: MemoryEnv[Any]) -> None:
        self.task, self.device, self.num_envs = task, task.device, task.num_envs
        self.arm = Arm(task.device)
        self.wrist: Tensor | None = None
        """(N,) rad, where the last joint has to be kept meanwhile; None: where the movement wants it."""

    def reset(self, env_idx: Tensor) -> None:  # noqa: B027  (most skills have no stages)
        """Forgets the stage of the movement in the environments ``env_idx`` (b,), whose episodes begin."""

    @abstractmethod
    def known(self, view: View, info: Mapping[str, Any]) -> Tensor:
        """The content (N, size), from ``info["oracle_info"]`` and what is on view."""

    @abstractmethod
    def recall(self, history: History, u: Tensor) -> Tensor:
        """The content (N, size) as far as the history tells it; the rest is guessed, from ``u`` (N, draws) in [0, 1)."""

    @abstractmethod
    def act(self, view: View, content: Tensor, info: Mapping[str, Any]) -> Tensor:
        """The action (N, 8) of ``pd_joint_delta_pos``.

        Of ``info`` only what is no part of the memory is used: whether the episode is in its response phase (``phase``)
        and how far it has got (``counted``, ``touched``).
        """

    def attempt(self, number: Tensor) -> Tensor:
        """(N, size) the content that stands for candidate ``number`` (N,)."""
        return number[:, None].to(torch.float32).expand(-1, self.size)

    def tried(self, view: View, content: Tensor, info: Mapping[str, Any]) -> Tensor:
        """(N,) bool: what ``content`` names first has been tried, well or in vain."""
        return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    @property
    def levels(self) -> int:
        """Number of different cues that can be told apart in a posture; 1 where none can be written."""
        return 1

    def encode(self, view: View) -> Tensor:
        """(N,) number below `levels` of the cue that is on view."""
        return torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def decode(self, level: Tensor, view: View, u: Tensor) -> Tensor:
        """(N, size) content for the cue with number ``level`` (N,), with what is on view now.

        Where nothing can be written it is a guess from ``u`` (N, draws).
        """
        return self.recall(History([view], torch.ones(1, self.num_envs, dtype=torch.bool, device=self.device)), u)

    def wait(self, view: View, place: Sequence[float]) -> Tensor:
        """The action (N, 8) that leads to ``place`` (x, y, z in m), with closed fingers."""
        n = len(view.joints)
        goal = torch.tensor(place, device=self.device).expand(n, 3)
        down = facing_down(torch.zeros(n, device=self.device))
        return self.arm.act(view.joints, goal, down, -torch.ones(n, device=self.device), wrist=self.wrist)
