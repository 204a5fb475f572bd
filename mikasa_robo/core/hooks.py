"""What a task defines: its objects, and pure functions of tensors that say what an episode means."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.deprecation import rename_hooks

from .sampling import Uniforms
from .step_data import StepData

TaskState = TypeVar("TaskState")

RENAMED_HOOKS = {
    "judge": "outcome",
    "advance": "update_state",
    "perceive": "visible_poses",
    "codes": "object_features",
    "velocities": "initial_velocities",
}
"""Names of hooks in earlier versions, which still work: old to new."""


class TaskHooks(Generic[TaskState]):
    """The hooks of a task, in the order in which an episode calls them.

    N is the number of environments, K the number of objects that `build` returns, b the number of environments that are
    being reset. No hook but `build` touches the simulator, and only `update_state` writes, to the task's state alone.
    """

    reward_scales: ClassVar[dict[str, float]]
    """Weight of each dense reward term. Set by the class or, before ``super().__init__``, by the instance."""
    paid_once: ClassVar[frozenset[str]] = frozenset()
    """Reward terms that pay for an event in the step in which it happens; all others pay for a state in each step. Set by
    the class or, before ``super().__init__``, by the instance."""
    needed_response: ClassVar[int | None] = None
    """Response steps that the task needs, see `timeline_for`; None: it can be done without a response phase. Set by the
    class or, before ``super().__init__``, by the instance."""
    views_held: ClassVar[int] = 0
    """For a task without a response phase: the steps for which ``arm="held"`` holds the arm, from t = 0."""
    draws: ClassVar[int] = 0
    """How many uniform numbers `sample` takes for one episode; a task may set it per instance."""
    cue_bodies: ClassVar[bool] = False
    """Whether bodies that touch nothing are shown in place of the objects until the response phase, see `visibility`; then
    the simulation has no trace of what was shown. A hand goes through them. A task may set it per instance."""
    holds_arm: bool = False
    """Whether the robot is kept at its start until the response phase whatever ``arm`` says. Set by the class or, before
    ``super().__init__``, by the instance."""
    oracle_is_set: bool = False
    """Whether `oracle` gives indices of different objects whose order does not matter. Set by the class or the instance."""
    instructed: ClassVar[Mapping[str, Any]] = {}
    """Arguments that the instruction of an ID takes for granted, with the values for which it is true, beside those that
    define the ID: with another value it is empty."""
    objects: list[Actor]
    """The actors that `build` returned."""
    device: torch.device

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        rename_hooks(cls, RENAMED_HOOKS)

    @classmethod
    def require_hooks(cls) -> None:
        """Raises TypeError naming the abstract hooks that the class does not define."""
        # ManiSkill's environments have no ABCMeta, which would do this
        names = {name for base in cls.__mro__ for name, value in vars(base).items() if _is_abstract(value)}
        missing = [name for name in sorted(names) if _is_abstract(inspect.getattr_static(cls, name))]
        if missing:
            raise TypeError(f"{cls.__name__} lacks hooks that a task must define: {', '.join(missing)}")

    # ------------------------------------------------------------------ once
    @abstractmethod
    def build(self) -> list[Actor]:
        """Builds the objects that are shown and hidden. Returns K dynamic or kinematic actors."""

    def touchable(self, objects: list[Actor]) -> list[Actor]:
        """The objects whose contact with the hand matters, of those that `build` returned; by default all."""
        return objects

    def object_features(self) -> Tensor:
        """(K, C) float32: what each object is, as ``objects`` observations report it; by default its index, one-hot."""
        return torch.eye(len(self.objects), device=self.device)

    # ------------------------------------------------------------------ at a reset
    @abstractmethod
    def sample(self, u: Uniforms) -> TaskState:
        """The state at the start of b episodes, from uniform numbers (b, `draws`)."""

    def initial_velocities(self, s: TaskState) -> Tensor | None:
        """(b, K, 6) linear (m/s) and angular velocity (rad/s) with which objects start; None: at rest.

        For tasks without a response phase: with one, `layout` holds the objects until it begins.
        """
        return None

    def start_posture(self, s: TaskState) -> Tensor | None:
        """(b, 9) joint positions at which the robots start, rad and m; None: `tabletop.START_QPOS` with noise."""
        return None

    # ------------------------------------------------------------------ at every control step
    @abstractmethod
    def update_state(self, s: TaskState, data: StepData, touching: Tensor) -> None:
        """Updates ``s`` after a control step.

        ``touching`` (N, L, K) bool is the contact of each link with each touchable object at the end of the step: the hand,
        the left finger, the right finger and, on a robot that has one, the camera.
        """

    @abstractmethod
    def layout(self, s: TaskState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        """Which objects are on view at t = ``elapsed`` (N,), (N, K) bool, and where each belongs, (N, K, 7).

        An object is put there in every step up to the first of the response phase, and later when it comes into view. From
        then on physics alone moves it: another pose for an object that is on view already has no effect.
        """

    @abstractmethod
    def outcome(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """``success`` and ``fail`` (N,) bool, and the task's own booleans for ``info``."""

    @abstractmethod
    def reward_terms(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """The unweighted terms (N,) in [0, 1] named in `reward_scales`."""

    @abstractmethod
    def oracle(self, s: TaskState) -> Tensor:
        """(N, d): what an agent has to remember."""

    def prompt(self, s: TaskState) -> Tensor | None:
        """(N, d) float32 that the agent is told at every step; None where the task has no prompt."""
        return None

    def visible_poses(self, s: TaskState, data: StepData) -> tuple[Tensor, Tensor]:
        """Which objects a perfect perception system would see now, (N, K) bool, and at which poses, (N, K, 7).

        By default all that are on view, where they are. A task overrides it where objects can cover one another or look
        alike from several sides.
        """
        return self.layout(s, data.elapsed)[0], data.objects[..., :7]

    @abstractmethod
    def state_features(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """The task's own part of the ``state`` observation, (N, …) each."""

    # ------------------------------------------------------------------ in videos
    def overlay_facts(self, s: TaskState) -> dict[str, list[str]]:
        """What the overlay of a video tells of an episode: under each name one text for each of the N environments."""
        numbers = self.oracle(s).tolist()
        return {"oracle": [" ".join(f"{number:.3g}" for number in row) for row in numbers]}


def _is_abstract(value: Any) -> bool:
    return getattr(value, "__isabstractmethod__", False) is True


rename_hooks(TaskHooks, RENAMED_HOOKS)
