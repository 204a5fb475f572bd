"""How a robot does a task once it knows what has to be remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mikasa_robo.core.env import ARM_JOINTS, MemoryEnv
from mikasa_robo.deprecation import rename_hooks

from .arm import Arm, facing_down

WAITING = (0.0, 0.0, 0.25)
"""Where the hand waits during a delay, m: above everything that will stand on the table again."""


@dataclass
class View:
    """The parts of one ``objects`` observation."""

    visible: Tensor  # (N, K) bool
    position: Tensor  # (N, K, 3) m, zeros if not visible
    quaternion: Tensor  # (N, K, 4) wxyz, zeros if not visible
    joints: Tensor  # (N, 25) qpos, qvel, TCP pose
    prompt: Tensor | None  # (N, p)

    @property
    def tcp(self) -> Tensor:
        """(N, 3) position of the tool centre point, m."""
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
    """The view that an observation with ``obs_mode="objects"`` contains, for a task with ``objects`` objects."""
    parts = obs["objects"].reshape(len(obs["objects"]), objects, -1)
    return View(parts[..., 0] > 0.5, parts[..., 1:4], parts[..., 4:8], obs["joints"], obs.get("prompt"))


@dataclass
class History:
    """The last W views of each environment, from the oldest to the present one."""

    views: Sequence[View]
    valid: Tensor  # (W, N) bool: the view belongs to the running episode
    elapsed: Tensor | None = None  # (N,) int64, control steps since the reset at the present view; None: not known

    @property
    def now(self) -> View:
        """The present view."""
        return self.views[-1]

    @property
    def visible(self) -> Tensor:
        """(W, N, K) bool: the object is visible and the view belongs to the running episode."""
        return torch.stack([view.visible for view in self.views]) & self.valid[..., None]

    @property
    def position(self) -> Tensor:
        """(W, N, K, 3) m."""
        return torch.stack([view.position for view in self.views])

    def in_cue(self, cue_steps: int) -> Tensor:
        """(W, N) bool: the view belongs to the running episode and to its cue, which lasts ``cue_steps``."""
        if self.elapsed is None:
            return torch.zeros_like(self.valid)
        back = torch.arange(len(self.views) - 1, -1, -1, device=self.valid.device)[:, None]
        return self.valid & (self.elapsed - back < cue_steps)

    @property
    def oldest(self) -> Tensor:
        """(N,) int: index in `views` of the oldest view of the running episode."""
        return self.valid.to(torch.int8).argmax(dim=0)


class Skill(ABC):
    """How one family acts. A skill knows the cue only from the argument ``cue`` of `act`.

    ``cue`` (N, `size`) float32 is what a memory has to hold, in a form that the skill chooses.

    Args:
        task: the environment. A skill reads constants of the task from it, never its state.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        rename_hooks(cls, {"known": "from_oracle", "recall": "from_history"})

    size: int
    """Length of the cue."""
    draws: int
    """Number of uniforms that a guess takes."""
    candidates: int = 0
    """Number of candidates to try one after another; 0 if the task has none."""
    posture_policy: ClassVar[str] = "mikasa_robo.experts.policies:PostureMemory"
    """The policy, ``"module:Class"``, whose body remembers the cue of this family best."""

    def __init__(self, task: MemoryEnv[Any]) -> None:
        self.task, self.device, self.num_envs = task, task.device, task.num_envs
        self.arm = Arm(task.device)
        self.wrist: Tensor | None = None
        """(N,) angle at which the last joint is kept during the movement, rad; None: it moves freely."""

    def reset(self, env_idx: Tensor) -> None:  # noqa: B027  (most skills have no stages)
        """Restart the movement in the environments ``env_idx`` (b,), whose episodes begin."""

    @abstractmethod
    def from_oracle(self, view: View, info: Mapping[str, Any]) -> Tensor:
        """The cue (N, size), from ``info["oracle_info"]`` and the present view."""

    @abstractmethod
    def from_history(self, history: History, u: Tensor) -> Tensor:
        """The cue (N, size) as far as the history shows it; the rest is guessed from ``u`` (N, draws) in [0, 1)."""

    @abstractmethod
    def act(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        """The action (N, 8) of ``pd_joint_delta_pos``.

        It uses only those parts of ``info`` that need no memory of the cue: the phase (``phase``) and the progress
        (``counted``, ``touched``).
        """

    def target(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        """Which object the hand goes for: its row in the view (N,) int64, or -1 while it goes for none.

        A skill that chooses among objects overrides this.
        """
        return torch.full((self.num_envs,), -1, dtype=torch.int64, device=self.device)

    def attempt(self, number: Tensor) -> Tensor:
        """(N, size) the cue that stands for candidate ``number`` (N,)."""
        return number[:, None].to(torch.float32).expand(-1, self.size)

    def tried(self, view: View, cue: Tensor, info: Mapping[str, Any]) -> Tensor:
        """(N,) bool: the first candidate in ``cue`` was tried, successfully or not."""
        return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    @property
    def levels(self) -> int:
        """Number of cues that a posture can distinguish; 1 if none can be written."""
        return 1

    def encode(self, view: View) -> Tensor:
        """(N,) number, below `levels`, of the cue that is on view."""
        return torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def decode(self, level: Tensor, view: View, u: Tensor) -> Tensor:
        """(N, size) the cue with number ``level`` (N,), given the present view.

        If nothing can be written (`levels` is 1), a guess from ``u`` (N, draws).
        """
        return self.from_history(History([view], torch.ones(1, self.num_envs, dtype=torch.bool, device=self.device)), u)

    def wait(self, view: View, place: Sequence[float]) -> Tensor:
        """The action (N, 8) that moves the closed fingers to ``place`` (x, y, z in m)."""
        n = len(view.joints)
        goal = torch.tensor(place, device=self.device).expand(n, 3)
        down = facing_down(torch.zeros(n, device=self.device))
        return self.arm.act(view.joints, goal, down, -torch.ones(n, device=self.device), wrist=self.wrist)
