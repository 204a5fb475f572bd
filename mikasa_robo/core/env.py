"""The environment that runs a task's pure functions in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from mani_skill.envs.utils.observations import parse_obs_mode_to_struct
from mani_skill.utils import common
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.catalog import CATALOG
from mikasa_robo.checks import number, one_of
from mikasa_robo.deprecation import deprecated_names, renamed_attributes
from mikasa_robo.sim.env import RobotVisuals
from mikasa_robo.tensors import length
from mikasa_robo.workers.nested import map_leaves

from . import observations, rewards, state
from .arm_hold import ArmHold
from .hooks import TaskState
from .phases import timeline_for
from .sampling import normal
from .saved_task import SavedTask
from .step_data import STATIC_SPEED, StepData, action_rows, copied
from .tabletop import ARM_JOINTS, START_QPOS, TOUCH_LINKS
from .touch_sensor import FORCE_THRESHOLD, TouchSensor
from .visibility import ObjectLayout

__all__ = ["ARM_JOINTS", "START_QPOS", "STATIC_SPEED", "TOUCH_LINKS", "MemoryEnv", "StepData"]


@renamed_attributes({"stage": "object_layout"})
class MemoryEnv(SavedTask[TaskState]):
    """A tabletop task whose episode has a cue, a delay and a response.

    A task defines the hooks of `TaskHooks`: its objects (`build`) and pure functions of tensors that say what is drawn
    (`sample`), what is on view and where (`layout`), what a step means (`update_state`), who has succeeded or failed
    (`outcome`), what is rewarded (`reward_terms`) and what an agent has to remember (`oracle`).
    In tasks with ``cue_bodies`` a cue is drawn but cannot be touched: a free arm passes through it.

    Observation: ``obs_mode`` is any of these joined with "+". "state" alone gives a tensor, all others a flat dict:
    ``state`` float32 (N, D): joint positions and speeds, TCP pose, prompt, phase (one-hot), t / T, for each object a
    visible flag and, where visible, its pose, then the task's own (with the oracle: for learning without memory);
    ``objects`` float32 (N, K (8 + C)): what a perfect perception system would report at this instant, for each object a
    visible flag, its pose to 1e-4 and what it is (`object_features`), zeros where it cannot be seen; comes with ``joints``;
    ``joints`` float32 (N, 25): joint positions (rad, m), joint speeds, TCP pose; ``time`` float32 (N, 1): t / T,
    where T is ``horizon``, so it exceeds 1 if ``max_episode_steps`` lets an episode go on longer;
    ``oracle`` and ``prompt`` float32 (N, d), a task's prompt in every mode; ``rgb`` uint8 (N, 128, 128, 6), ``depth`` int16
    (N, 128, 128, 2) in mm, ``segmentation`` int16 (N, 128, 128, 2): the base camera's channels, then the hand camera's.
    Action: float32 (N, A) in ``action_space``, of the chosen controller. The default ``pd_joint_delta_pos`` takes 8 numbers
    in [-1, 1], and clips to that. Controllers that take absolute positions or poses do not clip.
    Reward: (N,) float32, ``normalized_dense`` in [0, 1] by default. ``info["reward_terms"]``: every weighted term.
    Termination: success or failure; truncation at ``horizon`` by `mikasa_robo.utils.wrappers.time_limit`.

    Args:
        cue_steps, delay_steps, response_steps: lengths of the phases in control steps (20 Hz).
        on_mistake: "fail" ends an episode at a mistake; "ignore" lets it go on as if nothing had happened.
        arm: "free" is the paper's setting; "held" keeps the robot at its start until the response phase, whatever the
            action, so that a policy cannot store the cue in its own posture (`TaskSpec.held_horizon` says where T grows).
        reward_scales: weights of some reward terms, to replace the task's own: ``{"reach": 2.0, "still": 0.0}``.
            ``normalized_dense`` is divided by the new maximum, so it stays in [0, 1] and is 1 exactly at success.
        robot_uids: "panda_wristcam" or "panda"; a task of your own may have others in SUPPORTED_ROBOTS.
        robot_init_qpos_noise: standard deviation of the arm joints at the start, rad.
        obs_layout: "flat", as above; "maniskill": what ManiSkill's wrappers read, see `observations.nested_observation`.
        robot_visuals: as in `BatchedSimMixin`, but "auto" by default: low-poly where observations hold images.
        **kwargs: those of `BatchedSimMixin` and ManiSkill, with their defaults (``num_envs``, ``obs_mode``, …).

    Raises:
        TypeError: the class does not define all hooks.
        ValueError: an argument is out of range or names something unknown.
    """

    def __init__(
        self,
        *args: Any,
        cue_steps: int,
        delay_steps: int,
        response_steps: int,
        on_mistake: Literal["fail", "ignore"] = "fail",
        arm: Literal["free", "held"] = "free",
        reward_scales: Mapping[str, float] | None = None,
        robot_init_qpos_noise: float = 0.02,
        robot_uids: str | type[Any] = "panda_wristcam",
        robot_visuals: RobotVisuals = "auto",
        reward_mode: str = "normalized_dense",
        obs_mode: str | None = "state",
        obs_layout: Literal["flat", "maniskill"] = "flat",
        **kwargs: Any,
    ) -> None:
        self.require_hooks()
        self.timeline = timeline_for(self.needed_response, cue_steps, delay_steps, response_steps, self.views_held)
        self.on_mistake = one_of("on_mistake", on_mistake, ("fail", "ignore"))
        self.arm = one_of("arm", arm, ("free", "held"))
        if arm == "held" and not self.timeline.hold_steps:
            raise ValueError("arm='held' would hold the arm to the end: this task has no response phase; use 'free'")
        self.robot_init_qpos_noise = number("robot_init_qpos_noise", robot_init_qpos_noise, 0, unit="rad")
        self.reward_scales = rewards.override_scales(self.reward_scales, reward_scales)  # type: ignore[misc]
        if not isinstance(robot_uids, type):
            one_of("robot_uids", robot_uids, self.SUPPORTED_ROBOTS)
        self._modes = observations.parse_modes(obs_mode, obs_layout)
        self._task_state: TaskState | None = None
        self._hold: ArmHold | None = None
        super().__init__(
            *args,
            robot_uids=robot_uids,
            robot_visuals=robot_visuals,
            reward_mode=reward_mode,
            obs_mode=self._modes.maniskill,
            **kwargs,
        )

    # ------------------------------------------------------------------ facts
    @property
    def horizon(self) -> int:
        """Length of an episode in control steps, T."""
        return self.timeline.horizon

    @property
    def obs_layout(self) -> str:
        """How observations are laid out: "flat" or "maniskill"."""
        return self._modes.layout

    @property
    def instruction(self) -> str:
        """The task in one English sentence.

        Empty for an environment that was not made through its ID, and for one whose arguments differ from those that define
        the ID or that the sentence takes for granted (`instructed`).
        """
        if self.spec is None or self.spec.id not in CATALOG:
            return ""
        row, given = CATALOG[self.spec.id], self.spec.kwargs
        defining = {**self.instructed, **row.kwargs}
        # a range may be given as a list or an array
        own = all(np.array_equal(given.get(name, value), value) for name, value in defining.items())
        return row.instruction if own else ""

    @property
    def task_state(self) -> TaskState:
        """The task's state of the N running episodes."""
        assert self._task_state is not None
        return self._task_state

    # ------------------------------------------------------------------ building
    def _load_scene(self, options: dict[str, Any]) -> None:
        super()._load_scene(options)
        self.objects = self.build()
        self.object_layout = ObjectLayout(self.scene, self.objects, self.cue_bodies)
        self._object_features = self.object_features().to(device=self.device, dtype=torch.float32)
        self._touch_sensor: TouchSensor | None = None
        self._speeds = torch.zeros(self.num_envs, len(self.objects), device=self.device)
        self._action = torch.zeros(self.num_envs, self.agent.single_action_space.shape[-1], device=self.device)

    # ------------------------------------------------------------------ reset and step
    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        u = self._draw(env_idx, ARM_JOINTS + self.draws)
        noise = normal(u.take(ARM_JOINTS), self.robot_init_qpos_noise)
        rows = self.sample(u)
        if self._task_state is None:
            self._task_state = state.allocate(rows, self.num_envs)
        state.scatter(self._task_state, env_idx, rows)
        self._reset_table_and_robot(env_idx, noise, self.start_posture(rows))
        start = torch.zeros(u.count, dtype=torch.int64, device=self.device)
        visible, home = self.layout(rows, start)
        velocities = self.initial_velocities(rows)
        self.object_layout.reset(visible, home, velocities, env_idx, in_cue=~self.timeline.responding(start))
        self._speeds[env_idx] = 0.0 if velocities is None else length(velocities[..., :3])
        self._action[env_idx] = 0.0

    def _step_action(self, action: Any) -> Any:
        self._require_open()
        before = self.object_layout.read()[..., :3]
        # pd_joint_pos_vel keeps what it is given and writes into it at the next reset
        action = map_leaves(copied, action)
        action = self._step_held(action) if self.held_steps else super()._step_action(action)
        self._action = action_rows(action, self._action)
        # the simulator's buffers are fresh here; BaseEnv counts the step only afterwards
        elapsed = self._elapsed_steps + 1
        if self._touch_sensor is None:
            self._touch_sensor = TouchSensor(self.scene, self._touch_links(), self.touchable(self.objects))
        data = self._read_sim(elapsed)
        self._speeds = data.speeds = length(data.objects[..., :3] - before) * self.control_freq
        self.update_state(self.task_state, data, self._touch_sensor.read() > FORCE_THRESHOLD)
        visible, home = self.layout(self.task_state, elapsed)
        # nothing can be moved before the response phase; at its first step everything is put where the layout says, and
        # so is what comes into view later
        settled = (elapsed <= self.timeline.response_start)[:, None]
        put = ~visible | settled | self.object_layout.parked(data.objects)
        self.object_layout.apply(put, visible, home, in_cue=~data.responding)
        return action

    @property
    def held_steps(self) -> int:
        """The number of steps, from t = 0, in which the arm is held, so that no action is carried out."""
        return self.timeline.hold_steps if self.arm == "held" or self.holds_arm else 0

    def _step_held(self, action: Any) -> Any:
        """A control step in which robots whose response phase has not begun stay where they are."""
        held = self._elapsed_steps < self.timeline.hold_steps
        self._require_same_control(action, held)
        if not tensors.reads_wait(self.device) and not held.any():
            return super()._step_action(action)
        self._hold = hold = ArmHold(self.scene, self.agent, held)
        try:
            # pd_joint_pos_vel keeps views of the action as its targets, and restoring writes into those
            action = map_leaves(copied, super()._step_action(action))
        finally:
            self._hold = None
        hold.restore_controllers()
        return action

    def _require_same_control(self, action: Any, held: Tensor) -> None:
        """Raises ValueError where an action would change the control mode of a held arm, which would keep it afterwards."""
        mode = action.get("control_mode") if isinstance(action, dict) else None
        if mode is not None and mode != self.agent.control_mode and bool(held.any()):
            raise ValueError(
                f"the action has control_mode={mode!r}, and the arm is held in {self.agent.control_mode!r}: a held arm "
                "keeps nothing of an action. Choose another mode once no arm is held"
            )

    def _before_simulation_step(self) -> None:
        if self._hold is not None:
            self._hold.apply()
        super()._before_simulation_step()

    def _read_sim(self, elapsed: Tensor) -> StepData:
        qpos, qvel = self.agent.robot.get_qpos(), self.agent.robot.get_qvel()
        return StepData(
            elapsed=elapsed,
            responding=self.timeline.responding(elapsed),
            objects=self.object_layout.read(),
            tcp=self.agent.tcp.pose.raw_pose,
            joint_speed=qvel[:, :ARM_JOINTS].abs().amax(dim=1),
            fingers=qpos[:, ARM_JOINTS:].mean(dim=1),
            speeds=self._speeds,
            action=self._action,
        )

    # ------------------------------------------------------------------ success and reward
    def evaluate(self) -> dict[str, Any]:
        """Success, failure, phase, the task's booleans, the oracle and the weighted reward terms. Writes nothing."""
        s, data = self.task_state, self._read_sim(self._elapsed_steps)
        info: dict[str, Any] = self.outcome(s, data)
        if not {"success", "fail"} <= info.keys():
            raise KeyError(
                f"`outcome` of {type(self).__name__} returned {sorted(info)}: it must have 'success' and 'fail'"
            )
        info["phase"] = self.timeline.phase(self._elapsed_steps)
        info["oracle_info"] = self.oracle(s)
        prompt = self.prompt(s)
        if prompt is not None:
            info["prompt"] = prompt
        info["reward_terms"] = rewards.weigh(
            self.reward_terms(s, data), self.reward_scales, info["success"], info["fail"], data.responding
        )
        return info

    def compute_sparse_reward(self, obs: Any, action: Tensor, info: dict[str, Any]) -> Tensor:
        """1 at success, else 0; (N,)."""
        return info["success"].to(torch.float32)

    def compute_dense_reward(self, obs: Any, action: Tensor, info: dict[str, Any]) -> Tensor:
        """The sum of the weighted terms, (N,)."""
        return rewards.total(info["reward_terms"])

    def compute_normalized_dense_reward(self, obs: Any, action: Tensor, info: dict[str, Any]) -> Tensor:
        """The dense reward divided by its maximum, (N,) in [0, 1]; 1 exactly at success."""
        return rewards.normalized(self.compute_dense_reward(obs, action, info), self.reward_scales)

    # ------------------------------------------------------------------ observation
    def set_obs_mode(self, obs_mode: str | None) -> None:
        """Changes the observation mode and the observation spaces.

        Args:
            obs_mode: as in ``gymnasium.make``.

        Raises:
            ValueError: a name is not known, the mode needs a renderer and the environment was made without one, the robot
                would look otherwise in an environment made for images, or nothing would be observed. The environment is
                then as it was.
        """
        modes = observations.parse_modes(obs_mode, self._modes.layout)
        if modes.needs_renderer and not self.scene.can_render():
            raise ValueError(
                f"obs_mode={obs_mode!r} needs images, but the environment was made without a renderer: give "
                f"gymnasium.make that obs_mode, or render_backend={'gpu' if self.device.type == 'cuda' else 'cpu'!r}"
            )
        if modes.needs_renderer and self.robot_looks_otherwise_in_images:
            raise ValueError(
                f"obs_mode={obs_mode!r} needs images, but the environment was made for none, and so its robot has the "
                "stock meshes, where an environment made for images has the low-poly ones: give gymnasium.make that "
                "obs_mode, or robot_visuals='low_poly' or 'stock'"
            )
        before = self._modes, self._obs_mode, self.obs_mode_struct  # type: ignore[has-type]
        self._modes, self._obs_mode = modes, modes.maniskill
        self.obs_mode_struct = parse_obs_mode_to_struct(modes.maniskill)
        try:
            obs = self.get_obs()
        except BaseException:
            self._modes, self._obs_mode, self.obs_mode_struct = before
            raise
        self.update_obs_space(common.to_cpu_tensor(obs))

    def get_obs(self, info: dict[str, Any] | None = None, unflattened: bool = False) -> Any:
        """The current observation in the chosen mode. Writes nothing."""
        if not self._modes.joined:
            return super().get_obs(info, unflattened)
        self._require_open()
        info = self.get_info() if info is None else info
        return observations.observation(self, self._modes, info, self._read_sim(self._elapsed_steps))

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict[str, dict[str, Tensor]]:
        cameras: dict[str, dict[str, Tensor]] = super()._get_obs_sensor_data(apply_texture_transforms)
        if self.cue_bodies:
            for textures in cameras.values():
                for name, channels in observations.SEGMENTATION_CHANNELS.items():
                    if name in textures:
                        textures[name] = image = textures[name].clone()
                        image[..., channels] = self.object_layout.renumber(image[..., channels])
        if not apply_texture_transforms:  # the mode "sensor_data" returns them as they are
            cameras = map_leaves(copied, cameras)
        return cameras

    def _get_obs_agent(self) -> dict[str, Any]:
        # ManiSkill gives the controllers' own tensors, into which the next reset writes.
        agent: dict[str, Any] = map_leaves(copied, super()._get_obs_agent())
        return agent

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, Tensor]:
        data, state = self._read_sim(self._elapsed_steps), self.obs_mode_struct.use_state
        return observations.state_extra(self, info, data) if state else observations.always_observed(info, data)


__getattr__ = deprecated_names(__name__, {"Senses": "StepData"})
