"""Terms of dense rewards, as functions of (N, …) tensors with values in [0, 1], and how they are added up.

A reward does not depend, to the last bit, on the number of environments. Vector code may round a transcendental function
or a reduction (``tanh``, ``norm``, ``sum``) otherwise than the code for the elements that do not fill a vector. So terms are
made of operations alone that IEEE 754 defines to the bit, element by element, and of a look-up in a table.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.checks import number

SUCCESS_FACTOR = 2.0
"""A success pays this many times what all terms can pay together in a step."""
IDLE_FACTOR = 0.2
"""What `still_when` pays of its term for rest before the response phase."""
SMALLEST_SCALE, LARGEST_SCALE = 1e-6, 1e6
"""Range of a weight in `override_scales`, within which float32 rewards neither overflow nor vanish."""
BESIDE, ABOVE = 0.05, 0.08
"""A hand that is farther than `BESIDE` from its target in x and y should be `ABOVE` it, over the target's neighbours, m."""
UPRIGHT, TILTED = 0.965, 0.5
"""Cosines of the angles from pointing down up to which a hand counts as upright, and from which it does not at all."""
LOWER = 3.0
"""Metres of distance for each metre by which the hand is lower than that."""
SLACK = 0.02
"""A hand lower than that by `ABOVE` is at the height of its target; `reach_over` still pays a little for so much less, m."""


def reach(position: Tensor, target: Tensor, sharpness: float = 5.0) -> Tensor:
    """1 - tanh(sharpness · d), (N,), for the distance d between ``position`` and ``target``, (N, 3) each, m."""
    return closeness(tensors.length(position - target), sharpness)


_STEPS, _END = 2048, 10
"""Steps of the table per unit, and where it ends: tanh(10) is 1 in float32."""


@functools.cache
def _lines(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(·, 2) lines that meet 1 - tanh at both ends of a step, as value at 0 and slope per step; the table's end, ()."""
    ends = [1 - math.tanh(k / _STEPS) for k in range(_STEPS * _END)] + [0.0, 0.0]  # 0 from the end on
    lines = [(a - (b - a) * k, b - a) for k, (a, b) in enumerate(itertools.pairwise(ends))]
    end = torch.tensor(_STEPS * _END, dtype=dtype, device=device)
    return torch.tensor(lines, dtype=dtype, device=device), end


def closeness(distance: Tensor, sharpness: float = 5.0) -> Tensor:
    """1 - tanh(sharpness · distance), (N,), to 2e-7: exactly 1 at distance 0, falling to exactly 0. NaN is infinitely far.

    It comes from a table of straight lines: see the module's docstring.
    """
    lines, end = _lines(distance.dtype, distance.device)
    steps = torch.fmin(distance * (sharpness * _STEPS), end)
    value, slope = torch.nn.functional.embedding(steps.to(torch.int64), lines).unbind(-1)
    return value + slope * steps


def reach_from_above(way: Tensor, sharpness: float = 5.0) -> Tensor:
    """`closeness` to a target among others that must not be touched; ``way`` (N, 3), m, leads from the TCP to it.

    `reach` pays for the straight way, which leads through the target's neighbours. Here the TCP should be at least as
    high as a profile: `ABOVE` the target where it is farther than `BESIDE` from it in x and y, falling linearly to 0 at
    half of `BESIDE`. How much lower the TCP is counts as distance too, `LOWER` times.
    """
    return closeness(tensors.length(way) + LOWER * _too_low(way), sharpness)


def reach_over(way: Tensor, sharpness: float = 5.0) -> Tensor:
    """`closeness` to a target, times how well the TCP keeps to the profile of `reach_from_above`; ``way`` as there.

    A TCP below the profile earns less in proportion, and nothing from `ABOVE` + `SLACK` below it on. So a hand that has
    touched one target must rise before it earns anything on its way to the next one. `reach_from_above` pays such a hand
    for moving sideways too, through the neighbours.
    """
    return closeness(tensors.length(way), sharpness) * (1 - _too_low(way) / (ABOVE + SLACK)).clamp(min=0)


def _too_low(way: Tensor) -> Tensor:
    """How much lower the TCP is than the profile of `reach_from_above`, (N,), m."""
    beside = tensors.length(way[:, :2])
    height = ABOVE * (2 * beside / BESIDE - 1).clamp(0, 1)
    return (height + way[:, 2]).clamp(min=0)


def pointing_down(tcp: Tensor) -> Tensor:
    """(N,) in [0, 1] for the pose of the TCP (N, 7): 1 where the hand points down to within 15 degrees, 0 from 60 on."""
    x, y = tcp[:, 4], tcp[:, 5]
    cosine = 2 * (x * x + y * y) - 1  # of the angle between the hand's z axis and down
    return ((cosine - TILTED) / (UPRIGHT - TILTED)).clamp(0, 1)


def progress(left: Tensor, start: float = 0.1) -> Tensor:
    """Progress along a way, (N,): 1 at its end, ``start`` at its beginning, and falling ever more slowly beyond that.

    It is flat nowhere. A policy that has moved something the wrong way, or too far, must earn by moving it back.

    Args:
        left: (N,) how much of the way is left, at least 0; 1 where nothing has been done.
        start: the value there, in (0, 1).
    """
    return (1 - (1 - start) * left.clamp(max=1)) / left.clamp(min=1)


def still(joint_speed: Tensor, sharpness: float = 2.0) -> Tensor:
    """1 - tanh(sharpness · speed), (N,), for the largest joint speed (N,), rad/s: 1 for an arm at rest."""
    return closeness(joint_speed, sharpness)


def still_when(wanted: Tensor, joint_speed: Tensor, responding: Tensor | None = None) -> Tensor:
    """The ``still`` term (N,) of a task: `still` where success wants rest, and nothing where there is something left to do.

    With the term everywhere, an arm that never moves would earn as much from resting as one that has reached its goal, and
    would lose it by moving.

    Args:
        wanted: (N,) bool, where the arm should rest: once all but rest is done.
        joint_speed: (N,) largest joint speed, rad/s.
        responding: (N,) bool, in the response phase. Before it the term pays `IDLE_FACTOR` of `still`: rest is harmless
            there, but an arm that uses the time to get ready must not lose by it. None: as if in the response phase.
    """
    term = still(joint_speed)
    paid = torch.where(wanted, term, 0.0)
    return paid if responding is None else torch.where(responding, paid, IDLE_FACTOR * term)


def override_scales(declared: Mapping[str, float], override: Mapping[str, float] | None) -> dict[str, float]:
    """A task's reward scales with some of them replaced; ``declared`` stays as it is.

    Args:
        declared: the weight of each term.
        override: new weights of some terms, from 0 to `LARGEST_SCALE`; None: no change.

    Raises:
        ValueError: ``override`` is not a mapping, names an unknown term, or holds anything but such numbers; or no term is
            left with a weight of at least `SMALLEST_SCALE`.
    """
    if override is None:
        return dict(declared)
    known = ", ".join(declared)
    if not isinstance(override, Mapping):
        raise ValueError(f"reward_scales={override!r} must map names of terms to weights; this task's terms: {known}")
    unknown = [name for name in override if name not in declared]
    if unknown:
        raise ValueError(
            f"reward_scales: {', '.join(map(repr, unknown))} is not a term of this task's reward; use any of {known}"
        )
    try:
        given = {name: number(f"reward_scales[{name!r}]", v, 0, LARGEST_SCALE) for name, v in override.items()}
    except ValueError as error:
        raise ValueError(f"{error}; this task's terms: {known}") from None
    scales = {**declared, **given}
    if max(scales.values()) < SMALLEST_SCALE:
        raise ValueError(
            f"reward_scales={override!r} leaves no term with a weight of at least {SMALLEST_SCALE:g}: raise one of {known}"
        )
    return scales


def weigh(
    terms: Mapping[str, Tensor], scales: Mapping[str, float], success: Tensor, fail: Tensor, responding: Tensor
) -> dict[str, Tensor]:
    """The weighted terms of a dense reward. The reward is their sum, see `total`.

    In the response phase every term pays its value times its scale. Before it only ``still`` does. A success pays
    `maximum` in place of all terms. A failure pays nothing.

    Args:
        terms: (N,) each, in [0, 1].
        scales: the weight of each term.
        success, fail, responding: (N,) bool.

    Returns:
        (N,) float32 each: the terms, and ``success``.

    Raises:
        TypeError: ``success`` or ``fail`` is not bool.
        ValueError: ``terms`` and ``scales`` have different names, or a term has another shape than ``success``.
    """
    for name, flag in (("success", success), ("fail", fail)):
        if flag.dtype != torch.bool:  # ~ of whole numbers is no negation
            raise TypeError(f"{name} of `outcome` is {flag.dtype}: return (N,) bool")
    if set(terms) != set(scales):
        raise ValueError(f"reward terms {sorted(terms)} and reward_scales {sorted(scales)} must have the same names")
    weighted = {}
    for name, scale in scales.items():
        pays = ~success & ~fail
        if name != "still":
            pays = pays & responding
        weighted[name] = scale * terms[name].to(torch.float32) * pays
        if weighted[name].shape != responding.shape:
            raise ValueError(
                f"the reward term {name!r} has the shape {tuple(terms[name].shape)}, with success {tuple(success.shape)} "
                f"and fail {tuple(fail.shape)}: each must be {tuple(responding.shape)}, a number for each environment"
            )
    weighted["success"] = maximum(scales) * success.to(torch.float32)
    return weighted


def maximum(scales: Mapping[str, float]) -> float:
    """The largest dense reward of a step, paid exactly at success."""
    return SUCCESS_FACTOR * sum(scales.values())


def total(weighted: Mapping[str, Tensor]) -> Tensor:
    """Sum of weighted terms, (N,)."""
    return tensors.total(list(weighted.values()))


def normalized(reward: Tensor, scales: Mapping[str, float]) -> Tensor:
    """``reward`` (N,) divided by its maximum: in [0, 1], and exactly 1 at success."""
    # by a tensor: CUDA divides by a number as a product with its reciprocal, which may miss 1 by a bit
    return reward / torch.full_like(reward, maximum(scales))
