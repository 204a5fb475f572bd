"""Rows that a reset applies although they have not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np


class ForcedRows:
    """Keeps, for each group of buffers, the rows that the next ``gpu_apply_*`` sets whether or not they have changed.

    A reset sets everything anew, and PhysX does not give the last bit back when a pose is set to what it was. A scene that
    is being reset therefore matches the reset of a single environment only if each of its rows is set, exactly once.

    Args:
        scene_of_row: for each group the scene of every row.
        num_scenes: number of scenes.
    """

    def __init__(self, scene_of_row: Mapping[str, np.ndarray], num_scenes: int) -> None:
        self._scene_of_row = scene_of_row
        self._num_scenes = num_scenes
        # a stack: the last one is in force, those before it belong to the enclosing blocks
        self._masks = [self._rows_of([])]

    def _rows_of(self, scenes: Iterable[int]) -> dict[str, np.ndarray]:
        chosen = np.zeros(self._num_scenes, dtype=bool)
        chosen[np.asarray(list(scenes), dtype=np.int64)] = True
        return {group: chosen[scene] for group, scene in self._scene_of_row.items()}

    @contextlib.contextmanager
    def scenes(self, scenes: Iterable[int]) -> Iterator[None]:
        """Within it, the rows of these scenes are forced, each until it is applied.

        Blocks may be nested: the inner one decides, and afterwards the outer one goes on with the rows that the inner one
        has not applied.
        """
        self._masks.append(self._rows_of(scenes))
        try:
            yield
        finally:
            self._masks.pop()

    def mask(self, group: str) -> np.ndarray:
        """(rows,) bool: the rows that are forced now."""
        return self._masks[-1][group]

    def applied(self, group: str, rows: np.ndarray) -> None:
        """Notes that these rows were applied as a whole."""
        for masks in self._masks:
            masks[group][rows] = False
