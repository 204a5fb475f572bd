"""Tasks in which the agent sees one or several objects and later touches the same ones among K candidates."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor
from torch.nn.functional import one_hot

from mikasa_robo.checks import whole_number
from mikasa_robo.deprecation import deprecated_names, renamed_attributes
from mikasa_robo.tensors import constant, length

from . import rewards
from .env import MemoryEnv, StepData
from .phases import CUE, RESPONSE
from .sampling import Uniforms, arc_places, grid_places, index_below, permutation, upright
from .state import index_into
from .tabletop import FINGER_OPEN
from .touches import HOLD_STEPS, hold_touches, record_touches

CUE_PLACE = (0.0, 0.0)
"""Where a single cue stands: the middle of the table, x and y in m."""
CUE_SPACING = 0.08
"""Distance between the centres of neighbours that are shown side by side, along y, m."""

NEEDED_RESPONSE, NEEDED_FOR_ANOTHER = 25, 9
"""Response steps that an arm needs for the first touch, and for each further one, see `timeline_for`."""

NEAR_OTHERS = 3
"""Number of candidates beside the next target that the `state` observation tells relative to the TCP."""
PROGRESS_SCALE = 20.0
"""Weight of what a touch pays once, where there are several targets."""

CueOrder = Literal["simultaneous", "sequential"]
Arrangement = Callable[[Tensor, int, float], Tensor]


@renamed_attributes({"wanted": "is_target"})
@dataclass
class ChoiceState:
    """One row per environment; m of the K candidates are targets."""

    target: Tensor = field(metadata=index_into("home"))  # (N, m) int64, indices of the targets, in the order shown
    home: Tensor  # (N, K, 3) m, where each candidate stands in the response phase
    held: Tensor  # (N, K) int64, control steps of unbroken touch, negative just after it (see `hold_touches`)
    counted: Tensor  # (N, K) bool, targets touched so far
    mistaken: Tensor  # (N,) bool, a mistake was made

    @property
    def is_target(self) -> Tensor:
        """(N, K) bool, the targets."""
        return one_hot(self.target, self.home.shape[1]).sum(dim=1).to(torch.bool)

    @property
    def rank(self) -> Tensor:
        """(N, K) int64, position of each target in the order shown, from 0; 0 for the other candidates."""
        positions = torch.arange(self.target.shape[1], device=self.target.device).expand_as(self.target)
        return torch.zeros_like(self.held).scatter(1, self.target, positions)

    @property
    def complete(self) -> Tensor:
        """(N,) bool, all targets were touched."""
        return self.counted.sum(dim=1) == self.target.shape[1]


def sample_choice(
    u: Uniforms,
    num_candidates: int,
    num_targets: int,
    heights: Tensor,
    radius: float,
    arrange: Arrangement = arc_places,
) -> ChoiceState:
    """Draw the targets, all different, and a place for each candidate.

    Takes `draws_of_choice` uniforms.

    Args:
        u: the uniforms of b episodes.
        num_candidates: K.
        num_targets: m.
        heights: (K,) z of each candidate's centre when it stands on the table, m.
        radius: of the circle in which each candidate fits, m.
        arrange: draws the places: `arc_places` or `grid_places`.
    """
    target = (
        index_below(u.take(1), num_candidates)
        if num_targets == 1
        else permutation(u.take(num_candidates))[:, :num_targets].contiguous()
    )
    places = arrange(u.take(3 * num_candidates), num_candidates, radius)
    home = torch.cat([places, heights.to(places).expand(u.count, -1)[..., None]], dim=-1).to(torch.float32)
    b, device = u.count, home.device
    return ChoiceState(
        target=target,
        home=home,
        held=torch.zeros(b, num_candidates, dtype=torch.int64, device=device),
        counted=torch.zeros(b, num_candidates, dtype=torch.bool, device=device),
        mistaken=torch.zeros(b, dtype=torch.bool, device=device),
    )


def draws_of_choice(num_candidates: int, num_targets: int) -> int:
    """Number of uniforms that `sample_choice` takes."""
    return (1 if num_targets == 1 else num_candidates) + 3 * num_candidates


def choice_layout(
    s: ChoiceState, elapsed: Tensor, phase: Tensor, cue_steps_per_item: int, cue_order: CueOrder
) -> tuple[Tensor, Tensor]:
    """The targets during the cue, nothing during the delay, then all candidates at home.

    Args:
        s: the episodes.
        elapsed, phase: (N,) t and the phase at t.
        cue_steps_per_item: control steps for which each cue is on view.
        cue_order: "simultaneous": all targets side by side, the first at the left (+y); "sequential": each alone in the
            middle of the table, one after another.

    Returns:
        (N, K) bool, visible; (N, K, 7) poses.
    """
    m = s.target.shape[1]
    response = (phase == RESPONSE)[:, None]
    cue_place = s.home.clone()
    cue_place[..., 0], cue_place[..., 1] = CUE_PLACE
    if cue_order == "simultaneous":
        now = s.is_target
        cue_place[..., 1] += CUE_SPACING * ((m - 1) / 2 - s.rank)
    else:
        turn = torch.div(elapsed, cue_steps_per_item, rounding_mode="floor").clamp(max=m - 1)
        now = one_hot(s.target.gather(1, turn[:, None].to(torch.int64))[:, 0], s.home.shape[1]).to(torch.bool)
    visible = ((phase == CUE)[:, None] & now) | response
    return visible, upright(torch.where(response[..., None], s.home, cue_place))


def update_choice(s: ChoiceState, touching: Tensor, responding: Tensor, ordered: bool) -> None:
    """Record the touches (N, K) bool of a step in ``s``."""
    # a tap of an object that is no target tells nothing, but taps do not stay free
    s.held, new = hold_touches(s.held, touching, responding, sums=~s.is_target)
    s.counted, mistake = record_touches(new, s.counted, s.is_target, s.rank if ordered else None)
    s.mistaken = s.mistaken | mistake


def next_target(s: ChoiceState, distance: Tensor, ordered: bool) -> Tensor:
    """(N,) int64: the candidate to touch next.

    If the order matters, the first target that was not touched; otherwise the nearest such target by ``distance``
    (N, K). Once all were touched, the last target in order, or the nearest of all.
    """
    if ordered:
        done = s.counted.sum(dim=1, keepdim=True).clamp(max=s.target.shape[1] - 1)
        return s.target.gather(1, done)[:, 0]
    missing = torch.where(s.complete[:, None], s.is_target, s.is_target & ~s.counted)
    return torch.where(missing, distance, torch.inf).argmin(dim=1)


def nearest_others(distance: Tensor, target: Tensor) -> Tensor:
    """The candidates other than ``target`` (N,) that are nearest by ``distance`` (N, K): (N, M) int64, the nearest first.

    M is `NEAR_OTHERS`, or K - 1 where there are not so many.
    """
    others = distance.scatter(1, target[:, None], torch.inf)
    return others.topk(min(NEAR_OTHERS, distance.shape[1] - 1), dim=1, largest=False).indices


_OLD_CUE_ORDERS: dict[str, CueOrder] = {"together": "simultaneous", "in turn": "sequential"}


@renamed_attributes({"offered": "num_candidates", "wanted": "num_targets", "each": "cue_steps_per_item"})
class ChoiceTask(MemoryEnv[ChoiceState]):
    """See ``num_targets`` objects, then touch the same ones among ``num_candidates``.

    A family derives from this class, or from `RememberTask` or `RecallColors` in `mikasa_robo.tasks`, and defines what a
    candidate is (`build_candidate`).

    Dense reward: ``reach`` pays for nearness to the next target, ``touch`` for how long it has been touched, with several
    targets ``progress`` for each one that was touched, once, and ``still`` for an arm at rest once all were touched. With
    several targets the hand should come to the top of the next one from above, over the other candidates
    (`rewards.reach_over`), with closed fingers that point down: a hand that is lower, tilted, or open touches others
    beside it. And it should let go of a target that was touched: a hand that still touches one earns no ``reach``.

    Args:
        num_candidates: number of candidates in the response phase, K, at least 1; in an arc at most 18 (`arc_places`).
        num_targets: number of candidates to touch, m, 1 to K.
        cue_steps: control steps for which each cue is on view: with ``cue_order = "sequential"`` the cue phase lasts
            ``num_targets * cue_steps``.
        **kwargs: see `MemoryEnv`.
    """

    cue_order: ClassVar[CueOrder] = "simultaneous"
    """How the targets are shown during the cue."""
    ordered: ClassVar[bool] = False
    """Whether the targets have to be touched in the order shown."""
    grid: ClassVar[bool] = False
    """Whether the candidates stand in a square grid (`grid_places`) or in an arc (`arc_places`)."""
    cue_bodies: ClassVar[bool] = True
    radius: ClassVar[float] = 0.02 * 2**0.5
    """Radius of the circle in which each candidate fits, seen from above, m."""
    more_draws: int = 0
    """Number of uniforms that `sample` takes after those of `sample_choice`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for old, new in (("shown", "cue_order"), ("block", "grid")):
            if old in vars(cls):
                warnings.warn(
                    f"{cls.__name__}.{old} is deprecated: rename it to {new}", DeprecationWarning, stacklevel=2
                )
                value = vars(cls)[old]
                setattr(cls, new, _OLD_CUE_ORDERS.get(value, value))

    def __init__(self, *args: Any, num_candidates: int, num_targets: int, cue_steps: int, **kwargs: Any) -> None:
        self.num_candidates = num_candidates = whole_number("num_candidates", num_candidates, 1)
        self.num_targets = num_targets = whole_number("num_targets", num_targets, 1, num_candidates)
        self.oracle_is_set = num_targets > 1 and not self.ordered
        self.cue_steps_per_item = whole_number("cue_steps", cue_steps, 1, unit="control steps")
        self.draws = draws_of_choice(num_candidates, num_targets) + self.more_draws  # type: ignore[misc]
        self.reward_scales = {"reach": 1.0, "touch": 1.0, "still": 0.5}  # type: ignore[misc]
        self.needed_response = NEEDED_RESPONSE + NEEDED_FOR_ANOTHER * (num_targets - 1)  # type: ignore[misc]
        if num_targets > 1:
            # It pays once: if every step paid for what was touched before, a mistake would lose all of that, and PPO would
            # learn to touch nothing more. And it pays more than a hand that hovers near a target earns in many steps.
            self.reward_scales["progress"] = PROGRESS_SCALE
            self.paid_once = frozenset({"progress"})  # type: ignore[misc]
        if self.cue_order == "sequential":
            cue_steps = self.cue_steps_per_item * num_targets  # as Python's integers, which cannot overflow
        self._newly_counted = torch.zeros(0, dtype=torch.bool)  # (N,), a further target was touched in the last step
        super().__init__(*args, cue_steps=cue_steps, **kwargs)

    @abstractmethod
    def build_candidate(self, index: int) -> Actor:
        """Build candidate ``index``, a dynamic actor that stands on the table without rotation."""

    def heights(self) -> Sequence[float]:
        """z of the centre of each of the K candidates when it stands on the table, m."""
        return [0.02] * self.num_candidates

    def build(self) -> list[Actor]:
        return [self.build_candidate(index) for index in range(self.num_candidates)]

    def sample(self, u: Uniforms) -> ChoiceState:
        arrange = grid_places if self.grid else arc_places
        heights = constant(tuple(self.heights()), torch.float32, u.device)
        return sample_choice(u, self.num_candidates, self.num_targets, heights, self.radius, arrange)

    def layout(self, s: ChoiceState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        return choice_layout(s, elapsed, self.timeline.phase(elapsed), self.cue_steps_per_item, self.cue_order)

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        super()._initialize_episode(env_idx, options)
        if len(self._newly_counted) != self.num_envs:
            self._newly_counted = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._newly_counted[env_idx] = False

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Tensor | None = None) -> None:
        super().set_state_dict(state_dict, env_idx)
        self._newly_counted[slice(None) if env_idx is None else self._checked_env_idx(env_idx)] = False

    def update_state(self, s: ChoiceState, data: StepData, touching: Tensor) -> None:
        before = s.counted
        update_choice(s, touching.any(dim=1), data.responding, self.ordered)
        self._newly_counted = (s.counted & ~before).any(dim=1)

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

    def _to_next(self, s: ChoiceState, data: StepData) -> tuple[Tensor, Tensor, Tensor]:
        """The next target (N,), the vector from the TCP to it (N, 3) and those to all candidates (N, K, 3), m."""
        ways = data.objects[..., :3] - data.tcp[:, None, :3]
        target = next_target(s, length(ways), self.ordered)
        return target, ways.gather(1, target[:, None, None].expand(-1, 1, 3))[:, 0], ways

    def reward_terms(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
        target, way, _ = self._to_next(s, data)
        if self.num_targets > 1:
            # to the top: at the middle of a target, fingertips and palm are low enough to touch others
            up = s.home[..., 2].gather(1, target[:, None])[:, 0]
            top = torch.stack([way[:, 0], way[:, 1], way[:, 2] + up], dim=1)
            near = rewards.reach_over(top) * pointed(data)
            # A hand that does not let go of the last target drags it along, over to the next one.
            lets_go = ~(s.counted & (s.held > 0)).any(dim=1)
            near = near * lets_go.to(near.dtype)
        else:
            near = rewards.closeness(length(way))
        held = s.held.gather(1, target[:, None])[:, 0].clamp(min=0) / HOLD_STEPS
        one = torch.ones_like(near)
        terms = {
            "reach": torch.where(s.complete, one, near),
            "touch": torch.where(s.complete, one, held.to(near.dtype)),
            "still": rewards.still_when(s.complete, data.joint_speed, data.responding),
        }
        if self.num_targets > 1:
            terms["progress"] = self._newly_counted.to(near.dtype)
        return terms

    def oracle(self, s: ChoiceState) -> Tensor:
        return s.target.clone()

    def state_features(self, s: ChoiceState, data: StepData) -> dict[str, Tensor]:
        target, way, ways = self._to_next(s, data)
        features = {
            "target": s.is_target,
            "tcp_to_target": way * data.responding[:, None],
            "held": s.held / HOLD_STEPS,
            "counted": s.counted,
        }
        if self.num_targets > 1:
            features["next"] = one_hot(target, self.num_candidates) * data.responding[:, None]
            features["touches"] = s.counted.sum(dim=1) / self.num_targets
            # What the hand must not touch on its way. It would take an MLP long to find out from all poses.
            others = nearest_others(length(ways), target)
            acting = data.responding[:, None]
            features["tcp_to_others"] = ways.gather(1, others[..., None].expand(-1, -1, 3)) * acting[..., None]
            features["others_are_targets"] = s.is_target.gather(1, others) & acting
            features["others_counted"] = s.counted.gather(1, others) & acting
        return features


def pointed(data: StepData) -> Tensor:
    """(N,) in [0, 1]: 1 for closed fingers that point down, half of it for open ones, and 0 for a hand that is tilted."""
    return rewards.pointing_down(data.tcp) * (1 - (data.fingers / FINGER_OPEN).clamp(0, 1) / 2)


def names_of(indices: Tensor, names: Sequence[str]) -> list[str]:
    """For each environment the names of ``indices`` (N, m), separated by commas."""
    return [", ".join(names[index] for index in row) for row in indices.tolist()]


__getattr__ = deprecated_names(
    __name__,
    {
        "RecallTask": "mikasa_robo.tasks.colored_cubes:RecallColors",
        "RememberTask": "mikasa_robo.tasks.remember_task:RememberTask",
        "Shown": "CueOrder",
        "advance_choice": "update_choice",
        "paced_response": "mikasa_robo.catalog:recall_response_steps",
    },
)
