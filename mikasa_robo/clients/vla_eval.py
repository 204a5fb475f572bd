"""The robot tasks as a benchmark of vla-eval, the evaluation harness for vision-language-action models.

    benchmarks:
      - benchmark: "mikasa_robo.clients.vla_eval:MikasaBenchmark"
        episodes_per_task: 100
        params: {tasks: ["RememberColor3-v0"]}

Needs ``pip install vla-eval``; it was tried with 0.8.0. docs/lerobot.md shows a whole configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import GRIPPER_CLOSE_NEG, IMAGE_RGB, LANGUAGE, DimSpec

from mikasa_robo.data.seeds import EVALUATION_SEEDS
from mikasa_robo.sim.backend import BATCHED

from .lerobot import LeRobotVectorEnv, checked_obs, task_ids

__all__ = ["FIRST_SEED", "MikasaBenchmark"]

FIRST_SEED = EVALUATION_SEEDS.start
"""Episode k of each task has the seed FIRST_SEED + k, as in `mikasa eval`."""
ARM_JOINTS = 7
OPEN = 1.0
CONTROL_MODE = "pd_joint_delta_pos"
"""What `MikasaBenchmark.get_action_spec` describes."""


class MikasaBenchmark(StepBenchmark):
    """One episode at a time of the tasks that ``tasks`` names.

    Observation: ``images``, (H, W, 3) uint8 by camera; ``state`` (25,) float32, the joints' positions and velocities and the
    pose of the tool, as LeRobot's datasets of `mikasa collect` have them; ``task_description``, the task's instruction; and
    the other parts of ``obs`` under their names, such as ``prompt`` where the task has one.
    Action: ``actions`` (8,) in [-1, 1]: seven joint deltas, ±1 is ±0.1 rad in a control step (20 Hz), and the gripper, -1
    closed to 1 open.
    Result: ``success``, whether there ever was one; ``success_at_end``; ``fail``, whether there was a mistake; ``return``.

    Args:
        tasks: IDs, such as "RememberColor3-v0"; None for all.
        obs: parts of the observation, see `LeRobotVectorEnv`; with images and joints.
        first_seed: episode k of each task has the seed ``first_seed + k``. The default is that of `mikasa eval`.
        env_kwargs: arguments of the tasks, such as ``{"arm": "held"}``.

    Raises:
        ValueError: there is no such task, ``obs`` has no images or no joints, or ``env_kwargs`` name another control mode.
    """

    _ALL_RECORD_FIELDS = frozenset({"reward", "done", "success", "fail"})
    render_backends: ClassVar[frozenset[str]] = frozenset({"gpu", "cpu"})
    _backends: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def configure_render(cls, mode: str) -> dict[str, str]:
        """With "cpu", simulate and render on the CPU. Nothing in the process's environment has to be set."""
        cls._backends = {"sim_backend": BATCHED, "render_backend": "cpu"} if mode == "cpu" else {}
        return {}

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        obs: str = "rgb+joints",
        first_seed: int = FIRST_SEED,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        parts = checked_obs(obs).split("+")
        if not {"rgb", "joints"} <= {part.strip() for part in parts}:
            raise ValueError(f"obs={obs!r}: give 'rgb+joints', or more parts; models get images and the robot's joints")
        control_mode = (env_kwargs or {}).get("control_mode", CONTROL_MODE)
        if control_mode != CONTROL_MODE:
            raise ValueError(f"env_kwargs: control_mode={control_mode!r}: models give {CONTROL_MODE!r}; leave it out")
        self._tasks = task_ids("all" if tasks is None else ",".join(tasks))
        self._first_seed = first_seed
        self._kwargs = {"obs": obs, **self._backends, **(env_kwargs or {})}
        self._env: LeRobotVectorEnv | None = None
        self._return = 0.0

    # ------------------------------------------------------------------ what is evaluated
    def get_tasks(self) -> list[dict[str, Any]]:
        """The tasks, by their IDs."""
        return [{"name": task, "suite": "mikasa"} for task in self._tasks]

    def get_metadata(self) -> dict[str, Any]:
        """No number of steps: an episode ends by itself, each task after its own time limit."""
        return {"max_steps": None}

    def get_action_spec(self) -> dict[str, DimSpec]:
        """Joint deltas and the gripper."""
        note = "1 is 0.1 rad in a control step (20 Hz)"
        return {
            "joints": DimSpec("joints", ARM_JOINTS, "joint_delta_pos", (-1, 1), description=note),
            "gripper": GRIPPER_CLOSE_NEG,
        }

    def get_observation_spec(self) -> dict[str, DimSpec]:
        """Two cameras, the joints and the instruction."""
        note = "9 positions (rad, m), 9 velocities, tool position (m) and quaternion wxyz"
        state = DimSpec("state", 25, "joint_positions", description=note)
        return {"base_camera": IMAGE_RGB, "hand_camera": IMAGE_RGB, "state": state, "language": LANGUAGE}

    def get_metric_keys(self) -> dict[str, str]:
        """The means that are reported."""
        return {"success": "mean", "success_at_end": "mean", "fail": "mean", "return": "mean"}

    def get_hold_action(self, last_action: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arm stays where it is, and the gripper as it was; open at the start."""
        hold = np.zeros(ARM_JOINTS + 1, np.float32)
        hold[-1] = OPEN if last_action is None else self._checked_action(last_action)[-1]
        return {"actions": hold}

    # ------------------------------------------------------------------ an episode
    def reset(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Begin episode ``task["episode_idx"]``, which vla-eval adds to the task."""
        name = task["name"]
        if self._env is None or self._env.task != name:
            self.cleanup()
            self._env = LeRobotVectorEnv(name, 1, frames="observation", **self._kwargs)
        obs, _ = self._env.reset(seed=[self._first_seed + int(task["episode_idx"])])
        self._return = 0.0
        self._recorder.record_video(self.render())
        return obs

    def step(self, action: Mapping[str, Any]) -> StepResult:
        """Carry out one action."""
        assert self._env is not None
        obs, rewards, terminated, truncated, info = self._env.step(self._checked_action(action)[None])
        reward, done = float(rewards[0]), bool(terminated[0] | truncated[0])
        self._return += reward
        flags = {name: bool(info[name][0]) for name in ("success", "fail")}
        if done:
            final = info["final_info"]
            ended = {"success": "is_success", "success_at_end": "success_at_end", "fail": "fail"}
            result = {name: bool(final[key][0]) for name, key in ended.items()}
        else:
            result = {**flags, "success_at_end": False}
        self._recorder.record_video(self.render())
        self._recorder.record_step(reward=reward, done=done, **flags)
        return StepResult(obs=obs, reward=reward, done=done, info={**result, "return": self._return})

    def make_obs(self, raw_obs: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
        """What the model gets."""
        assert self._env is not None
        images = {camera: image[0] for camera, image in raw_obs["pixels"].items()}
        others = {name: value[0] for name, value in raw_obs.items() if name not in ("pixels", "agent_pos")}
        told = {"task_description": self._env.task_description, "state": raw_obs["agent_pos"][0]}
        return {"images": images, **told, **others}

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        """How the episode went."""
        return dict(step_result.info) or {"success": False, "success_at_end": False, "fail": False, "return": 0.0}

    def render(self) -> NDArray[np.uint8] | None:
        """What the first camera sees, (H, W, 3)."""
        return None if self._env is None else self._env.render()[0]

    def cleanup(self) -> None:
        """Close the simulation."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _checked_action(self, action: Mapping[str, Any]) -> NDArray[np.float32]:
        """``actions`` as (8,) float32. Raises ValueError for anything else."""
        given = action.get("actions", action.get("action"))
        values = np.asarray([] if given is None else given, np.float32).reshape(-1)
        if len(values) != ARM_JOINTS + 1 or not np.isfinite(values).all():
            raise ValueError(
                f"the model's action {given!r} must be 'actions', {ARM_JOINTS + 1} numbers: {ARM_JOINTS} joint deltas and "
                "the gripper"
            )
        return values
