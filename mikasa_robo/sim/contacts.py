"""Contact impulses of N scenes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sapien.physx as physx
import torch

from .buffers import CpuArray
from .rows import RowLayout
from .strictness import Strictness

_Pair = tuple[Any, Any]
"""A body and its partner; None stands for all other bodies."""


@dataclass(eq=False)
class ContactQuery:
    """Contact impulses over the last substep, (rows, 3) N·s, filled by the system on request.

    A row is the impulse on one body, from a given partner or (partner None) from all bodies together.
    """

    rows: list[dict[_Pair, list[int]]]  # for each scene, the rows that a pair fills
    cuda_impulses: CpuArray


class ContactReader:
    """Finds the contacts that some query asks about and adds up their impulses.

    Most contacts are of objects with the table. SAPIEN makes a Python object for each, so the contacts of a scene are
    sorted only once after a step, and only those of pairs that a query names are kept and looked into. Contacts that are
    left out add exactly nothing to any answer.

    Args:
        layout: which body is in which scene.
        systems: the PhysX system of each scene; another one may take its place in this list.
        strictness: told when the answer of a query is read.
    """

    def __init__(self, layout: RowLayout, systems: list[physx.PhysxCpuSystem], strictness: Strictness) -> None:
        self._layout, self._systems, self._strictness = layout, systems, strictness
        # the two bodies of a contact, in SAPIEN's order: the pairs that it counts for, with the sign of its impulse
        self._pairs: dict[_Pair, list[tuple[_Pair, int]]] = {}
        # bodies whose contacts count whatever the partner is
        self._bodies: set[Any] = set()
        self._found: list[dict[_Pair, list[tuple[physx.PhysxContact, int]]] | None] = [None] * len(self._systems)

    def create_query(self, pairs: Sequence[_Pair]) -> ContactQuery:
        """A query for the impulse on the first body of each pair, by the second or (None) by all others together."""
        rows: list[dict[_Pair, list[int]]] = [{} for _ in self._systems]
        for row, pair in enumerate(pairs):
            body, partner = pair
            rows[self._layout.scene_of(body)].setdefault(pair, []).append(row)
            if partner is None:
                self._bodies.add(body)
            elif (pair, 1) not in (known := self._pairs.setdefault(pair, [])):
                known.append((pair, 1))
                self._pairs.setdefault((partner, body), []).append((pair, -1))
        self.forget()
        return ContactQuery(rows, CpuArray(self._strictness, "cuda_impulses", torch.zeros(len(pairs), 3)))

    def forget(self, scenes: Iterable[int] | None = None) -> None:
        """Called when the contacts of these scenes (None: all) change, or what is asked about."""
        for scene in range(len(self._found)) if scenes is None else scenes:
            self._found[scene] = None

    def read(self, scene: int) -> None:
        """Reads the contacts of one scene now. Right after it was stepped this is several times faster than later."""
        if self._pairs or self._bodies:
            self._found[scene] = self._find(scene)

    def _find(self, scene: int) -> dict[_Pair, list[tuple[physx.PhysxContact, int]]]:
        found: dict[_Pair, list[tuple[physx.PhysxContact, int]]] = {}
        pairs, bodies = self._pairs, self._bodies
        for contact in self._systems[scene].get_contacts():
            first, second = contact.bodies
            for pair, sign in pairs.get((first, second), ()):
                found.setdefault(pair, []).append((contact, sign))
            if bodies:
                if first in bodies:
                    found.setdefault((first, None), []).append((contact, 1))
                if second in bodies:
                    found.setdefault((second, None), []).append((contact, -1))
        return found

    def fill(self, query: ContactQuery) -> None:
        """Writes the impulses of the last substep into the query's buffer."""
        impulses = query.cuda_impulses.torch().numpy()
        impulses.fill(0)
        for scene, found in enumerate(self._found):
            if found is None:
                found = self._found[scene] = self._find(scene)
            if not found:
                continue
            for pair, contacts in found.items():
                rows = query.rows[scene].get(pair)
                if rows:
                    impulses[rows] = _total_impulse(contacts)


def _total_impulse(contacts: list[tuple[physx.PhysxContact, int]]) -> np.ndarray:
    """(3,) N·s, added up in ManiSkill's order and precision, so that the sum is the same to the last bit."""
    total = np.zeros(3)
    for contact, sign in contacts:
        total += np.sum([point.impulse for point in contact.points], axis=0) * sign
    return total
