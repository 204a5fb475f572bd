"""Policies for tests/test_probe.py whose memory is known: an expert's skill, with a recurrent state that holds the cue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mikasa_robo.baselines.spaces import ActionLayout, Obs, State
from mikasa_robo.core.touches import HOLD_STEPS
from mikasa_robo.experts.policies import PostureMemory
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.experts.skill import History, look


@dataclass
class Certain:
    """A distribution with all its mass on one action."""

    action: Tensor

    def mode(self) -> Tensor:
        return self.action


class SkilledPolicy:
    """An expert's skill with a recurrent state: the objects that the last step of the cue showed, and how old they are.

    What it does not know it guesses, the same for a whole episode.

    Args:
        env: the batch that it acts in.
        lasts: for how many steps the state is of use.
        uses_state: whether it acts by its state; if not, it guesses, though the cue is in its state.
        hides: keep what was seen in the object, not in the state, which then stays empty.
    """

    recurrent = True
    action = ActionLayout(8)

    def __init__(self, env: Any, lasts: int = 1000, uses_state: bool = True, hides: bool = False) -> None:
        self.task: Any = env.unwrapped
        self.device = torch.device("cpu")
        self.skill = make_skill(self.task.spec.id, self.task)
        self.lasts, self.uses_state, self.hides = lasts, uses_state, hides
        self.guess = torch.rand(self.task.num_envs, self.skill.draws, generator=torch.Generator().manual_seed(3))
        self.width = self.task.single_observation_space["objects"].shape[-1]
        self.hidden = self.empty(self.task.num_envs)
        self.felt = torch.zeros(0, dtype=torch.bool)

    def empty(self, n: int) -> dict[str, Tensor]:
        return {"seen": torch.zeros(n, self.width), "age": torch.full((n, 1), -1.0)}

    def normalize(self, obs: Obs) -> Obs:
        return obs

    def initial_state(self, n: int) -> State:
        return self.empty(n)

    def info(self) -> dict[str, Tensor]:
        """What the skill wants to know beside its view: the phase, and what the hand has felt, right or wrong."""
        phase = self.task.timeline.phase(self.task.elapsed_steps)
        held = getattr(self.task.task_state, "held", None)
        if held is None:
            return {"phase": phase}
        self.felt = (held >= HOLD_STEPS) | (self.felt if bool(self.task.elapsed_steps.any()) else False)
        return {"phase": phase, "counted": self.felt, "touched": self.felt.any(dim=1)}

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Any, Any, State]:
        assert isinstance(normalized_obs, dict)
        assert isinstance(state, dict)
        t, objects = self.task.elapsed_steps, len(self.task.objects)
        if not bool(t.any()):
            self.skill.reset(torch.arange(len(t)))
            self.hidden = self.empty(len(t))
        known = self.hidden if self.hides else state
        write = (t == self.task.timeline.cue - 1)[:, None]
        age = torch.where(write, 0.0, known["age"] + (known["age"] >= 0))
        known = {"seen": torch.where(write, normalized_obs["objects"], known["seen"]), "age": age}
        valid = ((age >= 0) & (age <= self.lasts))[:, 0] & self.uses_state
        before = look({**normalized_obs, "objects": known["seen"]}, objects)
        now = look(normalized_obs, objects)
        # as if the older view, the last one of the cue, had been the last but one
        history = History(
            [before, now],
            torch.stack([valid, torch.ones_like(valid)]),
            elapsed=torch.full_like(t, self.task.timeline.cue),
        )
        action = self.skill.act(now, self.skill.from_history(history, self.guess), self.info())
        if self.hides:
            self.hidden, known = known, self.empty(len(t))
        return Certain(action), None, known


class PosturePolicy(SkilledPolicy):
    """Keeps the cue in the angle of its last joint; its recurrent state says nothing."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, hides=True)
        self.posture = PostureMemory(self.skill, seed=3)

    def step(self, normalized_obs: Obs, state: State, starts: Tensor) -> tuple[Any, Any, State]:
        assert isinstance(normalized_obs, dict)
        if not bool(self.task.elapsed_steps.any()):
            self.posture.reset()
        return Certain(self.posture.act(normalized_obs, self.info())), None, state
