"""Saving and restoring the state of a task beside that of the simulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.workers.nested import map_leaves

from . import saving
from .hooks import TaskHooks, TaskState
from .phases import Timeline
from .tabletop import TabletopEnv
from .visibility import ObjectLayout


class SavedTask(TabletopEnv, TaskHooks[TaskState]):
    """What `MemoryEnv` adds to ManiSkill's saved states: the task's state and t."""

    timeline: Timeline
    object_layout: ObjectLayout
    _task_state: TaskState | None
    _speeds: Tensor
    _action: Tensor

    def get_state_dict(self) -> dict[str, Any]:
        """The state of the simulation and the task, including t. A restored episode continues as the saved one would.

        Free motion is the same up to rounding. Where something is held, contacts begin anew, and the two may drift apart.
        """
        task = saving.save_task(self._task_state, self._elapsed_steps, self._speeds)
        # ManiSkill gives the controllers' own tensors, which they write into.
        state = super().get_state_dict()
        if "controller" in state:
            state["controller"] = map_leaves(torch.clone, state["controller"])
        return {**state, "task": task}

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Tensor | None = None) -> None:
        """Restores what `get_state_dict` saved, in all environments or (rows of b) in ``env_idx`` (b,).

        Takes tensors or arrays. The last action becomes zeros. On a CPU, an environment already in its state is left alone.
        """
        index = torch.arange(self.num_envs, device=self.device) if env_idx is None else self._checked_env_idx(env_idx)
        index, state_dict = saving.in_order(index, saving.to_tensors(state_dict, len(index), self.device))
        if "task" in state_dict:
            saving.check_task(state_dict["task"], self._task_state)  # before anything is overwritten
        self._action[index] = 0.0
        if not tensors.reads_wait(self.device):
            index, state_dict = saving.changes(index, state_dict, self.get_state_dict())
        if len(index):
            super().set_state_dict(state_dict, index if len(index) < self.num_envs else None)
        if "task" in state_dict:
            saving.load_task(state_dict["task"], self._task_state, self._elapsed_steps, self._speeds, index)
            self._show_cues()
        if "controller" in state_dict:
            kept = self.agent.get_controller_state()
            saving.write_rows(kept, state_dict["controller"], index)
            self.agent.set_controller_state(kept)

    def set_state(self, flat: Any, env_idx: Tensor | None = None) -> None:
        """Restores the vector (N, D) that ``get_state`` gives."""
        self.set_state_dict(saving.unflatten(self._init_raw_state, torch.as_tensor(flat, device=self.device)), env_idx)

    def _show_cues(self) -> None:
        """Shows the cue bodies that belong to the restored state: saved states hold the task's objects only.

        States of earlier versions, in which the objects themselves were shown as cues, so become states of this one.
        """
        if not self.cue_bodies:
            return
        visible, home = self.layout(self._task_state, self._elapsed_steps)  # type: ignore[arg-type]
        in_cue = ~self.timeline.responding(self._elapsed_steps)
        self.object_layout.apply(visible & in_cue[:, None], visible, home, in_cue)
