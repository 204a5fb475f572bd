"""What a policy has to remember in each family of tasks, and how an episode is judged by the cue of another one.

A task of your own takes part in the causal swap once a `CueRule` for its state is registered:

    register_cue_rule(PointBackState, PointBackCue())
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mikasa_robo.core.choice import ChoiceState
from mikasa_robo.tasks.rotate import TOLERANCE, RotateState, heading, wrapped
from mikasa_robo.tasks.shell_game import ShellState
from mikasa_robo.tasks.take_it_back import TakeItBackState

__all__ = ["CuePart", "CueRule", "copy_state", "cue_parts", "find_cue_rule", "oracle_parts", "register_cue_rule"]

TaskState = TypeVar("TaskState")


@dataclass
class CuePart:
    """One thing to read out of a memory, (N, d): class indices (int64) or numbers (float)."""

    name: str
    values: Tensor
    changes: bool = False
    """Whether it changes within an episode, so that there is no step at which it is written."""

    @property
    def discrete(self) -> bool:
        """Whether the values are class indices."""
        return not self.values.is_floating_point()


class CueRule(ABC, Generic[TaskState]):
    """What the cue of a family is. ``task`` is the environment, ``s`` the task's state of N episodes."""

    stays_on_view: bool = False
    """Whether the scene shows the cue until the robot itself changes it; see `gone`."""

    def is_on_view(self, task: Any) -> bool:
        """`stays_on_view` in this very task: what comes back elsewhere (recall="replaced") shows its cue no longer."""
        return self.stays_on_view

    @abstractmethod
    def differs(self, task: Any, s: TaskState) -> Tensor:
        """(N, N) bool: in episode i, nobody can do the task both with the cue of episode j and with its own."""

    @abstractmethod
    def with_cue_of(self, task: Any, s: TaskState, partner: Tensor) -> list[TaskState]:
        """The same episodes with the cues of the episodes ``partner`` (N,), all else as it is.

        Several states where several outcomes agree with that cue. They share no tensor with ``s``.
        """

    def acted(self, s: TaskState) -> Tensor:
        """(N,) bool: something has already been judged by the own cue."""
        return s.mistaken.clone()  # type: ignore[attr-defined]

    def gone(self, s: TaskState) -> Tensor:
        """(N,) bool: the robot has changed the scene so that it no longer shows the cue."""
        raise NotImplementedError(f"{type(self).__name__} says that its cue stays on view: define `gone`")

    def parts(self, task: Any, s: TaskState) -> list[CuePart]:
        """What to read out of a memory; by default the oracle."""
        return oracle_parts(task, s)


class ChoiceCue(CueRule[ChoiceState]):
    """Remember*, Bunch-, Seq- and ChainOfColors: which candidates are the targets, by what they are, not by place."""

    def differs(self, task: Any, s: ChoiceState) -> Tensor:
        cue = s.is_target if task.oracle_is_set else s.target
        return (cue[:, None] != cue[None]).any(dim=-1)

    def with_cue_of(self, task: Any, s: ChoiceState, partner: Tensor) -> list[ChoiceState]:
        return [replace(copy_state(s), target=s.target[partner])]

    def acted(self, s: ChoiceState) -> Tensor:
        return s.mistaken | s.counted.any(dim=1)

    def parts(self, task: Any, s: ChoiceState) -> list[CuePart]:
        if task.oracle_is_set:
            cue = [CuePart("is each candidate a target?", s.is_target.to(torch.int64))]
        else:
            cue = oracle_parts(task, s)
        if s.target.shape[1] == 1:
            return cue
        # what was done is to be remembered, too
        return [*cue, CuePart("was each candidate touched?", s.counted.to(torch.int64), changes=True)]


class ShellCue(CueRule[ShellState]):
    """ShellGame: which mug. The mug of the same name that is also the nearest to where the other ball lay."""

    def differs(self, task: Any, s: ShellState) -> Tensor:
        ball = s.places[torch.arange(len(s.target), device=s.target.device), s.target]  # (N, 2)
        nearest = torch.linalg.norm(s.places[:, None] - ball[None, :, None], dim=-1).argmin(dim=-1)  # (N, N)
        return (nearest == s.target[None]) & (s.target[None] != s.target[:, None])

    def with_cue_of(self, task: Any, s: ShellState, partner: Tensor) -> list[ShellState]:
        return [replace(copy_state(s), target=s.target[partner])]

    def acted(self, s: ShellState) -> Tensor:
        return s.mistaken | s.counted.any(dim=1)


class RotateCue(CueRule[RotateState]):
    """Rotate: how the peg lay at the start; its two ends look alike.

    A policy that remembers the start of episode j turns the peg to where the prompted angle from that start is. Measured
    from its own start that is another angle, which is known up to half turns.
    """

    stays_on_view = True

    @staticmethod
    def _targets(own: Tensor, apart: Tensor) -> list[Tensor]:
        """The angles to turn by, from the episode's own and how far the other start lies apart, rad."""
        return [own + wrapped(2 * apart) / 2 + turn for turn in (0.0, math.pi, -math.pi)]

    def differs(self, task: Any, s: RotateState) -> Tensor:
        start = heading(s.start[:, 3:]).to(torch.float32)
        own = s.goal[:, None]
        # a peg that nobody has turned must not count as turned either
        apart = [
            ((target - own).abs() > 2 * TOLERANCE) & (target.abs() > 2 * TOLERANCE)
            for target in self._targets(own, start[None] - start[:, None])
        ]
        return torch.stack(apart).all(dim=0)

    def with_cue_of(self, task: Any, s: RotateState, partner: Tensor) -> list[RotateState]:
        start = heading(s.start[:, 3:]).to(torch.float32)
        return [replace(copy_state(s), goal=goal) for goal in self._targets(s.goal, start[partner] - start)]

    def gone(self, s: RotateState) -> Tensor:
        return s.turned.abs() > TOLERANCE

    def is_on_view(self, task: Any) -> bool:
        return not task.replaced

    def parts(self, task: Any, s: RotateState) -> list[CuePart]:
        twice = 2 * heading(s.start[:, 3:])
        direction = torch.stack([twice.cos(), twice.sin()], dim=1).to(torch.float32)
        return [*oracle_parts(task, s), CuePart("direction at the start", direction)]


class TakeItBackCue(CueRule[TakeItBackState]):
    """TakeItBack: where the cube started."""

    stays_on_view = True

    def differs(self, task: Any, s: TakeItBackState) -> Tensor:
        return torch.cdist(s.start[:, :2], s.start[:, :2]) > 2 * task.region_radius

    def with_cue_of(self, task: Any, s: TakeItBackState, partner: Tensor) -> list[TakeItBackState]:
        return [replace(copy_state(s), start=s.start[partner])]

    def gone(self, s: TakeItBackState) -> Tensor:
        return s.reached.clone()

    def is_on_view(self, task: Any) -> bool:
        return not task.replaced

    def parts(self, task: Any, s: TakeItBackState) -> list[CuePart]:
        return [CuePart("start, x and y", s.start[:, :2].clone())]


_RULES: dict[type, CueRule[Any]] = {
    ChoiceState: ChoiceCue(),
    ShellState: ShellCue(),
    RotateState: RotateCue(),
    TakeItBackState: TakeItBackCue(),
}


def register_cue_rule(state: type[TaskState], rule: CueRule[TaskState]) -> None:
    """Say what the cue of the tasks with this dataclass of state is, in place of an earlier rule."""
    _RULES[state] = rule


def find_cue_rule(task: Any) -> CueRule[Any] | None:
    """The rule for the state of ``task``, which has been reset; None if there is none."""
    return next((_RULES[kind] for kind in type(task.task_state).__mro__ if kind in _RULES), None)


def cue_parts(task: Any) -> list[CuePart]:
    """What to read out of a memory of ``task`` now."""
    rule = find_cue_rule(task)
    return oracle_parts(task, task.task_state) if rule is None else rule.parts(task, task.task_state)


def oracle_parts(task: Any, s: Any) -> list[CuePart]:
    """The oracle."""
    return [CuePart("oracle", task.oracle(s).clone())]


def copy_state(s: TaskState) -> TaskState:
    """A task's state with copies of all tensors."""
    return replace(s, **{field.name: getattr(s, field.name).clone() for field in fields(s)})  # type: ignore[type-var, arg-type]
