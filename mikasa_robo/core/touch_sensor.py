"""Contact forces between the hand and the objects of a task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils import sapien_utils
from mani_skill.utils.structs import Actor, Link
from torch import Tensor

from mikasa_robo.tensors import length

FORCE_THRESHOLD = 0.05
"""Smallest contact force that counts as a touch, N: far above solver noise, far below the weight of a 4 cm cube (0.6 N)."""


class TouchSensor:
    """Contact forces between each of L links and K objects in N environments, read with one query.

    Args:
        scene: the scene they are in.
        links: the hand, the fingers and the camera, see `TOUCH_LINKS`.
        actors: the objects that can be touched.
    """

    def __init__(self, scene: ManiSkillScene, links: Sequence[Link], actors: Sequence[Actor]) -> None:
        self._scene, self._links, self._actors = scene, list(links), list(actors)
        self._query = None
        if scene.gpu_sim_enabled:
            pairs = [
                pair for link in links for actor in actors for pair in zip(link._bodies, actor._bodies, strict=True)
            ]
            self._query = scene.px.gpu_create_contact_pair_impulse_query(pairs)

    def read(self) -> Tensor:
        """(N, L, K) magnitude of the contact force over the last physics substep, N."""
        links, actors = len(self._links), len(self._actors)
        if self._query is not None:
            self._scene.px.gpu_query_contact_pair_impulses(self._query)
            impulses = self._query.cuda_impulses.torch().clone().reshape(links, actors, -1, 3)
            return length(impulses).permute(2, 0, 1) / self._scene.timestep
        contacts = self._scene.px.get_contacts()
        impulses = torch.zeros(links, actors, 1, 3)
        objects = {actor._bodies[0].entity: k for k, actor in enumerate(self._actors)}
        # most contacts are between objects and the table; they are left out before anything is added up
        relevant = [c for c in contacts if (c.bodies[0].entity in objects) != (c.bodies[1].entity in objects)]
        if relevant:
            for i, link in enumerate(self._links):
                for k, actor in enumerate(self._actors):
                    impulse = sapien_utils.get_pairwise_contact_impulse(
                        relevant, link._bodies[0].entity, actor._bodies[0].entity
                    )
                    impulses[i, k, 0] = torch.from_numpy(impulse)
        return length(impulses).permute(2, 0, 1) / self._scene.timestep
