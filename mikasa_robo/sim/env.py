"""Any ManiSkill task, many environments at a time, on a machine with or without a GPU."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, get_args

import gymnasium as gym
import mani_skill.render.utils as render_utils
import numpy as np
import sapien
import sapien.physx as physx
import sapien.render
import torch
from gymnasium.error import ResetNeeded
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.utils.system.backend import BackendInfo
from torch import Tensor

from mikasa_robo import tensors
from mikasa_robo.assets.low_poly import low_poly_robots
from mikasa_robo.checks import NaNActionError, one_of, positive_int

from .backend import BATCHED, CUDA_NAMES, checked_env_idx, choose_sim_backend, is_batched_cpu
from .call_arguments import checked_action
from .controllers import (
    DrivenRobots,
    SavedControllers,
    batch_kinematics,
    find_driven_robots,
    single_agents,
)
from .gpu_library import load_library
from .inference_mode import outside_inference_mode
from .make_arguments import (
    CAMERA_ARGUMENTS,
    OPTIONAL,
    check_arguments,
    check_cameras,
    check_num_envs,
    checked_render_workers,
    choose_render_backend,
    refuse_unknown_arguments,
)
from .materials import undrawn_materials
from .renewal import SceneRenewal
from .scene import BatchedCpuScene
from .stepping import default_threads

DEBUG_VARIABLE = "MIKASA_SIM_DEBUG"
RobotVisuals = Literal["auto", "stock", "low_poly"]


class BatchedSimMixin(BaseEnv):
    """Makes ``sim_backend="physx_cpu"`` take any ``num_envs``; a base class to put before a ManiSkill task class.

    Args:
        num_envs: number of parallel environments, from 1 to 65,536, as far as they fit into memory.
        sim_backend: "auto", "physx_cpu", "physx_cuda" or "physx_cuda:<n>"; see `choose_sim_backend`. With "physx_cpu",
            ManiSkill's own simulation runs one environment and `BatchedCpuPhysx` runs several. With "physx_cpu_batched",
            `BatchedCpuPhysx` runs one environment too.
        render_backend: "auto" draws only if the observation or render mode needs images, on a GPU that can, else on the
            CPU. Otherwise it is "none", which is faster and needs no Vulkan. All other values are ManiSkill's.
        sim_threads: threads of the batched CPU simulation; None: one for each core.
        render_workers: processes that draw the images of observations in batched CPU simulation; 0: this process draws
            them. None: one for each of ``sim_threads``, each with at least four environments, if that makes two or more,
            and otherwise 0. Images are the same to the bit.
        sim_debug: raise on patterns that are undefined on a GPU; None: only if the environment variable
            MIKASA_SIM_DEBUG is set to 1.
        robot_visuals: how robots are drawn. "stock": the meshes that ManiSkill ships. "low_poly": a tenth of their
            triangles, which looks nearly the same and is several times as fast on a CPU (see `assets.low_poly`).
            "auto": low-poly if observations hold images, else stock. Collisions are the same in all.
        parallel_in_single_scene: builds all environments in one scene, next to one another. On a GPU this is for viewing
            them together. On CPU nothing is drawn and one thread simulates all; it shows without a GPU whether code that
            reads the simulator's buffers accounts for ``scene.scene_offsets``.
    """

    # a flag of its own, because there is also no scene while a reset builds a new one
    _closed = False
    # the constructor resets, too
    _was_reset = False
    must_reset: ClassVar[bool] = False
    """Whether a step before the first reset is an error. ManiSkill's own tasks allow it."""
    # of a single environment: whether anything was simulated, and what makes its scene new
    _simulated = False
    _renewal: SceneRenewal | None = None

    @outside_inference_mode
    def __init__(
        self,
        *args: Any,
        num_envs: int = 1,
        sim_backend: str = "auto",
        render_backend: str | None = "auto",
        sim_threads: int | None = None,
        sim_debug: bool | None = None,
        render_workers: int | None = None,
        robot_visuals: RobotVisuals = "stock",
        obs_mode: str | None = None,
        render_mode: str | None = None,
        parallel_in_single_scene: bool = False,
        **kwargs: Any,
    ) -> None:
        refuse_unknown_arguments(self, kwargs)
        kwargs = {name: kwargs[name] for name in kwargs if name not in OPTIONAL or kwargs[name] is not None}
        check_arguments(
            self,
            {
                "sim_backend": sim_backend,
                "render_backend": render_backend,
                "sim_threads": sim_threads,
                "sim_debug": sim_debug,
                "render_mode": render_mode,
                "parallel_in_single_scene": parallel_in_single_scene,
                **kwargs,
            },
        )
        num_envs = positive_int("num_envs", num_envs)
        self._driven: DrivenRobots | None = None
        self._kept_controllers: tuple[Tensor, SavedControllers] | None = None
        self._sim_threads = default_threads() if sim_threads is None else positive_int("sim_threads", sim_threads)
        self._sim_debug = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0") if sim_debug is None else sim_debug
        self._robot_visuals = one_of("robot_visuals", robot_visuals, get_args(RobotVisuals))
        self._observes_pictures = obs_mode not in (None, "state", "state_dict", "none")
        wants_pictures = render_mode is not None or self._observes_pictures
        sim_backend = choose_sim_backend(sim_backend, num_envs, draws=wants_pictures and render_backend == "auto")
        self._batched_cpu = is_batched_cpu(sim_backend, num_envs)
        if num_envs == 1 and not self._batched_cpu:
            parallel_in_single_scene = False  # a single environment is alone in its scene
        num_envs = check_num_envs(num_envs, self._batched_cpu)
        if self._batched_cpu and parallel_in_single_scene and wants_pictures:
            raise ValueError(
                "parallel_in_single_scene=True draws nothing in batched CPU simulation: use sim_backend='physx_cuda', or "
                "render_mode=None with obs_mode='state' or 'state_dict'"
            )
        on_gpu = not self._batched_cpu and sim_backend.split(":")[0] in CUDA_NAMES
        render_backend = choose_render_backend(render_backend, obs_mode, render_mode, wants_pictures, on_gpu)
        cpu_draws = self._batched_cpu and self._observes_pictures and render_backend in ("cpu", "sapien_cpu")
        self._render_workers = checked_render_workers(render_workers, num_envs, self._sim_threads, cpu_draws)
        if on_gpu:
            load_library(sim_backend)
        super().__init__(
            *args,
            num_envs=num_envs,
            sim_backend="physx_cpu" if self._batched_cpu else sim_backend,
            render_backend=render_backend,
            obs_mode=obs_mode,
            render_mode=render_mode,
            parallel_in_single_scene=parallel_in_single_scene,
            **kwargs,
        )
        self._was_reset = False

    # BaseEnv.__init__ assigns the backend and then refuses several envs if the backend has the name of a CPU backend
    @property
    def backend(self) -> BackendInfo:
        """The physics backend and the render backend."""
        return self._backend

    @backend.setter
    def backend(self, info: BackendInfo) -> None:
        if self._batched_cpu:
            info.sim_backend = BATCHED
        self._backend = info

    def _reconfigure(self, *args: Any, **kwargs: Any) -> None:
        draws = render_utils.can_render(self._render_device)
        with contextlib.nullcontext() if draws else undrawn_materials():
            super()._reconfigure(*args, **kwargs)

    def _setup_scene(self) -> None:
        if not self._batched_cpu:
            super()._setup_scene()
            return
        self._set_scene_config()
        sub_scenes = []
        for _ in range(self.num_envs):
            systems: list[Any] = [physx.PhysxCpuSystem()]
            if render_utils.can_render(self._render_device):
                systems.append(sapien.render.RenderSystem(self._render_device))
            sub_scenes.append(sapien.Scene(systems))
        self.scene = BatchedCpuScene(
            sub_scenes,
            sim_config=self.sim_config,
            device=self.device,
            backend=self.backend,
            threads=self._sim_threads,
            debug=self._sim_debug,
            parallel_in_single_scene=self._parallel_in_single_scene,
            render_workers=self._render_workers,
        )
        self.scene.px.timestep = 1.0 / self._sim_freq

    def _setup_sensors(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._setup_sensors(*args, **kwargs)
        except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError) as error:
            check_cameras(error, {name: getattr(self, f"_custom_{name}") for name in CAMERA_ARGUMENTS})
            raise

    @property
    def drawn_on_cpu(self) -> bool:
        """Whether images are drawn by the CPU."""
        return self.backend.render_backend == "sapien_cpu"

    @property
    def robot_visuals(self) -> str:
        """How robots are drawn, "stock" or "low_poly"."""
        if self._robot_visuals == "auto":
            # On a GPU too: what is learnt from images on one machine sees the same on another.
            return "low_poly" if self._observes_pictures else "stock"
        return self._robot_visuals

    @property
    def robot_looks_otherwise_in_images(self) -> bool:
        """Whether an environment that was made for observations with images would draw the robot otherwise."""
        return self._robot_visuals == "auto" and not self._observes_pictures

    def _load_agent(self, *args: Any, **kwargs: Any) -> None:
        low_poly = self.robot_visuals == "low_poly" and self.scene.can_render()
        try:
            with low_poly_robots(self.scene) if low_poly else contextlib.nullcontext():
                super()._load_agent(*args, **kwargs)
        except AssertionError as error:
            if "supported modes" not in str(error):
                raise
            _, _, modes = str(error).partition("supported modes: ")
            raise ValueError(f"control_mode={self._control_mode!r} is not known: use one of {modes}") from error
        self._driven = None
        if self._batched_cpu:
            for agent in single_agents(self.agent):
                agent.set_control_mode = functools.partial(self._set_control_mode, agent, agent.set_control_mode)
                batch_kinematics(agent)

    def _set_control_mode(self, agent: Any, original: Any, control_mode: str | None = None) -> None:
        original(control_mode)
        batch_kinematics(agent)

    def _push_targets(self) -> None:
        assert self._driven is not None
        self.scene.px.apply_targets_with_step()
        if self._acts:
            self.scene.px.keep_awake(self._driven.rows)

    def _before_control_step(self) -> None:
        # BaseEnv applies drive targets only if the simulation device is CUDA
        if self._batched_cpu:
            self._driven = find_driven_robots(self.agent, self._driven)
            self._push_targets()
        super()._before_control_step()

    def _before_simulation_step(self) -> None:
        if self._batched_cpu and self._driven is not None and self._driven.targets_move:
            self._push_targets()
        super()._before_simulation_step()

    @outside_inference_mode
    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """ManiSkill's step, for any array of numbers; the action's gradient is ignored.

        Args:
            action: (N, A), or (A,) if N is 1. None steps without an action; a dict is ManiSkill's.

        Raises:
            gymnasium.error.ResetNeeded: a task of this package was not reset yet.
            TypeError: the action does not hold numbers.
            ValueError: the action has another shape, or is NaN.
        """
        self._require_open()
        if self.must_reset and not self._was_reset:
            raise ResetNeeded("this environment was not reset yet: call reset() before step()")
        space = getattr(self.agent, "single_action_space", None)  # what a robot's present controller takes
        if isinstance(space, gym.spaces.Box):
            action = checked_action(action, space.shape, self.num_envs)
            if isinstance(action, Mapping) and action["control_mode"] == self.agent.control_mode:
                action = {**action, "action": checked_action(action["action"], space.shape, self.num_envs)}
        return super().step(action)

    def _step_action(self, action: Any) -> Any:
        self._require_open()
        # ManiSkill checks this in single-env simulation only, as it would wait for a GPU; here there is none to wait for
        values = action.get("action") if isinstance(action, Mapping) else action
        if self._batched_cpu and isinstance(values, np.ndarray | Tensor):
            nan = torch.isnan(torch.as_tensor(values))
            if nan.any():
                bad = torch.nonzero(nan.reshape(self.num_envs, -1).any(dim=1)).flatten().tolist()
                raise NaNActionError(f"the action of env {bad} is NaN")
        self._acts, self._simulated = action is not None, True
        return super()._step_action(action)

    @outside_inference_mode
    def reset(
        self, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """ManiSkill's reset. A partial reset (``options={"env_idx": …}``) does not change the controllers of other envs."""
        self._require_open()
        env_idx = (options or {}).get("env_idx")
        self._was_reset = True
        if env_idx is None:
            try:
                with self._forcing(range(self.num_envs)):
                    return super().reset(seed=seed, options=options)
            finally:
                self._kept_controllers = None
        # ManiSkill writes rows through a mask, in ascending order of the envs
        index, order = self._checked_env_idx(env_idx).sort()
        options = {**(options or {}), "env_idx": index}
        if "reset_to_env_states" in options:
            options["reset_to_env_states"] = tensors.take_rows({"": options["reset_to_env_states"]}, order)[""]
        others = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        others[index] = False
        self._keep_controllers(others)
        try:
            with self._forcing(index):
                return super().reset(seed=seed, options=options)
        finally:
            self._kept_controllers = None

    def _keep_controllers(self, envs: Tensor) -> None:
        """Lets the reset that is under way leave the controllers of ``envs`` (N,) bool as they are now."""
        if self._kept_controllers is not None:
            envs = envs | self._kept_controllers[0]
        self._kept_controllers = (envs, SavedControllers(self.agent, self.num_envs))

    def _clear_sim_state(self) -> None:
        # a single environment only sets velocities here; everything else is set once, after the episode's start is known
        with self._forcing([]):
            super()._clear_sim_state()

    def _clear_sim_history(self) -> None:
        """`_clear_sim_state`, and PhysX forgets all that it has simulated in the envs being reset; see `SceneRenewal`.

        On a GPU it forgets nothing, as all envs share one scene there. With ``parallel_in_single_scene`` on CPU it does so
        only if all are reset.
        """
        scene = self.scene
        if isinstance(scene, BatchedCpuScene) and not scene.parallel_in_single_scene:
            envs = torch.nonzero(scene._reset_mask).flatten().tolist()
            scene.px.renew(envs)
            # the end of the reset applies this and fetches it: what ManiSkill does here, it would do twice
            scene.px.stop(envs)
            self._show_renewed_scene()
            return
        if isinstance(scene, BatchedCpuScene):
            if scene._reset_mask.all():
                scene.px.renew([0])
        elif not scene.gpu_sim_enabled and self._simulated:
            if self._renewal is None:
                self._renewal = SceneRenewal(scene.sub_scenes, [scene.px])
            scene.px = None
            self._renewal.renew([0])
            (scene.px,) = self._renewal.systems
            self._simulated = False
            self._show_renewed_scene()
        BatchedSimMixin._clear_sim_state(self)

    def _show_renewed_scene(self) -> None:
        """Sets the viewer up for the scene that a renewal made: it would go on to hold the old one, which is empty.

        As after any reset of ManiSkill, its camera stays where the user has put it.
        """
        viewer, scene = self._viewer, self.scene.sub_scenes[0]
        if viewer is None or viewer.closed or viewer.scene is scene:
            return
        pose = viewer.window.get_camera_pose()
        self._setup_viewer()
        viewer.set_camera_pose(pose)

    def get_info(self) -> dict[str, Any]:
        """ManiSkill's info."""
        self._require_open()
        # a partial reset calls this after it has reset the controllers of every env, and before it observes
        if self._kept_controllers is not None:
            (others, saved), self._kept_controllers = self._kept_controllers, None
            saved.restore(others)
        info: dict[str, Any] = super().get_info()
        if not tensors.reads_wait(self.device):  # on a GPU it is a copy already
            info["elapsed_steps"] = info["elapsed_steps"].clone()
        return info

    def get_obs(self, info: dict[str, Any] | None = None, unflattened: bool = False) -> Any:
        """ManiSkill's observation of the current state."""
        self._require_open()
        return super().get_obs(info, unflattened)

    def render(self) -> Any:
        """ManiSkill's image, as ``render_mode`` says."""
        self._require_open()
        return super().render()

    def _checked_env_idx(self, env_idx: Any) -> Tensor:
        return checked_env_idx(env_idx, self.num_envs, self.device)

    def get_state_dict(self) -> dict[str, Any]:
        """The state of the simulation of all envs."""
        self._require_open()
        return super().get_state_dict()

    @outside_inference_mode
    def set_state_dict(self, state: dict[str, Any], env_idx: Tensor | None = None) -> None:
        """Sets the state of the simulation, of all envs or of those in ``env_idx``."""
        self._require_open()
        with self._forcing(range(self.num_envs) if env_idx is None else self._checked_env_idx(env_idx)):
            super().set_state_dict(state, env_idx)
        self._was_reset = True

    def _forcing(self, envs: Iterable[int] | Tensor) -> contextlib.AbstractContextManager[None]:
        """A block in which every row of these envs is applied, changed or not; see `ForcedRows`."""
        scene = self.scene
        if not isinstance(scene, BatchedCpuScene):
            return contextlib.nullcontext()
        envs = envs.tolist() if isinstance(envs, Tensor) else envs
        if scene.parallel_in_single_scene:
            envs = [0] if list(envs) else []  # the bodies of every env are in the first scene
        return scene.px.forcing(envs)

    def _clear(self) -> None:
        scene = self.scene
        self._renewal, self._simulated = None, False
        super()._clear()
        if isinstance(scene, BatchedCpuScene):
            scene.close()

    def close(self) -> None:
        """Ends the threads and frees the memory. Steps, resets and reads then raise RuntimeError; closing again does not."""
        self._closed = True
        super().close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this environment was closed: make a new one to go on")


@functools.cache
def batched(task: type[BaseEnv]) -> type[BaseEnv]:
    """``task`` with the batched CPU simulation. A class that already has it is returned unchanged."""
    if issubclass(task, BatchedSimMixin):
        return task
    return type(
        f"Batched{task.__name__}", (BatchedSimMixin, task), {"__module__": task.__module__, "__doc__": task.__doc__}
    )


def make(env_id: str, **kwargs: Any) -> BaseEnv:
    """One of ManiSkill's own tasks with the batched CPU simulation, for example ``make("PickCube-v1", num_envs=64)``.

    Imports ``mani_skill.envs`` and returns the environment without wrappers, so without a time limit. Raises KeyError with
    similar IDs if ManiSkill has no task with this ID.
    """
    import difflib

    import mani_skill.envs  # noqa: F401  (registers ManiSkill's tasks)
    from mani_skill.utils.registration import REGISTERED_ENVS

    if env_id not in REGISTERED_ENVS:
        close = difflib.get_close_matches(env_id, REGISTERED_ENVS)
        raise KeyError(f"ManiSkill has no task {env_id!r}; close: {', '.join(close) or 'none'}")
    spec = REGISTERED_ENVS[env_id]
    env = batched(spec.cls)(**{**spec.default_kwargs, **kwargs})
    env.spec = gym.spec(env_id)
    return env
