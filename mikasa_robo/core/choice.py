"""What the tasks share in which the right ones of K candidates are to be touched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor
from torch.nn.functional import one_hot

from . import rewards
from .env import MemoryEnv, StepData
from .phases import CUE, RESPONSE
from .sampling import Uniforms, arc_places, block_places, index_below, permutation, upright
from .touches import HOLD_STEPS, hold_touches, record_touches

CUE_PLACE = (0.0, 0.0)
"""Where a single cue stands: the middle of the table, x and y in m."""
CUE_SPACING = 0.08
"""Distance between the middles of neighbours that are shown side by side, along y, m."""

Shown = Literal["together", "in turn"]
Arrangement = Callable[[Tensor, int, float], Tensor]


@dataclass
class ChoiceState:
    """One row per environment; m of K candidates are true ones."""

    target: Tensor  # (N, m) int64, indices of the true candidates, in the order shown
    home: Tensor  # (N, K, 3) m, where each candidate stands in the response phase
    held: Tensor  # (N, K) int64, control steps of unbroken touch, negative just after it (see `hold_touches`)
    counted: Tensor  # (N, K) bool, true candidates touched
    mistaken: Tensor  # (N,) bool, a mistake was made

    @property
    def wanted(self) -> Tensor:
        """(N, K) bool, the true candidates."""
        return one_hot(self.target, self.home.shape[1]).sum(dim=1).to(torch.bool)

    @property
    def rank(self) -> Tensor:
        """(N, K) int64, place of each true candidate in the order shown, from 0; 0 for the others."""
        places = torch.arange(self.target.shape[1], device=self.target.device).expand_as(self.target)
        return torch.zeros_like(self.held).scatter(1, self.target, places)

    @property
    def complete(self) -> Tensor:
        """(N,) bool, all true candidates were touched."""
        return self.counted.sum(dim=1) == self.target.shape[1]


def sample_choice(
    u: Uniforms, offered: int, wanted: int, heights: Tensor, radius: float, arrange: Arrangement = arc_places
) -> ChoiceState:
    """``wanted`` true candidates of ``offered``, all different, and places for all.

    Takes `draws_of_choice` uniforms.

    Args:
        u: the uniforms of b episodes.
        offered: number of candidates, K.
        wanted: number of true ones, m.
        heights: (K,) z at which each stands on the table, m.
        radius: of the circle in which each candidate fits, m.
        arrange: gives the places: `arc_places` or `block_places`.
    """
    target = index_below(u.take(1), offered) if wanted == 1 else permutation(u.take(offered))[:, :wanted].contiguous()
    places = arrange(u.take(3 * offered), offered, radius)
    home = torch.cat([places, heights.to(places).expand(u.count, -1)[..., None]], dim=-1).to(torch.float32)
    b, device = u.count, home.device
    return ChoiceState(
        target=target,
        home=home,
        held=torch.zeros(b, offered, dtype=torch.int64, device=device),
        counted=torch.zeros(b, offered, dtype=torch.bool, device=device),
        mistaken=torch.zeros(b, dtype=torch.bool, device=device),
    )


def draws_of_choice(offered: int, wanted: int) -> int:
    """How many uniforms `sample_choice` takes."""
    return (1 if wanted == 1 else offered) + 3 * offered


def choice_layout(s: ChoiceState, elapsed: Tensor, phase: Tensor, each: int, shown: Shown) -> tuple[Tensor, Tensor]:
    """The cue, then nothing, then all candidates at home.

    Args:
        s: the episodes.
        elapsed, phase: (N,) t and the phase at t.
        each: control steps that each cue is on view.
        shown: "together": all true candidates side by side, the first at the left (+y); "in turn": each alone in the
            middle, one after another.

    Returns:
        (N, K) bool on view, (N, K, 7) poses.
    """
    m = s.target.shape[1]
    response = (phase == RESPONSE)[:, None]
    cue_place = s.home.clone()
    cue_place[..., 0], cue_place[..., 1] = CUE_PLACE
    if shown == "together":
        now = s.wanted
        cue_place[..., 1] += CUE_SPACING * ((m - 1) / 2 - s.rank)
    else:
        turn = torch.div(elapsed, each, rounding_mode="floor").clamp(max=m - 1)
        now = one_hot(s.target.gather(1, turn[:, None].to(torch.int64))[:, 0], s.home.shape[1]).to(torch.bool)
    visible = ((phase == CUE)[:, None] & now) | response
    return visible, upright(torch.where(response[..., None], s.home, cue_place))


def advance_choice(s: ChoiceState, touching: Tensor, responding: Tensor, ordered: bool) -> None:
    """Enters the touches (N, K) of a step in the ledger."""
    s.held, new = hold_touches(s.held, touching, responding)
    s.counted, mistake = record_touches(new, s.counted, s.wanted, s.rank if ordered else None)
    s.mistaken = s.mistaken | mistake


def next_target(s: ChoiceState, distance: Tensor, ordered: bool) -> Tensor:
    """(N,) int64: the candidate to touch next.

    The first in order that is missing; where the order is free, the nearest by ``distance`` (N, K) that is missing. Once
    all were touched, the last in order or the nearest of the true ones.
    """
    if ordered:
        done = s.counted.sum(dim=1, keepdim=True).clamp(max=s.target.shape[1] - 1)
        return s.target.gather(1, done)[:, 0]
    missing = torch.where(s.complete[:, None], s.wanted, s.wanted & ~s.counted)
    return torch.where(missing, distance, torch.inf).argmin(dim=1)


class ChoiceTask(MemoryEnv[ChoiceState]):
    """See ``wanted`` objects, then touch the same ones among ``offered``.

    A family derives from `RememberTask` or `RecallTask` and says what a candidate is (`build_candidate`).

    Args:
        offered: number of candidates in the response phase, K.
        wanted: number of true ones, m.
        cue_steps: control steps that each cue is on view.
        delay_steps, response_steps: lengths of the other phases.
        **kwargs: see `MemoryEnv`.
    """

    shown: ClassVar[Shown] = "together"
    """How the true candidates are shown during the cue."""
    ordered: ClassVar[bool] = False
    """Whether they have to be touched in the order shown."""
    block: ClassVar[bool] = False
    """Whether the candidates stand in a block (`block_places`) in the response phase, or in an arc (`arc_places`)."""
    radius: ClassVar[float] = 0.02 * 2**0.5
    """Of the circle in which each candidate fits, seen from above, m."""

    def __init__(
        self,
        *args: Any,
        offered: int,
        wanted: int,
        cue_steps: int,
        delay_steps: int,
        response_steps: int,
        **kwargs: Any,
    ) -> None:
        self.offered, self.wanted, self.each = offered, wanted, cue_steps
        self.draws = draws_of_choice(offered, wanted)  # type: ignore[misc]
        self.reward_scales = {"reach": 1.0, "touch": 1.0, "still": 0.5}  # type: ignore[misc]
        if wanted > 1:
            # a touch must pay more than what nearness and touch pay less, once the next target is far
            self.reward_scales["progress"] = 2.0 * wanted
        if self.shown == "in turn" and isinstance(cue_steps, int):
            cue_steps *= wanted
        super().__init__(*args, cue_steps=cue_steps, delay_steps=delay_steps, response_steps=response_steps, **kwargs)

    @abstractmethod
    def build_candidate(self, index: int) -> Actor:
        """Builds candidate ``index``, a dynamic actor that stands on the table without rotation."""

    def heights(self) -> Sequence[float]:
        """z at which each of the K candidates stands on the table, m."""
        return [0.02] * self.offered

    def build(self) -> list[Actor]:
        return [self.build_candidate(index) for index in range(self.offered)]

    def sample(self, u: Uniforms) -> ChoiceState:
        arrange = block_places if self.block else arc_places
        return sample_choice(u, self.offered, self.wanted, torch.tensor(self.heights()), self.radius, arrange)

    def layout(self, s: ChoiceState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        return choice_layout(s, elapsed, self.timeline.phase(elapsed), self.each, self.shown)

    def update_state(self, s: ChoiceState, data: StepData, touching: Tensor) -> None:
        advance_choice(s, touching.any(dim=1), data.responding, self.ordered)

    def outcome(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
        fail = s.mistaken & (self.on_mistake == "fail")
        return {
            "success": s.complete & data.static & ~fail,
            "fail": fail,
            "touched": s.complete,
            "counted": s.counted.clone(),
            "touches": s.counted.sum(dim=1),
            "mistake": s.mistaken.clone(),
            "static": data.static,
        }

    def _to_next(self, s: ChoiceState, data: StepData) -> tuple[Tensor, Tensor]:
        """The next target (N,) and the way from the TCP to it (N, 3), m."""
        way = data.objects[..., :3] - data.tcp[:, None, :3]
        target = next_target(s, torch.linalg.norm(way, dim=-1), self.ordered)
        return target, way.gather(1, target[:, None, None].expand(-1, 1, 3))[:, 0]

    def reward_terms(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
        target, way = self._to_next(s, data)
        # where several are to be touched, the way from one to the next leads past others
        near = rewards.reach_from_above(way) if self.wanted > 1 else rewards.closeness(torch.linalg.norm(way, dim=-1))
        held = s.held.gather(1, target[:, None])[:, 0].clamp(min=0) / HOLD_STEPS
        one = torch.ones_like(near)
        terms = {
            "reach": torch.where(s.complete, one, near),
            "touch": torch.where(s.complete, one, held.to(near.dtype)),
            "still": rewards.still_when(s.complete | ~data.responding, data.joint_speed),
        }
        if self.wanted > 1:
            terms["progress"] = s.counted.sum(dim=1) / self.wanted
        return terms

    def oracle(self, s: ChoiceState) -> Tensor:
        return s.target.clone()

    def state_features(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
        target, way = self._to_next(s, data)
        features = {
            "target": s.wanted,
            "tcp_to_target": way * data.responding[:, None],
            "held": s.held / HOLD_STEPS,
            "counted": s.counted,
        }
        if self.wanted > 1:
            features["next"] = one_hot(target, self.offered) * data.responding[:, None]
            features["touches"] = s.counted.sum(dim=1) / self.wanted
        return features


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """``value``, if it is a whole number from ``least`` to ``most``; else ValueError with the argument's name."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}={value!r}: use a whole number from {least} to {most}")
    return value


class RememberTask(ChoiceTask):
    """See one object, then touch the same one among ``n``.

    Cue: the true object in the middle of the table. Delay: an empty table. Response: all ``n`` objects in a jittered arc
    in reach, at places that are drawn anew in every episode.
    Success: the true object was touched (contact force above 0.05 N in 2 control steps in a row) and the robot is
    static. Failure: a touch, so held, on any other object.
    Oracle: (N, 1) int64, index of the true object.

    Args:
        n: number of candidates, 2 to 9.
        cue_steps, delay_steps, response_steps: lengths of the phases, in control steps.
        **kwargs: see `MemoryEnv`.
    """

    def __init__(
        self,
        *args: Any,
        n: int = 3,
        cue_steps: int = 5,
        delay_steps: int = 5,
        response_steps: int = 50,
        **kwargs: Any,
    ) -> None:
        self.n = whole_number("n", n, 2, 9)
        super().__init__(
            *args,
            offered=n,
            wanted=1,
            cue_steps=cue_steps,
            delay_steps=delay_steps,
            response_steps=response_steps,
            **kwargs,
        )


def paced_response(n: int, ordered: bool) -> int:
    """Control steps for touching n objects that were shown one after another, each for 5 steps.

    What the paper's T = 120 leaves, 115 - 5 n, but no fewer than the arm needs (0.04 rad a step and joint) that was held
    still until then: 20 (n - 1) in any order, 15 n + 35 in a given one, in which the ways are longer.
    """
    return max(115 - 5 * n, 15 * n + 35 if ordered else 20 * (n - 1))


class RecallTask(ChoiceTask):
    """See ``n`` objects, then touch the same ones among nine.

    Cue: the true objects, all at once side by side or one after another in the middle of the table. Delay: an empty
    table. Response: all nine in a jittered block of three rows, at places that are drawn anew in every episode.
    Success: all true objects were touched, each for 0.1 s (2 control steps in a row), and the robot is static. Failure: a
    touch, so held, on a wrong object, on one that counts already (while others are missing) or, where the order
    matters, out of order.
    Oracle: (N, n) int64, indices of the true objects in the order shown (from the left where they are shown at once).

    Args:
        n: number of true objects, 2 to 9.
        cue_steps: control steps that the cue is on view; where they are shown one after another, each of them.
        delay_steps: control steps of the empty table.
        response_steps: control steps to act in; None: what is left of 120 with the paper's cue and delay; for many
            objects shown one after another more, as `paced_response` says.
        **kwargs: see `MemoryEnv`.
    """

    block = True

    def __init__(
        self,
        *args: Any,
        n: int = 3,
        cue_steps: int = 5,
        delay_steps: int = 5,
        response_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.n = whole_number("n", n, 2, 9)
        if response_steps is None:
            response_steps = paced_response(n, self.ordered) if self.shown == "in turn" else 110
        super().__init__(
            *args,
            offered=9,
            wanted=n,
            cue_steps=cue_steps,
            delay_steps=delay_steps,
            response_steps=response_steps,
            **kwargs,
        )
