"""The environment that joins a task's pure functions with the simulator."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import sapien
import torch
from mani_skill.envs.utils.observations import parse_obs_mode_to_struct
from mani_skill.sensors.camera import CameraConfig
from mani_skill.utils import common, sapien_utils
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs import Actor, Pose
from mani_skill.utils.structs.types import GPUMemoryConfig, SimConfig
from torch import Tensor

from mikasa_robo.assets.low_poly import thin_out_ground
from mikasa_robo.catalog import CATALOG, DEFAULT_VIEW
from mikasa_robo.sim.env import BatchedSimMixin, RobotVisuals

from . import rewards, state
from .observations import MODES, object_view, parse_modes
from .phases import PHASES, Timeline
from .sampling import ROBOT_BASE_X, Uniforms, normal
from .seeds import Seed, episode_keys
from .touch_sensor import FORCE_THRESHOLD, TouchSensor
from .visibility import ObjectLayout

START_QPOS = (0.0, 0.0, 0.0, -2 * np.pi / 3, 0.0, 2 * np.pi / 3, np.pi / 4, 0.04, 0.04)
STATIC_SPEED = 0.2
"""A robot whose arm joints all move slower than this is static, rad/s."""
ARM_JOINTS = 7
TOUCH_LINKS = ("panda_hand", "panda_leftfinger", "panda_rightfinger")

TaskState = TypeVar("TaskState")


@dataclass
class StepData:
    """What a task may look at to judge an episode; read after physics, never written."""

    elapsed: Tensor  # (N,) int, control steps
    responding: Tensor  # (N,) bool
    objects: Tensor  # (N, K, 13) position, quaternion wxyz, linear and angular velocity
    tcp: Tensor  # (N, 7) pose of the tool centre point
    joint_speed: Tensor  # (N,) largest speed of an arm joint, rad/s
    fingers: Tensor  # (N,) distance of each finger from closed, m
    # (N, K) m/s, distance that each object's centre moved in the last control step, per second. PhysX reports a velocity
    # even for an object that closed fingers hold still, so rest is judged by this.
    speeds: Tensor

    @property
    def static(self) -> Tensor:
        """(N,) bool: the robot is static."""
        return self.joint_speed < STATIC_SPEED


class MemoryEnv(BatchedSimMixin, Generic[TaskState]):
    """A tabletop task whose episode has a cue, a delay and a response.

    A task declares its objects (`build`) and gives pure functions of tensors: what is drawn (`sample`), what is on view
    and where (`layout`), what a step means (`update_state`), who has succeeded or failed (`outcome`), what is rewarded
    (`reward_terms`) and what a memory would hold (`oracle`).

    Observation: ``obs_mode`` is any of these joined with "+". "state" alone gives a tensor, all others a flat dict:
    ``state`` float32 (N, D): joint positions and speeds, TCP pose, prompt, phase (one-hot), t / T, for each object a
    visible flag and, where visible, its pose, then the task's own (with the oracle: for learning without memory);
    ``objects`` float32 (N, K (8 + C)): what a perfect perception system would report at this instant, for each object a
    visible flag, its pose and its code (`object_features`), zeros where it is not to be seen; brings ``joints`` along;
    ``joints`` float32 (N, 25): joint positions (rad, m), joint speeds, TCP pose;
    ``oracle`` and ``prompt`` float32 (N, d); a task's prompt is in every mode;
    ``rgb`` uint8 (N, 128, 128, 6), ``depth`` int16 (N, 128, 128, 2) in mm, ``segmentation`` int16 (N, 128, 128, 2): the
    base camera's channels, then the hand camera's.
    Action: float32 (N, A) in [-1, 1] of the chosen controller, 8-D for ``pd_joint_delta_pos``.
    Reward: (N,) float32, ``normalized_dense`` in [0, 1] by default. ``info["reward_terms"]``: every weighted term.
    Termination: success or failure; truncation at ``horizon`` by `mikasa_robo.utils.wrappers.time_limit`.

    Args:
        cue_steps, delay_steps, response_steps: lengths of the phases in control steps (20 Hz).
        on_mistake: "fail" ends an episode at a mistake; "ignore" lets it go on as if nothing had happened.
        arm: "free" is the paper's way; "held" keeps the robot where it started until the response phase, whatever the
            action, so that a policy cannot store the cue in its own posture.
        robot_init_qpos_noise: standard deviation of the arm joints' start, rad.
        robot_visuals: as `BatchedSimMixin`'s, by default "auto": low-poly where observations hold pictures that the CPU
            draws, else stock.
        **kwargs: `BatchedSimMixin`'s and ManiSkill's, with their defaults (``num_envs``, ``obs_mode``, …).
    """

    SUPPORTED_ROBOTS: ClassVar = ["panda_wristcam", "panda"]
    reward_scales: ClassVar[dict[str, float]]
    """Weight of each dense reward term."""
    draws: ClassVar[int] = 0
    """Uniform numbers that `sample` takes for one environment; a task may set it per instance."""
    _obs_mode: str  # ManiSkill's, set by its constructor
    obs_mode_struct: Any

    def __init__(
        self,
        *args: Any,
        cue_steps: int,
        delay_steps: int,
        response_steps: int,
        on_mistake: Literal["fail", "ignore"] = "fail",
        arm: Literal["free", "held"] = "free",
        robot_init_qpos_noise: float = 0.02,
        robot_uids: str = "panda_wristcam",
        robot_visuals: RobotVisuals = "auto",
        reward_mode: str = "normalized_dense",
        obs_mode: str | None = "state",
        **kwargs: Any,
    ) -> None:
        missing = [
            name for name in dir(type(self)) if getattr(getattr(type(self), name), "__isabstractmethod__", False)
        ]
        if missing:  # ManiSkill's environments have no ABCMeta, which would see to it
            raise TypeError(f"{type(self).__name__} is no task yet: it has to define {', '.join(missing)}")
        self.timeline = Timeline(cue_steps, delay_steps, response_steps)
        if on_mistake not in ("fail", "ignore"):
            raise ValueError(f"on_mistake={on_mistake!r} is not known: use 'fail' or 'ignore'")
        if not robot_init_qpos_noise >= 0:
            raise ValueError(f"robot_init_qpos_noise={robot_init_qpos_noise!r} must be at least 0 rad")
        if arm not in ("free", "held"):
            raise ValueError(f"arm={arm!r} is not known: use 'free' or 'held'")
        if arm == "held" and not self.timeline.response_start:
            raise ValueError("arm='held' would hold the arm for ever: this task is acted in while its cue is on view")
        self.on_mistake = on_mistake
        self.arm = arm
        self._modes = parse_modes(obs_mode)
        self.robot_init_qpos_noise = robot_init_qpos_noise
        self._generators: list[np.random.Generator] = []
        self._task_state: TaskState | None = None
        self._held: Tensor | None = None
        super().__init__(
            *args,
            robot_uids=robot_uids,
            robot_visuals=robot_visuals,
            reward_mode=reward_mode,
            obs_mode=self._modes.maniskill,
            **kwargs,
        )

    # ------------------------------------------------------------------ what a task gives
    @abstractmethod
    def build(self) -> list[Actor]:
        """Builds the objects that are shown and hidden, once. Returns K dynamic or kinematic actors."""

    @abstractmethod
    def sample(self, u: Uniforms) -> TaskState:
        """The state at the start of b episodes, from uniform numbers (b, `draws`)."""

    @abstractmethod
    def layout(self, s: TaskState, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        """Which objects are on view at t = ``elapsed`` (N,), (N, K) bool, and where each belongs, (N, K, 7)."""

    @abstractmethod
    def update_state(self, s: TaskState, data: StepData, touching: Tensor) -> None:
        """Enters in ``s`` what has happened in a step; ``touching`` (N, L, K) bool for hand, left and right finger."""

    @abstractmethod
    def outcome(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """``success`` and ``fail`` (N,) bool, and the task's own booleans for ``info``."""

    @abstractmethod
    def reward_terms(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """The unweighted terms (N,) in [0, 1] named in `reward_scales`."""

    @abstractmethod
    def oracle(self, s: TaskState) -> Tensor:
        """(N, d): what a memory would have to hold."""

    def prompt(self, s: TaskState) -> Tensor | None:
        """(N, d) float32 that the agent is told at every step; None where the task has no prompt."""
        return None

    def initial_velocities(self, s: TaskState) -> Tensor | None:
        """(b, K, 6) linear (m/s) and angular velocity (rad/s) with which objects start; None: at rest."""
        return None

    def object_features(self) -> Tensor:
        """(K, C) float32: what each object is, as ``objects`` observations tell it; by default its number, one-hot."""
        return torch.eye(len(self.objects), device=self.device)

    def visible_poses(self, s: TaskState, data: StepData) -> tuple[Tensor, Tensor]:
        """Which objects a perfect perception system would see now, (N, K) bool, and at which poses, (N, K, 7).

        By default all that are on view, where they are. A task whose objects can cover one another or look alike from
        several sides says so here.
        """
        return self.layout(s, data.elapsed)[0], data.objects[..., :7]

    @abstractmethod
    def state_features(self, s: TaskState, data: StepData) -> dict[str, Tensor]:
        """What the ``state`` observation holds beside the common part, (N, …) each."""

    def touchable(self, objects: list[Actor]) -> list[Actor]:
        """The objects whose contact with the hand matters, of those that `build` returned; by default all."""
        return objects

    def overlay_facts(self, s: TaskState) -> dict[str, list[str]]:
        """What the video overlay shows of an episode: under each name one text for each of the N environments."""
        numbers = self.oracle(s).tolist()
        return {"oracle": [" ".join(f"{number:.3g}" for number in row) for row in numbers]}

    # ------------------------------------------------------------------ facts
    @property
    def horizon(self) -> int:
        """Length of an episode in control steps, T."""
        return self.timeline.horizon

    @property
    def instruction(self) -> str:
        """The task in one English sentence; empty for an environment that was not made through its ID."""
        return CATALOG[self.spec.id].instruction if self.spec is not None and self.spec.id in CATALOG else ""

    @property
    def task_state(self) -> TaskState:
        """The task's memory of the N running episodes."""
        assert self._task_state is not None
        return self._task_state

    @property
    def _default_sim_config(self) -> SimConfig:
        return SimConfig(
            sim_freq=100,
            control_freq=20,
            gpu_memory_config=GPUMemoryConfig(found_lost_pairs_capacity=2**25, max_rigid_patch_count=2**18),
        )

    @property
    def _default_sensor_configs(self) -> list[CameraConfig]:
        pose = sapien_utils.look_at(eye=[0.3, 0, 0.6], target=[-0.1, 0, 0.1])
        return [CameraConfig("base_camera", pose=pose, width=128, height=128, fov=np.pi / 2, near=0.01, far=100)]

    @property
    def _default_human_render_camera_configs(self) -> CameraConfig:
        pose = sapien_utils.look_at(DEFAULT_VIEW.eye, DEFAULT_VIEW.target)
        return CameraConfig("render_camera", pose=pose, width=512, height=512, fov=DEFAULT_VIEW.fov, near=0.01, far=100)

    # ------------------------------------------------------------------ building
    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose(p=[ROBOT_BASE_X, 0, 0]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        self.table_scene = TableSceneBuilder(self)
        self.table_scene.build()
        if self.drawn_on_cpu:
            thin_out_ground(self.table_scene.ground)
        self.objects = self.build()
        self.object_layout = ObjectLayout(self.scene, self.objects)
        self._object_features = self.object_features().to(device=self.device, dtype=torch.float32)
        self._touch_sensor: TouchSensor | None = None
        self._speeds = torch.zeros(self.num_envs, len(self.objects), device=self.device)

    # ------------------------------------------------------------------ randomness and reset
    def reset(self, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or in ``options["env_idx"]`` only.

        Args:
            seed: an int: environment i gets the i-th episode of this seed, whatever ``num_envs`` is. A list with one seed
                for each environment being reset: each gets the episode that a single environment would get with that
                seed; a pair (s, i) in it stands for the i-th episode of the seed s. None: each environment goes on with
                its own generator.
            options: ManiSkill's; ``{"env_idx": (b,) ints or (N,) bools}`` names the environments to reset.

        Returns:
            the observation and the info of all N environments.
        """
        env_idx = (options or {}).get("env_idx")
        index = torch.arange(self.num_envs) if env_idx is None else self._checked_env_idx(env_idx).cpu()
        self._seed(seed, index.tolist())
        # ManiSkill's own generators are not used by any task; a partial reseeding of them would reach every environment
        outer = None
        if env_idx is None and seed is not None:
            outer = [sum(key) % 2**31 for key in episode_keys(seed, index.tolist())]
        if env_idx is not None:
            options = {**(options or {}), "env_idx": index.to(self.device)}
        return super().reset(seed=outer, options=options)

    def _seed(self, seed: Seed | None, index: list[int]) -> None:
        if seed is None:
            if not self._generators:
                self._generators = [np.random.default_rng() for _ in range(self.num_envs)]
            return
        keys = episode_keys(seed, index)
        if not self._generators:
            self._generators = [np.random.default_rng() for _ in range(self.num_envs)]
        for i, key in zip(index, keys, strict=True):
            self._generators[i] = np.random.default_rng(np.random.SeedSequence(key))

    def _draw(self, env_idx: Tensor, columns: int) -> Uniforms:
        drawn = np.stack([self._generators[i].random(columns) for i in env_idx.tolist()])
        return Uniforms(torch.from_numpy(drawn).to(self.device))

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        u = self._draw(env_idx, ARM_JOINTS + self.draws)
        noise = normal(u.take(ARM_JOINTS), self.robot_init_qpos_noise)
        qpos = torch.tensor(START_QPOS, dtype=torch.float64, device=self.device).repeat(u.count, 1)
        qpos[:, :ARM_JOINTS] += noise
        rows = self.sample(u)
        if self._task_state is None:
            self._task_state = state.allocate(rows, self.num_envs)
        state.scatter(self._task_state, env_idx, rows)
        self.table_scene.table.set_pose(self.table_scene.table.initial_pose)
        self.agent.reset(qpos.to(torch.float32))
        self.agent.robot.set_pose(Pose.create_from_pq(p=[ROBOT_BASE_X, 0, 0], device=self.device))
        visible, home = self.layout(rows, torch.zeros(u.count, dtype=torch.int64, device=self.device))
        velocities = self.initial_velocities(rows)
        self.object_layout.reset(visible, home, velocities)
        self._speeds[env_idx] = 0.0 if velocities is None else torch.linalg.norm(velocities[..., :3], dim=-1)

    # ------------------------------------------------------------------ stepping
    def _step_action(self, action: Any) -> Any:
        held = self.arm == "held" and self.scene is not None
        before = self.object_layout.read()[..., :3]
        action = self._step_held(action) if held else super()._step_action(action)
        # the simulator's buffers are fresh here; BaseEnv counts the step only afterwards
        elapsed = self._elapsed_steps + 1
        if self._touch_sensor is None:
            links = [self.agent.robot.links_map[name] for name in TOUCH_LINKS]
            self._touch_sensor = TouchSensor(self.scene, links, self.touchable(self.objects))
        data = self._read_sim(elapsed)
        self._speeds = data.speeds = torch.linalg.norm(data.objects[..., :3] - before, dim=-1) * self.control_freq
        self.update_state(self.task_state, data, self._touch_sensor.read() > FORCE_THRESHOLD)
        visible, home = self.layout(self.task_state, elapsed)
        # nothing can be moved before the response phase; at its first step everything stands where the layout says, and
        # so does what comes on view later
        settled = (elapsed <= self.timeline.response_start)[:, None]
        self.object_layout.apply(~visible | settled | self.object_layout.parked(data.objects), visible, home)
        return action

    def _step_held(self, action: Any) -> Any:
        """A control step in which robots whose response phase has not begun stay where they are, whatever they do."""
        held = ~self.timeline.responding(self._elapsed_steps)
        if not held.any():
            return super()._step_action(action)
        before = [(holder, name, tensor.clone()) for holder, name, tensor in self._controller_tensors()]
        self._held, self._held_qpos = held, self.agent.robot.get_qpos().clone()
        try:
            action = super()._step_action(action)
        finally:
            self._held = None
        for holder, name, old in before:
            now = getattr(holder, name)
            now = now.raw_pose if hasattr(now, "raw_pose") else now
            now[held] = old[held]
        return action

    def _before_simulation_step(self) -> None:
        # in every substep: some controllers move their targets within a control step
        if self._held is not None:
            self._hold_robots(self._held)
        super()._before_simulation_step()

    def _hold_robots(self, held: Tensor) -> None:
        robot, px = self.agent.robot, self.scene.px
        if not self.gpu_sim_enabled:
            robot.set_joint_drive_targets(self._held_qpos, robot.active_joints)
            robot.set_joint_drive_velocity_targets(torch.zeros_like(self._held_qpos), robot.active_joints)
            return
        rows, dof = robot._data_index[held], self._held_qpos.shape[1]
        px.cuda_articulation_target_qpos.torch()[rows, :dof] = self._held_qpos[held]
        px.cuda_articulation_target_qvel.torch()[rows, :dof] = 0.0
        px.gpu_apply_articulation_target_position()
        px.gpu_apply_articulation_target_velocity()

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
        )

    # ------------------------------------------------------------------ what is returned
    def evaluate(self) -> dict[str, Any]:
        """Success, failure, phase, the task's booleans, the oracle and the weighted reward terms. Writes nothing."""
        s, data = self.task_state, self._read_sim(self._elapsed_steps)
        info: dict[str, Any] = self.outcome(s, data)
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
        return self.compute_dense_reward(obs, action, info) / rewards.maximum(self.reward_scales)

    def set_obs_mode(self, obs_mode: str) -> None:
        """Observe in another mode from now on; the observation spaces follow.

        Args:
            obs_mode: any of the names of `core.observations.MODES`, joined by "+".

        Raises:
            ValueError: a name is not known, the mode is one of ManiSkill's own, it needs a renderer that the environment
                was made without, or it is "prompt" and the task has no prompt. The mode stays as it was.
        """
        modes = parse_modes(obs_mode)
        if not modes.parts:
            raise ValueError(
                f"obs_mode={obs_mode!r} is one of ManiSkill's own, which only gymnasium.make can choose; join any of "
                f"{', '.join(MODES)} with '+'"
            )
        if modes.pictures and not self.scene.can_render():
            raise ValueError(
                f"obs_mode={obs_mode!r} needs pictures, but the environment was made without a renderer: give "
                f"gymnasium.make that obs_mode, or render_backend={'gpu' if self.device.type == 'cuda' else 'cpu'!r}"
            )
        before = self._modes, self._obs_mode, self.obs_mode_struct
        self._modes, self._obs_mode = modes, modes.maniskill
        self.obs_mode_struct = parse_obs_mode_to_struct(modes.maniskill)
        try:
            obs = self.get_obs()
        except ValueError:
            self._modes, self._obs_mode, self.obs_mode_struct = before
            raise
        self.update_obs_space(common.to_cpu_tensor(obs))

    def get_obs(self, info: dict[str, Any] | None = None, unflattened: bool = False) -> Any:
        """The observation of the present moment, in the modes that the environment was made with; writes nothing."""
        if not self._modes.flat_dict:
            return super().get_obs(info, unflattened)
        self._require_open()
        info = self.get_info() if info is None else info
        parts, data = self._modes.parts, self._read_sim(self._elapsed_steps)
        obs: dict[str, Tensor] = {}
        if "state" in parts:
            nested = {"agent": self._get_obs_agent(), "extra": self._state_extra(info, data)}
            obs["state"] = common.flatten_state_dict(nested, use_torch=True, device=self.device)
        if "objects" in parts:
            visible, poses = self.visible_poses(self.task_state, data)
            obs["objects"] = object_view(visible, poses, self._object_features)
        if "joints" in parts:
            robot = self.agent.robot
            obs["joints"] = torch.cat([robot.get_qpos(), robot.get_qvel(), data.tcp], dim=1)
        if "oracle" in parts:
            obs["oracle"] = info["oracle_info"].to(torch.float32)
        if "prompt" in info:
            obs["prompt"] = info["prompt"]
        if self._modes.pictures:
            cameras = self._get_obs_sensor_data().values()
            obs |= {name: torch.cat([textures[name] for textures in cameras], dim=-1) for name in self._modes.pictures}
        if not obs:
            raise ValueError("obs_mode='prompt': this task has no prompt, so there would be nothing to observe")
        return obs

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, Tensor]:
        data = self._read_sim(self._elapsed_steps)
        if self.obs_mode_struct.use_state:
            return self._state_extra(info, data)
        extra = {"tcp_pose": data.tcp}
        if "prompt" in info:
            extra["prompt"] = info["prompt"]
        return extra

    def _state_extra(self, info: dict[str, Any], data: StepData) -> dict[str, Tensor]:
        extra = {"tcp_pose": data.tcp}
        if "prompt" in info:
            extra["prompt"] = info["prompt"]
        visible, _ = self.layout(self.task_state, self._elapsed_steps)
        extra["phase"] = torch.nn.functional.one_hot(info["phase"], len(PHASES)).to(torch.float32)
        extra["time"] = (self._elapsed_steps / self.horizon).to(torch.float32)[:, None]
        extra["visible"] = visible.to(torch.float32)
        extra["object_poses"] = (data.objects[..., :7] * visible[..., None]).flatten(1)
        for name, value in self.state_features(self.task_state, data).items():
            extra[name] = value.to(torch.float32).flatten(1) if value.ndim > 1 else value.to(torch.float32)[:, None]
        return extra

    # ------------------------------------------------------------------ saving and restoring
    def get_state_dict(self) -> dict[str, Any]:
        """The state of simulation and task, t and phase included: restored, an episode goes on identically."""
        saved = super().get_state_dict()
        saved["task"] = {
            **state.to_flat(self.task_state),
            "elapsed_steps": self._elapsed_steps.to(torch.float32)[:, None],
            "object_speeds": self._speeds.clone(),
        }
        return saved

    def set_state_dict(self, state_dict: dict[str, Any], env_idx: Tensor | None = None) -> None:
        """Restores what `get_state_dict` saved, in all environments or (rows of b) in ``env_idx`` (b,)."""
        if "task" in state_dict:
            missing = {"elapsed_steps", "object_speeds"} - set(state_dict["task"])
            if missing:  # before anything is overwritten
                raise KeyError(f"the saved task state lacks {sorted(missing)}: it was saved by another version")
        index = torch.arange(self.num_envs, device=self.device) if env_idx is None else self._checked_env_idx(env_idx)
        if env_idx is not None:
            # ManiSkill writes rows through a mask, in ascending order of the envs
            index, order = index.sort()
            state_dict = _rows(state_dict, order)
        super().set_state_dict(state_dict, None if env_idx is None else index)
        if "task" in state_dict:
            task = dict(state_dict["task"])
            self._elapsed_steps[index] = task.pop("elapsed_steps").reshape(-1).to(self._elapsed_steps)
            self._speeds[index] = task.pop("object_speeds").to(self._speeds)
            state.load_flat(self._task_state, task, index)
        if "controller" in state_dict:
            kept = self.agent.get_controller_state()
            _write_rows(kept, state_dict["controller"], index)
            self.agent.set_controller_state(kept)

    def set_state(self, flat: Any, env_idx: Tensor | None = None) -> None:
        """Restores the vector (N, D) that ``get_state`` gives."""
        flat = torch.as_tensor(flat, device=self.device)
        parts, start = _unflatten(self._init_raw_state, flat, 0)
        if start != flat.shape[1]:
            raise ValueError(f"the state has {flat.shape[1]} numbers for each environment, this task has {start}")
        self.set_state_dict(parts, env_idx)


def _rows(nested: dict[str, Any], order: Tensor) -> dict[str, Any]:
    return {
        name: _rows(value, order) if isinstance(value, dict) else torch.as_tensor(value)[order]
        for name, value in nested.items()
    }


def _write_rows(into: dict[str, Any], rows: dict[str, Any], index: Tensor) -> None:
    for name, value in into.items():
        if isinstance(value, dict):
            _write_rows(value, rows[name], index)
        else:
            value[index] = rows[name].to(value)


def _unflatten(like: dict[str, Any], flat: Tensor, start: int) -> tuple[dict[str, Any], int]:
    parts: dict[str, Any] = {}
    for name, value in like.items():
        if isinstance(value, dict):
            parts[name], start = _unflatten(value, flat, start)
        else:
            parts[name] = flat[:, start : start + value.shape[-1]]
            start += value.shape[-1]
    return parts, start
