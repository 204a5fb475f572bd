"""A policy that reads the target from the dense reward that it is fed, in the choice tasks.

An agent whose input contains its last reward (RL², arXiv 1611.02779, and most of meta-RL) can do the same. ``reach``, a term
of the dense reward, is a function of the distance to the target, so that hovering tells which candidate that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.core import rewards
from mikasa_robo.core.choice import ChoiceTask
from mikasa_robo.core.phases import RESPONSE

from .policies import Policy, UnfitPolicyError
from .skill import Skill, View, look
from .touching import TouchSkill

FORGET = 0.95
"""What an error of an earlier step counts for against one of the next, so that later, closer readings decide."""
HOVER = 0.06
"""Height above the highest object at which the hand reads the reward, m."""
READ_STEPS = 8
"""Number of steps of the response phase for which the hand only moves about and reads."""


class RewardReader(Policy):
    """Does not look at the cue: compares the dense reward that it is fed with what each candidate would pay as the target.

    It is fed the sum of ``info["reward_terms"]``, which is the reward of ``reward_mode="dense"``, and reads no term by
    itself. The parts of the reward that are the same for all candidates are known from the joint readings. It keeps the
    errors of each candidate's prediction and touches the one with the smallest, in tasks with one target.

    Args:
        skill: the `TouchSkill` of a task with one target.
        seed: of the first place that the hand goes to.

    Raises:
        UnfitPolicyError: the skill is another one, or the task has several targets.
    """

    def __init__(self, skill: Skill, seed: int = 0) -> None:
        task = skill.task
        if not isinstance(skill, TouchSkill) or not isinstance(task, ChoiceTask) or task.num_targets != 1:
            raise UnfitPolicyError(
                f"RewardReader cannot use the {type(skill).__name__} of {type(task).__name__}: the task must have a single "
                "target, to touch"
            )
        super().__init__(skill, seed)
        self._scales = dict(task.reward_scales)
        self._highest = 2 * max(task.heights())
        self._error = torch.zeros(skill.num_envs, skill.candidates, device=skill.device)
        self._age = torch.zeros(skill.num_envs, dtype=torch.int64, device=skill.device)

    def reset(self, env_idx: Tensor | None = None) -> None:
        super().reset(env_idx)
        index = slice(None) if env_idx is None else env_idx
        self._error[index], self._age[index] = 0.0, 0

    def act(self, obs: Mapping[str, Tensor], info: Mapping[str, Any]) -> Tensor:
        view, skill = look(obs, self._objects), self.skill
        responding = info["phase"] == RESPONSE
        self._age = torch.where(responding, self._age + 1, self._age)
        if "reward_terms" in info:
            self._read(view, rewards.total(info["reward_terms"]), responding)
        action = skill.act(view, self.cue(view, info), info)
        # first the hand goes to a place above the objects, and the reward on the way there is read
        there = torch.tensor([-0.03, 0.0, self._highest + HOVER], device=skill.device)
        return torch.where((self._age <= READ_STEPS)[:, None], skill.wait(view, there.tolist()), action)

    def cue(self, view: View, info: Mapping[str, Any]) -> Tensor:
        return self._error.argmin(dim=1, keepdim=True).to(torch.float32)

    def _read(self, view: View, reward: Tensor, responding: Tensor) -> None:
        """Adds what this step's reward (N,) tells against each candidate."""
        distance = torch.linalg.norm(view.position - view.tcp[:, None], dim=-1)  # (N, K)
        still = rewards.still_when(torch.zeros_like(responding), view.joint_speed)
        predicted = self._scales["reach"] * rewards.closeness(distance) + self._scales["still"] * still[:, None]
        error = (predicted - reward[:, None]).abs()
        self._error = torch.where(responding[:, None], FORGET * self._error + error, self._error)
