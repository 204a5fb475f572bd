"""Agents for ViZDoomTwoColors; they see by colour."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mikasa_base.agents.agent import Agent

__all__ = ["Memoryless", "PerfectMemory"]

Mask = npt.NDArray[np.bool_]
_LEFT, _RIGHT, _FORWARD = 1, 2, 4
_HORIZON, _MIDDLE = 33, 55.5
"""Things lie on the floor, below the horizon; of the column, a part stands above it."""
_ABOVE = 29
_COLUMN = 3
"""Fewest coloured pixels above `_ABOVE` of a column."""
_LOOK, _ROUND = 26, 40
"""Steps of a look round, and with the walk after it."""
_REACH = 0.9
"""A thing is touched if it is off the way by no more than so many times the rows from the horizon down to it."""


class _Gatherer(Agent):
    """Goes to the nearest thing that it wants and that it reaches without touching another; looks round if none is."""

    def begin(self, obs: Any) -> None:
        """Has not looked round yet."""
        self._looked = self._turn = 0

    def _go(self, wanted: Mask, avoided: Mask) -> int:
        column = (wanted | avoided)[:_ABOVE].any(axis=0)
        column = column | np.roll(column, 2) | np.roll(column, -2)
        in_the_way = (avoided | (wanted & column))[_HORIZON:]
        rows, places = np.nonzero(in_the_way)
        heights = np.arange(wanted.shape[0] - _HORIZON)[:, None]
        near = (wanted[_HORIZON:] * (heights + 1)).max(axis=0) * ~column  # (W,), larger for what is nearer
        best, best_score = -1, -np.inf
        for place in np.flatnonzero(near):
            blocked = (rows + 1 >= near[place] - 1) & (np.abs(places - place) < _REACH * rows + 2)
            score = near[place] - 0.1 * abs(place - _MIDDLE)
            if score > best_score and not blocked.any():
                best, best_score = int(place), score
        ahead = ((rows > 6) & (np.abs(places - _MIDDLE) < _REACH * rows + 2)).any()
        if best < 0:
            self._turn = _LEFT
            return _FORWARD if self._walks_off() and not ahead else _LEFT
        self._looked = 0
        off = best - _MIDDLE
        if abs(off) < 0.4 * near[best] + 3:
            self._turn = 0
            return _FORWARD
        turn = _LEFT if off < 0 else _RIGHT
        if self._turn and turn != self._turn and not ahead:
            turn = 0  # it would turn to and fro
        self._turn = turn
        return turn if ahead or (turn and abs(off) > 30) else turn | _FORWARD

    def _walks_off(self) -> bool:
        """After a look round, it walks off for a while: what is in the way may not be so from elsewhere."""
        self._looked += 1
        return self._looked % _ROUND >= _LOOK


class PerfectMemory(_Gatherer):
    """Takes the colour of the column from the first observation, and gathers the things of that colour."""

    def begin(self, obs: Any) -> None:
        """The column stands in the middle."""
        super().begin(obs)
        green, red = (mask[:_HORIZON, 46:66].sum() for mask in _colors(obs))
        self._good = int(red > green)

    def act(self, obs: Any, reward: float) -> Any:
        """To the nearest good thing, around what is bad."""
        masks = _colors(obs)
        return self._go(masks[self._good], masks[1 - self._good])


class Memoryless(_Gatherer):
    """Gathers the things of the column's colour while the column is in view, and those of either colour otherwise.

    It keeps nothing from step to step, and walks off at random.
    """

    def act(self, obs: Any, reward: float) -> Any:
        """To the nearest thing that it wants."""
        self._looked = self._turn = 0
        green, red = _colors(obs)
        greens, reds = green[:_ABOVE].sum(), red[:_ABOVE].sum()
        if max(greens, reds) < _COLUMN:
            return self._go(green | red, np.zeros_like(red))
        return self._go(green, red) if greens > reds else self._go(red, green)

    def _walks_off(self) -> bool:
        return bool(self.rng.random() >= _LOOK / _ROUND)


def _colors(obs: Any) -> tuple[Mask, Mask]:
    """Where it is green, and where red."""
    red, green, blue = (obs[..., i].astype(float) for i in range(3))
    is_green = (green > 1.4 * red) & (green > 1.4 * blue) & (green > 30)
    return is_green, (red > 1.8 * green) & (red > 1.8 * blue) & (red > 40)
