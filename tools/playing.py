"""A policy plays one episode in each environment of a batch, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mikasa_robo.baselines.arguments import read_env_kwargs
from mikasa_robo.baselines.environments import choose_obs_mode, is_robot_task, make_training_env
from mikasa_robo.baselines.evaluation import find_horizon
from mikasa_robo.baselines.spaces import ObservationLayout
from mikasa_robo.experts.evaluation import PolicyMaker
from mikasa_robo.experts.makers import POLICY_NAMES, policy_maker
from mikasa_robo.experts.policies import OBS_MODE, UnfitPolicyError
from mikasa_robo.experts.policies import Policy as ScriptedPolicy
from mikasa_robo.experts.registry import make_skill
from mikasa_robo.rollouts import EpisodeTotals, play_episodes
from mikasa_robo.sim.render import RenderingUnavailableError
from mikasa_robo.video import Images, write_tiled_video

from .checkpoint import make_policy, read_checkpoint
from .env_ids import OptionError
from .progress import Progress

__all__ = [
    "CheckpointPlayer",
    "EnvSettings",
    "Frame",
    "PolicyPlayer",
    "ScriptedPlayer",
    "UnsuitablePolicyError",
    "film_tiled",
    "load_player",
    "make_player_env",
    "play",
]

Act = Callable[[Any, Mapping[str, Any]], Tensor]
"""Maps observations (N, …) and the info that came with them to actions (N, A)."""


@dataclass(frozen=True)
class EnvSettings:
    """The arguments of an environment that a policy acts in."""

    obs_mode: str
    control_mode: str = "pd_joint_delta_pos"
    reward_mode: str = "normalized_dense"
    sim_backend: str = "auto"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Frame:
    """What `play` yields at a control step."""

    images: Images  # (N, H, W, 3) uint8
    running: NDArray[np.bool_]  # (N,) the episode was not over before this step
    success: NDArray[np.bool_]  # (N,) there has been a success


class UnsuitablePolicyError(ValueError):
    """A policy's observations or actions do not fit the task."""


class PolicyPlayer(Protocol):
    """A policy, with the settings of the environments it acts in."""

    @property
    def settings(self) -> EnvSettings:
        """What the policy wants to see and act through."""

    def require_fit(self, env: gym.Env[Any, Any]) -> None:
        """Raises UnsuitablePolicyError where the policy cannot act in ``env``."""

    def start(self, env: gym.Env[Any, Any]) -> Act:
        """The policy, for one episode in each environment of ``env``, which has just been reset."""


class ScriptedPlayer:
    """A scripted policy. ``make_policy`` makes it for the skill of the task."""

    def __init__(self, make_policy: PolicyMaker) -> None:
        self._make_policy = make_policy
        self.settings = EnvSettings(OBS_MODE)

    def require_fit(self, env: gym.Env[Any, Any]) -> None:
        """See `PolicyPlayer`."""
        self._make(env)

    def start(self, env: gym.Env[Any, Any]) -> Act:
        """See `PolicyPlayer`."""
        policy = self._make(env)
        policy.reset()
        return policy.act

    def _make(self, env: gym.Env[Any, Any]) -> ScriptedPolicy:
        task: Any = env.unwrapped
        try:
            return self._make_policy(make_skill(task.spec.id, task))
        except UnfitPolicyError as error:
            raise UnsuitablePolicyError(f"--env-id {task.spec.id}: {error}") from error


class CheckpointPlayer:
    """A trained policy.

    Args:
        path, memory: see `read_checkpoint`.

    Raises:
        CheckpointError, FileNotFoundError: see `read_checkpoint`.
    """

    def __init__(self, path: Path, memory: str | None = None) -> None:
        self.checkpoint = read_checkpoint(path, memory)
        args = self.checkpoint.args
        self.settings = EnvSettings(
            choose_obs_mode(args),
            args.control_mode,
            args.reward_mode,
            args.sim_backend,
            read_env_kwargs(args.env_kwargs),
        )
        self.network = self.checkpoint.load_network()

    def require_fit(self, env: gym.Env[Any, Any]) -> None:
        """See `PolicyPlayer`."""
        task: Any = env.unwrapped
        self.require_fit_space(task.single_observation_space, env)

    def require_fit_space(self, space: gym.Space[Any], env: gym.Env[Any, Any]) -> None:
        """`require_fit`, for a policy that sees a part of what ``env`` shows: observations of ``space``."""
        task: Any = env.unwrapped
        layout = ObservationLayout.of(space)
        expected = self.network.layout.width, self.network.action.dim
        found = layout.width, task.single_action_space.shape[-1]
        if expected == found and layout != self.network.layout:
            seen, shown = (
                ", ".join(f"{part.name} {part.shape}" for part in one.parts) for one in (self.network.layout, layout)
            )
            raise UnsuitablePolicyError(
                f"--policy {self.checkpoint.path} sees {seen}, and {task.spec.id} shows {shown}: the policy was trained on "
                f"{self.checkpoint.env_id}"
            )
        if expected != found:
            raise UnsuitablePolicyError(
                f"--policy {self.checkpoint.path} maps {expected[0]} numbers to {expected[1]}, and {task.spec.id} needs "
                f"{found[0]} to {found[1]}: the policy was trained on {self.checkpoint.env_id}"
            )

    def start(self, env: gym.Env[Any, Any]) -> Act:
        """See `PolicyPlayer`."""
        self.require_fit(env)
        act = self.begin(env.unwrapped.device)  # type: ignore[attr-defined]
        return lambda obs, info: act(obs)

    def begin(self, device: torch.device | str = "cpu", seeds: Sequence[int] | None = None) -> Callable[[Any], Tensor]:
        """Begin new episodes, and return what acts on their observations.

        Args:
            device: of the observations.
            seeds: of the episodes, for a policy that draws random numbers; see `baselines.protocol.Policy`.
        """
        policy: Any = make_policy(self.checkpoint, self.network.to(device))
        policy.on_episode_start()
        if seeds is not None and hasattr(policy, "seed_episodes"):
            policy.seed_episodes(seeds)
        require_no_nan = getattr(policy, "require_no_nan", lambda: None)

        def act(obs: Any) -> Tensor:
            action: Tensor = policy.act(obs)
            require_no_nan()  # at each step: images and recorded actions make the host wait anyway
            return action

        return act


def load_player(policy: str, memory: str | None = None) -> ScriptedPlayer | CheckpointPlayer:
    """The scripted policy of that name, or the policy of that checkpoint file; for ``memory`` see `read_checkpoint`."""
    if policy in POLICY_NAMES:
        name: Any = policy
        return ScriptedPlayer(policy_maker(name))
    return CheckpointPlayer(Path(policy), memory)


def make_player_env(env_id: str, num_envs: int, settings: EnvSettings, render_mode: str | None, **kwargs: Any) -> Any:
    """A batch of the robot task ``env_id``; ``kwargs`` win over those of ``settings``.

    Raises:
        OptionError: ``env_id`` is not a robot task, or it cannot be made with these settings.
        RenderingUnavailableError: SAPIEN cannot draw here.
    """
    if not is_robot_task(env_id):
        raise OptionError(f"--env-id {env_id} is not a robot task")
    try:
        return make_training_env(
            num_envs,
            render_mode,
            env_id=env_id,
            reward_mode=settings.reward_mode,
            control_mode=settings.control_mode,
            sim_backend=settings.sim_backend,
            obs_mode=settings.obs_mode,
            env_kwargs={**settings.env_kwargs, **kwargs},
        )
    except RenderingUnavailableError:
        raise
    except (RuntimeError, ValueError, gym.error.Error) as error:
        raise OptionError(f"--env-id {env_id} cannot be made: {error}") from error


def play(env: Any, player: PolicyPlayer, seeds: int | Sequence[int], every: int = 1) -> Iterator[Frame]:
    """Play one episode in each environment until all are over.

    Args:
        env: a batch of a robot task, with overlays or without.
        player: what acts.
        seeds: that of each episode, or one for the whole batch.
        every: yield a frame at each ``every``-th control step and at the end of each episode; with 0 only the last
            frame, without images.
    """
    policy: list[Act] = []  # made once the environment has been reset
    totals = EpisodeTotals()
    seed = seeds if isinstance(seeds, int) else list(seeds)
    horizon = find_horizon(env)
    with Progress(horizon, f"{'drawing' if every else 'playing'} {env.unwrapped.num_envs} episodes") as progress:
        for step in play_episodes(env, lambda obs, info: policy[0](obs, info), seed, horizon):
            if step.t == 0:
                policy.append(player.start(env))
            totals.add(step)
            progress.to(step.t)
            # An episode that ends between two frames gets one for its end.
            if every and (step.t % every == 0 or bool((step.still_running != step.running).any())):
                yield Frame(_images(env), step.running.cpu().numpy(), totals.success_once.cpu().numpy())
    if not every:
        nothing = np.zeros((env.unwrapped.num_envs, 0, 0, 3), dtype=np.uint8)
        yield Frame(nothing, step.still_running.cpu().numpy(), totals.success_once.cpu().numpy())


def _images(env: Any) -> Images:
    images: Images = torch.as_tensor(env.render()).cpu().numpy()
    return images


def film_tiled(
    env: Any, player: PolicyPlayer, seeds: int | Sequence[int], path: Path, hold: int = 0
) -> NDArray[np.bool_]:
    """Film one episode of each environment, side by side; one that is over shows its last image.

    Args:
        env, player, seeds: see `play`.
        path: the MP4, a new file.
        hold: frames for which the last image stays.

    Returns:
        (N,) which episodes succeeded.
    """
    success = np.zeros(env.unwrapped.num_envs, dtype=bool)

    def frames() -> Iterator[tuple[Images, NDArray[np.bool_]]]:
        nonlocal success
        for frame in play(env, player, seeds):
            success = frame.success
            yield frame.images, frame.running

    write_tiled_video(path, frames(), hold=hold)
    return success
