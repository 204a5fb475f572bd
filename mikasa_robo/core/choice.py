"""What the tasks share in which the right ones of K candidates are to be touched."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from . import rewards
from .env import MemoryEnv, Senses
from .phases import CUE, RESPONSE
from .sampling import Uniforms, arc_places, index_below, upright
from .touches import HOLD_STEPS, hold_touches, record_touches

CUE_PLACE = (0.0, 0.0)
"""Where the cue stands: the middle of the table, x and y in m."""


@dataclass
class ChoiceState:
    """One row per environment."""

    target: Tensor  # (N,) int64, index of the true candidate
    home: Tensor  # (N, K, 3) m, where each candidate stands in the response phase
    held: Tensor  # (N, K) int64, control steps of unbroken touch
    counted: Tensor  # (N, K) bool, true candidates touched
    mistaken: Tensor  # (N,) bool, a mistake was made


def sample_choice(u: Uniforms, n: int, height: float, half_width: float) -> ChoiceState:
    """One true candidate of ``n`` and places for all; takes 1 + 3n uniforms."""
    target = index_below(u.take(1)[:, 0], n)
    places = arc_places(u.take(3 * n), n, half_width)
    home = torch.cat([places, torch.full_like(places[..., :1], height)], dim=-1).to(torch.float32)
    b, device = u.count, home.device
    return ChoiceState(
        target=target,
        home=home,
        held=torch.zeros(b, n, dtype=torch.int64, device=device),
        counted=torch.zeros(b, n, dtype=torch.bool, device=device),
        mistaken=torch.zeros(b, dtype=torch.bool, device=device),
    )


def choice_layout(s: ChoiceState, phase: Tensor, height: float) -> tuple[Tensor, Tensor]:
    """The true candidate in the middle during the cue, nothing in the delay, then all at home.

    Returns:
        (N, K) bool on view, (N, K, 7) poses.
    """
    is_target = torch.nn.functional.one_hot(s.target, s.home.shape[1]).to(torch.bool)
    cue, response = (phase == CUE)[:, None], (phase == RESPONSE)[:, None]
    middle = s.home.new_tensor([*CUE_PLACE, height]).expand_as(s.home)
    return (cue & is_target) | response, upright(torch.where(response[..., None], s.home, middle))


def advance_choice(s: ChoiceState, touching: Tensor, responding: Tensor) -> None:
    """Enters the touches (N, K) of a step in the ledger."""
    wanted = torch.nn.functional.one_hot(s.target, s.home.shape[1]).to(torch.bool)
    s.held, new = hold_touches(s.held, touching, responding)
    s.counted, mistake = record_touches(new, s.counted, wanted)
    s.mistaken = s.mistaken | mistake


class ChoiceTask(MemoryEnv[ChoiceState]):
    """See one object, then touch the same one among ``n``.

    Cue: the true object in the middle of the table. Delay: an empty table. Response: all ``n`` objects in a jittered arc
    in reach, at places that are drawn anew in every episode.
    Success: the true object was touched (contact force above 0.05 N in 2 control steps in a row) and the robot is
    static. Failure: a touch, so held, on any other object.
    Oracle: (N, 1) int64, index of the true object.

    Args:
        n: number of candidates.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`.
    """

    reward_scales: ClassVar[dict[str, float]] = {"reach": 1.0, "touch": 1.0, "still": 0.5}
    height: ClassVar[float] = 0.02
    """z of an object that stands on the table, m."""
    half_width: ClassVar[float] = 0.02
    """Half an object's width, m."""
    largest_n: ClassVar[int] = 9

    def __init__(
        self,
        *args: Any,
        n: int = 3,
        cue_steps: int = 5,
        delay_steps: int = 5,
        response_steps: int = 50,
        **kwargs: Any,
    ) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or not 2 <= n <= self.largest_n:
            raise ValueError(f"n={n!r} candidates: use a whole number from 2 to {self.largest_n}")
        self.n = n
        self.draws = 1 + 3 * n  # type: ignore[misc]
        super().__init__(*args, cue_steps=cue_steps, delay_steps=delay_steps, response_steps=response_steps, **kwargs)

    @abstractmethod
    def build_candidate(self, index: int) -> Actor:
        """Builds candidate ``index``, a dynamic actor."""

    def build(self) -> list[Actor]:
        return [self.build_candidate(index) for index in range(self.n)]

    def sample(self, u: Uniforms) -> ChoiceState:
        return sample_choice(u, self.n, self.height, self.half_width)

    def layout(self, s: ChoiceState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        return choice_layout(s, self.timeline.phase(elapsed), self.height)

    def advance(self, s: ChoiceState, senses: Senses, touching: Tensor) -> None:
        advance_choice(s, touching.any(dim=1), senses.responding)

    def judge(self, s: ChoiceState, senses: Senses) -> dict[str, Tensor]:
        touched = s.counted.any(dim=1)
        fail = s.mistaken & (self.on_mistake == "fail")
        return {
            "success": touched & senses.static & ~fail,
            "fail": fail,
            "touched": touched,
            "mistake": s.mistaken.clone(),
            "static": senses.static,
        }

    def _to_target(self, s: ChoiceState, senses: Senses) -> Tensor:
        position = senses.objects[..., :3].gather(1, s.target[:, None, None].expand(-1, 1, 3))[:, 0]
        return position - senses.tcp[:, :3]

    def reward_terms(self, s: ChoiceState, senses: Senses) -> dict[str, Tensor]:
        touched = s.counted.any(dim=1)
        distance = torch.linalg.norm(self._to_target(s, senses), dim=-1)
        held = s.held.gather(1, s.target[:, None])[:, 0] / HOLD_STEPS
        one = torch.ones_like(distance)
        return {
            "reach": torch.where(touched, one, rewards.closeness(distance)),
            "touch": torch.where(touched, one, held.to(distance.dtype)),
            "still": rewards.still(senses.joint_speed),
        }

    def oracle(self, s: ChoiceState) -> Tensor:
        return s.target[:, None].clone()

    def state_features(self, s: ChoiceState, senses: Senses) -> dict[str, Tensor]:
        return {
            "target": torch.nn.functional.one_hot(s.target, self.n),
            "tcp_to_target": self._to_target(s, senses) * senses.responding[:, None],
            "held": s.held / HOLD_STEPS,
            "counted": s.counted,
        }
