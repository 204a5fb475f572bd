"""Saving and restoring the state of a task beside that of the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.sim.call_arguments import checked_options
from mikasa_robo.sim.controllers import leaf_controllers
from mikasa_robo.workers.nested import map_leaves

from . import saving
from .hooks import TaskHooks, TaskState
from .phases import Timeline
from .seeds import Seed
from .tabletop import TabletopEnv
from .visibility import ObjectLayout


class SavedTask(TabletopEnv, TaskHooks[TaskState]):
    """What `MemoryEnv` adds to ManiSkill's saved states: the task's state and t."""

    timeline: Timeline
    object_layout: ObjectLayout
    _task_state: TaskState | None
    _speeds: Tensor
    _action: Tensor

    def reset(self, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; see `SeededEnv.reset`.

        With ``options={"reset_to_env_states": {"env_states": …}}`` they begin in saved states (rows of b), none is drawn,
        and the observation is made from the state: an ``obs`` beside it is not read.

        Raises:
            KeyError, TypeError, ValueError: also where a state cannot be restored. Nothing has changed.
        """
        options = checked_options(options, self.reset_options)
        if "reset_to_env_states" in options:
            self._require_open()
            rows = self.num_envs if "env_idx" not in options else len(self._checked_env_idx(options["env_idx"]))
            saved = options["reset_to_env_states"]["env_states"]
            state = saving.checked_state(saved, *self.state_form(), rows, self.device, whole=True)
            options["reset_to_env_states"] = {"env_states": state}
        return super().reset(seed, options)

    def get_state_dict(self) -> dict[str, Any]:
        """The state of the simulation and the task, including t. A restored episode continues as the saved one would.

        Free motion is the same up to rounding. Where something is held, contacts begin anew, and the two may drift apart.
        ``info["reward_terms"]["progress"]`` of the present step is not saved: it is 0 after the state was restored.
        """
        task = saving.save_task(self._task_state, self._elapsed_steps, self._speeds)
        # ManiSkill gives the controllers' own tensors, which they write into.
        state = super().get_state_dict()
        if "controller" in state:
            state["controller"] = map_leaves(torch.clone, state["controller"])
        return {**state, "task": task}

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Tensor | None = None) -> None:
        """Restores what `get_state_dict` saved, in all environments or (rows of b) in ``env_idx`` (b,).

        Takes tensors or arrays. The last action becomes zeros, and until the next one the robots stay where they are, or go
        on to the saved targets of their joints. On a CPU, an environment already in its state is otherwise left alone.

        Raises:
            KeyError, TypeError, ValueError: the state cannot be restored; the message names what is wrong. Nothing has
                changed.
        """
        index = torch.arange(self.num_envs, device=self.device) if env_idx is None else self._checked_env_idx(env_idx)
        now, limits = self.state_form()
        index, saved = saving.in_order(index, saving.checked_state(state_dict, now, limits, len(index), self.device))
        self._action[index] = 0.0
        rows, changed = index, saved
        if not tensors.reads_wait(self.device):
            rows, changed = saving.changes(index, saved, now)
        if len(rows):
            super().set_state_dict(changed, rows if len(rows) < self.num_envs else None)
        if "task" in changed:
            saving.load_task(changed["task"], self._task_state, self._elapsed_steps, self._speeds, rows)
            self._show_cues()
        if "articulations" in saved:
            self._restart_controllers(index, saved.get("controller"))

    def state_form(self) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
        """What `saving.checked_state` compares a saved state with: the present one, and the limits of whole numbers."""
        return self.get_state_dict(), saving.state_limits(self._task_state)

    def set_state(self, flat: Any, env_idx: Tensor | None = None) -> None:
        """Restores the vector (N, D) that ``get_state`` gives."""
        self.set_state_dict(flat, env_idx)

    def _restart_controllers(self, env_idx: Tensor, saved: Mapping[str, Any] | None) -> None:
        """Lets controllers and motors begin from the joints' present positions, or from the saved targets (b, …).

        Otherwise they would go on to what they were told before the state was restored.
        """
        scene, controller = self.scene, self.agent.controller
        mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        mask[env_idx] = True
        before, scene._reset_mask = scene._reset_mask, mask
        try:
            controller.reset()
        finally:
            scene._reset_mask = before
        if saved is not None:
            kept = self.agent.get_controller_state()
            saving.write_rows(kept, saved, env_idx)
            self.agent.set_controller_state(kept)
        targets = self.agent.robot.get_qpos().clone()
        for leaf in leaf_controllers([controller]):
            if leaf.sets_target_qpos:
                targets[:, leaf.active_joint_indices] = leaf._target_qpos
        self._set_drive_targets(env_idx, targets[env_idx])
        if self._resetting:
            self._keep_controllers(mask)

    def _show_cues(self) -> None:
        """Shows the cue bodies that belong to the restored state: saved states hold the task's objects only.

        States of earlier versions, in which the objects themselves were shown as cues, so become states of this one.
        """
        if not self.cue_bodies:
            return
        visible, home = self.layout(self._task_state, self._elapsed_steps)  # type: ignore[arg-type]
        in_cue = ~self.timeline.responding(self._elapsed_steps)
        self.object_layout.apply(visible & in_cue[:, None], visible, home, in_cue)
